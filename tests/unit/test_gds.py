"""Blocks from SSD straight into the device pool, by a kvikio that remembers: right or not at all, whatever fails."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner

from tests.recording_kvikio import RecordingKvikio
from tierstore import KVLayout, Namespace, Store, chain_hashes
from tierstore.cli import doctor
from tierstore.codec.lz4 import Lz4Codec
from tierstore.config import StoreConfig
from tierstore.device.calibration import Choices
from tierstore.device.cpu import CpuDevice
from tierstore.device.cuda_device import CudaDevice
from tierstore.disk.gds import GdsReads, open_gds
from tierstore.disk.posix import PosixDisk
from tierstore.errors import ConfigError, DiskError
from tierstore.health import Service
from tierstore.testing.sim_gpu import SimGpu
from tierstore.testing.ssd_world import SsdWorld
from tierstore.tiers.direct import DirectReader
from tierstore.types import PAGE_NBYTES, Outcome, TierName

if TYPE_CHECKING:
    from tierstore.device.base import Device
    from tierstore.handle import NamespaceHandle

WAIT_SECONDS = 30.0
BLOCKS = 12
BLOCK_NBYTES = 5000
HASHES = chain_hashes(range(8 * BLOCKS), 8)
NAMESPACE = Namespace("direct", KVLayout.opaque(block_nbytes=BLOCK_NBYTES, block_tokens=8))
VALUES = np.random.default_rng(5).integers(0, 256, (BLOCKS, BLOCK_NBYTES), np.uint8)


@pytest.fixture
def kvikio(monkeypatch: pytest.MonkeyPatch) -> RecordingKvikio:
    return RecordingKvikio(monkeypatch)


@contextmanager
def reopened(
    folder: Path, device: Device | None = None, codec: str = "raw", stall_seconds: float = 10.0
) -> Iterator[tuple[Store, NamespaceHandle]]:
    """A store that has twelve blocks on SSD alone, and reads them straight into its device pool."""
    ssd = {"ssd_dir": str(folder), "ssd_size": "16 MiB", "ssd_file_size": "1 MiB", "ssd_free_floor": "4 KiB"}
    config = StoreConfig.load(overrides={"host_size": "1 MiB", "codec_name": codec, **ssd})
    with Store(config) as store:
        assert store.namespace(NAMESPACE).put(HASHES, VALUES, durable=True).result(WAIT_SECONDS).ok
    direct = replace(config.device, pool_size=512 << 10, direct_reads=True)
    ssd_of = replace(config.ssd, stall_seconds=stall_seconds)
    with Store(replace(config, device=direct, ssd=ssd_of), device=device or CpuDevice()) as store:
        yield store, store.namespace(NAMESPACE)


def read_directly(store: Store) -> float:
    return store.metrics()['tierstore_link_blocks_total{link="ssd-direct",outcome="ok"}']


def get_all(kv: NamespaceHandle) -> None:
    found = np.zeros_like(VALUES)
    assert kv.get(HASHES, found).result(WAIT_SECONDS).ok
    assert np.array_equal(found, VALUES)


def chunk_file(folder: Path) -> Path:
    (path,) = folder.glob("arrays/*/open-*")
    return path


def test_blocks_come_past_host_memory_and_are_hits_of_the_device_pool_then(
    tmp_path: Path, kvikio: RecordingKvikio
) -> None:
    with reopened(tmp_path) as (store, kv):
        get_all(kv)
        assert read_directly(store) == BLOCKS
        assert sorted(size for _interface, _position, size in kvikio.reads) == [8192] * BLOCKS
        get_all(kv)
        assert len(kvikio.reads) == BLOCKS
        assert store.metrics()['tierstore_hit_blocks_total{tier="device-pool"}'] == BLOCKS
        assert store.metrics()["tierstore_host_used_bytes"] == 0
    assert kvikio.num_closed == len(kvikio.opened) > 0


def test_a_gpu_checks_them_by_its_kernel(tmp_path: Path, kvikio: RecordingKvikio) -> None:
    gpu = SimGpu(seed=4)
    with reopened(tmp_path, CudaDevice(gpu, Choices(gpu.facts, {}))) as (store, kv):
        get_all(kv)
        assert read_directly(store) == BLOCKS
    assert ("launch", "crc32c") in {(call[0], call[2]) for call in gpu.calls if call[0] == "launch"}
    assert gpu.num_held == 0
    assert kvikio.reads


def test_a_damaged_block_is_found_by_its_checksum_and_never_loaded(tmp_path: Path, kvikio: RecordingKvikio) -> None:
    with reopened(tmp_path) as (_store, kv):
        path = chunk_file(tmp_path)
        content = bytearray(path.read_bytes())
        content[content.index(VALUES[3].tobytes()) + 4000] ^= 1
        path.write_bytes(content)
        found = np.zeros_like(VALUES)
        result = kv.get(HASHES, found).result(WAIT_SECONDS)
        assert (result.leading, result.outcomes[3]) == (3, Outcome.CORRUPT)
        assert np.array_equal(found[:3], VALUES[:3])
        assert not found[3:].any()
        assert kv.lookup(HASHES) == 3
    assert kvikio.reads


@pytest.mark.parametrize("trouble", ["failing", "short", "absent"])
def test_what_kvikio_does_not_bring_comes_by_way_of_scratch(
    tmp_path: Path,
    kvikio: RecordingKvikio,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    kvikio.failing = 1000 if trouble == "failing" else 0
    kvikio.short = trouble == "short"
    if trouble == "absent":
        monkeypatch.setitem(sys.modules, "kvikio", None)
    with reopened(tmp_path) as (store, kv):
        get_all(kv)
        assert read_directly(store) == BLOCKS
        assert store.health()["ssd"].service is Service.SERVING
    assert ("kvikio is not installed" in caplog.text) == (trouble == "absent")


def test_encoded_blocks_are_decoded_in_host_memory(tmp_path: Path, kvikio: RecordingKvikio) -> None:
    with reopened(tmp_path, codec="lz4") as (store, kv):
        get_all(kv)
        assert read_directly(store) == 0
    assert not kvikio.reads


@pytest.mark.parametrize(("compatible", "way"), [(True, "compatibility mode"), (False, "GPUDirect Storage")])
def test_the_way_is_said_at_start(
    tmp_path: Path, kvikio: RecordingKvikio, caplog: pytest.LogCaptureFixture, compatible: bool, way: str
) -> None:
    kvikio.compatible = compatible
    with caplog.at_level(logging.INFO), reopened(tmp_path):
        assert way in caplog.text


@pytest.mark.parametrize("absent", [False, True])
def test_doctor_says_which_way_it_would_be(
    tmp_path: Path, kvikio: RecordingKvikio, monkeypatch: pytest.MonkeyPatch, absent: bool
) -> None:
    if absent:
        monkeypatch.setitem(sys.modules, "kvikio", None)
    monkeypatch.setenv("TIERSTORE_DEVICE_DIRECT_READS", "true")
    ended = CliRunner().invoke(doctor.command, ["--ssd-dir", str(tmp_path), "--host-size", "16 MiB"])
    (line,) = (line for line in ended.stdout.splitlines() if "direct reads" in line)
    assert line.startswith("slow" if absent else "ok")
    assert ("kvikio is not installed" if absent else "by GPUDirect Storage") in line
    assert ("install tierstore[gds]" in ended.stdout) == absent


def test_memory_of_a_gpu_is_named_as_such(tmp_path: Path, kvikio: RecordingKvikio) -> None:
    (tmp_path / "file").write_bytes(bytes(range(256)) * 32)
    memory = np.zeros(3 * 4096, np.uint8)
    address = memory.ctypes.data + -memory.ctypes.data % 4096
    reads = open_gds(str(tmp_path), on_gpu=True)
    assert reads is not None
    reads.read("file", [(4096, address, 4096)])
    assert kvikio.reads == [("__cuda_array_interface__", 4096, 4096)]
    assert memory.sum() == sum(range(256)) * 16


def test_a_file_that_is_not_there_is_an_error_of_the_disk(tmp_path: Path, kvikio: RecordingKvikio) -> None:
    reads = open_gds(str(tmp_path), on_gpu=False)
    assert isinstance(reads, GdsReads)
    with pytest.raises(DiskError, match="read missing: Unable to open file"):
        reads.read("missing", [(0, 4096, 4096)])
    assert kvikio.opened == []


def test_memory_that_a_read_which_hangs_may_still_fill_is_not_given_back(
    tmp_path: Path, kvikio: RecordingKvikio
) -> None:
    gpu, gate = SimGpu(seed=4), threading.Event()
    with reopened(tmp_path, CudaDevice(gpu, Choices(gpu.facts, {})), stall_seconds=0.2) as (_store, kv):
        kvikio.before_open = lambda: gate.wait(WAIT_SECONDS)
        get = kv.get(HASHES, np.zeros_like(VALUES))
    assert get.done()
    assert gpu.num_held == 2  # the device pool, and the stream of direct reads
    gate.set()
    assert kvikio.closed.wait(WAIT_SECONDS)


def test_records_that_are_not_raw_are_read_by_way_of_scratch(tmp_path: Path, kvikio: RecordingKvikio) -> None:
    pool = np.zeros(1 << 16, np.uint8)
    with closing(DirectReader(CpuDevice(), pool, open_gds(str(tmp_path), on_gpu=False))) as direct:
        world = SsdWorld(PosixDisk(str(tmp_path)), codec=Lz4Codec(), direct=direct)
        tier, user = world.begin(BLOCK_NBYTES)
        user.write(tier, [0])
        job = replace(user.read_job([0]), dst=TierName.DEVICE_POOL, dst_locations=np.array([2], np.int32))
        assert tier.read(job).outcomes.tolist() == [Outcome.OK]
        assert pool[2 * PAGE_NBYTES :][:BLOCK_NBYTES].tobytes() == user.payload(0)
        world.close()
    assert not kvikio.reads


def test_a_file_sealed_while_it_is_about_to_be_read_is_found_by_its_new_name(
    tmp_path: Path, kvikio: RecordingKvikio
) -> None:
    pool = np.zeros(1 << 16, np.uint8)
    with closing(DirectReader(CpuDevice(), pool, open_gds(str(tmp_path), on_gpu=False))) as direct:
        world = SsdWorld(PosixDisk(str(tmp_path)), direct=direct)
        tier, user = world.begin(BLOCK_NBYTES)
        user.write(tier, [0, 1])
        kvikio.before_open = lambda: user.write(tier, range(2, 12))  # more than its file takes
        job = replace(user.read_job([0, 1]), dst=TierName.DEVICE_POOL, dst_locations=np.array([4, 0], np.int32))
        assert tier.read(job).outcomes.tolist() == [Outcome.OK] * 2
        assert [Path(path).name.split(".")[0] for path in kvikio.opened] == ["c"]
        for name, start in ((0, 4 * PAGE_NBYTES), (1, 0)):
            assert pool[start : start + BLOCK_NBYTES].tobytes() == user.payload(name)
        world.close()


@pytest.mark.parametrize("given", [{}, {"device_pool_size": "1 MiB"}, {"ssd_size": "1 GiB"}])
def test_direct_reads_without_an_end_are_refused_by_their_setting(tmp_path: Path, given: dict[str, object]) -> None:
    folder = {"ssd_dir": str(tmp_path)} if "ssd_size" in given else {}
    settings = {"host_size": "1 MiB", "device_direct_reads": True, **given, **folder}
    with pytest.raises(ConfigError, match=r"direct_reads needs device\.pool_size and an ssd\.dir"):
        Store(StoreConfig.load(overrides=settings))
