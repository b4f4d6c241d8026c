"""The interface between the CUDA device and a GPU driver: the few calls that the device makes.

Implemented by `tierstore.device.cuda`, the only module that uses cupy and torch.cuda, and by the recording runtime
of the tests, which has no GPU. Everything above this interface is plain Python: which copy waits for which, what is
launched, when memory is freed. Addresses and stream handles are plain integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tierstore.device.base import Event
    from tierstore.types import Int64Array

__all__ = ["THREADS", "CudaRuntime", "GpuFacts", "Mark", "Memory", "Moves", "Order"]

THREADS = 256
"""Threads of every block that is launched; the kernels are compiled for it."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """The properties of a GPU that the device needs.

    Attributes:
        index: Its number in this process.
        name: The product name.
        driver: CUDA version of the driver, as in 13000 for 13.0.
        processors: Its multiprocessors.
        has_batches: Whether the driver copies in batches (CUDA 12.8).
        reaches_host: Whether registered host memory has the same address for the GPU, so that kernels and batches can
            use it. False under WSL 2, where a batch that tries fails late and destroys the context.
        memory: The memory of its tensors, by torch's name: ``"cuda:0"``.
        numa_node: The nearest NUMA node; None if the machine has only one.
    """

    index: int
    name: str
    driver: int
    processors: int
    has_batches: bool
    reaches_host: bool
    memory: str
    numa_node: int | None = None


class Mark(Protocol):
    """A recorded event of a GPU. It exists as long as something refers to it."""

    @property
    def handle(self) -> int:
        """The event itself, for whoever speaks to the driver."""


class Order(Protocol):
    """Streams and events. Only `finish` blocks."""

    def enter(self) -> None:
        """Make the GPU the calling thread's."""

    def new_stream(self, *, high_priority: bool) -> int:
        """A stream that does not wait for the legacy default stream."""

    def drop_stream(self, stream: int) -> None:
        """End a stream, once what it holds has ended."""

    def record(self, stream: int) -> Mark:
        """Mark this point of the stream."""

    def hold(self, stream: int, mark: Mark) -> None:
        """Let the stream go on only once the mark is reached."""

    def finish(self, mark: Mark) -> None:
        """Block the calling thread, without spinning, until the mark is reached. Raises DeviceError."""


class Moves(Protocol):
    """Copies. All only enqueue, and read their source in the stream's order: never earlier."""

    def copy(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        """One contiguous piece; from or to pageable memory this blocks."""

    def copy_batch(self, dsts: Int64Array, srcs: Int64Array, nbytes: Int64Array, stream: int) -> None:
        """Many pieces by one call, in any order among themselves. Needs registered memory."""

    def launch(self, kernel: str, grid: int, parameter: NDArray[np.void], stream: int) -> None:
        """A kernel of ``kernels/`` with one parameter, copied by the call, in `grid` blocks of `THREADS`."""


class Memory(Protocol):
    """Memory of the GPU, and host memory that it can reach."""

    def allocate(self, nbytes: int) -> int:
        """GPU memory. Raises DeviceMemoryError."""

    def free(self, address: int) -> None:
        """Give it back."""

    def register(self, address: int, nbytes: int) -> None:
        """Pin host memory for every process and GPU that maps it. Blocks. Raises DeviceError."""

    def unregister(self, address: int) -> None:
        """Undo `register`."""


class CudaRuntime(Order, Moves, Memory, Protocol):
    """All of it, for one GPU.

    Attributes:
        facts: What it is.
    """

    facts: GpuFacts

    def now(self) -> Event | None:
        """The point that the calling thread's own work on the GPU has come to."""
