"""Begins to show what the settings of a store ask for. Called by the store; costs nothing where they ask nothing."""

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
    """Open the monitor where one is wanted, to be closed with `standing`.

    Returns:
        Its address.

    Raises:
        ConfigError, AddressError: It cannot be opened there.
    """
    settings = watched.config.monitor
    if settings.address is None:
        return None
    from tierstore.monitor.watching import Monitor

    monitor = Monitor(watched, settings.address, public=settings.public)
    standing.callback(monitor.close)
    return monitor.address


def handle_kind(config: StoreConfig) -> type[NamespaceHandle]:
    """What a namespace's handle is: one that traces its verbs, where that is asked for.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    if not config.monitor.tracing:
        return NamespaceHandle
    from tierstore.monitor.tracing import TracedHandle

    return TracedHandle


def propagation_of(config: StoreConfig) -> Propagation | None:
    """What takes spans from one process into another, where that is asked for; raises as `handle_kind` does."""
    if not config.monitor.tracing:
        return None
    from tierstore.monitor.spans import Propagation

    return Propagation()
