"""Clients of a store with a device pool: what its engine has left there alone is theirs, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.e2e.service.world import client_of, served
from tests.payload import TIMEOUT_SECONDS, block_hash, namespace, rows

BLOCKS = [block_hash(number) for number in range(6)]
OTHERS = [block_hash(number) for number in range(6, 38)]
SETTINGS = {
    "policy_name": "lru",
    "admission_name": "second-hit",
    "device_pool_size": "2 MiB",
    "device_pool_admission": "always",
}


@pytest.mark.parametrize("attach", [True, False])
def test_a_client_missed_what_the_device_pool_alone_held_though_its_look_up_had_found_it(
    tmp_path: Path, attach: bool
) -> None:
    values = rows(range(6), 8192)
    with served(tmp_path, settings=SETTINGS) as serving, client_of(serving, attach=attach) as client:
        engine = serving.store.namespace(namespace())
        for blocks, numbers in ((BLOCKS, range(6)), (OTHERS, range(6, 38))):  # the latter fill host memory
            assert engine.put(blocks, rows(numbers, 8192)).result(TIMEOUT_SECONDS).ok
        kv = client.namespace(namespace())
        assert kv.lookup(BLOCKS) == 6
        found = np.zeros_like(values)
        assert kv.get(BLOCKS, found).result(TIMEOUT_SECONDS).leading == 6
        assert np.array_equal(found, values)
        assert serving.store.metrics()['tierstore_link_blocks_total{link="pool-return",outcome="ok"}'] == 6
