"""One life of a store in a process of its own, for tests that end it from outside.

Run as ``python -m tests.crash.life <what> <folder> <first>``. Says on standard output, a line at a time, what has
been acknowledged: ``durable 3 4 5`` or ``plain 6 7``. Blocks are named by numbers that only grow.
"""

from __future__ import annotations

import sys
from itertools import count
from random import Random

from tests.payload import TIMEOUT_SECONDS, block_hash, get, namespace, rows, small_store
from tierstore.store import Store

__all__ = ["NAMESPACE", "open_store"]

NAMESPACE = namespace(8192, "killed")


def open_store(folder: str) -> Store:
    """A store of 64 chunk files of 15 blocks, with a pool that other processes could map."""
    return small_store(ssd_dir=folder, ssd_size="16 MiB", ssd_file_size="256 KiB", host_shared=True)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def put(store: Store, numbers: list[int], *, durable: bool) -> None:
    """Put blocks and say which were acknowledged."""
    hashes, expected = [block_hash(number) for number in numbers], rows(numbers, 8192)
    result = store.namespace(NAMESPACE).put(hashes, expected, durable=durable).result(TIMEOUT_SECONDS)
    say("durable" if durable else "plain", *(n for n, code in zip(numbers, result.codes, strict=True) if not code))


def write_for_ever(folder: str, first: int) -> None:
    """Put, get back, and now and then close and open again, until killed."""
    rng, numbers = Random(first), count(first)
    while True:
        with open_store(folder) as store:
            say("open")
            for _ in range(rng.randrange(1, 40)):
                chosen = [next(numbers) for _ in range(rng.randrange(1, 8))]
                put(store, chosen, durable=rng.random() < 0.5)
                get(store.namespace(NAMESPACE), [block_hash(chosen[0])], rows(chosen[:1], 8192))


def forget_to_close(folder: str, first: int) -> None:
    """Leave a store open, write-backs under way, and come to the end of the program."""
    store = open_store(folder)
    for start in range(first, first + 64, 8):
        put(store, list(range(start, start + 8)), durable=False)
    put(store, [first + 64], durable=True)
    store.namespace(NAMESPACE).prefetch([block_hash(first)], deadline_seconds=3600)
    say("end")


def fail_to_close(folder: str, first: int) -> None:
    """The same, and end with an exception."""
    forget_to_close(folder, first)
    raise RuntimeError("as it happens")


if __name__ == "__main__":
    what, where, number = sys.argv[1:]
    {"write": write_for_ever, "forget": forget_to_close, "fail": fail_to_close}[what](where, int(number))
