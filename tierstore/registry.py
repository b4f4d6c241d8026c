"""Which devices, disks, codecs, policies and tiers there are, by the name a configuration gives them.

They are entry points of installed packages, in one group a kind: ``tierstore.codecs`` and so on; the
built-in ones are declared in this package's own pyproject.toml. Called once at start and by the contract
suites. Imports an implementation only when it is loaded, and never decides between two of one name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, TypeAlias, get_args

from tierstore import settings
from tierstore.errors import ConfigError

__all__ = ["Kind", "find", "load", "named", "names"]

Kind: TypeAlias = Literal["devices", "disks", "codecs", "policies", "admissions", "tiers"]


def names(kind: Kind) -> list[str]:
    """The names of one kind, sorted. Reads the metadata of installed packages once, and then remembers.

    Raises:
        ConfigError: Two packages give one name to different things.
    """
    return sorted(_found(kind))


def find(kind: Kind, name: str) -> EntryPoint:
    """What a name stands for, not imported. Raises ConfigError where nobody has registered it."""
    found = _found(kind)
    if not found:
        raise ConfigError(f"no {kind} are registered, so {name!r} is unknown; install this package with pip")
    if name not in found:
        raise ConfigError(f"{name!r} is not one of the {kind}; {settings.nearest(name, found)}")
    return found[name]


def named(kind: Kind) -> settings.Kind:
    """As a setting: the name of one that is registered here, whether or not what it is for is turned on."""

    def read(value: object) -> str:
        name = str(settings.NAME.read(value))
        find(kind, name)
        return name

    return replace(settings.NAME, read=read)


def load(kind: Kind, name: str) -> Callable[..., object]:
    """Import what a name stands for: a class, or whatever else makes one when called.

    Raises:
        ConfigError: The name is unknown, or its module cannot be imported here.
    """
    entry = find(kind, name)
    try:
        factory: Callable[..., object] = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{name!r} of the {kind} cannot be loaded from {entry.value}: {error}; install what it needs, or choose "
            f"another of {', '.join(names(kind))}"
        ) from error
    return factory


@cache
def _found(kind: Kind) -> dict[str, EntryPoint]:
    assert kind in get_args(Kind), f"there are no {kind}; kinds are {', '.join(get_args(Kind))}"
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=f"tierstore.{kind}"):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise ConfigError(
                f"{entry.name!r} of the {kind} is both {other.value} and {entry.value}; uninstall one of the packages"
            )
    return found
