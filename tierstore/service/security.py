"""Authentication and rights of callers. Tenants, rights and quotas come from credentials, never from a message.

A token is never stored: the file holds its SHA-256, which suffices because tokens are long and random.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from tierstore.errors import AccessError, ConfigError, CredentialError
from tierstore.settings import nearest, parse_size

__all__ = ["EVERYBODY", "OWNER", "Authority", "Everybody", "OwnerOnly", "Principal", "Quota", "Tokens"]

_HEADER = "authorization"
_SCHEME = "bearer"
_FIELDS = {"name", "token_sha256", "tenants", "admin", "expires", "requests", "inflight", "host", "ssd"}


@dataclass(frozen=True, slots=True)
class Quota:
    """What one credential may have at a time; None is no bound of its own.

    Attributes:
        requests: Calls under way.
        inflight_nbytes: Bytes of blocks in streams under way.
        host_nbytes: Bytes of host memory that its tenants' blocks may take.
        ssd_nbytes: Bytes of SSD that its tenants' blocks may take.
    """

    requests: int | None = None
    inflight_nbytes: int | None = None
    host_nbytes: int | None = None
    ssd_nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls.

    Attributes:
        name: For logs and metrics.
        tenants: Whose blocks it may touch; None: everybody's, also those of no tenant.
        admin: Whether it may delete, clear, flush and see figures.
        attaches: Whether it may map the pool, where every block lies.
        quota: What it may have at a time.
    """

    name: str
    tenants: frozenset[str] | None = None
    admin: bool = False
    attaches: bool = False
    quota: Quota = Quota()

    def tenant(self, asked: str | None) -> str | None:
        """The tenant that a namespace belongs to, as asked for, or the only one there is.

        Raises:
            AccessError: The credential is not that tenant's.
        """
        if self.tenants is None:
            return asked
        if asked is None and len(self.tenants) == 1:
            return next(iter(self.tenants))
        if asked not in self.tenants:
            raise AccessError(f"credential {self.name!r} is of other tenants; name one of its own")
        return asked

    def priority(self, asked: int) -> int:
        """The priority of a prefetch: a credential limited to some tenants may lower it, but not raise it above 0."""
        return asked if self.tenants is None else min(asked, 0)

    def check_admin(self, verb: str) -> None:
        """Raise AccessError where it may not."""
        if not self.admin:
            raise AccessError(f"{verb} needs an administrator's credential; {self.name!r} is none")


OWNER = Principal("owner", admin=True, attaches=True)
"""Whoever can open the Unix socket, which is the server's own user."""

EVERYBODY = Principal("everybody", admin=True)
"""Whoever comes where `service.insecure` lets everybody in."""


class Authority(Protocol):
    """Tells who calls at one address."""

    def principal(self, metadata: Mapping[str, str | bytes]) -> Principal:
        """Who sent this metadata; CredentialError where nobody knows."""


class OwnerOnly:
    """For a Unix socket, which the file system guards: only its owner gets there."""

    def principal(self, metadata: Mapping[str, str | bytes]) -> Principal:
        """The owner."""
        return OWNER


class Everybody:
    """For an address that is open."""

    def principal(self, metadata: Mapping[str, str | bytes]) -> Principal:
        """Everybody."""
        return EVERYBODY


class Tokens:
    """Bearers of tokens.

    Args:
        principals: By SHA-256 of the token; each with the time when the token expires, if it does.
    """

    def __init__(self, principals: Mapping[bytes, tuple[Principal, datetime | None]]) -> None:
        self._principals = principals

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokens:
        """Read a TOML file of ``[[credential]]`` tables. Blocks.

        Raises:
            ConfigError: It cannot be read, or says what makes no sense; no token's digest is shown.
        """
        source = f"service.credentials {os.fspath(path)}"
        try:
            with open(path, "rb") as file:
                tables = tomllib.load(file)
        except OSError as error:
            raise ConfigError(f"{source} cannot be read: {error.strerror}; give the path of a TOML file") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source} is not TOML: {error}") from error
        rows = tables.get("credential", [])
        if set(tables) - {"credential"} or not isinstance(rows, list) or not rows:
            raise ConfigError(f"{source} must hold [[credential]] tables, and nothing else")
        principals = dict(_read(row, f"{source}, credential {number}") for number, row in enumerate(rows, 1))
        if len(principals) < len(rows):
            raise ConfigError(f"{source}: two credentials have one token; give each its own")
        return cls(principals)

    def principal(self, metadata: Mapping[str, str | bytes]) -> Principal:
        """The bearer of the token. The lookup is by digest, so that its time says nothing of a token."""
        given = str(metadata.get(_HEADER, ""))
        scheme, _, token = given.partition(" ")
        if scheme.lower() != _SCHEME or not token:
            raise CredentialError("no credential; send the metadata authorization: Bearer <token>")
        found = self._principals.get(hashlib.sha256(token.strip().encode()).digest())
        if found is None:
            raise CredentialError("the credential is not known here")
        principal, expires = found
        if expires is not None and datetime.now(UTC) >= expires:
            raise CredentialError(f"credential {principal.name!r} has expired")
        return principal


def _read(row: object, source: str) -> tuple[bytes, tuple[Principal, datetime | None]]:
    """One credential by its token's digest; ConfigError where it makes no sense."""
    if not isinstance(row, dict):
        raise ConfigError(f"{source} is no table")
    for name in set(row) - _FIELDS:
        raise ConfigError(f"{source}: {name} is not known; {nearest(name, _FIELDS)}")
    try:
        digest = bytes.fromhex(row["token_sha256"])
        name, tenants = row["name"], row.get("tenants")
        expires = row.get("expires")
        valid = (
            len(digest) == hashlib.sha256().digest_size
            and isinstance(name, str)
            and (tenants is None or _are_tenants(tenants))
            and isinstance(row.get("admin", False), bool)
            and (expires is None or (isinstance(expires, datetime) and expires.tzinfo is not None))
            and ("requests" not in row or _is_count(row["requests"]))
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{source} needs name and token_sha256, 64 hexadecimal digits") from error
    if not valid:
        raise ConfigError(
            f"{source}: name is text, token_sha256 64 hexadecimal digits, tenants a list of one text or "
            "more, admin true or false, expires a date with time and zone, requests a whole number from 1"
        )
    sizes = {key: parse_size(row[key], key=f"{source}: {key}") if key in row else None for key in _SIZES}
    quota = Quota(row.get("requests"), sizes["inflight"], sizes["host"], sizes["ssd"])
    allowed = None if tenants is None else frozenset(tenants)
    return digest, (Principal(name, allowed, admin=row.get("admin", False), quota=quota), expires)


def _are_tenants(value: object) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(tenant, str) for tenant in value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


_SIZES = ("inflight", "host", "ssd")
