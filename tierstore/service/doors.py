"""The addresses of a service and who may come in there. Called when a service starts; doors are shut by default.

A Unix socket is its owner's alone. TCP demands a certificate and credentials, unless `service.insecure` is said.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from tierstore.errors import ConfigError
from tierstore.service.security import Authority, Everybody, Tokens
from tierstore.service.sockets import UNIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tierstore.sections import ServiceConfig
    from tierstore.service.server import Server

__all__ = ["open_doors"]


async def open_doors(server: Server, addresses: Sequence[str], settings: ServiceConfig) -> list[str]:
    """Listen everywhere; what was opened, in words for the banner.

    Raises:
        ConfigError: An address cannot be used, a file cannot be read, or TCP would be open to everybody.
    """
    lines = []
    for address in addresses:
        if address.startswith(UNIX):
            await server.listen_here(address.removeprefix(UNIX))
            lines.append(f"tierstore: {address}, for this user alone (0600)")
            continue
        tls, authority = _tls(settings), _authority(settings)
        host, _, port = address.rpartition(":")
        bound = await server.listen(address, tls, authority)
        words = [
            "UNENCRYPTED" if tls is None else "mTLS" if settings.tls_client_ca else "TLS",
            "OPEN TO EVERYBODY" if isinstance(authority, Everybody) else "tokens",
        ]
        lines.append(f"tierstore: {host}:{bound if port == '0' else port}, {', '.join(words)}")
    return lines


def _tls(settings: ServiceConfig) -> grpc.ServerCredentials | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        if settings.insecure and settings.tls_certificate is None and settings.tls_key is None:
            return None
        raise ConfigError(
            "TCP needs service.tls_certificate and service.tls_key; give both, or say --insecure to go without"
        )
    pair = (_read(settings.tls_key, "service.tls_key"), _read(settings.tls_certificate, "service.tls_certificate"))
    if settings.tls_client_ca is None:
        return grpc.ssl_server_credentials([pair])
    authority = _read(settings.tls_client_ca, "service.tls_client_ca")
    return grpc.ssl_server_credentials([pair], root_certificates=authority, require_client_auth=True)


def _authority(settings: ServiceConfig) -> Authority:
    if settings.credentials is not None:
        return Tokens.load(settings.credentials)
    if not settings.insecure:
        raise ConfigError("TCP needs service.credentials, a TOML file; give it, or say --insecure to let everybody in")
    return Everybody()


def _read(path: str, key: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{key} is {path}: {error.strerror}; give the path of a PEM file") from error
