"""What one setting is: its names, what it accepts, how it is read and shown.

Called by `tierstore.config`, which holds the table of them, and by the command line for sizes. Never
guesses: a text that is not exactly a value of the setting's kind is an error that says what is accepted.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypeVar

from tierstore.errors import ConfigError

__all__ = [
    "AUTO_FLAG",
    "FLAG",
    "FOLDER",
    "NAME",
    "SHARE",
    "DriveWrites",
    "Kind",
    "Setting",
    "choice",
    "count",
    "daily",
    "format_size",
    "nearest",
    "optional",
    "parse_size",
    "seconds",
    "setting",
    "size",
]

VARIABLE_PREFIX = "TIERSTORE_"

T = TypeVar("T")

_UNITS = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
}
_SIZE_FORM = re.compile(rf"([0-9]+(?:\.[0-9]+)?) ?({'|'.join(_UNITS)})|([0-9]+)")
_SIZE_HINT = 'a size such as "64 GiB" or "500 GB" (KB, MB, GB, TB count in 1000s; KiB, MiB, GiB, TiB in 1024s) or bytes'
_SIZE_NBYTES_MAX = 1 << 60
_ZERO = ", or 0 to turn it off"
_NAME_FORM = re.compile(r"[a-z0-9][a-z0-9_.:-]*")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value.

    Attributes:
        accepts: What may be given, for a person.
        read: Brings a given value to its type; raises ValueError where it does not fit.
        absent: How None is written: ``"auto"``, or ``"none"`` where the thing is off.
        is_size: Whether the value counts bytes.
        is_flag: Whether its option alone, without a value, is true.
    """

    accepts: str
    read: Callable[[object], object]
    absent: str = ""
    is_size: bool = False
    is_flag: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table of settings.

    Attributes:
        key: Dotted key, as in the TOML file.
        default: Value where nothing else is given.
        help: What it is, for a person.
        kind: What it accepts.
    """

    key: str
    default: object
    help: str
    kind: Kind

    @property
    def argument(self) -> str:
        """Its name as a keyword argument, such as ``host_slab_size``."""
        return self.key.replace(".", "_")

    @property
    def flag(self) -> str:
        """Its name on the command line, such as ``--host-slab-size``."""
        return "--" + self.argument.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its name in the environment, such as ``TIERSTORE_HOST_SLAB_SIZE``."""
        return VARIABLE_PREFIX + self.argument.upper()

    def show(self, value: object) -> str:
        """A value as it would be written on the command line."""
        if value is None:
            return self.kind.absent
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, float):
            return f"{value:g}"
        return format_size(value) if self.kind.is_size and isinstance(value, int) else str(value)

    def parse(self, value: object, source: str) -> object:
        """Check one value and bring it to its type.

        Raises:
            ConfigError: Names the key, the value, what is accepted and where the value came from.
        """
        try:
            return self.kind.read(value)
        except ConfigError as error:  # says itself what is accepted
            raise ConfigError(f"{self.key}: {error} (set by {source})") from error
        except ValueError as error:
            raise ConfigError(f'{self.key} is "{value}"; give {self.kind.accepts} (set by {source})') from error


def parse_size(value: object, *, key: str) -> int:
    """Bytes of a size such as ``"64 GiB"``, ``"500 GB"``, ``"1.5TiB"`` or a plain number of bytes.

    Raises:
        ConfigError: Anything else; `key` names the setting in the message.
    """
    try:
        return _read_size(value)
    except ValueError as error:
        raise ConfigError(f'{key} is "{value}"; give {_SIZE_HINT}') from error


def format_size(nbytes: int) -> str:
    """The shortest exact text for a size: ``"64 GiB"``, ``"500 GB"``, ``"1000001 B"``."""
    units = [unit for unit, factor in _UNITS.items() if nbytes and nbytes % factor == 0]
    unit = max(units, key=_UNITS.__getitem__, default="B")
    return f"{nbytes // _UNITS[unit]} {unit}"


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known one most like it, else all that are known."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"


def setting(default: T, kind: Kind, text: str) -> T:
    """A field of a section: one setting."""
    return field(default=default, metadata={"kind": kind, "help": text})


def size(least: int, *, off: bool = False) -> Kind:
    """Bytes, at least `least`; with `off`, 0 turns the thing off."""

    def read(value: object) -> int:
        nbytes = _read_size(value)
        if nbytes < least and not (off and nbytes == 0):
            raise ValueError(f"below {least}")
        return nbytes

    return Kind(f"{_SIZE_HINT}, at least {format_size(least)}{_ZERO if off else ''}", read, is_size=True)


@dataclass(frozen=True, slots=True)
class DriveWrites:
    """How often a day the whole of a drive may be written, as makers rate them."""

    per_day: float

    def __str__(self) -> str:
        return f"{self.per_day:g} DWPD"


def daily(least: int) -> Kind:
    """Bytes a day, at least `least`, or drive writes a day such as ``"0.3 DWPD"``, which read as `DriveWrites`."""
    nbytes = size(least)

    def read(value: object) -> int | DriveWrites:
        match = re.fullmatch(r"([0-9]{1,4}(?:\.[0-9]+)?) ?DWPD", str(value))
        if match is None:
            return int(str(nbytes.read(value)))
        if not float(match[1]):
            raise ValueError("no writes at all")
        return DriveWrites(float(match[1]))

    return Kind(f'{nbytes.accepts}, or drive writes a day such as "0.3 DWPD"', read, is_size=True)


def count(least: int, most: int) -> Kind:
    """A whole number in a range."""

    def read(value: object) -> int:
        if not isinstance(value, int | str) or not re.fullmatch("[0-9]{1,18}", str(value)):
            raise ValueError("not a whole number")
        if not least <= int(value) <= most:
            raise ValueError("out of range")
        return int(value)

    return Kind(f"a whole number from {least} to {most}", read)


def seconds(least: float = 0.0, *, off: bool = False) -> Kind:
    """A number of seconds, at least `least`; with `off`, 0 turns the thing off."""

    def read(value: object) -> float:
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", str(value)):
            raise ValueError("not seconds")
        given = float(str(value))
        if given < least and not (off and given == 0):
            raise ValueError(f"below {least}")
        return given

    bound = f", at least {least:g}" if least else ""
    return Kind(f"a number of seconds such as 30 or 0.5{bound}{_ZERO if off else ''}", read)


def choice(*values: str) -> Kind:
    """One of a few words."""

    def read(value: object) -> str:
        if value not in values:
            raise ValueError("not one of them")
        return str(value)

    return Kind(f"one of {', '.join(values)}", read)


def optional(kind: Kind, absent: str) -> Kind:
    """The same kind, or the word `absent`, which reads as None."""

    def read(value: object) -> object:
        return None if value == absent else kind.read(value)

    return replace(kind, accepts=f'{kind.accepts}, or "{absent}"', read=read, absent=absent)


def _read_size(value: object) -> int:
    match = _SIZE_FORM.fullmatch(str(value)) if isinstance(value, int | str) else None
    if match is None:
        raise ValueError("not a size")
    number, unit, plain = match.groups()
    nbytes = Fraction(plain or number) * _UNITS[unit or "B"]
    if nbytes.denominator != 1 or nbytes > _SIZE_NBYTES_MAX:
        raise ValueError("not whole bytes, or beyond any machine")
    return int(nbytes)


def _read_share(value: object) -> float:
    if not re.fullmatch(r"0(\.[0-9]+)?|1(\.0+)?", str(value)):
        raise ValueError("not a share")
    return float(str(value))


def _read_flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value not in ("true", "false"):
        raise ValueError("neither true nor false")
    return value == "true"


def _read_folder(value: object) -> str:
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise ValueError("not a path")
    return path


def _read_name(value: object) -> str:
    if not isinstance(value, str) or not _NAME_FORM.fullmatch(value):
        raise ValueError("not a name")
    return value


SHARE = Kind("a share from 0 to 1 such as 0.5", _read_share)
FLAG = Kind("true or false", _read_flag, is_flag=True)
AUTO_FLAG = optional(FLAG, "auto")
FOLDER = Kind("the path of a folder", _read_folder)
NAME = Kind("the name of a registered plug-in", _read_name)
