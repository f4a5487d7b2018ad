"""The command line as a whole."""

from __future__ import annotations

import typer

from dsec.cli.commands import doctor, node

__all__ = ["app", "run"]

app = typer.Typer(
    name="dsec",
    help="Sandboxes for agentic training and evaluation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _commands in (node, doctor):
    _commands.add(app)


def run() -> None:
    """The console script's entry."""
    app()
