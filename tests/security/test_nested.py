"""Containers in a sandbox of the nested profile: Debian's Podman and crun, set up as docs/nested.md says."""

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
PACKAGES = "podman,crun,uidmap,busybox-static,libcap2-bin"
DOCUMENT = Path(__file__).parents[2] / "docs" / "nested.md"
"""Its first block of commands is what the image needs."""
TAKEN = re.compile(
    r"\./(usr/|)bin/(podman|crun|conmon|newuidmap|newgidmap|busybox)|\./(usr/|)sbin/setcap"
    r"|\./(usr/|)lib/[^/]+-linux-gnu/[^/]+|\./etc/containers(/.*)?|\./usr/share/containers(/.*)?"
)
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
    """An archive of what Podman needs besides the default image."""
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
        unpack = "tar -C / --keep-directory-symlink --skip-old-files -xf /podman.tar; rm /podman.tar; ldconfig"
        await made.run_shell(f"set -e; {unpack}; useradd -m -u 1000 someone; {commands}\n{TREE}", check=True)
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
