"""The whole store, SSD tier and its threads included, on the simulated device: what it reads too early is poison.

Links to SSD run on threads of their own, as ever; streams go on only where the test steps them, between whatever
those threads do. A slot that is written, evicted or read from SSD before its copy has been stepped holds the wrong
bytes, and every get compares.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from tests.payload import SMALL, block_hash, num_pins, payload
from tierstore.config import StoreConfig
from tierstore.keys import Namespace
from tierstore.layout import KVLayout
from tierstore.store import Store
from tierstore.testing.sim_device import SimDevice
from tierstore.testing.sim_disk import SimDisk
from tierstore.transfer.future import Transfer, TransferResult

BLOCK_NBYTES = 8192
LAYERS = 2
NAMES = 80
"""Blocks: more than the pool's 32 slots, so that most gets read from SSD into slots that others have just left."""


class World:
    """A small store on a simulated device."""

    def __init__(self, seed: int, device_pool: object = None, **settings: object) -> None:
        self.device = SimDevice()
        self.random = random.Random(seed)
        config = StoreConfig.load(env={}, overrides=SMALL | {"ssd_size": "4 MiB"} | settings)
        self.store = Store(config, disk=SimDisk(), device=self.device, device_pool=device_pool)
        layout = KVLayout.attention(layers=LAYERS, kv_heads=1, head_size=64, block_tokens=16)
        assert layout.block_nbytes == BLOCK_NBYTES
        self.handle = self.store.namespace(Namespace("model", layout))

    def ended(self, transfer: Transfer) -> TransferResult:
        """Step streams, now and then none, until a transfer has ended."""
        while True:
            try:
                return transfer.result(0.001)
            except TimeoutError:
                for stream in self.device.streams:
                    if self.random.random() < 0.8:
                        self.device.step(stream)

    def put(self, names: list[int]) -> Transfer:
        """Put blocks from buffers that the engine spoils as soon as it may."""
        blocks = np.stack([payload(name, BLOCK_NBYTES) for name in names])
        halves = [
            np.ascontiguousarray(blocks[:, : BLOCK_NBYTES // 2]),
            np.ascontiguousarray(blocks[:, BLOCK_NBYTES // 2 :]),
        ]

        def spoil(_transfer: Transfer) -> None:
            for half in halves:
                half.fill(0xEE)

        transfer = self.handle.put([block_hash(name) for name in names], halves, durable=self.random.random() < 0.3)
        transfer.add_done_callback(spoil)
        return transfer

    def get(self, names: list[int]) -> int:
        """Get blocks and compare; returns how many came."""
        halves = [np.full((len(names), BLOCK_NBYTES // 2), 0x55, np.uint8) for _ in range(LAYERS)]
        result = self.ended(self.handle.get([block_hash(name) for name in names], halves))
        for place, name in enumerate(names[: result.leading]):
            found = np.concatenate([half[place] for half in halves])
            assert np.array_equal(found, payload(name, BLOCK_NBYTES)), f"wrong bytes for block {name}"
        assert all((half[result.leading :] == 0x55).all() for half in halves)
        return result.leading


@pytest.fixture(params=range(3))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(request.param)
    with made.store:
        yield made
    made.device.run_all()


@pytest.fixture(params=range(4))
def world_with_device_pool(request: pytest.FixtureRequest) -> Iterator[World]:
    """Every other one of a pool that is lent."""
    lent = np.empty(256 << 10, np.uint8) if request.param % 2 else None
    size = "256 KiB" if lent is None else 0
    made = World(request.param, lent, device_pool_size=size, device_pool_admission="always")
    with made.store:
        yield made
    made.device.run_all()
    assert made.device.num_allocated == 0


def test_every_block_that_comes_back_from_any_tier_is_the_one_that_was_put(world_with_device_pool: World) -> None:
    test_every_block_that_comes_back_is_the_one_that_was_put(world_with_device_pool)
    metrics = world_with_device_pool.store.metrics()
    assert metrics['tierstore_hit_blocks_total{tier="device-pool"}'] > 5
    assert metrics['tierstore_evicted_blocks_total{tier="device-pool"}'] > 20


def test_every_block_that_comes_back_is_the_one_that_was_put(world: World) -> None:
    pending: list[Transfer] = []
    num_loaded = 0
    for _ in range(60):
        first = world.random.randrange(NAMES - 8)
        names = list(range(first, first + world.random.randint(1, 8)))
        if world.random.random() < 0.5:
            pending.append(world.put(names))
        else:
            num_loaded += world.get(names)
        if len(pending) > 3:
            world.ended(pending.pop(world.random.randrange(len(pending))))
    for transfer in pending:
        world.ended(transfer)
    world.ended(world.store.flush())
    assert num_loaded > 20
    metrics = world.store.metrics()
    assert metrics['tierstore_hit_blocks_total{tier="ssd"}'] > 0
    assert num_pins(world.store) == 0
