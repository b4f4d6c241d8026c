"""The client of a store's service: `Client`, and `AsyncClient` for asyncio. Needs the extra `grpc`, and no torch."""

from __future__ import annotations

from tierstore.service.client.aio import AsyncClient, AsyncClientHandle
from tierstore.service.client.client import Client
from tierstore.service.client.handle import ClientHandle

__all__ = ["AsyncClient", "AsyncClientHandle", "Client", "ClientHandle"]
