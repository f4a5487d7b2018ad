"""What this machine's own apt configuration says, for building an image from the same mirror. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["apt_options", "select_sources"]

_OPTION = re.compile(
    r"(Acquire::(?:https?::(?:Proxy|Timeout|Verify|CA|Pipeline)[A-Za-z0-9:.-]*|Check-Date|Check-Valid-Until|Retries|"
    r'ForceIPv[46])) "([^"]+)";'
)
_ONE_LINE = re.compile(r"deb\s+(?:\[[^\]]*\]\s+)?\S+\s+(\S+)(\s+\S+)*")


def select_sources(texts: Iterable[str], suite: str) -> tuple[str, str]:
    """The entries for a Debian suite (with its updates and security) among a machine's apt sources.

    Takes the text of each file, one-line or deb822 style; returns what to write to a ``.list`` and to a ``.sources``
    file, either may be empty.
    """
    lines: list[str] = []
    stanzas: list[str] = []
    for text in texts:
        if re.search(r"^Suites:", text, re.MULTILINE):
            stanzas += [each for each in re.split(r"\n\s*\n", text) if _stanza_fits(each, suite)]
        else:
            lines += [each for line in text.splitlines() if _line_fits(each := line.strip(), suite)]
    return "".join(f"{line}\n" for line in lines), "\n".join(f"{each.strip()}\n" for each in stanzas)


def _line_fits(line: str, suite: str) -> bool:
    match = _ONE_LINE.fullmatch(line.partition("#")[0].strip())
    return match is not None and _is_of(match[1], suite) and "main" in line.split()


def _stanza_fits(stanza: str, suite: str) -> bool:
    fields = {}
    for line in stanza.splitlines():
        if not line.startswith(("#", " ", "\t")):
            key, _, value = line.partition(":")
            fields[key.strip().lower()] = value.split()
    return (
        "deb" in fields.get("types", [])
        and "no" not in fields.get("enabled", [])
        and "main" in fields.get("components", [])
        and bool(fields.get("suites"))
        and all(_is_of(each, suite) for each in fields["suites"])
    )


def _is_of(name: str, suite: str) -> bool:
    return name in (suite, f"{suite}-updates", f"{suite}-security")


def apt_options(dump: str) -> list[str]:
    """The options of ``apt-config dump`` without which the machine's mirror may not answer (proxies, checks)."""
    return [f'{match[1]} "{match[2]}"' for line in dump.splitlines() if (match := _OPTION.fullmatch(line.strip()))]
