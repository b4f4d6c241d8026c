"""The settings of the doors: who may look on, how the log looks, the service. Checked by `tierstore.config`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tierstore import settings
from tierstore.addresses import ADDRESS, PORT_MAX
from tierstore.errors import ConfigError
from tierstore.settings import Kind, optional, setting

__all__ = ["LogConfig", "MonitorConfig", "ServiceConfig"]

_ADDRESS_FORM = re.compile(r"unix:[^,\0]+|(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


def _read_addresses(value: object) -> str:
    addresses = [part.strip() for part in str(value).split(",")]
    for address in addresses:
        match = _ADDRESS_FORM.fullmatch(address)
        if match is None or int(match[1] or 0) > PORT_MAX:
            raise ValueError("not an address")
    return ", ".join(addresses)


_ADDRESSES = Kind(
    'addresses such as "unix:/run/tierstore.sock" or "10.0.0.5:7411", with commas between', _read_addresses
)
_FILE = Kind("the path of a file", settings.FOLDER.read)


@dataclass(frozen=True, slots=True)
class MonitorConfig:
    """Who may look on. None is nobody."""

    address: str | None = setting(
        None, optional(ADDRESS, "none"), "where metrics and the status page are served over HTTP"
    )
    public: bool = setting(False, settings.FLAG, "allow an address that other machines reach; there is no password")
    tracing: bool = setting(
        False, settings.FLAG, "an OpenTelemetry span for every put, get, prefetch, lease and reservation"
    )


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How the lines of the log look. None leaves them to the program."""

    format: str | None = setting(
        None, optional(settings.choice("text", "json"), "none"), "log lines that the store writes to stderr"
    )
    level: str = setting(
        "info", settings.choice("debug", "info", "warning", "error"), "lowest level that is written there"
    )


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """The gRPC service. None is auto, or no file."""

    listen: str | None = setting(
        None, optional(_ADDRESSES, "auto"), "addresses of the service; auto is a Unix socket of this user's own"
    )
    tls_certificate: str | None = setting(None, optional(_FILE, "none"), "PEM file with the server's certificates")
    tls_key: str | None = setting(None, optional(_FILE, "none"), "PEM file with its key")
    tls_client_ca: str | None = setting(
        None, optional(_FILE, "none"), "PEM file of the CA that must have signed clients' certificates (mTLS)"
    )
    credentials: str | None = setting(None, optional(_FILE, "none"), "TOML file with the tokens accepted over TCP")
    insecure: bool = setting(False, settings.FLAG, "accept TCP without token; without a certificate it is unencrypted")
    sessions_max: int = setting(1024, settings.count(1, 1 << 16), "clients at a time")
    lease_seconds: float = setting(30.0, settings.seconds(1.0), "how long a client may keep blocks pinned")
    drain_seconds: float = setting(
        20.0, settings.seconds(), "how long running calls may take after the service is told to stop"
    )

    def check(self) -> None:
        """Raise ConfigError where settings that fit each by itself make no sense together."""
        if (self.tls_certificate is None) != (self.tls_key is None):
            given, missing = ("certificate", "key") if self.tls_key is None else ("key", "certificate")
            raise ConfigError(f"service.tls_{given} is given, and service.tls_{missing} is not; give both, or neither")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ConfigError(
                f"service.tls_client_ca is {self.tls_client_ca}, and nobody is asked for a certificate without "
                "service.tls_certificate and service.tls_key; give those, too, or leave it out"
            )
