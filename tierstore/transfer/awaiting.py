"""Transfers awaited on the caller's loop. Called by the doors for asyncio; makes no thread and no loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierstore.transfer.future import Transfer, TransferResult
    from tierstore.transfer.lending import Grant, Lease

__all__ = ["granted", "settled"]


async def settled(transfer: Transfer) -> TransferResult:
    """Await a transfer; cancelled, withdraw it and wait until no copy touches its memory, then be cancelled.

    One that has ended costs no turn of the loop.
    """
    if transfer.done():
        return transfer.result(0)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def end(_transfer: Transfer) -> None:
        loop.call_soon_threadsafe(ended.set)

    transfer.add_done_callback(end)
    cancelled: asyncio.CancelledError | None = None
    while not ended.is_set():
        try:
            await ended.wait()
        except asyncio.CancelledError as error:  # it may come again while the copy still runs
            cancelled = error
            transfer.cancel()
    if cancelled is not None:
        raise cancelled
    return transfer.result(0)


async def granted(lease: Lease) -> Grant:
    """Await the slots of a lease; those that are there already, as those of blocks in host memory are, cost no turn."""
    return lease.granted.result(0) if lease.granted.done() else await asyncio.wrap_future(lease.granted)
