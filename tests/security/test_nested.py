"""Containers in a sandbox of the nested profile: Debian's Podman, crun, bubblewrap, as docs/nested.md says."""

from __future__ import annotations

import re
import subprocess
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dsec
from dsec.images.apt import apt_options, select_sources

from .inside import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]

SUITE = "bookworm"
PACKAGES = "podman,crun,uidmap,busybox-static,libcap2-bin,bubblewrap"
DOCUMENT = Path(__file__).parents[2] / "docs" / "nested.md"
"""Its first block of commands is what the image needs."""
TAKEN = re.compile(
    r"\./(usr/|)bin/(podman|crun|conmon|newuidmap|newgidmap|busybox|bwrap)|\./(usr/|)sbin/setcap"
    r"|\./(usr/|)lib/[^/]+-linux-gnu/[^/]+|\./etc/containers(/.*)?|\./usr/share/containers(/.*)?"
)
UNPACK = "tar -C / --keep-directory-symlink --skip-old-files -xf /podman.tar; rm /podman.tar; ldconfig"
TREE = "mkdir -p /tree/bin /tree/etc; busybox --install /tree/bin; tar -C /tree -cf /tree.tar ."


def sources(directory: Path) -> list[str]:
    """The machine's own package sources, where it has some for this suite."""
    found = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").iterdir())]
    texts = select_sources([each.read_text() for each in found if each.is_file()], SUITE)
    written = []
    for name, text in zip(("host.list", "host.sources"), texts, strict=True):
        if text:
            (directory / name).write_text(text)
            written.append(str(directory / name))
    return written


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of what Podman and bubblewrap need besides the default image."""
    directory = tmp_path_factory.mktemp("podman")
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    options = [f"--aptopt={each}" for each in apt_options(dump)]
    command = ["mmdebstrap", "--variant=extract", "--format=tar", f"--include={PACKAGES}", *options, SUITE]
    whole = directory / "whole.tar"
    made = subprocess.run([*command, str(whole), *sources(directory)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    with tarfile.open(whole) as archive, tarfile.open(directory / "podman.tar", "w") as taken:
        for member in archive:
            if TAKEN.fullmatch(member.name):
                taken.addfile(member, archive.extractfile(member) if member.isfile() else None)
    return directory / "podman.tar"


@pytest.fixture
async def sandbox(client: dsec.DSecClient, podman: Path) -> AsyncIterator[dsec.Sandbox]:
    """A nested sandbox with Podman, set up by the commands of the document, and a tree that a container can have."""
    commands = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[0].replace("USER", "someone")
    async with client.sandbox(IMAGE, profile="nested", memory_mib=1024, disk_mib=2048) as made:
        await made.files.upload(podman, "/podman.tar")
        await made.run_shell(f"set -e; {UNPACK}; useradd -m -u 1000 someone; {commands}\n{TREE}", check=True)
        yield made


RUN = """
set -e
cd
podman run --rm --rootfs /tree echo hello
podman import -q /tree.tar small >&2
podman run --rm --user 33:34 small sh -c 'id -u; id -g; test $$ = 1'
mkdir build
printf 'FROM small\\nRUN echo built > /etc/built\\nCMD cat /etc/built\\n' > build/Containerfile
podman build -q -t built build >&2
podman run --rm built
id=$(podman run -d small sleep 100)
podman exec $id sh -c 'test $(cat /proc/1/comm) = sleep && echo entered'
podman rm -f $id >&2
"""


@pytest.mark.timeout(240)
async def test_podman(sandbox: dsec.Sandbox) -> None:
    """A tree and an image run, an image is built, one runs detached and is entered: as root, and rootless."""
    for user in ("root", "someone"):
        ran = await sandbox.run_shell(RUN, user=user, env={"HOME": "/root" if user == "root" else "/home/someone"})
        assert ran.exit_code == 0, ran.stderr
        assert ran.stdout.split() == ["hello", "33", "34", "built", "entered"]
    # What holds the sandbox holds its containers.
    privileged = ("podman", "run", "--rm", "--privileged", "--rootfs", "/tree", "sh", "-c")
    assert (await sandbox.exec(*privileged, "mount -t tmpfs none /etc && unshare -u true")).ok
    for attempt in (
        "cat /proc/kcore",
        "mount -t cgroup2 none /etc",
        "unshare -n true",
        "echo h > /proc/sysrq-trigger",
    ):
        assert (await sandbox.exec(*privileged, attempt)).exit_code == 1, attempt
    assert (await sandbox.exec("ls", "-A", "/sys/fs/cgroup", check=True)).stdout == ""
    assert not (await sandbox.exec("mkdir", "/sys/fs/cgroup/x")).ok


SAVED = """
set -e
cd
podman import -q /tree.tar small >&2
podman save -q -o small.tar small >&2
podman rmi small >&2
podman load -q -i small.tar >&2
rm small.tar
podman run --rm small echo loaded
mkdir shared
podman run --rm -v $PWD/shared:/data small sh -c 'echo from inside > /data/file'
cat shared/file
podman run --rm -v $PWD/shared:/data:ro small sh -c 'cat /data/file; ! echo x > /data/file' 2> refused
grep -q 'Read-only file system' refused
podman volume create kept >&2
podman run --rm -v kept:/data small sh -c 'echo in a volume > /data/file'
podman run --rm -v kept:/data small cat /data/file
podman volume rm kept >&2
"""


@pytest.mark.timeout(240)
async def test_saved_images_and_volumes(sandbox: dsec.Sandbox) -> None:
    """An image that was saved is loaded and runs; a directory and a volume are shared with containers."""
    for user in ("root", "someone"):
        ran = await sandbox.run_shell(SAVED, user=user, env={"HOME": "/root" if user == "root" else "/home/someone"})
        assert ran.exit_code == 0, ran.stderr
        assert ran.stdout.splitlines() == ["loaded", "from inside", "from inside", "in a volume"]


BUBBLE = (
    *("bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--hostname", "bubble"),
    *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--die-with-parent", "sh", "-c"),
)
INSIDE = """
echo $(hostname) $$; ls /tmp | wc -l
touch /etc/x 2> /dev/null || echo read-only
echo > /dev/null && echo written
"""


@pytest.mark.timeout(240)
async def test_bubblewrap(client: dsec.DSecClient, podman: Path, sandbox: dsec.Sandbox) -> None:
    """It makes user, PID, IPC, UTS and mount namespaces with a /proc, a /dev and a read-only root, as root and as a
    user; no network namespace, as nobody else. In the default profile it gets none at all."""
    for user in ("root", "someone"):
        ran = await sandbox.exec(*BUBBLE, INSIDE, user=user)
        assert ran.exit_code == 0, ran.stderr
        assert ran.stdout.split() == ["bubble", "2", "0", "read-only", "written"]
        shut = await sandbox.exec(
            "bwrap", "--unshare-user", "--unshare-net", "--ro-bind", "/", "/", "true", user=user
        )
        assert shut.exit_code == 1, shut.stderr
    async with client.sandbox(IMAGE, memory_mib=512, disk_mib=1024) as plain:
        await plain.files.upload(podman, "/podman.tar")
        await plain.run_shell(f"set -e; {UNPACK}; useradd -m -u 1000 someone", check=True)
        for user in ("root", "someone"):
            ran = await plain.exec(*BUBBLE, INSIDE, user=user)
            assert (ran.exit_code, ran.stdout) == (1, "") and "bwrap:" in ran.stderr, ran.stderr
