"""Keeps the results of calibration across processes: one small file a GPU and driver, in the user's cache folder.

Called by a CUDA device that the registry opened. A file that is old, damaged or for something else is ignored. If no
file can be written, every process measures for itself.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tierstore.device.calibration import ROWS_NBYTES, Choices, calibrate
from tierstore.device.copy_engines import engine_names

if TYPE_CHECKING:
    from tierstore.device.cuda_runtime import CudaRuntime, GpuFacts

__all__ = ["CACHE_FOLDER", "calibrated"]

CACHE_FOLDER = Path("~/.cache/tierstore/calibration")

_VERSION = 1
"""Of the file, and of what is measured: another one is measured anew."""

_SECONDS_MAX = 30 * 86400.0
"""An older file counts as none: one that was measured on a busy GPU does not last for ever."""

_SAME = ("name", "driver", "processors", "has_batches", "reaches_host")

_logger = logging.getLogger(__name__)


def calibrated(runtime: CudaRuntime, folder: Path = CACHE_FOLDER) -> Choices:
    """The result for such a GPU from the last month, or else a new one, which is kept. Blocks as `calibrate` does.

    Raises:
        DeviceError: The GPU refused a copy.
    """
    path = folder.expanduser() / f"{re.sub('[^A-Za-z0-9]+', '-', runtime.facts.name)}-{runtime.facts.driver}.json"
    found = _read(path, runtime.facts)
    if found is None:
        found = calibrate(runtime)
        _keep(path, found)
    return found


def _read(path: Path, facts: GpuFacts) -> Choices | None:
    try:
        age_seconds = time.time() - path.stat().st_mtime
        report = json.loads(path.read_text("utf-8"))
        rates = {(bool(store), int(size), str(name)): float(rate) for store, size, name, rate in report["rates"]}
        same = (report["version"], report["gpu"]) == (_VERSION, _told(facts))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    whole = set(rates) == _measured(facts) and all(0 < rate < float("inf") for rate in rates.values())
    return Choices(facts, rates) if same and whole and 0 <= age_seconds < _SECONDS_MAX else None


def _keep(path: Path, choices: Choices) -> None:
    """Write the file atomically; not if something could not be measured, as for lack of memory."""
    if set(choices.rates) != _measured(choices.facts):
        return
    rates = [[*key, rate] for key, rate in choices.rates.items()]
    text = json.dumps({"version": _VERSION, "gpu": _told(choices.facts), "rates": rates})
    written = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(text + "\n", "utf-8")
        written.replace(path)
    except OSError as error:
        _logger.info("the next process measures the copy engines again: %s", error)


def _measured(facts: GpuFacts) -> set[tuple[bool, int, str]]:
    """All that is measured where memory is not short."""
    return set(itertools.product((True, False), ROWS_NBYTES, engine_names(facts)))


def _told(facts: GpuFacts) -> dict[str, object]:
    """What a GPU has in common with others of its kind."""
    return {name: value for name, value in asdict(facts).items() if name in _SAME}
