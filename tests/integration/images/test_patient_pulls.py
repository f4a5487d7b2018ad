"""Pulls from a registry that asks to be left alone, breaks off, or hands out something else than was asked for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

import pytest
from aiohttp import web

from dsec.errors import DSecError, ImageCorrupt, RegistryRateLimited, RegistryUnreachable
from dsec.images import Images, ImagesConfig, Progress, SubprocessTools
from dsec.images.oci import node_architecture
from dsec.images.samples import Member, layer_archive, oci_layout

from .faulty_registry import Fault, FaultyRegistry, faulty_registry

pytestmark = [pytest.mark.node, pytest.mark.anyio]
Configure = Callable[..., ImagesConfig]

SMALL = layer_archive([Member(name="small", data=b"1")])
BIG = layer_archive([Member(name="big", data=os.urandom(2_000_000))])


def images_of(configure: Configure, registry: FaultyRegistry, **fields: object) -> Images:
    """A node's images with that registry among the insecure ones."""
    return Images(configure(insecure_registries=(registry.address,), **fields), SubprocessTools())


def refused(status: int, retry_after: str, times: int, where: str) -> Fault:
    """Refuses so many requests to paths with that word."""
    left = [times]

    def fault(request: web.Request) -> web.Response | None:
        if where not in request.path or not left[0]:
            return None
        left[0] -= 1
        headers = {"Retry-After": retry_after} if retry_after else {}
        return web.Response(status=status, headers=headers)

    return fault


@pytest.mark.parametrize("where", ["/v2/", "/manifests/", "/blobs/"])
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_left_alone_as_it_asks(
    configure: Configure, tmp_path: Path, where: str, status: int, form: str
) -> None:
    """A registry that is busy once, wherever, is waited for as it says; the image comes, and progress says why."""
    told = "1" if form == "seconds" else formatdate(usegmt=True)
    async with faulty_registry(oci_layout(tmp_path / "image", [SMALL])) as registry:
        registry.fault = refused(status, told, 1, where)
        async with images_of(configure, registry) as images:
            seen: list[Progress] = []
            image = await images.resolve(f"{registry.address}/team/app:1", progress=seen.append)
            assert len(image.layers) == 1
            assert "wait" in [each.phase for each in seen] and seen[-1].phase == "done"


@pytest.mark.parametrize("status", [429, 503])
async def test_a_rate_limit_is_told_as_such(configure: Configure, tmp_path: Path, status: int) -> None:
    """What outlasts the node's patience is RegistryRateLimited at once, with all of the registry's delay."""
    async with faulty_registry(oci_layout(tmp_path / "image", [SMALL])) as registry:
        registry.fault = refused(status, "3600", 1000, "/manifests/")
        async with images_of(configure, registry) as images:
            with pytest.raises(RegistryRateLimited) as caught:
                await images.resolve(f"{registry.address}/team/app:1")
            assert caught.value.retry_after_s == 3600 and caught.value.retryable and caught.value.remedy
            assert registry.count("/manifests/") <= 3


async def test_no_longer_than_the_caller_has(configure: Configure, tmp_path: Path) -> None:
    """A caller that gives up before the registry may be asked again hears of the limit now, not of its deadline."""
    async with faulty_registry(oci_layout(tmp_path / "image", [SMALL])) as registry:
        registry.fault = refused(429, "30", 1000, "/manifests/")
        async with images_of(configure, registry) as images:
            deadline = asyncio.get_running_loop().time() + 29.0
            async with asyncio.timeout_at(deadline):
                with pytest.raises(RegistryRateLimited):
                    await images.resolve(f"{registry.address}/team/app:1", deadline=deadline)
            assert registry.count("/manifests/") == 1


async def test_a_registry_that_never_recovers(configure: Configure, tmp_path: Path) -> None:
    """5xx without a word on when is tried some times, each later, and is RegistryUnreachable then."""
    async with faulty_registry(oci_layout(tmp_path / "image", [SMALL])) as registry:
        registry.fault = refused(500, "", 1000, "/manifests/")
        async with images_of(configure, registry, registry_patience_s=2.5) as images:
            with pytest.raises(RegistryUnreachable):
                await images.resolve(f"{registry.address}/team/app:1")
            assert registry.count("/manifests/") == 3


async def test_a_download_that_breaks_off(configure: Configure, tmp_path: Path) -> None:
    """Cut in the middle of a blob it is begun again, and what came whole is not fetched twice."""
    async with faulty_registry(oci_layout(tmp_path / "image", [SMALL, BIG])) as registry:
        small, big = registry.layers
        cuts = [300_000, 900_000]
        registry.fault = lambda asked: cuts.pop() if asked.path.endswith(big) and cuts else None
        async with images_of(configure, registry) as images:
            assert len((await images.resolve(f"{registry.address}/team/app:1")).layers) == 2
            assert (registry.count(small), registry.count(big)) == (1, 3)


async def test_one_that_breaks_off_always(configure: Configure, tmp_path: Path) -> None:
    """It is RegistryUnreachable in the end, retryable, and leaves nothing behind."""
    async with faulty_registry(oci_layout(tmp_path / "image", [BIG])) as registry:
        registry.fault = lambda asked: 100_000 if "/blobs/" in asked.path else None
        config = configure(insecure_registries=(registry.address,), registry_patience_s=2.0)
        async with Images(config, SubprocessTools()) as images:
            with pytest.raises(RegistryUnreachable, match="broke off") as caught:
                await images.resolve(f"{registry.address}/team/app:1")
            assert caught.value.retryable and images.list() == []
            assert list(config.scratch_dir.iterdir()) == []


async def test_other_bytes_than_were_asked_for(configure: Configure, tmp_path: Path) -> None:
    """By digest another manifest is not taken, nor a blob with another content: told at once, nothing kept."""
    layout = oci_layout(tmp_path / "image", [SMALL])
    async with faulty_registry(layout) as registry, images_of(configure, registry) as images:
        pinned = f"{registry.address}/team/app@{registry.manifest}"
        true = registry.blob(registry.manifest)
        kind = "application/vnd.oci.image.manifest.v1+json"
        other = web.Response(body=true.replace(b'"schemaVersion"', b' "schemaVersion"'), content_type=kind)
        registry.fault = lambda asked: other if "/manifests/" in asked.path else None
        with pytest.raises(DSecError) as caught:
            await images.resolve(pinned)
        assert isinstance(caught.value, ImageCorrupt)
        [layer] = registry.layers
        changed = bytes(len(registry.blob(layer)))
        registry.fault = lambda asked: web.Response(body=changed) if asked.path.endswith(layer) else None
        with pytest.raises(ImageCorrupt):
            await images.resolve(pinned)
        assert images.list() == [] and registry.count(layer) == 1
        registry.fault = lambda _: None
        assert len((await images.resolve(pinned)).layers) == 1


async def test_this_nodes_architecture(configure: Configure, tmp_path: Path) -> None:
    """Of an index this node's image is taken, wherever it stands in it; an index without one is an error."""
    own = node_architecture()
    for name, kinds in (("last", ["s390x", own]), ("none", ["s390x", "mips"])):
        layout = oci_layout(tmp_path / name, [SMALL], architectures=kinds)
        async with faulty_registry(layout) as registry, images_of(configure, registry) as images:
            if name == "last":
                assert len((await images.resolve(f"{registry.address}/team/last:1")).layers) == 1
            else:
                with pytest.raises(DSecError, match=own) as caught:
                    await images.resolve(f"{registry.address}/team/none:1")
                assert not caught.value.retryable
