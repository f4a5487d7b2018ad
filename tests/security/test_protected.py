"""Protected paths: the sandbox's root tries to change, move, cover and replace what grades it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dsec

from .inside import IMAGE, attempts

pytestmark = [pytest.mark.node, pytest.mark.anyio]

TREE, FILE = "/usr/lib/python3.11/email", "/usr/bin/bash"
PATHS = (TREE, FILE)
CHANGES = """
tree, file = "/usr/lib/python3.11/email", "/usr/bin/bash"
inner = tree + "/message.py"
for path in (inner, file):
    attempt("write " + path, os.open, path, os.O_WRONLY)
    attempt("truncate " + path, os.truncate, path, 0)
    attempt("unlink " + path, os.unlink, path)
    attempt("rename " + path, os.rename, path, "/tmp/away")
    attempt("replace " + path, os.rename, "/etc/hostname", path)
    attempt("chmod " + path, os.chmod, path, 0o777)
    attempt("chown " + path, os.chown, path, 1, 1)
    attempt("times " + path, os.utime, path, (0, 0))
    attempt("attribute " + path, os.setxattr, path, "user.x", b"x")
    attempt("link " + path, os.link, path, os.path.dirname(path) + "/other")
    attempt("map " + path, lambda: os.open("/proc/self/fd/%d" % os.open(path, os.O_RDONLY), os.O_RDWR))
os.mkdir("/tmp/evil")
attempt("create", os.open, tree + "/new.py", os.O_CREAT | os.O_WRONLY)
attempt("mkdir", os.mkdir, tree + "/new")
for path in (tree, "/usr/lib/python3.11", "/usr/lib", "/usr/bin", "/usr"):
    attempt("move " + path, os.rename, path, "/moved")
    attempt("remove " + path, os.rmdir, path)
    attempt("exchange " + path, call, 316, -100, b"/tmp/evil", -100, path.encode(), 2)
    attempt("bind over " + path, call, 165, b"/tmp/evil", path.encode(), 0, 4096, 0)
    attempt("tmpfs over " + path, call, 165, b"none", path.encode(), b"tmpfs", 0, 0)
    attempt("unmount " + path, call, 166, path.encode(), 2)
    attempt("remount " + path, call, 165, b"none", path.encode(), 0, 32 | 4096, 0)
    attempt("move mount " + path, call, 165, path.encode(), b"/tmp/evil", 0, 8192, 0)
attempt("new root", call, 155, b"/tmp/evil", b"/tmp/evil")
"""


@pytest.fixture(params=["default", "nested"])
async def guarded(client: dsec.DSecClient, request: pytest.FixtureRequest) -> AsyncIterator[dsec.Sandbox]:
    """A sandbox in which a package of Python's library and a shell are protected."""
    async with client.sandbox(IMAGE, profile=request.param, protected=PATHS, memory_mib=256) as made:
        yield made


async def test_nothing_changes_it(client: dsec.DSecClient, guarded: dsec.Sandbox) -> None:
    """Writing, making, deleting, renaming, linking, attributes, times, mounting and moving a parent away, as root."""
    # A read-only mount of itself; each directory above is a mount point, which can be neither renamed nor removed.
    found = await attempts(guarded, CHANGES)
    refused = {"EROFS", "EBUSY", "EPERM", "EACCES", "EXDEV", "ENOSYS", "ENOTEMPTY"}
    assert {name: result for name, result in found.items() if result not in refused} == {}
    # What is beside it is not protected.
    await guarded.run_shell(
        "echo x > /usr/lib/beside && mv /usr/lib/beside /usr/lib/other && rm /usr/bin/who", check=True
    )


async def test_a_nested_container_cannot_either(client: dsec.DSecClient) -> None:
    """With every capability of a nested container: unmounted, remounted, uncovered or moved it is nowhere."""
    # The mounts are locked in every mount namespace made from the sandbox's; what covers them there is seen there.
    async with client.sandbox(IMAGE, profile="nested", protected=PATHS, memory_mib=256) as sandbox:
        before = await sandbox.verify_protected()
        found = await attempts(
            sandbox,
            """
call(272, 0x10000000 | 0x20000)
open("/proc/self/setgroups", "w").write("deny")
open("/proc/self/uid_map", "w").write("0 0 1")
open("/proc/self/gid_map", "w").write("0 0 1")
tree = b"/usr/lib/python3.11/email"
os.makedirs("/tmp/evil")
attempt("unmount", call, 166, tree, 2)
attempt("remount", call, 165, b"none", tree, 0, 32 | 4096, 0)
attempt("move", call, 165, tree, b"/tmp/evil", 0, 8192, 0)
for what in (b"/", b"/usr", b"/usr/lib", b"/usr/lib/python3.11"):
    attempt("uncover " + what.decode(), call, 165, what, b"/tmp/evil", 0, 4096, 0)
attempt("rename", os.rename, "/usr/lib", "/usr/lib2")
attempt("write", os.open, tree + b"/message.py", os.O_WRONLY)
call(165, b"none", tree, b"tmpfs", 0, 0)
open(tree + b"/message.py", "w").write("evil")
""",
        )
        assert set(found.values()) <= {"EINVAL", "EPERM", "EBUSY", "EROFS"}, found
        assert await sandbox.verify_protected() == before


async def test_file_operations_obey_too(guarded: dsec.Sandbox, tmp_path: Path) -> None:
    """The platform's own writes, moves, removals and uploads, which run in the sandbox, are refused as well."""
    (tmp_path / "message.py").write_text("evil")
    for attempt in (
        guarded.write(f"{TREE}/message.py", "evil"),
        guarded.files.remove(FILE),
        guarded.files.move(TREE, "/moved"),
        guarded.files.upload(tmp_path, TREE),
    ):
        with pytest.raises(dsec.FileError):
            await attempt


async def test_digests(client: dsec.DSecClient, guarded: dsec.Sandbox) -> None:
    """Two sandboxes of one image have the same digests; another content is not expected; others are refused."""
    first = await guarded.verify_protected()
    assert [each.path for each in first] == list(PATHS) and first[0].files > 15 and first[1].bytes > 1_000_000
    assert {each.as_expected for each in first} == {None}
    expected = {each.path: each.digest for each in first}
    async with client.sandbox(IMAGE, protected=PATHS) as other:
        assert {each.as_expected for each in await other.verify_protected(expected)} == {True}
        swapped = {TREE: expected[FILE]}
        assert [each.as_expected for each in await other.verify_protected(swapped)] == [False, None]
        with pytest.raises(dsec.InvalidArgument, match="no protected path"):
            await other.verify_protected({"/etc": "x"})
    assert (await guarded.info()).protected == list(PATHS)


@pytest.mark.parametrize(
    ("path", "why"), [("/opt/no-such", "does not exist"), ("/bin/bash", "symbolic link"), ("/proc/self", "protected")]
)
async def test_what_cannot_be_protected(client: dsec.DSecClient, path: str, why: str) -> None:
    """What is not there, and what a link leads to, is refused by name, and nothing is left of the sandbox."""
    with pytest.raises(dsec.InvalidArgument, match=why):
        async with client.sandbox(IMAGE, protected=(path,)):
            pass


async def test_without_protection_it_changes(sandbox: dsec.Sandbox) -> None:
    """The same attacks succeed on a path that is not protected: what refuses them above is the protection."""
    found = await attempts(
        sandbox,
        """
attempt("write", lambda: os.write(os.open("/usr/lib/python3.11/email/message.py", os.O_WRONLY | os.O_APPEND), b"#"))
attempt("unlink", lambda: os.unlink("/usr/bin/bash"))
import shutil
attempt("move", lambda: shutil.move("/usr/lib/python3.11/email", "/usr/lib/moved"))
""",
    )
    assert found == {"write": 1, "unlink": None, "move": "/usr/lib/moved"}
