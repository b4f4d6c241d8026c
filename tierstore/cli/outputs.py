"""Checks the files that `--json` and `--plot` name before anything is measured, so that no run is lost at its end."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from tierstore.errors import ConfigError

__all__ = ["check_outputs"]


def check_outputs(json_path: str | None, plot_path: Path | None) -> None:
    """Refuse outputs that could not be written at the end.

    Raises:
        ConfigError: A path cannot be written, or pictures (or this kind of them) cannot be drawn here.
    """
    for target in (plot_path, None if json_path in (None, "-") else Path(str(json_path))):
        if target is not None:
            _check_written(target)
    if plot_path is not None:
        _check_picture(plot_path)


def _check_written(path: Path) -> None:
    try:
        if path.is_dir():
            raise ConfigError(f"{path} cannot be written: it is a folder; give the path of a file")
        if not path.parent.is_dir():
            raise ConfigError(f"{path} cannot be written: {path.parent} is no folder; give a path in one that exists")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ConfigError(f"{path} cannot be written: this user may not; give another path")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; give another path") from error


def _check_picture(path: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib, which is missing; install tierstore[plot]")
    from matplotlib.figure import Figure

    known = Figure().canvas.get_supported_filetypes()
    kind = path.suffix.removeprefix(".").lower()
    if kind and kind not in known:
        raise ConfigError(f"--plot is {path}: no picture is a .{kind}; give one of .{', .'.join(sorted(known))}")
