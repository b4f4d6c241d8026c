"""The world of a replay, looked into: what the planner knows of a chain, and which jobs it was given."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tierstore.control.index import as_keys
from tierstore.metrics import Metric
from tierstore.policy.admission import AdmitAlways
from tierstore.policy.lru import Lru
from tierstore.replay.engine import Engine, Queueing
from tierstore.replay.links import LinkModel
from tierstore.replay.trace import Asked, Trace
from tierstore.replay.world import LIFE, Setup, World
from tierstore.types import Outcome


def prompts(*chains: int, count: int) -> Trace:
    """A prompt of `count` blocks a second, equal ones for equal numbers."""
    rows = [
        Asked(1, float(turn), 10 * count, list(range(1000 * name, 1000 * name + count)))
        for turn, name in enumerate(chains)
    ]
    return Trace.of("test", rows, block_tokens=10)


def served(trace: Trace, *, host_blocks: int, links: Mapping[str, LinkModel] | None = None) -> World:
    """The world once a trace has been served."""
    world = World(
        Setup(
            host_blocks=host_blocks,
            ssd_blocks=10 * host_blocks,
            file_blocks=64,
            block_nbytes=1 << 20,
            block_tokens=10,
            new_policy=Lru,
            admission=AdmitAlways(),
            links=links or {},
        )
    )
    Engine(trace, world, Queueing()).serve(lambda served: None)
    return world


def test_a_prompt_that_is_put_in_pieces_is_one_chain() -> None:
    trace = prompts(1, count=200)
    directory = served(trace, host_blocks=64).planner.directory
    entries = directory.find(LIFE, as_keys(trace.hashes))
    assert directory.depth[entries].tolist() == list(range(200))


@pytest.mark.parametrize(("links", "cut"), [({}, False), ({"ssd.read": LinkModel(5.0)}, True)])
def test_reads_are_cut_where_they_take_time_and_nowhere_else(links: dict[str, LinkModel], cut: bool) -> None:
    metrics = served(prompts(1, 2, 1, count=200), host_blocks=256, links=links).metrics
    num_blocks = metrics.value(Metric.LINK_BLOCKS, "ssd-read", Outcome.OK)
    num_jobs, _seconds = metrics.durations(Metric.LINK_JOB_SECONDS, "ssd-read")
    assert num_blocks > 100
    assert num_jobs >= num_blocks / 8 if cut else num_jobs <= 2
