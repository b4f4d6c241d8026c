"""The settings of the service: where it listens, who may come in, how it ends. Checked by `tierstore.config`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tierstore import settings
from tierstore.settings import Kind, optional, setting

__all__ = ["ServiceConfig"]

_ADDRESS_FORM = re.compile(r"unix:[^,\0]+|(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


def _read_addresses(value: object) -> str:
    addresses = [part.strip() for part in str(value).split(",")]
    for address in addresses:
        match = _ADDRESS_FORM.fullmatch(address)
        if match is None or int(match[1] or 0) > settings.PORT_MAX:
            raise ValueError("not an address")
    return ", ".join(addresses)


_ADDRESSES = Kind(
    'addresses such as "unix:/run/tierstore.sock" or "10.0.0.5:7411", with commas between', _read_addresses
)
_FILE = Kind("the path of a file", settings.FOLDER.read)


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """The gRPC service. None is auto, or no file."""

    listen: str | None = setting(
        None, optional(_ADDRESSES, "auto"), "addresses of the service; auto is a Unix socket of this user's own"
    )
    tls_certificate: str | None = setting(None, optional(_FILE, "none"), "PEM file with the server's certificates")
    tls_key: str | None = setting(None, optional(_FILE, "none"), "PEM file with its key")
    tls_client_ca: str | None = setting(
        None, optional(_FILE, "none"), "PEM file with who signs clients' certificates, which are then demanded"
    )
    credentials: str | None = setting(None, optional(_FILE, "none"), "TOML file with who may come in over TCP")
    insecure: bool = setting(False, settings.FLAG, "let everybody in over TCP, unencrypted without a certificate")
    sessions_max: int = setting(1024, settings.count(1, 1 << 16), "clients at a time")
    lease_seconds: float = setting(30.0, settings.SECONDS, "how long a client may keep blocks pinned")
    drain_seconds: float = setting(20.0, settings.SECONDS, "how long calls under way may take once the service ends")
