"""Every CUDA source compiles for the GPUs it is meant for, without one, and keeps its values in registers."""

from __future__ import annotations

import ctypes
import importlib.metadata
import re
from pathlib import Path

import pytest

from tierstore.device.kernel_source import OPTIONS, SOURCES, read_source

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
REPORT = re.compile(r"Function properties for (\w+)\n.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+)")


@pytest.fixture(scope="module")
def nvrtc() -> ctypes.CDLL:
    """The compiler's library, from its wheel."""
    files = importlib.metadata.files("nvidia-cuda-nvrtc") or []
    (library,) = (file for file in files if re.fullmatch(r"libnvrtc\.so\.\d+", file.name))
    return ctypes.CDLL(str(library.locate()))


def compile_for(nvrtc: ctypes.CDLL, source: str, architecture: str) -> tuple[int, str]:
    """NVRTC's status and log, with the report of registers and spills."""
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    options = [option.encode() for option in (*OPTIONS, f"--gpu-architecture={architecture}", "--ptxas-options=-v")]
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    nbytes = ctypes.c_size_t()
    assert nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(nbytes)) == 0
    log = ctypes.create_string_buffer(nbytes.value)
    assert nvrtc.nvrtcGetProgramLog(program, log) == 0
    assert nvrtc.nvrtcDestroyProgram(ctypes.byref(program)) == 0
    return int(status), log.value.decode()


def ptx_of(nvrtc: ctypes.CDLL, source: str) -> str:
    """What NVRTC makes of a source before it becomes the code of one architecture."""
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    options = [option.encode() for option in (*OPTIONS, "--gpu-architecture=compute_80")]
    assert nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)) == 0
    nbytes = ctypes.c_size_t()
    assert nvrtc.nvrtcGetPTXSize(program, ctypes.byref(nbytes)) == 0
    ptx = ctypes.create_string_buffer(nbytes.value)
    assert nvrtc.nvrtcGetPTX(program, ptx) == 0
    assert nvrtc.nvrtcDestroyProgram(ctypes.byref(program)) == 0
    return ptx.value.decode()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", SOURCES)
def test_every_kernel_compiles_without_spills_or_local_arrays(nvrtc: ctypes.CDLL, name: str, architecture: str) -> None:
    status, log = compile_for(nvrtc, read_source(name), architecture)
    assert status == 0, log
    report = {kernel: [int(nbytes) for nbytes in spilled] for kernel, *spilled in REPORT.findall(log)}
    assert set(report) == set(SOURCES[name])
    assert {kernel: spilled for kernel, spilled in report.items() if any(spilled)} == {}


@pytest.mark.parametrize(("width", "access"), [(16, "v4.u32"), (8, "v2.u32"), (4, "u32"), (2, "u16"), (1, "u8")])
@pytest.mark.parametrize("way", ["gather", "scatter"])
def test_each_kernel_moves_its_width_by_streaming_accesses(
    nvrtc: ctypes.CDLL, way: str, width: int, access: str
) -> None:
    ptx = ptx_of(nvrtc, read_source("gather_scatter"))
    body = ptx.split(f".entry {way}_{width}(")[1].split(".entry ")[0]
    loads, stores = (re.findall(rf"\b{verb}\.global\.cs\.(\S+)", body) for verb in ("ld", "st"))
    assert (loads, stores) == ([access] * 4, [access] * 4)


def test_a_local_array_would_be_found_in_the_report(nvrtc: ctypes.CDLL) -> None:
    source = """extern "C" __global__ void spilling(int* out, int at) {
        int local[64] = {};
        for (int i = 0; i < 64; i++) local[(i * at) % 64] += out[i];
        out[threadIdx.x] = local[threadIdx.x % 64];
    }"""
    status, log = compile_for(nvrtc, source, ARCHITECTURES[0])
    assert status == 0, log
    ((kernel, stack_nbytes, _, _),) = REPORT.findall(log)
    assert (kernel, stack_nbytes) == ("spilling", "256")


def test_every_source_is_listed() -> None:
    assert {path.stem for path in (Path(__file__).parents[2] / "kernels").glob("*.cu")} == set(SOURCES)
