"""What a failing disk and a folder in motion do to the offline tools: a finding or a line, never an exception."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from tests.payload import TIMEOUT_SECONDS, block_hash, namespace, quiet, rows, small_store
from tierstore.errors import FolderFormatError
from tierstore.inspect.checkup import check_folder
from tierstore.inspect.contents import read_contents
from tierstore.inspect.findings import Fault
from tierstore.inspect.folder import StoreFolder
from tierstore.inspect.repair import plan_repair
from tierstore.testing.sim_disk import SimDisk


@pytest.fixture
def disk() -> SimDisk:
    """Two sealed files and an open one."""
    disk = SimDisk()
    with small_store(disk) as store:
        numbers = range(16)
        handle = store.namespace(namespace())
        for part in (numbers[:8], numbers[8:]):
            names = [block_hash(number) for number in part]
            assert handle.put(names, rows(part, 8192), durable=True).result(TIMEOUT_SECONDS).ok
    return disk


def paths(disk: SimDisk) -> list[str]:
    (array,) = StoreFolder.read(disk).arrays
    return [file.name.path for file in array.files]


def test_a_folder_without_a_manifest_is_refused() -> None:
    with pytest.raises(FolderFormatError, match="holds no store"):
        StoreFolder.read(SimDisk())


@pytest.mark.parametrize("call", range(1, 12))
def test_what_the_disk_does_not_give_is_found_and_left_alone(disk: SimDisk, call: int) -> None:
    folder = StoreFolder.read(disk)
    with quiet():
        disk.fail_from(call, errno=errno.EIO, only="read")
        checkup = check_folder(folder)
        disk.heal()
        assert Fault.UNREADABLE in {finding.fault for finding in checkup.findings}
        disk.fail_from(call, errno=errno.EIO, only="read")
        mends, left = plan_repair(folder)
    assert left
    assert mends == []


def test_a_fault_that_is_gone_at_the_second_look_is_none(disk: SimDisk) -> None:
    folder = StoreFolder.read(disk)
    with quiet():
        disk.fail_call(1, errno=errno.EIO, only="open")
        checkup = check_folder(folder)
    assert checkup.findings == []


def test_files_that_have_gone_are_skipped_with_a_line(disk: SimDisk) -> None:
    folder = StoreFolder.read(disk)
    gone = paths(disk)[0]
    disk.remove(gone)
    assert check_folder(folder).num_files == 2
    assert len(read_contents(folder)) == 2
    assert folder.skipped == [f"{gone}: sealed or given back meanwhile"] * 2


def test_a_file_that_is_renamed_while_it_is_read_is_not_judged(disk: SimDisk) -> None:
    opened = next(path for path in paths(disk) if "/open-" in path)
    disk.flip(opened, 8 * 24)
    folder = StoreFolder.read(disk)

    def rename(_nbytes: int) -> None:
        if opened in paths(disk):
            disk.rename(opened, opened.replace("/open-", "/gone-"))

    assert check_folder(folder, advance=rename).findings == []
    assert any(opened in line for line in folder.skipped)


def test_names_of_others_are_skipped_with_a_line(disk: SimDisk) -> None:
    (array,) = StoreFolder.read(disk).arrays
    disk.create(f"arrays/{array.name}/notes.txt", 4096).close()
    folder = StoreFolder.read(disk)
    assert folder.skipped == [f"arrays/{array.name}/notes.txt: not a chunk file's name"]
    assert check_folder(folder).findings == []


def test_blocks_of_a_codec_that_is_not_installed_are_counted_and_not_judged(disk: SimDisk) -> None:
    (array,) = StoreFolder.read(disk).arrays
    other = array.name.replace("-raw", "-other")
    for path in paths(disk):
        content = disk.contents(path)
        copy = path.replace(array.name, other)
        disk.create(copy, len(content)).close()
        disk.replace(copy, content)
    checkup = check_folder(StoreFolder.read(disk))
    assert any("codec is not installed" in line for line in checkup.skipped)
    assert {finding.fault for finding in checkup.findings} == {Fault.METADATA}
    (mends, left) = plan_repair(StoreFolder.read(disk))
    assert (mends, len(left)) == ([], 1)


def test_an_identity_that_does_not_say_its_layout_leaves_payloads_verified(disk: SimDisk) -> None:
    text = disk.contents("store.json").decode()
    disk.replace("store.json", text.replace('"dtype"', '"other"').encode())
    folder = StoreFolder.read(disk)
    assert folder.namespaces[0].layout is None
    assert check_folder(folder).findings == []
    opened = next(path for path in paths(disk) if "/open-" in path)
    disk.flip(opened, 8 * 5000)
    assert [finding.fault for finding in check_folder(folder).findings] == [Fault.PAYLOAD]
    assert np.count_nonzero([file.alive.sum() for file in read_contents(folder)])
