"""Pulls from a real registry, shared by whoever asks; a registry that refuses, hangs or is not there is named so."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import aiohttp
import pytest

from dsec.errors import ImageNotFound, RegistryDenied, RegistryRateLimited, RegistryUnreachable
from dsec.images import Images, ImagesConfig, Progress, SubprocessTools, ToolResult
from dsec.images.samples import Member, layer_archive, oci_layout

from .registries import docker_registry, free_port, misbehaving, push

pytestmark = [pytest.mark.node, pytest.mark.anyio]
Configure = Callable[..., ImagesConfig]

BASE = layer_archive([Member(name="bin/sh", data=b"#!" * 50_000, mode=0o755)])
TOP = layer_archive([Member(name="app", data=b"1")])
# bcrypt of "secret"
HTPASSWD = "user:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry holding team/base:1 (one layer) and team/app:1 (the same and another)."""
    root = tmp_path_factory.mktemp("registry")
    with docker_registry(root / "server") as address:
        push(oci_layout(root / "base", [BASE]), address, "team/base:1")
        push(oci_layout(root / "app", [BASE, TOP], {"Cmd": ["/app"]}), address, "team/app:1")
        yield address


class CountingTools(SubprocessTools):
    """The real tools, remembering what ran."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[str] = []

    async def run(
        self,
        name: str,
        argv: Sequence[str],
        *,
        timeout_s: float,
        log: Callable[[str], None] | None = None,
        tool_id: str | None = None,
    ) -> ToolResult:
        """See ``Tools.run``."""
        self.ran.append(name)
        return await super().run(name, argv, timeout_s=timeout_s, log=log, tool_id=tool_id)


async def test_pulled_on_first_use(configure: Configure, registry: str) -> None:
    """A missing image is pulled once, is there for later, and 'never' does not pull."""
    tools = CountingTools()
    async with Images(configure(insecure_registries=(registry,)), tools) as images:
        with pytest.raises(ImageNotFound):
            await images.resolve(f"{registry}/team/app:1", pull="never")
        assert tools.ran == []
        seen: list[Progress] = []
        image = await images.resolve(f"{registry}/team/app:1", progress=seen.append)
        assert image.config.cmd == ("/app",)
        assert len(image.layers) == 2
        assert seen[-1].phase == "done"
        assert tools.ran == ["pull", "mkfs", "mkfs"]
        assert await images.resolve(f"{registry}/team/app:1") == image
        assert await images.resolve(f"{registry}/team/app:1", pull="never") == image
        assert tools.ran == ["pull", "mkfs", "mkfs"]


async def test_one_pull_for_all_who_wait(configure: Configure, registry: str) -> None:
    """Twenty callers at once make one pull; a caller that gives up does not end it for the others."""
    tools = CountingTools()
    async with Images(configure(insecure_registries=(registry,)), tools) as images:
        name = f"{registry}/team/app:1"
        waiting = [asyncio.create_task(images.resolve(name)) for _ in range(20)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert {each.digest for each in found[1:] if not isinstance(each, BaseException)} == {images.get(name).digest}
        assert tools.ran.count("pull") == 1
        assert tools.ran.count("mkfs") == 2


async def test_layers_that_are_here_are_not_fetched_again(configure: Configure, registry: str) -> None:
    """Of an image that shares a layer only the other one is fetched and made; pulled again, none is."""
    tools = CountingTools()
    async with Images(configure(insecure_registries=(registry,)), tools) as images:
        base = await images.resolve(f"{registry}/team/base:1")
        seen: list[Progress] = []
        app = await images.resolve(f"{registry}/team/app:1", progress=seen.append)
        assert app.layers[0] == base.layers[0]
        assert tools.ran.count("mkfs") == 2
        await images.resolve(f"{registry}/team/app:1", pull="always")
        assert tools.ran.count("pull") == 3
        assert tools.ran.count("mkfs") == 2
        assert images.layer_path(app.layers[1]).is_dir()


@pytest.mark.parametrize("form", ["oci", "v2s2"])
async def test_a_collapsed_image_is_not_fetched_again(configure: Configure, tmp_path: Path, form: str) -> None:
    """Its parts are gone: pulled anew, or under another name, it is the one that is here; changed, it is fetched."""
    archives = [layer_archive([Member(name=f"file-{i}", data=b"%d" % i * 9_000)]) for i in range(6)]
    with docker_registry(tmp_path / "server") as address:
        for name, count in (("many:1", 6), ("many:2", 6), ("other:1", 4)):
            layout = oci_layout(tmp_path / name.replace(":", "-"), archives[:count])
            await asyncio.to_thread(push, layout, address, name, form=form)
        tools = CountingTools()
        async with Images(configure(insecure_registries=(address,)), tools) as images:
            await images.resolve(f"{address}/many:1")
            await images.settled()
            image = images.get(f"{address}/many:1")
            assert (len(image.layers), len(image.parts)) == (1, 6)
            assert set(await images.prune()) == set(image.parts)
            made = tools.ran.count("mkfs")
            seen: list[Progress] = []
            assert await images.resolve(image.reference, pull="always", progress=seen.append) == image
            second = await images.resolve(f"{address}/many:2")
            assert (second.layers, second.parts, second.digest) == (image.layers, image.parts, image.digest)
            assert (tools.ran.count("pull"), tools.ran.count("mkfs")) == (3, made)
            other = await images.resolve(f"{address}/other:1")
            assert list(other.layers) == list(image.parts[:4])
            assert (tools.ran.count("pull"), tools.ran.count("mkfs")) == (5, made + 4)
            await asyncio.to_thread(push, tmp_path / "other-1", address, "many:1", form=form)
            changed = await images.resolve(image.reference, pull="always")
            assert changed.digest == other.digest


async def test_a_mirror_serves_its_registry(configure: Configure, registry: str) -> None:
    """With a mirror for Docker Hub the name stays Docker Hub's and the bytes come from the mirror."""
    config = configure(insecure_registries=(registry,), mirrors={"docker.io": registry})
    async with Images(config, SubprocessTools()) as images:
        image = await images.resolve("team/base:1")
        assert image.reference == "docker.io/team/base:1"
        renamed = await images.import_("docker://team/base:1", "mine:1")
        assert renamed.reference == "docker.io/library/mine:1"
        assert renamed.layers == image.layers


async def test_what_is_not_there(configure: Configure, registry: str) -> None:
    """An unknown repository and an unknown tag are ImageNotFound; nothing listening is RegistryUnreachable."""
    nobody = f"127.0.0.1:{free_port()}"
    async with Images(configure(insecure_registries=(registry, nobody)), SubprocessTools()) as images:
        for name in ("team/nowhere:1", "team/base:2"):
            with pytest.raises(ImageNotFound):
                await images.resolve(f"{registry}/{name}")
        with pytest.raises(RegistryUnreachable):
            await images.resolve(f"{nobody}/x:1")
        assert images.list() == []


async def test_by_the_registrys_digest_and_not_by_id(configure: Configure, registry: str) -> None:
    """A name by manifest digest pulls that image; by the image's own ID it is refused before a registry is asked."""
    async with aiohttp.ClientSession() as http:
        accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
        async with http.get(f"http://{registry}/v2/team/base/manifests/1", headers=accept) as answer:
            digest = answer.headers["Docker-Content-Digest"]
    tools = CountingTools()
    async with Images(configure(insecure_registries=(registry,)), tools) as images:
        image = await images.resolve(f"{registry}/team/base@{digest}")
        assert image.reference == f"{registry}/team/base@{digest}" and image.digest != digest
        assert images.get(f"{registry}/team/base@{digest}") == image
        ran = list(tools.ran)
        with pytest.raises(ImageNotFound, match="by its ID") as refused:
            await images.resolve(f"{registry}/team/base@{image.digest}")
        assert image.reference in (refused.value.remedy or "")
        assert tools.ran == ran


async def test_plain_http_must_be_allowed(configure: Configure, registry: str) -> None:
    """A registry that is not marked insecure is not spoken to without TLS, and the remedy says what to do."""
    async with Images(configure(), SubprocessTools()) as images:
        with pytest.raises(RegistryUnreachable, match="insecure_registries"):
            await images.resolve(f"{registry}/team/base:1")


async def test_credentials(configure: Configure, tmp_path: Path) -> None:
    """Without credentials, or with wrong ones, the pull is denied; with those of the file it works."""
    with docker_registry(tmp_path / "private", HTPASSWD) as address:
        layout = oci_layout(tmp_path / "image", [TOP])
        await asyncio.to_thread(push, layout, address, "x:1", "user:secret")

        def configured(name: str, password: str | None) -> ImagesConfig:
            auth = base64.b64encode(f"user:{password}".encode()).decode()
            file = tmp_path / f"{name}.json"
            file.write_text(json.dumps({"auths": {address: {"auth": auth}} if password else {}}))
            return configure(name, insecure_registries=(address,), auth_file=file)

        for name, password in (("none", None), ("wrong", "guess")):
            async with Images(configured(name, password), SubprocessTools()) as images:
                with pytest.raises(RegistryDenied):
                    await images.resolve(f"{address}/x:1")
        async with Images(configured("right", "secret"), SubprocessTools()) as images:
            assert len((await images.resolve(f"{address}/x:1")).layers) == 1


async def test_rate_limit(configure: Configure) -> None:
    """A 429 that outlasts the node's patience is told at once, with the registry's own delay."""
    async with misbehaving(429, "Retry-After: 17\r\n") as bad:
        config = configure(insecure_registries=(bad.address,), registry_patience_s=16.0)
        async with Images(config, SubprocessTools()) as images:
            with pytest.raises(RegistryRateLimited) as caught:
                await images.resolve(f"{bad.address}/x:1")
            assert caught.value.retry_after_s == 17
            assert caught.value.retryable
            assert len(bad.requests) <= 2
            assert list(config.scratch_dir.iterdir()) == []


@pytest.mark.parametrize(("status", "expected"), [(403, RegistryDenied), (503, RegistryUnreachable)])
async def test_other_refusals(configure: Configure, status: int, expected: type[Exception]) -> None:
    """Forbidden is denied; a server error is the registry's trouble."""
    async with (
        misbehaving(status) as bad,
        Images(configure(insecure_registries=(bad.address,), registry_patience_s=1.5), SubprocessTools()) as images,
    ):
        with pytest.raises(expected):
            await images.resolve(f"{bad.address}/x:1")


async def test_a_registry_that_hangs(configure: Configure) -> None:
    """When nothing comes for the configured time, the pull ends, and with it everything it had begun."""
    async with misbehaving(None) as bad:
        config = configure(insecure_registries=(bad.address,), stall_timeout_s=1.0)
        async with Images(config, SubprocessTools()) as images:
            with pytest.raises(RegistryUnreachable, match="nothing for 1 s"):
                await images.resolve(f"{bad.address}/x:1")
            assert bad.requests
            assert list(config.scratch_dir.iterdir()) == []


async def test_closing_ends_a_pull(configure: Configure) -> None:
    """Closing in the middle of a pull kills its program and removes its traces."""
    async with misbehaving(None) as bad:
        config = configure(insecure_registries=(bad.address,))
        async with Images(config, SubprocessTools()) as images:
            waiting = asyncio.create_task(images.resolve(f"{bad.address}/x:1"))
            await bad.asked.wait()
            await images.aclose()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert list(config.scratch_dir.iterdir()) == []
