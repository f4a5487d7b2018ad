"""Environments from layers, and images from a registry run as their configuration says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsec
from dsec.client.results import Stderr, Stdout
from dsec.images.samples import Member, layer_archive, oci_layout
from dsec.testing.node import RunningNode, private_node

from .conftest import IMAGE
from .images.registries import docker_registry, free_port, push
from .test_cli import dsec as dsec_command

pytestmark = [pytest.mark.node, pytest.mark.anyio]

SCRIPT = b"#!/bin/sh\necho entry $0 $# $* $(id -u) $PWD $FROM\n"
BASE = layer_archive(
    [
        Member(name="srv/app/", kind=tarfile.DIRTYPE, mode=0o755, uid=33, gid=33),
        Member(name="srv/app/kept", data=b"base"),
        Member(name="srv/app/gone", data=b"base"),
        Member(name="opt/old/", kind=tarfile.DIRTYPE, mode=0o755),
        Member(name="opt/old/file", data=b"old"),
        Member(name="usr/local/bin/entry", data=SCRIPT, mode=0o755),
    ]
)
TOP = layer_archive(
    [
        Member(name="srv/app/.wh.gone"),
        Member(name="opt/old/", kind=tarfile.DIRTYPE, mode=0o755),
        Member(name="opt/old/.wh..wh..opq"),
        Member(name="opt/old/new", data=b"new"),
    ]
)


@pytest.fixture(scope="module")
def port() -> int:
    """Where this module's registry listens."""
    return free_port()


@pytest.fixture(scope="module")
def node(store: Path, port: int) -> Iterator[RunningNode]:
    """A node with one insecure registry on loopback."""
    with private_node(store, settings=f"[registries]\ninsecure = ['127.0.0.1:{port}']\n") as running:
        yield running


@pytest.fixture(scope="module")
def debian(store: Path, node: RunningNode) -> list[bytes]:
    """Layers of a small system with sh and id, taken from a sandbox of the default image."""
    import dsec.sync

    with dsec.sync.DSecClient(node.url, node.token) as client, client.sandbox(IMAGE) as sandbox:
        script = (
            "cd / && ldd /bin/sh /usr/bin/id /bin/cat | grep -o '/lib[^ ]*' | sort -u > /tmp/list; "
            "tar -chf /tmp/small.tar bin/sh usr/bin/id bin/cat $(sed 's,^/,,' /tmp/list)"
        )
        sandbox.run_shell(script, check=True)
        return [sandbox.read("/tmp/small.tar"), BASE, TOP]


@pytest.fixture(scope="module")
def registry(debian: list[bytes], port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Debian's registry with team/app:1."""
    root = tmp_path_factory.mktemp("registry")
    config = {
        "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "FROM=image", "KEPT=image"],
        "User": "33:33",
        "WorkingDir": "/srv/app",
        "Entrypoint": ["entry", "fixed"],
        "Cmd": ["default", "words"],
    }
    with docker_registry(root / "server", port=port) as address:
        push(oci_layout(root / "app", debian, config), address, "team/app:1")
        yield address


async def said(sandbox: dsec.Sandbox) -> str:
    """Everything that the main process wrote, once it has ended."""
    out = b""
    async for event in sandbox.logs(follow=True):
        if isinstance(event, Stdout | Stderr):
            out += event.data
    return out.decode()


async def test_an_image_runs_as_it_says(client: dsec.DSecClient, registry: str) -> None:
    """Pulled on first use; command="image" is Entrypoint and Cmd with the image's user, directory and environment."""
    reference = f"{registry}/team/app:1"
    sandbox = await client.sandbox(reference, command="image")
    assert await said(sandbox) == "entry /usr/local/bin/entry 3 fixed default words 33 /srv/app image\n"
    info = await sandbox.info()
    assert (info.exit_code, info.cause) == (0, "main-exited")
    assert info.command == ["entry", "fixed", "default", "words"]
    assert [image.reference for image in await client.images.list() if "team/app" in image.reference] == [reference]


async def test_what_the_caller_says_wins(client: dsec.DSecClient, registry: str) -> None:
    """The sandbox's env, user and workdir stand over the image's; what it leaves out is the image's."""
    async with client.sandbox(f"{registry}/team/app:1", env={"FROM": "caller"}) as sandbox:
        result = await sandbox.exec("sh", "-c", "echo $FROM $KEPT $(id -u) $PWD")
        assert result.stdout == "caller image 33 /srv/app\n"
    async with client.sandbox(f"{registry}/team/app:1", user="0", workdir="/opt") as sandbox:
        assert (await sandbox.run_shell("echo $(id -u) $PWD $FROM")).stdout == "0 /opt image\n"


async def test_whiteouts_of_image_layers(client: dsec.DSecClient, registry: str) -> None:
    """What an upper layer deletes or makes opaque is not there, owners are, and it can be made anew."""
    async with client.sandbox(f"{registry}/team/app:1", user="0") as sandbox:
        shown = "echo /srv/app/* /opt/old/*; cat /srv/app/kept; echo again > /srv/app/gone; cat /srv/app/gone"
        assert (await sandbox.run_shell(shown)).stdout == "/srv/app/kept /opt/old/new\nbaseagain\n"


async def test_an_import_by_digest_is_the_same(client: dsec.DSecClient, registry: str) -> None:
    """The registry's digest pulls the same image, and its layers are stored once."""
    looked = ["skopeo", "inspect", "--tls-verify=false", "--format={{.Digest}}", f"docker://{registry}/team/app:1"]
    digest = (await asyncio.to_thread(subprocess.check_output, looked, text=True)).strip()
    one = await client.images.import_(f"docker://{registry}/team/app:1")
    two = await client.images.import_(f"docker://{registry}/team/app@{digest}")
    assert (two.digest, two.layers) == (one.digest, one.layers)
    async with client.sandbox(f"{registry}/team/app@{digest}", pull="never") as sandbox:
        assert (await sandbox.info()).image_digest == one.digest


async def test_workspace_and_toolkits_lie_in_order(client: dsec.DSecClient, tmp_path: Path) -> None:
    """Base, then workspace, then toolkits as listed: the later hides the earlier; modes kept, owner as asked."""
    for name, kind in (("w", "workspace"), ("t1", "toolkit"), ("t2", "toolkit")):
        directory = tmp_path / name
        (directory / "etc").mkdir(parents=True)
        (directory / "etc" / "motd").write_text(name)
        (directory / f"only-{name}").write_text(name)
        (directory / f"only-{name}").chmod(0o750)
        await client.layers.build(directory, f"{kind}/{name}:1", owner="1000:1001")
    shown = "cat /etc/motd; ls -d /only-*; stat -c '%u:%g %a' /only-* | sort -u; test -s /etc/passwd && echo base"
    args = dsec.SandboxArgs(IMAGE, workspace="workspace/w:1", toolkits=("toolkit/t1:1", "toolkit/t2:1"))
    async with client.sandbox(args) as sandbox:
        out = (await sandbox.run_shell(shown)).stdout
        assert out.split() == ["t2", "/only-t1", "/only-t2", "/only-w", "1000:1001", "750", "base"] or out == (
            "t2/only-t1\n/only-t2\n/only-w\n1000:1001 750\nbase\n"
        )
        assert len((await sandbox.info()).layers) == 4
    async with client.sandbox(args.replace(toolkits=("toolkit/t2:1", "toolkit/t1:1"))) as sandbox:
        assert (await sandbox.run_shell("cat /etc/motd")).stdout == "t1"


async def test_a_base_layer_in_place_of_an_image(
    node: RunningNode, client: dsec.DSecClient, debian: list[bytes], tmp_path: Path
) -> None:
    """Built of a tar file, it is what sandboxes lie over, with what its tag brings; also those of a snapshot and of a
    kept disk; ``dsec run`` pulls nothing.
    """
    base, tool = "base/small:1", "toolkit/over-base:1"
    (tmp_path / "small.tar").write_bytes(debian[0])
    built = await client.layers.build(
        tmp_path / "small.tar", base, owner="keep", env={"FROM": "base"}, path_prepend=["/opt/t"]
    )
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "tool").write_text("#!/bin/sh\necho tool $FROM\n")
    (tmp_path / "t" / "tool").chmod(0o755)
    await client.layers.build(tmp_path / "t", tool, at="/opt/t")
    sandbox = await client.sandbox(base, toolkits=(tool,))
    said = await sandbox.run_shell("tool; id -u; pwd; echo mine > /mine")
    assert said.stdout == "tool base\n0\n/\n", said.stderr
    info = await sandbox.info()
    assert (info.image, info.image_digest) == (base, f"sha256:{built.digest}")
    assert info.layers[0] == built.digest and len(info.layers) == 2
    assert sandbox.id in (await client.layers.get(base)).sandboxes
    snapshot = await sandbox.snapshot()
    async with client.sandbox(snapshot.args) as copy:
        assert await copy.read("/mine") == b"mine\n"
    await client.snapshots.remove(snapshot.id)
    await sandbox.stop(keep="disk", keep_s=60)
    async with client.sandbox(base, from_disk=sandbox.id) as again:
        assert await again.read("/mine") == b"mine\n"
    await sandbox.remove()
    for name in (base, f"{base}@sha256:{built.digest}", f"@sha256:{built.digest}"):
        run = dsec_command(node, "run", "--rm", "--toolkit", tool, "-e", "FROM=me", name, "/opt/t/tool")
        assert (run.returncode, run.stdout, run.stderr) == (0, "tool me\n", "")
    checked = dsec_command(node, "layer", "check", base, tool)
    assert checked.returncode == 0, checked.stderr
    absent = dsec_command(node, "run", "--rm", "base/none:1", "true")
    assert absent.returncode != 0 and "base/none:1" in absent.stderr and "pull it from a store" in absent.stderr
    for tag in (base, tool):
        await client.layers.remove(tag)


async def test_a_layer_laid_somewhere(client: dsec.DSecClient, tmp_path: Path) -> None:
    """at= lays a directory over a place; the sandbox may change it, the next one sees it as built."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "pkg" / "run.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("pkg/run.sh")
    await client.layers.build(tmp_path, "workspace/laid:1", at="/deep/in/here")
    for _ in range(2):
        async with client.sandbox(IMAGE, workspace="workspace/laid:1", workdir="/deep/in/here") as sandbox:
            assert (await sandbox.run_shell("./link && rm -r pkg && ls")).stdout == "ran\nlink\n"


async def test_layers_that_are_not_there(node: RunningNode, client: dsec.DSecClient) -> None:
    """A typed error of the caller's names the layer; nothing is made."""
    for fields in ({"workspace": "workspace/none:1"}, {"toolkits": ("toolkit/none:1",)}):
        with pytest.raises((dsec.NotFound, dsec.ImageNotFound)) as caught:
            await client.sandbox(IMAGE, **fields)
        assert "none:1" in str(caught.value)
    for fields in ({"workspace": "toolkit/none:1"}, {"toolkits": ("workspace/none:1",)}, {"workspace": "none"}):
        with pytest.raises((dsec.InvalidArgument, dsec.NotFound)):
            await client.sandbox(IMAGE, **fields)
    assert node.live_sandboxes() == []


async def test_a_removed_layer_stays_with_those_who_use_it(client: dsec.DSecClient, tmp_path: Path) -> None:
    """A running sandbox reads on; nobody else gets the layer, and its tag may be built anew with other content."""
    (tmp_path / "file").write_text("first")
    await client.layers.build(tmp_path, "workspace/passing:1", at="/work")
    args = dsec.SandboxArgs(IMAGE, workspace="workspace/passing:1")
    async with client.sandbox(args) as sandbox:
        await client.layers.remove("workspace/passing:1")
        assert await sandbox.read("/work/file") == b"first"
        with pytest.raises(dsec.NotFound):
            await client.sandbox(args)
        with pytest.raises(dsec.NotFound):
            await client.layers.remove("workspace/passing:1")
        assert "workspace/passing:1" not in [one.reference for one in await client.layers.list()]
    (tmp_path / "file").write_text("second")
    await client.layers.build(tmp_path, "workspace/passing:1", at="/work")
    async with client.sandbox(args) as sandbox:
        assert await sandbox.read("/work/file") == b"second"
    await client.layers.remove("workspace/passing:1")


def _read_ahead() -> dict[str, str]:
    """KiB of each mounted EROFS file system, also of other nodes' that come and go."""
    found = {}
    for each in Path("/sys/class/bdi").glob("erofs-*"):
        with contextlib.suppress(FileNotFoundError):
            found[each.name] = (each / "read_ahead_kb").read_text().strip()
    return found


async def test_the_kernel_reads_far_ahead_in_a_layer(node: RunningNode, tmp_path: Path) -> None:
    """What a new layer is mounted as is read ahead by 512 KiB."""
    tag = "workspace/read-ahead:1"
    (tmp_path / "file").write_bytes(b"read-ahead")
    async with node.client() as client:
        await client.layers.build(tmp_path, tag, at="/work")
        async with client.sandbox(IMAGE):
            before = _read_ahead()
            async with client.sandbox(IMAGE, workspace=tag):
                assert "512" in [kib for name, kib in _read_ahead().items() if name not in before]
        await client.layers.remove(tag)


async def test_a_whole_composition_is_checked(node: RunningNode, client: dsec.DSecClient, tmp_path: Path) -> None:
    """``dsec layer check`` of image, workspace and three toolkits: who hides what, which variable, which program is
    meant; and a sandbox of these sees just that.
    """
    parts = {
        "workspace/check:1": ({"etc/motd": "w", "srv/own": "w"}, {"env": {"CC": "w", "SAME": "1"}}),
        "toolkit/check-a:1": (
            {"etc/motd": "a", "opt/a/bin/tool": "#!/bin/sh\necho a\n"},
            {"env": {"CC": "a", "SAME": "1"}, "path_prepend": ["/opt/a/bin"]},
        ),
        "toolkit/check-b:1": (
            {"opt/b/bin/tool": "#!/bin/sh\necho b\n", "opt/b/bin/env": "#!/bin/sh\necho b\n"},
            {"path_prepend": ["/opt/b/bin"], "path_append": ["/opt/a/bin"]},
        ),
        "toolkit/check-c:1": ({"opt/a/bin/tool": "#!/bin/sh\necho c\n"}, {"path_append": ["/opt/c/bin"]}),
    }
    for number, (tag, (files, brings)) in enumerate(parts.items()):
        for name, content in files.items():
            file = tmp_path / str(number) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
            file.chmod(0o755)
        await client.layers.build(tmp_path / str(number), tag, **brings)  # type: ignore[arg-type]
    workspace, a, b, c = parts
    told = dsec_command(node, "layer", "check", IMAGE, *parts, "--json")
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert {(each["path"], each["upper"], each["lower"], each["how"]) for each in found["hidden"]} == {
        ("/etc/motd", a, workspace, "replaced"),
        ("/etc/motd", a, IMAGE, "replaced"),
        ("/opt/a/bin/tool", c, a, "replaced"),
    }
    usual = found["path"].removeprefix("/opt/b/bin:/opt/a/bin:").removesuffix(":/opt/a/bin:/opt/c/bin")
    assert usual.startswith("/usr/local") and "/opt" not in usual
    clashes = {(each["kind"], each["name"], each["upper"], each["lower"], each["seen"]) for each in found["clashes"]}
    assert clashes == {
        ("variable", "CC", a, workspace, "a"),
        ("path", "/opt/a/bin", a, b, "/opt/a/bin"),
        ("program", "tool", b, c, "/opt/b/bin/tool"),
        ("program", "env", b, IMAGE, "/opt/b/bin/env"),
    }
    assert found["total"] == 3 and found["clashes_total"] == 4
    shown = dsec_command(node, "layer", "check", IMAGE, *parts).stdout
    assert "/opt/a/bin/tool" in shown and "/usr/bin/env" in shown
    async with client.sandbox(IMAGE, workspace=workspace, toolkits=(a, b, c)) as sandbox:
        said = await sandbox.run_shell("cat /etc/motd; echo; echo $CC; tool; env; /opt/a/bin/tool; echo $PATH")
        assert said.stdout.split() == ["a", "a", "b", "b", "c", found["path"]]
    for tag in parts:
        await client.layers.remove(tag)
