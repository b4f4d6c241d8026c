"""Transfers awaited on the caller's loop. Called by the doors for asyncio; makes no thread and no loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierstore.transfer.future import Transfer, TransferResult

__all__ = ["settled"]


async def settled(transfer: Transfer) -> TransferResult:
    """Await a transfer; cancelled, withdraw it and wait until no copy touches its memory, then be cancelled."""
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
