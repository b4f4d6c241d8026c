"""`tierstore top`: a running store in the terminal, as its monitor tells it. Opens nothing and changes nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tierstore.config import StoreConfig
from tierstore.errors import AddressError

if TYPE_CHECKING:
    from rich.console import Console

    from tierstore.monitor.status import Status

__all__ = ["command"]

_ADDRESS = "127.0.0.1:9400"


@click.command("top")
@click.option("--address", metavar="HOST:PORT", help=f"Where it shows itself.  [default: the setting's, or {_ADDRESS}]")
@click.option("--config", "path", type=click.Path(path_type=Path), help="TOML file to read.")
@click.option("--seconds", type=click.FloatRange(0.1, 3600), default=2.0, show_default=True, help="Between two looks.")
@click.option("--once", is_flag=True, help="Print one frame and end; so too where the output is no terminal.")
def command(address: str | None, path: Path | None, seconds: float, *, once: bool) -> None:
    """Watch a running store: tiers, links, requests, hit rate, health."""
    from rich.console import Console

    from tierstore.cli.top_frame import frame
    from tierstore.monitor.status import read_status

    place = StoreConfig.load(path, overrides={"monitor.address": address}).monitor.address or _ADDRESS
    status, console = read_status(place), Console(highlight=False)
    if once or not console.is_terminal:
        console.print(frame(status, console.width))
        return
    try:
        _watch(console, place, status, seconds)
    except KeyboardInterrupt:
        return  # this is how one leaves it


def _watch(console: Console, place: str, status: Status, seconds: float) -> None:
    """Show frame after frame. If one cannot be fetched, say so and keep the last one."""
    from rich.live import Live

    from tierstore.cli.top_frame import frame
    from tierstore.monitor.status import read_status

    never = threading.Event()
    with Live(frame(status, console.width), console=console, screen=True, auto_refresh=False) as live:
        while not never.wait(seconds):
            try:
                status, lost = read_status(place), ""
            except AddressError as error:
                lost = str(error)
            live.update(frame(status, console.width, lost), refresh=True)
