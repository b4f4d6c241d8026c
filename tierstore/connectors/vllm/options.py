"""`kv_connector_extra_config`, checked: options of the connector by name, and settings of the store by theirs.

Read once by each half of the connector. Pure: imports nothing of vLLM.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tierstore import settings
from tierstore.config import SETTINGS, StoreConfig
from tierstore.errors import ConfigError
from tierstore.settings import Kind

__all__ = ["Options"]

T = TypeVar("T")

_DP_RANK = "{dp_rank}"


def _option(default: T, kind: Kind, text: str) -> T:
    return field(default=default, metadata={"kind": kind, "help": text})


def _read_text(value: object) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("no text")
    return value


_TEXT = settings.optional(Kind("text", _read_text), "none")


@dataclass(frozen=True, slots=True)
class Options:
    """What a user says of the connector.

    Attributes:
        store: Settings of an embedded store by argument name, such as ``host_size``; not checked yet.
    """

    mode: str = _option(
        "embedded", settings.choice("embedded", "service"), "a store of this engine's own, or a service"
    )
    endpoint: str | None = _option(None, _TEXT, "the service's address, with mode service")
    load: str = _option(
        "async", settings.choice("async", "layerwise"), "load while others compute, or layer by layer in the same step"
    )
    prompt_only: bool = _option(False, settings.FLAG, "save blocks of prompts and none of what is generated")
    blocks_per_store_block: int = _option(1, settings.count(1, 1024), "blocks of the engine that make one of the store")
    lookups_max: int = _option(8, settings.count(0, 1024), "requests that may be held back at once for an answer")
    lookup_seconds: float = _option(0.05, settings.seconds(), "how long a request may be held back for an answer")
    pinned_share: float = _option(0.25, settings.SHARE, "share of the engine's blocks that saves may hold at once")
    revision: str | None = _option(None, _TEXT, "instead of a digest of the weights' files")
    tenant: str | None = _option(None, _TEXT, "whose blocks they are")
    store: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def read(cls, given: Mapping[str, object]) -> Options:
        """Check what was given.

        Raises:
            ConfigError: An unknown name, or a value that does not fit.
        """
        own = {row.name: row.metadata["kind"] for row in dataclasses.fields(cls) if row.name != "store"}
        arguments = {setting.argument for setting in SETTINGS} | {setting.key for setting in SETTINGS}
        values: dict[str, Any] = {}
        store: dict[str, object] = {}
        for name, value in given.items():
            if name in own:
                values[name] = _parse(name, own[name], value)
            elif name in arguments:
                store[name] = value
            else:
                known = settings.nearest(name, [*own, *arguments])
                raise ConfigError(f"kv_connector_extra_config: {name} is not an option; {known}")
        options = dataclasses.replace(cls(), **values, store=store)
        options._check_mode()
        return options

    def _check_mode(self) -> None:
        if self.mode == "service" and self.endpoint is None:
            raise ConfigError('mode "service" needs an endpoint, such as "unix:/run/tierstore.sock"; set it')
        if self.mode == "service" and self.store:
            names = ", ".join(sorted(self.store))
            raise ConfigError(f'{names} belong to the service with mode "service"; give them to tierstore serve')
        if self.mode == "embedded" and self.endpoint is not None:
            raise ConfigError(f'endpoint is {self.endpoint!r} with mode "embedded"; set mode to "service", or drop it')

    def store_config(self, *, dp_rank: int, dp_size: int, device: str) -> StoreConfig:
        """Settings of an embedded store.

        Args:
            dp_rank: Which of the data-parallel engines this is.
            dp_size: How many of them there are.
            device: Name of the device that holds the engine's cache.

        Raises:
            ConfigError: A value does not fit, or engines would share one folder.
        """
        config = StoreConfig.load(overrides={"device_name": device, **self.store})
        folder = config.ssd.dir
        if folder is None:
            return config
        if dp_size > 1 and _DP_RANK not in folder:
            raise ConfigError(
                f"ssd_dir is {folder!r} and {dp_size} data-parallel engines would each want it to itself; put "
                f'{_DP_RANK} into ssd_dir, or let them share one store with mode="service"'
            )
        ssd = dataclasses.replace(config.ssd, dir=folder.replace(_DP_RANK, str(dp_rank)))
        return dataclasses.replace(config, ssd=ssd)


def _parse(name: str, kind: Kind, value: object) -> object:
    try:
        return kind.read(value)
    except ValueError as error:
        raise ConfigError(f"kv_connector_extra_config: {name} is {value!r}; give {kind.accepts}") from error
