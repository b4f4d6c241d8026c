"""Every failure tierstore raises, as one tree.

Expected outcomes (a miss, a rejected put, a corrupt block) are values of `tierstore.types.Outcome`
and never exceptions. The errors here are faults of the caller, of the configuration or of the
machine. Every message says what was wrong, which value, and what to do.

    TierstoreError
    ├── ConfigError          a setting is unknown, malformed or impossible      (also a ValueError)
    ├── LayoutError          buffers or pages do not fit the layout             (also a ValueError)
    ├── IdentityError        a hash or a namespace field is malformed           (also a ValueError)
    ├── RankError            a waiting request was named out of order           (also a ValueError)
    ├── FolderError          the SSD folder cannot be used
    │   ├── FolderBusyError      a live process owns it
    │   └── FolderFormatError    it was written by another format version
    ├── MemoryLimitError     the pool does not fit the memory it may take       (also a MemoryError)
    ├── DiskError            one disk call failed; carries operation, path and errno
    ├── DeviceError          the device refused a call
    │   ├── NoDeviceError        there is no GPU, driver or package to use it with
    │   └── DeviceMemoryError    the GPU has no memory left                     (also a MemoryError)
    ├── NoPackageError       an extra is needed that is not installed           (also an ImportError)
    ├── AddressError         an address cannot be listened on, or nobody answers there
    ├── ReadOnlyError        the store only looks at its folder, which another one may own
    ├── ServiceError         a call to a store's service failed
    │   ├── AccessError          the credential is not enough for the call
    │   │   └── CredentialError      it is missing, wrong or expired
    │   ├── LimitError           a limit or a quota of the service was reached
    │   ├── SessionError         the session or a handle of it is gone
    │   ├── UnavailableError     the service cannot be reached, is too slow or is ending
    │   └── VersionError         client and service do not speak the same protocol
    └── ClosedError          the store is closed
        └── ForkError            it belongs to the process that this one is a fork of
"""

from __future__ import annotations

import errno as _errno
import os

__all__ = [
    "AccessError",
    "AddressError",
    "ClosedError",
    "ConfigError",
    "CredentialError",
    "DeviceError",
    "DeviceMemoryError",
    "DiskError",
    "FolderBusyError",
    "FolderError",
    "FolderFormatError",
    "ForkError",
    "IdentityError",
    "LayoutError",
    "LimitError",
    "MemoryLimitError",
    "NoDeviceError",
    "NoPackageError",
    "RankError",
    "ReadOnlyError",
    "ServiceError",
    "SessionError",
    "TierstoreError",
    "UnavailableError",
    "VersionError",
]


class TierstoreError(Exception):
    """Root of the tree."""


class ConfigError(TierstoreError, ValueError):
    """A setting is unknown, malformed or impossible."""


class LayoutError(TierstoreError, ValueError):
    """Buffers or pages do not fit the layout."""


class IdentityError(TierstoreError, ValueError):
    """A block hash or a namespace field is malformed."""


class RankError(TierstoreError, ValueError):
    """A waiting request was named out of order."""


class FolderError(TierstoreError):
    """The SSD folder cannot be used."""


class FolderBusyError(FolderError):
    """A live process owns the SSD folder.

    Attributes:
        path: The file that the process holds.
        holder: What that process says about itself; empty if nothing.
    """

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(
            f"{path} is held by a live process ({holder or 'it did not say who it is'}); stop that process and its "
            "children, or use another folder; engines that are to share one folder share one store, through its service"
        )
        self.path = path
        self.holder = holder


class FolderFormatError(FolderError):
    """The SSD folder was written by another format version, or lost its manifest."""


class MemoryLimitError(TierstoreError, MemoryError):
    """The pool does not fit the memory it may take."""


class DeviceError(TierstoreError):
    """The device refused a call."""


class NoDeviceError(DeviceError):
    """A GPU was asked for, but there is none, or no driver or package to use it with."""


class DeviceMemoryError(DeviceError, MemoryError):
    """The GPU has no memory left."""


class NoPackageError(TierstoreError, ImportError):
    """A package that one of tierstore's extras installs is needed, and missing."""


class AddressError(TierstoreError):
    """An address cannot be listened on, or nobody answers there."""


class ReadOnlyError(TierstoreError):
    """The store was opened with ``ssd.read_only``: it deletes and clears nothing."""

    def __init__(self, verb: str) -> None:
        super().__init__(
            f"{verb} is refused: the store was opened with ssd.read_only, to look at a folder that another may own; "
            f"call {verb} of the owner, or open the folder without ssd.read_only"
        )


class ServiceError(TierstoreError):
    """A call to a store's service failed."""


class AccessError(ServiceError):
    """The credential is not enough for the call."""


class CredentialError(AccessError):
    """The credential is missing, wrong or expired."""


class LimitError(ServiceError):
    """A limit or a quota of the service was reached."""


class SessionError(ServiceError):
    """The session, or a handle of it, is gone."""


class UnavailableError(ServiceError):
    """The service cannot be reached, is too slow or is ending."""


class VersionError(ServiceError):
    """Client and service do not speak the same protocol."""


class ClosedError(TierstoreError):
    """The store is closed."""


class ForkError(ClosedError):
    """The store belongs to the process that this one is a fork of."""


class DiskError(TierstoreError):
    """One disk call failed.

    Attributes:
        operation: The call, such as ``"write"``.
        path: The file or folder.
        errno: The system's error number, or 0 where the call ended short without one.
    """

    def __init__(self, operation: str, path: str, errno: int = 0, detail: str = "") -> None:
        reason = detail or (os.strerror(errno) if errno else "ended short")
        name = _errno.errorcode.get(errno, "")
        super().__init__(f"{operation} {path}: {reason}{f' ({name})' if name else ''}")
        self.operation = operation
        self.path = path
        self.errno = errno
