"""Times pairs of calls, the limit and the store in alternation, and computes the results.

Called by `tierstore.benchmark.bandwidth`. It knows no store and no disk: a probe has its own calls. The clocks are
passed in, so that the arithmetic can be tested without waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Clocks", "Measurement", "Probe", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One link and its limit, ready to be called.

    Each function takes the number of the pair, counted from 0; the first pair warms up and is not counted.

    Attributes:
        link: Such as ``"host.put"``.
        threads: Threads that the link and its limit may use.
        pages: What lies on the two sides.
        limit_name: What the limit is.
        call_nbytes: Bytes that one call moves.
        num_pairs_min: Pairs to take however long they last; at least 2.
        num_pairs_max: Pairs for which there is room.
        prepare: Set the caller's buffer up; not timed, runs before the limit and again before the product.
        limit: Move the bytes as fast as the machine can.
        product: Move the same bytes through the store.
        num_wrong: Blocks whose bytes are not those of their key after the product's call; not timed.
    """

    link: str
    threads: int
    pages: str
    limit_name: str
    call_nbytes: int
    num_pairs_min: int = 6
    num_pairs_max: int = 1 << 31
    prepare: Callable[[int], None]
    limit: Callable[[int], None]
    product: Callable[[int], None]
    num_wrong: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks: wall seconds, and processor seconds of all threads of this process."""

    wall: Callable[[], float] = time.perf_counter
    cpu: Callable[[], float] = time.process_time


@dataclass(slots=True)
class Measurement:
    """The times of the counted pairs.

    Attributes:
        probe: The probe that was measured.
        limit_seconds: Wall time of each call of the limit.
        product_seconds: Wall time of each call of the product, pair by pair.
        limit_cpu_seconds: Processor time of all threads over the limit's calls.
        product_cpu_seconds: The same over the product's.
        num_wrong: Blocks found wrong; anything but 0 voids the figures.
    """

    probe: Probe
    limit_seconds: list[float] = field(default_factory=list)
    product_seconds: list[float] = field(default_factory=list)
    limit_cpu_seconds: float = 0.0
    product_cpu_seconds: float = 0.0
    num_wrong: int = 0

    @property
    def num_pairs(self) -> int:
        """Counted pairs."""
        return len(self.product_seconds)

    @property
    def gbytes_per_second(self) -> float:
        """Median rate of the product; 1 GB is 10**9 bytes."""
        return self.probe.call_nbytes / 1e9 / _percentile(self.product_seconds, 50)

    @property
    def limit_gbytes_per_second(self) -> float:
        """Median rate of the limit."""
        return self.probe.call_nbytes / 1e9 / _percentile(self.limit_seconds, 50)

    @property
    def num_gbytes(self) -> float:
        """What each of the two moved, in 10**9 bytes."""
        return self.num_pairs * self.probe.call_nbytes / 1e9

    def product_ms(self, percent: float) -> float:
        """A percentile of the product's call latency in milliseconds."""
        return _percentile(self.product_seconds, percent) * 1e3

    def share_spread(self) -> tuple[float, float]:
        """10th and 90th percentile of the pairs' own ratios, product's rate over limit's."""
        shares = [limit / product for limit, product in zip(self.limit_seconds, self.product_seconds, strict=True)]
        return _percentile(shares, 10), _percentile(shares, 90)


def measure(
    probe: Probe,
    *,
    seconds: float,
    clocks: Clocks | None = None,
    on_progress: Callable[[float], None] = lambda _: None,
) -> Measurement:
    """Call limit and product by turns for about `seconds` of wall time. Blocks.

    Preparing and verifying count towards `seconds` and towards nothing else.
    """
    assert 2 <= probe.num_pairs_min <= probe.num_pairs_max, f"{probe.link}: {probe.num_pairs_min} pairs at least"
    clocks = clocks or Clocks()
    taken = Measurement(probe)
    started = clocks.wall()
    for pair in range(probe.num_pairs_max):
        elapsed = clocks.wall() - started
        if pair >= probe.num_pairs_min and elapsed >= seconds:
            break
        on_progress(min(1.0, elapsed / seconds))
        limit_seconds, limit_cpu_seconds = _timed(probe.limit, probe.prepare, pair, clocks)
        product_seconds, product_cpu_seconds = _timed(probe.product, probe.prepare, pair, clocks)
        taken.num_wrong += probe.num_wrong(pair)
        if pair > 0:
            taken.limit_seconds.append(limit_seconds)
            taken.product_seconds.append(product_seconds)
            taken.limit_cpu_seconds += limit_cpu_seconds
            taken.product_cpu_seconds += product_cpu_seconds
    on_progress(1.0)
    return taken


def _timed(
    call: Callable[[int], None], prepare: Callable[[int], None], pair: int, clocks: Clocks
) -> tuple[float, float]:
    prepare(pair)
    cpu, wall = clocks.cpu(), clocks.wall()
    call(pair)
    return clocks.wall() - wall, clocks.cpu() - cpu


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(np.asarray(values), percent))
