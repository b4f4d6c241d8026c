"""Prefetch policies: how long a request waits for its prefetch, under the names that engines use.

Pure; asked by the namespace handles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierstore.config import PrefetchConfig

__all__ = ["PREFETCH_POLICIES", "PrefetchPolicy"]

PREFETCH_POLICIES = ("best-effort", "wait-complete", "timeout")
"""best-effort: a request starts whenever the engine likes, and what has not come by then is computed.
wait-complete: it starts once its prefetch has ended. timeout: it starts then, or after a time that grows with it."""


@dataclass(frozen=True, slots=True)
class PrefetchPolicy:
    """The deadline of `NamespaceHandle.prefetch` if the caller passes none.

    Attributes:
        name: One of `PREFETCH_POLICIES`.
        timeout_seconds: With `timeout`, the time for any request.
        timeout_seconds_per_1k_tokens: With `timeout`, the time added for every thousand tokens.
    """

    name: str = "best-effort"
    timeout_seconds: float = 1.0
    timeout_seconds_per_1k_tokens: float = 0.25

    @classmethod
    def of(cls, settings: PrefetchConfig) -> PrefetchPolicy:
        """What a store's settings say."""
        return cls(settings.policy, settings.timeout_seconds, settings.timeout_seconds_per_1k_tokens)

    def within(self, num_tokens: int) -> float | None:
        """Seconds that a prefetch of so many tokens may take; None for no bound."""
        if self.name != "timeout":
            return None
        return self.timeout_seconds + self.timeout_seconds_per_1k_tokens * num_tokens / 1000

    @property
    def waits(self) -> bool:
        """Whether a request starts only once its prefetch has ended."""
        return self.name != "best-effort"
