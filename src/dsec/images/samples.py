"""Small images made from a description, for tests: layer archives, OCI layouts, ``docker save`` archives."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dsec.images.oci import node_architecture

__all__ = ["Member", "docker_archive", "layer_archive", "oci_layout"]

_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a layer's archive."""

    name: str
    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    link: str = ""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: float = 1_700_000_000
    device: tuple[int, int] = (0, 0)
    xattrs: Mapping[str, str] = {}


def layer_archive(members: Sequence[Member]) -> bytes:
    """A pax tar archive of the members, in this order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            info = tarfile.TarInfo(member.name)
            info.type, info.linkname, info.mode = member.kind, member.link, member.mode
            info.uid, info.gid, info.mtime = member.uid, member.gid, member.mtime
            info.devmajor, info.devminor = member.device
            info.size = len(member.data)
            info.pax_headers = {f"SCHILY.xattr.{key}": value for key, value in member.xattrs.items()}
            archive.addfile(info, io.BytesIO(member.data))
    return out.getvalue()


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _config(archives: Sequence[bytes], config: Mapping[str, object], architecture: str) -> bytes:
    return msgspec.json.encode(
        {
            "architecture": architecture,
            "os": "linux",
            "config": dict(config),
            "rootfs": {"type": "layers", "diff_ids": [_digest(each) for each in archives]},
        }
    )


def oci_layout(
    directory: Path,
    archives: Sequence[bytes],
    config: Mapping[str, object] = {},
    *,
    compress: bool = True,
    name: str | None = None,
    architectures: Sequence[str] = (),
) -> Path:
    """Write an OCI layout of one image, and return its directory.

    With ``architectures`` it holds an index of one manifest each; only the last one of them has the layers given, the
    others have none.
    """
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes, media_type: str, **more: object) -> dict[str, object]:
        (blobs / _digest(data).removeprefix("sha256:")).write_bytes(data)
        return {"mediaType": media_type, "digest": _digest(data), "size": len(data), **more}

    def manifest(layers: Sequence[bytes], architecture: str, **more: object) -> dict[str, object]:
        stored = [gzip.compress(each, mtime=0) if compress else each for each in layers]
        document = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": put(_config(layers, config, architecture), _CONFIG),
            "layers": [put(each, _LAYER + "+gzip" * compress) for each in stored],
        }
        return put(msgspec.json.encode(document), _MANIFEST, **more)

    if architectures:
        platforms = [{"architecture": each, "os": "linux"} for each in architectures]
        manifests = [
            manifest(archives if i == len(platforms) - 1 else [], each["architecture"], platform=each)
            for i, each in enumerate(platforms)
        ]
        top = put(msgspec.json.encode({"schemaVersion": 2, "mediaType": _INDEX, "manifests": manifests}), _INDEX)
    else:
        top = manifest(archives, node_architecture())
    if name is not None:
        top["annotations"] = {"org.opencontainers.image.ref.name": name}
    (directory / "index.json").write_bytes(msgspec.json.encode({"schemaVersion": 2, "manifests": [top]}))
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return directory


def docker_archive(
    file: Path,
    archives: Sequence[bytes],
    config: Mapping[str, object] = {},
    *,
    name: str | None = None,
) -> Path:
    """Write what ``docker save`` would write of one image, and return the file."""
    document = _config(archives, config, node_architecture())
    layers = [f"{_digest(each).removeprefix('sha256:')}.tar" for each in archives]
    manifest = [{"Config": "config.json", "RepoTags": [name] if name else None, "Layers": layers}]
    members = [Member(name=layer, data=data) for layer, data in zip(layers, archives, strict=True)]
    members += [
        Member(name="config.json", data=document),
        Member(name="manifest.json", data=msgspec.json.encode(manifest)),
    ]
    file.write_bytes(layer_archive(members))
    return file
