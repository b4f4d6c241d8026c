"""What a signal handler raises in the middle of a verb tears nothing apart: the store goes on, and closes at once."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

import numpy as np
import pytest

from tests.payload import SMALL, TIMEOUT_SECONDS, block_hash, get, namespace, num_pins, payload, rows, small_store
from tierstore.config import StoreConfig
from tierstore.errors import FolderError
from tierstore.store import NamespaceHandle, Store, Transfer
from tierstore.types import Outcome

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Python drops what a handler raises within a weak reference's callback, and says so."""

T = TypeVar("T")
CLOSE_SECONDS = 5.0
NUMBERS = range(24)


class Interrupted(BaseException):
    """As KeyboardInterrupt, but nobody else's."""


@pytest.fixture(autouse=True)
def _alarm() -> Iterator[None]:
    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def interrupted(call: Callable[[], T], after_seconds: float) -> T | None:
    """Make a call that an exception from a signal handler ends after so long; None where it did."""
    try:
        signal.setitimer(signal.ITIMER_REAL, after_seconds)
        try:
            return call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        return None
    except RuntimeError as error:  # instead, where it fell between two steps of the library's own Condition
        if str(error) != "release unlocked lock":
            raise
        return None


class Caller:
    """Calls verbs at random and is interrupted in each; the blocks of a number are always the same bytes."""

    def __init__(self, store: Store, seed: int) -> None:
        self._store = store
        self._handle = store.namespace(namespace())
        self._random = Random(seed)
        self.transfers: list[Transfer] = []
        self.num_interrupted = 0

    def call(self) -> None:
        """One verb, interrupted within the time that it takes or shortly after."""
        stores = [self._put, self._put, self._get, self._get, self._prefetch, self._delete, self._clear, self._flush]
        looks = [self._look, self._cancel, self._wait, self._open_another]
        verb = self._random.choice([*stores, *looks])
        longest = self._random.choice([1e-4, 5e-4, 3e-3])
        whole = interrupted(lambda: (verb(), True)[1], self._random.uniform(1e-6, longest))
        self.num_interrupted += whole is None

    def _chain(self) -> list[int]:
        first = self._random.choice(NUMBERS)
        return list(range(first, min(first + self._random.randrange(1, 6), NUMBERS.stop)))

    def _put(self) -> None:
        chain = self._chain()
        blocks, durable = rows(chain, 8192), self._random.random() < 0.3
        self.transfers.append(self._handle.put([block_hash(number) for number in chain], blocks, durable=durable))

    def _get(self) -> None:
        chain = self._chain()
        buffer = np.zeros((len(chain), 8192), np.uint8)
        transfer = self._handle.get([block_hash(number) for number in chain], buffer)
        self.transfers.append(transfer)
        leading = transfer.result(TIMEOUT_SECONDS).leading
        assert np.array_equal(buffer[:leading], rows(chain, 8192)[:leading])

    def _prefetch(self) -> None:
        self.transfers.append(self._handle.prefetch([block_hash(number) for number in self._chain()]))

    def _delete(self) -> None:
        self.transfers.append(self._handle.delete([block_hash(number) for number in self._chain()]))

    def _clear(self) -> None:
        if self._random.random() < 0.1:
            self._handle.clear()

    def _flush(self) -> None:
        self.transfers.append(self._store.flush())

    def _look(self) -> None:
        self._handle.lookup([block_hash(number) for number in self._chain()])
        self._store.metrics()

    def _cancel(self) -> None:
        for transfer in self.transfers[-3:]:
            transfer.cancel()

    def _wait(self) -> None:
        for transfer in self.transfers[-3:]:
            transfer.result(TIMEOUT_SECONDS)

    def _open_another(self) -> None:
        self._store.namespace(namespace(4096, f"other {self._random.randrange(4)}"))


@pytest.mark.slow  # thousands of verbs
@pytest.mark.parametrize("seed", range(3))
def test_verbs_interrupted_at_any_moment_leave_a_whole_store(tmp_path: Path, seed: int) -> None:
    store = small_store(ssd_dir=tmp_path)
    caller = Caller(store, seed)
    for _ in range(1000):
        caller.call()
    assert caller.num_interrupted > 300
    for transfer in caller.transfers:
        transfer.result(TIMEOUT_SECONDS)
    assert store.flush().result(TIMEOUT_SECONDS).ok
    store.check()
    begun = time.monotonic()
    store.close()
    assert time.monotonic() - begun < CLOSE_SECONDS
    assert num_pins(store) == 0
    with small_store(ssd_dir=tmp_path) as again:
        handle = again.namespace(namespace())
        for number in NUMBERS:
            get(handle, [block_hash(number)], rows([number], 8192))


def put_durably(handle: NamespaceHandle, number: int) -> None:
    assert handle.put([block_hash(number)], rows([number], 8192), durable=True).result(TIMEOUT_SECONDS).ok


def test_an_interrupted_opening_leaves_the_folder_free(tmp_path: Path) -> None:
    """Or the store complete: an exception may fall between the opening's last step and the caller's assignment."""
    random, num_interrupted, num_complete = Random(1), 0, 0
    config = StoreConfig.load(overrides=SMALL | {"ssd_dir": tmp_path})
    with Store(config) as store:
        put_durably(store.namespace(namespace()), 7)
    for _ in range(40):
        opening = Store.__new__(Store)
        opened = interrupted(partial(opened_at, opening, config), random.uniform(1e-4, 3e-2))
        num_interrupted += opened is None
        if opened is not None:
            opening.close()
        try:
            again = Store(config)
        except FolderError:
            assert opened is None
            num_complete += 1
            opening.close()
            again = Store(config)
        with again:
            assert get(again.namespace(namespace()), [block_hash(7)], rows([7], 8192)).ok
    assert num_interrupted > 5
    assert num_complete < 5


def opened_at(store: Store, config: StoreConfig) -> float:
    """Open a store that the caller has in hand already, whatever interrupts this."""
    Store.__init__(store, config)
    return store.opened_at


def test_a_clear_interrupted_at_any_moment_is_done_or_not_begun(tmp_path: Path) -> None:
    random, store = Random(2), small_store(ssd_dir=tmp_path)
    for _ in range(60):
        handle = store.namespace(namespace())
        put_durably(handle, 7)
        interrupted(handle.clear, random.uniform(1e-5, 6e-3))
        store.metrics()  # answered once an interrupted clear has come to its end
        put_durably(handle, 8)
        store.close()
        store = small_store(ssd_dir=tmp_path)
        assert get(store.namespace(namespace()), [block_hash(8)], rows([8], 8192)).ok, "put after the clear"
    store.close()


def test_a_second_close_ends_what_an_interrupted_one_began(tmp_path: Path) -> None:
    random = Random(3)
    for number in range(40):
        store = small_store(ssd_dir=tmp_path)
        put_durably(store.namespace(namespace()), number)
        interrupted(store.close, random.uniform(1e-5, 2e-2))
        store.close()
        with small_store(ssd_dir=tmp_path) as again:
            assert get(again.namespace(namespace()), [block_hash(number)], rows([number], 8192)).ok


def test_an_interrupted_wait_can_be_waited_for_again(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        transfer = store.namespace(namespace()).put([block_hash(1)], payload(1, 8192)[None], deadline_seconds=math.inf)
        interrupted(lambda: transfer.result(TIMEOUT_SECONDS), 1e-6)
        assert transfer.result(TIMEOUT_SECONDS).outcomes == [Outcome.OK]
