"""`tierstore bench`: turns options into a layout and limits, and prints figures as a table, a JSON object or a picture.

`tierstore.benchmark` does the measuring. Output for programs goes to stdout, progress for people to stderr.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from tierstore.cli.outputs import check_outputs
from tierstore.errors import ConfigError
from tierstore.settings import parse_size

if TYPE_CHECKING:
    from tierstore.benchmark.plan import BenchmarkPlan
    from tierstore.benchmark.report import Report
    from tierstore.layout import KVLayout

__all__ = ["command"]


class _Options(TypedDict):
    model: str
    block_tokens: int
    block_size: str | None
    layers: int | None
    kv_heads: int | None
    head_size: int | None
    dtype: str
    host_size: str
    ssd_dir: Path
    ssd_size: str
    codec: str
    threads: int
    batch: int | None
    seconds: float
    clients: int
    get_share: float
    skew: float
    trace: Path | None
    index_blocks: int


@click.command("bench")
@click.option("--bandwidth", is_flag=True, help="Measure every link beside the machine's own limit.")
@click.option("--serve", is_flag=True, help="Measure a service: in place, in streams, single calls, under load.")
@click.option("--model", default="llama-3.1-8b", show_default=True, help="Preset that gives a block its size.")
@click.option("--block-tokens", type=click.IntRange(1), default=16, show_default=True, help="Tokens a block.")
@click.option("--block-size", metavar="SIZE", help='Size of a block instead of a model, such as "256 KiB".')
@click.option("--layers", type=click.IntRange(1), help="A layout of your own, with --kv-heads and --head-size.")
@click.option("--kv-heads", type=click.IntRange(1), help="KV heads that one rank holds.")
@click.option("--head-size", type=click.IntRange(1), help="Elements of a head.")
@click.option("--dtype", default="bfloat16", show_default=True, help="KV dtype of a layout of your own.")
@click.option(
    "--host-size", metavar="SIZE", default="2 GiB", show_default=True, help="Host pool; the limit's is equal."
)
@click.option(
    "--ssd-dir",
    type=click.Path(path_type=Path),
    default=".",
    envvar="TMPDIR",
    help="Existing folder to work in.  [default: $TMPDIR or .]",
)
@click.option("--ssd-size", metavar="SIZE", default="8 GiB", show_default=True, help="SSD tier; the limit's is equal.")
@click.option("--codec", default="raw", show_default=True, help="Codec of blocks on SSD.")
@click.option(
    "--threads", type=click.IntRange(1, 256), default=4, show_default=True, help="Threads that read from SSD."
)
@click.option("--batch", type=click.IntRange(1), help="Blocks a call.  [default: 256 MiB of them, at most 1024]")
@click.option(
    "--seconds", type=click.FloatRange(0.1, 3600.0), default=6.0, show_default=True, help="Time for each link."
)
@click.option("--clients", type=click.IntRange(1, 256), default=1, show_default=True, help="Of --serve, at a time.")
@click.option(
    "--get-share", type=click.FloatRange(0, 1), default=0.9, show_default=True, help="Of the load's calls, gets."
)
@click.option(
    "--skew", type=click.FloatRange(0), default=1.0, show_default=True, help="Zipf's exponent of its prompts."
)
@click.option("--trace", type=click.Path(path_type=Path), help="Its prompts in the order of this trace's blocks.")
@click.option(
    "--index-blocks",
    type=click.IntRange(8192),
    default=1 << 16,
    show_default=True,
    help="Blocks of 4 KiB that the service knows while look-ups are measured.",
)
@click.option("--json", "json_path", metavar="PATH", help='Write one JSON object; "-" is stdout.')
@click.option("--plot", "plot_path", type=click.Path(path_type=Path), help="Draw the figures into this file.")
def command(
    *, bandwidth: bool, serve: bool, json_path: str | None, plot_path: Path | None, **options: Unpack[_Options]
) -> None:
    """Measure every link of the store on this machine, or every way into a service.

    Each stands beside what the machine itself does, measured by turns with it.

    Works in a new folder below --ssd-dir and removes it. That should lie on the SSD to be judged; where
    its file system has no direct I/O, the figures are those of buffered files and say so.
    """
    if bandwidth is serve:
        raise click.UsageError("say what to measure: --bandwidth or --serve")
    check_outputs(json_path, plot_path)
    report = _measure_service(options) if serve else _measure(options)
    if json_path == "-":
        click.echo(report.as_json())
    else:
        _print_table(report)
        if json_path is not None:
            Path(json_path).write_text(report.as_json() + "\n", "utf-8")
    if plot_path is not None:
        from tierstore.benchmark.report import save_plot

        save_plot(report, plot_path)
    for failure in report.failures:
        click.echo(f"tierstore: not measured: {failure}", err=True)
    for load in report.loads:
        if load.errors:
            click.echo(f"tierstore: {load.errors} blocks of the {load.way} load ended in errors", err=True)
    for row in report.rows:
        if not row.verified:
            click.echo(f"tierstore: {row.link} gave back wrong bytes; its figures mean nothing", err=True)
    if not report.complete:
        sys.exit(1)


def _measure(options: _Options) -> Report:
    from tierstore.benchmark.bandwidth import measure_bandwidth, num_links
    from tierstore.benchmark.gpu_links import find_gpu

    with _folder(options["ssd_dir"]) as name:
        plan = _plan(options, Path(name))
        gpu = find_gpu()
        with _progress(num_links(gpu)) as on_progress:
            return measure_bandwidth(plan, gpu, on_progress)


def _measure_service(options: _Options) -> Report:
    from tierstore.benchmark.plan import BenchmarkPlan
    from tierstore.benchmark.serve import NUM_SERVE_ROWS, measure_service
    from tierstore.benchmark.serve_plan import ServePlan
    from tierstore.replay.reading import read_trace

    trace = options["trace"]
    recorded = [] if trace is None else read_trace(trace).blocks.tolist()
    layout = _layout(options)
    with _folder(None) as name:
        plan = ServePlan(
            layout=layout,
            host_nbytes=parse_size(options["host_size"], key="--host-size"),
            folder=Path(name),
            clients=options["clients"],
            batch=options["batch"] or BenchmarkPlan.default_batch(layout.block_nbytes),
            seconds=options["seconds"],
            get_share=options["get_share"],
            skew=options["skew"],
            index_blocks=options["index_blocks"],
        )
        with _progress(NUM_SERVE_ROWS) as on_progress:
            return measure_service(plan, on_progress, recorded)


def _folder(parent: Path | None) -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="tierstore-bench-", dir=parent)
    except OSError as error:
        raise ConfigError(
            f"--ssd-dir is {parent}: {error.strerror}; give a folder that exists and can be written"
        ) from error


def _plan(options: _Options, folder: Path) -> BenchmarkPlan:
    from tierstore.benchmark.plan import BenchmarkPlan

    layout = _layout(options)
    return BenchmarkPlan(
        layout=layout,
        host_nbytes=parse_size(options["host_size"], key="--host-size"),
        folder=folder,
        ssd_nbytes=parse_size(options["ssd_size"], key="--ssd-size"),
        codec=options["codec"],
        read_threads=options["threads"],
        batch=options["batch"] or BenchmarkPlan.default_batch(layout.block_nbytes),
        seconds=options["seconds"],
    )


def _layout(options: _Options) -> KVLayout:
    from tierstore.layout import KVLayout
    from tierstore.presets import preset

    layers, kv_heads, head_size = options["layers"], options["kv_heads"], options["head_size"]
    if options["block_size"] is not None:
        return KVLayout.opaque(block_nbytes=parse_size(options["block_size"], key="--block-size"))
    if layers and kv_heads and head_size:
        return KVLayout.attention(
            layers=layers,
            kv_heads=kv_heads,
            head_size=head_size,
            block_tokens=options["block_tokens"],
            dtype=options["dtype"],
        )
    if layers or kv_heads or head_size:
        raise ConfigError("a layout of your own needs --layers, --kv-heads and --head-size; give all three")
    return preset(options["model"], options["block_tokens"])


@contextmanager
def _progress(num_links: int) -> Iterator[Callable[[str, float], None]]:
    """One bar on stderr for the whole run, drawn between timed parts: a drawing thread would take the GIL from them."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task("starting", total=num_links)
        links: list[str] = []

        def show(link: str, fraction: float) -> None:
            if link not in links:
                links.append(link)
            progress.update(task, description=link, completed=len(links) - 1 + fraction, refresh=True)

        yield show


def _print_table(report: Report) -> None:
    from rich.console import Console

    from tierstore.benchmark.report import as_load_table, as_table

    console = Console()
    console.print(as_table(report))
    if report.loads:
        console.print(as_load_table(report))
