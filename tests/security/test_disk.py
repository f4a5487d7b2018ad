"""Ways round the disk limit."""

from __future__ import annotations

import pytest

import dsec

from .inside import IMAGE, attempts

pytestmark = [pytest.mark.node, pytest.mark.anyio]

LIMIT_MIB = 16
FEW_MIB = 2

FILL = """
def fill(name, step, most):
    for number in range(most):
        try:
            step(number)
        except OSError as error:
            found[name] = errno.errorcode[error.errno], number
            break
    else:
        found[name] = "never stopped", most
    os.system("rm -rf /q; mkdir /q")
MIB = 1 << 20
os.mkdir("/q")
"""


async def filled(client: dsec.DSecClient, program: str, disk_mib: int) -> tuple[str, int]:
    """What stopped a program that fills the disk, and after how many steps."""
    async with client.sandbox(IMAGE, disk_mib=disk_mib) as sandbox:
        found = await attempts(sandbox, f"{FILL}\n{program}")
        ((errno, steps),) = found.values()
        return errno, steps


WAYS = [
    (
        "file = os.open('/q/a', 66)\nfill('write', lambda n: os.pwrite(file, os.urandom(MIB), n * MIB), 100)",
        LIMIT_MIB,
    ),
    ("fill('files', lambda n: open(f'/q/{n}', 'wb').write(os.urandom(MIB)), 100)", LIMIT_MIB),
    (
        "file = os.open('/q/a', 66)\nfill('fallocate', lambda n: os.posix_fallocate(file, n * MIB, MIB), 100)",
        LIMIT_MIB,
    ),
    (
        "file = os.open('/q/a', 66)\nfill('keep size', lambda n: call(285, file, 1, n * MIB, MIB), 100)",
        LIMIT_MIB,
    ),
    (
        "kept = []\ndef more(n):\n kept.append(open('/q/x', 'wb', 0)); os.unlink('/q/x')\n"
        " kept[-1].write(os.urandom(MIB))\nfill('unlinked', more, 100)",
        LIMIT_MIB,
    ),
    (
        "file = os.open('/etc/hosts', 2)\n"
        "fill('node files', lambda n: os.pwrite(file, os.urandom(MIB), n * MIB), 100)",
        LIMIT_MIB,
    ),
    (
        "libraries = glob.glob('/usr/lib/x86_64-linux-gnu/*.so*')\n"
        "fill('copied up', lambda n: open(libraries[n], 'ab').close(), 400)",
        400,
    ),
]
NAMES = ["write", "files", "fallocate", "keep-size", "unlinked", "node-files", "copy-up"]


@pytest.mark.parametrize(("program", "most"), WAYS, ids=NAMES)
async def test_data_is_counted(client: dsec.DSecClient, program: str, most: int) -> None:
    """Bytes by writing, by reservation with and without size, in unlinked files, in /etc/hosts, by copying up."""
    # btrfs's simple quota on the sandbox's subvolume, which holds upper layer and node-made files alike.
    errno, steps = await filled(client, program, LIMIT_MIB)
    assert errno == "EDQUOT" and steps <= most


@pytest.mark.parametrize(
    "program",
    [
        "fill('empty', lambda n: os.close(os.open(f\"/q/{'e' * 200}{n}\", 65)), 100_000)",
        "fill('inline', lambda n: open(f'/q/{n}', 'wb').write(os.urandom(1900)), 50_000)",
        "def mark(n):\n open(f'/q/{n}', 'w').close(); os.setxattr(f'/q/{n}', 'user.x', os.urandom(3500))\n"
        "fill('xattr', mark, 50_000)",
        "fill('links', lambda n: os.symlink('x' * 3000, f'/q/{n}'), 50_000)",
    ],
    ids=["empty-files", "inline-files", "attributes", "symlinks"],
)
async def test_metadata_is_counted(client: dsec.DSecClient, program: str) -> None:
    """Empty files, tiny files, attributes and links, without a block of data, end at the limit too."""
    errno, steps = await filled(client, program, FEW_MIB)
    assert errno == "EDQUOT" and steps > 100


async def test_clones_are_not_shared_with_others(client: dsec.DSecClient) -> None:
    """Reflinks within the sandbox work and count once; those from a layer or to another filesystem are refused."""
    # The source must lie in the same filesystem: the upper layer is this sandbox's own subvolume, layers are EROFS.
    async with client.sandbox(IMAGE, disk_mib=LIMIT_MIB) as sandbox:
        found = await attempts(
            sandbox,
            """
def clone(source, target):
    with open(source, "rb") as one, open(target, "wb") as two:
        fcntl.ioctl(two.fileno(), 0x40049409, one.fileno())
    return "cloned"
with open("/a", "wb") as made:
    made.write(os.urandom(8 << 20))
for number in range(10):
    attempt(f"own {number}", clone, "/a", f"/b{number}")
attempt("layer", clone, "/usr/bin/python3", "/c")
attempt("node file", clone, "/etc/hosts", "/dev/shm/c")
attempt("memory", clone, "/a", "/dev/shm/c")
""",
        )
    assert {found.pop(f"own {number}") for number in range(10)} == {"cloned"}
    assert set(found.values()) <= {"EXDEV", "EINVAL", "EOPNOTSUPP", "ENOTTY"}, found


async def test_a_full_disk_is_not_for_ever(client: dsec.DSecClient) -> None:
    """At its limit a sandbox can still delete, and then write again; its neighbours never notice."""
    async with client.sandbox(IMAGE, disk_mib=LIMIT_MIB) as full, client.sandbox(IMAGE, disk_mib=LIMIT_MIB) as other:
        result = await full.run_shell("head -c 100M /dev/urandom > /x")
        assert "quota" in result.stderr.lower() and "disk" in result.quota_hits
        await other.run_shell("head -c 8M /dev/urandom > /x", check=True)
        await full.run_shell("rm /x; sync; head -c 4M /dev/urandom > /y", check=True)
