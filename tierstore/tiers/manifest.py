"""The folder's manifest: `store.json`, which says what the folder holds, and `LOCK`, which says who owns it.

The owner of an SSD folder opens it before the tier, and closes it after. Every change is durable before its call
returns. A folder that it does not understand is refused and left unchanged. For one thread at a time; `stands` may
be called on another.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import TypedDict

from tierstore.disk.base import Disk, Lock
from tierstore.errors import DiskError, FolderBusyError, FolderFormatError, ReadOnlyError
from tierstore.keys import Namespace
from tierstore.tiers.holder import describe_holder, this_holder
from tierstore.tiers.record import FORMAT_VERSION
from tierstore.tiers.whole_file import read_whole, replace_whole
from tierstore.types import PAGE_NBYTES

__all__ = ["Manifest", "ManifestContent", "ManifestView", "NamespaceContent", "read_manifest"]

_PATH = "store.json"
_LOCK_PATH = "LOCK"

_REMEDY = "restore it from a copy, or remove it together with arrays/ to start anew"


class NamespaceContent(TypedDict):
    """What is known of one namespace; the identity is for people."""

    epoch: int
    identity: dict[str, object]


class ManifestContent(TypedDict):
    """What `store.json` says; namespaces by their fingerprint in hex."""

    format: int
    uuid: str
    namespaces: dict[str, NamespaceContent]


class Manifest:
    """The open manifest of one folder. Made by `open`."""

    def __init__(self, disk: Disk, lock: Lock, content: ManifestContent) -> None:
        self._disk = disk
        self._lock = lock
        self._content = content
        self._saving = threading.Lock()
        self._unsure = False

    @classmethod
    def open(cls, disk: Disk) -> Manifest:
        """Claim the folder and read its manifest, or make the first one; blocks.

        Raises:
            FolderBusyError: A live process owns the folder.
            FolderFormatError: Another format version, an unreadable manifest, or chunk files without one.
            DiskError: The disk failed.
        """
        content = read_manifest(disk)
        store_uuid = content["uuid"] if content else str(uuid.uuid4())
        try:
            lock = disk.lock(_LOCK_PATH, this_holder(store_uuid))
        except FolderBusyError as error:
            raise FolderBusyError(error.path, describe_holder(error.holder)) from error
        try:
            content = read_manifest(disk)  # again: the last owner may have changed it until it let go
            if content is None:
                content = ManifestContent(format=FORMAT_VERSION, uuid=store_uuid, namespaces={})
                _save(disk, content)
        except (DiskError, FolderFormatError):
            lock.close()
            raise
        return cls(disk, lock, content)

    @property
    def store_uuid(self) -> str:
        """Made with the folder, never changed."""
        return self._content["uuid"]

    @property
    def epochs(self) -> Mapping[bytes, int]:
        """The living epoch of every known namespace, by fingerprint."""
        return _epochs(self._content)

    def epoch(self, fingerprint: bytes) -> int:
        """The living epoch of a registered namespace."""
        return self._content["namespaces"][fingerprint.hex()]["epoch"]

    def register(self, namespace: Namespace) -> int:
        """Make a namespace known, durably; blocks the first time. Returns its living epoch.

        Raises:
            DiskError: It could not be written; the namespace is not known then.
        """
        name = namespace.fingerprint.hex()
        if name not in self._content["namespaces"]:
            self._put(name, NamespaceContent(epoch=0, identity=namespace.as_fields()))
        return self.epoch(namespace.fingerprint)

    def advance(self, fingerprint: bytes) -> int:
        """End the epoch of a registered namespace, durably; blocks. Returns the next one.

        Raises:
            DiskError: It could not be written, and the epoch goes on in this run. If putting the old manifest back
                failed too, the epoch may be over in the next run, unless `stands` is called before.
        """
        known = self._content["namespaces"][fingerprint.hex()]
        self._put(fingerprint.hex(), NamespaceContent(epoch=known["epoch"] + 1, identity=known["identity"]))
        return self.epoch(fingerprint)

    def stands(self) -> bool:
        """Whether the folder still belongs to this owner: its LOCK is the one that was claimed. Blocks for one look.

        If a failed call may have left another state in the manifest, the state of this run is written again.

        Raises:
            DiskError: The disk does not say, or the manifest cannot be written.
        """
        stands = self._lock.stands()
        with self._saving:
            if stands and self._unsure:
                _save(self._disk, self._content)
                self._unsure = False
        return stands

    def close(self) -> None:
        """Give the folder up."""
        self._lock.close()

    def _put(self, name: str, entry: NamespaceContent) -> None:
        content = ManifestContent(
            format=FORMAT_VERSION, uuid=self.store_uuid, namespaces={**self._content["namespaces"], name: entry}
        )
        with self._saving:
            try:
                _save(self._disk, content)
            except DiskError:
                self._unsure = True  # it may have taken effect all the same: put back what this run goes on with
                with suppress(DiskError):
                    _save(self._disk, self._content)
                    self._unsure = False
                raise
            self._content, self._unsure = content, False


class ManifestView:
    """The manifest of a folder that another store may own, as it was when it was read. Made by `read`."""

    def __init__(self, content: ManifestContent) -> None:
        self._content = content

    @classmethod
    def read(cls, disk: Disk) -> ManifestView:
        """Read the manifest, without a claim; blocks.

        Raises:
            FolderFormatError: There is none, or as `Manifest.open` says.
            DiskError: The disk failed.
        """
        content = read_manifest(disk)
        if content is None:
            raise FolderFormatError(
                f"the folder holds no {_PATH}, and ssd.read_only makes none; give the folder of a store, "
                "or open it once without ssd.read_only"
            )
        return cls(content)

    @property
    def epochs(self) -> Mapping[bytes, int]:
        """The epoch of every namespace known then, by fingerprint."""
        return _epochs(self._content)

    def register(self, namespace: Namespace) -> int:
        """The epoch of a namespace; of one that is not known the first. Writes nothing."""
        return self.epochs.get(namespace.fingerprint, 0)

    def advance(self, fingerprint: bytes) -> int:
        """Raise ReadOnlyError."""
        raise ReadOnlyError("clear")


def _epochs(content: ManifestContent) -> Mapping[bytes, int]:
    return {bytes.fromhex(name): entry["epoch"] for name, entry in content["namespaces"].items()}


def read_manifest(disk: Disk) -> ManifestContent | None:
    """Read the manifest, without a claim to the folder; blocks. None in a new folder.

    Raises:
        FolderFormatError: Another format version, an unreadable manifest, or chunk files without one.
        DiskError: The disk failed.
    """
    root = {entry.name: entry for entry in disk.look("").entries}
    if _PATH not in root:
        if any(entry.is_folder for entry in disk.look("arrays").entries):
            raise FolderFormatError(
                f"there are chunk files under arrays/ but no {_PATH}, which says whose they are; "
                f"restore {_PATH} from a copy, or remove arrays/ to start anew"
            )
        return None
    nbytes = root[_PATH].nbytes
    if not nbytes or nbytes % PAGE_NBYTES:
        raise FolderFormatError(f"{_PATH} cannot be read (it has {nbytes} bytes, not whole pages); {_REMEDY}")
    return _parse(read_whole(disk, _PATH))


def _parse(text: bytes) -> ManifestContent:
    """Check a manifest and take it."""
    try:
        content = json.loads(text)
        version = content["format"]
        if version == FORMAT_VERSION:
            namespaces = {
                bytes.fromhex(name).hex(): NamespaceContent(epoch=_epoch(entry), identity=dict(entry["identity"]))
                for name, entry in content["namespaces"].items()
            }
            return ManifestContent(format=version, uuid=str(uuid.UUID(content["uuid"])), namespaces=namespaces)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FolderFormatError(f"{_PATH} cannot be read ({type(error).__name__}: {error}); {_REMEDY}") from error
    raise FolderFormatError(
        f"{_PATH} is of format {version!r}, this version reads format {FORMAT_VERSION}; "
        "use the version of tierstore that wrote it, or another folder"
    )


def _epoch(entry: Mapping[str, int]) -> int:
    """The epoch of a namespace: the higher of its two copies, so that a damaged one brings no cleared record back."""
    return max(int(entry["epoch"]), int(entry.get("epoch_again", 0)))


def _save(disk: Disk, content: ManifestContent) -> None:
    """Replace the manifest, atomically and durably."""
    namespaces = {
        name: {"epoch": entry["epoch"], "epoch_again": entry["epoch"], "identity": entry["identity"]}
        for name, entry in content["namespaces"].items()
    }
    text = json.dumps({**content, "namespaces": namespaces}, indent=1)
    replace_whole(disk, _PATH, text.encode() + b"\n", padding=b" ")
