"""The CUDA device keeps the contract of devices, whichever way it copies, over a GPU that is late and in no order."""

from __future__ import annotations

import pytest

from tierstore.device.calibration import ROWS_NBYTES, Choices
from tierstore.device.cuda_device import CudaDevice
from tierstore.testing.contracts.device import DeviceContract
from tierstore.testing.contracts.paged_cache import PagedCacheContract
from tierstore.testing.sim_gpu import SimGpu

ENGINES = ("batch", "staged", "kernel-16", "pieces")


@pytest.fixture(scope="module", params=ENGINES)
def device(request: pytest.FixtureRequest) -> CudaDevice:
    gpu = SimGpu(seed=1)
    rates = {(store, nbytes, request.param): 1.0 for store in (True, False) for nbytes in ROWS_NBYTES}
    return CudaDevice(gpu, Choices(gpu.facts, rates))


class TestCudaDevice(DeviceContract): ...


class TestCachesOfCudaDevice(PagedCacheContract): ...
