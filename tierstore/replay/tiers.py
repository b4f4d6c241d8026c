"""Parses tier sizes such as ``"host=64 GiB,ssd=1 TiB"`` or ``"host=5%,ssd=10%"`` into blocks. Called by `run`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from tierstore.errors import ConfigError
from tierstore.settings import nearest, parse_size
from tierstore.types import TierName

if TYPE_CHECKING:
    from tierstore.replay.trace import Trace

__all__ = ["TierSize", "parse_tiers"]

_TIERS = (TierName.HOST, TierName.SSD)
_PERCENT = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,6})?) ?%")


@dataclass(frozen=True, slots=True)
class TierSize:
    """The capacity of a tier: in bytes, or as a share of the trace's distinct blocks.

    Attributes:
        nbytes: None if a share is given.
        share: None if bytes are given.
    """

    nbytes: int | None = None
    share: Fraction | None = None

    def blocks(self, trace: Trace, block_nbytes: int) -> int:
        """Whole blocks of it."""
        if self.share is not None:
            return int(self.share * trace.num_unique)
        assert self.nbytes is not None
        return self.nbytes // block_nbytes


def parse_tiers(text: str) -> dict[TierName, TierSize]:
    """The size of each tier named.

    Raises:
        ConfigError: A tier is unknown or named twice, a size is none, or there is no host tier.
    """
    sizes: dict[TierName, TierSize] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if name not in _TIERS or not equals:
            advice = nearest(name, _TIERS) if equals else "give it as host=64 GiB, or host=5%"
            raise ConfigError(f'--tiers is "{text}"; "{part.strip()}" is no tier and size; {advice}')
        tier = TierName(name)
        if tier in sizes:
            raise ConfigError(f'--tiers is "{text}"; it names {tier} twice')
        percent = _PERCENT.fullmatch(value)
        if percent:
            sizes[tier] = TierSize(share=Fraction(percent.group(1)) / 100)
        else:
            sizes[tier] = TierSize(nbytes=parse_size(value, key=f"--tiers {tier}"))
    if TierName.HOST not in sizes:
        raise ConfigError(f'--tiers is "{text}"; everything passes through the host tier, so it needs a size')
    return sizes
