"""The store: namespaces, verbs that return transfers, and the life of the whole house.

The door of the embedded library. Every verb checks what it is given before anything happens, plans under
the engine's lock and returns at once; bytes move on the links' threads. `tierstore.aio` awaits the same.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from tierstore.assembly import build
from tierstore.config import StoreConfig
from tierstore.errors import ClosedError, IdentityError, LayoutError
from tierstore.keys import Namespace, pack_hashes
from tierstore.layout import DTYPE_NBYTES, KVLayout
from tierstore.transfer.base import CallerMemory
from tierstore.transfer.future import Transfer, TransferResult
from tierstore.types import HASH_NBYTES, PAGE_NBYTES, Generation, Presence

if TYPE_CHECKING:
    from tierstore.device.base import Event
    from tierstore.transfer.engine import Engine
    from tierstore.types import UInt8Array

__all__ = ["NamespaceHandle", "Store", "Transfer", "TransferResult"]

_NO_PARENT = bytes(HASH_NBYTES)


class Store:
    """A hierarchical KV store in this process.

    Args:
        config: A TOML file's path, or settings loaded already; None reads ``TIERSTORE_CONFIG`` and the rest
            of the environment.
        settings: Single settings by argument name, such as ``host_size="1 GiB"`` or ``ssd_dir="/mnt/kv"``;
            they win over all else.

    Raises:
        ConfigError: A setting is unknown or impossible.
        MemoryLimitError: The pool does not fit the memory it may take.
        FolderError: The SSD folder cannot be used, is owned by a live process or of another format.
    """

    def __init__(self, config: StoreConfig | str | os.PathLike[str] | None = None, **settings: object) -> None:
        if isinstance(config, StoreConfig):
            assert not settings, "pass loaded settings or single ones, not both"
            self.config = config
        else:
            self.config = StoreConfig.load(config, overrides=settings)
        self._house = build(self.config)
        self._handles: dict[bytes, NamespaceHandle] = {}
        self._num_generations = 0
        self._opening = threading.Lock()
        atexit.register(self.close)

    def namespace(self, namespace: Namespace) -> NamespaceHandle:
        """The verbs of one namespace. Blocks on the manifest the first time; the same handle ever after.

        Raises:
            ConfigError: A block is too large for the pool's slabs.
            DiskError: The manifest cannot be written.
            ClosedError: The store is closed.
        """
        with self._opening:
            handle = self._handles.get(namespace.fingerprint)
            if handle is None:
                self._check_open()
                manifest = self._house.manifest
                epoch = 0 if manifest is None else manifest.register(namespace)
                generation = self._open_generation(namespace, epoch)
                for batch in self._house.recovered.pop(namespace.fingerprint, []):
                    self._house.engine.adopt(generation.number, batch.hashes, batch.extents)
                handle = self._handles[namespace.fingerprint] = NamespaceHandle(self, namespace, generation)
            return handle

    def _open_generation(self, namespace: Namespace, epoch: int) -> Generation:
        generation = Generation(self._num_generations, namespace.fingerprint, epoch, namespace.layout)
        slot_nbytes = -(-namespace.layout.block_nbytes // PAGE_NBYTES) * PAGE_NBYTES
        self._house.engine.open_life(generation, slot_nbytes)
        self._num_generations += 1
        return generation

    def next_generation(self, namespace: Namespace, current: Generation) -> Generation:
        """Begin a namespace's next epoch, durably, and open its generation. Blocks. Called by `clear`."""
        with self._opening:
            self._check_open()
            manifest = self._house.manifest
            epoch = current.epoch + 1 if manifest is None else manifest.advance(namespace.fingerprint)
            return self._open_generation(namespace, epoch)

    @property
    def engine(self) -> Engine:
        """The engine; for the handles and for those who measure."""
        return self._house.engine

    def pages(self, buffers: Any, layout: KVLayout) -> Any:
        """View a caller's buffers as pages of this layout; LayoutError where they do not fit."""
        _check_dtype(buffers, layout)
        return self._house.device.pages(buffers, layout.block_nbytes)

    def flush(self) -> Transfer:
        """Make everything put so far durable, write-backs included. Does not block.

        The result has one outcome; where there is no SSD tier it is OK once every put has ended.
        """
        return self.engine.start(lambda planner: planner.flush(), num_blocks=1, block_nbytes=0)

    def metrics(self) -> dict[str, float]:
        """Every metric now, by its name in Prometheus's form."""
        with self.engine.planning() as planner:
            planner.gauge()
            return self._house.metrics.snapshot()

    def check(self) -> None:
        """Assert every invariant of the mind; for tests. Costs a pass over all blocks under the lock."""
        with self.engine.planning() as planner:
            planner.check()

    def close(self) -> None:
        """Finish what is under way, sync, let go of memory, threads and files. Blocks; may be called twice."""
        atexit.unregister(self.close)
        self._house.closing.close()

    def _check_open(self) -> None:
        if self.engine.closed:
            raise ClosedError("the store is closed; open a new Store")

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class NamespaceHandle:
    """The verbs of one namespace. Made by `Store.namespace`; may be used from any thread.

    Hashes are given in prefix order, each once: a sequence of 32-byte hashes, or uint8[n, 32]. Buffers are one
    array or tensor whose first axis counts blocks (or a sequence of such, one a page of the layout), in the
    layout's dtype or as raw bytes, C-contiguous within a block. They must stay untouched until the transfer
    is done.
    """

    def __init__(self, store: Store, namespace: Namespace, generation: Generation) -> None:
        self.namespace = namespace
        self._store = store
        self._generation = generation

    def lookup(self, hashes: Sequence[bytes] | UInt8Array) -> int:
        """How many blocks from the first are usable without a hole. Pins nothing and moves nothing."""
        return self._store.engine.leading(self._generation.number, as_hashes(hashes))

    def presence(self, hashes: Sequence[bytes] | UInt8Array) -> list[Presence]:
        """What is known of each block."""
        return self._store.engine.presence(self._generation.number, as_hashes(hashes))

    def put(
        self,
        hashes: Sequence[bytes] | UInt8Array,
        buffers: Any,
        *,
        block_ids: Sequence[int] | None = None,
        parent: bytes = _NO_PARENT,
        durable: bool = False,
        after: Event | None = None,
        deadline_seconds: float | None = None,
    ) -> Transfer:
        """Store blocks. Done when they are readable; with `durable`, when they are on disk and synced.

        Args:
            hashes: Whose blocks.
            buffers: The bytes.
            block_ids: The row of each block in the buffers; None where block i is row i.
            parent: Hash of the block before the first; zeros at the start of a chain.
            durable: Wait for the disk. REJECTED where there is no SSD tier.
            after: Copy only after this event of the device.
            deadline_seconds: End by then.

        Raises:
            LayoutError, IdentityError, ClosedError: Before anything has happened.
        """
        keys = as_hashes(hashes)
        memory = self._memory(keys, buffers, block_ids, after)
        parents = np.concatenate([as_hashes([parent]), keys[:-1]])[: len(keys)]
        number, deadline = self._generation.number, _deadline(deadline_seconds)
        return self._store.engine.start(
            lambda planner: planner.put(number, keys, parents, durable=durable, deadline=deadline),
            num_blocks=len(keys),
            block_nbytes=self.namespace.layout.block_nbytes,
            memory=memory,
            deadline=deadline,
        )

    def get(
        self,
        hashes: Sequence[bytes] | UInt8Array,
        buffers: Any,
        *,
        block_ids: Sequence[int] | None = None,
        after: Event | None = None,
        deadline_seconds: float | None = None,
    ) -> Transfer:
        """Load the longest prefix there is; `leading` of the result says how long. Rows behind it are not written.

        Args:
            hashes: Whose blocks.
            buffers: Where to.
            block_ids: The row of each block in the buffers; None where block i is row i.
            after: Copy only after this event of the device.
            deadline_seconds: Load what is ready by then, and no more.

        Raises:
            LayoutError, IdentityError, ClosedError: Before anything has happened.
        """
        keys = as_hashes(hashes)
        memory = self._memory(keys, buffers, block_ids, after)
        number, deadline = self._generation.number, _deadline(deadline_seconds)
        return self._store.engine.start(
            lambda planner: planner.get(number, keys, deadline),
            num_blocks=len(keys),
            block_nbytes=self.namespace.layout.block_nbytes,
            memory=memory,
            deadline=deadline,
        )

    def prefetch(self, hashes: Sequence[bytes] | UInt8Array, *, deadline_seconds: float | None = None) -> Transfer:
        """Bring a prefix from SSD into host memory, behind every get, into free or cold slots only."""
        keys = as_hashes(hashes)
        number, deadline = self._generation.number, _deadline(deadline_seconds)
        return self._store.engine.start(
            lambda planner: planner.prefetch(number, keys, deadline),
            num_blocks=len(keys),
            block_nbytes=self.namespace.layout.block_nbytes,
            deadline=deadline,
        )

    def delete(self, hashes: Sequence[bytes] | UInt8Array) -> int:
        """Make blocks unknown at once; returns how many were known. In memory only: a restart may find them again."""
        return self._store.engine.delete(self._generation.number, as_hashes(hashes))

    def clear(self) -> None:
        """Forget every block of the namespace, durably: nothing put before comes back. Blocks."""
        old = self._generation
        self._generation = self._store.next_generation(self.namespace, old)
        self._store.engine.end_life(old.number)

    def _memory(
        self, keys: UInt8Array, buffers: Any, block_ids: Sequence[int] | None, after: Event | None
    ) -> CallerMemory:
        pages = self._store.pages(buffers, self.namespace.layout)
        num_rows = min(len(page) for page in pages)
        if block_ids is None:
            if num_rows != len(keys):
                raise LayoutError(
                    f"{len(keys)} hashes but buffers of {num_rows} blocks; pass one row a hash, or block_ids"
                )
            return CallerMemory(pages, None, after)
        rows = np.asarray(block_ids, np.int64)
        if rows.shape != (len(keys),):
            raise LayoutError(f"{len(keys)} hashes but block_ids of shape {rows.shape}; pass one a hash")
        outside = rows[(rows < 0) | (rows >= num_rows)]
        if len(outside):
            raise LayoutError(f"block id {outside[0]} lies outside buffers of {num_rows} blocks")
        return CallerMemory(pages, rows, after)


def as_hashes(hashes: Sequence[bytes] | UInt8Array) -> UInt8Array:
    """Hashes as uint8[n, 32] of the store's own; IdentityError where one is malformed or comes twice."""
    if isinstance(hashes, np.ndarray):
        if hashes.dtype != np.uint8 or hashes.ndim != 2 or hashes.shape[1] != HASH_NBYTES:
            raise IdentityError(f"hashes are {hashes.dtype}{list(hashes.shape)}; pass uint8[n, {HASH_NBYTES}]")
        packed = np.array(hashes, order="C")
    else:
        packed = np.frombuffer(pack_hashes(hashes), np.uint8).reshape(-1, HASH_NBYTES)
    if len(np.unique(packed.view(np.uint64)[:, 0])) < len(packed):
        _check_distinct(packed)
    return packed


def _check_distinct(packed: UInt8Array) -> None:
    seen: dict[bytes, int] = {}
    for position, row in enumerate(packed):
        first = seen.setdefault(row.tobytes(), position)
        if first != position:
            raise IdentityError(f"hash {position} is hash {first} again; a chain names each block once")


def _check_dtype(buffers: Any, layout: KVLayout) -> None:
    """Refuse a buffer of another KV dtype than the layout's; raw unsigned integers hold any."""
    for buffer in buffers if isinstance(buffers, list | tuple) else [buffers]:
        name = str(getattr(buffer, "dtype", "")).removeprefix("torch.").removesuffix("fn")
        if name in DTYPE_NBYTES and name not in {layout.dtype, "uint8"} and layout.dtype != "uint8":
            raise LayoutError(
                f"a buffer of {name} for a namespace of {layout.dtype}; pass {layout.dtype}, or the bytes as uint8"
            )


def _deadline(seconds: float | None) -> float:
    return math.inf if seconds is None else time.monotonic() + seconds
