"""Mistakes of callers and settings: each is a named error that says what, which value and what to do.

And each leaves nothing half made: the folder is as it was, threads and memory are gone, the right call works.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.payload import SMALL, TIMEOUT_SECONDS, block_hash, get, namespace, num_pins, rows, small_store
from tierstore.aio import AsyncStore
from tierstore.config import StoreConfig
from tierstore.errors import (
    ClosedError,
    ConfigError,
    DeviceMemoryError,
    IdentityError,
    LayoutError,
    MemoryLimitError,
    TierstoreError,
)
from tierstore.keys import Namespace
from tierstore.layout import KVLayout
from tierstore.store import NamespaceHandle, Store
from tierstore.testing.sim_disk import SimDisk
from tierstore.types import Presence

BLOCK_NBYTES = 8192
BLOCKS = [block_hash(number) for number in range(4)]
BYTES = rows(range(4), BLOCK_NBYTES)


@pytest.fixture(autouse=True)
def shared_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools that others may map: they can be told apart from other memory."""
    monkeypatch.setenv("TIERSTORE_HOST_SHARED", "true")


def everything_held() -> tuple[list[str], int, int]:
    """Threads, pools and open files of this process; gRPC's sockets, behind tests of the service, come and go."""
    gc.collect()
    links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    if "grpc" in sys.modules:
        links = [link for link in links if not link.startswith(("socket:", "anon_inode:"))]
    pools = sum("memfd:tierstore" in line for line in Path("/proc/self/maps").read_text().splitlines())
    return sorted(thread.name for thread in threading.enumerate()), pools, len(links)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but LOCK, which says who came last and when."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "LOCK"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def refused(kind: type[TierstoreError], call: Callable[[], object], folder: Path) -> str:
    """Assert that a call fails, holds nothing afterwards and has changed no file of the folder; what it said."""
    held, files = everything_held(), contents(folder)
    with pytest.raises(kind) as caught:
        call()
    said = str(caught.value)
    del caught
    assert everything_held() == held
    assert contents(folder) == files
    return said


def works(folder: Path) -> None:
    with small_store(ssd_dir=folder) as store:
        handle = store.namespace(namespace())
        assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        assert get(handle, BLOCKS, BYTES).ok


@pytest.mark.parametrize(
    ("settings", "kind", "said"),
    [
        ({"ssd_file_size": "512 KiB"}, ConfigError, ["1 MiB", "512 KiB", "2 MiB", "[ssd] size"]),
        ({"ssd_file_size": 4097}, ConfigError, ["4097", "multiple of 4096"]),
        ({"ssd_read_threads": "64GB"}, ConfigError, ["ssd.read_threads", '"64GB"', "a whole number from 1"]),
        ({"links_requests_max": "64 GiB"}, ConfigError, ["links.requests_max", '"64 GiB"', "a whole number"]),
        ({"host_size": "64 gigs"}, ConfigError, ["host.size", '"64 gigs"', '"64 GiB"']),
        ({"host_slab_size": "128 KiB"}, ConfigError, ["256 KiB", "128 KiB", "[host] slab_size"]),
        ({"host_size": "100 TiB", "host_slab_size": "auto"}, ConfigError, ["100 TiB", "at most", "[host] size"]),
        ({"host_size": "7 TiB", "host_slab_size": "auto"}, MemoryLimitError, ["7 TiB", "leaves", "[host] size"]),
        (
            {"device_pool_size": "4 KiB"},
            ConfigError,
            ["device.pool_size", '"4 KiB"', "at least 64 KiB", "0 to turn it off"],
        ),
        (
            {"device_pool_size": "1 MiB", "device_pool_admission": "write-back"},
            ConfigError,
            ["device.pool_admission", '"write-back"', "choose second-hit"],
        ),
        ({"device_pool_size": "1000 TiB"}, DeviceMemoryError, ["1000 TiB", "device.pool_size"]),
        ({"host_sise": "1 GiB"}, ConfigError, ["host_sise", "host_size"]),
        ({"codec_name": "lz5"}, ConfigError, ["'lz5'", "codecs"]),
        ({"policy_name": "lruu"}, ConfigError, ["'lruu'", "lru"]),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else None,
)
def test_an_impossible_setting_is_refused(
    tmp_path: Path, settings: dict[str, object], kind: type[TierstoreError], said: list[str]
) -> None:
    folder = tmp_path / "kv"
    works(folder)
    text = refused(kind, lambda: small_store(None, ssd_dir=folder, **settings), folder)
    assert [part for part in said if part not in text] == []
    works(folder)


def test_a_namespace_whose_blocks_fit_no_slab_is_refused_and_not_written_down(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        before = contents(tmp_path)
        with pytest.raises(ConfigError, match=r"slot of 12 KiB.*slab of 64 KiB.*at least 96 KiB"):
            store.namespace(namespace(12288))
        assert contents(tmp_path) == before
        assert get(store.namespace(namespace()), BLOCKS, BYTES).leading == 0


BAD_CALLS: dict[str, tuple[Callable[[NamespaceHandle], object], type[TierstoreError], str]] = {
    "rows too short": (lambda h: h.put(BLOCKS, BYTES[:, :-2]), LayoutError, "8190 bytes a block, expected 8192"),
    "rows too long": (lambda h: h.get(BLOCKS, rows(range(4), 8194)), LayoutError, "8194 bytes a block, expected 8192"),
    "pages of two layers short": (
        lambda h: h.put(BLOCKS, [BYTES[:, :4096], BYTES[:, 4098:]]),
        LayoutError,
        "8190 bytes a block, expected 8192",
    ),
    "another dtype": (
        lambda h: h.get(BLOCKS, np.zeros((4, 4096), np.float16)),
        LayoutError,
        "float16, for a layout of bfloat16; pass bfloat16, or the bytes as uint8",
    ),
    "objects": (lambda h: h.put(BLOCKS, np.empty((4, 1024), object)), LayoutError, "cannot hold blocks"),
    "a step between elements": (
        lambda h: h.put(BLOCKS, np.zeros((4, 2 * BLOCK_NBYTES), np.uint8)[:, ::2]),
        LayoutError,
        "contiguous",
    ),
    "too few rows": (lambda h: h.put(BLOCKS, BYTES[:3]), LayoutError, "4 hashes but buffers of 3 blocks"),
    "too few block ids": (lambda h: h.put(BLOCKS, BYTES, block_ids=[0]), LayoutError, "4 hashes but block_ids"),
    "a row outside": (
        lambda h: h.put(BLOCKS, BYTES, block_ids=[0, 1, 2, 4]),
        LayoutError,
        "block id 4 lies outside buffers of 4 blocks",
    ),
    "a row twice": (
        lambda h: h.get(BLOCKS, BYTES.copy(), block_ids=[0, 1, 1, 2]),
        LayoutError,
        "block id 1 is named twice",
    ),
    "a buffer that is read-only": (
        lambda h: h.get(BLOCKS, np.frombuffer(BYTES.tobytes(), np.uint8).reshape(BYTES.shape)),
        LayoutError,
        "read-only",
    ),
    "a short hash": (lambda h: h.put([*BLOCKS[:3], b"short"], BYTES), IdentityError, "hash 3 has 5 bytes"),
    "a hash of text": (lambda h: h.lookup(["0" * 32]), IdentityError, "hash 0 is a str"),  # type: ignore[list-item]
    "an array of short hashes": (lambda h: h.lookup(np.zeros((4, 31), np.uint8)), IdentityError, "uint8[4, 31]"),
    "a short parent": (lambda h: h.put(BLOCKS, BYTES, parent=b"root"), IdentityError, "4 bytes"),
    "an advice without end": (
        lambda h: h.plan_load(BLOCKS, deadline_seconds=float("nan")),
        ConfigError,
        "deadline_seconds is nan",
    ),
    "an advice for a negative head": (
        lambda h: h.plan_load(BLOCKS, computed_tokens=-1),
        ConfigError,
        "computed_tokens is -1",
    ),
    "a hash twice": (
        lambda h: h.put([*BLOCKS[:3], BLOCKS[1]], BYTES),
        IdentityError,
        "hash 3 is hash 1 again; a chain names each block once",
    ),
}


@pytest.mark.parametrize(("call", "kind", "said"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_a_wrong_argument_is_refused_before_anything_happens(
    call: Callable[[NamespaceHandle], object], kind: type[TierstoreError], said: str
) -> None:
    layout = KVLayout.attention(layers=2, kv_heads=2, head_size=64, block_tokens=8)
    assert layout.block_nbytes == BLOCK_NBYTES
    with small_store(SimDisk()) as store:
        handle = store.namespace(Namespace("model", layout))
        before = store.metrics()
        with pytest.raises(kind) as caught:
            call(handle)
        assert said in str(caught.value)
        assert store.metrics() == before
        assert num_pins(store) == 0
        assert handle.presence(BLOCKS) == [Presence.MISS] * 4
        assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        assert get(handle, BLOCKS, BYTES).ok


CALLS_OF_A_CLOSED_STORE: dict[str, Callable[[Store, NamespaceHandle], object]] = {
    "put": lambda _store, handle: handle.put(BLOCKS, BYTES),
    "get": lambda _store, handle: handle.get(BLOCKS, BYTES.copy()),
    "lookup": lambda _store, handle: handle.lookup(BLOCKS),
    "presence": lambda _store, handle: handle.presence(BLOCKS),
    "prefetch": lambda _store, handle: handle.prefetch(BLOCKS),
    "delete": lambda _store, handle: handle.delete(BLOCKS),
    "clear": lambda _store, handle: handle.clear(),
    "flush": lambda store, _handle: store.flush(),
    "namespace": lambda store, _handle: store.namespace(namespace(4096)),
}


@pytest.mark.parametrize("call", CALLS_OF_A_CLOSED_STORE.values(), ids=CALLS_OF_A_CLOSED_STORE)
def test_a_closed_store_refuses(call: Callable[[Store, NamespaceHandle], object]) -> None:
    disk = SimDisk()
    store = small_store(disk)
    handle = store.namespace(namespace())
    store.close()
    store.close()
    with pytest.raises(ClosedError, match="open a new Store"):
        call(store, handle)
    assert disk.num_open == 0


async def test_a_closed_asyncio_store_refuses() -> None:
    store = AsyncStore(StoreConfig.load(overrides=SMALL))
    handle = await store.namespace(namespace())
    await store.close()
    with pytest.raises(ClosedError, match="open a new Store"):
        await handle.put(BLOCKS, BYTES)


def test_a_store_that_ends_gives_back_threads_memory_and_files(tmp_path: Path) -> None:
    works(tmp_path)  # what Python itself keeps from the first time on
    held = everything_held()
    works(tmp_path)
    assert everything_held() == held
