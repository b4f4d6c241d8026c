"""The seam between the store and the device that computes.

Three implementations: `tierstore.device.cpu` (the reference), `tierstore.device.cuda` and the simulated
device of `tierstore.testing`. Every call enqueues and returns; nothing here waits for a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from tierstore.types import Int32Array, Int64Array, UInt8Array

__all__ = ["Device", "Event", "Pages", "Stream"]

Pages: TypeAlias = Sequence["UInt8Array"]
"""An engine's cache as the store sees it: one uint8[num_blocks, page_nbytes] view a page, rows contiguous
(``strides[1] == 1``), rows of one page any fixed distance apart. A block's bytes are its rows of all
pages, one after another. A caller's plain buffer uint8[n, block_nbytes] is the case of a single page."""


@runtime_checkable
class Event(Protocol):
    """A point in a stream's order."""

    def done(self) -> bool:
        """Whether everything enqueued before the event has ended."""

    def wait(self, timeout: float | None = None) -> bool:
        """Block the calling thread until done, or until `timeout` seconds pass; returns `done()`."""


@runtime_checkable
class Stream(Protocol):
    """Work that runs in the order in which it was enqueued, beside other streams."""

    def record(self) -> Event:
        """Mark this point of the stream."""

    def wait(self, event: Event) -> None:
        """Hold what is enqueued from now on until `event` is done. Does not block the caller."""

    def call(self, task: Callable[[], None]) -> None:
        """Run `task` on the stream's thread once everything enqueued before has ended."""

    def close(self) -> None:
        """Finish what is enqueued and end the stream. Blocks."""


@runtime_checkable
class Device(Protocol):
    """A place whose pages the store copies from and to."""

    @property
    def name(self) -> str:
        """``"cpu"``, ``"cuda:0"`` and so on."""

    def new_stream(self, name: str) -> Stream:
        """A stream of its own, with one thread."""

    def pin(self, buffer: UInt8Array) -> Callable[[], None]:
        """Make host memory fast for this device; returns what undoes it. A no-op on the CPU."""

    def pages(self, buffers: object, block_nbytes: int) -> Pages:
        """View a caller's buffers as pages. Raises LayoutError naming shape, dtype and what is expected.

        `buffers` is one C-contiguous array or tensor on this device whose first axis counts blocks and
        whose rows have `block_nbytes` bytes, or a sequence of such, one a page, with rows summing to it.
        """

    def load(
        self, host: UInt8Array, slots: Int32Array, pages: Pages, block_ids: Int64Array, stream: Stream
    ) -> list[Event]:
        """Enqueue host → device: slot i (a page number of `host`) into block `block_ids[i]` of every page.

        Args:
            host: uint8[pool_nbytes], the pool.
            slots: int32[n]; offset of each block in the pool, in 4 KiB pages.
            pages: The destination.
            block_ids: int64[n]; rows of the pages.
            stream: Where to enqueue.

        Returns:
            One event a page, recorded after that page's rows of all blocks: an engine may start with
            page 0 while page 1 still moves.
        """

    def store(self, host: UInt8Array, slots: Int32Array, pages: Pages, block_ids: Int64Array, stream: Stream) -> None:
        """Enqueue device → host, the mirror of `load`."""
