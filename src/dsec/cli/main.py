"""The command line as a whole."""

from __future__ import annotations

import os
import signal

import typer

from dsec.cli.commands import (
    cp,
    doctor,
    ending,
    events,
    exec,
    image,
    job,
    layer,
    listing,
    logs,
    network,
    node,
    port,
    run,
    snapshot,
    token,
    usage,
)
from dsec.cli.demo import demo
from dsec.cli.session import command

__all__ = ["app", "main"]

app = typer.Typer(
    name="dsec",
    help="Sandboxes for agentic training and evaluation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_NOUNS = (
    run, exec, cp, listing, ending, logs, snapshot, job, port, network, events, image, layer, token, usage, node,
    doctor,
)  # fmt: skip
for _noun in _NOUNS:
    _noun.add(app)
command(app, "demo")(demo)


def main() -> None:
    """The console script's entry. A hang-up or SIGTERM cleans up as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    app()


def _interrupt(*_: object) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's background job: the event loop, which turns SIGINT into a cancellation, has left it alone.
        raise KeyboardInterrupt
    os.kill(os.getpid(), signal.SIGINT)
