"""grpc.health.v1: whether the server takes calls, and the health of each tier. Needs no credential.

The services ``""`` and the store's own name say whether calls are taken. ``"host"`` and ``"ssd"`` say whether blocks of
that tier can be read, and ``"ssd.write"`` whether SSD is written. A degraded tier is not serving in one of them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc

from tierstore.health import Service
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service._pb.standard import health_pb2, health_pb2_grpc
from tierstore.service.wire import SERVICE_NAME
from tierstore.types import TierName

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import TypeAlias

    from tierstore.health import TierHealth
    from tierstore.service.sessions import Sessions
    from tierstore.service.traffic import Traffic

    Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"

__all__ = ["Health"]

_LOOK_SECONDS = 1.0
"""How often the tiers are looked at, for those who watch: they change on threads of the store's own."""

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # untyped
    """See the module.

    Args:
        tiers: How each tier is now.
        traffic: Whether calls are taken.
        sessions: Told when a tier changes.
    """

    def __init__(self, tiers: Callable[[], dict[str, TierHealth]], traffic: Traffic, sessions: Sessions) -> None:
        self._tiers = tiers
        self._traffic = traffic
        self._sessions = sessions
        self._changed = asyncio.Condition()

    def status(self, service: str) -> int:
        """How a service is now."""
        if service in ("", SERVICE_NAME):
            return int(_NOT_SERVING if self._traffic.draining else _SERVING)
        name, _, way = service.partition(".")
        tier = self._tiers().get(name)
        if tier is None or way not in ("", "write") or (way and name != TierName.SSD):
            return int(_UNKNOWN)
        serving = tier.service is Service.SERVING or (not way and tier.service is Service.WRITES_OFF)
        return int(_SERVING if serving else _NOT_SERVING)

    async def Check(  # noqa: N802 - the protocol's name
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """How a service is now; NOT_FOUND where there is none of that name."""
        status = self.status(request.service)
        if status == _UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "services are '', 'host', 'ssd' and 'ssd.write'")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(  # noqa: N802 - the protocol's name
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """How a service is, now and whenever that changes."""
        last: int | None = None
        while True:
            status = self.status(request.service)
            if status != last:
                last = status
                yield health_pb2.HealthCheckResponse(status=status)
            async with self._changed:
                await self._changed.wait()

    async def look(self) -> None:
        """Check the tiers periodically and notify watchers, until cancelled."""
        last = {name: tier.service for name, tier in self._tiers().items()}
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            tiers = self._tiers()
            now = {name: tier.service for name, tier in tiers.items()}
            for name in (name for name in now if now[name] != last.get(name)):
                text = f"{name} is {now[name]}{': ' if tiers[name].why else ''}{tiers[name].why}"
                for session in self._sessions:
                    session.tell(pb.Notice(kind=pb.Notice.KIND_TIER, text=text))
            if now != last:
                await self.tell()
            last = now

    async def tell(self) -> None:
        """Wake who watches."""
        async with self._changed:
            self._changed.notify_all()
