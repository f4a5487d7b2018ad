"""``dsec layer …``: workspaces and toolkits, here and in stores."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsec.cli.completing import sandbox_names
from dsec.cli.printing import print_json, print_table, say
from dsec.cli.session import Json, command, with_client
from dsec.cli.values import age, pairs, size
from dsec.errors import ImageCorrupt, InvalidArgument

if TYPE_CHECKING:
    from dsec.api.layers import (
        LayerChecked,
        LayerCollected,
        LayerDetail,
        LayerDifferences,
        LayerEvicted,
        LayerInfo,
        LayerPushed,
        LayerVerified,
        StoredTag,
        StoreInfo,
    )
    from dsec.api.packing import PackedLayer
    from dsec.client.client import DSecClient

__all__ = ["add"]

_LAYER = ("workspace/", "toolkit/", "base/", "@")
_LETTERS = {"added": "A", "removed": "D", "changed": "C"}
Reference = Annotated[str, typer.Argument(metavar="REF", help="KIND/NAME:VERSION, @sha256:DIGEST, or both.")]
Store = Annotated[str | None, typer.Option("--store", metavar="NAME", help="Of the node's settings; its default.")]
OtherStore = Annotated[str | None, typer.Option("--store", metavar="NAME", help="A store instead of this node.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing of progress.")]
Move = Annotated[bool, typer.Option("--move", help="Also when the tag means another layer there.")]


def build(
    words: Annotated[
        list[str], typer.Argument(metavar="[DIR|TAR] REF", help="What of; workspace/NAME:VERSION, toolkit/…, base/…")
    ],
    from_sandbox: Annotated[
        str | None,
        typer.Option(
            "--from-sandbox", metavar="SANDBOX", help="Of what a live one has written.", autocompletion=sandbox_names
        ),
    ] = None,
    leave_out: Annotated[
        list[str] | None, typer.Option("--leave-out", metavar="PATTERN", help="With --from-sandbox: not these.")
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option("--keep", metavar="PATTERN", help="With --from-sandbox: these in any case.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="With --from-sandbox: caches, logs and the like too.")] = False,
    at: Annotated[str, typer.Option(help="Where in the sandbox it is laid.")] = "/",
    owner: Annotated[
        str, typer.Option(metavar="UID:GID", help="Whose the files are; keep: whose they were.")
    ] = "0:0",
    env: Annotated[list[str] | None, typer.Option("--env", metavar="K=V", help="What it sets in sandboxes.")] = None,
    path_prepend: Annotated[
        list[str] | None, typer.Option("--path-prepend", metavar="DIR", help="Comes first in their PATH.")
    ] = None,
    path_append: Annotated[
        list[str] | None, typer.Option("--path-append", metavar="DIR", help="Comes last in their PATH.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a layer of a directory or a tar file, modes and times kept, or of what a live sandbox has written."""
    if from_sandbox is not None:
        if len(words) != 1 or at != "/" or owner != "0:0" or env or path_prepend or path_append:
            raise InvalidArgument("with --from-sandbox there is REF, and --leave-out, --keep, --all")
        _pack(from_sandbox, words[0], defaults=not all_, extra=leave_out or [], keep=keep or [], json=json)
        return
    if len(words) != 2 or leave_out or keep or all_:
        raise InvalidArgument("name a directory or tar file and a layer, or say --from-sandbox")
    source, reference = Path(words[0]), words[1]
    if not source.exists():
        raise InvalidArgument(f"there is no {source}")

    async def body(client: DSecClient) -> LayerInfo:
        return await client.layers.build(
            source, reference, at=at, owner=owner, env=pairs(env or [], what="--env"),
            path_prepend=path_prepend or [], path_append=path_append or [],
        )  # fmt: skip

    made = with_client(body)
    if json:
        print_json(made)
    else:
        print(made.digest)
        say(f"{reference}: {size(made.size_bytes)}")


def _pack(sandbox: str, reference: str, *, defaults: bool, extra: list[str], keep: list[str], json: bool) -> None:
    from dsec.api.packing import Residue

    residue = Residue(defaults=defaults, extra=extra, keep=keep)

    async def body(client: DSecClient) -> PackedLayer:
        return await (await client.get(sandbox)).pack_diff(reference, residue=residue)

    made = with_client(body)
    if json:
        print_json(made)
        return
    print(made.digest)
    say(f"{reference}: {size(made.size_bytes)}, {made.entries} files and directories, {made.whiteouts} removals")
    if made.removed_files:
        say(f"left out: {made.removed_files} files, {size(made.removed_bytes)}; --json lists them")


def _packed(found: LayerDetail) -> str:
    told = found.provenance
    if told is None:
        return ""
    return f"{_ago(told.at)} from {told.sandbox_id} over {len(told.parents)} layers, by {told.by or 'unknown'}"


def list_layers(store: OtherStore = None, json: Json = False) -> None:
    """List the layers that have a tag, here or in a store."""
    if store is not None:
        _list_stored(store, json)
        return

    async def body(client: DSecClient) -> list[LayerInfo]:
        return list(await client.layers.list())

    found = with_client(body)
    if json:
        print_json(found)
        return
    rows = [
        (
            one.reference or "", one.digest[:12], size(one.size_bytes),
            size(one.local_bytes) if one.local_bytes else "-",
            _ago(one.used_at), " ".join(one.stores) or "-",
        )
        for one in found
    ]  # fmt: skip
    print_table(("LAYER", "DIGEST", "SIZE", "HERE", "USED", "STORES"), rows)


def _list_stored(store: str, json: bool) -> None:
    async def body(client: DSecClient) -> list[StoredTag]:
        return list(await client.layers.stored(store))

    found = with_client(body)
    if json:
        print_json(found)
        return
    print_table(("LAYER", "DIGEST", "BY"), [(one.reference, one.digest[:12], one.by) for one in found])


def list_stores(json: Json = False) -> None:
    """List the stores of the node's settings."""

    async def body(client: DSecClient) -> list[StoreInfo]:
        return list(await client.layers.stores())

    found = with_client(body)
    if json:
        print_json(found)
        return
    print_table(("STORE", "URL", "DEFAULT"), [(one.name, one.url, "yes" if one.default else "") for one in found])


def show(reference: Reference, json: Json = False) -> None:
    """Show a layer: its sizes, its tags, what it sets, and what needs it."""

    async def body(client: DSecClient) -> LayerDetail:
        return await client.layers.get(reference)

    found = with_client(body)
    if json:
        print_json(found)
        return
    brings = [f"{name}={value}" for name, value in found.environment.env.items()]
    brings += [f"PATH={each}:…" for each in found.environment.path_prepend]
    brings += [f"PATH=…:{each}" for each in found.environment.path_append]
    here = f"of its data here {size(found.local_bytes)} of {size(found.data_bytes)}" if found.here else "evicted"
    rows = [
        ("digest", found.digest),
        ("size", f"{size(found.size_bytes)}, {here}"),
        ("used", _ago(found.used_at)),
        ("stores", " ".join(found.stores)),
        ("tags", " ".join(found.references)),
        ("brings", " ".join(brings)),
        ("packed", _packed(found)),
        ("images", " ".join(found.images)),
        ("sandboxes", " ".join(found.sandboxes)),
    ]
    for name, value in rows:
        print(f"{name + ':':11}{value or '-'}")


def push(
    reference: Annotated[str, typer.Argument(metavar="REF", help="KIND/NAME:VERSION of a layer of this node.")],
    store: Store = None,
    move: Move = False,
    mend: Annotated[bool, typer.Option("--mend", help="Write anew what the store holds of a damaged layer.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Publish a layer in a store; only what the store has not yet is sent."""

    async def body(client: DSecClient) -> LayerPushed:
        from dsec.cli.progress import ProgressLines

        with ProgressLines(f"pushing {reference}", quiet=quiet or json) as progress:
            return await client.layers.push(reference, store=store, move=move, mend=mend, on_progress=progress.show)

    done = with_client(body)
    if json:
        print_json(done)
        return
    print(done.digest)
    say(f"{done.reference} in {done.store}: {size(done.stored_bytes)} for {size(done.size_bytes)}, "
        f"of it {size(done.sent_bytes)} sent now")  # fmt: skip


def pull(
    reference: Reference, store: Store = None, move: Move = False, quiet: Quiet = False, json: Json = False
) -> None:
    """Bring a layer whole from a store onto this node, every chunk checked."""

    async def body(client: DSecClient) -> LayerInfo:
        from dsec.cli.progress import ProgressLines

        with ProgressLines(f"pulling {reference}", quiet=quiet or json) as progress:
            return await client.layers.pull(reference, store=store, move=move, on_progress=progress.show)

    done = with_client(body)
    if json:
        print_json(done)
    else:
        print(done.digest)
        say(f"{done.reference}: {size(done.size_bytes)}")


def verify(
    reference: Reference,
    store: OtherStore = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read the data in the store too.")] = False,
    json: Json = False,
) -> None:
    """Hold a layer against its digest, here or in a store; fails when something is wrong."""

    async def body(client: DSecClient) -> LayerVerified:
        return await client.layers.verify(reference, store=store, deep=deep)

    found = with_client(body)
    if json:
        print_json(found)
    if found.faults:
        raise ImageCorrupt(
            f"layer {found.digest}: " + "; ".join(found.faults[:5]),
            remedy="Pull it again"
            if store is None
            else f"Mend it from a node that has it: dsec layer push {reference} --mend",
        )
    if not json:
        print(found.digest)


def check(
    parts: Annotated[list[str], typer.Argument(metavar="[IMAGE] REF…", help="An image, then layers, bottom first.")],
    json: Json = False,
) -> None:
    """Say what of a composition hides what another of its layers has: files, variables, programs in PATH."""
    layers = [each for each in parts if each.startswith(_LAYER)]
    images = [each for each in parts if not each.startswith(_LAYER)]
    if len(images) > 1 or (images and parts[0] != images[0]):
        raise InvalidArgument("one image at most, and before the layers")

    async def body(client: DSecClient) -> LayerChecked:
        return await client.layers.check(layers, image=images[0] if images else None)

    found = with_client(body)
    if json:
        print_json(found)
        return
    print_table(("PATH", "OF", "HOW", "THAT OF"), [(one.path, one.upper, one.how, one.lower) for one in found.hidden])
    if found.total > len(found.hidden):
        say(f"and {found.total - len(found.hidden)} more")
    if found.clashes:
        print()
        rows = [(one.kind, one.name, one.upper, one.lower, one.seen, one.hidden or "-") for one in found.clashes]
        print_table(("KIND", "NAME", "OF", "OVER THAT OF", "SEEN", "HIDDEN"), rows)
    if found.clashes_total > len(found.clashes):
        say(f"and {found.clashes_total - len(found.clashes)} more")


def diff(
    old: Annotated[str, typer.Argument(metavar="A")],
    new: Annotated[str, typer.Argument(metavar="B")],
    json: Json = False,
) -> None:
    """Say what differs between two layers: A added, D removed, C changed, and in what. Times are not looked at."""

    async def body(client: DSecClient) -> LayerDifferences:
        return await client.layers.diff(old, new)

    found = with_client(body)
    if json:
        print_json(found)
        return
    for one in found.files:
        print(f"{_LETTERS[one.how]} {one.path}" + (f"  ({', '.join(one.fields)})" if one.fields else ""))
    if found.total > len(found.files):
        say(f"and {found.total - len(found.files)} more")


def remove(
    references: Annotated[list[str], typer.Argument(metavar="REF…", help="Tags, or @sha256:DIGEST.")],
    store: OtherStore = None,
    json: Json = False,
) -> None:
    """Remove layers, here or in a store; sandboxes that use them keep them until they end."""

    async def body(client: DSecClient) -> None:
        for reference in references:
            await client.layers.remove(reference, store=store)
            if not json:
                print(reference)

    with_client(body)
    if json:
        print_json({"removed": references})


def _ago(at: float) -> str:
    return age(max(0.0, time.time() - at)) + " ago" if at else "never"


def evict(
    references: Annotated[list[str], typer.Argument(metavar="REF…", help="Tags, or @sha256:DIGEST.")],
    json: Json = False,
) -> None:
    """Take layers' files off this node now, as a full one does by itself; they come back when they are needed."""

    async def body(client: DSecClient) -> list[LayerEvicted]:
        return [await client.layers.evict(each) for each in references]

    done = with_client(body)
    if json:
        print_json({"layers": done})
        return
    for one in done:
        print(one.digest)


def collect(
    store: OtherStore = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    json: Json = False,
) -> None:
    """Remove layers that nothing needs: at once on this node; in a store a day after a run that found them so."""

    async def body(client: DSecClient) -> LayerCollected:
        return await client.layers.gc(store=store, dry_run=dry_run)

    done = with_client(body)
    if json:
        print_json(done)
        return
    for digest in done.removed_layers:
        print(digest)
    verb = "would remove" if dry_run else "removed"
    say(f"{verb} {len(done.removed_layers)} layers, {size(done.removed_bytes)}")
    if store is not None:
        say(f"for a run in a day: {len(done.doomed_layers)} layers, {size(done.doomed_bytes)}")
    for digest in done.damaged_layers:
        say(f"layer {digest} is damaged in {store}: dsec layer push --mend, from a node that has it")


def add(app: typer.Typer) -> None:
    """Register the commands."""
    layers = typer.Typer(name="layer", help="Workspaces and toolkits, here and in stores.", no_args_is_help=True)
    command(layers, "build")(build)
    command(layers, "ls")(list_layers)
    command(layers, "show")(show)
    command(layers, "push")(push)
    command(layers, "pull")(pull)
    command(layers, "verify")(verify)
    command(layers, "check")(check)
    command(layers, "diff")(diff)
    command(layers, "rm")(remove)
    command(layers, "evict")(evict)
    command(layers, "gc")(collect)
    command(layers, "stores")(list_stores)
    app.add_typer(layers)
