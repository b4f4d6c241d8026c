"""The links between a GPU's cache and the host pool: device.store and device.load, by every engine that the GPU has.

Called by `tierstore.benchmark.bandwidth` where there is a GPU. The limit is one plain copy of as many bytes between
the same memories, contiguous on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, TypeVar

from tierstore.benchmark.gpu_copies import CacheShape, GpuCopies
from tierstore.benchmark.measure import Measurement, Probe
from tierstore.device.copy_engines import engine_names
from tierstore.errors import NoDeviceError

if TYPE_CHECKING:
    from tierstore.benchmark.plan import BenchmarkPlan
    from tierstore.device.cuda_runtime import CudaRuntime

__all__ = ["find_gpu", "measure_gpu_links", "num_gpu_links"]

T = TypeVar("T")


def find_gpu() -> CudaRuntime | None:
    """The GPU that torch has as its current one; None where there is none that can be used."""
    from tierstore.device import cuda

    try:
        return cuda.open_runtime()
    except NoDeviceError:
        return None


def num_gpu_links(runtime: CudaRuntime | None) -> int:
    """Rows that `measure_gpu_links` gives."""
    return 0 if runtime is None else 2 * len(engine_names(runtime.facts))


def measure_gpu_links(
    runtime: CudaRuntime, plan: BenchmarkPlan, take: Callable[[Probe], Measurement]
) -> Iterator[Measurement]:
    """Measure every engine both ways, with the plan's layout and batch. Blocks."""
    pages = plan.layout.page_nbytes
    shape = CacheShape(layers=len(pages), num_rows=1, row_nbytes=pages[0])
    with closing(GpuCopies(runtime, shape, plan.batch)) as copies:
        for store, engine in product((True, False), engine_names(runtime.facts)):
            yield take(
                Probe(
                    link=f"device.{'store' if store else 'load'} {engine}",
                    threads=1,
                    pages=f"{runtime.facts.name}, {shape.layers} tensors of {shape.row_nbytes} bytes a block",
                    limit_name="one plain copy",
                    call_nbytes=copies.nbytes,
                    prepare=_ignoring_pair(partial(copies.prepare, store=store)),
                    limit=_ignoring_pair(partial(copies.copy_plain, store=store)),
                    product=_ignoring_pair(partial(copies.copy, engine, store=store)),
                    num_wrong=_ignoring_pair(partial(copies.num_wrong, store=store)),
                )
            )


def _ignoring_pair(call: Callable[[], T]) -> Callable[[int], T]:
    return lambda _pair: call()
