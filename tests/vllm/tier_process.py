"""vLLM's tiering manager with tierstore behind its CPU tier, driven by a process of `engine_process`. No GPU, no model.

What a GPU's worker would do is done here: a chunk's row of the CPU tier is filled with bytes that its name gives, and
looked at again.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from typing import Any

import numpy as np
from vllm.v1.kv_offload import config as native
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager, TransferJob
from vllm.v1.kv_offload.tiering.manager import TieringOffloadingManager
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from tierstore.connectors.vllm.secondary_tier import TierStoreTier

__all__ = ["CHUNK_NBYTES", "Tiering"]

CHUNK_NBYTES = 16 << 10

USUAL: dict[str, Any] = {
    "model": "m",
    "dtype": "bfloat16",
    "group": [16, ["layers.0", "layers.1"], 0],
    "blocks_per_chunk": 1,
    "block_nbytes": CHUNK_NBYTES,
    "kv_cache_layout": "LBNHC",
    "canonical_layout": False,
    "tp_size": 1,
    "dp_index": 0,
    "dp_size": 1,
    "publishes": False,
}
"""What vLLM tells of an engine."""


def key_of(name: int, *, hash_nbytes: int = 32, group: int = 0) -> Any:
    """VLLM's key of a chunk."""
    return make_offload_key(hashlib.sha256(str(name).encode()).digest()[:hash_nbytes], group)


def bytes_of(name: int) -> np.ndarray[Any, np.dtype[np.int8]]:
    """What a chunk holds."""
    return np.random.default_rng(name).integers(-128, 128, CHUNK_NBYTES, dtype=np.int8)


class Tiering:
    """What the other side may ask for, with plain values.

    Args:
        tier: Options of the tier.
        chunks: How many the CPU tier holds.
        shape: What differs from `USUAL`.
    """

    def __init__(self, *, tier: dict[str, Any], chunks: int = 16, shape: dict[str, Any] | None = None) -> None:
        given = {**USUAL, **(shape or {})}
        extra = {
            "cpu_bytes_to_use": chunks * CHUNK_NBYTES,
            "secondary_tiers": [
                {"type": "TierStoreTier", "module_path": "tierstore.connectors.vllm.secondary_tier", **tier}
            ],
        }
        parallel = native.OffloadingParallelConfig(
            rank=0,
            world_size=1,
            tp_size=given["tp_size"],
            pp_size=1,
            pcp_size=1,
            dcp_size=1,
            data_parallel_index=given["dp_index"],
            data_parallel_size=given["dp_size"],
            data_parallel_rank_local=None,
            is_parallelism_agnostic=False,
        )
        config = native.OffloadingConfig(
            groups=(native.OffloadingGroupConfig(given["group"][0], tuple(given["group"][1]), given["group"][2]),),
            worker_kv_bytes_per_block=given["block_nbytes"],
            enable_kv_cache_events=given["publishes"],
            extra_config=extra,
            engine_id=f"tierstore-test-{os.getpid()}",
            model=native.OffloadingModelConfig(given["model"], given["dtype"]),
            cache=native.OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=given["blocks_per_chunk"]),
            parallel=parallel,
            canonical_layout=given["canonical_layout"],
            kv_cache_layout=given["kv_cache_layout"],
        )
        tiering = TieringOffloadingSpec(config).get_manager()
        assert isinstance(tiering, TieringOffloadingManager)
        self._tiering = tiering
        (self._tier,) = tiering.secondary_tiers
        self._view = np.asarray(memoryview(tiering.primary_tier.get_kv_memoryview()))
        self._requests = 0
        self._results: list[dict[str, Any]] = []
        inner = self._tier.get_finished_jobs
        self._tier.get_finished_jobs = lambda: self._note(inner())

    def _note(self, results: Any) -> Any:
        self._results += [{"success": result.success, "nbytes": result.transfer_bytes} for result in results]
        return results

    def results(self) -> list[dict[str, Any]]:
        """How the tier's jobs have ended since the last call."""
        results, self._results = self._results, []
        return results

    def save(self, *, names: list[int], hash_nbytes: int = 32) -> list[int]:
        """A request whose chunks are computed and kept in the CPU tier; returns those that were not there."""
        request = self._request()
        keys = {key_of(name, hash_nbytes=hash_nbytes): name for name in names}
        prepared = self._tiering.prepare_store(list(keys), request)
        assert prepared is not None, "the CPU tier is full"
        for key, chunk in zip(prepared.keys_to_store, prepared.store_spec.chunk_ids, strict=True):
            self._view[chunk] = bytes_of(keys[key])
        if prepared.keys_to_store:
            self._tiering.complete_store(prepared.keys_to_store, request, True)
        self._tiering.on_request_finished(request)
        self._settle()
        return [keys[key] for key in prepared.keys_to_store]

    def load(self, *, names: list[int], hash_nbytes: int = 32) -> list[str]:
        """A request that wants chunks: of each "right", "WRONG" or "miss"; from SSD if they are in no CPU tier."""
        request = self._request()
        keys = [key_of(name, hash_nbytes=hash_nbytes) for name in names]
        for _round in range(20):
            found = [self._tiering.lookup(key, request) for key in keys]
            self._settle()
            if {LookupResult.RETRY, LookupResult.HIT_PENDING}.isdisjoint(found):
                break
        else:
            raise RuntimeError(f"look-ups do not settle: {found}")
        answers = []
        for name, key, result in zip(names, keys, found, strict=True):
            if result is LookupResult.MISS:
                answers.append("miss")
                continue
            (chunk,) = self._tiering.prepare_load([key], request).chunk_ids
            answers.append("right" if (self._view[chunk] == bytes_of(name)).all() else "WRONG")
            self._tiering.complete_load([key], request)
        self._tiering.on_request_finished(request)
        return answers

    def in_cpu_tier(self, *, names: list[int]) -> int:
        """How many of these chunks the CPU tier holds."""
        request = ReqContext("a look")
        return sum(self._tiering.primary_tier.lookup(key_of(name), request) is LookupResult.HIT for name in names)

    def known(self, *, names: list[int]) -> list[str]:
        """What the tier says of chunks."""
        return [self._tier.lookup(key_of(name), ReqContext("a look")).name for name in names]

    def job(self, *, names: list[int], load: bool) -> list[dict[str, Any]]:
        """Give the tier one job by hand, rows from the first, and drain it; returns what the tier reports."""
        rows = np.arange(len(names), dtype=np.int32)
        for row, name in zip(rows, names, strict=True):
            self._view[row] = 0 if load else bytes_of(name)
        keys = [key_of(name) for name in names]
        job = TransferJob(7, keys, rows, load, ReqContext("by hand"))
        (self._tier.submit_load if load else self._tier.submit_store)(job)
        self._tier.drain_jobs()
        return [
            {
                "job_id": result.job_id,
                "success": result.success,
                "names": None
                if result.successful_keys is None
                else [names[keys.index(key)] for key in result.successful_keys],
                "right": [
                    bool((self._view[row] == bytes_of(name)).all()) for row, name in zip(rows, names, strict=True)
                ],
                "after": [self._tier.lookup(key, job.req_context).name for key in keys],
            }
            for result in self._tier.get_finished_jobs()
        ]

    def promised(self, *, name: int) -> str:
        """What the tier says of a chunk whose copy into the store is under way."""
        reservation = self._tier._handle.reserve([hashlib.sha256(key_of(name)).digest()])
        (found,) = self.known(names=[name])
        reservation.abandon().result()
        return found

    def events(self) -> list[tuple[int, bool]]:
        """The tier's own KV events since the last call: which chunk, and whether it has gone."""
        names = {bytes(key_of(name)): name for name in range(1000)}
        own = [event for event in self._tiering.take_events() if event.ownership == "TierStoreTier"]
        return [(names[bytes(key)], event.removed) for event in own for key in event.keys]

    def known_of(self, *, names: list[int]) -> list[int]:
        """Those of these chunks that the store holds."""
        return [name for name, found in zip(names, self.known(names=names), strict=True) if found == "HIT"]

    def counts(self) -> dict[str, float]:
        """What the tier has counted since the last call, as vLLM takes it up."""
        stats = self._tiering.get_stats()
        found = {} if stats is None else stats.reduce()
        assert set(self._tier.build_metric_definitions({})) >= {
            name.partition(":(")[0] for name in found if "_tier_" in name and "tierstore" in name
        }
        return {name.partition(":(")[0]: value for name, value in found.items() if "tierstore" in name}

    def row(self, *, name: int) -> str:
        """The first bytes of a chunk, as hex."""
        return bytes_of(name)[:64].tobytes().hex()

    def reset(self) -> None:
        """Empty the CPU tier, as vLLM does when an engine sleeps."""
        self._tiering.reset_cache()

    def flush(self) -> None:
        """Wait until everything is on SSD."""
        assert self._tier._store.flush().result().ok

    def close(self) -> bool:
        """Shut down as vLLM does; returns whether the CPU tier's memory could be given back."""
        region = self._tiering.primary_tier._mmap_region
        mapped = region.mmap_obj
        del self._view
        self._tiering.shutdown()
        return bool(mapped.closed)

    def _request(self) -> ReqContext:
        self._requests += 1
        request = ReqContext(f"request {self._requests}")
        self._tiering.on_new_request(request)
        return request

    def _settle(self) -> None:
        """Step until nothing is under way."""
        while True:
            self._tiering.on_schedule_end(ScheduleEndContext((), ()))
            if not self._tiering.has_pending_work():
                return
            self._tier.drain_jobs()


def interface() -> dict[str, Any]:
    """Parameters of the base class's methods and of those that the tier overrides, and what it leaves abstract."""

    def methods(kind: type) -> dict[str, list[str]]:
        functions = {name: value for name, value in vars(kind).items() if inspect.isfunction(value)}
        public = {name: value for name, value in functions.items() if not name.startswith("_")}
        return {name: list(inspect.signature(value).parameters) for name, value in public.items()}

    abstract = sorted(SecondaryTierManager.__abstractmethods__)
    return {"base": methods(SecondaryTierManager), "own": methods(TierStoreTier), "abstract": abstract}
