"""Measures every way into a service in one run, and a load on it. Called by `tierstore bench --serve`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from tierstore.benchmark.machine import describe_machine
from tierstore.benchmark.measure import Measurement, Probe, measure
from tierstore.benchmark.report import Report, Row
from tierstore.benchmark.serve_control import ACQUIRED_BLOCKS, LOOKED_UP_BLOCKS, measure_control
from tierstore.benchmark.serve_copies import measure_local, measure_streams
from tierstore.benchmark.serve_load import put_under_load
from tierstore.benchmark.serve_processes import serving
from tierstore.errors import TierstoreError
from tierstore.worker import Worker

if TYPE_CHECKING:
    from tierstore.benchmark.serve_load import Load
    from tierstore.benchmark.serve_plan import ServePlan

__all__ = ["NUM_SERVE_ROWS", "measure_service"]

NUM_SERVE_ROWS = 9
"""Rows and loads of a full run."""

_BATCHES = {"control.lookup": LOOKED_UP_BLOCKS, "control.acquire": ACQUIRED_BLOCKS}


def measure_service(plan: ServePlan, on_progress: Callable[[str, float], None], recorded: Sequence[int] = ()) -> Report:
    """Start a service, measure every way into it, put it under load, end it. Blocks.

    Calls come from threads other than the main one: on those, who waits for a transfer does its work himself.

    Args:
        plan: What to measure.
        on_progress: Called often with what is being measured and how much of its time has passed, 0 to 1.
        recorded: Prompts that the load asks for, instead of a draw.
    """

    def take(probe: Probe) -> Measurement:
        return worker.ask(partial(measure, probe, seconds=plan.seconds, on_progress=partial(on_progress, probe.link)))

    worker = Worker("bench-caller", capacity=1)
    machine = describe_machine(plan.folder)
    rows: list[Row] = []
    loads: list[Load] = []
    failures: list[str] = []
    rooms: dict[str, Callable[..., Iterator[Measurement]]] = {
        "local": measure_local,
        "stream": measure_streams,
        "control": measure_control,
    }
    with closing(worker), serving(plan) as served:
        for room, measure_room in rooms.items():
            try:
                for taken in measure_room(plan, served, take):
                    batch = plan.clients * plan.batch
                    if room == "control":
                        batch = _BATCHES.get(taken.probe.link, ACQUIRED_BLOCKS)
                    rows.append(Row.of(taken, batch=batch, codec="none" if room == "control" else "raw"))
            except TierstoreError as error:
                failures.append(f"{room}: {error}")
        for way in ("local", "stream"):
            try:
                name = f"load, {way}"
                loads.append(
                    put_under_load(plan, served, way, lambda fraction, name=name: on_progress(name, fraction), recorded)  # type: ignore[misc]
                )
            except TierstoreError as error:
                failures.append(f"{way} load: {error}")
    return Report(machine, rows, failures, loads)
