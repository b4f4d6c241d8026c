"""The `tierstore` command: dispatches to a subcommand, and prints every known error as one line.

A subcommand is one module of this package and one line of `_COMMANDS`. Its module imports only click at the top, so
that `tierstore --help` stays fast.
"""

from __future__ import annotations

import importlib
import signal
import sys

import click

import tierstore
from tierstore.errors import TierstoreError

__all__ = ["main", "tierstore_command"]

_COMMANDS = {
    "bench": "tierstore.cli.bench",
    "config": "tierstore.cli.config",
    "doctor": "tierstore.cli.doctor",
    "inspect": "tierstore.cli.inspect",
    "replay": "tierstore.cli.replay",
    "serve": "tierstore.cli.serve",
    "top": "tierstore.cli.top",
}


class _LazyGroup(click.Group):
    """Imports a command's module when the command is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(_COMMANDS[cmd_name]).command
        return command


@click.group("tierstore", cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tierstore.__version__, message="%(prog)s %(version)s")
def tierstore_command() -> None:
    """A hierarchical store for the KV cache of LLM inference."""


def _end(_signal: int, _frame: object) -> None:
    """End by an exception, so that cleanup runs: no file of a benchmark and no partial export is left behind."""
    sys.exit(128 + signal.SIGTERM)


def main() -> None:
    """Run the command line. Exits 0 on success, 1 if the answer is no, 2 on an error, 143 on SIGTERM."""
    signal.signal(signal.SIGTERM, _end)
    try:
        tierstore_command(prog_name="tierstore")
    except TierstoreError as error:
        click.echo(f"tierstore: {' '.join(str(error).split())}", err=True)
        sys.exit(2)
