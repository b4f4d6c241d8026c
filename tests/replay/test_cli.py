"""`tierstore replay` as a person and a program meet it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tierstore.cli.replay import command
from tierstore.cli.replay_sweep import shared_file
from tierstore.errors import ConfigError

BLOCK_TOKENS = 16


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Sixty requests over six prompts of 20 blocks."""
    path = tmp_path / "trace.jsonl"
    rows = [
        {
            "timestamp": 1000 * turn,
            "input_length": 20 * BLOCK_TOKENS,
            "hash_ids": list(range(turn % 6 * 100, turn % 6 * 100 + 20)),
        }
        for turn in range(60)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return path


def replay(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)


def test_prints_one_json_object_with_what_was_asked(trace: Path) -> None:
    ended = replay(trace, "--tiers", "host=64 MiB,ssd=1 GiB", "--block-size", "1 MiB", "--policy", "lru", "--json", "-")
    assert ended.exit_code == 0
    found = json.loads(ended.stdout)
    assert found["token_hit_rate"] == pytest.approx(0.9)
    assert found["belady_token_hit_rate"] == pytest.approx(0.9)
    assert found["by_tier"]["host"] + found["by_tier"]["ssd"] == pytest.approx(0.9, abs=1e-5)
    assert found["tier_blocks"] == {"host": 64, "ssd": 1024}
    assert found["settings"]["policy"] == "lru"
    assert found["trace"]["block_tokens"] == BLOCK_TOKENS


def test_prints_a_table_and_writes_json(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    ended = replay(trace, "--tiers", "host=60%", "--prefill-tokens-per-second", "1e4", "--json", out)
    assert "token hit rate" in ended.stdout
    assert "TTFT p50" in ended.stdout
    assert json.loads(out.read_text("utf-8"))["settings"]["prefill_tokens_per_second"] == 10_000


def test_a_sweep_says_how_much_is_enough_and_draws_it(trace: Path, tmp_path: Path) -> None:
    picture = tmp_path / "curve.png"
    ended = replay(trace, "--sweep", "--block-size", "1 MiB", "--plot", picture)
    assert "120 MiB of host reach 90%" in ended.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    ended = replay(trace, "--sweep", "ssd", "--tiers", "host=32 MiB", "--block-size", "1 MiB", "--json", "-")
    points = json.loads(ended.stdout)["points"]
    assert [point["percent"] for point in points] == [1, 2, 5, 10, 20, 30, 50, 70, 100]
    assert [point["blocks"] for point in points] == [1, 2, 6, 12, 24, 36, 60, 84, 120]


def test_a_sweep_gives_what_its_sizes_give_alone(trace: Path) -> None:
    options = ("--block-size", "1 MiB", "--link", "ssd.read=5,1", "--link", "host.get=20", "--prefetch")
    swept = replay(trace, "--tiers", "ssd=9%, host=32 MiB", *options, "--sweep", "ssd", "--json", "-")
    point = json.loads(swept.stdout)["points"][5]
    alone = json.loads(replay(trace, "--tiers", "host=32 MiB,ssd=30%", *options, "--json", "-").stdout)
    assert point.pop("percent") == 30
    assert {name: alone[name] for name in point if name in alone} == {
        name: figure for name, figure in point.items() if name in alone
    }
    assert set(point) - set(alone) == {"blocks", "nbytes"}


def test_what_is_wrong_with_the_replays_of_a_sweep_is_said_once(trace: Path) -> None:
    with pytest.raises(ConfigError, match=r"^'lruu' is not one of the policies"):
        replay(trace, "--sweep", "--policy", "lruu", "--block-size", "1 MiB")


def test_replays_of_a_sweep_that_say_much_are_not_held_up(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a bar does that is drawn for nobody, with FORCE_COLOR: a pipe that is not read is full in half a minute."""
    monkeypatch.setenv("PYTHONVERBOSE", "1")
    assert "reach 90%" in replay(trace, "--sweep", "--block-size", "1 MiB").stdout


def test_a_sweep_tells_its_replays_which_file_a_stdin_is(trace: Path) -> None:
    with trace.open("rb") as stdin:
        assert shared_file(Path(f"/dev/fd/{stdin.fileno()}")) == trace


def test_a_sweep_does_not_wait_for_what_comes_but_once(trace: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for arguments in ([fifo], [trace, "--links", fifo]):
        with pytest.raises(ConfigError, match=r"fifo once for each size; give a file$"):
            replay(*arguments, "--sweep")


def test_speeds_come_from_a_benchmark_a_flag_or_an_estimate(trace: Path, tmp_path: Path) -> None:
    bench = tmp_path / "bench.json"
    bench.write_text(json.dumps({"rows": [{"link": "host.get", "gbytes_per_second": 10.0}]}), "utf-8")
    ended = replay(
        trace, "--tiers", "host=60%", "--links", bench, "--link", "ssd.read=5,1", "--tflops", 16, "--json", "-"
    )
    settings = json.loads(ended.stdout)["settings"]
    assert sorted(settings["links"]) == ["host.get", "ssd.read"]
    assert settings["prefill_tokens_per_second"] == 1000.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policy", "lruu"), "did you mean lru"),
        (("--write-budget", "much"), "--write-budget"),
        (("--prefetch", "--prefetch-timeout", "1"), "two numbers of seconds"),
        (("--tiers", "ram=5%"), "no tier"),
        (("--lookahead", "many"), "--lookahead"),
        (("--links", "missing.json"), "--links"),
        (("--tflops", "1", "--prefill-tokens-per-second", "1"), "give one"),
        (("--tflops", "1", "--model", "llama-9"), "llama-9"),
        (("--block-size", "0"), "at least a byte"),
        (("--json", "missing/out.json"), "no folder"),
    ],
)
def test_a_mistake_is_named(trace: Path, arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replay(trace, "--tiers", "host=60%", *arguments)


def test_a_picture_needs_a_sweep(trace: Path) -> None:
    assert "--sweep" in replay(trace, "--plot", "curve.png").stderr
