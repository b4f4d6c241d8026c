"""The CUDA device: checks a copy, chooses the copy engine, and enqueues the copy behind the events it must wait for.

Made by `tierstore.device.cuda`, called by the device links. It uses the GPU through the given runtime, and never
waits for it on the caller's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from tierstore.device.calibration import Choices, calibrate
from tierstore.device.checksums import GpuChecksums
from tierstore.device.copy_engines import KERNEL, QUANTIZE, PieceEngine
from tierstore.device.copy_pieces import SpanCopy
from tierstore.device.cuda_stream import AdoptedEvent, CudaEvent, CudaStream
from tierstore.device.paging import check_copy
from tierstore.device.pinning import PinnedMemory
from tierstore.device.tensors import view_address
from tierstore.errors import DeviceError
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.device.base import Event, Stream
    from tierstore.device.cuda_runtime import CudaRuntime
    from tierstore.device.paged_kv import PagedKV
    from tierstore.types import Int32Array, Int64Array, UInt8Array, UInt32Array

__all__ = ["CudaDevice"]

_LOAD = "load"
"""The stream whose kernels go before those of others: a request waits for it."""


class CudaDevice:
    """A GPU, as `tierstore.device.base.Device` says.

    Args:
        runtime: Of the GPU.
        choices: The copy engines to use; None measures when the first pool is pinned.
        measure: Makes that measurement; takes about a second.
    """

    name = "cuda"

    def __init__(
        self,
        runtime: CudaRuntime,
        choices: Choices | None = None,
        measure: Callable[[CudaRuntime], Choices] = calibrate,
    ) -> None:
        self.memory = runtime.facts.memory
        self._runtime = runtime
        self._choices = choices
        self._measure = measure
        self._pinned: dict[int, PinnedMemory] = {}
        self._own: set[int] = set()
        self._making = threading.Lock()
        self._checksums: GpuChecksums | None = None

    def new_stream(self, name: str) -> CudaStream:
        """A stream of its own, with one thread called `name`."""
        return CudaStream(self._runtime, name, high_priority=name == _LOAD)

    def pin(self, buffer: UInt8Array) -> Callable[[], None]:
        """Register host memory with the GPU, and find the fastest copies. Blocks for about a second a GiB.

        Where the system refuses, a warning says so, and copies to and from this memory are slower.
        """
        pinned = PinnedMemory(self._runtime, buffer)
        self._pinned[pinned.address] = pinned
        if pinned.nbytes and self._choices is None:
            self._choices = self._measure(self._runtime)
        return partial(self._unpin, pinned)

    @property
    def pinned_nbytes(self) -> int:
        """Bytes of host memory that the GPU can copy from and to by itself."""
        return sum(pinned.nbytes for pinned in self._pinned.values())

    def allocate(self, nbytes: int) -> tuple[UInt8Array, Callable[[], None]]:
        """Memory of the GPU as an array whose bytes the CPU must not touch. Raises DeviceMemoryError."""
        address = self._runtime.allocate(nbytes)
        pool = view_address(address, nbytes)
        let_go = self.adopt(pool)

        def free() -> None:
            let_go()
            self._runtime.free(address)

        return pool, free

    def adopt(self, pool: UInt8Array) -> Callable[[], None]:
        """Copy from and to memory of the GPU by kernel: `let_go` before it is freed."""
        address = pool.ctypes.data
        self._own.add(address)

        def let_go() -> None:
            self._own.discard(address)
            if not self._own and self._checksums is not None:
                self._checksums.close()
                self._checksums = None

        return let_go

    def checksums(self, pool: UInt8Array, slots: Int32Array, nbytes: int) -> UInt32Array:
        """uint32[n]: the CRC32C of each slot's first `nbytes`, by the GPU. Blocks. Raises DeviceError."""
        with self._making:
            self._checksums = self._checksums or GpuChecksums(self._runtime)
        return self._checksums.of(pool.ctypes.data + slots.astype(np.int64) * PAGE_NBYTES, nbytes)

    def as_event(self, given: object) -> object | None:
        """A ``torch.cuda.Event`` as an event of the store; for None what torch's current stream has come to.

        Raises:
            DeviceError: The event is of another device, or was never recorded.
        """
        if given is None:
            return self._runtime.now()
        if not hasattr(given, "cuda_event"):
            return given
        where = getattr(given, "device", None)
        if where is None:
            raise DeviceError("an event was never recorded, so nothing can wait for it; record it on a stream first")
        if str(where) != self.memory:
            raise DeviceError(f"an event of {where} cannot order copies of {self.memory}; record one on this device")
        return AdoptedEvent(given)

    def hold(self, stream: Any, event: Event) -> None:
        """Let a ``torch.cuda.Stream`` go on only once an event of a load is done: a layer may then be computed.

        Blocks until the load has been enqueued, which may be held by events that are not of a GPU, never until it
        has ended.

        Raises:
            DeviceError: The load was never enqueued, for its stream had failed.
        """
        assert isinstance(event, CudaEvent), f"{event!r} is no event of a stream of this device"
        self._runtime.hold(stream.cuda_stream, event.recorded_mark())

    def load(
        self,
        host: UInt8Array,
        slots: Int32Array,
        kv: PagedKV,
        block_ids: Int64Array,
        stream: Stream,
        *,
        groups: range | None = None,
        after: Sequence[Event] = (),
    ) -> list[Event]:
        """Enqueue host → cache; returns one event a group. Raises what `check_copy` does, before a byte moves."""
        return self._enqueue(_Request(host, slots, kv, block_ids, store=False), stream, groups, after)

    def store(
        self,
        host: UInt8Array,
        slots: Int32Array,
        kv: PagedKV,
        block_ids: Int64Array,
        stream: Stream,
        *,
        groups: range | None = None,
        after: Sequence[Event] = (),
    ) -> None:
        """Enqueue cache → host. Raises what `check_copy` does, before a byte moves."""
        self._enqueue(_Request(host, slots, kv, block_ids, store=True), stream, groups, after)

    def _enqueue(self, request: _Request, stream: Stream, groups: range | None, after: Sequence[Event]) -> list[Event]:
        assert isinstance(stream, CudaStream), f"{stream!r} is no stream of a GPU"
        copied = request.check(self.memory, groups, len(after))
        events = [CudaEvent() for _ in copied]

        def enqueue_groups() -> None:
            for group, event, gate in zip_longest(copied, events, after):
                if gate is not None and not gate.done():
                    stream.hold(gate)
                if group is not None:
                    stream.attempt(partial(self._copy_group, request, group, stream))
                    stream.mark(event, keep=request)

        def answer(_error: BaseException) -> None:
            for event in events:
                if not event.is_recorded():
                    stream.mark(event, keep=request)

        stream.submit(enqueue_groups, answer)
        return list(events)

    def _copy_group(self, request: _Request, group: int, stream: CudaStream) -> None:
        for copy in request.spans(group):
            stream.engines.take(self._engine_for(copy)).copy(copy, stream.handle)

    def _engine_for(self, copy: SpanCopy) -> str:
        if copy.quantized is not None:
            return QUANTIZE
        if copy.origin in self._own:
            return KERNEL
        pinned = self._pinned.get(copy.origin)
        if pinned is None or not pinned.nbytes:
            return PieceEngine.name
        choices = self._choices or Choices(self._runtime.facts, {})
        return choices.choose(store=copy.store, row_nbytes=int(np.median(copy.segments["row_nbytes"])))

    def _unpin(self, pinned: PinnedMemory) -> None:
        self._pinned.pop(pinned.address, None)
        pinned.release()


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """The arguments of one copy. Keeps pool and cache alive, and has its own copy of the ids."""

    host: UInt8Array
    slots: Int32Array
    kv: PagedKV
    block_ids: Int64Array
    store: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", self.slots.copy())
        object.__setattr__(self, "block_ids", self.block_ids.copy())

    def check(self, memory: str, groups: range | None, num_events: int) -> range:
        """The groups to copy; raises what `check_copy` does."""
        return check_copy(
            self.host,
            self.slots,
            self.kv,
            self.block_ids,
            memory=memory,
            into_pool=self.store,
            groups=groups,
            num_events=num_events,
        )

    def spans(self, group: int) -> list[SpanCopy]:
        """What is to be copied of a group, in addresses."""
        origin = self.host.ctypes.data
        slots = origin + self.slots.astype(np.int64) * PAGE_NBYTES
        return [
            SpanCopy(self.store, self.kv.segments[first:end], slots, self.block_ids[id_row], origin, self.kv.quantized)
            for id_row, first, end in self.kv.groups[group]
        ]
