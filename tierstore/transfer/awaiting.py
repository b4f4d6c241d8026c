"""Awaits transfers on the caller's loop. Called by the asyncio interfaces; makes no thread and no loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierstore.transfer.future import Transfer, TransferResult
    from tierstore.transfer.lending import Grant, Lease

__all__ = ["answered", "granted", "settled"]


async def settled(transfer: Transfer) -> TransferResult:
    """Await a transfer. If cancelled, cancel the transfer too, and return once no copy touches its memory.

    A transfer that has ended still costs one turn of the loop, so that a caller in a loop starves no other task.
    """
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


async def answered(transfer: Transfer) -> TransferResult:
    """The same for a call of a service, which is a task of its own: a transfer that has ended costs no turn."""
    return transfer.result(0) if transfer.done() else await settled(transfer)


async def granted(lease: Lease) -> Grant:
    """Await the slots of a lease for a call of a service. If all blocks are in host memory, this costs no turn."""
    return lease.granted.result(0) if lease.granted.done() else await asyncio.wrap_future(lease.granted)
