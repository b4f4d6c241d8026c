"""Converts protocol messages to the store's values and back. Called by server and client; does nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.advice import LoadAdvice, Place
from tierstore.errors import IdentityError
from tierstore.health import Service, TierHealth
from tierstore.keys import Namespace
from tierstore.layout import KVLayout, MemoryOrder, PageKind, PageSpec
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.transfer.future import TransferResult
from tierstore.types import HASH_NBYTES, Outcome, Presence, TierName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tierstore.types import UInt8Array

__all__ = [
    "from_advice",
    "from_health",
    "from_namespace",
    "from_places",
    "from_result",
    "to_advice",
    "to_hashes",
    "to_health",
    "to_namespace",
    "to_places",
    "to_presence",
    "to_result",
    "to_seconds",
]

_KINDS = {
    PageKind.FULL: pb.PAGE_KIND_FULL,
    PageKind.SLIDING: pb.PAGE_KIND_SLIDING,
    PageKind.MLA: pb.PAGE_KIND_MLA,
    PageKind.STATE: pb.PAGE_KIND_STATE,
}
_ORDERS = {MemoryOrder.NHD: pb.MEMORY_ORDER_NHD, MemoryOrder.HND: pb.MEMORY_ORDER_HND}
_TIERS = {TierName.HOST: pb.TIER_HOST, TierName.SSD: pb.TIER_SSD}
_SERVICES = {
    Service.SERVING: pb.TIER_SERVICE_SERVING,
    Service.WRITES_OFF: pb.TIER_SERVICE_WRITES_OFF,
    Service.READS_OFF: pb.TIER_SERVICE_READS_OFF,
}
_KIND_OF = {number: kind for kind, number in _KINDS.items()}
_ORDER_OF = {number: order for order, number in _ORDERS.items()}
_TIER_OF = {number: tier for tier, number in _TIERS.items()}
_SERVICE_OF = {number: service for service, number in _SERVICES.items()}

_FIRST = 1
"""Enumerations on the wire begin with a number that says nothing; the store's own begin at 0."""

_PRESENCE_OF = np.array([Presence.MISS, Presence.HIT, Presence.HIT, Presence.PENDING], np.uint8)
"""By `Place`."""


def to_hashes(packed: bytes) -> UInt8Array:
    """uint8[n, 32], read-only; IdentityError where the bytes are no whole hashes."""
    if len(packed) % HASH_NBYTES:
        raise IdentityError(f"hashes take {len(packed)} bytes; pack {HASH_NBYTES} bytes each, one after another")
    return np.frombuffer(packed, np.uint8).reshape(-1, HASH_NBYTES)


def to_seconds(seconds: float) -> float | None:
    """A deadline; None where none is set."""
    return seconds if seconds != 0 else None


def from_namespace(namespace: Namespace) -> pb.Namespace:
    """An identity as a message."""
    layout = namespace.layout
    pages = [
        pb.Page(name=p.name, kind=_KINDS[p.kind], kv_heads=p.kv_heads, head_size=p.head_size, planes=p.planes)
        for p in layout.pages
    ]
    return pb.Namespace(
        model=namespace.model,
        layout=pb.Layout(
            pages=pages, block_tokens=layout.block_tokens, dtype=layout.dtype, order=_ORDERS[layout.order]
        ),
        revision=namespace.revision,
        engine_config=namespace.engine_config,
        quantization=namespace.quantization,
        tp_size=namespace.tp_size,
        pp_size=namespace.pp_size,
        shard_index=namespace.shard[0],
        shard_count=namespace.shard[1],
        tenant=namespace.tenant,
        stored_as=namespace.stored_as,
    )


def to_namespace(message: pb.Namespace, tenant: str | None) -> Namespace:
    """An identity, with a tenant that the server has already checked.

    Raises:
        IdentityError, LayoutError: The message describes no valid namespace.
    """
    kinds = [_KIND_OF.get(page.kind) for page in message.layout.pages]
    order = _ORDER_OF.get(message.layout.order)
    if None in kinds or order is None:
        raise IdentityError("a page has no kind, or the layout no order, that this server knows; see tierstore.proto")
    pages = tuple(
        PageSpec(page.name, kind, page.kv_heads, page.head_size, page.planes)
        for page, kind in zip(message.layout.pages, kinds, strict=True)
        if kind is not None
    )

    def given(name: str) -> bool:
        return message.HasField(name)

    return Namespace(
        model=message.model,
        layout=KVLayout(pages, message.layout.block_tokens, message.layout.dtype, order),
        revision=message.revision if given("revision") else None,
        engine_config=message.engine_config if given("engine_config") else None,
        quantization=message.quantization if given("quantization") else None,
        tp_size=message.tp_size if given("tp_size") else None,
        pp_size=message.pp_size if given("pp_size") else None,
        shard=(message.shard_index, message.shard_count or 1),
        tenant=tenant,
        stored_as=message.stored_as if given("stored_as") else None,
    )


def from_result(result: TransferResult) -> pb.Result:
    """How a verb ended, as a message."""
    return pb.Result(
        leading=result.leading,
        outcomes=(result.codes + np.uint8(_FIRST)).tobytes(),
        nbytes=result.nbytes,
        seconds=result.seconds,
    )


def to_result(message: pb.Result) -> TransferResult:
    """How a verb ended. An outcome that this side does not know counts as one that may succeed later."""
    codes = np.frombuffer(message.outcomes, np.uint8) - np.uint8(_FIRST)
    codes[codes > max(Outcome)] = Outcome.REJECTED
    return TransferResult(message.leading, codes, message.nbytes, message.seconds)


def from_places(places: UInt8Array) -> bytes:
    """uint8[n] of `Place`, packed."""
    return (places + np.uint8(_FIRST)).tobytes()


def to_places(packed: bytes) -> UInt8Array:
    """uint8[n] of `Place`; a value that this side does not know becomes NOWHERE."""
    places = np.frombuffer(packed, np.uint8) - np.uint8(_FIRST)
    places[places > max(Place)] = Place.NOWHERE
    return places


def to_presence(places: UInt8Array) -> list[Presence]:
    """What is known of each block, by its place."""
    return [Presence(value) for value in _PRESENCE_OF[places].tolist()]


def from_advice(advice: LoadAdvice) -> pb.PlanLoadResponse:
    """What is worth loading, as a message."""
    return pb.PlanLoadResponse(
        leading=advice.leading,
        first=advice.first,
        stop=advice.stop,
        load_seconds=advice.load_seconds,
        recompute_seconds=advice.recompute_seconds,
        in_host=advice.in_host,
    )


def to_advice(message: pb.PlanLoadResponse) -> LoadAdvice:
    """What is worth loading."""
    recompute = message.recompute_seconds if message.HasField("recompute_seconds") else None
    return LoadAdvice(
        message.leading, message.first, message.stop, message.load_seconds, recompute, in_host=message.in_host
    )


def from_health(health: Mapping[str, TierHealth]) -> list[pb.TierHealth]:
    """How each tier is, as messages."""
    return [
        pb.TierHealth(tier=_TIERS[TierName(name)], service=_SERVICES[tier.service], since=tier.since, why=tier.why)
        for name, tier in health.items()
    ]


def to_health(messages: list[pb.TierHealth]) -> dict[str, TierHealth]:
    """How each tier is, by its name. A state that this side does not know becomes READS_OFF."""
    return {
        str(_TIER_OF[message.tier]): TierHealth(
            _SERVICE_OF.get(message.service, Service.READS_OFF), message.since, message.why
        )
        for message in messages
        if message.tier in _TIER_OF
    }
