"""Loads and stores: copies between a request's pages and slots of a pool, or two pools, on one stream of the device.

It only enqueues. A page group is touched after the caller's event for it. The stream's own thread reports a
result once every copy before it has ended. Once a stream has failed, no copy on it is reported as OK.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tierstore.device.paging import bind_pool
from tierstore.errors import TierstoreError
from tierstore.transfer.base import ended
from tierstore.transfer.caller_memory import CallerMemory
from tierstore.types import CopyJob, CopyResult, Outcome, TierName

if TYPE_CHECKING:
    from tierstore.device.base import Device
    from tierstore.transfer.base import Done, FarSide
    from tierstore.types import Int64Array, Job, JobId, RequestId, UInt8Array

__all__ = ["DeviceLink"]

_JOBS_MAX = 1024
"""Copies enqueued at once; a stream holds a few calls for each."""

_logger = logging.getLogger(__name__)


class DeviceLink:
    """One direction between an engine's pages and the pools.

    Args:
        device: Whose stream it uses.
        pools: uint8[pool_nbytes] of each pool that jobs name: the host pool, and the device pool if there is one.
        memory: The caller's side of every open request; the engine's own mapping, read here.
        name: ``"load"`` or ``"store"``; names the stream's thread.
    """

    def __init__(
        self, device: Device, pools: Mapping[TierName, UInt8Array], memory: Mapping[RequestId, FarSide], name: str
    ) -> None:
        self._device = device
        self._pools = pools
        self._memory = memory
        self._stream = device.new_stream(name)
        self._inflight: set[JobId] = set()

    @property
    def num_queued(self) -> int:
        """Copies enqueued and not ended, the running one included: a stream does not tell which one that is."""
        return len(self._inflight)

    def submit(self, job: Job, done: Done) -> bool:
        """Enqueue the copy; the stream's thread reports its end."""
        assert isinstance(job, CopyJob), f"a device link moves blocks, not {job!r}"
        if len(self._inflight) >= _JOBS_MAX:
            return False
        self._inflight.add(job.job_id)
        memory, block_ids = self._far_side(job)
        load = job.dst is TierName.DEVICE
        slots = job.src_locations if load else job.dst_locations
        copy = self._device.load if load else self._device.store
        pool = self._pools[job.src if load else job.dst]
        begun = time.perf_counter()
        try:
            events = copy(pool, slots, memory.kv, block_ids, self._stream, after=memory.after)  # type: ignore[arg-type]
        except TierstoreError as error:
            _logger.error("blocks not copied: %s", error)
            self._inflight.discard(job.job_id)
            done(ended(job, Outcome.IO_ERROR))
            return True
        if memory.layers is not None and events is not None:
            memory.layers.add(events, len(job))
        self._stream.call(self._report(job, done, begun))
        return True

    def _far_side(self, job: CopyJob) -> tuple[CallerMemory, Int64Array]:
        """The memory at the other end of a job from its pool slots, and the job's blocks there."""
        if job.src is TierName.DEVICE_POOL and job.dst is TierName.HOST:
            pool, block_nbytes = self._pools[job.src], job.generation.layout.block_nbytes
            block_ids = np.asarray(job.src_locations, np.int64)[np.newaxis]
            return CallerMemory(bind_pool(pool, block_nbytes, self._device.memory), block_ids), block_ids
        memory = self._memory[job.request_id]
        assert isinstance(memory, CallerMemory), f"request {job.request_id} has no pages"
        positions = job.dst_locations if job.dst is TierName.DEVICE else job.src_locations
        return memory, np.take(memory.block_ids, positions, axis=1)  # type: ignore[arg-type]

    def _report(self, job: CopyJob, done: Done, begun: float) -> Callable[[], None]:
        def report() -> None:
            self._inflight.discard(job.job_id)
            result = ended(job, Outcome.OK if self._stream.failure is None else Outcome.IO_ERROR)
            done(CopyResult(result.job_id, result.outcomes, seconds=time.perf_counter() - begun))

        return report

    def lift(self, job_id: JobId) -> None:
        """Does nothing: a stream keeps its order."""

    def withdraw(self, job_id: JobId) -> None:
        """Does nothing: an enqueued copy runs."""

    def close(self) -> bool:
        """Finish the stream."""
        self._stream.close()
        return True
