"""Starts the monitoring that a store's settings ask for. Called by the store; costs nothing if they ask for none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierstore.handle import NamespaceHandle

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tierstore.config import StoreConfig
    from tierstore.monitor.spans import Propagation
    from tierstore.monitor.status import Watched

__all__ = ["handle_kind", "propagation_of", "show"]


def show(watched: Watched, standing: ExitStack) -> str | None:
    """Open the monitor if one is configured; `standing` closes it.

    Returns:
        Its address.

    Raises:
        ConfigError, AddressError: The monitor cannot be opened at its address.
    """
    settings = watched.config.monitor
    if settings.address is None:
        return None
    from tierstore.monitor.watching import Monitor

    monitor = Monitor(watched, settings.address, public=settings.public)
    standing.callback(monitor.close)
    return monitor.address


def handle_kind(config: StoreConfig) -> type[NamespaceHandle]:
    """The class of namespace handles: one that traces its verbs, if tracing is configured.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    if not config.monitor.tracing:
        return NamespaceHandle
    from tierstore.monitor.tracing import TracedHandle

    return TracedHandle


def propagation_of(config: StoreConfig) -> Propagation | None:
    """Propagates traces between processes, if tracing is configured. Raises as `handle_kind` does."""
    if not config.monitor.tracing:
        return None
    from tierstore.monitor.spans import Propagation

    return Propagation()
