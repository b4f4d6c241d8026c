"""Whoever differs in anything that shaped the bytes shares nothing, now and after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.payload import TIMEOUT_SECONDS, block_hash, get, rows, small_store
from tierstore.keys import Namespace, chain_hashes
from tierstore.layout import KVLayout, MemoryOrder
from tierstore.store import Store

LAYOUT = KVLayout.attention(layers=2, kv_heads=2, head_size=64, block_tokens=8)
BLOCKS = [block_hash(number) for number in range(4)]
BYTES = rows(range(4), LAYOUT.block_nbytes)
UNSET = Namespace("model", LAYOUT)
SET = Namespace(
    "model",
    LAYOUT,
    revision="r1",
    engine_config="digest",
    quantization="none",
    tp_size=2,
    pp_size=1,
    shard=(0, 2),
    tenant="a",
)

OTHERS = {
    "model": replace(SET, model="model2"),
    "dtype of equal size": replace(SET, layout=replace(LAYOUT, dtype="float16")),
    "dtype of half the size": replace(SET, layout=replace(LAYOUT, dtype="float8_e4m3", block_tokens=16)),
    "memory order": replace(SET, layout=replace(LAYOUT, order=MemoryOrder.HND)),
    "name of a layer": replace(SET, layout=replace(LAYOUT, pages=LAYOUT.pages[::-1])),
    "shape of equal bytes": replace(
        SET, layout=KVLayout.attention(layers=2, kv_heads=1, head_size=128, block_tokens=8)
    ),
    "revision": replace(SET, revision="r2"),
    "no revision": replace(SET, revision=None),
    "empty revision": replace(SET, revision=""),
    "engine config": replace(SET, engine_config="other digest"),
    "no engine config": replace(SET, engine_config=None),
    "quantization": replace(SET, quantization="fp8"),
    "no quantization": replace(SET, quantization=None),
    "tp size": replace(SET, tp_size=4),
    "no tp size": replace(SET, tp_size=None),
    "pp size": replace(SET, pp_size=2),
    "shard": replace(SET, shard=(1, 2)),
    "tenant": replace(SET, tenant="b"),
    "no tenant": replace(SET, tenant=None),
    "tenant in the model's name": replace(SET, model="modela", tenant=None),
    "stored as int8": replace(SET, stored_as="int8"),
    "stored as fp8": replace(SET, stored_as="fp8_e4m3"),
    "nothing set": UNSET,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the blocks of `SET`."""
    folder = tmp_path_factory.mktemp("identity") / "kv"
    with small_store(ssd_dir=folder) as store:
        put_blocks(store, SET)
    return folder


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[Store]:
    """A store that found them again."""
    with small_store(ssd_dir=folder) as store:
        yield store


def put_blocks(store: Store, namespace: Namespace) -> None:
    assert store.namespace(namespace).put(BLOCKS, BYTES, durable=True).result(TIMEOUT_SECONDS).ok


def test_an_equal_namespace_finds_its_blocks(store: Store) -> None:
    assert get(store.namespace(replace(SET)), BLOCKS, BYTES).ok


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_namespace_that_differs_finds_nothing(store: Store, other: Namespace) -> None:
    handle = store.namespace(other)
    assert handle.lookup(BLOCKS) == 0
    assert get(handle, BLOCKS, BYTES).leading == 0
    assert handle.delete(BLOCKS).result(10).num_ok == 0
    assert store.namespace(SET).lookup(BLOCKS) == 4


def test_what_one_namespace_clears_stays_for_the_others(tmp_path: Path) -> None:
    namespaces = [UNSET, replace(UNSET, tenant="a"), replace(UNSET, revision="r1")]
    with small_store(ssd_dir=tmp_path) as store:
        for namespace in namespaces:
            put_blocks(store, namespace)
        store.namespace(namespaces[1]).clear()
        assert [store.namespace(namespace).lookup(BLOCKS) for namespace in namespaces] == [4, 0, 4]
    with small_store(ssd_dir=tmp_path) as store:
        assert [store.namespace(namespace).lookup(BLOCKS) for namespace in namespaces] == [4, 0, 4]


NAMES = [
    "meta-llama/Llama-3.1-8B",
    "org/model:latest",
    "model@sha256:0123",
    "a model with spaces ",
    "../../outside",
    "/absolute/path",
    "..",
    "line\r\nbreak",
    "nul\0byte",
    "c" * 4096,
    "模型 – ü",
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:20]))
def test_any_name_works_and_stays_inside_the_folder(tmp_path: Path, name: str) -> None:
    folder, namespace = tmp_path / "kv", replace(UNSET, model=name, tenant=name, revision=name)
    with small_store(ssd_dir=folder) as store:
        put_blocks(store, namespace)
    with small_store(ssd_dir=folder) as store:
        assert get(store.namespace(namespace), BLOCKS, BYTES).ok
    assert [path.name for path in tmp_path.iterdir()] == ["kv"]
    assert {path.name for path in folder.iterdir()} == {"LOCK", "store.json", "zarr.json", "recency", "arrays"}


def test_requests_that_differ_in_one_byte_of_their_media_share_no_block() -> None:
    firsts = {chain_hashes([0] * 16, 16, extra=number.to_bytes(3, "big") + bytes(29))[0] for number in range(100_000)}
    assert len(firsts) == 100_000
