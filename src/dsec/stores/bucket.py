"""A store that is an S3 bucket, or a prefix of one."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from dsec.errors import InvalidArgument, StoreDenied, StoreFull, StoreUnreachable
from dsec.stores.contract import Entry, checked_name, missing
from dsec.stores.settings import BucketAddress

if TYPE_CHECKING:
    from obstore.store import S3Config

__all__ = ["BucketStore"]

_STATUS = re.compile(r"status code: (\d{3})")


class BucketStore:
    """A Store in a bucket, by the same library that the fetcher reads with."""

    def __init__(self, address: BucketAddress, *, retry_for_s: float = 60) -> None:
        self._address = address
        try:
            self._s3 = S3Store(
                address.bucket,
                prefix=address.prefix or None,
                config=cast("S3Config", address.config()),
                client_options={
                    "allow_http": (address.endpoint or "").startswith("http://"),
                    "connect_timeout": timedelta(seconds=10),
                    # Of a whole request: a pack of 32 MiB over a line of 1 Mbit/s still goes through.
                    "timeout": timedelta(seconds=300),
                },
                retry_config={"max_retries": 8, "retry_timeout": timedelta(seconds=retry_for_s)},
            )
        except (BaseError, ValueError) as error:
            raise InvalidArgument(f"{self.title}: {_first_line(error)}", phase="store") from None

    @property
    def title(self) -> str:
        """See ``Store``."""
        return self._address.url

    def stat(self, name: str) -> Entry | None:
        """See ``Store``."""
        with self._typed(name):
            try:
                return _entry(obstore.head(self._s3, checked_name(name)))
            except FileNotFoundError:
                return None

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """See ``Store``."""
        with self._typed(name):
            try:
                if offset == 0 and length is None:
                    return bytes(obstore.get(self._s3, checked_name(name)).bytes())
                if length is None:
                    options: obstore.GetOptions = {"range": {"offset": offset}}
                    return bytes(obstore.get(self._s3, checked_name(name), options=options).bytes())
                if length == 0:
                    return b""
                return bytes(obstore.get_range(self._s3, checked_name(name), start=offset, length=length))
            except FileNotFoundError:
                raise missing(self.title, name) from None
            except BaseError as error:
                if _status(error) == 416:
                    return b""
                raise

    def put(self, name: str, content: bytes) -> None:
        """See ``Store``. Always one request, so that nothing half uploaded is ever paid for."""
        with self._typed(name):
            obstore.put(self._s3, checked_name(name), content, use_multipart=False)

    def swap(self, name: str, content: bytes, mark: str | None) -> bool:
        """See ``Store``: by conditional requests, as AWS, Ceph, MinIO and SeaweedFS have them."""
        with self._typed(name):
            try:
                if mark is None:
                    obstore.put(self._s3, checked_name(name), content, mode="create", use_multipart=False)
                else:
                    update: obstore.UpdateVersion = {"e_tag": mark}
                    obstore.put(self._s3, checked_name(name), content, mode=update, use_multipart=False)
            except (AlreadyExistsError, PreconditionError, FileNotFoundError):
                return False
        return True

    def list(self, folder: str) -> Iterator[Entry]:
        """See ``Store``."""
        with self._typed(folder):
            for batch in obstore.list(self._s3, checked_name(folder), chunk_size=1000):
                yield from (_entry(each) for each in batch)

    def delete(self, name: str) -> None:
        """See ``Store``."""
        with self._typed(name), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._s3, checked_name(name))

    def remove(self, name: str, mark: str) -> bool:
        """See ``Store``: a look, then the removal. What comes between the two is removed with it."""
        there = self.stat(name)
        if there is None or there.mark != mark:
            return False
        self.delete(name)
        return True

    def sweep(self, older_than_s: float) -> int:
        """An upload is one request: a writer that dies leaves nothing."""
        return 0

    @contextlib.contextmanager
    def _typed(self, name: str) -> Iterator[None]:
        try:
            yield
        except BaseError as error:
            raise self._error(error, name) from error

    def _error(self, error: BaseError, name: str) -> Exception:
        what = f"{self.title}: {name}: {_first_line(error)}"
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            return StoreDenied(what, phase="store", object=name)
        if isinstance(error, NotSupportedError) or _status(error) == 501:
            return StoreDenied(what, phase="store", remedy="Use a store with conditional writes", object=name)
        if _status(error) == 507:
            return StoreFull(what, phase="store", object=name)
        return StoreUnreachable(what, phase="store", remedy="See whether its endpoint answers", object=name)


def _entry(meta: obstore.ObjectMeta) -> Entry:
    return Entry(meta["path"], meta["size"], meta["last_modified"].timestamp(), meta["e_tag"] or "")


def _status(error: BaseError) -> int | None:
    # The library has no other place for the status of an answer that it has no error of its own for.
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:300]
