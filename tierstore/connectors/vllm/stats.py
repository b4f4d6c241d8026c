"""The connector's statistics, in the form that vLLM logs and exports: sums over an interval, and Prometheus counters.

Filled by both halves, sent by vLLM with each step's output, read in its front end.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

__all__ = ["Count", "PrometheusCounts", "StepCounts"]


class Count(StrEnum):
    """A sum that only grows, and its meaning."""

    LOADED_BYTES = "loaded_bytes"
    LOADED_BLOCKS = "loaded_blocks"
    LOAD_SECONDS = "load_seconds"
    LOST_BLOCKS = "lost_blocks"
    SAVED_BYTES = "saved_bytes"
    SAVED_BLOCKS = "saved_blocks"
    REFUSED_BLOCKS = "refused_blocks"
    HELD_BACK = "held_back"


MEANINGS = {
    Count.LOADED_BYTES: "bytes copied from the store into the engine's cache",
    Count.LOADED_BLOCKS: "blocks of the store that requests have loaded",
    Count.LOAD_SECONDS: "seconds that loads took, added up over requests",
    Count.LOST_BLOCKS: "blocks that were promised, could not be loaded and were computed",
    Count.SAVED_BYTES: "bytes that the store has of what was offered",
    Count.SAVED_BLOCKS: "blocks that the store has of those offered",
    Count.REFUSED_BLOCKS: "blocks that the store took none of: it had no room",
    Count.HELD_BACK: "times that a request was held back for an answer",
}


class StepCounts(KVConnectorStats):  # type: ignore[misc]
    """Sums since they were last taken; ``data`` maps names of `Count` to numbers."""

    def reset(self) -> None:
        """Begin anew."""
        self.data: dict[str, Any] = {}

    def add(self, name: Count, number: float) -> None:
        """Add to a sum."""
        if number:
            self.data[name.value] = self.data.get(name.value, 0) + number

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Add another's sums to these."""
        for name, number in other.data.items():
            self.add(Count(name), number)
        return self

    def reduce(self) -> dict[str, int | float]:
        """What is logged of an interval."""
        return {name.value: round(self.data[name.value], 6) for name in Count if name.value in self.data}

    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not self.data


class PrometheusCounts(KVConnectorPromMetrics):  # type: ignore[misc]
    """A counter ``vllm:tierstore_…`` for each `Count`, with the engine's labels."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name.value: self._counter_cls(
                name=f"vllm:tierstore_{name.value}", documentation=f"tierstore: {meaning}.", labelnames=labelnames
            )
            for name, meaning in MEANINGS.items()
        }
        for counter in self._counters.values():
            for labels in per_engine_labelvalues.values():
                counter.labels(*labels)  # exported as 0 until something is counted

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add one step's sums."""
        labels = self.per_engine_labelvalues[engine_idx]
        for name, number in transfer_stats_data.items():
            self._counters[name].labels(*labels).inc(number)
