"""Implements `tierstore.device.cuda_runtime` by driver calls: the only module that uses cupy and torch.cuda.

Loaded by the registry for ``device.name = "cuda"``. It decides nothing. A refused driver call becomes a `DeviceError`
with the call's name, and a missing driver or package is named before anything starts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from tierstore.device.calibration_cache import calibrated
from tierstore.device.cuda_device import CudaDevice
from tierstore.device.cuda_runtime import THREADS, GpuFacts
from tierstore.device.cuda_stream import AdoptedEvent
from tierstore.device.kernel_source import OPTIONS, SOURCES, read_source
from tierstore.device.libcuda import BATCHES_SINCE, find_batch_copy, relax_capture
from tierstore.errors import DeviceError, DeviceMemoryError, NoDeviceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.device.cuda_runtime import Mark
    from tierstore.types import Int64Array

__all__ = ["CupyRuntime", "describe_gpu", "open_device", "open_runtime"]

P = ParamSpec("P")
T = TypeVar("T")

_NO_MEMORY = 2  # cudaErrorMemoryAllocation and CUDA_ERROR_OUT_OF_MEMORY
_OLD_DRIVER = 35  # cudaErrorInsufficientDriver
_NO_GPU = 100  # cudaErrorNoDevice
_EVENT_FLAGS = 3  # blocking synchronization, no timing
_NON_BLOCKING = 1
_HIGH_PRIORITY = -16  # the driver takes the nearest that it has
_PORTABLE_MAPPED = 3
_SAME_HOST_ADDRESSES = 91  # cudaDevAttrCanUseHostPointerForRegisteredMem


def open_device() -> CudaDevice:
    """The GPU that torch has as its current one. Compiles the kernels where they are not in cupy's cache yet.

    Raises:
        NoDeviceError: There is no GPU, no driver, or one too old; or torch or cupy cannot use it.
    """
    return CudaDevice(open_runtime(), measure=calibrated)


def open_runtime() -> CupyRuntime:
    """The calls of that GPU alone, for whoever measures them. Raises as `open_device` does."""
    return CupyRuntime(_current_gpu())


def describe_gpu() -> str:
    """That GPU in words, for a person; compiles nothing. Raises as `open_device` does."""
    index, api = _current_gpu(), _cupy().cuda.runtime
    name, driver = api.getDeviceProperties(index)["name"].decode(), int(api.driverGetVersion())
    batches = "" if driver >= BATCHES_SINCE else f"; from {_spoken(BATCHES_SINCE)} on it would copy in batches"
    return f"{name}, number {index}, driver for CUDA {_spoken(driver)}{batches}"


def _current_gpu() -> int:
    cupy = _cupy()
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise NoDeviceError(_why_none(cupy, error)) from error
    if not count:
        raise NoDeviceError('no GPU is visible to this process; choose device.name = "cpu"')
    import torch

    if not torch.cuda.is_available():
        raise NoDeviceError(f"torch {torch.__version__} cannot use the GPU; install a CUDA build of torch")
    return int(torch.cuda.current_device())


def _why_none(cupy: Any, error: Any) -> str:
    if error.status == _OLD_DRIVER:
        has, needs = cupy.cuda.runtime.driverGetVersion(), cupy.cuda.runtime.runtimeGetVersion()
        if not has:
            return f'no NVIDIA driver is loaded; install one for CUDA {_spoken(needs)}, or choose device.name = "cpu"'
        return (
            f"the driver is for CUDA {_spoken(has)}, cupy {cupy.__version__} for {_spoken(needs)}; update the driver, "
            "or install the cupy build of its version"
        )
    if error.status == _NO_GPU:
        return 'no GPU is visible to this process; choose device.name = "cpu"'
    return f"the GPU cannot be used: {error}"


def _spoken(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


@cache
def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise NoDeviceError(f"cupy cannot be imported ({error}); install tierstore[cuda]") from error
    return cupy


class _Event:
    """A recorded event, destroyed with its last reference."""

    def __init__(self, handle: int, destroy: Callable[[int], None]) -> None:
        self.handle = handle
        self._destroy = destroy

    def __del__(self) -> None:
        self._destroy(self.handle)


class CupyRuntime:
    """One GPU, as `tierstore.device.cuda_runtime.CudaRuntime` says.

    Args:
        index: Its number in this process.

    Raises:
        DeviceError: The kernels cannot be compiled, or the driver refuses.
    """

    def __init__(self, index: int) -> None:
        cupy = _cupy()
        self._api = cupy.cuda.runtime
        self._driver = cupy.cuda.driver
        self._on_gpu = partial(cupy.cuda.Device, index)
        driver = int(self._api.driverGetVersion())
        properties = self._call("getDeviceProperties", self._api.getDeviceProperties, index)
        self._batch_copy = find_batch_copy() if driver >= BATCHES_SINCE else None
        self.facts = GpuFacts(
            index=index,
            name=properties["name"].decode(),
            driver=driver,
            processors=int(properties["multiProcessorCount"]),
            has_batches=self._batch_copy is not None,
            reaches_host=bool(self._api.deviceGetAttribute(_SAME_HOST_ADDRESSES, index)),
            memory=f"cuda:{index}",
            numa_node=_numa_node(self._api.deviceGetPCIBusId(index)),
        )
        with self._on_gpu():
            self._kernels = self._call("compile the kernels", _compile, cupy)

    def enter(self) -> None:
        """Make the GPU the calling thread's, and let it work on while another thread captures a CUDA graph."""
        self._call("setDevice", self._api.setDevice, self.facts.index)
        relax_capture()

    def now(self) -> AdoptedEvent:
        """The point that torch's current stream has come to.

        Raises:
            DeviceError: That stream is being captured into a CUDA graph, which no copy of the store can be part of.
        """
        import torch

        if torch.cuda.is_current_stream_capturing():
            raise DeviceError("blocks cannot be copied while a CUDA graph is captured; put and get outside of it")
        return AdoptedEvent(torch.cuda.current_stream(self.facts.index).record_event())

    def new_stream(self, *, high_priority: bool) -> int:
        """A stream that does not wait for the legacy default stream."""
        priority = _HIGH_PRIORITY if high_priority else 0
        with self._on_gpu():
            return int(self._call("streamCreate", self._api.streamCreateWithPriority, _NON_BLOCKING, priority))

    def drop_stream(self, stream: int) -> None:
        """End a stream, once what it holds has ended."""
        self._call("streamDestroy", self._api.streamDestroy, stream)

    def record(self, stream: int) -> Mark:
        """Mark this point of the stream."""
        handle = self._call("eventCreate", self._api.eventCreateWithFlags, _EVENT_FLAGS)
        event = _Event(handle, self._api.eventDestroy)
        self._call("eventRecord", self._api.eventRecord, handle, stream)
        return event

    def hold(self, stream: int, mark: Mark) -> None:
        """Let the stream go on only once the mark is reached."""
        self._call("streamWaitEvent", self._api.streamWaitEvent, stream, mark.handle)

    def finish(self, mark: Mark) -> None:
        """Block the calling thread until the mark is reached."""
        self._call("eventSynchronize", self._api.eventSynchronize, mark.handle)

    def copy(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        """One contiguous piece."""
        self._call("memcpyAsync", self._api.memcpyAsync, dst, src, nbytes, self._api.memcpyDefault, stream)

    def copy_batch(self, dsts: Int64Array, srcs: Int64Array, nbytes: Int64Array, stream: int) -> None:
        """Many pieces by one call."""
        assert self._batch_copy is not None, "the driver copies no batches; ask facts.has_batches"
        self._batch_copy.copy(dsts, srcs, nbytes, stream)

    def launch(self, kernel: str, grid: int, parameter: NDArray[np.void], stream: int) -> None:
        """A kernel with one parameter, copied by the call."""
        parameters = np.array([parameter.ctypes.data], np.uintp)
        self._call(
            kernel,
            self._driver.launchKernel,
            self._kernels[kernel].kernel.ptr,
            *(grid, 1, 1, THREADS, 1, 1, 0, stream, parameters.ctypes.data, 0),
        )

    def allocate(self, nbytes: int) -> int:
        """GPU memory."""
        with self._on_gpu():
            return int(self._call(f"malloc of {nbytes} bytes", self._api.malloc, nbytes))

    def free(self, address: int) -> None:
        """Give it back."""
        with self._on_gpu():
            self._call("free", self._api.free, address)

    def register(self, address: int, nbytes: int) -> None:
        """Pin host memory for every process and GPU that maps it."""
        with self._on_gpu():
            self._call(f"hostRegister of {nbytes} bytes", self._api.hostRegister, address, nbytes, _PORTABLE_MAPPED)

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        with self._on_gpu():
            self._call("hostUnregister", self._api.hostUnregister, address)

    def _call(self, what: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Foreign errors become this package's, here and nowhere else."""
        cupy = _cupy()
        try:
            return call(*args, **kwargs)
        except (self._api.CUDARuntimeError, self._driver.CUDADriverError) as error:
            refused = f"{what} on GPU {self.facts.index if hasattr(self, 'facts') else '?'}: {error}"
            if error.status == _NO_MEMORY:
                raise DeviceMemoryError(f"{refused}; leave more of its memory to the store") from error
            raise DeviceError(refused) from error
        except cupy.cuda.compiler.CompileException as error:
            raise DeviceError(f"{what}: {error}; install a cupy that knows this GPU") from error


def _compile(cupy: Any) -> dict[str, Any]:
    """Every kernel by its name, compiled for the current GPU."""
    kernels: dict[str, Any] = {}
    for source, names in SOURCES.items():
        module = cupy.RawModule(code=read_source(source), options=OPTIONS)
        kernels |= {name: module.get_function(name) for name in names}
    for kernel in kernels.values():
        kernel.compile()
    return kernels


def _numa_node(pci_bus_id: str) -> int | None:
    """The node that a GPU hangs on; None where the machine has one node, or does not say."""
    path = Path("/sys/bus/pci/devices") / pci_bus_id.lower() / "numa_node"
    nodes = list(Path("/sys/devices/system/node").glob("node[0-9]*"))
    if len(nodes) < 2 or not path.is_file():
        return None
    node = int(path.read_text())
    return node if node >= 0 else None
