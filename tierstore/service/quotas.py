"""Usage of each credential, checked against its quota before a call takes more. Runs on the server's loop only.

The bytes of a tenant's blocks in each tier are counted at most once a second, and later puts are added. Gets and
evictions of others change the true figure meanwhile, so a quota is exact to about a second's worth of traffic.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tierstore.errors import LimitError
from tierstore.settings import format_size

if TYPE_CHECKING:
    from tierstore.handle import NamespaceHandle
    from tierstore.service.security import Principal
    from tierstore.service.workers import Workers

__all__ = ["Quotas"]

_COUNT_SECONDS = 1.0


@dataclass(slots=True)
class _Account:
    """Of one credential."""

    num_calls: int = 0
    inflight_nbytes: int = 0
    handles: dict[bytes, NamespaceHandle] = field(default_factory=dict)
    counted_at: float = float("-inf")
    host_nbytes: int = 0
    ssd_nbytes: int = 0


class Quotas:
    """See the module.

    Args:
        workers: What counts.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._accounts: dict[str, _Account] = {}

    def opened(self, principal: Principal, handle: NamespaceHandle) -> None:
        """A namespace of the credential, whose blocks count from now on."""
        if principal.tenants is not None:
            self._account(principal).handles[handle.namespace.fingerprint] = handle

    @contextmanager
    def call(self, principal: Principal) -> Iterator[None]:
        """Count one more call within this context. Raises LimitError if it exceeds the quota."""
        account, most = self._account(principal), principal.quota.requests
        if most is not None and account.num_calls >= most:
            raise LimitError(f"credential {principal.name!r} has {most} calls under way, which is its quota")
        account.num_calls += 1
        try:
            yield
        finally:
            account.num_calls -= 1

    @contextmanager
    def inflight(self, principal: Principal, nbytes: int) -> Iterator[None]:
        """Count `nbytes` more in flight within this context. Raises LimitError if they exceed the quota."""
        account, most = self._account(principal), principal.quota.inflight_nbytes
        if most is not None and account.inflight_nbytes + nbytes > most:
            raise LimitError(f"credential {principal.name!r} would have more than {most} bytes under way, its quota")
        account.inflight_nbytes += nbytes
        try:
            yield
        finally:
            account.inflight_nbytes -= nbytes

    async def take(self, principal: Principal, nbytes: int) -> None:
        """Count `nbytes` of blocks that are about to be put. Raises LimitError if they exceed the quota."""
        quota = principal.quota
        if quota.host_nbytes is None and quota.ssd_nbytes is None:
            return
        account = self._account(principal)
        if time.monotonic() - account.counted_at > _COUNT_SECONDS:
            handles = list(account.handles.values())
            account.counted_at = time.monotonic()
            account.host_nbytes, account.ssd_nbytes = await self._workers.run(lambda: _count(handles))
        for tier, held, most in (
            ("host memory", account.host_nbytes, quota.host_nbytes),
            ("SSD", account.ssd_nbytes, quota.ssd_nbytes),
        ):
            if most is not None and held + nbytes > most:
                raise LimitError(
                    f"credential {principal.name!r} would hold more than {format_size(most)} of {tier}, its quota"
                )
        account.host_nbytes += nbytes
        account.ssd_nbytes += nbytes

    def _account(self, principal: Principal) -> _Account:
        return self._accounts.setdefault(principal.name, _Account())


def _count(handles: list[NamespaceHandle]) -> tuple[int, int]:
    """Bytes in host memory and on SSD."""
    host_nbytes = ssd_nbytes = 0
    for handle in handles:
        in_host, on_ssd = handle.held()
        block_nbytes = handle.namespace.stored_layout.block_nbytes
        host_nbytes, ssd_nbytes = host_nbytes + in_host * block_nbytes, ssd_nbytes + on_ssd * block_nbytes
    return host_nbytes, ssd_nbytes
