"""What vLLM publishes of the store's blocks is what the store holds: a router that follows it is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.engines import EngineProcess, Nursery, attempts, prompt, running
from tierstore.advice import Place

BLOCK_TOKENS = 32
PROMPTS = [prompt(name, 200) for name in range(8)]
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "block_size": BLOCK_TOKENS, "shape": {}}
MEDIUMS = {Place.HOST: "CPU", Place.SSD: "STORAGE"}


class Router:
    """Who follows the events of one engine.

    Attributes:
        known: Hash of each block that the store has, and where.
        stored: Every event of a block that came, by its hash.
    """

    def __init__(self, engine: EngineProcess) -> None:
        self.known: dict[int, str] = {}
        self.stored: dict[int, dict[str, Any]] = {}
        self._engine = engine

    def follow(self, until: Callable[[], bool] = lambda: True) -> None:
        """Take in what is published while requests run that are too short for a block."""
        for _request in attempts("the events do not say what the store has"):
            self._engine.generate([[5, 6, 7]])
            self._take()
            if until():
                return

    def _take(self) -> None:
        events = self._engine.ask("published")
        assert isinstance(events, list)
        for event in events:
            for name in event["block_hashes"]:
                if event["kind"] == "BlockStored":
                    self.known[name] = event["medium"]
                    self.stored[name] = event
                else:
                    assert self.known.pop(name) == event["medium"], "taken back from where it was told to be"

    def truth(self) -> dict[int, str]:
        """What the store has."""
        rows = self._engine.ask("places", prompts=PROMPTS)
        assert isinstance(rows, list)
        return {name: MEDIUMS[Place(place)] for row in rows for name, place in row if place in MEDIUMS}


def test_a_block_is_told_with_its_tokens_and_the_one_before_it(nursery: Nursery, models: Path) -> None:
    connector = {"host_size": "64 MiB"}
    with running(nursery, model=str(models / "tiny"), connector=connector, publishes=True, **OPTIONS) as engine:
        router = Router(engine)
        engine.generate(PROMPTS[:1])
        names = list(router.truth())
        router.follow(until=lambda: len(router.stored) >= len(names))
        assert list(router.stored) == names, "in the order of the prompt"
        parents = [None, *names[:-1]]
        for index, (name, parent) in enumerate(zip(names, parents, strict=True)):
            event = router.stored[name]
            assert (event["parent_block_hash"], event["block_size"]) == (parent, BLOCK_TOKENS)
            assert event["token_ids"] == PROMPTS[0][index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]


@pytest.mark.parametrize("ssd", [False, True])
def test_a_router_knows_where_every_block_is(ssd: bool, nursery: Nursery, models: Path, tmp_path: Path) -> None:
    """A pool of 32 blocks for prompts of 48, without an SSD and with one."""
    connector: dict[str, object] = {"host_size": "4 MiB"}
    if ssd:
        connector |= {"ssd_dir": str(tmp_path / "kv"), "ssd_size": "64 MiB"}
        connector |= {"ssd_file_size": "4 MiB", "ssd_free_floor": "1 MiB"}
    with running(nursery, model=str(models / "tiny"), connector=connector, publishes=True, **OPTIONS) as engine:
        router = Router(engine)
        for own in PROMPTS:
            engine.generate([own], max_tokens=1)
            router.follow()
        router.follow(until=lambda: router.known == router.truth())
        assert set(router.known.values()) == ({"CPU", "STORAGE"} if ssd else {"CPU"})
        assert len(router.known) < len(router.stored) or ssd, "some blocks have gone, and that was told"


def test_nothing_is_told_where_nobody_listens(nursery: Nursery, models: Path) -> None:
    with running(nursery, model=str(models / "tiny"), connector={"host_size": "64 MiB"}, **OPTIONS) as engine:
        engine.generate(PROMPTS[:1])
        assert engine.ask("events_followed") is False
