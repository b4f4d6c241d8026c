"""The addresses that a service listens on, and their authentication. Called when a service starts; closed by default.

Only its owner can use a Unix socket. TCP demands a certificate and credentials, unless `service.insecure` is set.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from dataclasses import replace
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
        if complaint := _complaint(settings):
            lines.append(f"tierstore: no client will accept {settings.tls_certificate}: {complaint}; renew it")
    return lines


def _tls(settings: ServiceConfig) -> grpc.ServerCredentials | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        if settings.insecure and settings.tls_certificate is None and settings.tls_key is None:
            return None
        raise ConfigError(
            "TCP needs service.tls_certificate and service.tls_key; give both, or say --insecure to go without"
        )
    pair = (_read(settings.tls_key, "service.tls_key"), _read(settings.tls_certificate, "service.tls_certificate"))
    _context(settings)
    if settings.tls_client_ca is None:
        return grpc.ssl_server_credentials([pair])
    authority = _read(settings.tls_client_ca, "service.tls_client_ca")
    return grpc.ssl_server_credentials([pair], root_certificates=authority, require_client_auth=True)


def _context(settings: ServiceConfig) -> ssl.SSLContext:
    """What the files of a server are good for; ConfigError where they are not PEM, or do not belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate, key, client_ca = settings.tls_certificate, settings.tls_key, settings.tls_client_ca
    assert certificate is not None, "TLS is asked for"
    try:
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"service.tls_certificate {certificate} and service.tls_key {key} are no pair of a PEM certificate and its "
            f"key without a password: {_reason(error)}; give two that belong together"
        ) from error
    try:
        if client_ca is not None:
            context.load_verify_locations(client_ca)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"service.tls_client_ca {client_ca} holds no PEM certificates: {_reason(error)}; give a file that does"
        ) from error
    return context


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(error)


def _complaint(settings: ServiceConfig) -> str:
    """What a client would say of the certificate that trusts who has signed it; nothing where all is well."""
    if settings.tls_certificate is None:
        return ""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False  # by which name it is called nobody knows here
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(settings.tls_certificate)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(back, there)
    server = _context(replace(settings, tls_client_ca=None)).wrap_bio(there, back, server_side=True)
    try:
        for end in (client, server, client):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    return ""


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
