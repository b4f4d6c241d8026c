"""What each policy keeps of the public traces, in one table: hit rates of one tier, of two, and looking ahead.

Run as ``python -m bench.replay --json bench/results/replay-policies.json``. Nothing is timed and nothing depends on the
machine; it takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tierstore.replay.engine import Queueing
from tierstore.replay.reading import read_trace
from tierstore.replay.run import ReplayPlan, replay
from tierstore.replay.tiers import parse_tiers

TRACES = Path(__file__).parents[1] / "tests/data"
NAMES = {"conversation": "mooncake_conversation", "synthetic": "mooncake_synthetic", "agents": "agents_blk16"}
POLICIES = ("lru", "arc", "s3-fifo", "sieve", "lfu", "lfu-da", "gdsf")
SIZES = ("host=5%", "host=10%")
DEFAULT = "arc"
LOOKAHEADS = (64, 256)
SIDE_BY_SIDE = ("host=1%,ssd=10%", "host=11%")


def cases() -> list[tuple[str, str, int]]:
    """(policy, tiers, look-ahead) of every row."""
    plain = [(policy, tiers, 0) for policy in POLICIES for tiers in SIZES]
    ahead = [(policy, SIZES[0], seen) for policy in ("lru", DEFAULT) for seen in LOOKAHEADS]
    return plain + ahead + [(policy, tiers, 0) for policy in ("lru", DEFAULT) for tiers in SIDE_BY_SIDE]


def main() -> None:
    """Replay every row over every trace and write one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="-", help='file to write; "-" is stdout')
    options = parser.parse_args()
    traces = {name: read_trace(TRACES / f"{file}.jsonl.gz") for name, file in NAMES.items()}
    rows: list[dict[str, object]] = []
    for policy, tiers, lookahead in cases():
        row: dict[str, object] = {"policy": policy, "tiers": tiers, "lookahead": lookahead}
        for name, trace in traces.items():
            figures = replay(
                ReplayPlan(
                    trace=trace,
                    tiers=parse_tiers(tiers),
                    block_nbytes=1 << 21,
                    policy=policy,
                    queueing=Queueing(lookahead=lookahead),
                )
            )
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
