"""Every metric of the store: one table of names, kinds, meanings and labels.

Read through `tierstore.metrics`, which holds the values. Every label's values are declared here, so the series are
known from the start, none appears or vanishes, and nothing a client sends can make one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import TypeAlias

from tierstore.types import Outcome, TierName

__all__ = ["SECONDS_BOUNDS", "Kind", "Metric"]

Labels: TypeAlias = Mapping[str, tuple[str | int, ...]]

SECONDS_BOUNDS = tuple(base * 10.0**exponent for exponent in range(-5, 1) for base in (1.0, 2.0, 5.0))
"""Upper bounds of the histograms' buckets, 10 microseconds to 5 seconds; one more takes the rest."""

_LINK = (
    *("load", "store", "lease", "reserve", "pool-load", "pool-fill", "pool-return"),
    *("ssd-read", "ssd-direct", "ssd-write", "ssd-rewrite"),
)
_QUEUE = ("load", "store", "ssd-read", "ssd-write")
_VERB = ("get", "put", "prefetch")
_TIER = (TierName.DEVICE_POOL, TierName.HOST, TierName.SSD)
_WAY = ("read", "write")
_CALL = (
    *("OpenNamespace", "Lookup", "Put", "Get", "Prefetch", "WatchPrefetch", "CancelPrefetch", "Hint", "PlanLoad"),
    *("ReportPrefill", "Delete", "Clear", "Flush", "Stats"),
    *("AttachPool", "Reserve", "Commit", "Abandon", "Acquire", "Release"),
)
_NO_LABELS: Labels = MappingProxyType({})
_NOT_STORED = (
    "pool_full",
    "index_full",
    "not_admitted",
    "head_missing",
    "write_queue_full",
    "write_budget",
    "write_refused",
    "unwritten",
    "ssd_off",
)


class Kind(StrEnum):
    """How a metric behaves."""

    COUNTER = "counter"
    """Only ever grows."""
    GAUGE = "gauge"
    """What is so now."""
    HISTOGRAM = "histogram"
    """Durations in seconds, counted in buckets of `SECONDS_BOUNDS`."""


class Metric(Enum):
    """The table: kind, meaning, and the values of each label in the order in which callers give them.

    A name ends in its unit. Outside it is ``tierstore_<name>``, counters with ``_total`` behind.
    """

    __hash__ = object.__hash__  # members are singletons; the default hashes the name, in Python, at every count

    LOOKUP_BLOCKS = Kind.COUNTER, "Blocks asked for by lookups."
    LOOKUP_HIT_BLOCKS = Kind.COUNTER, "Blocks of lookups that were usable, up to the first hole."
    REQUEST_BLOCKS = (
        Kind.COUNTER,
        "Blocks of requests that ended, by outcome.",
        {"verb": _VERB, "outcome": tuple(Outcome)},
    )
    REQUEST_BYTES = Kind.COUNTER, "Bytes of blocks that ended OK.", {"verb": _VERB}
    REQUEST_SECONDS = Kind.HISTOGRAM, "Time from a request's first plan to its end.", {"verb": _VERB}
    LENT_SECONDS = (
        Kind.HISTOGRAM,
        "Time of a get or put whose caller copies by itself in slots that it is lent, until it gives them back.",
        {"verb": ("get", "put")},
    )
    OPEN_REQUESTS = Kind.GAUGE, "Requests that have not ended.", {"verb": _VERB}
    GET_TOKENS = Kind.COUNTER, "Tokens of the blocks that gets asked for."
    HIT_TOKENS = (
        Kind.COUNTER,
        "Tokens of the blocks of gets, by the tier that held them when they were asked for; each counts once.",
        {"tier": _TIER},
    )
    HIT_BLOCKS = (
        Kind.COUNTER,
        "Blocks of gets, by the tier that held them when they were asked for; each counts once.",
        {"tier": _TIER},
    )
    NOT_STORED_BLOCKS = Kind.COUNTER, "Blocks that a tier did not take, by reason.", {"reason": _NOT_STORED}
    PREFETCHED_BLOCKS = (
        Kind.COUNTER,
        "Prefetched blocks that a get used, that were evicted unused, or that were withdrawn.",
        {"fate": ("useful", "wasted", "cancelled")},
    )
    UNHINTED_BLOCKS = Kind.COUNTER, "Blocks of waiting requests for which the look-ahead window had no room."
    OPEN_SESSIONS = Kind.GAUGE, "Sessions of engines that have said which requests wait, and have not ended."
    WAITING_REQUESTS = Kind.GAUGE, "Requests that engines have said wait."
    WINDOW_BLOCKS = Kind.GAUGE, "Distinct blocks that waiting requests need, held or not."
    EVICTED_BLOCKS = Kind.COUNTER, "Blocks evicted to make room.", {"tier": _TIER}
    SSD_WRITTEN_BLOCKS = (
        Kind.COUNTER,
        "Blocks written to SSD that have been read from there, or that left it unread.",
        {"fate": ("useful", "wasted")},
    )
    SSD_REWRITTEN_BLOCKS = Kind.COUNTER, "Blocks written to SSD again so that their old file could go."
    SSD_ENCODED_BYTES = (
        Kind.COUNTER,
        "Bytes that blocks took on SSD as they were encoded; over their own bytes, the compression ratio.",
        {"written": ("first", "again")},
    )
    SSD_WRITE_AMPLIFICATION_RATIO = (
        Kind.GAUGE,
        "Encoded bytes written to SSD over those written for the first time; 0 before the first write.",
    )
    DELETED_BLOCKS = Kind.COUNTER, "Blocks that deletes made unknown."
    RECLAIMED_FILES = Kind.COUNTER, "Chunk files taken back to make room."
    LINK_BLOCKS = (
        Kind.COUNTER,
        "Blocks that a link moved, by outcome: corrupt and unreadable ones are ssd-read's.",
        {"link": _LINK, "outcome": tuple(Outcome)},
    )
    LINK_BYTES = Kind.COUNTER, "Bytes that a link moved.", {"link": _LINK}
    LINK_JOB_SECONDS = Kind.HISTOGRAM, "Time of a job in its link's worker.", {"link": _LINK}
    CODEC_SECONDS = Kind.COUNTER, "Time of threads that encoded or decoded blocks.", {"verb": ("encode", "decode")}
    LINK_INFLIGHT_JOBS = Kind.GAUGE, "Jobs submitted to a link and not ended.", {"link": _LINK}
    LINK_QUEUED_JOBS = Kind.GAUGE, "Jobs that wait in a link, for its thread or on its stream.", {"link": _QUEUE}
    HOST_USED_BLOCKS = Kind.GAUGE, "Blocks that are, or are on their way to be, in the host pool."
    HOST_FREE_BLOCKS = (
        Kind.GAUGE,
        "Blocks that free slots can take; unclaimed memory counts in the largest size.",
    )
    HOST_PINNED_BLOCKS = Kind.GAUGE, "Blocks in the host pool that jobs, requests or leases hold."
    HOST_LENT_BYTES = Kind.GAUGE, "Bytes of host slots that others copy from or fill by themselves."
    HOST_USED_BYTES = Kind.GAUGE, "Bytes of host slots in use."
    HOST_REGISTERED_BYTES = (
        Kind.GAUGE,
        "Bytes of the host pool that a GPU copies from and to by itself; 0 where the system refused, and on a CPU.",
    )
    DEVICE_POOL_USED_BYTES = Kind.GAUGE, "Bytes of slots in use in the device pool."
    HOST_FREE_BYTES = Kind.GAUGE, "Bytes of the host pool that are in no slot in use."
    SSD_USED_BLOCKS = Kind.GAUGE, "Blocks that can be read from SSD."
    SSD_USED_BYTES = Kind.GAUGE, "Bytes that chunk files take."
    SSD_FREE_BYTES = Kind.GAUGE, "Bytes that the SSD tier can take before it must reclaim."
    SSD_ON = Kind.GAUGE, "1 where the SSD is read, or written; 0 where trouble has turned that off.", {"way": _WAY}
    SSD_OUTAGES = Kind.COUNTER, "How often trouble has turned reading or writing off.", {"way": _WAY}
    SERVICE_SESSIONS = (
        Kind.GAUGE,
        "Sessions of clients that are open, by whether they map the pool.",
        {"pool": ("attached", "streamed")},
    )
    SERVICE_CALL_SECONDS = Kind.HISTOGRAM, "Time of a call in the service, from its first message.", {"call": _CALL}
    SERVICE_FAILED_CALLS = Kind.COUNTER, "Calls that were refused or failed with a status.", {"call": _CALL}
    SSD_PROBES = Kind.COUNTER, "Probes of an SSD that is off, by what they found.", {"found": ("ok", "failed")}

    def __init__(self, kind: Kind, meaning: str, labels: Labels = _NO_LABELS) -> None:
        self.kind = kind
        self.meaning = meaning
        self.labels = labels
        self.full_name = f"tierstore_{self.name.lower()}{'_total' if kind is Kind.COUNTER else ''}"
