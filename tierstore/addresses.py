"""Addresses as settings have them: a host and a port. Called by what listens and by what asks there."""

from __future__ import annotations

import re

from tierstore.settings import Kind

__all__ = ["ADDRESS", "PORT_MAX", "parse_address"]

PORT_MAX = 65535
_FORM = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?):([0-9]{1,5})")


def parse_address(value: object) -> tuple[str, int]:
    """Host and port of an address such as ``127.0.0.1:9400`` or ``[::1]:9400``; ValueError where it is none."""
    match = _FORM.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[2]) > PORT_MAX:
        raise ValueError("not an address")
    return match[1].strip("[]"), int(match[2])


def _read(value: object) -> str:
    parse_address(value)
    return str(value)


ADDRESS = Kind("an address such as 127.0.0.1:9400", _read)
