"""Time to the first token of a real vLLM with and without tierstore: `python -m bench.vllm_ttft --json -`.

Two engines, one without a connector and one with, answer the same prompts in turn, so that whatever else the machine
does befalls both. Each prompt is new to both; each mode is one way to answer it:

    none       computed, without a connector; the measure of all others
    local      asked again: the engine's own prefix cache has it
    cold       computed and saved, with the connector
    warm       loaded from host memory, after the engine has forgotten its own blocks
    restart    loaded from SSD by a new engine, whose host memory is empty
    service    loaded from the host memory of a service in another process
    native     loaded from host memory by vLLM's own OffloadingConnector, which runs on GPUs alone

What cannot run here is left out, and the result says why. Beside the rows stands how long the scheduler waits for an
answer about a prompt of 512 blocks, with 200 000 other blocks in the store.

Ratios are medians over prompts of one mode's time over the others' for the same prompt. Runs where
``PYTHON_WITH_VLLM`` (or this interpreter) has vLLM, on a CPU or a GPU.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from tests.vllm.engines import (
    PATIENCE_SECONDS,
    Answer,
    EngineError,
    EngineProcess,
    Nursery,
    interpreter,
    prompt,
    running,
    serving,
)
from tests.vllm.inside import SLOW
from tierstore.benchmark.machine import describe_machine

MODES = ("none", "local", "cold", "warm", "restart", "service", "native")
NATIVE = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"cpu_bytes_to_use": 2 << 30},
}
MATCHED_BLOCKS, BLOCK_TOKENS = 512, 32
THIN_SHAPE = {"layers": 1, "heads": 1, "kv_heads": 1, "head_size": 32, "max_position_embeddings": 32768}
"""Of whose blocks 200 000 fit into a small pool: what they hold has no say in how they are found."""

SMALL_SHAPE = {"layers": 2, "heads": 2, "kv_heads": 1}
SHAPE = {"layers": 12, "heads": 12, "kv_heads": 12, "vocabulary": 4096}
"""Hidden size 768."""


class Figures:
    """What was measured, mode by mode, prompt by prompt.

    Attributes:
        left_out: Why a mode was not measured.
    """

    def __init__(self) -> None:
        self.left_out: dict[str, str] = {}
        self._seconds: dict[str, dict[int, float]] = defaultdict(dict)
        self._tokens: dict[str, list[int]] = defaultdict(list)
        self._answers: dict[int, list[tuple[str, Answer]]] = defaultdict(list)

    def measure(self, mode: str, number: int, engine: EngineProcess, tokens: Sequence[int]) -> None:
        """Ask an engine for the first token."""
        engine.hits()
        row = engine.ask("first_token", prompt=list(tokens))
        assert isinstance(row, dict)
        self._seconds[mode][number] = row["seconds"]
        self._tokens[mode].append(sum(engine.hits()))
        self._answers[number].append((mode, Answer(tuple(row["tokens"]), tuple(row["logprobs"]))))

    def rows(self) -> Iterator[dict[str, object]]:
        """One for each mode."""
        for mode in self._seconds:
            times = list(self._seconds[mode].values())
            yield {
                "mode": mode,
                "ttft_ms_p50": round(statistics.median(times) * 1e3, 3),
                "ttft_ms_min": round(min(times) * 1e3, 3),
                "ttft_ms_max": round(max(times) * 1e3, 3),
                "ttft_ratio": self._ratio(mode, "none"),
                "local_ratio": self._ratio(mode, "local"),
                "hit_tokens": int(statistics.median(self._tokens[mode])),
                "tokens_equal": all(
                    answer.tokens == answers[0][1].tokens
                    for answers in self._answers.values()
                    for own, answer in answers
                    if own == mode
                ),
            }

    def _ratio(self, mode: str, other: str) -> float:
        own, base = self._seconds[mode], self._seconds[other]
        return round(statistics.median(own[number] / base[number] for number in own), 4)


def measure(nursery: Nursery, folder: Path, options: Mapping[str, Any], prompts: Sequence[Sequence[int]]) -> Figures:
    """Run every mode over every prompt; the first prompt warms both engines up and is not counted."""
    figures, counted = Figures(), range(1, len(prompts))
    connector = {"host_size": options["host_size"], "ssd_dir": str(folder / "kv"), "ssd_size": "8 GiB"}
    given = dict(options["engine"])
    with running(nursery, connector=None, **given) as plain:
        with running(nursery, connector=connector, **given) as engine:
            for number, tokens in enumerate(prompts):
                pair = Figures() if number not in counted else figures
                pair.measure("none", number, plain, tokens)
                pair.measure("cold", number, engine, tokens)
                pair.measure("local", number, plain, tokens)
                engine.reset()
                pair.measure("warm", number, engine, tokens)
        with running(nursery, connector=connector | {"lookup_seconds": PATIENCE_SECONDS}, **given) as engine:
            for number, tokens in enumerate(prompts):
                (Figures() if number not in counted else figures).measure("restart", number, engine, tokens)
        with serving(folder, host_size=options["host_size"]) as endpoint:
            connector = {"mode": "service", "endpoint": endpoint}
            with running(nursery, connector=connector, **given) as engine:
                for number, tokens in enumerate(prompts):
                    engine.ask("first_token", prompt=list(tokens))
                    engine.reset()
                    (Figures() if number not in counted else figures).measure("service", number, engine, tokens)
    try:
        with running(nursery, connector=None, transfer=NATIVE, **given) as engine:
            for number, tokens in enumerate(prompts):
                engine.ask("first_token", prompt=list(tokens))
                engine.reset()
                (Figures() if number not in counted else figures).measure("native", number, engine, tokens)
    except EngineError as error:
        figures.left_out["native"] = str(error)
    return figures


def measure_match(nursery: Nursery, folder: Path, *, indexed: int, rounds: int) -> dict[str, object]:
    """How long the scheduler waits for what is known of a prompt, with so many other blocks in the store."""
    tokens = MATCHED_BLOCKS * BLOCK_TOKENS
    options = {"shape": THIN_SHAPE, "dtype": "float32", "max_model_len": tokens + 32, "block_size": BLOCK_TOKENS}
    with running(nursery, model=str(folder / "thin"), connector={"host_size": "2 GiB"}, **options) as engine:
        found = engine.ask("match_seconds", tokens=tokens, indexed=indexed, rounds=rounds)
    assert isinstance(found, list)
    cuts = statistics.quantiles(found, n=100)
    return {
        "blocks": MATCHED_BLOCKS,
        "indexed": indexed,
        "rounds": rounds,
        "ms_p50": round(cuts[49] * 1e3, 4),
        "ms_p99": round(cuts[98] * 1e3, 4),
    }


@contextmanager
def nurturing() -> Iterator[Nursery]:
    """The process that has imported vLLM."""
    python = interpreter()
    if python is None:
        raise click.ClickException("no vLLM here; set PYTHON_WITH_VLLM to an interpreter that has it")
    nursery = Nursery(python)
    yield nursery
    nursery.close()


def plot(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Bars: each mode's time, of computing everything."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3))
    bars = axes.barh([row["mode"] for row in rows], [100 * row["ttft_ratio"] for row in rows], color="#4477aa")
    axes.bar_label(bars, fmt="%.1f %%", padding=3)
    axes.invert_yaxis()
    axes.set_xlabel("time to the first token, % of computing it without a store")
    axes.set_xscale("log")
    axes.margins(x=0.2)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


@click.command()
@click.option("--tokens", default=2048, help="Of each prompt.")
@click.option("--prompts", "num_prompts", default=8, help="Counted; one more warms up.")
@click.option("--dtype", default="float32")
@click.option("--block-size", default=32, help="Tokens of one of the engine's blocks.")
@click.option("--small", is_flag=True, help="A tiny model, to see that this runs.")
@click.option("--match/--no-match", "with_match", default=True, help="Measure how long the scheduler waits, too.")
@click.option("--plot", "plot_path", type=click.Path(path_type=Path))
@click.option("--json", "json_path", default="-")
def main(
    *,
    tokens: int,
    num_prompts: int,
    dtype: str,
    block_size: int,
    small: bool,
    with_match: bool,
    plot_path: Path | None,
    json_path: str,
) -> None:
    """Measure, and tell one row for each mode."""
    prompts = [prompt(1000 + number, tokens) for number in range(num_prompts + 1)]
    with tempfile.TemporaryDirectory() as name, nurturing() as nursery:
        engine = {
            "model": f"{name}/model",
            "shape": SMALL_SHAPE if small else SHAPE,
            "dtype": dtype,
            "max_model_len": tokens + block_size,
            "max_num_batched_tokens": tokens + block_size,
            "block_size": block_size,
            "slowness": SLOW if small else 1.0,
        }
        figures = measure(nursery, Path(name), {"engine": engine, "host_size": "2 GiB"}, prompts)
        match = None
        if with_match:
            indexed, rounds = (1000, 100) if small else (200_000, 2000)
            match = measure_match(nursery, Path(name), indexed=indexed, rounds=rounds)
        machine = describe_machine(Path(name))
    rows = list(figures.rows())
    if plot_path is not None:
        plot(plot_path, rows)
    setup = {
        "tokens": tokens,
        "prompts": num_prompts,
        "dtype": dtype,
        "block_size": block_size,
        "shape": engine["shape"],
    }
    told = {"rows": rows, "left_out": figures.left_out, "match": match, "setup": setup, "machine": machine}
    text = json.dumps(told, indent=1)
    if json_path == "-":
        click.echo(text)
    else:
        Path(json_path).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
