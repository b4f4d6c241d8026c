"""The address of the service, and channels to it, unencrypted or over TLS.

Made by the client. The connection opens a channel at each attempt, and asks here what may help against a failure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import grpc

from tierstore.addresses import PORT_MAX
from tierstore.errors import ConfigError

__all__ = ["Door"]

_ADDRESS = r"unix:.+|[^/]+:([0-9]{1,5})"

_NOT_CONNECTED = "failed to connect"
_CLEAR_ADVICE = {"Socket closed": "the service may want TLS: pass tls_ca, or tls=True"}
_TLS_ADVICE = {
    "WRONG_VERSION_NUMBER": "the service may not speak TLS: leave out tls, tls_ca and tls_certificate",
    "CERTIFICATE_VERIFY_FAILED": "nobody whom this client trusts has signed the service's certificate: pass tls_ca",
    "Hostname Verification": "its certificate is for another host: give the address by a name that is in it",
    "Socket closed": "the service may want a certificate of the client's: pass tls_certificate and tls_key",
}
"""What gRPC says of a connection that did not come about, and what may help."""


class Door:
    """See the module.

    Args:
        address: ``"unix:/path"`` or ``"host:port"``.
        tls: Encrypt, also where none of the files is given.
        ca: Path of the certificates that sign the server's; None: those that this machine trusts.
        certificate: Path of the client's own certificate, where the server asks for one.
        key: Path of its key.

    Raises:
        ConfigError: A path cannot be read, or the address makes no sense.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: bool = False,
        ca: str | os.PathLike[str] | None = None,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
    ) -> None:
        match = re.fullmatch(_ADDRESS, address)
        if match is None or int(match[1] or 0) > PORT_MAX:  # gRPC would take it modulo 65,536
            raise ConfigError(f"address is {address!r}; give unix:/path or host:port")
        self._address = address
        self._credentials: grpc.ChannelCredentials | None = None
        if tls or ca is not None or certificate is not None:
            self._credentials = grpc.ssl_channel_credentials(_read(ca), _read(key), _read(certificate))

    def open(self, options: Sequence[tuple[str, int]]) -> grpc.Channel:
        """A new channel. Does not block: whether somebody answers shows with its first call."""
        if self._credentials is None:
            return grpc.insecure_channel(self._address, options=options)
        return grpc.secure_channel(self._address, self._credentials, options=options)

    def advice(self, failure: str) -> str:
        """What may help against a failure to connect, as gRPC words it; empty where nothing is known to."""
        if _NOT_CONNECTED not in failure or self._address.startswith("unix:"):
            return ""
        known = _CLEAR_ADVICE if self._credentials is None else _TLS_ADVICE
        return next((advice for words, advice in known.items() if words in failure), "")


def _read(path: str | os.PathLike[str] | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{os.fspath(path)} cannot be read: {error.strerror}; give the path of a PEM file") from error
