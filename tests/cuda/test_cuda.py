"""The driver's calls, made of a recording cupy: what is asked of it, and what its refusals are called."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tierstore.cli import doctor
from tierstore.device import auto, cuda, libcuda
from tierstore.device.copy_table import COPY_TABLE
from tierstore.device.cpu import CpuDevice
from tierstore.errors import ConfigError, DeviceError, DeviceMemoryError, NoDeviceError
from tierstore.registry import load


class CudaError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class Api:
    """Functions that remember how they were called, and give what they are told to."""

    def __init__(self, **given: object) -> None:
        self.calls: list[tuple[object, ...]] = []
        self._given: dict[str, object] = {
            "getDeviceCount": 1,
            "driverGetVersion": 12040,
            "runtimeGetVersion": 13020,
            "getDeviceProperties": {"name": b"NVIDIA H200", "multiProcessorCount": 132},
            "deviceGetPCIBusId": "0000:00:00.0",
            "deviceGetAttribute": 1,
            **given,
        }

    CUDARuntimeError = CUDADriverError = CudaError
    memcpyDefault = 4  # noqa: N815

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*args: object) -> object:
            self.calls.append((name, *args))
            given = self._given.get(name, 77)
            if isinstance(given, Exception):
                raise given
            return given

        return call


def cupy_of(api: Api) -> SimpleNamespace:
    kernel = SimpleNamespace(compile=lambda: None, kernel=SimpleNamespace(ptr=99))
    return SimpleNamespace(
        __version__="14.2.0",
        RawModule=lambda **_: SimpleNamespace(get_function=lambda _: kernel),
        cuda=SimpleNamespace(
            runtime=api,
            driver=api,
            Device=lambda _: nullcontext(),
            compiler=SimpleNamespace(CompileException=type("CompileException", (Exception,), {})),
        ),
    )


def runtime_of(monkeypatch: pytest.MonkeyPatch, **given: object) -> tuple[Api, cuda.CupyRuntime]:
    api = Api(**given)
    cupy = cupy_of(api)
    monkeypatch.setattr(cuda, "_cupy", lambda: cupy)
    monkeypatch.setattr(libcuda, "_libcuda", lambda: api)
    runtime = cuda.CupyRuntime(0)
    api.calls.clear()
    return api, runtime


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"getDeviceCount": CudaError(35), "driverGetVersion": 0}, r"no NVIDIA driver.*CUDA 13\.2.*device\.name"),
        ({"getDeviceCount": CudaError(35)}, r"driver is for CUDA 12\.4, cupy 14\.2\.0 for 13\.2; update"),
        ({"getDeviceCount": CudaError(100)}, "no GPU is visible"),
        ({"getDeviceCount": 0}, "no GPU is visible"),
        ({"getDeviceCount": CudaError(999)}, "cannot be used: cudaError 999"),
    ],
)
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, given: dict[str, object], named: str) -> None:
    cupy = cupy_of(Api(**given))
    monkeypatch.setattr(cuda, "_cupy", lambda: cupy)
    with pytest.raises(NoDeviceError, match=named):
        cuda.open_device()


def test_a_missing_cupy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    cuda._cupy.cache_clear()
    with pytest.raises(NoDeviceError, match=r"cupy cannot be imported.*tierstore\[cuda\]"):
        cuda.open_device()


def test_auto_takes_the_cpu_where_there_is_no_gpu_and_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cupy = cupy_of(Api(getDeviceCount=0))
    monkeypatch.setattr(cuda, "_cupy", lambda: cupy)
    assert isinstance(auto.open_device(), CpuDevice)
    assert "memory of the CPU alone: no GPU is visible" in caplog.text


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"getDeviceCount": CudaError(35), "driverGetVersion": 0}, "no NVIDIA driver is loaded"),
        ({"getDeviceCount": CudaError(35)}, "driver is for CUDA 12.4"),
        ({"getDeviceProperties": CudaError(2)}, "getDeviceProperties on GPU ?: cudaError 2; leave more of its memory"),
        ({"compile": True}, "compile the kernels: nvrtc: error; install a cupy that knows this GPU"),
    ],
    ids=["no driver", "old driver", "no memory for a context", "an architecture that cupy does not know"],
)
def test_auto_takes_the_cpu_where_the_gpu_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, given: dict[str, object], named: str
) -> None:
    cupy = cupy_of(Api(**given))
    if "compile" in given:
        refused = partial(_raise, cupy.cuda.compiler.CompileException("nvrtc: error"))
        cupy.RawModule = lambda **_: SimpleNamespace(get_function=lambda _: SimpleNamespace(compile=refused))
    monkeypatch.setattr(cuda, "_cupy", lambda: cupy)
    monkeypatch.setattr(libcuda, "_libcuda", lambda: cupy.cuda.runtime)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    assert isinstance(auto.open_device(), CpuDevice)
    assert named in caplog.text


def test_a_torch_without_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = cupy_of(Api())
    monkeypatch.setattr(cuda, "_cupy", lambda: cupy)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(NoDeviceError, match=r"torch .* cannot use the GPU; install a CUDA build of torch"):
        cuda.open_device()


def _raise(error: Exception) -> None:
    raise error


def test_every_device_is_registered() -> None:
    assert load("devices", "cuda") is cuda.open_device
    assert load("devices", "auto") is auto.open_device
    with pytest.raises(ConfigError, match="cuda"):
        load("devices", "cudo")


def test_a_gpu_is_described_without_compiling_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = cupy_of(Api(driverGetVersion=12040))
    monkeypatch.setattr(cuda, "_cupy", lambda: cupy)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    assert cuda.describe_gpu() == "NVIDIA H200, number 0, driver for CUDA 12.4; from 12.8 on it would copy in batches"


@pytest.mark.parametrize(("status", "kind"), [(2, DeviceMemoryError), (1, DeviceError), (700, DeviceError)])
def test_what_the_driver_refuses_is_named_by_the_call(
    monkeypatch: pytest.MonkeyPatch, status: int, kind: type[DeviceError]
) -> None:
    _, runtime = runtime_of(monkeypatch, malloc=CudaError(status))
    with pytest.raises(kind, match=rf"malloc of 4096 bytes on GPU 0: cudaError {status}"):
        runtime.allocate(4096)


def test_streams_do_not_wait_for_the_default_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    api, runtime = runtime_of(monkeypatch)
    runtime.new_stream(high_priority=True)
    runtime.new_stream(high_priority=False)
    assert api.calls == [("streamCreateWithPriority", 1, -16), ("streamCreateWithPriority", 1, 0)]


def test_an_event_sleeps_takes_no_time_and_dies_with_its_last_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    api, runtime = runtime_of(monkeypatch)
    mark = runtime.record(5)
    runtime.hold(6, mark)
    runtime.finish(mark)
    del mark
    blocking_and_untimed = 1 | 2
    assert api.calls == [
        ("eventCreateWithFlags", blocking_and_untimed),
        ("eventRecord", 77, 5),
        ("streamWaitEvent", 6, 77),
        ("eventSynchronize", 77),
        ("eventDestroy", 77),
    ]


def test_a_thread_of_the_store_works_on_while_another_captures_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    api, runtime = runtime_of(monkeypatch)
    runtime.enter()
    (device, (verb, mode)) = api.calls
    assert device == ("setDevice", 0)
    assert verb == "cuThreadExchangeStreamCaptureMode"
    relaxed = 2
    assert mode._obj.value == relaxed  # type: ignore[attr-defined]


def test_a_copy_within_a_captured_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _, runtime = runtime_of(monkeypatch)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)
    with pytest.raises(DeviceError, match="CUDA graph"):
        runtime.now()


def test_a_kernel_gets_its_table_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    api, runtime = runtime_of(monkeypatch)
    table = np.zeros(1, COPY_TABLE)
    runtime.launch("gather_16", 3, table, 5)
    ((verb, *numbers, _parameters, extra),) = api.calls
    assert (verb, numbers, extra) == ("launchKernel", [99, 3, 1, 1, 256, 1, 1, 0, 5], 0)


def test_host_memory_is_registered_for_every_context_and_for_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    api, runtime = runtime_of(monkeypatch)
    runtime.register(4096, 8192)
    runtime.unregister(4096)
    portable_and_mapped = 1 | 2
    assert api.calls == [("hostRegister", 4096, 8192, portable_and_mapped), ("hostUnregister", 4096)]


def test_a_batch_reads_its_sources_in_stream_order() -> None:
    seen: list[Any] = []

    def function(*args: object) -> int:
        seen.append(args)
        return 0

    dsts, srcs, nbytes = (np.array([first, first + 1], np.int64) for first in (10, 20, 30))
    libcuda.BatchCopy(function).copy(dsts, srcs, nbytes, 5)
    ((*columns, count, attributes, first, num_attributes, _failed, stream),) = seen
    assert (count, first._obj.value, num_attributes, stream) == (2, 0, 1, 5)
    assert columns == [column.ctypes.data for column in (dsts, srcs, nbytes)]
    stream_order, by_copy_units = 1, 1
    assert (attributes._obj.order, attributes._obj.flags) == (stream_order, by_copy_units)
    with pytest.raises(DeviceError, match="2 pieces: error 719"):
        libcuda.BatchCopy(lambda *_: 719).copy(dsts, srcs, nbytes, 5)


def test_what_a_gpu_is_goes_into_its_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    _, runtime = runtime_of(monkeypatch)
    facts = runtime.facts
    assert (facts.name, facts.driver, facts.processors, facts.memory) == ("NVIDIA H200", 12040, 132, "cuda:0")
    assert (facts.has_batches, facts.reaches_host) == (False, True)


@pytest.mark.parametrize(("device", "mark", "code"), [("cuda", "FAIL", 1), ("auto", "ok", 0), ("cpu", "ok", 0)])
def test_doctor_takes_a_missing_gpu_amiss_only_where_one_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, mark: str, code: int
) -> None:
    cupy = cupy_of(Api(getDeviceCount=0))
    monkeypatch.setattr(cuda, "_cupy", lambda: cupy)
    monkeypatch.setenv("TIERSTORE_DEVICE_NAME", device)
    ended = CliRunner().invoke(doctor.command, ["--ssd-dir", str(tmp_path), "--host-size", "16 MiB"])
    (line,) = (line for line in ended.stdout.splitlines() if " gpu " in line)
    assert line.startswith(mark)
    assert "no GPU is visible" in line
    assert ended.exit_code == code
