"""KV that the store keeps as one byte an element: near what was put, smaller, and never taken for exact KV."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

from tests.payload import TIMEOUT_SECONDS, block_hash, small_store
from tierstore import KVLayout, Namespace, PageKind, PageSpec, Store
from tierstore.cli.doctor import command
from tierstore.device.axes import PagedTensor
from tierstore.device.calibration import Choices
from tierstore.device.cpu import CpuDevice
from tierstore.device.cuda_device import CudaDevice
from tierstore.device.paged_kv import PagedKV
from tierstore.errors import LayoutError
from tierstore.quantized import SCHEMES
from tierstore.testing.sim_gpu import SimGpu
from tierstore.types import Outcome

if TYPE_CHECKING:
    from tierstore.device.base import Device
    from tierstore.types import UInt8Array

HEAD = 64
LAYOUT = KVLayout.attention(layers=2, kv_heads=2, head_size=HEAD, block_tokens=8)
EXACT = Namespace("model", LAYOUT)
COUNT = 12
HASHES = [block_hash(number) for number in range(COUNT)]
DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
ERRORS = {"fp8_e4m3": 2**-4, "int8": 0.5 / 127}
"""Of an element: half a step of its code, at most. A code of FP8 keeps four bits of each value, one of INT8 a 127th of
its head's largest."""


def values(dtype: str, seed: int = 1) -> UInt8Array:
    """uint8[COUNT, block_nbytes] of elements as KV has them: most near zero, a few far from it in each head."""
    random = np.random.default_rng(seed)
    num_elements = LAYOUT.block_nbytes // LAYOUT.item_nbytes
    made = random.standard_normal((COUNT, num_elements)) * np.exp2(random.integers(-6, 5, (COUNT, num_elements)))
    rows: UInt8Array = made.astype(DTYPES[dtype]).view(np.uint8)
    return rows


def check_near(found: UInt8Array, put: UInt8Array, dtype: str, scheme: str) -> None:
    """Every element within the scheme's bound, and what the dtype's own rounding adds."""
    new, old = (rows.view(DTYPES[dtype]).astype(np.float64).reshape(-1, HEAD) for rows in (found, put))
    largest = np.abs(old).max(axis=1, keepdims=True)
    smallest = largest / SCHEMES[scheme] * 2**-10  # half of FP8's smallest code
    near = np.maximum(np.abs(old) * ERRORS[scheme], smallest) if scheme == "fp8_e4m3" else largest * ERRORS[scheme]
    assert (np.abs(new - old) <= near + np.abs(new) * 2**-8).all()
    assert not np.array_equal(found, put)


def sim_gpu() -> Device:
    gpu = SimGpu(seed=3)
    return CudaDevice(gpu, Choices(gpu.facts, {}))


@pytest.mark.parametrize("device", [CpuDevice, sim_gpu], ids=["cpu", "simulated gpu"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_get_brings_is_as_near_as_the_scheme_promises(
    dtype: str, scheme: str, device: Callable[[], Device]
) -> None:
    put = values(dtype)
    found = np.zeros_like(put)
    with Store(host_size="1 MiB", ssd_size=0, device=device()) as store:
        kv = store.namespace(replace(EXACT, layout=replace(LAYOUT, dtype=dtype), stored_as=scheme))
        assert kv.put(HASHES, put).result(TIMEOUT_SECONDS).ok
        assert kv.get(HASHES, found).result(TIMEOUT_SECONDS).ok
    check_near(found, put, dtype, scheme)


@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_it_outlives_a_restart_in_half_the_bytes(tmp_path: Path, codec: str) -> None:
    lossy, put = replace(EXACT, stored_as="int8"), values("bfloat16")
    first, second = np.zeros_like(put), np.zeros_like(put)
    with small_store(ssd_dir=tmp_path / "kv", codec_name=codec) as store:
        kv = store.namespace(lossy)
        assert kv.put(HASHES, put, durable=True).result(TIMEOUT_SECONDS).ok
        assert kv.get(HASHES, first).result(TIMEOUT_SECONDS).ok
        written = store.metrics()['tierstore_link_bytes_total{link="ssd-write"}']
        assert written == COUNT * lossy.stored_layout.block_nbytes < 0.54 * put.nbytes
    with small_store(ssd_dir=tmp_path / "kv", codec_name=codec) as store:
        assert store.namespace(lossy).get(HASHES, second).result(TIMEOUT_SECONDS).ok
        assert store.namespace(EXACT).lookup(HASHES) == 0
    assert np.array_equal(first, second)
    check_near(second, put, "bfloat16", "int8")


def test_a_bound_cache_serves_exact_and_lossy_namespaces_alike() -> None:
    tensor = np.zeros((COUNT, 2, 2, 8, 2, HEAD), np.uint16)
    pages = ["layers.0", "layers.1"]
    kv = PagedKV.bind(LAYOUT, [PagedTensor(tensor, "block layer plane token head element", pages)])
    put = values("bfloat16")
    with Store(host_size="1 MiB", ssd_size=0) as store:
        exact, lossy = store.namespace(EXACT), store.namespace(replace(EXACT, stored_as="fp8_e4m3"))
        for handle in (exact, lossy):
            tensor.reshape(COUNT, -1)[:] = put.view(np.uint16)
            assert handle.put(HASHES, kv).result(TIMEOUT_SECONDS).ok
            tensor[:] = 0
            assert handle.get(HASHES, kv).result(TIMEOUT_SECONDS).ok
            found = tensor.reshape(COUNT, -1).view(np.uint8)
            if handle is exact:
                assert np.array_equal(found, put)
    check_near(found, put, "bfloat16", "fp8_e4m3")


@pytest.mark.parametrize(
    ("layout", "scheme", "named"),
    [
        (LAYOUT, "int4", "'int4' is unknown; use one of fp8_e4m3, int8"),
        (replace(LAYOUT, dtype="float8_e4m3"), "int8", "KV of float8_e4m3 cannot be quantized"),
        (KVLayout.opaque(block_nbytes=64), "int8", "page 'block' is a state"),
        (
            KVLayout((PageSpec("a", PageKind.FULL, 1, 32, 2), PageSpec("b", PageKind.FULL, 1, 64, 2)), 8, "bfloat16"),
            "int8",
            r"heads of \[32, 64\] elements",
        ),
    ],
)
def test_what_cannot_be_quantized_is_refused_with_its_namespace(layout: KVLayout, scheme: str, named: str) -> None:
    with pytest.raises(LayoutError, match=named):
        Namespace("model", layout, stored_as=scheme)


def test_a_cache_whose_heads_lie_in_pieces_is_refused() -> None:
    tensor = np.zeros((COUNT, 2, 2, 2, 8, 2, HEAD // 2), np.uint16)
    axes = "block layer element plane token head element"
    kv = PagedKV.bind(LAYOUT, [PagedTensor(tensor, axes, ["layers.0", "layers.1"])])
    with (
        Store(host_size="1 MiB", ssd_size=0) as store,
        pytest.raises(LayoutError, match="rows of 64 bytes are not whole groups of 128"),
    ):
        store.namespace(replace(EXACT, stored_as="int8")).put(HASHES, kv)


def test_what_a_gpu_cannot_quantize_is_not_stored_at_all(caplog: pytest.LogCaptureFixture) -> None:
    """There is no memory for staging."""
    gpu = SimGpu(memory_nbytes=0)
    with Store(host_size="1 MiB", ssd_size=0, device=CudaDevice(gpu, Choices(gpu.facts, {}))) as store:
        kv = store.namespace(replace(EXACT, stored_as="int8"))
        result = kv.put(HASHES, values("bfloat16")).result(TIMEOUT_SECONDS)
        assert set(result.outcomes) == {Outcome.IO_ERROR}
        assert kv.lookup(HASHES) == 0
    assert "bytes of GPU memory" in caplog.text
    assert gpu.num_held == 0


def test_it_is_said_loudly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_store(ssd_dir=tmp_path / "kv") as store, caplog.at_level(logging.WARNING):
        store.namespace(EXACT)
        assert not caplog.text
        store.namespace(replace(EXACT, stored_as="fp8_e4m3"))
        assert "KV of model is stored as fp8_e4m3, which loses precision" in caplog.text
    said = CliRunner().invoke(command, ["--ssd-dir", str(tmp_path / "kv"), "--host-size", "1 MiB"]).output
    assert [line.split()[:4] for line in said.splitlines() if line.startswith("LOSS")] == [
        ["LOSS", "KV", "of", "model"]
    ]
    assert "stored as fp8_e4m3" in said
