"""What only a GPU can show: the contracts on its memory, races with its own work, and refusals of its driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
import torch

from bench.gpu.correctness import check_arrangements, check_quantization, device_by
from bench.gpu.kept import check_checksums, check_kept
from bench.gpu.races import count_races
from tierstore import KVLayout, Namespace, Store, chain_hashes
from tierstore.config import StoreConfig
from tierstore.device.calibration import calibrate
from tierstore.device.copy_engines import engine_names
from tierstore.device.cuda_device import CudaDevice
from tierstore.device.paging import bind_rows
from tierstore.errors import DeviceError, DeviceMemoryError
from tierstore.testing.contracts.device import DeviceContract
from tierstore.testing.contracts.paged_cache import PagedCacheContract
from tierstore.tiers.host_pool import HostPool
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.device.cuda_runtime import CudaRuntime
    from tierstore.types import UInt8Array

pytestmark = pytest.mark.gpu

WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def runtime() -> CudaRuntime:
    from tierstore.device.cuda import open_runtime

    return open_runtime()


@pytest.fixture(scope="module", params=["batch", "staged", "kernel-16", "pieces"])
def device(request: pytest.FixtureRequest, runtime: CudaRuntime) -> CudaDevice:
    if request.param not in engine_names(runtime.facts):
        pytest.skip(f"this GPU and driver copy nothing by {request.param}")
    return device_by(runtime, request.param)


class TestContract(DeviceContract):
    def place(self, array: UInt8Array) -> UInt8Array:
        return cast("UInt8Array", torch.from_numpy(array.copy()).to("cuda"))

    def fetch(self, buffer: UInt8Array) -> UInt8Array:
        return cast("UInt8Array", cast("torch.Tensor", buffer).cpu().numpy())


class TestCaches(PagedCacheContract):
    def place_cache(self, memory: NDArray[np.uint16]) -> NDArray[np.uint16]:
        return cast("NDArray[np.uint16]", torch.from_numpy(memory.copy()).to("cuda"))

    def fetch_cache(self, memory: NDArray[np.uint16]) -> NDArray[np.uint16]:
        return cast("NDArray[np.uint16]", cast("torch.Tensor", memory).cpu().numpy())


def test_every_arrangement_is_right_by_every_engine(runtime: CudaRuntime) -> None:
    assert {checked: wrong for checked, wrong in check_arrangements(runtime) if wrong} == {}


def test_quantizing_kernels_give_numpys_bits(runtime: CudaRuntime) -> None:
    assert {checked: wrong for checked, wrong in check_quantization(runtime) if wrong} == {}


def test_quantized_blocks_and_those_of_the_device_pool_come_back_right(runtime: CudaRuntime) -> None:
    assert {checked: wrong for checked, wrong in check_kept(runtime) if wrong} == {}


def test_checksums_of_blocks_in_its_memory_are_right(runtime: CudaRuntime) -> None:
    assert {checked: wrong for checked, wrong in check_checksums(runtime) if wrong} == {}


def test_slow_kernels_race_no_copy(runtime: CudaRuntime) -> None:
    assert {engine: count_races(runtime, engine, 40) for engine in engine_names(runtime.facts)} == dict.fromkeys(
        engine_names(runtime.facts), 0
    )


def test_calibration_measures_every_engine(runtime: CudaRuntime) -> None:
    assert {name for _, _, name in calibrate(runtime).rates} == set(engine_names(runtime.facts))


def test_memory_that_the_gpu_does_not_have_is_a_named_error(runtime: CudaRuntime) -> None:
    with pytest.raises(DeviceMemoryError, match="malloc of"):
        runtime.allocate(1 << 50)


@pytest.fixture
def copied(device: CudaDevice) -> Iterator[tuple[CudaDevice, UInt8Array]]:
    with closing(HostPool(4 * PAGE_NBYTES)) as pool:
        unpin = device.pin(pool.view)
        yield device, pool.view
        unpin()


def test_a_tensor_that_was_freed_is_refused_before_a_byte_moves(copied: tuple[CudaDevice, UInt8Array]) -> None:
    device, host = copied
    page = torch.zeros((4, 64), dtype=torch.uint8, device="cuda")
    kv = bind_rows(page, 64)
    page.untyped_storage().resize_(0)
    with closing(device.new_stream("store")) as stream, pytest.raises(DeviceError, match="freed"):
        device.store(host, np.zeros(1, np.int32), kv, np.zeros((1, 1), np.int64), stream)


def test_a_cache_of_the_cpu_is_refused_before_a_byte_moves(copied: tuple[CudaDevice, UInt8Array]) -> None:
    device, host = copied
    kv = bind_rows(np.zeros((4, 64), np.uint8), 64)
    with closing(device.new_stream("store")) as stream, pytest.raises(DeviceError, match="on cpu"):
        device.store(host, np.zeros(1, np.int32), kv, np.zeros((1, 1), np.int64), stream)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_store_serves_tensors_of_the_gpu(ordered: bool) -> None:
    """Behind the event that is given, or behind whatever the thread has enqueued."""
    from tierstore.device.cuda import open_device

    layout = KVLayout.attention(layers=4, kv_heads=8, head_size=128, block_tokens=16)
    hashes = chain_hashes(range(16 * 64), 16)
    pages = [torch.randint(0, 256, (64, nbytes), dtype=torch.uint8, device="cuda") for nbytes in layout.page_nbytes]
    with Store(host_size="256 MiB", ssd_size=0, device=open_device()) as store:
        kv = store.namespace(Namespace(model="gpu", layout=layout))
        torch.cuda._sleep(100_000_000)
        for page in pages:
            page.add_(1)
        filled = torch.cuda.current_stream().record_event()
        assert kv.put(hashes, pages, after=filled if ordered else None).result(WAIT_SECONDS).leading == 64
        found = [torch.zeros_like(page) for page in pages]
        zeroed = torch.cuda.current_stream().record_event()
        assert kv.get(hashes, found, after=zeroed if ordered else None).result(WAIT_SECONDS).leading == 64
        assert all(torch.equal(new, old) for new, old in zip(found, pages, strict=True))


def test_blocks_come_from_ssd_straight_into_its_memory(tmp_path: Path) -> None:
    """By GPUDirect Storage, by kvikio's compatibility mode or by scratch, whichever this machine has."""
    from tierstore.device.cuda import open_device

    hashes, blocks = chain_hashes(range(16 * 64), 16), torch.randint(0, 256, (64, 70_000), dtype=torch.uint8)
    settings = {"host_size": "64 MiB", "ssd_dir": str(tmp_path), "ssd_size": "256 MiB", "ssd_free_floor": "1 MiB"}
    namespace = Namespace(model="gpu", layout=KVLayout.opaque(block_nbytes=70_000, block_tokens=16))
    with Store(StoreConfig.load(overrides=settings)) as store:
        assert store.namespace(namespace).put(hashes, blocks, durable=True).result(WAIT_SECONDS).leading == 64
    settings |= {"device_pool_size": "64 MiB", "device_direct_reads": "true"}
    with Store(StoreConfig.load(overrides=settings), device=open_device()) as store:
        found = torch.zeros_like(blocks, device="cuda")
        assert store.namespace(namespace).get(hashes, found).result(WAIT_SECONDS).leading == 64
        assert torch.equal(found.cpu(), blocks)
        assert store.metrics()['tierstore_link_blocks_total{link="ssd-direct",outcome="ok"}'] == 64
