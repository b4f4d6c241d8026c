"""What every disk must do; see `tierstore.disk.base`.

Subclassed by whoever writes a disk, run by pytest. Stays within what direct I/O takes.
"""

from __future__ import annotations

import errno
import mmap
import threading
from functools import partial

import pytest

from tierstore.disk.base import Buffer, Disk, Entry, File
from tierstore.errors import DiskError, FolderBusyError
from tierstore.types import PAGE_NBYTES
from tierstore.worker import Worker

__all__ = ["DiskContract", "aligned_buffer"]


def aligned_buffer(nbytes: int, fill: bytes = b"\0") -> Buffer:
    """Memory that direct I/O takes, filled with a repeated pattern."""
    buffer = memoryview(mmap.mmap(-1, nbytes))
    buffer[:] = (fill * (nbytes // len(fill) + 1))[:nbytes]
    return buffer


def _read(file: File, nbytes: int, offset: int = 0) -> bytes:
    buffer = aligned_buffer(nbytes, b"sentinel")
    file.read_into([buffer], offset)
    return bytes(buffer)


class DiskContract:
    """Subclass it and give a fixture ``disk``: an empty disk with some MiB of room."""

    def test_a_disk_and_its_files_satisfy_the_protocols(self, disk: Disk) -> None:
        assert isinstance(disk, Disk)
        assert isinstance(disk.create("file", PAGE_NBYTES), File)

    @pytest.mark.parametrize("nbytes", [0, PAGE_NBYTES, 3 * PAGE_NBYTES])
    def test_a_created_file_has_its_length_and_is_zero(self, disk: Disk, nbytes: int) -> None:
        file = disk.create("file", nbytes)
        assert file.nbytes == nbytes
        if nbytes:
            assert _read(file, nbytes) == bytes(nbytes)

    def test_what_is_written_from_many_buffers_is_read_into_others(self, disk: Disk) -> None:
        file = disk.create("file", 8 * PAGE_NBYTES)
        written = [aligned_buffer(pages * PAGE_NBYTES, b"%dabc" % pages) for pages in (1, 3, 2)]
        read = [aligned_buffer(pages * PAGE_NBYTES, b"sentinel") for pages in (2, 2, 2)]
        file.write_from(written, PAGE_NBYTES)
        file.read_into(read, PAGE_NBYTES)
        assert b"".join(read) == b"".join(written)
        assert _read(file, PAGE_NBYTES) == _read(file, PAGE_NBYTES, 7 * PAGE_NBYTES) == bytes(PAGE_NBYTES)

    def test_one_call_takes_more_buffers_than_the_system_does(self, disk: Disk) -> None:
        count = 1025
        whole = aligned_buffer(count * PAGE_NBYTES)
        pages = [whole[start : start + PAGE_NBYTES] for start in range(0, len(whole), PAGE_NBYTES)]
        for number, page in enumerate(pages):
            page[:8] = number.to_bytes(8, "little")
        file = disk.create("file", len(whole))
        file.write_from(pages, 0)
        expected = bytes(whole)
        whole[:] = bytes(len(whole))
        file.read_into(pages, 0)
        assert whole == expected

    def test_no_buffers_and_empty_buffers_move_nothing(self, disk: Disk) -> None:
        file = disk.create("file", PAGE_NBYTES)
        page = aligned_buffer(PAGE_NBYTES, b"page")
        file.write_from([], 0)
        file.write_from([page[:0], page, page[:0]], 0)
        file.read_into([], 0)
        file.read_into([page[:0]], 0)
        assert _read(file, PAGE_NBYTES) == bytes(page)

    def test_a_read_past_the_end_is_an_error(self, disk: Disk) -> None:
        file = disk.create("file", 2 * PAGE_NBYTES)
        with pytest.raises(DiskError) as caught:
            _read(file, 2 * PAGE_NBYTES, PAGE_NBYTES)
        assert (caught.value.operation, caught.value.errno) == ("read", 0)

    def test_written_bytes_are_there_for_the_next_to_open_the_file(self, disk: Disk) -> None:
        file = disk.create("folder/file", PAGE_NBYTES)
        page = aligned_buffer(PAGE_NBYTES, b"page")
        file.write_from([page], 0)
        file.sync()
        file.close()
        again = disk.open("folder/file")
        assert again.nbytes == PAGE_NBYTES
        assert _read(again, PAGE_NBYTES) == bytes(page)

    def test_create_refuses_a_name_that_exists(self, disk: Disk) -> None:
        file = disk.create("file", PAGE_NBYTES)
        page = aligned_buffer(PAGE_NBYTES, b"page")
        file.write_from([page], 0)
        with pytest.raises(DiskError) as caught:
            disk.create("file", 2 * PAGE_NBYTES)
        assert caught.value.errno == errno.EEXIST
        assert _read(disk.open("file"), PAGE_NBYTES) == bytes(page)

    def test_create_leaves_no_file_where_there_is_no_space(self, disk: Disk) -> None:
        with pytest.raises(DiskError):
            disk.create("file", 1 << 62)
        assert disk.look("").entries == ()

    def test_open_of_a_missing_file_is_an_error_with_its_number(self, disk: Disk) -> None:
        with pytest.raises(DiskError, match=r"file.*ENOENT") as caught:
            disk.open("file")
        assert caught.value.errno == errno.ENOENT

    def test_a_folder_is_no_file(self, disk: Disk) -> None:
        disk.create("folder/file", 0)
        for call in (disk.open, disk.remove):
            with pytest.raises(DiskError):
                call("folder")
        with pytest.raises(DiskError):
            disk.create("folder", 0)

    def test_a_file_is_no_folder(self, disk: Disk) -> None:
        disk.create("file", 0)
        with pytest.raises(DiskError):
            disk.create("file/below", 0)
        with pytest.raises(DiskError):
            disk.look("file")

    def test_rename_puts_a_file_in_the_place_of_another(self, disk: Disk) -> None:
        page = aligned_buffer(PAGE_NBYTES, b"new")
        disk.create("a/new", PAGE_NBYTES).write_from([page], 0)
        disk.create("b/old", 2 * PAGE_NBYTES)
        disk.rename("a/new", "b/old")
        assert disk.look("a").entries == ()
        assert disk.look("b").entries == (Entry("old", PAGE_NBYTES, False),)
        assert _read(disk.open("b/old"), PAGE_NBYTES) == bytes(page)

    def test_rename_of_a_missing_file_or_into_a_missing_folder_is_an_error(self, disk: Disk) -> None:
        disk.create("file", 0)
        for src, dst in (("missing", "other"), ("file", "missing/file")):
            with pytest.raises(DiskError) as caught:
                disk.rename(src, dst)
            assert caught.value.errno == errno.ENOENT
        assert disk.look("").entries == (Entry("file", 0, False),)

    def test_an_open_file_outlives_its_name(self, disk: Disk) -> None:
        file = disk.create("file", PAGE_NBYTES)
        page = aligned_buffer(PAGE_NBYTES, b"page")
        file.write_from([page], 0)
        disk.remove("file")
        disk.create("file", PAGE_NBYTES)
        assert _read(file, PAGE_NBYTES) == bytes(page)
        assert _read(disk.open("file"), PAGE_NBYTES) == bytes(PAGE_NBYTES)

    def test_remove_of_a_missing_file_is_an_error(self, disk: Disk) -> None:
        with pytest.raises(DiskError) as caught:
            disk.remove("file")
        assert caught.value.errno == errno.ENOENT

    def test_look_lists_one_folder_by_name(self, disk: Disk) -> None:
        disk.create("c", PAGE_NBYTES)
        disk.create("a", 0)
        disk.create("b/inside", 0)
        found = disk.look("")
        assert found.entries == (Entry("a", 0, False), Entry("b", 0, True), Entry("c", PAGE_NBYTES, False))
        assert found.free_nbytes > 0
        assert disk.look("b").entries == (Entry("inside", 0, False),)

    def test_look_at_a_missing_folder_finds_nothing_but_free_space(self, disk: Disk) -> None:
        found = disk.look("no/folder")
        assert found.entries == ()
        assert found.free_nbytes > 0

    @pytest.mark.parametrize("path", ["/file", "../file", "a/../file", "a//file", "./file", "file/", "fi\0le"])
    def test_a_path_that_could_leave_the_root_is_refused(self, disk: Disk, path: str) -> None:
        for attempt in (
            lambda: disk.create(path, 0),
            lambda: disk.open(path),
            lambda: disk.rename(path, "file"),
            lambda: disk.remove(path),
            lambda: disk.look(path),
            lambda: disk.lock(path, b""),
        ):
            with pytest.raises(DiskError) as caught:
                attempt()
            assert caught.value.errno == errno.EINVAL
        assert disk.look("").entries == ()

    def test_a_lock_is_refused_while_it_is_held(self, disk: Disk) -> None:
        lock = disk.lock("folder/LOCK", b"a longer text of an earlier holder")
        lock.close()
        lock = disk.lock("folder/LOCK", b"pid 17")
        with pytest.raises(FolderBusyError, match=r"LOCK is held .*\(pid 17\)"):
            disk.lock("folder/LOCK", b"pid 18")
        lock.close()
        lock.close()
        disk.lock("folder/LOCK", b"pid 19").close()

    def test_a_claim_whose_file_was_removed_does_not_stand_and_keeps_others_out(self, disk: Disk) -> None:
        lock = disk.lock("LOCK", b"pid 17")
        assert lock.stands()
        disk.remove("LOCK")
        assert not lock.stands()
        with pytest.raises(FolderBusyError, match="did not say who it is"):
            disk.lock("LOCK", b"pid 18")
        lock.close()
        assert not lock.stands()
        other = disk.lock("LOCK", b"pid 18")
        assert other.stands()
        other.close()

    def test_a_closed_file_refuses_every_call(self, disk: Disk) -> None:
        file = disk.create("file", PAGE_NBYTES)
        page = aligned_buffer(PAGE_NBYTES)
        file.close()
        file.close()
        for attempt in (
            lambda: file.nbytes,
            lambda: file.read_into([page], 0),
            lambda: file.write_from([page], 0),
            file.sync,
        ):
            with pytest.raises(DiskError) as caught:
                attempt()
            assert caught.value.errno == errno.EBADF

    def test_threads_share_an_open_file(self, disk: Disk) -> None:
        num_pages, threads = 64, 4
        file = disk.create("file", num_pages * PAGE_NBYTES)
        together = threading.Barrier(threads)
        worker = Worker("contract", capacity=threads, threads=threads)

        def fill(first: int) -> None:
            together.wait()
            for page in range(first, num_pages, threads):
                file.write_from([aligned_buffer(PAGE_NBYTES, b"page %d " % page)], page * PAGE_NBYTES)
                file.sync()

        for first in range(threads):
            assert worker.submit(partial(fill, first))
        worker.close()
        assert worker.failure is None
        for page in range(num_pages):
            found = _read(file, PAGE_NBYTES, page * PAGE_NBYTES)
            assert found == aligned_buffer(PAGE_NBYTES, b"page %d " % page)
