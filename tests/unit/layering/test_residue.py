"""What packing leaves out: patterns, rules in their order, and what stays whatever they say."""

from __future__ import annotations

import time

import pytest

from dsec.errors import InvalidArgument
from dsec.layering.packing.residue import DEFAULT_RULES, KEPT, STAYS, Pattern, Rule, Rules


def means(pattern: str, path: str, *, is_directory: bool = False) -> bool:
    """Whether the pattern means the path."""
    return Pattern(pattern).matches(tuple(path.encode().split(b"/")), is_directory=is_directory)


def test_a_slash_in_front_is_the_root() -> None:
    """Without one a pattern fits anywhere; one that ends with a slash means directories only."""
    assert means("/root/.netrc", "root/.netrc") and not means("/root/.netrc", "home/root/.netrc")
    assert means(".netrc", ".netrc") and means(".netrc", "home/me/.netrc") and not means(".netrc", "home/.netrc2")
    assert means(".npm/_logs/", "home/me/.npm/_logs", is_directory=True) and not means(".npm/_logs/", "a/.npm/_logs")


def test_stars_stay_within_a_name_and_double_ones_do_not() -> None:
    """Also where several of them stand."""
    assert means("/var/log/*.log", "var/log/a.log") and not means("/var/log/*.log", "var/log/apt/a.log")
    assert means("/var/log/**/*.log", "var/log/a.log") and means("/var/log/**/*.log", "var/log/a/b/c.log")
    assert means("/a/**/b/**/c", "a/x/b/b/y/c") and not means("/a/**/b/**/c", "a/x/y/c")
    assert means("a?c*", "abcdef") and not means("a?c", "ac") and means("*", "any") and means("**", "any/thing")
    assert means("*.py[c]", "x.py[c]") and not means("*.py[c]", "x.pyc")


def test_hostile_patterns_and_names_take_no_time() -> None:
    """Many stars against a long name, and many double ones against a deep path."""
    begun = time.monotonic()
    assert not means("a*" * 200 + "b", "a" * 255)
    assert not means("/" + "**/a/" * 100 + "b", "/".join(["a"] * 400))
    assert time.monotonic() - begun < 10  # a hundredth of a second; exponential would be for ever


@pytest.mark.parametrize("text", ["", "/", "//", "a\0b", "x" * 1025])
def test_what_is_no_pattern(text: str) -> None:
    """Is refused."""
    with pytest.raises(InvalidArgument):
        Rules([], [text])


def test_the_first_rule_says_why_and_what_is_kept_is_kept_with_all_below() -> None:
    """A directory goes with all below it, but for what is said to stay."""
    rules = Rules([Rule("one", "/cache/"), Rule("two", "cache/")], ["/cache/mine/", "keep.me"])
    assert rules.name(rules.fate(STAYS, (b"cache",), is_directory=True)) == "one"
    assert rules.name(rules.fate(STAYS, (b"a", b"cache"), is_directory=True)) == "two"
    assert rules.fate(STAYS, (b"cache",), is_directory=False) == STAYS
    assert rules.fate(0, (b"cache", b"x"), is_directory=False) == 0
    mine = rules.fate(0, (b"cache", b"mine"), is_directory=True)
    assert mine == KEPT and rules.fate(mine, (b"cache", b"mine", b"cache"), is_directory=True) == KEPT
    assert rules.fate(0, (b"cache", b"keep.me"), is_directory=False) == KEPT


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("root/.cache/pip/", "package cache"), ("var/lib/apt/lists/", "package cache"),
        ("srv/app/__pycache__/", "build tree"), ("tmp/x", "build tree"), ("var/log/apt/term.log", "log"),
        ("home/me/.bash_history", "history"), ("root/.ssh/id_ed25519", "credentials"), ("a/.netrc", "credentials"),
        ("root/.aws/credentials", "credentials"), ("etc/ssh/ssh_host_rsa_key", "credentials"),
        ("tmp/", None), ("root/.ssh/authorized_keys", None), ("srv/app/build/", None), ("var/log/nginx/", None),
        ("root/.cargo/registry/", None), ("srv/tmp/x", None),
    ],
)  # fmt: skip
def test_the_rules_that_there_are(path: str, rule: str | None) -> None:
    """Examples of each, and of what looks like it and is work."""
    rules = Rules(DEFAULT_RULES)
    fate = rules.fate(STAYS, tuple(path.strip("/").encode().split(b"/")), is_directory=path.endswith("/"))
    assert (None if fate == STAYS else rules.name(fate)) == rule
