"""A transfer is whole or an error, whatever the system calls do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NoReturn

import pytest

from tierstore.disk.base import Buffer
from tierstore.disk.posix import PosixDisk
from tierstore.errors import DiskError
from tierstore.testing.contracts.disk import aligned_buffer
from tierstore.types import PAGE_NBYTES


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def disk(root: Path) -> PosixDisk:
    return PosixDisk(str(root))


def refuse(code: int) -> Callable[..., NoReturn]:
    def call(*_: object, **__: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return call


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_short_and_interrupted_calls_lose_nothing(
    disk: PosixDisk, seed: int, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    disk.direct &= direct

    def unreliable(call: Callable[[int, Sequence[Buffer], int], int]) -> Callable[[int, Sequence[Buffer], int], int]:
        def wrapper(number: int, buffers: Sequence[Buffer], offset: int) -> int:
            if rng.random() < 0.25:
                code = rng.choice((errno.EINTR, errno.EAGAIN))
                raise OSError(code, os.strerror(code))
            moved = call(number, buffers, offset)
            return rng.choice((moved, moved, moved // 2, rng.randint(0, moved)))

        return wrapper

    monkeypatch.setattr(os, "preadv", unreliable(os.preadv))
    monkeypatch.setattr(os, "pwritev", unreliable(os.pwritev))
    file = disk.create("file", 16 * PAGE_NBYTES)
    written = [aligned_buffer(pages * PAGE_NBYTES, rng.randbytes(509)) for pages in (5, 1, 7)]
    found = aligned_buffer(13 * PAGE_NBYTES, b"sentinel")
    file.write_from(written, 2 * PAGE_NBYTES)
    file.read_into([found], 2 * PAGE_NBYTES)
    assert found == b"".join(written)


def test_a_call_that_never_gets_on_ends_in_an_error(disk: PosixDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.create("file", PAGE_NBYTES)
    monkeypatch.setattr(os, "pwritev", refuse(errno.EAGAIN))
    with pytest.raises(DiskError) as caught:
        file.write_from([aligned_buffer(PAGE_NBYTES)], 0)
    assert (caught.value.operation, caught.value.errno) == ("write", errno.EAGAIN)


def test_stalls_are_forgiven_as_long_as_a_transfer_gets_on(disk: PosixDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwritev
    stall = True

    def stutter(number: int, buffers: Sequence[Buffer], offset: int) -> int:
        nonlocal stall
        stall = not stall
        return 0 if stall else min(PAGE_NBYTES, write(number, buffers, offset))

    file = disk.create("file", 40 * PAGE_NBYTES)
    written, found = aligned_buffer(40 * PAGE_NBYTES, b"bytes"), aligned_buffer(40 * PAGE_NBYTES)
    monkeypatch.setattr(os, "pwritev", stutter)
    file.write_from([written], 0)
    file.read_into([found], 0)
    assert found == written


def test_a_file_cut_within_a_page_is_a_short_read(disk: PosixDisk, root: Path) -> None:
    file = disk.create("file", 2 * PAGE_NBYTES)
    os.truncate(root / "file", PAGE_NBYTES + 512)
    assert file.nbytes == PAGE_NBYTES + 512
    with pytest.raises(DiskError, match="ended short"):
        file.read_into([aligned_buffer(2 * PAGE_NBYTES)], 0)


def test_a_failing_disk_is_an_error_with_operation_path_and_number(
    disk: PosixDisk, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.create("file", PAGE_NBYTES)
    monkeypatch.setattr(os, "preadv", refuse(errno.EIO))
    with pytest.raises(DiskError) as caught:
        file.read_into([aligned_buffer(PAGE_NBYTES)], 0)
    assert (caught.value.operation, caught.value.path, caught.value.errno) == ("read", str(root / "file"), errno.EIO)


def test_a_failed_sync_is_never_tried_again(disk: PosixDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.create("file", PAGE_NBYTES)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse(errno.EIO))
        with pytest.raises(DiskError):
            file.sync()
    with pytest.raises(DiskError, match="an earlier sync failed") as caught:
        file.sync()
    assert caught.value.errno == errno.EIO


def test_a_file_closed_during_a_call_lets_it_end_on_its_own_bytes(
    disk: PosixDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = aligned_buffer(PAGE_NBYTES, b"own")
    file = disk.create("file", PAGE_NBYTES)
    file.write_from([page], 0)
    read = os.preadv
    before = num_descriptors()

    def close_first(number: int, buffers: Sequence[Buffer], offset: int) -> int:
        file.close()
        disk.create("other", PAGE_NBYTES)  # would get the descriptor's number
        return read(number, buffers, offset)

    monkeypatch.setattr(os, "preadv", close_first)
    found = aligned_buffer(PAGE_NBYTES)
    file.read_into([found], 0)
    assert found == page
    assert num_descriptors() == before  # "other" came, "file" went
