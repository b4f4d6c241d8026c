"""Loads a service as engines do: clients get and put prompts of skewed popularity for a while. Counts the results."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tierstore.benchmark.crew import Crew, Member
from tierstore.types import Outcome

if TYPE_CHECKING:
    from tierstore.benchmark.serve_plan import ServePlan
    from tierstore.benchmark.serve_processes import Served

__all__ = ["Load", "Prompts", "put_under_load"]

_ROOMS = {"local": 2, "stream": 3}
_DRAWN = 4096
"""Prompts drawn at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The result of a load.

    Attributes:
        way: ``"local"`` or ``"stream"``.
        clients: Concurrent clients.
        block_nbytes: Bytes of a block.
        batch: Blocks a call.
        get_share: The intended share of gets among the calls.
        calls: Number of calls made.
        gbytes_per_second: Of blocks that were OK, both ways; 1 GB is 10**9 bytes.
        hit_share: The share of the requested blocks that came.
        refused_blocks: Blocks that the service rejected for lack of room.
        errors: Blocks with another outcome than OK, MISS or REJECTED.
        wrong: Blocks that came with the bytes of other blocks.
        p50_ms: Median latency of a call; like the next two, over gets and puts.
        p99_ms: 99th percentile.
        p999_ms: 99.9th percentile.
    """

    way: str
    clients: int
    block_nbytes: int
    batch: int
    get_share: float
    calls: int
    gbytes_per_second: float
    hit_share: float
    refused_blocks: int
    errors: int
    wrong: int
    p50_ms: float
    p99_ms: float
    p999_ms: float


class Prompts:
    """Chooses the next prompt of a client: a number from 0; the smaller, the more popular.

    Args:
        count: Number of prompts.
        skew: The n-th most popular is asked for n**-skew times as often as the first; 0: all equally often.
        seed: Of the draw.
        recorded: Prompts to use in order, over and over, instead of a draw.
    """

    def __init__(self, count: int, skew: float, seed: int, recorded: Sequence[int] = ()) -> None:
        weights = np.arange(1, count + 1, dtype=np.float64) ** -skew
        self._weights = weights / weights.sum()
        self._random = np.random.default_rng(seed)
        self._recorded = recorded
        self._drawn: list[int] = []

    def __next__(self) -> int:
        if not self._drawn:
            if self._recorded:
                self._drawn = list(reversed(self._recorded))
            else:
                self._drawn = self._random.choice(len(self._weights), _DRAWN, p=self._weights).tolist()
        return self._drawn.pop()


@dataclass(slots=True)
class _Seen:
    """What one client saw."""

    seconds: list[float] = field(default_factory=list)
    outcomes: Counter[tuple[str, Outcome]] = field(default_factory=Counter)
    nbytes: int = 0
    wrong: int = 0


def put_under_load(
    plan: ServePlan, served: Served, way: str, on_progress: Callable[[float], None], recorded: Sequence[int] = ()
) -> Load:
    """Have every client work for `plan.seconds`. Blocks.

    A get that does not find all of its prompt is followed by a put of it, as an engine computes what it misses. Twice
    as many prompts are asked for as the pool holds.

    Args:
        plan: How many clients, and what they do.
        served: Whom they ask.
        way: ``"local"`` or ``"stream"``.
        on_progress: Told how much of the time has passed, 0 to 1.
        recorded: Prompts as a trace has them, instead of a draw.
    """
    seen: list[_Seen] = []
    num_prompts = max(2, 2 * plan.host_nbytes // (plan.clients * plan.batch * plan.slot_nbytes))
    with closing(Crew(plan, served.address, attach=way == "local", room=_ROOMS[way])) as crew:
        begun = time.perf_counter()

        def work(member: Member) -> None:
            index = crew.members.index(member)
            own = _Seen()
            seen.append(own)
            prompts = Prompts(num_prompts, plan.skew, index, recorded)
            random = np.random.default_rng(index)
            while (elapsed := time.perf_counter() - begun) < plan.seconds:
                if index == 0:
                    on_progress(elapsed / plan.seconds)
                _call(member, next(prompts), own, get=random.random() < plan.get_share)

        crew.all(work)
        elapsed = time.perf_counter() - begun
    return _load(plan, way, seen, elapsed)


def _call(member: Member, prompt: int, seen: _Seen, *, get: bool) -> None:
    if get:
        begun = time.perf_counter()
        result = member.get(prompt)
        seen.seconds.append(time.perf_counter() - begun)
        seen.outcomes.update(("get", outcome) for outcome in result.outcomes)
        seen.nbytes += result.nbytes
        rows = member.buffer[: result.leading]
        seen.wrong += member.num_wrong(prompt) if len(rows) == len(member.buffer) else 0
        if result.ok:
            return
    member.fill(prompt)
    begun = time.perf_counter()
    result = member.put(prompt)
    seen.seconds.append(time.perf_counter() - begun)
    seen.outcomes.update(("put", outcome) for outcome in result.outcomes)
    seen.nbytes += result.nbytes


def _load(plan: ServePlan, way: str, seen: Sequence[_Seen], elapsed: float) -> Load:
    outcomes: Counter[tuple[str, Outcome]] = Counter()
    for own in seen:
        outcomes.update(own.outcomes)
    seconds = np.concatenate([own.seconds for own in seen])
    p50, p99, p999 = np.percentile(seconds, [50, 99, 99.9]) * 1e3 if len(seconds) else np.zeros(3)
    asked = sum(count for (verb, _), count in outcomes.items() if verb == "get")
    usual = (Outcome.OK, Outcome.MISS, Outcome.REJECTED)
    return Load(
        way=way,
        clients=plan.clients,
        block_nbytes=plan.layout.block_nbytes,
        batch=plan.batch,
        get_share=plan.get_share,
        calls=len(seconds),
        gbytes_per_second=sum(own.nbytes for own in seen) / 1e9 / elapsed,
        hit_share=outcomes["get", Outcome.OK] / asked if asked else 0.0,
        refused_blocks=outcomes["put", Outcome.REJECTED],
        errors=sum(count for (_, outcome), count in outcomes.items() if outcome not in usual),
        wrong=sum(own.wrong for own in seen),
        p50_ms=float(p50),
        p99_ms=float(p99),
        p999_ms=float(p999),
    )
