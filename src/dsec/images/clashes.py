"""What the layers of a composition do to each other beyond files: variables, PATH, and programs of one name in it."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from dsec.images.catalogue import LayerEnvironment
from dsec.images.compare import Named
from dsec.layering.erofs_tree import LayerTree, Node

__all__ = ["Clash", "Entry", "clashing_programs", "clashing_variables", "path_of", "twice_in_path"]


class Clash(NamedTuple):
    """Something that two layers bring, of which a sandbox gets that of the ``upper`` one."""

    kind: Literal["variable", "path", "program"]
    name: str
    upper: str
    lower: str
    seen: str
    """A variable's value, a directory of PATH, or where the program is that is run."""
    hidden: str = ""
    """Of a program: where the other one is."""


class Entry(NamedTuple):
    """A directory of PATH, and who brought it."""

    directory: str
    owner: str


def clashing_variables(
    image: str, env: Mapping[str, str], layers: Iterable[tuple[str, LayerEnvironment]]
) -> Iterator[Clash]:
    """Variables that two of them set to different values, bottom first."""
    owners = {name: (image, value) for name, value in env.items() if name != "PATH"}
    for layer, environment in layers:
        for name, value in environment.env.items():
            lower = owners.get(name)
            if lower is not None and lower[0] != layer and lower[1] != value:
                yield Clash("variable", name, layer, lower[0], value)
            owners[name] = (layer, value)


def path_of(image: str, path: str, layers: Iterable[tuple[str, LayerEnvironment]]) -> list[Entry]:
    """PATH as a sandbox has it, each directory with who brought it."""
    entries = [Entry(each, image) for each in path.split(":") if path]
    for layer, environment in layers:
        before = [Entry(each, layer) for each in environment.path_prepend]
        entries = [*before, *entries, *(Entry(each, layer) for each in environment.path_append)]
    return entries


def twice_in_path(path: Sequence[Entry]) -> Iterator[Clash]:
    """Directories that two of them put into PATH: the first place is what counts."""
    first: dict[str, str] = {}
    for each in path:
        owner = first.setdefault(each.directory, each.owner)
        if owner != each.owner:
            yield Clash("path", each.directory, owner, each.owner, each.directory)


def clashing_programs(layers: Sequence[Named], path: Sequence[Entry]) -> Iterator[Clash]:
    """Programs of one name in two directories of PATH, brought by different layers: the first directory's is run.

    ``layers`` bottom first. Links between directories are not followed.
    """
    directories = list(dict.fromkeys(each.directory for each in path))
    found = {each.strip("/").encode(errors="surrogateescape"): dict[bytes, str | None]() for each in directories}
    for layer in reversed(layers):
        with LayerTree(layer.directory) as tree:
            for node in tree.walk():
                place, _, name = node.path.rpartition(b"/")
                programs = found.get(place)
                if programs is not None and name not in programs:
                    programs[name] = layer.name if _is_program(node) else None
    seen: dict[bytes, tuple[str, str]] = {}
    for directory in directories:
        for name, owner in sorted(found[directory.strip("/").encode(errors="surrogateescape")].items()):
            if owner is None:
                continue
            where, winner = seen.setdefault(name, (directory, owner))
            if where != directory and winner != owner:
                text = name.decode(errors="backslashreplace")
                yield Clash("program", text, winner, owner, f"{where}/{text}", f"{directory}/{text}")


def _is_program(node: Node) -> bool:
    return stat.S_ISLNK(node.mode) or (stat.S_ISREG(node.mode) and bool(node.mode & 0o111))
