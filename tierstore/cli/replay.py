"""`tierstore replay`: turns options into a plan, and prints figures as a table, a JSON object or a picture.

`tierstore.replay` does the replaying. Output for programs goes to stdout, progress for people to stderr.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from tierstore.cli.outputs import check_outputs
from tierstore.errors import ConfigError
from tierstore.policy.prefetching import PREFETCH_POLICIES, PrefetchPolicy
from tierstore.settings import DriveWrites, daily, parse_size

if TYPE_CHECKING:
    from tierstore.replay.engine import Queueing
    from tierstore.replay.figures import Point
    from tierstore.replay.links import LinkModel
    from tierstore.replay.run import ReplayPlan
    from tierstore.types import TierName

__all__ = ["command"]


class _Options(TypedDict):
    tiers: str
    policy: str
    admission: str
    file_size: str | None
    rewrite_share: float
    write_budget: str | None
    lookahead: str
    prefetch: str | None
    prefetch_timeout: str
    model: str
    block_size: str | None
    block_tokens: int | None
    links_path: Path | None
    link: tuple[str, ...]
    prefill_tokens_per_second: float | None
    tflops: float | None


@click.command("replay")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--tiers",
    default="host=5%",
    show_default=True,
    metavar="SIZES",
    help='Such as "host=64 GiB,ssd=1 TiB"; % are of the distinct blocks of the trace.',
)
@click.option("--policy", default="arc", show_default=True, help="Eviction policy of the host tier.")
@click.option("--admission", default="always", show_default=True, help="Admission policy of the SSD tier.")
@click.option("--file-size", metavar="SIZE", help="Length of an SSD chunk file.  [what a store of that size takes]")
@click.option(
    "--rewrite-share",
    type=click.FloatRange(0.0, 1.0),
    default=0.5,
    show_default=True,
    help="Of an SSD chunk file that goes, the blocks that may be written again.",
)
@click.option(
    "--write-budget",
    metavar="SIZE",
    help='What may be written to SSD in a day, such as "2 TiB" or "0.3 DWPD".  [no bound]',
)
@click.option(
    "--lookahead",
    default="0",
    show_default=True,
    metavar="N",
    help='Requests after the one being served that the store is told of; "arrived" for those that wait.',
)
@click.option(
    "--prefetch",
    is_flag=False,
    flag_value="best-effort",
    type=click.Choice(PREFETCH_POLICIES),
    help="Prefetch the blocks of each request as it arrives; how long it waits for them.  [alone: best-effort]",
)
@click.option(
    "--prefetch-timeout",
    default="1,0.25",
    show_default=True,
    metavar="S,S",
    help="Seconds that a prefetch may take with policy timeout, and more for each 1,000 tokens.",
)
@click.option("--model", default="llama-3.1-8b", show_default=True, help="Preset that gives a block its size.")
@click.option("--block-size", metavar="SIZE", help='Size of a block instead of a model, such as "2 MiB".')
@click.option("--block-tokens", type=click.IntRange(1), help="Tokens a block.  [default: what fits the trace]")
@click.option(
    "--links",
    "links_path",
    type=click.Path(path_type=Path),
    help="Speeds of links, as tierstore bench --bandwidth --json wrote them.  [default: nothing takes time]",
)
@click.option(
    "--link", multiple=True, metavar="NAME=GB/S[,MS]", help="Speed of one link and ms a job, such as ssd.read=6.5,0.2."
)
@click.option("--prefill-tokens-per-second", type=click.FloatRange(1), help="Speed of the engine's prefill.")
@click.option("--tflops", type=click.FloatRange(0.001), help="Estimate that speed for --model on so many TFLOP/s.")
@click.option(
    "--sweep",
    is_flag=False,
    flag_value="host",
    type=click.Choice(["host", "ssd"]),
    help="Replay with that tier from 1 % to 100 % of the blocks: how much do I need?  [alone: host]",
)
@click.option("--json", "json_path", metavar="PATH", help='Write one JSON object; "-" is stdout.')
@click.option("--plot", "plot_path", type=click.Path(path_type=Path), help="Draw the sweep into this file.")
def command(
    *, trace: Path, sweep: str | None, json_path: str | None, plot_path: Path | None, **options: Unpack[_Options]
) -> None:
    """Predict hit rates and waiting from a recorded trace.

    Runs the store's own planner over TRACE with a clock of its own: JSON lines, plain or gzip, of requests as
    Mooncake publishes them, or of KV events as vLLM and SGLang send them. No memory or disk is taken.
    """
    if plot_path is not None and sweep is None:
        raise click.UsageError("--plot draws a sweep; say --sweep too")
    check_outputs(json_path, plot_path)
    if sweep is None:
        _replay(_plan(trace, options), json_path)
    else:
        _sweep(sweep, trace, options, json_path, plot_path)


def _plan(path: Path, options: _Options) -> ReplayPlan:
    from tierstore.presets import preset
    from tierstore.replay.reading import read_trace
    from tierstore.replay.run import ReplayPlan
    from tierstore.replay.tiers import parse_tiers

    tiers = parse_tiers(options["tiers"])
    trace = read_trace(path, options["block_tokens"])
    size, file_size = options["block_size"], options["file_size"]
    block_nbytes = (
        preset(options["model"], trace.block_tokens).block_nbytes
        if size is None
        else parse_size(size, key="--block-size")
    )
    if block_nbytes < 1:
        raise ConfigError(f'--block-size is "{size}"; a block has at least a byte')
    return ReplayPlan(
        trace=trace,
        tiers=tiers,
        block_nbytes=block_nbytes,
        policy=options["policy"],
        admission=options["admission"],
        file_nbytes=None if file_size is None else parse_size(file_size, key="--file-size"),
        rewrite_share=options["rewrite_share"],
        write_budget=_write_budget(options["write_budget"]),
        links=_links(options),
        queueing=_queueing(options),
    )


def _write_budget(text: str | None) -> int | DriveWrites | None:
    """Bytes or drive writes a day, as `ssd.write_budget` reads them."""
    kind = daily(1)
    try:
        budget = None if text is None else kind.read(text)
    except ValueError as error:
        raise ConfigError(f'--write-budget is "{text}"; give {kind.accepts}') from error
    assert budget is None or isinstance(budget, int | DriveWrites)
    return budget


def _links(options: _Options) -> dict[str, LinkModel]:
    from tierstore.replay.links import links_from_report, parse_link

    links: dict[str, LinkModel] = {}
    path = options["links_path"]
    if path is not None:
        try:
            report: object = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"--links is {path}: {error}; give what tierstore bench --bandwidth --json wrote"
            ) from error
        links.update(links_from_report(report, str(path)))
    return links | dict(parse_link(text) for text in options["link"])


def _queueing(options: _Options) -> Queueing:
    from tierstore.replay.engine import ARRIVED, Queueing
    from tierstore.replay.prefill import tokens_per_second

    lookahead, speed, tflops = options["lookahead"], options["prefill_tokens_per_second"], options["tflops"]
    if lookahead != "arrived" and not lookahead.isdecimal():
        raise ConfigError(f'--lookahead is "{lookahead}"; give a number of requests, or "arrived"')
    if speed is not None and tflops is not None:
        raise ConfigError("--prefill-tokens-per-second and --tflops say the same thing; give one")
    if tflops is not None:
        speed = tokens_per_second(options["model"], tflops)
    return Queueing(
        tokens_per_second=float("inf") if speed is None else speed,
        lookahead=ARRIVED if lookahead == "arrived" else int(lookahead),
        prefetch=_prefetch_policy(options),
    )


def _prefetch_policy(options: _Options) -> PrefetchPolicy | None:
    text, name = options["prefetch_timeout"], options["prefetch"]
    try:
        base, per_1k_tokens = (float(part) for part in text.split(","))
    except ValueError:
        base = per_1k_tokens = -1.0
    if not 0 <= base < 1e6 or not 0 <= per_1k_tokens < 1e6:
        raise ConfigError(f'--prefetch-timeout is "{text}"; give two numbers of seconds, such as 1,0.25')
    return None if name is None else PrefetchPolicy(name, base, per_1k_tokens)


def _replay(plan: ReplayPlan, json_path: str | None) -> None:
    from tierstore.replay.report import as_json, as_table
    from tierstore.replay.run import replay

    with _progress(len(plan.trace.blocks)) as on_progress:
        figures = replay(plan, on_progress)
    _write(json_path, as_json(plan, figures), lambda: as_table(plan, figures))


def _points(plan: ReplayPlan, tier: TierName, path: Path, options: _Options) -> list[Point]:
    """The figures of the same command for each size of one tier."""
    from tierstore.cli.replay_sweep import replay_all, spelled
    from tierstore.replay.figures import Point
    from tierstore.replay.run import sweep_plans

    plans = sweep_plans(plan, tier)
    others = [size for size in options["tiers"].split(",") if size.partition("=")[0].strip() != tier]
    sizes = [",".join([*others, f"{tier}={percent}%"]) for percent in plans]
    commands = [[*spelled(command.params, {**options, "tiers": size}), "--", str(path)] for size in sizes]
    with _progress(len(commands)) as on_progress:
        found = replay_all(commands, on_progress)
    return [
        Point(percent, sized.blocks(tier), sized.blocks(tier) * plan.block_nbytes, figures)
        for (percent, sized), figures in zip(plans.items(), found, strict=True)
    ]


def _sweep(name: str, path: Path, options: _Options, json_path: str | None, plot_path: Path | None) -> None:
    from tierstore.cli.replay_sweep import shared_file
    from tierstore.replay.report import as_sweep_json, as_sweep_table, save_plot
    from tierstore.types import TierName

    file, links_path = shared_file(path), options["links_path"]
    options["links_path"] = None if links_path is None else shared_file(links_path)
    plan, tier = _plan(path, options), TierName(name)
    points = _points(plan, tier, file, options)
    _write(json_path, as_sweep_json(plan, tier, points), lambda: as_sweep_table(plan, tier, points))
    if plot_path is not None:
        save_plot(plan, tier, points, plot_path)


def _write(json_path: str | None, text: str, table: Callable[[], object]) -> None:
    if json_path == "-":
        click.echo(text)
        return
    from rich.console import Console

    Console().print(table())
    if json_path is not None:
        Path(json_path).write_text(text + "\n", "utf-8")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """One bar on stderr: of block references, or of the replays of a sweep."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("replaying", total=total)
        step = max(1, total // 200)
        shown = 0

        def show(served: int) -> None:
            nonlocal shown
            if served - shown >= step:
                shown = served
                progress.update(task, completed=served)

        yield show
