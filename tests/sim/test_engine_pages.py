"""A store and an engine on one simulated device: whoever waits for too little sees spoilt bytes.

The engine computes on a stream of its own, as steps that check what they read. The test decides which stream takes
its next step, so that every order comes up that events allow.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.payload import block_hash, num_pins
from tierstore.config import StoreConfig
from tierstore.keys import Namespace
from tierstore.store import Store
from tierstore.testing.caches import ARRANGEMENTS
from tierstore.testing.sim_device import SimDevice
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.device.base import Event
    from tierstore.transfer.future import Transfer
    from tierstore.types import UInt8Array

LAYERS = 3
ARRANGEMENT = ARRANGEMENTS["one tensor, layer first"]
BLOCK_NBYTES = ARRANGEMENT.layout.block_nbytes
NUM_BLOCKS = 8
SLOTS = 32


class Careless(SimDevice):
    """A device that forgets what its copies should wait for."""

    def load(self, *args: Any, after: Sequence[Event] = (), **options: Any) -> list[Event]:
        return super().load(*args, **options)

    def store(self, *args: Any, after: Sequence[Event] = (), **options: Any) -> None:
        super().store(*args, **options)


class World:
    """A store of few slots, an engine's cache of eight blocks, and the engine's stream."""

    def __init__(self, device: SimDevice, seed: int) -> None:
        settings = {"host_size": SLOTS * PAGE_NBYTES, "host_slab_size": SLOTS // 4 * PAGE_NBYTES, "ssd_size": 0}
        self.device = device
        self.store = Store(StoreConfig.load(env={}, overrides=settings), device=device)
        self.handle = self.store.namespace(Namespace("model", ARRANGEMENT.layout))
        self.memories = ARRANGEMENT.memories(seed)
        self.kv = ARRANGEMENT.bind(self.memories, pages_per_group=1)
        self.compute = device.new_stream("compute")
        self.random = random.Random(seed)

    def content(self, name: object) -> UInt8Array:
        """The block of this name."""
        seed = int.from_bytes(block_hash(name)[:8], "little")
        return np.random.default_rng(seed).integers(0, 256, BLOCK_NBYTES, np.uint8)

    def layer(self, block_id: int, layer: int) -> UInt8Array:
        """What the cache holds now of one layer of a block."""
        share = BLOCK_NBYTES // LAYERS
        return ARRANGEMENT.read(self.memories, np.array([block_id]))[layer * share : (layer + 1) * share]

    def compute_layer(self, name: object, block_id: int, layer: int) -> Event:
        """Let the engine fill one layer of a block; returns the event behind it."""

        def fill() -> None:
            share = BLOCK_NBYTES // LAYERS
            block = ARRANGEMENT.read(self.memories, np.array([block_id]))
            block[layer * share :][:share] = self.content(name)[layer * share :][:share]
            ARRANGEMENT.write(self.memories, np.array([block_id]), block)

        self.compute.call(fill)
        return self.compute.record()

    def compute_block(self, name: object, block_id: int) -> list[Event]:
        """Let the engine fill a block layer by layer, with junk in each first; returns an event a layer."""
        for layer in range(LAYERS):
            self.compute_layer(("junk", name), block_id, layer)
        return [self.compute_layer(name, block_id, layer) for layer in range(LAYERS)]

    def read_layer(self, name: object, block_id: int, layer: int) -> None:
        """Let the engine read one layer of a block, which must be that of this name."""
        share = BLOCK_NBYTES // LAYERS
        expected = self.content(name)[layer * share :][:share]

        def read() -> None:
            assert np.array_equal(self.layer(block_id, layer), expected), f"layer {layer} of {name} in {block_id}"

        self.compute.call(read)

    def put(self, name: object, block_id: int, after: Sequence[Event] | Event) -> Transfer:
        return self.handle.put([block_hash(name)], self.kv, block_ids=[block_id], after=after)

    def get(self, name: object, block_id: int, after: Sequence[Event] | Event | None = None) -> Transfer:
        return self.handle.get([block_hash(name)], self.kv, block_ids=[block_id], after=after)

    def run(self) -> None:
        """Step streams in random order until none can."""
        while able := [stream for stream in self.device.streams if stream.ready]:
            self.random.choice(able).step()


@contextmanager
def world(seed: int, device: SimDevice | None = None) -> Iterator[World]:
    made = World(SimDevice() if device is None else device, seed)
    with made.store:
        yield made
        assert num_pins(made.store) == 0


def store_layer_by_layer(made: World) -> None:
    """Put blocks whose layers are made ready one by one, each filled with junk first, and check what is kept."""
    puts = [made.put(name, name, after=made.compute_block(name, name)) for name in range(4)]
    made.run()
    assert all(put.result(0).ok for put in puts)
    for name in range(4):
        transfer = made.get(name, 7)
        made.run()
        assert transfer.result(0).ok
        assert np.array_equal(ARRANGEMENT.read(made.memories, np.array([7])), made.content(name))


def load_behind_a_reader(made: World) -> None:
    """Load into a page that a step already enqueued still reads: it sees old bytes alone, the next one new ones."""
    stored = made.put("new", 1, after=made.compute_block("new", 1))
    made.run()
    assert stored.result(0).ok
    made.compute_block("old", 2)
    for layer in range(LAYERS):
        made.read_layer("old", 2, layer)
    transfer = made.get("new", 2, after=made.compute.record())
    for layer in range(LAYERS):
        made.compute.wait(transfer.layer_ready(layer))
        made.read_layer("new", 2, layer)
    made.run()
    assert transfer.result(0).ok


def churn(made: World) -> None:
    """Put and get at random with fewer slots than blocks; every step of the engine checks what it reads."""
    placed: dict[int, object] = {}
    for turn in range(120):
        block_id = made.random.randrange(NUM_BLOCKS)
        name = made.random.randrange(SLOTS + 16)
        if block_id in placed:
            for layer in range(LAYERS):
                made.read_layer(placed[block_id], block_id, layer)
        transfer = made.get(name, block_id, after=made.compute.record())
        leading = made.handle.lookup([block_hash(name)])
        if not transfer.done():  # it is loading
            for layer in range(LAYERS):
                made.compute.wait(transfer.layer_ready(layer))
                made.read_layer(name, block_id, layer)
        else:
            assert leading == 0
            events = made.compute_block(name, block_id)
            transfer = made.put(name, block_id, after=events if turn % 2 else events[-1])
        placed[block_id] = name
        while not transfer.done():  # until then the engine leaves the page alone
            made.random.choice([stream for stream in made.device.streams if stream.ready]).step()
    made.run()


STORIES: dict[str, Callable[[World], None]] = {
    "store layer by layer": store_layer_by_layer,
    "load behind a reader": load_behind_a_reader,
    "churn": churn,
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("story", STORIES)
def test_whoever_waits_for_events_sees_no_spoilt_byte(story: str, seed: int) -> None:
    with world(seed) as made:
        STORIES[story](made)


@pytest.mark.parametrize("story", STORIES)
def test_a_copy_that_waits_for_nothing_is_found_by(story: str) -> None:
    def fails(seed: int) -> bool:
        with world(seed, Careless()) as made:
            try:
                STORIES[story](made)
            except AssertionError:
                made.compute.steps.clear()
                made.run()
                return True
        return False

    assert any(map(fails, range(5)))


def test_an_engine_starts_with_a_layer_while_the_next_still_moves() -> None:
    with world(0) as made:
        stored = made.put("block", 1, after=made.compute_block("block", 1))
        made.run()
        assert stored.result(0).ok
        transfer = made.get("block", 5)
        ready = [transfer.layer_ready(layer) for layer in range(LAYERS)]
        seen = []
        while made.device.step_all():
            seen.append([event.done() for event in ready])
            for layer in range(LAYERS):
                same = np.array_equal(made.layer(5, layer), made.layer(1, layer))
                assert same == ready[layer].done()
        assert [True, False, False] in seen
        assert [True, True, False] in seen
        assert transfer.result(0).ok


def test_a_page_group_that_nothing_holds_needs_no_event() -> None:
    with world(0) as made:
        last = made.compute_block("block", 1)[-1]
        transfer = made.handle.put([block_hash("block")], made.kv, block_ids=[1], after=[None, None, last])
        stores = next(stream for stream in made.device.streams if stream.name == "store")
        copied = [len(step.src_rows) for step in [*stores.steps] if stores.step()]
        assert [count > 0 for count in copied] == [False, True, False, True]  # two groups, each behind a wait
        assert not transfer.done()
        made.run()
        assert transfer.result(0).ok


def test_layers_are_ready_when_a_get_has_ended_whatever_came() -> None:
    with world(0) as made:
        missing = made.get("nothing", 0)
        assert missing.done()
        assert all(missing.layer_ready(layer).wait(0) for layer in range(LAYERS))


def test_a_prefix_is_ready_layer_by_layer_though_blocks_behind_it_are_missing() -> None:
    with world(0) as made:
        stored = made.put("first", 1, after=made.compute_block("first", 1))
        made.run()
        assert stored.result(0).ok
        hashes = [block_hash("first"), block_hash("missing")]
        transfer = made.handle.get(hashes, made.kv, block_ids=[5, 6])
        made.device.step_all()
        assert transfer.layer_ready(0).done()
        assert not transfer.done()
        assert len(transfer.layer_ready(0).copies() or []) == 1
        made.run()
        assert transfer.result(0).leading == 1
