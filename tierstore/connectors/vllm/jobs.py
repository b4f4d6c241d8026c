"""Messages between the halves of the connector: small plain data, pickled by vLLM between processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from tierstore.keys import Namespace

__all__ = ["LoadJob", "SaveJob", "StepJobs", "StepReport", "WorkerCache"]


@dataclass(frozen=True, slots=True)
class Part:
    """Blocks of one group of layers.

    Attributes:
        group: Position in the list of namespaces.
        keys: Their hashes, in prefix order.
        block_ids: For each row of ids of the bound cache, the engine's block for each of them.
        parent: Key of the block before the first; zeros at the start of a chain.
    """

    group: int
    keys: list[bytes]
    block_ids: list[list[int]]
    parent: bytes


@dataclass(frozen=True, slots=True)
class LoadJob:
    """Blocks that a request waits for."""

    request_id: str
    parts: list[Part]


@dataclass(frozen=True, slots=True)
class SaveJob:
    """Blocks that a request has computed, whole by the end of this step."""

    job_id: int
    request_id: str
    parts: list[Part]


@dataclass
class StepJobs(KVConnectorMetadata):  # type: ignore[misc]
    """What the scheduler asks of the workers in one step.

    Attributes:
        loads: To start.
        saves: To start once the step has been computed.
        layerwise: The step's own layers wait for its loads.
    """

    loads: list[LoadJob] = field(default_factory=list)
    saves: list[SaveJob] = field(default_factory=list)
    layerwise: bool = False


@dataclass
class StepReport(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """What workers tell the scheduler after a step.

    Attributes:
        saved: For each job, how many workers have ended it, however it ended.
        failed_loads: Requests with a block that could not be loaded.
    """

    saved: Counter[int] = field(default_factory=Counter)
    failed_loads: set[str] = field(default_factory=set)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Both together."""
        assert isinstance(other, StepReport), f"a report of another connector: {type(other).__name__}"
        return StepReport(self.saved + other.saved, self.failed_loads | other.failed_loads)


@dataclass
class WorkerCache(KVConnectorHandshakeMetadata):  # type: ignore[misc]
    """What a worker says of its cache when it has bound it.

    Attributes:
        namespaces: One for each group of layers.
    """

    namespaces: list[Namespace]
