"""What work leaves behind and not what it made: rules, and what becomes of a path by them. Pure.

In a pattern ``*`` and ``?`` stand for what is within one name, ``**`` for any number of names. One that begins with a
slash begins at the root, any other one anywhere; one that ends with a slash means directories only. A directory goes,
or stays, with all below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from dsec.errors import InvalidArgument
from dsec.layering.names import Parts

__all__ = ["DEFAULT_RULES", "KEPT", "STAYS", "Pattern", "Rule", "Rules"]

STAYS = -1
"""The fate of a path that no rule speaks of."""
KEPT = -2
"""The fate of one that was said to stay, and of all below it. All others are numbers of rules."""
_ANY_DEPTH = b"**"
_LONGEST = 1024


class Rule(msgspec.Struct, frozen=True):
    """A pattern, and the word that says why what it means goes."""

    name: str
    pattern: str


def _rules(name: str, patterns: str) -> list[Rule]:
    return [Rule(name, each) for each in patterns.split()]


DEFAULT_RULES: tuple[Rule, ...] = (
    *_rules(
        "package cache",
        "/var/cache/apt/ /var/lib/apt/lists/ /var/cache/dnf/ /var/cache/yum/ /var/cache/apk/ /var/cache/pacman/pkg/"
        " .cache/pip/ .cache/uv/ .cache/pypoetry/cache/ .cache/yarn/ .cache/go-build/ .cache/ccache/ .npm/_cacache/"
        " /var/cache/debconf/*-old /var/lib/dpkg/*-old",
    ),
    *_rules(
        "build tree",
        "__pycache__/ .pytest_cache/ .mypy_cache/ .ruff_cache/ node_modules/.cache/ target/debug/incremental/"
        " target/release/incremental/ /tmp/* /var/tmp/* /run/*",
    ),
    *_rules("log", "/var/log/**/*.log /var/log/**/*.gz /var/log/journal/ .npm/_logs/ npm-debug.log*"),
    *_rules(
        "history",
        ".bash_history .zsh_history .ash_history .sh_history .python_history .node_repl_history .sqlite_history"
        " .psql_history .mysql_history .rediscli_history .lesshst .viminfo .wget-hsts",
    ),
    *_rules(
        "credentials",
        ".netrc .git-credentials .pypirc /root/.npmrc /home/*/.npmrc .docker/config.json .aws/credentials"
        " .aws/sso/cache/ .azure/ .config/gcloud/ .config/gh/hosts.yml .kube/config .ssh/id_* .ssh/*.pem"
        " .gnupg/private-keys-v1.d/ .cargo/credentials .cargo/credentials.toml .cache/huggingface/token"
        " .huggingface/token /etc/ssh/ssh_host_*_key",
    ),
)
"""What is left out unless a caller says otherwise; ``docs/snapshots.md`` lists them by their names."""


class Pattern:
    """One pattern."""

    def __init__(self, text: str) -> None:
        """Read one; raises InvalidArgument for one without a name, or of more than 1,024 bytes."""
        raw = text.encode(errors="surrogateescape")
        names = [each for each in raw.split(b"/") if each]
        if not names or len(raw) > _LONGEST or b"\0" in raw:
            raise InvalidArgument(f"{text[:80]!r} is no pattern of paths", argument="residue")
        self._names = names if raw.startswith(b"/") else [_ANY_DEPTH, *names]
        self._directories = raw.endswith(b"/")
        self._first = _plain(self._names[0])
        self.last = _plain(names[-1])
        """The only name that ends a path that it means; None where that may be any of several."""

    def matches(self, path: Parts, *, is_directory: bool) -> bool:
        """Whether it means this path (its names from the root on)."""
        if (self._directories and not is_directory) or not path:
            return False
        if self._first is not None and path[0] != self._first:
            return False
        return _names_match(self._names, path)


def _plain(name: bytes) -> bytes | None:
    return None if b"*" in name or b"?" in name else name


def _names_match(names: Sequence[bytes], path: Parts) -> bool:
    """In time of the product of both lengths: of several ``**`` only the last one is tried again."""
    at = part = 0
    again: tuple[int, int] | None = None
    while part < len(path):
        if at < len(names) and names[at] == _ANY_DEPTH:
            again = (at, part)
            at += 1
        elif at < len(names) and _name_matches(names[at], path[part]):
            at, part = at + 1, part + 1
        elif again is not None:
            again = (again[0], again[1] + 1)
            at, part = again[0] + 1, again[1]
        else:
            return False
    return all(each == _ANY_DEPTH for each in names[at:])


def _name_matches(pattern: bytes, name: bytes) -> bool:
    """Likewise: of several stars only the last one is tried again."""
    at = letter = 0
    star: tuple[int, int] | None = None
    while letter < len(name):
        mark = pattern[at : at + 1]
        if mark == b"*":
            star = (at, letter)
            at += 1
        elif mark and mark in (b"?", name[letter : letter + 1]):
            at, letter = at + 1, letter + 1
        elif star is not None:
            star = (star[0], star[1] + 1)
            at, letter = star[0] + 1, star[1]
        else:
            return False
    return not pattern[at:].strip(b"*")


class Rules:
    """Rules and what stays whatever they say; the first rule that means a path says why it goes."""

    def __init__(self, rules: Iterable[Rule], keep: Iterable[str] = ()) -> None:
        """Read them; raises InvalidArgument."""
        self._names: list[str] = []
        self._ending: dict[bytes, list[tuple[int, Pattern]]] = {}
        """By the name that ends what they mean: of a hundred rules a file meets few."""
        self._others: list[tuple[int, Pattern]] = []
        for number, each in enumerate(rules):
            self._names.append(each.name)
            pattern = Pattern(each.pattern)
            found = self._others if pattern.last is None else self._ending.setdefault(pattern.last, [])
            found.append((number, pattern))
        self._keep = [Pattern(each) for each in keep]

    def fate(self, above: int, path: Parts, *, is_directory: bool) -> int:
        """What becomes of a path in a directory of that fate: STAYS, KEPT, or the number of the rule it goes by."""
        if above == KEPT or any(each.matches(path, is_directory=is_directory) for each in self._keep):
            return KEPT
        if above >= 0:
            return above
        asked = [*self._ending.get(path[-1], ()), *self._others]
        return min(
            (number for number, pattern in asked if pattern.matches(path, is_directory=is_directory)), default=STAYS
        )

    def name(self, rule: int) -> str:
        """What a rule is called."""
        return self._names[rule]
