"""Databases that another version of dsec wrote: refused before anything is touched, or begun anew where that loses
nothing that lives."""

from __future__ import annotations

from collections.abc import Callable

from dsec.databases import check_format, format_of
from dsec.errors import Unsupported
from dsec.node.paths import NodePaths

__all__ = ["check_databases", "settle_databases"]


def check_databases(paths: NodePaths) -> None:
    """Raise Unsupported when a file is of a format that this program does not know; for a node that runs."""
    for path in (paths.node_db, paths.catalogue_db, paths.iam_db):
        check_format(path)


def settle_databases(paths: NodePaths, say: Callable[[str], None]) -> None:
    """For a node of which nothing lives: begin ``node.db`` anew if need be, refuse what must survive.

    ``node.db`` then holds only tombstones and keys of this boot. Raises Unsupported.
    """
    check_format(paths.catalogue_db)
    check_format(paths.iam_db)
    try:
        check_format(paths.node_db)
    except Unsupported:
        say(f"node.db has format {format_of(paths.node_db)}: begun anew, without the stopped sandboxes of this boot")
        for suffix in ("-wal", "-shm", ""):
            paths.node_db.with_name(paths.node_db.name + suffix).unlink(missing_ok=True)
