"""What each policy keeps of the public traces, in one table: hit rates of one tier, of two, and looking ahead.

Run as ``python -m bench.replay --json bench/results/replay-policies.json``. Nothing is timed and nothing depends on the
machine; it takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tierstore.replay.engine import Queueing
from tierstore.replay.figures import Figures
from tierstore.replay.reading import read_trace
from tierstore.replay.run import ReplayPlan, replay
from tierstore.replay.tiers import parse_tiers
from tierstore.replay.trace import Trace
from tierstore.types import TierName

TRACES = Path(__file__).parents[1] / "tests/data"
NAMES = {"conversation": "mooncake_conversation", "synthetic": "mooncake_synthetic", "agents": "agents_blk16"}
POLICIES = ("lru", "arc", "s3-fifo", "sieve", "lfu", "lfu-da", "gdsf")
SIZES = ("host=5%", "host=10%")
DEFAULT = "arc"
LOOKAHEADS = (64, 256)
ONE_TIER, TWO_TIERS = "host=11%", "host=1%,ssd=10%"
FILES = (128,)
BLOCK_NBYTES = 1 << 21


class Case(NamedTuple):
    """One row. `files` are the chunk files of its SSD."""

    policy: str
    tiers: str
    lookahead: int = 0
    files: int | None = None


def cases() -> list[Case]:
    """Every row."""
    plain = [Case(policy, tiers) for policy in POLICIES for tiers in SIZES]
    ahead = [Case(policy, SIZES[0], seen) for policy in ("lru", DEFAULT) for seen in LOOKAHEADS]
    together = [Case(policy, ONE_TIER) for policy in ("lru", DEFAULT)]
    return (
        plain + ahead + together + [Case(policy, TWO_TIERS, 0, files) for files in FILES for policy in ("lru", DEFAULT)]
    )


def replayed(case: Case, trace: Trace) -> Figures:
    """Replay one row over one trace."""
    plan = ReplayPlan(
        trace=trace,
        tiers=parse_tiers(case.tiers),
        block_nbytes=BLOCK_NBYTES,
        policy=case.policy,
        queueing=Queueing(lookahead=case.lookahead),
    )
    if case.files is not None:
        plan = replace(plan, file_nbytes=plan.blocks(TierName.SSD) // case.files * BLOCK_NBYTES)
    return replay(plan)


def main() -> None:
    """Replay every row over every trace and write one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="-", help='file to write; "-" is stdout')
    options = parser.parse_args()
    traces = {name: read_trace(TRACES / f"{file}.jsonl.gz") for name, file in NAMES.items()}
    rows: list[dict[str, object]] = []
    for case in cases():
        row: dict[str, object] = dict(case._asdict())
        for name, trace in traces.items():
            figures = replayed(case, trace)
            row[name] = {
                "token_hit_percent": round(100 * figures.token_hit_rate, 2),
                "belady_percent": round(100 * figures.belady_token_hit_rate, 2),
                "write_amplification": figures.write_amplification and round(figures.write_amplification, 2),
            }
        rows.append(row)
        print(json.dumps(row), file=sys.stderr)
    text = json.dumps({"command": "python -m bench.replay", "rows": rows}, indent=1)
    if options.json == "-":
        print(text)
    else:
        Path(options.json).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
