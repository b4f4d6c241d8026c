"""Lives that end badly, of every kind: nothing durable lost, nothing deleted back, no wrong byte, a true ledger.

The same lives as ``python -m bench.torture``, which says how to live a single one again.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.torture import __main__ as command
from bench.torture.knowledge import Fault
from bench.torture.lives import Lie, Verdict, torture
from bench.torture.plans import KINDS, plan_life
from tests.crash.lies import DeletesNothing, ForgesPayloads, RemovesNothing, SyncsNothing

SEED = 20_26
LIVES = {
    "power": 60,
    "power-reclaim": 60,
    "power-lz4": 60,
    "power-damage": 60,
    "kill": 20,
    "kill-reclaim": 20,
    "kill-damage": 20,
}


def lived(kind: str, lives: int, folder: Path, *, lie: Lie | None = None, until: Fault | None = None) -> Verdict:
    """Live so many lives, or as many as it takes to find a fault."""
    verdict = Verdict()
    with closing(torture(kind, range(lives), seed=SEED, verdict=verdict, folder=folder, lie=lie)) as living:
        for _ in living:
            if until is not None and verdict.num(until):
                break
    return verdict


def test_every_kind_has_its_share_of_three_hundred_lives() -> None:
    assert set(LIVES) == set(KINDS)
    assert sum(LIVES.values()) >= 300
    assert Counter(kind for kind, lives in command.schedule(300, list(KINDS)) for _ in lives) == LIVES
    assert command.schedule(23, ["power"]) == [("power", range(10)), ("power", range(10, 20)), ("power", range(20, 23))]


@pytest.mark.slow  # dozens of lives of a store, each with a load of its own
@pytest.mark.parametrize("kind", LIVES)
def test_nothing_is_lost_wrong_or_miscounted_in_lives_of(kind: str, tmp_path: Path) -> None:
    verdict = lived(kind, LIVES[kind], tmp_path)
    assert not verdict.findings, "\n".join(
        f"{found.fault}: {found.text}\n  python -m bench.torture --seed {SEED} --kind {kind} --life {found.life}"
        for found in verdict.findings[:8]
    )
    counts = verdict.counts
    assert counts["durable_acknowledged"] > LIVES[kind], "hardly anything was asked of the store"
    assert counts["blocks_verified"] > LIVES[kind]
    assert counts["deletes_acknowledged"] > LIVES[kind]
    assert counts["ledgers_compared"] > LIVES[kind] // 4
    assert (counts["durable_reclaimed"] > 0) == KINDS[kind].reclaims
    assert any(name.startswith("damage") for name in counts) == KINDS[kind].damaged


@pytest.mark.parametrize(
    ("lie", "kind", "fault"),
    [
        pytest.param(SyncsNothing, "power", Fault.LOST, id="a disk that does not sync loses blocks"),
        pytest.param(ForgesPayloads, "power", Fault.WRONG, id="a checksum that is not compared lets wrong bytes by"),
        pytest.param(DeletesNothing, "power", Fault.RESURRECTED, id="a deletion in memory alone does not last"),
        pytest.param(RemovesNothing, "power-reclaim", Fault.ACCOUNTING, id="a file that stays is missed in the ledger"),
        pytest.param(DeletesNothing, "kill", Fault.RESURRECTED, id="a killed process tells what it was promised"),
        pytest.param(ForgesPayloads, "kill", Fault.WRONG, id="a killed process tells what it was given"),
    ],
)
def test_a_lie_is_found(lie: Lie, kind: str, fault: Fault, tmp_path: Path) -> None:
    verdict = lived(kind, 30, tmp_path, lie=lie, until=fault)
    assert verdict.num(fault) > 0, dict(verdict.counts)


def test_equal_seeds_give_equal_plans() -> None:
    for name, kind in KINDS.items():
        plans = [plan_life(kind, f"7/{name}/0", index) for index in range(10)]
        assert plans == [plan_life(kind, f"7/{name}/0", index) for index in range(10)]
        assert plans != [plan_life(kind, f"8/{name}/0", index) for index in range(10)]


def test_the_command_says_what_was_lived_and_found(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    run = CliRunner().invoke(command.main, ["--lives", "3", "--kind", "power", "--json", str(path)])
    assert run.exit_code == 0, run.output
    result = json.loads(path.read_text("utf-8"))
    assert result["lives"] == 3
    assert result["durable_acknowledged"] > 0
    assert [result[fault] for fault in Fault] == [0] * len(Fault)
    assert "durable acknowledged" in run.output


def test_the_command_fails_where_a_block_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "torture", partial(torture, lie=SyncsNothing))
    run = CliRunner().invoke(command.main, ["--lives", "20", "--kind", "power", "--json", "-"])
    assert run.exit_code == 1
    assert "python -m bench.torture --seed 1 --kind power --life" in run.output


def test_the_command_lives_one_life_again() -> None:
    run = CliRunner().invoke(command.main, ["--kind", "power", "--life", "2", "--json", "-"])
    assert run.exit_code == 0, run.output
    assert '"lives": 1' in run.output
