"""The verbs of the embedded store, over a real Unix socket: in place where the pool is attached, else in messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.service.world import Serving, client_of, served
from tests.payload import SENTINEL, TIMEOUT_SECONDS, block_hash, namespace, rows
from tierstore.advice import Place
from tierstore.client import Client, ClientHandle
from tierstore.errors import ConfigError, IdentityError, LayoutError, RankError
from tierstore.health import Service
from tierstore.keys import Namespace
from tierstore.layout import KVLayout
from tierstore.service import dispatch
from tierstore.types import Outcome, Presence

BLOCKS = [block_hash(number) for number in range(6)]
BYTES = rows(range(6), 8192)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with served(tmp_path) as serving:
        yield serving


@pytest.fixture(params=["in place", "streamed"])
def client(serving: Serving, request: pytest.FixtureRequest) -> Iterator[Client]:
    with client_of(serving, attach=request.param == "in place") as client:
        yield client


@pytest.fixture
def handle(client: Client) -> ClientHandle:
    return client.namespace(namespace())


def test_what_was_put_is_got(handle: ClientHandle) -> None:
    stored = handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS)
    assert (stored.leading, stored.nbytes) == (6, BYTES.nbytes)
    found = np.full_like(BYTES, SENTINEL)
    loaded = handle.get(BLOCKS, found).result(TIMEOUT_SECONDS)
    assert (loaded.leading, loaded.nbytes) == (6, BYTES.nbytes)
    assert np.array_equal(found, BYTES)


def test_what_one_client_put_another_one_and_the_store_itself_find(serving: Serving, handle: ClientHandle) -> None:
    assert handle.put(BLOCKS, BYTES, durable=True).result(TIMEOUT_SECONDS).ok
    own = serving.store.namespace(namespace())
    assert own.lookup(BLOCKS) == 6
    with client_of(serving, attach=False) as other:
        found = np.zeros_like(BYTES)
        assert other.namespace(namespace()).get(BLOCKS, found).result(TIMEOUT_SECONDS).ok
        assert np.array_equal(found, BYTES)


def test_a_prefix_is_got_and_the_rows_behind_it_stay_as_they_were(handle: ClientHandle) -> None:
    assert handle.put(BLOCKS[:4], BYTES[:4]).result(TIMEOUT_SECONDS).ok
    found = np.full_like(BYTES, SENTINEL)
    result = handle.get(BLOCKS, found).result(TIMEOUT_SECONDS)
    assert result.leading == 4
    assert result.outcomes == [Outcome.OK] * 4 + [Outcome.MISS] * 2
    assert np.array_equal(found[:4], BYTES[:4])
    assert (found[4:] == SENTINEL).all()


def test_look_ups_say_what_is_there(handle: ClientHandle) -> None:
    assert handle.put(BLOCKS[:4], BYTES[:4]).result(TIMEOUT_SECONDS).ok
    assert handle.lookup(BLOCKS) == 4
    assert handle.presence(BLOCKS) == [Presence.HIT] * 4 + [Presence.MISS] * 2
    assert handle.places(BLOCKS).tolist() == [Place.HOST] * 4 + [Place.NOWHERE] * 2


def test_blocks_lie_where_the_block_ids_say(handle: ClientHandle) -> None:
    cache = np.full((12, 8192), SENTINEL, np.uint8)
    cache[[9, 1, 4]] = BYTES[:3]
    assert handle.put(BLOCKS[:3], cache, block_ids=[9, 1, 4]).result(TIMEOUT_SECONDS).ok
    found = np.full_like(cache, SENTINEL)
    assert handle.get(BLOCKS[:3], found, block_ids=[2, 11, 0]).result(TIMEOUT_SECONDS).ok
    assert np.array_equal(found[[2, 11, 0]], BYTES[:3])


def test_a_cache_of_several_buffers_is_put_and_got(handle: ClientHandle) -> None:
    halves = [np.ascontiguousarray(BYTES[:, :4096]), np.ascontiguousarray(BYTES[:, 4096:])]
    assert handle.put(BLOCKS, halves).result(TIMEOUT_SECONDS).ok
    found = [np.zeros_like(half) for half in halves]
    assert handle.get(BLOCKS, found).result(TIMEOUT_SECONDS).ok
    assert np.array_equal(np.concatenate(found, axis=1), BYTES)


def test_a_durable_put_is_found_by_the_next_life_of_the_store(serving: Serving, handle: ClientHandle) -> None:
    assert handle.put(BLOCKS, BYTES, durable=True).result(TIMEOUT_SECONDS).ok
    assert serving.store.namespace(namespace()).delete([]).result(TIMEOUT_SECONDS).ok
    for first in range(100, 132, 8):
        handle.put([block_hash(number) for number in range(first, first + 8)], rows(range(8), 8192)).result()
    assert handle.lookup(BLOCKS) == 6, "evicted from host memory, read from SSD"
    found = np.zeros_like(BYTES)
    assert handle.get(BLOCKS, found).result(TIMEOUT_SECONDS).ok
    assert np.array_equal(found, BYTES)


def test_deleted_blocks_are_gone(handle: ClientHandle) -> None:
    assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
    result = handle.delete([BLOCKS[5], block_hash("none")]).result(TIMEOUT_SECONDS)
    assert result.outcomes == [Outcome.OK, Outcome.MISS]
    assert handle.lookup(BLOCKS) == 5


def test_a_cleared_namespace_is_empty(handle: ClientHandle) -> None:
    assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
    handle.clear()
    assert handle.lookup(BLOCKS) == 0
    assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok


def test_a_flush_tells_how_it_ended(client: Client, handle: ClientHandle) -> None:
    assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
    assert client.flush().result(TIMEOUT_SECONDS).ok


def test_a_prefetch_ends_with_the_blocks_in_host_memory(handle: ClientHandle) -> None:
    assert handle.put(BLOCKS, BYTES, durable=True).result(TIMEOUT_SECONDS).ok
    prefetch = handle.prefetch(BLOCKS)
    assert prefetch.result(TIMEOUT_SECONDS).ok
    assert handle.may_start(prefetch)


def test_hints_are_taken_in_and_ranks_out_of_order_refused(serving: Serving, handle: ClientHandle) -> None:
    handle.hint(added=[(1, BLOCKS[:2]), (2, BLOCKS[2:])])
    assert serving.store.metrics()["tierstore_waiting_requests"] == 2
    with pytest.raises(RankError):
        handle.hint(added=[(1, BLOCKS[:1])])
    handle.hint(removed=[1, 2])
    assert serving.store.metrics()["tierstore_waiting_requests"] == 0


def test_hints_longer_than_a_message_are_taken_in(serving: Serving) -> None:
    queue = [(rank, np.random.default_rng(rank).integers(0, 256, (50_000, 32), np.uint8)) for rank in range(1, 5)]
    with client_of(serving) as client:
        client.namespace(namespace()).hint(added=queue)
        assert serving.store.metrics()["tierstore_waiting_requests"] == 4


@pytest.mark.parametrize("attach", [True, False])
def test_of_more_blocks_than_a_call_may_name_the_leading_ones_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, attach: bool
) -> None:
    """Once the server refused such a call, and prompts that long had no hits at all."""
    monkeypatch.setattr(dispatch, "HASHES_MAX", 4)
    with served(tmp_path) as serving, client_of(serving, attach=attach) as client:
        own, handle = serving.store.namespace(namespace()), client.namespace(namespace())
        put = handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS)
        assert (put.leading, put.outcomes) == (4, [Outcome.OK] * 4 + [Outcome.REJECTED] * 2)
        assert own.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        assert handle.lookup(BLOCKS) == 4
        assert handle.presence(BLOCKS) == [Presence.HIT] * 4 + [Presence.MISS] * 2
        found = np.full_like(BYTES, SENTINEL)
        got = handle.get(BLOCKS, found).result(TIMEOUT_SECONDS)
        assert (got.leading, got.outcomes) == (4, [Outcome.OK] * 4 + [Outcome.MISS] * 2)
        assert np.array_equal(found[:4], BYTES[:4])
        assert (found[4:] == SENTINEL).all()
        assert handle.prefetch(BLOCKS).result(TIMEOUT_SECONDS).leading == 4
        assert handle.plan_load(BLOCKS).leading == 4
        assert handle.plan_load(BLOCKS, computed_tokens=5 * handle.namespace.layout.block_tokens).leading == 4
        handle.hint(added=[(1, BLOCKS)])
        assert handle.delete(BLOCKS).result(TIMEOUT_SECONDS).outcomes == [Outcome.OK] * 4 + [Outcome.IO_ERROR] * 2
        assert own.presence(BLOCKS) == [Presence.MISS] * 4 + [Presence.HIT] * 2


def test_the_end_of_a_client_ends_its_hints(serving: Serving) -> None:
    with client_of(serving) as client:
        client.namespace(namespace()).hint(added=[(1, BLOCKS)])
        assert serving.store.metrics()["tierstore_waiting_requests"] == 1
    assert serving.store.metrics()["tierstore_waiting_requests"] == 0


def test_advice_and_reports_pass(handle: ClientHandle) -> None:
    assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
    handle.report_prefill(prefix_tokens=0, num_tokens=1000, seconds=1.0)
    advice = handle.plan_load(BLOCKS)
    assert (advice.leading, advice.first, advice.in_host) == (6, 0, advice.stop)


def test_a_report_that_a_closing_client_has_not_made_is_dropped(serving: Serving) -> None:
    with client_of(serving) as client:
        handle = client.namespace(namespace())
        client.calling.connection.close()
        handle.report_prefill(prefix_tokens=0, num_tokens=512, seconds=0.5)


def test_health_and_metrics_are_the_stores(client: Client, handle: ClientHandle) -> None:
    assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
    assert {name: tier.service for name, tier in client.health().items()} == {
        "host": Service.SERVING,
        "ssd": Service.SERVING,
    }
    assert client.metrics()['tierstore_request_blocks_total{verb="put",outcome="ok"}'] == 6


@pytest.mark.parametrize("address", ["nowhere", "unix:", ":7411", "host:", "grpc://host:7411", "host:65536"])
def test_an_address_that_makes_no_sense_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="give unix:/path or host:port"):
        Client(address)


def test_mistakes_are_refused_as_by_the_embedded_store(client: Client, handle: ClientHandle) -> None:
    with pytest.raises(IdentityError):
        handle.get([BLOCKS[0], BLOCKS[0]], BYTES[:2].copy())
    with pytest.raises(LayoutError):
        handle.put(BLOCKS, BYTES[:3])
    with pytest.raises(IdentityError):
        client.namespace("model")  # type: ignore[arg-type]


def test_an_empty_request_is_done_at_once(handle: ClientHandle) -> None:
    nothing = np.empty((0, 8192), np.uint8)
    assert handle.put([], nothing).result(TIMEOUT_SECONDS).ok
    assert handle.get([], nothing).result(TIMEOUT_SECONDS).ok
    assert handle.lookup([]) == 0


@pytest.mark.parametrize(("nbytes", "num_blocks"), [(3 * 1024 * 1024 + 4097, 3), (64 * 1024 * 1024, 1)])
def test_blocks_larger_than_a_message_pass(tmp_path: Path, nbytes: int, num_blocks: int) -> None:
    large = Namespace("large", KVLayout.opaque(block_nbytes=nbytes))
    blocks = rows(range(num_blocks), nbytes)
    sizes: dict[str, object] = {
        "host_size": "2 GiB",
        "host_slab_size": "512 MiB",
        "ssd_size": "512 MiB",
        "ssd_file_size": "72 MiB",
    }
    with served(tmp_path, settings=sizes) as serving:
        for attach, hashes in ((True, BLOCKS[:num_blocks]), (False, BLOCKS[num_blocks : 2 * num_blocks])):
            with client_of(serving, attach=attach) as client:
                handle = client.namespace(large)
                assert handle.put(hashes, blocks).result(TIMEOUT_SECONDS).ok
                found = np.zeros_like(blocks)
                assert handle.get(hashes, found).result(TIMEOUT_SECONDS).ok
                assert np.array_equal(found, blocks)
