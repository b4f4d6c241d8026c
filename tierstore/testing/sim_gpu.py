"""A GPU without a GPU: streams are queues over host memory, and a seeded dice says which one goes on.

For tests of whatever stands on `tierstore.device.cuda_runtime`. It does nothing before somebody waits for it, and
then whatever its streams allow, in any order: a wait that is missing shows as wrong bytes, memory that is given back
too early as a failed assertion. It also refuses what a GPU refuses: misaligned kernels, copies across registrations,
calls from a thread that has not entered.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tierstore.device.checksums import CHECKSUM_TABLE
from tierstore.device.copy_table import COPY_TABLE
from tierstore.device.cuda_runtime import GpuFacts
from tierstore.device.cuda_stream import AdoptedEvent
from tierstore.device.quantization import QUANTIZE_TABLE
from tierstore.errors import DeviceError, DeviceMemoryError
from tierstore.testing.sim_checksums import SimChecksums
from tierstore.testing.sim_quantization import SimQuantization

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.device.base import Event
    from tierstore.device.cuda_runtime import Mark
    from tierstore.types import Int64Array, UInt8Array

__all__ = ["SimGpu", "SimMark"]

_PARAMETERS_NBYTES_MAX = 4096
_FACTS = GpuFacts(0, "simulated", 13000, 132, has_batches=True, reaches_host=True, memory="cpu")

_Range: TypeAlias = tuple[int, int]


@dataclass(eq=False)
class SimMark:
    """A recorded event."""

    handle: int
    reached: bool = False

    def done(self) -> bool:
        """Whether its stream has come here."""
        return self.reached


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """What a stream does next: run `task` once `gate` is done; it touches these ranges of memory."""

    task: Callable[[], None]
    gate: SimMark | AdoptedEvent | None = None
    ranges: tuple[_Range, ...] = ()


@dataclass(eq=False)
class SimGpu:
    """Keeps `tierstore.device.cuda_runtime.CudaRuntime`.

    Attributes:
        seed: Of the dice.
        memory_nbytes: What `allocate` can give.
        memlock_nbytes: What `register` can pin.
        fail_at: Refuse the call of this number, counted from 0, of those that enqueue; None refuses none.
        calls: What was called, in order: the verb and its numbers.
        present: What the calling thread's own work has come to.
    """

    seed: int = 0
    memory_nbytes: int = 1 << 30
    memlock_nbytes: int = 1 << 40
    fail_at: int | None = None
    facts: GpuFacts = _FACTS
    calls: list[tuple[str, ...]] = field(default_factory=list)
    present: Event | None = None

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        self._wake = threading.Condition(threading.RLock())
        self._streams: dict[int, deque[_Step]] = {}
        self._marks = 0
        self._allocated: dict[int, UInt8Array] = {}
        self._registered: dict[int, int] = {}
        self._entered = threading.local()

    @property
    def num_held(self) -> int:
        """Allocations, registrations and streams that have not been given back."""
        return len(self._allocated) + len(self._registered) + len(self._streams)

    def enter(self) -> None:
        """Let the calling thread speak to it."""
        self._entered.here = True

    def now(self) -> Event | None:
        """What the test says."""
        return self.present

    def new_stream(self, *, high_priority: bool) -> int:
        """A queue."""
        with self._wake:
            handle = 1 + max(self._streams, default=0)
            self._streams[handle] = deque()
            self.calls.append(("new_stream", str(handle), "high" if high_priority else "low"))
            return handle

    def drop_stream(self, stream: int) -> None:
        """Go on until the stream is empty."""
        last = SimMark(-1)
        with self._wake:
            self._streams[stream].append(_Step(lambda: setattr(last, "reached", True)))
        self.finish(last)
        with self._wake:
            del self._streams[stream]

    def record(self, stream: int) -> SimMark:
        """Mark this point of the stream."""
        with self._wake:
            self._marks += 1
            mark = SimMark(self._marks)
            self._enqueue(stream, _Step(lambda: setattr(mark, "reached", True)), "record", mark.handle)
            return mark

    def hold(self, stream: int, mark: Mark) -> None:
        """Let the stream go on only once the mark is reached."""
        assert isinstance(mark, SimMark | AdoptedEvent), f"{mark} cannot be asked whether it is reached"
        self._enqueue(stream, _Step(lambda: None, gate=mark), "hold", mark.handle)

    def finish(self, mark: Mark) -> None:
        """Take steps, of any stream that can take one, until the mark is reached."""
        assert isinstance(mark, SimMark), f"{mark} was not recorded here"
        with self._wake:
            while not mark.reached:
                ready = [steps for steps in self._streams.values() if steps and _is_open(steps[0])]
                if ready:
                    self._dice.choice(ready).popleft().task()
                else:
                    self._wake.wait()
            self._wake.notify_all()

    def poke(self) -> None:
        """Look again at events that are not its own."""
        with self._wake:
            self._wake.notify_all()

    def copy(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        """One piece."""
        self._check_registrations([(dst, nbytes), (src, nbytes)])
        self._enqueue(stream, _move([(dst, src, nbytes)]), "copy", nbytes)

    def copy_batch(self, dsts: Int64Array, srcs: Int64Array, nbytes: Int64Array, stream: int) -> None:
        """Many pieces, in an order of the dice."""
        assert self.facts.has_batches, "this driver knows no batches"
        assert self.facts.reaches_host, "a batch names host memory, which has other addresses for this GPU"
        pieces = list(zip(dsts.tolist(), srcs.tolist(), nbytes.tolist(), strict=True))
        for dst, src, length in pieces:
            self._check_registrations([(dst, length), (src, length)])
            assert self._is_reachable(dst, length) or self._is_reachable(src, length), "a batch from pageable memory"
        self._dice.shuffle(pieces)
        self._enqueue(stream, _move(pieces), "copy_batch", len(pieces))

    def launch(self, kernel: str, grid: int, parameter: NDArray[np.void], stream: int) -> None:
        """What the kernel of that name would do, by its table."""
        if parameter.dtype == CHECKSUM_TABLE:
            self._launch_checksums(grid, parameter.copy(), stream)
            return
        if parameter.dtype == QUANTIZE_TABLE:
            self._launch_quantize(kernel, grid, parameter.copy(), stream)
            return
        assert parameter.dtype == COPY_TABLE and parameter.nbytes <= _PARAMETERS_NBYTES_MAX, parameter.dtype
        assert grid >= 1, f"{kernel} in a grid of {grid}"
        direction, width = kernel.split("_")
        pieces = list(_rows_of(parameter, into_slots=direction == "gather"))
        for dst, src, nbytes in pieces:
            slot = dst if direction == "gather" else src
            assert not (dst | src | nbytes) % int(width), f"{kernel} at {dst:#x}, {src:#x}, {nbytes} bytes"
            assert self._is_reachable(slot, nbytes), f"{kernel} reaches into pageable memory at {slot:#x}"
        self._enqueue(stream, _move(pieces), "launch", kernel, grid)

    def _launch_quantize(self, kernel: str, grid: int, parameter: NDArray[np.void], stream: int) -> None:
        work = SimQuantization(kernel, parameter)
        assert grid >= 1 and parameter.nbytes <= _PARAMETERS_NBYTES_MAX, f"{kernel} in a grid of {grid}"
        for address, nbytes in work.slots:
            assert self._is_reachable(address, nbytes), f"{kernel} reaches into pageable memory at {address:#x}"
        self._enqueue(stream, _Step(work.run, ranges=(*work.slots, *work.pages)), "launch", kernel, grid)

    def _launch_checksums(self, grid: int, parameter: NDArray[np.void], stream: int) -> None:
        work = SimChecksums(parameter)
        assert grid >= 1 and parameter.nbytes <= _PARAMETERS_NBYTES_MAX, f"crc32c in a grid of {grid}"
        assert all(self._is_reachable(*touched) for touched in work.ranges), "crc32c of memory out of reach"
        self._enqueue(stream, _Step(work.run, ranges=work.ranges), "launch", "crc32c", grid)

    def allocate(self, nbytes: int) -> int:
        """Host memory that plays the GPU's; full of what no test expects."""
        with self._wake:
            taken = sum(memory.nbytes for memory in self._allocated.values())
            if taken + nbytes > self.memory_nbytes:
                raise DeviceMemoryError(
                    f"{nbytes} bytes of GPU memory are asked for, {self.memory_nbytes - taken} free"
                )
            memory = np.full(nbytes, 0xDB, np.uint8)
            self._allocated[memory.ctypes.data] = memory
            return memory.ctypes.data

    def free(self, address: int) -> None:
        """Nothing may touch it any more."""
        with self._wake:
            self._check_untouched(address, self._allocated.pop(address).nbytes)

    def register(self, address: int, nbytes: int) -> None:
        """Pin, where the limit allows."""
        with self._wake:
            if sum(self._registered.values()) + nbytes > self.memlock_nbytes:
                raise DeviceError(f"{nbytes} bytes cannot be pinned: the limit of locked memory is reached")
            self._registered[address] = nbytes

    def unregister(self, address: int) -> None:
        """Nothing may touch it any more."""
        with self._wake:
            self._check_untouched(address, self._registered.pop(address))

    def _enqueue(self, stream: int, step: _Step, verb: str, *numbers: object) -> None:
        assert getattr(self._entered, "here", False), f"{verb} from a thread that has not entered"
        with self._wake:
            self.calls.append((verb, str(stream), *map(str, numbers)))
            if self.fail_at is not None:
                self.fail_at -= 1
                if self.fail_at == -1:
                    raise DeviceError(f"{verb} was refused: this simulated GPU fails once, here")
            self._streams[stream].append(step)
            self._wake.notify_all()

    def _is_reachable(self, address: int, nbytes: int) -> bool:
        own = ((start, memory.nbytes) for start, memory in self._allocated.items())
        return any(
            start <= address and address + nbytes <= start + length
            for start, length in (*own, *self._registered.items())
        ) or self._is_covered(address, nbytes)

    def _is_covered(self, address: int, nbytes: int) -> bool:
        """Whether registrations that follow one another cover it: a kernel may cross from one into the next."""
        for start, length in sorted(self._registered.items()):
            if start <= address < start + length:
                nbytes -= start + length - address
                address = start + length
        return nbytes <= 0

    def _check_registrations(self, ranges: list[_Range]) -> None:
        """A copy must lie in one registration or in none, as the driver asks."""
        for address, nbytes in ranges:
            for start, length in self._registered.items():
                outside = address + nbytes <= start or start + length <= address
                inside = start <= address and address + nbytes <= start + length
                assert inside or outside, f"a copy of {nbytes} bytes crosses the registration at {start:#x}"

    def _check_untouched(self, address: int, nbytes: int) -> None:
        for steps in self._streams.values():
            for step in steps:
                for start, length in step.ranges:
                    assert start + length <= address or address + nbytes <= start, "memory given back under a copy"


def _is_open(step: _Step) -> bool:
    return step.gate is None or step.gate.done()


def _rows_of(table: NDArray[np.void], *, into_slots: bool) -> Iterator[tuple[int, int, int]]:
    """(destination, source, bytes) of every row that a copy table names."""
    row = table[0]
    for slot, block_id in row["blocks"][: row["num_blocks"]].tolist():
        for base, block_stride, num_rows, row_stride, nbytes, offset in row["segments"][: row["num_segments"]].tolist():
            for index in range(num_rows):
                page = base + block_id * block_stride + index * row_stride
                place = slot + offset + index * nbytes
                yield (place, page, nbytes) if into_slots else (page, place, nbytes)


def _move(pieces: list[tuple[int, int, int]]) -> _Step:
    def run() -> None:
        for dst, src, nbytes in pieces:
            ctypes.memmove(dst, src, nbytes)

    ranges = [(address, nbytes) for dst, src, nbytes in pieces for address in (dst, src)]
    return _Step(run, ranges=tuple(ranges))
