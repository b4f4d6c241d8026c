"""What a credential may have at a time: calls, bytes on their way, bytes of each tier. Counted, not believed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.service.test_security import listening, of_tenant, write_credentials
from tests.e2e.service.world import patient
from tests.payload import TIMEOUT_SECONDS, block_hash, rows
from tierstore.client import Client
from tierstore.errors import LimitError
from tierstore.sections import ServiceConfig
from tierstore.service.quotas import Quotas
from tierstore.service.security import Principal, Quota
from tierstore.service.workers import Workers
from tierstore.types import Outcome


@contextmanager
def limited(folder: Path, **quota: object) -> Iterator[Client]:
    """A client whose credential has a quota."""
    fields: dict[str, object] = {"name": "q", "tenants": ["q"], **quota}
    credentials = write_credentials(folder / "quota.toml", {"token-q": fields})
    with (
        listening(ServiceConfig(insecure=True, credentials=credentials)) as address,
        patient(address, token="token-q") as client,
    ):
        assert client.connected
        yield client


@pytest.mark.parametrize("tier", ["host", "ssd"])
def test_a_put_beyond_the_quota_of_a_tier_is_refused(tmp_path: Path, tier: str) -> None:
    with limited(tmp_path, **{tier: "80 KiB"}) as client:
        handle = client.namespace(of_tenant("q"))
        for first in (0, 5):
            hashes = [block_hash(number) for number in range(first, first + 5)]
            assert handle.put(hashes, rows(range(5), 8192), durable=True).result(TIMEOUT_SECONDS).ok
        more = handle.put([block_hash("more")], rows(["more"], 8192)).result(TIMEOUT_SECONDS)
        assert more.outcomes == [Outcome.REJECTED]
        again = handle.put([block_hash(number) for number in range(5)], rows(range(5), 8192)).result(TIMEOUT_SECONDS)
        assert again.ok, "what is held already takes no room"


def test_more_bytes_on_their_way_than_the_quota_are_refused(tmp_path: Path) -> None:
    with limited(tmp_path, inflight="8 KiB") as client:
        handle = client.namespace(of_tenant("q"))
        hashes = [block_hash(number) for number in range(2)]
        assert handle.put(hashes, rows(range(2), 8192)).result(TIMEOUT_SECONDS).ok, "one window after another"
        assert handle.get(hashes, np.zeros((2, 8192), np.uint8)).result(TIMEOUT_SECONDS).leading == 0
        assert handle.get(hashes[:1], np.zeros((1, 8192), np.uint8)).result(TIMEOUT_SECONDS).ok


def test_calls_and_bytes_count_while_they_last() -> None:
    workers = Workers("test", threads=1)
    quotas, principal = Quotas(workers), Principal("a", quota=Quota(requests=1, inflight_nbytes=10))
    with quotas.call(principal), quotas.inflight(principal, 10):
        with pytest.raises(LimitError), quotas.call(principal):
            pass
        with pytest.raises(LimitError), quotas.inflight(principal, 1):
            pass
        with quotas.call(Principal("b")), quotas.inflight(Principal("b"), 1 << 40):
            pass
    with quotas.call(principal), quotas.inflight(principal, 10):
        pass
    workers.close()
