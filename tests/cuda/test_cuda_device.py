"""The CUDA device over a simulated GPU: what it chooses, what it refuses, and what a GPU in trouble leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tierstore import KVLayout, Namespace, Store, chain_hashes
from tierstore.device import calibration
from tierstore.device.calibration import Choices
from tierstore.device.cuda_device import CudaDevice
from tierstore.device.cuda_stream import AdoptedEvent, CudaEvent
from tierstore.device.paging import bind_rows
from tierstore.errors import DeviceError, DeviceMemoryError
from tierstore.testing.contracts.device import Gate
from tierstore.testing.sim_gpu import SimGpu
from tierstore.types import PAGE_NBYTES, Outcome

if TYPE_CHECKING:
    from tierstore.device.paged_kv import PagedKV
    from tierstore.types import UInt8Array

WAIT_SECONDS = 30.0
BLOCKS = 4
WIDTHS = (64, 1000, 24)


class World:
    """A device, a pool that it has pinned, a stream, and a cache of three page groups."""

    def __init__(self, gpu: SimGpu) -> None:
        self.gpu = gpu
        self.device = CudaDevice(gpu, Choices(gpu.facts, {}))
        self.host: UInt8Array = np.zeros(BLOCKS * PAGE_NBYTES, np.uint8)
        self.unpin = self.device.pin(self.host)
        self.stream = self.device.new_stream("load")
        self.pages = [np.full((BLOCKS, width), index + 1, np.uint8) for index, width in enumerate(WIDTHS)]
        self.kv: PagedKV = bind_rows(self.pages, sum(WIDTHS))
        self.slots = np.arange(BLOCKS, dtype=np.int32)
        self.block_ids = np.arange(BLOCKS, dtype=np.int64)[None]

    def store(self) -> None:
        self.device.store(self.host, self.slots, self.kv, self.block_ids, self.stream)

    def verbs(self) -> set[str]:
        return {call[0] for call in self.gpu.calls}


@pytest.fixture
def world() -> Iterator[World]:
    world = World(SimGpu())
    yield world
    world.stream.close()
    world.unpin()
    assert world.gpu.num_held == 0


def test_only_loads_get_a_stream_of_high_priority(world: World) -> None:
    with closing(world.device.new_stream("store")):
        assert [call[2] for call in world.gpu.calls if call[0] == "new_stream"] == ["high", "low"]


def test_memory_that_could_not_be_pinned_is_copied_piece_by_piece() -> None:
    world = World(SimGpu(memlock_nbytes=0))
    world.store()
    assert world.stream.record().wait(WAIT_SECONDS)
    assert world.device.pinned_nbytes == 0
    assert "copy" in world.verbs()
    assert not world.verbs() & {"launch", "copy_batch"}
    assert world.host[:64].tolist() == [1] * 64
    world.stream.close()
    world.unpin()


def test_pinned_memory_is_copied_by_the_engine_that_was_chosen(world: World) -> None:
    world.store()
    assert world.stream.record().wait(WAIT_SECONDS)
    assert world.device.pinned_nbytes == world.host.nbytes
    assert "launch" in world.verbs()
    assert "copy" not in world.verbs()


def test_the_first_pool_is_measured_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_CACHE_NBYTES", 16 << 20)
    monkeypatch.setattr(calibration, "_BLOCKS_MAX", 1)
    gpu = SimGpu()
    device, pool = CudaDevice(gpu), np.zeros(PAGE_NBYTES, np.uint8)
    device.pin(pool)()
    measured = len(gpu.calls)
    assert measured > 100
    device.pin(pool)()
    assert len(gpu.calls) == measured
    assert gpu.num_held == 0


@pytest.mark.parametrize(
    ("device", "named"), [("cuda:1", "event of cuda:1 cannot order copies of cpu"), (None, "never recorded")]
)
def test_an_event_that_cannot_order_copies_is_refused(world: World, device: str | None, named: str) -> None:
    with pytest.raises(DeviceError, match=named):
        world.device.as_event(SimpleNamespace(device=device, cuda_event=7))


def test_an_event_of_torch_becomes_one_of_the_store_and_others_stay(world: World) -> None:
    adopted = world.device.as_event(SimpleNamespace(device="cpu", cuda_event=7))
    assert isinstance(adopted, AdoptedEvent)
    assert adopted.handle == 7
    event = world.stream.record()
    assert world.device.as_event(event) is event


@pytest.mark.parametrize("verb", ["put", "get"])
def test_a_verb_without_an_event_waits_for_what_its_thread_has_enqueued(verb: str) -> None:
    gpu, gate = SimGpu(), Gate()
    hashes, rows = chain_hashes(range(32), 16), np.ones((2, 64), np.uint8)
    with Store(host_size="1 MiB", ssd_size=0, device=CudaDevice(gpu, Choices(gpu.facts, {}))) as store:
        kv = store.namespace(Namespace(model="simulated", layout=KVLayout.opaque(block_nbytes=64)))
        if verb == "get":
            kv.put(hashes, rows).result(WAIT_SECONDS)
        gpu.present = gate
        transfer = kv.put(hashes, rows) if verb == "put" else kv.get(hashes, rows)
        assert not transfer.done()
        gate.open()
        assert transfer.result(WAIT_SECONDS).leading == 2


@pytest.mark.parametrize("fail_at", range(6))
def test_a_copy_that_is_refused_midway_answers_everyone_who_waits(fail_at: int) -> None:
    world = World(SimGpu(fail_at=fail_at))
    events = world.device.load(world.host, world.slots, world.kv, world.block_ids, world.stream)
    assert [event.wait(WAIT_SECONDS) for event in events] == [True] * 3
    assert isinstance(world.stream.failure, DeviceError)
    moved = [not page.any() for page in world.pages]
    assert moved == [fail_at > 2 * index for index in range(3)]  # a launch and a record a group; none after the failure
    world.stream.close()
    world.unpin()
    assert world.gpu.num_held == 0


def test_a_fault_of_ours_midway_answers_everyone_who_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    monkeypatch.setattr(world.gpu, "launch", lambda *_: 1 // 0)
    events = world.device.load(world.host, world.slots, world.kv, world.block_ids, world.stream)
    assert [event.wait(WAIT_SECONDS) for event in events] == [True] * 3
    assert isinstance(world.stream.failure, ZeroDivisionError)
    with pytest.raises(DeviceError, match="never enqueued"):
        [event.recorded_mark() for event in events if isinstance(event, CudaEvent)]


@pytest.mark.parametrize("reaches_host", [True, False])
def test_a_whole_store_runs_on_it(reaches_host: bool) -> None:
    gpu = SimGpu(seed=7, facts=replace(SimGpu().facts, reaches_host=reaches_host))
    layout = KVLayout.attention(layers=3, kv_heads=2, head_size=12, block_tokens=8)
    hashes = chain_hashes(range(8 * 40), 8)
    random = np.random.default_rng(3)
    pages = [random.integers(0, 256, (40, nbytes), np.uint8) for nbytes in layout.page_nbytes]
    with Store(host_size="1 MiB", ssd_size=0, device=CudaDevice(gpu, Choices(gpu.facts, {}))) as store:
        assert store.metrics()["tierstore_host_registered_bytes"] == 1 << 20
        kv = store.namespace(Namespace(model="simulated", layout=layout))
        assert kv.put(hashes, pages).result(WAIT_SECONDS).leading == 40
        found = [np.zeros_like(page) for page in pages]
        rows = random.permutation(40).tolist()
        assert kv.get(hashes, found, block_ids=rows).result(WAIT_SECONDS).leading == 40
        assert all(np.array_equal(new[rows], old) for new, old in zip(found, pages, strict=True))
    assert gpu.num_held == 0


@pytest.mark.parametrize("stored_as", [None, "int8"])
def test_hits_of_the_device_pool_cross_no_link(stored_as: str | None) -> None:
    gpu = SimGpu(seed=5)
    layout = KVLayout.attention(layers=2, kv_heads=2, head_size=12, block_tokens=8)
    hashes = chain_hashes(range(8 * 10), 8)
    values = np.random.default_rng(3).standard_normal((10, layout.block_nbytes // 2)).astype(np.float16)
    device = CudaDevice(gpu, Choices(gpu.facts, {}))
    with Store(host_size="1 MiB", ssd_size=0, device_pool_size="1 MiB", device=device) as store:
        kv = store.namespace(Namespace("simulated", replace(layout, dtype="float16"), stored_as=stored_as))
        assert kv.put(hashes, values).result(WAIT_SECONDS).ok
        found = [np.zeros_like(values) for _ in range(2)]
        for each in found:
            assert kv.get(hashes, each).result(WAIT_SECONDS).ok
        assert store.metrics()['tierstore_link_blocks_total{link="pool-load",outcome="ok"}'] == 10
    assert np.array_equal(found[0], found[1])
    assert np.allclose(found[0], values, atol=0 if stored_as is None else 0.02)
    assert gpu.num_held == 0


@pytest.mark.parametrize("stored_as", [None, "int8"])
def test_blocks_that_only_the_device_pool_holds_are_lent_as_they_were_stored(stored_as: str | None) -> None:
    gpu, hashes = SimGpu(seed=6), chain_hashes(range(8 * 36), 8)
    layout = replace(KVLayout.attention(layers=2, kv_heads=2, head_size=12, block_tokens=8), dtype="float16")
    namespace = Namespace("simulated", layout, stored_as=stored_as)
    nbytes = layout.block_nbytes if namespace.quantized is None else namespace.quantized.nbytes
    values = np.random.default_rng(4).standard_normal((36, layout.block_nbytes // 2)).astype(np.float16)
    with Store(
        host_size="128 KiB",
        ssd_size=0,
        policy_name="lru",
        device_pool_size="256 KiB",
        device_pool_admission="always",
        device=CudaDevice(gpu, Choices(gpu.facts, {})),
    ) as store:
        kv = store.namespace(namespace)
        found = []
        for first, end in ((0, 4), (4, 36)):  # the second put drives the first out of the 32 slots in host memory
            assert kv.put(hashes[first:end], values[first:end]).result(WAIT_SECONDS).ok
            lease = kv.acquire(hashes[:4])
            offsets = lease.granted.result(WAIT_SECONDS).offsets.tolist()
            found.append([store.pool.view[offset : offset + nbytes].tobytes() for offset in offsets])
            lease.release()
        assert len(found[0]) == 4
        assert found[0] == found[1]
        assert store.metrics()['tierstore_link_blocks_total{link="pool-return",outcome="ok"}'] == 4
    assert gpu.num_held == 0


def test_a_device_pool_that_the_gpu_has_no_memory_for_is_refused() -> None:
    gpu = SimGpu(memory_nbytes=1 << 19)
    with pytest.raises(DeviceMemoryError, match="1048576 bytes of GPU memory"):
        Store(host_size="1 MiB", ssd_size=0, device_pool_size="1 MiB", device=CudaDevice(gpu, Choices(gpu.facts, {})))
    assert gpu.num_held == 0


def test_a_gpu_that_fails_costs_misses_and_no_engine() -> None:
    gpu = SimGpu(fail_at=0)
    hashes = chain_hashes(range(32), 16)
    with Store(host_size="1 MiB", ssd_size=0, device=CudaDevice(gpu, Choices(gpu.facts, {}))) as store:
        kv = store.namespace(Namespace(model="simulated", layout=KVLayout.opaque(block_nbytes=64)))
        result = kv.put(hashes, np.ones((2, 64), np.uint8)).result(WAIT_SECONDS)
        assert (result.leading, set(result.outcomes)) == (0, {Outcome.IO_ERROR})
        assert kv.lookup(hashes) == 0
    assert gpu.num_held == 0


def test_a_store_whose_pool_cannot_be_pinned_works_on_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    gpu = SimGpu(memlock_nbytes=4096)
    hashes, rows = chain_hashes(range(32), 16), np.full((2, 64), 7, np.uint8)
    with Store(host_size="1 MiB", ssd_size=0, device=CudaDevice(gpu)) as store:
        assert store.metrics()["tierstore_host_registered_bytes"] == 0
        kv = store.namespace(Namespace(model="simulated", layout=KVLayout.opaque(block_nbytes=64)))
        kv.put(hashes, rows).result(WAIT_SECONDS)
        found = np.zeros_like(rows)
        assert kv.get(hashes, found).result(WAIT_SECONDS).leading == 2
        assert np.array_equal(found, rows)
    assert "not pinned" in caplog.text
    assert gpu.num_held == 0
