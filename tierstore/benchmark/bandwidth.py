"""Measures every link of this machine in one run, and lists the links that could not be measured.

Called by `tierstore bench --bandwidth`. If a link fails, the figures of the others remain valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from tierstore.benchmark.gpu_links import measure_gpu_links, num_gpu_links
from tierstore.benchmark.host_links import measure_host_links
from tierstore.benchmark.machine import describe_machine
from tierstore.benchmark.measure import Measurement, Probe, measure
from tierstore.benchmark.report import Report, Row
from tierstore.benchmark.ssd_links import measure_ssd_links
from tierstore.errors import TierstoreError

if TYPE_CHECKING:
    from tierstore.benchmark.plan import BenchmarkPlan
    from tierstore.device.cuda_runtime import CudaRuntime

__all__ = ["measure_bandwidth", "num_links"]

_NUM_CPU_LINKS = 6


def num_links(gpu: CudaRuntime | None) -> int:
    """Rows of a full run."""
    return _NUM_CPU_LINKS + num_gpu_links(gpu)


def measure_bandwidth(
    plan: BenchmarkPlan, gpu: CudaRuntime | None, on_progress: Callable[[str, float], None]
) -> Report:
    """Measure every link. Blocks for about `num_links` times ``plan.seconds``.

    Args:
        plan: What to measure.
        gpu: Whose links to measure too; None where there is none.
        on_progress: Called often with the link being measured and how much of its time has passed, 0 to 1.
    """

    def take(probe: Probe) -> Measurement:
        return measure(probe, seconds=plan.seconds, on_progress=lambda fraction: on_progress(probe.link, fraction))

    machine = describe_machine(plan.folder)
    rows: list[Row] = []
    failures: list[str] = []
    rooms: dict[str, Callable[..., Iterator[Measurement]]] = {"host": measure_host_links, "ssd": measure_ssd_links}
    if gpu is not None:
        rooms = {"device": partial(measure_gpu_links, gpu), **rooms}
    for room, measure_links in rooms.items():
        try:
            for taken in measure_links(plan, take):
                codec = plan.codec if room == "ssd" else "raw"
                rows.append(Row.of(taken, batch=plan.batch, codec=codec))
        except TierstoreError as error:
            failures.append(f"{room} links: {error}")
    return Report(machine, rows, failures)
