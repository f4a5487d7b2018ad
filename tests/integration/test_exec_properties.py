"""What goes into an exec comes out of it, for whatever hypothesis thinks of."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dsec.sync
from dsec.testing.node import RunningNode

pytestmark = [pytest.mark.node, pytest.mark.timeout(180)]

_OWN: set[str] = {"PATH", "HOME", "LC_CTYPE", "PWD", "SHLVL", "_", "BASH_ENV", "ENV"} | {"PYTHONHOME", "PYTHONPATH"}
bounded = settings(
    max_examples=50, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
words = st.binary(max_size=200).map(lambda word: word.replace(b"\0", b""))
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True).filter(lambda name: name not in _OWN)
values = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=100)
TELL_ARGV = (
    "import base64,json,os,sys; print(json.dumps([base64.b64encode(os.fsencode(a)).decode() for a in sys.argv[1:]]))"
)
TELL_ENV = "import json,os; print(json.dumps({k.decode(): v.decode() for k, v in os.environb.items()}))"


@pytest.fixture
def shared(node: RunningNode) -> Iterator[dsec.sync.Sandbox]:
    """One sandbox for all examples of a test."""
    with dsec.sync.DSecClient(node.url, node.token) as client, client.sandbox("dsec/debian:12") as sandbox:
        yield sandbox


@bounded
@given(argv=st.lists(words, max_size=6))
def test_argv_is_verbatim(shared: dsec.sync.Sandbox, argv: list[bytes]) -> None:
    """Empty words, newlines, quotes, leading dashes and bytes that are no text."""
    told = json.loads(shared.exec("python3", "-c", TELL_ARGV, *argv, check=True).stdout)
    assert [base64.b64decode(word) for word in told] == argv


@bounded
@given(env=st.dictionaries(names, values, max_size=6))
def test_env_is_verbatim(shared: dsec.sync.Sandbox, env: dict[str, str]) -> None:
    """Names and values arrive as they are, and the ones that were not asked for stay."""
    told = json.loads(shared.exec("python3", "-c", TELL_ENV, env=env, check=True).stdout)
    assert {name: told[name] for name in env} == env
    assert "PATH" in told


@bounded
@given(data=st.binary(max_size=200_000), cap=st.integers(1, 70_000))
def test_bytes_and_caps_are_exact(shared: dsec.sync.Sandbox, data: bytes, cap: int) -> None:
    """Input comes back byte for byte; beyond the cap head and tail are kept, and the total is true."""
    result = shared.exec("cat", stdin=data, max_output_bytes=cap, check=True)
    assert result.stdout_total_bytes == len(data)
    assert result.truncated == (len(data) > cap)
    if not result.truncated:
        assert result.stdout_bytes == data
    else:
        pieces = result.stdout_kept.pieces
        assert all(data[start : start + len(piece)] == piece for start, piece in pieces)
        assert sum(len(piece) for _, piece in pieces) == cap


@pytest.fixture
def written(shared: dsec.sync.Sandbox) -> tuple[str, bytes]:
    """The ID of an exec that has ended, and what it wrote to both its outputs."""
    data = bytes(range(256)) * 300
    shared.files.write("/tmp/data", data)
    done = shared.exec("sh", "-c", "cat /tmp/data; cat /tmp/data >&2", check=True)
    return done.exec_id, data


@bounded
@given(out=st.integers(0, 300 * 256), err=st.integers(0, 300 * 256))
def test_offsets_of_readers_are_exact(
    shared: dsec.sync.Sandbox, written: tuple[str, bytes], out: int, err: int
) -> None:
    """Whoever attaches at two offsets gets the rest of each output from there, byte for byte."""
    exec_id, data = written
    heard = {dsec.Stdout: b"", dsec.Stderr: b""}
    for event in shared.attach(exec_id, offset=(out, err)).events():
        if isinstance(event, dsec.Stdout | dsec.Stderr):
            assert event.offset == (out if isinstance(event, dsec.Stdout) else err) + len(heard[type(event)])
            heard[type(event)] += event.data
    assert (heard[dsec.Stdout], heard[dsec.Stderr]) == (data[out:], data[err:])


@bounded
@given(data=st.binary(max_size=100_000), offset=st.integers(0, 120_000), limit=st.integers(0, 50_000))
def test_offsets_of_files_are_exact(shared: dsec.sync.Sandbox, data: bytes, offset: int, limit: int) -> None:
    """A window of a file is that window, beyond its end nothing."""
    shared.files.write("/tmp/window", data)
    assert shared.files.read("/tmp/window", offset=offset, limit=limit) == data[offset : offset + limit]
