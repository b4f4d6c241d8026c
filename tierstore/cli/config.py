"""`tierstore config`: every setting, its value and where the value came from. Starts nothing."""

from __future__ import annotations

from pathlib import Path

import click

from tierstore.config import StoreConfig

__all__ = ["command"]


@click.command("config")
@click.option("--config", "path", type=click.Path(path_type=Path), help="TOML file to read.")
def command(path: Path | None) -> None:
    """Print every setting, its value and its source."""
    rows = StoreConfig.load(path).describe()
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for key, value, source in rows:
        click.echo(f"{key:{widths[0]}}  {value:{widths[1]}}  {source}")
