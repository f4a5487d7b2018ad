"""Imports go one way, as design.md draws it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "dsec"

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "decoding": set(),
    "databases": {"errors"},
    "api": {"decoding", "errors"},
    "client": {"decoding", "api", "errors"},
    "sync": {"client", "api", "errors"},
    "iam": {"databases", "api", "errors"},
    "placement": {"api", "errors"},
    "watcher": {"api", "errors"},
    "layering": {"errors"},
    "images": {"decoding", "layering", "databases", "api", "errors"},
    "stores": {"decoding", "images", "errors"},
    "backends": {"api", "errors"},
    "network": {"api", "errors"},
    "node": {"stores", "network", "iam", "databases", "api", "errors"},
    "edge": {"decoding", "backends", "network", "images", "stores", "node", "databases", "api", "errors"},
    "apiserver": {"decoding", "iam", "placement", "watcher", "node", "api", "errors"},
    "integrations": {"client", "sync", "api", "errors"},
    "demo": {"client", "sync", "api", "errors"},
    "cli": {"client", "demo", "node", "api", "errors"},
    "testing": {
        "client",
        "sync",
        "apiserver",
        "iam",
        "node",
        "edge",
        "backends",
        "images",
        "layering",
        "stores",
        "api",
        "errors",
    },
}
"""Part → parts that it may import. The package itself (``dsec``) offers the client's names."""


def imported_modules(file: Path) -> Iterator[str]:
    """Absolute names of all ``dsec`` modules that a file imports, at whatever depth of the code."""
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "dsec")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            if node.module == "dsec":
                yield from (f"dsec.{alias.name}" for alias in node.names)
            elif node.module and node.module.startswith("dsec."):
                yield node.module


def parts() -> list[str]:
    """Folders and lone modules of the package."""
    return sorted(
        entry.stem
        for entry in SOURCE.iterdir()
        if entry.name != "__init__.py" and (entry.suffix == ".py" or any(entry.glob("*.py")))
    )


@pytest.mark.parametrize("part", parts())
def test_part_imports_only_what_the_design_allows(part: str) -> None:
    """Every import of a part, function-level ones included, goes to a part that it may use."""
    assert part in ALLOWED, f"src/dsec/{part} is a part that the design does not know"
    folder = SOURCE / part
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [SOURCE / f"{part}.py"]
    wrong = [
        f"{file.relative_to(SOURCE)} imports {module}"
        for file in files
        for module in imported_modules(file)
        if len(names := module.split(".")) > 1 and names[1] in parts() and names[1] not in ALLOWED[part] | {part}
    ]
    assert wrong == []


def test_check_sees_a_wrong_import(tmp_path: Path) -> None:
    """The reader finds imports in functions and by both forms, so an empty list means something."""
    file = tmp_path / "wrong.py"
    file.write_text(
        "import dsec.edge.core\n\ndef f():\n    from dsec import images\n    from dsec.node.up import up\n"
    )
    assert list(imported_modules(file)) == ["dsec.edge.core", "dsec.images", "dsec.node.up"]
