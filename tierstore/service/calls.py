"""The calls that carry no blocks: each takes a session and a request, and returns a response. Called by the dispatcher.

A thin layer: it turns each request into a verb of the store, and the verb's result into a message.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from tierstore.errors import ConfigError, VersionError
from tierstore.service import convert
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.transfer.awaiting import answered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tierstore.handle import NamespaceHandle
    from tierstore.keys import Namespace
    from tierstore.service.quotas import Quotas
    from tierstore.service.sessions import Session, Sessions
    from tierstore.service.workers import Workers
    from tierstore.store import Store
    from tierstore.transfer.future import Transfer
    from tierstore.types import UInt8Array

__all__ = ["Calls"]


class Calls:
    """See the module.

    Args:
        store: The store that answers.
        sessions: What clients hold.
        disk_workers: Threads for verbs that wait for a disk, so that a hanging disk blocks no other verbs.
        quotas: Told of each opened namespace.
    """

    def __init__(self, store: Store, sessions: Sessions, disk_workers: Workers, quotas: Quotas) -> None:
        self._store = store
        self._sessions = sessions
        self._disk_workers = disk_workers
        self._quotas = quotas
        self._known: dict[bytes, NamespaceHandle] = {}

    @property
    def by_name(self) -> Mapping[str, Callable[..., Awaitable[object]]]:
        """Every call of this room by its name in the protocol."""
        return {
            "OpenNamespace": self.open_namespace,
            "Lookup": self.lookup,
            "Prefetch": self.prefetch,
            "WatchPrefetch": self.watch_prefetch,
            "CancelPrefetch": self.cancel_prefetch,
            "Hint": self.hint,
            "PlanLoad": self.plan_load,
            "ReportPrefill": self.report_prefill,
            "Delete": self.delete,
            "Clear": self.clear,
            "Flush": self.flush,
            "Stats": self.stats,
        }

    async def open_namespace(self, session: Session, request: pb.OpenNamespaceRequest) -> pb.OpenNamespaceResponse:
        """Checks the tenant before it compares anything else."""
        session.namespaces.check_room()
        asked = request.namespace.tenant if request.namespace.HasField("tenant") else None
        namespace = convert.to_namespace(request.namespace, session.principal.tenant(asked))
        expected = {b"", namespace.fingerprint, replace(namespace, tenant=asked).fingerprint}
        if request.fingerprint not in expected:
            raise VersionError(self._difference(namespace, request.fingerprint))
        handle = self._known.get(namespace.fingerprint)
        if handle is None:
            handle = await self._disk_workers.start(lambda: self._store.namespace(namespace))
            self._known[namespace.fingerprint] = handle
        self._quotas.opened(session.principal, handle)
        number = session.namespaces.keep(handle)
        return pb.OpenNamespaceResponse(
            namespace_handle=number,
            fingerprint=namespace.fingerprint,
            block_nbytes=namespace.stored_layout.block_nbytes,
        )

    def _difference(self, namespace: Namespace, fingerprint: bytes) -> str:
        known = self._known.get(fingerprint)
        if known is None or known.namespace.tenant != namespace.tenant:
            return (
                f"fingerprint {fingerprint.hex()[:12]} is not that of these fields, which is "
                f"{namespace.fingerprint.hex()[:12]}; client and server may be of different versions"
            )
        ours = namespace.as_fields() | namespace.layout.as_fields()
        theirs = known.namespace.as_fields() | known.namespace.layout.as_fields()
        differing = [name for name in sorted({*ours, *theirs} - {"layout"}) if ours.get(name) != theirs.get(name)]
        texts = [f"{name} is {ours.get(name)!r}, there {theirs.get(name)!r}" for name in differing]
        return f"the namespace differs from {fingerprint.hex()[:12]}: {'; '.join(texts)}"

    async def lookup(self, session: Session, request: pb.LookupRequest) -> pb.LookupResponse:
        """Answered from memory."""
        handle, hashes = _target(session, request.scope, request.hashes)
        places = convert.from_places(handle.places(hashes)) if request.with_places else b""
        return pb.LookupResponse(leading=handle.lookup(hashes), places=places)

    async def prefetch(self, session: Session, request: pb.PrefetchRequest) -> pb.PrefetchResponse:
        """Begun, and kept until it is watched, cancelled or the session ends."""
        if request.target not in (pb.TIER_UNSPECIFIED, pb.TIER_HOST):
            raise ConfigError("a prefetch goes to host memory; leave target out, or set TIER_HOST")
        handle, hashes = _target(session, request.scope, request.hashes)
        session.prefetches.check_room()
        seconds, priority = convert.to_seconds(request.deadline_seconds), session.principal.priority(request.priority)
        transfer = handle.prefetch(hashes, deadline_seconds=seconds, priority=priority)
        return pb.PrefetchResponse(prefetch_id=session.prefetches.keep(transfer))

    async def watch_prefetch(self, session: Session, request: pb.WatchPrefetchRequest) -> pb.WatchPrefetchResponse:
        """Answers when the prefetch ends. A client that stops watching does not cancel the prefetch."""
        transfer = session.prefetches.find(request.prefetch_id)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()

        def end(_transfer: Transfer) -> None:
            loop.call_soon_threadsafe(ended.set)

        transfer.add_done_callback(end)
        await ended.wait()
        session.prefetches.take(request.prefetch_id)
        return pb.WatchPrefetchResponse(result=convert.from_result(transfer.result(0)))

    async def cancel_prefetch(self, session: Session, request: pb.CancelPrefetchRequest) -> pb.CancelPrefetchResponse:
        """Its watcher is told how it ended."""
        transfer = session.prefetches.take(request.prefetch_id)
        if transfer is not None:
            transfer.cancel()
        return pb.CancelPrefetchResponse()

    async def hint(self, session: Session, request: pb.HintRequest) -> pb.HintResponse:
        """Taken in at once."""
        handle = session.namespaces.find(request.scope.namespace_handle)
        added = [(waiting.rank, convert.to_hashes(waiting.hashes)) for waiting in request.added]
        handle.hint(added, list(request.removed), session_id=self._sessions.queue(session, request.queue))
        return pb.HintResponse()

    async def plan_load(self, session: Session, request: pb.PlanLoadRequest) -> pb.PlanLoadResponse:
        """Answered from memory."""
        handle, hashes = _target(session, request.scope, request.hashes)
        advice = handle.plan_load(
            hashes,
            computed_tokens=request.computed_tokens,
            deadline_seconds=convert.to_seconds(request.deadline_seconds),
            from_tail=request.from_tail,
        )
        return convert.from_advice(advice)

    async def report_prefill(self, session: Session, request: pb.ReportPrefillRequest) -> pb.ReportPrefillResponse:
        """Taken in at once."""
        handle = session.namespaces.find(request.scope.namespace_handle)
        handle.report_prefill(
            prefix_tokens=request.prefix_tokens, num_tokens=request.num_tokens, seconds=request.seconds
        )
        return pb.ReportPrefillResponse()

    async def delete(self, session: Session, request: pb.DeleteRequest) -> pb.DeleteResponse:
        """Durable once answered."""
        session.principal.check_admin("Delete")
        handle, hashes = _target(session, request.scope, request.hashes)
        return pb.DeleteResponse(result=convert.from_result(await answered(handle.delete(hashes))))

    async def clear(self, session: Session, request: pb.ClearRequest) -> pb.ClearResponse:
        """Durable once answered."""
        session.principal.check_admin("Clear")
        handle = session.namespaces.find(request.scope.namespace_handle)
        await self._disk_workers.start(handle.clear)
        return pb.ClearResponse()

    async def flush(self, session: Session, _request: pb.FlushRequest) -> pb.FlushResponse:
        """Of the whole store."""
        session.principal.check_admin("Flush")
        return pb.FlushResponse(result=convert.from_result(await answered(self._store.flush())))

    async def stats(self, session: Session, _request: pb.StatsRequest) -> pb.StatsResponse:
        """Of the whole store."""
        session.principal.check_admin("Stats")
        metrics, health = self._store.metrics(), self._store.health()
        return pb.StatsResponse(metrics=metrics, tiers=convert.from_health(health))


def _target(session: Session, scope: pb.Scope, packed: bytes) -> tuple[NamespaceHandle, UInt8Array]:
    """The handle and the hashes that a request names."""
    return session.namespaces.find(scope.namespace_handle), convert.to_hashes(packed)
