"""A client that asks until it is killed: `python -m bench.churn_client ADDRESS attach|stream SEED`.

Started by `bench.churn`, many of them. What it puts says whose it is, so that it knows what it gets; it ends by itself
only with a wrong byte.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, cast

from bench.soak_load import SPACES, Load
from tierstore.client import Client

if TYPE_CHECKING:
    from tierstore.store import NamespaceHandle, Store

__all__ = ["WRONG_BYTES"]

WRONG_BYTES = 3
"""Exit status of a client that has got some."""

_VERBS = ("put", "put", "get", "get", "cancel", "meet_a_deadline", "prefetch", "delete", "wait")


class ClientLoad(Load):
    """What a soak asks of a store, asked of a service."""

    def connect(self, address: str, *, attach: bool) -> None:
        """Instead of `open`."""
        client = Client(address, attach=attach, connect_seconds=30.0)
        assert client.attached is attach, "the pool is not mapped"
        self.store = cast("Store", client)  # has the same verbs
        self.handles = [cast("NamespaceHandle", client.namespace(space)) for space in SPACES]

    def wait(self) -> None:
        """Say what waits."""
        self.rank = getattr(self, "rank", 0) + 1
        self.handles[0].hint(added=[(self.rank, self.chain())], removed=[self.rank - 4] if self.rank > 4 else [])


def main(address: str, way: str, seed: str) -> int:
    """Until it is killed, or has got what it did not ask for."""
    load = ClientLoad(Path(), Random(int(seed)))
    load.connect(address, attach=way == "attach")
    load.put()
    load.drain()
    print("at work", flush=True)
    while not load.counts.wrong_blocks:
        getattr(load, load.random.choice(_VERBS))()
        if len(load.under_way) > load.random.randrange(1, 16):
            load.drain()
    return WRONG_BYTES


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
