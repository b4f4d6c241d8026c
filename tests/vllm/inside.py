"""What tests do to an engine from inside its process: look at blocks and events, take blocks away."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

__all__ = ["FAST", "SLOW", "Inside"]

SLOW, FAST = 1e6, 1e-6
"""Engines to which loading is always worth it, and never: see `Inside.seem`. No machine is so fast or so busy."""


class Inside:
    """An engine's insides."""

    def __init__(self) -> None:
        self._llm: Any = None
        self._replay: Any = None
        self._num_batches = 0

    def subscribe(self, replay: str) -> dict[str, Any]:
        """Follow the KV events of the engine that starts next; how it must publish them."""
        import zmq

        self._replay = zmq.Context.instance().socket(zmq.DEALER)
        self._replay.setsockopt(zmq.RCVTIMEO, 60_000)
        self._replay.connect(replay)
        return {"enable_kv_cache_events": True, "endpoint": "inproc://events", "replay_endpoint": replay}

    def published(self) -> list[dict[str, Any]]:
        """The connector's KV events since the last call, as vLLM's publisher replays them to who has missed them."""
        import msgspec
        from vllm.distributed.kv_events import KVEventBatch

        self._replay.send_multipart([b"", self._num_batches.to_bytes(8, "big")])
        found: list[dict[str, Any]] = []
        while payload := self._replay.recv_multipart()[-1]:
            self._num_batches += 1
            batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
            own = [event for event in batch.events if getattr(event, "medium", "GPU") != "GPU"]
            found += [{"kind": type(event).__name__, **msgspec.to_builtins(event)} for event in own]
        return found

    def places(self, *, prompts: list[list[int]]) -> list[list[tuple[int, int]]]:
        """Of each prompt's blocks the hash that events name, and where the store has it."""
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

        (kept,) = self._scheduler.connector.scheduler._kept
        found = []
        for prompt in prompts:
            hashes = list(self._request(prompt).block_hashes)
            named = [maybe_convert_block_hash(value) for value in hashes]
            found.append(list(zip(named, kept.handle.places(hashes).tolist(), strict=True)))
        return found

    def poison(self, *, prompt: list[int]) -> int:
        """Replace the last group's blocks of a prompt by others, whole and under a valid checksum; returns how many."""
        handle, keys = self._scheduler.connector.scheduler._kept[-1].handle, list(self._request(prompt).block_hashes)
        handle.delete(keys).result()
        wrong = np.full((len(keys), handle.namespace.layout.block_nbytes), 0x3C, np.uint8)
        return int(handle.put(keys, wrong).result().leading)

    def lose(self, *, times: int) -> None:
        """Have the last group's blocks deleted as soon as they are promised to a request, so many times."""
        half = self._scheduler.connector.scheduler
        promise, left = half.match, iter(range(times))

        def match(request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
            promised: tuple[int | None, bool] = promise(request, num_computed_tokens)
            if promised[0] and next(left, None) is not None:
                half._kept[-1].handle.delete(list(request.block_hashes)).result()
            return promised

        half.match = match

    def digested(self, *, folder: str) -> bool:
        """Have an adapter's weights digested, and wait for that; whether they could be."""
        adapters = self._scheduler.connector.scheduler._adapters
        adapters.digest(folder)
        adapters._worker.ask(lambda: None)
        return adapters.digest(folder) is not None

    def events_followed(self) -> bool:
        """Whether the connector follows what becomes of blocks."""
        return self._scheduler.connector.scheduler._events is not None

    def _request(self, prompt: list[int]) -> Any:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        return Request(
            request_id="of a test",
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            block_hasher=self._llm.llm_engine.engine_core.engine_core.request_block_hasher,
        )

    def seem(self, *, slowness: float) -> None:
        """Have the connector measure that the engine computes so many times slower than it does."""
        self._scheduler.connector.scheduler._stopwatch._clock = lambda: slowness * time.monotonic()

    def match_seconds(self, *, tokens: int, indexed: int, rounds: int) -> list[float]:
        """How long the scheduler waits for an answer about a prompt, with so many other blocks known to the store."""
        half = self._scheduler.connector.scheduler
        handle, request = half._kept[0].handle, self._request([3 + token % 500 for token in range(tokens)])
        others = np.random.default_rng(0).integers(0, 256, (indexed, 32), dtype=np.uint8)
        nbytes = handle.namespace.layout.block_nbytes
        for first in range(0, indexed, 4096):
            part = others[first : first + 4096]
            handle.put(part, np.zeros((len(part), nbytes), np.uint8)).result()
        handle.put(list(request.block_hashes), np.zeros((len(request.block_hashes), nbytes), np.uint8)).result()
        half.add_request(request)
        seconds = []
        for _round in range(rounds):
            begun = time.perf_counter()
            found, _ = half.match(request, 0)
            seconds.append(time.perf_counter() - begun)
            assert found == tokens, f"{found} of {tokens} tokens are promised"
        half.remove_request(request, ([],))
        return seconds

    def hash_seconds(self, *, tokens: int, rounds: int) -> list[float]:
        """How long the engine takes to hash the blocks of a prompt, which it does before it asks anybody about them."""
        prompt, seconds = [3 + token % 500 for token in range(tokens)], []
        for _round in range(rounds):
            begun = time.perf_counter()
            self._request(prompt)
            seconds.append(time.perf_counter() - begun)
        return seconds

    def free_blocks(self) -> int:
        """Blocks of the engine that nobody holds."""
        return int(self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def blocks(self) -> int:
        """Blocks of the engine that may be free at once."""
        return int(self._scheduler.kv_cache_manager.block_pool.num_gpu_blocks) - 1

    @property
    def _scheduler(self) -> Any:
        return self._llm.llm_engine.engine_core.engine_core.scheduler
