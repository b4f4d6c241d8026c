"""Every setting of a store: read once, validated once, passed down.

Called by the store and by the command line; the only place that reads the environment. Values come in
four ways, later ones winning: defaults, a TOML file, ``TIERSTORE_*`` variables, arguments. All pass the
same check and fail with the same words, and each value remembers where it came from. Flags, variables,
the documentation's table and the example file all follow from `SETTINGS`.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tierstore import registry, settings
from tierstore.errors import ConfigError
from tierstore.sections import LogConfig, MonitorConfig, ServiceConfig
from tierstore.settings import VARIABLE_PREFIX, DriveWrites, Setting, format_size, nearest
from tierstore.settings import setting as _setting

__all__ = ["SETTINGS", "StoreConfig"]

CONFIG_VARIABLE = VARIABLE_PREFIX + "CONFIG"
"""Names the TOML file where no path is given."""

_MIB, _GIB = 1 << 20, 1 << 30
_PIECE = settings.size(4096)
_AUTO_PIECE = settings.optional(_PIECE, "auto")

Given: TypeAlias = tuple[Setting, object, str]


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The pool in host memory. Sizes in bytes; None is auto."""

    size: int = _setting(_GIB, _PIECE, "memory of the host pool; every block passes through it")
    slab_size: int | None = _setting(None, _AUTO_PIECE, "part of the pool given to one block size at a time")
    populate: bool = _setting(False, settings.FLAG, "touch the whole pool at start instead of on first use")
    shared: bool | None = _setting(
        None, settings.AUTO_FLAG, "let other processes of this user map it; auto: only in a service"
    )


@dataclass(frozen=True, slots=True)
class SsdConfig:
    """The folder of chunk files. Sizes in bytes; None is auto, or no folder."""

    dir: str | None = _setting(
        None, settings.optional(settings.FOLDER, "none"), "folder of the SSD tier, owned by one store at a time"
    )
    size: int = _setting(16 * _GIB, settings.size(_MIB, off=True), "bytes the folder may hold")
    file_size: int | None = _setting(None, _AUTO_PIECE, "length of one chunk file")
    free_floor: int = _setting(_GIB, _PIECE, "bytes always left free on its file system")
    write_budget: int | DriveWrites | None = _setting(  # noqa: RUF009  (frozen, like every default here)
        None,
        settings.optional(settings.daily(_MIB), "none"),
        "bytes a day for write-back; durable puts do not count",
    )
    rewrite_share: float = _setting(0.5, settings.SHARE, "share of a reclaimed chunk file that may be written again")
    read_threads: int = _setting(4, settings.count(1, 256), "reads from the SSD at once")
    stall_seconds: float = _setting(
        10.0,
        settings.seconds(0.1, off=True),
        "turn the SSD off if no read ends for so long, or no write for three times as long",
    )
    read_only: bool = _setting(False, settings.FLAG, "open the folder without lock or writes, also beside its owner")

    def check(self) -> None:
        """Raise ConfigError where settings that fit each by itself make no sense together."""
        budget = self.write_budget_nbytes
        if self.size and budget is not None and budget < _MIB:
            raise ConfigError(
                f"ssd.write_budget is {self.write_budget}, which of an ssd.size of {format_size(self.size)} is "
                f"{format_size(budget)} a day; give at least {format_size(_MIB)}, or none"
            )

    @property
    def write_budget_nbytes(self) -> int | None:
        """Bytes a day, where a bound is set: drive writes are of `size`."""
        budget = self.write_budget
        return int(budget.per_day * self.size) if isinstance(budget, DriveWrites) else budget

    @property
    def enabled(self) -> bool:
        """Whether there is an SSD tier: a folder is named and it may hold something."""
        return self.dir is not None and self.size > 0


@dataclass(frozen=True, slots=True)
class CodecConfig:
    """How blocks are encoded on SSD."""

    name: str = _setting("raw", registry.named("codecs"), "codec of new blocks on SSD")


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Who goes when room is short."""

    name: str = _setting("arc", registry.named("policies"), "eviction policy of the host pool")


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """Who may enter the SSD tier."""

    name: str = _setting("always", registry.named("admissions"), "admission policy of the SSD tier")


@dataclass(frozen=True, slots=True)
class LinksConfig:
    """Bounds of the links between tiers. Sizes in bytes; None is auto."""

    requests_max: int = _setting(1024, settings.count(1, 1 << 20), "jobs that may wait in one link")
    read_batch: int = _setting(8 * _MIB, _PIECE, "most bytes of one read job")
    write_inflight: int | None = _setting(None, _AUTO_PIECE, "bytes that may wait to be written to the SSD")


@dataclass(frozen=True, slots=True)
class PrefetchConfig:
    """How prefetches go, and their bounds. Sizes in bytes; None is auto."""

    policy: str = _setting(
        "best-effort",
        settings.choice("best-effort", "wait-complete", "timeout"),
        "how long a request waits for its prefetch",
    )
    timeout_seconds: float = _setting(1.0, settings.seconds(), "how long a prefetch may take, with policy timeout")
    timeout_seconds_per_1k_tokens: float = _setting(0.25, settings.seconds(), "added to it for every thousand tokens")
    inflight: int | None = _setting(
        None, settings.optional(settings.size(4096, off=True), "auto"), "bytes of prefetches in flight"
    )
    share: float = _setting(
        0.5,
        settings.SHARE,
        "share of the pool for prefetched blocks not used yet, beyond what is free",
    )
    cold_seconds: float = _setting(30.0, settings.seconds(), "a prefetch may evict a block unused for so long")

    def check(self) -> None:
        """Raise ConfigError where settings that fit each by itself make no sense together."""
        timeless = not self.timeout_seconds and not self.timeout_seconds_per_1k_tokens
        if self.policy == "timeout" and timeless and self.inflight != 0:
            raise ConfigError(
                "prefetch.policy is timeout, and both prefetch.timeout_seconds and "
                "prefetch.timeout_seconds_per_1k_tokens are 0: no prefetch could bring anything; give one of them some "
                "time, or set prefetch.inflight to 0"
            )


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """What computing costs an engine."""

    tokens_per_second: int | None = _setting(
        None,
        settings.optional(settings.count(1, 1 << 30), "none"),
        "prefill speed of the engine, until it reports its own",
    )


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """Where the engine's pages lie."""

    name: str = _setting("cpu", registry.named("devices"), "device whose pages are copied")
    pool_size: int = _setting(
        0, settings.size(1 << 16, off=True), "device memory for copies of blocks; a hit there crosses no link"
    )
    pool_admission: str = _setting("second-hit", registry.named("admissions"), "admission policy of the device pool")
    direct_reads: bool = _setting(False, settings.FLAG, "read from SSD straight into the device pool")


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """All settings of one store, checked. Made by `load`.

    Attributes:
        sources: Where a value came from, by dotted key, for all that were given.
    """

    host: HostConfig = HostConfig()
    ssd: SsdConfig = SsdConfig()
    codec: CodecConfig = CodecConfig()
    policy: PolicyConfig = PolicyConfig()
    admission: AdmissionConfig = AdmissionConfig()
    links: LinksConfig = LinksConfig()
    prefetch: PrefetchConfig = PrefetchConfig()
    prefill: PrefillConfig = PrefillConfig()
    device: DeviceConfig = DeviceConfig()
    monitor: MonitorConfig = MonitorConfig()  # noqa: RUF009  (frozen, as its neighbours)
    log: LogConfig = LogConfig()  # noqa: RUF009
    service: ServiceConfig = ServiceConfig()  # noqa: RUF009
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> StoreConfig:
        """Gather and check every setting. Blocks on one small file where there is one.

        Args:
            path: TOML file; where None, the one named by ``TIERSTORE_CONFIG``, else none.
            env: Variables; the process's own where None.
            overrides: Values by dotted key or argument name; None counts as not given.

        Raises:
            ConfigError: An unknown key, values that do not fit or contradict each other, or a file that cannot be read.
        """
        variables = os.environ if env is None else env
        config = cls()
        sources: dict[str, str] = {}
        file = variables.get(CONFIG_VARIABLE) if path is None else path
        ways = (_from_file(file), _from_variables(variables), _from_arguments(overrides or {}))
        for setting, given, source in (each for way in ways for each in way):
            section, name = setting.key.split(".")
            changed = dataclasses.replace(getattr(config, section), **{name: setting.parse(given, source)})
            config = dataclasses.replace(config, **{section: changed})
            sources[setting.key] = source
        for checked in (config.ssd, config.prefetch, config.service):
            checked.check()
        return dataclasses.replace(config, sources=sources)

    def describe(self) -> list[tuple[str, str, str]]:
        """(dotted key, value as text, source) of every setting, in the table's order."""
        return [
            (setting.key, setting.show(_value(self, setting.key)), self.sources.get(setting.key, "default"))
            for setting in SETTINGS
        ]


def _value(config: StoreConfig, key: str) -> object:
    section, name = key.split(".")
    value: object = getattr(getattr(config, section), name)
    return value


def _table() -> Iterator[Setting]:
    defaults = StoreConfig()
    for section in dataclasses.fields(defaults):
        if section.name == "sources":
            continue
        for row in dataclasses.fields(getattr(defaults, section.name)):
            yield Setting(f"{section.name}.{row.name}", row.default, row.metadata["help"], row.metadata["kind"])


SETTINGS: tuple[Setting, ...] = tuple(_table())
"""Every setting, in order of sections."""

_BY_KEY = {setting.key: setting for setting in SETTINGS}
_BY_ARGUMENT = {setting.argument: setting for setting in SETTINGS}
_BY_VARIABLE = {setting.variable: setting for setting in SETTINGS}


def _find(name: str, known: Mapping[str, Setting], source: str) -> Setting:
    setting = known.get(name)
    if setting is None:
        raise ConfigError(f"{name} is not a setting; {nearest(name, known)} (set by {source})")
    return setting


def _from_file(path: str | os.PathLike[str] | None) -> Iterator[Given]:
    if path is None:
        return
    source = f"file {os.fspath(path)}"
    try:
        with open(path, "rb") as file:
            tables = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}; give the path of a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source} is not TOML: {error}") from error
    for section, table in tables.items():
        for name, value in table.items() if isinstance(table, dict) else [("", table)]:
            yield _find(f"{section}.{name}".rstrip("."), _BY_KEY, source), value, source


def _from_variables(variables: Mapping[str, str]) -> Iterator[Given]:
    for name in sorted(variables):
        if name.startswith(VARIABLE_PREFIX) and name != CONFIG_VARIABLE:
            yield _find(name, _BY_VARIABLE, "the environment"), variables[name], f"variable {name}"


def _from_arguments(overrides: Mapping[str, object]) -> Iterator[Given]:
    for name, value in overrides.items():
        setting = _find(name, _BY_KEY if "." in name else _BY_ARGUMENT, "an argument")
        if value is not None:
            yield setting, value, f"argument {name}"
