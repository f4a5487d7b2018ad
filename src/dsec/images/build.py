"""Building ``dsec/debian:12``: Debian with Python, git and a C toolchain, as one layer."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from dsec.errors import DeadlineExceeded, NodeError
from dsec.images.apt import apt_options, select_sources
from dsec.images.catalogue import Catalogue, Image, ImageConfig
from dsec.images.config import ImagesConfig
from dsec.images.erofs import make_layer
from dsec.images.holds import Holds
from dsec.images.progress import Progress, Reporter
from dsec.images.store import LayerStore, private_directory
from dsec.images.tools import Tools
from dsec.layering.making import FromArchive
from dsec.layering.tar_tree import TarOptions

__all__ = ["DEFAULT_IMAGE", "DefaultImage", "mmdebstrap_argv"]

DEFAULT_IMAGE = "dsec/debian:12"
SUITE = "bookworm"
PACKAGES = (
    "ca-certificates",
    "gcc",
    "git",
    "libc6-dev",
    "make",
    "patch",
    "procps",
    "python-is-python3",
    "python3",
    "python3-pip",
    "python3-venv",
    "xz-utils",
)
# Stands for every time during the build, so that equal packages give equal layers. SOURCE_DATE_EPOCH will not do:
# files of packages newer than it would lose their times too, and with them their compiled Python.
_EPOCH = 1_704_067_200
_EXCLUDED = ("doc", "man", "info", "lintian", "locale")
_CONFIG = ImageConfig(
    env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
    cmd=("bash",),
)
_PREFIX = "build-"


def mmdebstrap_argv(archive: Path, sources: list[Path], options: list[str]) -> list[str]:
    """The command that writes the root file system as a tar archive.

    ``sources`` are apt source files; without any mmdebstrap takes Debian's own. ``options`` are apt options that hold
    while building and do not stay in the image.
    """
    return [
        "env",
        "LC_ALL=C.UTF-8",
        "mmdebstrap",
        "--variant=minbase",
        "--format=tar",
        f"--include={','.join(PACKAGES)}",
        *(f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in _EXCLUDED),
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        *(f"--aptopt={each}" for each in options),
        '--customize-hook=rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap"',
        # Dates of the day would give equal packages another layer every day.
        f"--customize-hook=sed -i -E 's/^([^:]*:[^:]*:)[0-9]+:/\\1{_EPOCH // 86_400}:/' \"$1/etc/shadow\"",
        '--customize-hook=rm -f "$1"/etc/*- "$1"/var/log/*.log "$1/var/log/apt/"*',
        SUITE,
        str(archive),
        *map(str, sources),
    ]


class DefaultImage:
    """Builds the default image on this node."""

    def __init__(
        self,
        config: ImagesConfig,
        tools: Tools,
        store: LayerStore,
        catalogue: Catalogue,
        holds: Holds,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._config = config
        self._tools = tools
        self._store = store
        self._catalogue = catalogue
        self._holds = holds
        self._clock_ns = clock_ns

    async def build(self, report: Reporter) -> Image:
        """Build it anew and let ``dsec/debian:12`` mean the result; about a minute, most of it dpkg's.

        Raises NodeError (mmdebstrap missing or failed; the message ends with its last words), CapacityError,
        DeadlineExceeded.
        """
        report(Progress(DEFAULT_IMAGE, "build"))
        with private_directory(self._config.scratch_dir, _PREFIX) as scratch, self._holds.session() as hold:
            archive = scratch / "root.tar"
            started_ns = self._clock_ns()
            await self._bootstrap(archive, scratch)
            size = archive.stat().st_size
            report(Progress(DEFAULT_IMAGE, "unpack", 0, size, 0, 1))
            source = FromArchive(file=str(archive), options=self._options(started_ns), private=True)
            digest, manifest = await make_layer(
                self._tools, self._store, source, hold, timeout_s=self._config.build_timeout_s
            )
            self._catalogue.put_layer(digest, manifest.size)
            report(Progress(DEFAULT_IMAGE, "unpack", size, size, 1, 1))
            return self._catalogue.put_image(DEFAULT_IMAGE, _image_digest(digest), _CONFIG, (digest,))

    async def _bootstrap(self, archive: Path, scratch: Path) -> None:
        sources = await asyncio.to_thread(_write_sources, scratch)
        dump = await self._run("apt-config", ["apt-config", "dump"])
        await self._run("mmdebstrap", mmdebstrap_argv(archive, sources, apt_options(dump)))

    async def _run(self, name: str, argv: list[str]) -> str:
        try:
            result = await self._tools.run(name, argv, timeout_s=self._config.build_timeout_s)
        except TimeoutError as error:
            raise DeadlineExceeded(str(error), phase="image", remedy="Raise build_timeout_s") from None
        if result.exit_code:
            raise NodeError(
                f"{name} failed: {result.stderr.strip()[-800:]}",
                phase="image",
                remedy="Check that apt-get update works on the node and that debian-archive-keyring is installed",
            )
        return result.stdout.decode(errors="replace")

    def _options(self, started_ns: int) -> TarOptions:
        return TarOptions(
            max_bytes=self._config.max_image_bytes,
            max_entries=self._config.max_entries,
            newer_than_ns=started_ns,
            newer_becomes_ns=_EPOCH * 1_000_000_000,
        )


def _write_sources(scratch: Path) -> list[Path]:
    apt = Path("/etc/apt")
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))]
    files += sorted((apt / "sources.list.d").glob("*.sources"))
    texts = [each.read_text(errors="replace") for each in files if each.is_file()]
    written = []
    for name, text in zip(("host.list", "host.sources"), select_sources(texts, SUITE), strict=True):
        if text:
            (scratch / name).write_text(text)
            written.append(scratch / name)
    return written


def _image_digest(layer: str) -> str:
    document = msgspec.json.encode({"config": _CONFIG, "layers": [layer]}, order="sorted")
    return "sha256:" + hashlib.sha256(document).hexdigest()
