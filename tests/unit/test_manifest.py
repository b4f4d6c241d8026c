"""The folder's manifest: who owns it, what it knows, what it refuses."""

from __future__ import annotations

import errno
import json
from random import Random
from typing import TYPE_CHECKING

import pytest

from tierstore.errors import DiskError, FolderBusyError, FolderFormatError
from tierstore.keys import Namespace
from tierstore.layout import KVLayout
from tierstore.testing.sim_disk import SimDisk
from tierstore.tiers.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMESPACE = Namespace("model", KVLayout.opaque(block_nbytes=100), tenant="tenant")


def put(disk: SimDisk, path: str, text: bytes) -> None:
    disk.create(path, len(text)).close()
    disk.replace(path, text)


def stored(disk: SimDisk) -> Mapping[str, object]:
    content: Mapping[str, object] = json.loads(disk.contents("store.json"))
    return content


def test_a_new_folder_gets_a_manifest_of_whole_pages() -> None:
    disk = SimDisk()
    manifest = Manifest.open(disk)
    assert stored(disk) == {"format": 1, "uuid": manifest.store_uuid, "namespaces": {}}
    assert len(disk.contents("store.json")) == 4096
    assert disk.num_open == 0


def test_a_folder_keeps_its_uuid_and_its_namespaces() -> None:
    disk = SimDisk()
    manifest = Manifest.open(disk)
    assert manifest.register(NAMESPACE) == 0
    assert manifest.advance(NAMESPACE.fingerprint) == 1
    disk.crash(Random(0), torn=False)
    again = Manifest.open(disk)
    assert again.store_uuid == manifest.store_uuid
    assert again.epochs == {NAMESPACE.fingerprint: 1}
    assert again.register(NAMESPACE) == again.epoch(NAMESPACE.fingerprint) == 1


def test_a_person_can_read_what_a_namespace_is() -> None:
    disk = SimDisk()
    Manifest.open(disk).register(NAMESPACE)
    (entry,) = json.loads(disk.contents("store.json"))["namespaces"].values()
    assert entry["identity"]["model"] == "model"
    assert entry["identity"]["layout"]["dtype"] == "uint8"


def test_no_flipped_bit_brings_back_what_was_cleared() -> None:
    disk = SimDisk()
    manifest = Manifest.open(disk)
    manifest.register(NAMESPACE)
    for _ in range(13):
        manifest.advance(NAMESPACE.fingerprint)
    whole = disk.contents("store.json")
    refused = 0
    for bit in range(8 * len(whole.rstrip())):
        disk.kill()
        disk.replace("store.json", whole)
        disk.flip("store.json", bit)
        try:
            found = Manifest.open(disk).epochs
        except FolderFormatError:
            refused += 1
            continue
        assert found.get(NAMESPACE.fingerprint, 13) >= 13, f"bit {bit}"
    assert refused > 100


def test_a_manifest_of_the_time_when_epochs_were_written_once_is_read() -> None:
    disk = SimDisk()
    manifest = Manifest.open(disk)
    manifest.register(NAMESPACE)
    manifest.advance(NAMESPACE.fingerprint)
    before = disk.contents("store.json").replace(b'   "epoch_again": 1,\n', b"")
    disk.kill()
    disk.replace("store.json", before.ljust(4096))
    assert Manifest.open(disk).epochs == {NAMESPACE.fingerprint: 1}


def test_registering_a_known_namespace_writes_nothing() -> None:
    disk = SimDisk()
    manifest = Manifest.open(disk)
    manifest.register(NAMESPACE)
    calls = disk.calls
    assert manifest.register(NAMESPACE) == 0
    assert disk.calls == calls


def test_many_namespaces_take_more_pages() -> None:
    disk = SimDisk()
    manifest = Manifest.open(disk)
    for tenant in range(40):
        manifest.register(Namespace("model", NAMESPACE.layout, tenant=str(tenant)))
    assert len(disk.contents("store.json")) > 8192
    disk.kill()
    assert len(Manifest.open(disk).epochs) == 40


def test_a_second_owner_is_told_who_holds_the_folder() -> None:
    disk = SimDisk()
    manifest = Manifest.open(disk)
    with pytest.raises(FolderBusyError, match=r"LOCK is held .*pid \d+: this very process, on host .*, since 2.*UTC"):
        Manifest.open(disk)
    manifest.close()
    assert Manifest.open(disk).store_uuid == manifest.store_uuid


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"format": 2}', "is of format 2, this version reads format 1"),
        (b"\0" * 4096, "cannot be read"),
        (b"[]", "cannot be read"),
        (b'"format"', "cannot be read"),
        (b'{"format": 1, "uuid": "x", "namespaces": {}}', "cannot be read"),
        (b'{"format": 1, "uuid": "' + b"0" * 32 + b'", "namespaces": {"zz": {}}}', "cannot be read"),
        (b'{"format": 1, "uuid": "' + b"0" * 32 + b'", "namespaces": []}', "cannot be read"),
    ],
)
def test_a_manifest_it_does_not_understand_is_refused_and_left_alone(text: bytes, message: str) -> None:
    disk = SimDisk()
    put(disk, "store.json", text.ljust(4096))
    before = disk.look("")
    with pytest.raises(FolderFormatError, match=message):
        Manifest.open(disk)
    assert disk.look("") == before
    assert disk.contents("store.json") == text.ljust(4096)
    assert disk.num_open == 0


@pytest.mark.parametrize("nbytes", [0, 1, 4095, 4097])
def test_a_manifest_that_was_cut_is_refused(nbytes: int) -> None:
    disk = SimDisk()
    Manifest.open(disk)
    disk.kill()
    disk.truncate("store.json", nbytes)
    with pytest.raises(FolderFormatError, match=f"it has {nbytes} bytes"):
        Manifest.open(disk)


def test_chunk_files_without_a_manifest_are_refused_and_left_alone() -> None:
    disk = SimDisk()
    put(disk, "arrays/any-raw/open-0-" + "0" * 32, b"")
    before = disk.look("")
    with pytest.raises(FolderFormatError, match=r"no store\.json"):
        Manifest.open(disk)
    assert disk.look("") == before


def test_a_half_written_manifest_of_a_dead_owner_is_replaced() -> None:
    disk = SimDisk()
    put(disk, "store.json.new", b"half")
    Manifest.open(disk).register(NAMESPACE)
    assert [entry.name for entry in disk.look("").entries] == ["LOCK", "store.json"]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, 0])
@pytest.mark.parametrize("verb", ["open", "register", "advance"])
def test_a_failing_disk_leaves_the_manifest_before_or_after_the_change(verb: str, code: int) -> None:
    for call in range(1, 20):
        disk = SimDisk()
        manifest = Manifest.open(disk)
        manifest.register(NAMESPACE)
        other = Namespace("other", NAMESPACE.layout)
        if verb == "open":
            disk.kill()
        calls = disk.calls
        disk.fail_call(call, errno=code)
        try:
            if verb == "open":
                Manifest.open(disk)
            elif verb == "register":
                assert manifest.register(other) == 0
            else:
                assert manifest.advance(NAMESPACE.fingerprint) == 1
        except DiskError:
            assert disk.num_open == 0
            if verb == "register":
                assert other.fingerprint not in manifest.epochs
            if verb == "advance":
                assert manifest.epoch(NAMESPACE.fingerprint) == 0
        disk.heal()
        finished = disk.calls - calls < call
        disk.kill()
        again = Manifest.open(disk).epochs
        assert again[NAMESPACE.fingerprint] in (0, 1)
        assert again[NAMESPACE.fingerprint] == 0 or verb == "advance"
        assert set(again) <= {NAMESPACE.fingerprint, other.fingerprint}
        if finished:
            return
    pytest.fail(f"{verb} takes more than 19 calls")
