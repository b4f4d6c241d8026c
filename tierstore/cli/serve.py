"""`tierstore serve`: a store for other processes, until it is told to end.

Every setting is an option. All output is for people and goes to stderr. After a first signal (SIGTERM, SIGINT) it exits
0 once all calls are finished and synced, or 143 or 130 if a second signal cuts that short.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click

__all__ = ["command"]


class _EverySetting(click.Command):
    """Has an option for every setting. The table of settings is read only when this command runs."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *_options()]


@click.command("serve", cls=_EverySetting)
@click.option("--config", "path", type=click.Path(path_type=Path), help="TOML file to read.")
@click.option("--print-config", is_flag=True, help="Print every setting, its value and its source, and end.")
def command(path: Path | None, *, print_config: bool, **given: str | None) -> None:
    """Serve a store to the engines of this machine, and to others over TLS.

    Listens on a Unix socket of this user's own, where engines map the pool and copy in place. SIGTERM ends it: calls
    under way are finished for at most service.drain_seconds, and everything is synced; a second one ends it at once.
    """
    from tierstore.config import StoreConfig

    config = StoreConfig.load(path, overrides=given)
    if config.host.shared is None:
        config = replace(config, host=replace(config.host, shared=True))
    if print_config:
        for key, value, source in config.describe():
            click.echo(f"{key:40} {value:24} {source}")
        return
    from tierstore.monitor.log_lines import EVERY_LOGGER, write_log
    from tierstore.service.serving import serve

    write_log(config.log, EVERY_LOGGER)
    serve(config, _echo if config.log.format is None else _log)


def _echo(line: str) -> None:
    with suppress(OSError):  # whoever read it may have gone, as `head` does: the service goes on, and ends well
        click.echo(line, err=True)


def _log(line: str) -> None:
    """Log a line for people: used if the log goes to stderr, so that nothing but log records stands there."""
    logging.getLogger(__name__).info("%s", line)


def _options() -> Iterator[click.Option]:
    from tierstore.config import SETTINGS

    for setting in SETTINGS:
        names = [setting.flag, f"--{setting.key}"]
        if setting.key.startswith("service."):
            names.append(setting.flag.replace("--service-", "--"))
        text = f"{setting.help[0].upper()}{setting.help[1:]}.  [default: {setting.show(setting.default)}]"
        bare = {"is_flag": False, "flag_value": "true"} if setting.kind.is_flag else {}
        yield click.Option([*names, setting.argument], metavar="VALUE", help=text, **bare)  # type: ignore[arg-type]
