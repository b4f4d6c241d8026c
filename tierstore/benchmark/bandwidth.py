"""One run over every link of this machine, and what could not be measured.

Called by `tierstore bench --bandwidth`. A link that fails leaves the others' figures standing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tierstore.benchmark.host_links import measure_host_links
from tierstore.benchmark.machine import describe_machine
from tierstore.benchmark.measure import Measurement, Probe, measure
from tierstore.benchmark.report import Report, Row
from tierstore.benchmark.ssd_links import measure_ssd_links
from tierstore.errors import TierstoreError

if TYPE_CHECKING:
    from tierstore.benchmark.plan import BenchmarkPlan

__all__ = ["NUM_LINKS", "measure_bandwidth"]

NUM_LINKS = 6
"""Rows of a full run."""


def measure_bandwidth(plan: BenchmarkPlan, on_progress: Callable[[str, float], None]) -> Report:
    """Measure every link. Blocks for about `NUM_LINKS` times ``plan.seconds``.

    Args:
        plan: What to measure.
        on_progress: Called often with the link being measured and how much of its time has passed, 0 to 1.
    """

    def take(probe: Probe) -> Measurement:
        return measure(probe, seconds=plan.seconds, on_progress=lambda fraction: on_progress(probe.link, fraction))

    machine = describe_machine(plan.folder)
    rows: list[Row] = []
    failures: list[str] = []
    for room, measure_links in (("host", measure_host_links), ("ssd", measure_ssd_links)):
        try:
            for taken in measure_links(plan, take):
                codec = plan.codec if room == "ssd" else "raw"
                rows.append(Row.of(taken, batch=plan.batch, codec=codec))
        except TierstoreError as error:
            failures.append(f"{room} links: {error}")
    return Report(machine, rows, failures)
