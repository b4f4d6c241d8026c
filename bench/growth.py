"""Whether what was measured over and over grows. Called by the soaks.

A series is flat where the line through its values behind the warm-up rises by no more than its bound from its one end
to the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Series", "series_of", "table"]

_WARM_UP = 0.25
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Series:
    """What was measured, one value a look.

    Attributes:
        name: With its unit.
        bound: By how much it may grow.
        seconds: When, since the start.
        values: As many.
    """

    name: str
    bound: float
    seconds: Sequence[float]
    values: Sequence[float]

    @property
    def growth(self) -> float:
        """How far the line through the values behind the warm-up rises."""
        first = min(int(len(self.values) * _WARM_UP), len(self.values) - 2)
        seconds, values = np.array(self.seconds[first:]), np.array(self.values[first:])
        return float(np.polyfit(seconds, values, 1)[0] * (seconds[-1] - seconds[0]))

    @property
    def is_flat(self) -> bool:
        """Whether it grows by no more than its bound."""
        return self.growth <= self.bound + _ROUNDING

    @property
    def row(self) -> dict[str, object]:
        """For the table and the JSON."""
        values = self.values
        numbers = {"start": values[0], "end": values[-1], "max": max(values), "growth": self.growth}
        return {"name": self.name, **{name: round(number, 2) for name, number in numbers.items()}} | {
            "bound": self.bound, "flat": self.is_flat
        }  # fmt: skip


def series_of(
    seconds: Sequence[float], looks: Sequence[Mapping[str, float]], bounds: Mapping[str, float]
) -> list[Series]:
    """One series for each name in the bounds, out of the looks."""
    return [Series(name, bound, seconds, [look[name] for look in looks]) for name, bound in bounds.items()]


def table(series: Sequence[Series], counts: Mapping[str, int]) -> str:
    """The result for people."""
    lines = [f"{'':16}{'start':>10}{'end':>10}{'max':>10}{'growth':>10}{'bound':>8}  flat"]
    for row in (each.row for each in series):
        numbers = "".join(f"{row[name]:>10}" for name in ("start", "end", "max", "growth"))
        lines.append(f"{row['name']:16}{numbers}{row['bound']:>8}  {'yes' if row['flat'] else 'NO'}")
    return "\n".join([*lines, ", ".join(f"{value} {name}" for name, value in counts.items())])
