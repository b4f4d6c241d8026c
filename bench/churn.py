"""Whether a service grows under clients that are killed: `python -m bench.churn --seconds 600 [--folder F] [--json -]`.

Rounds: a few clients start, half of them in place and half in streams, put and get and look up and prefetch without
a pause, one of them is stopped, and all are killed in the middle of whatever they do. Then the service must let go of
all that they held: sessions, leases, reservations, pins. Its memory, descriptors and threads are looked at, and the
next round begins. Ends with a table and exits 1 unless all are flat and no client has got a wrong byte.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import click

from bench.churn_client import WRONG_BYTES
from bench.growth import Series, series_of, table
from tierstore.benchmark.machine import describe_machine
from tierstore.benchmark.tied import tied
from tierstore.client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BOUNDS", "churn", "main"]

_ROOT = Path(__file__).parents[1]
_CLIENTS = 4
_WORK_SECONDS = 2.0
_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.05

BOUNDS = {
    "heap_mib": 16.0,
    "descriptors": 4.0,
    "threads": 2.0,
    "sessions": 0.0,
    "lent_bytes": 0.0,
    "pinned_blocks": 0.0,
}
"""How much each may grow. The heap keeps what freed messages leave, tens of MiB that come and go."""


_HELD = {"sessions": "service_sessions", "lent_bytes": "host_lent_bytes", "pinned_blocks": "host_pinned_blocks"}
"""Series that say what clients hold."""


def churn(folder: Path, seconds: float, seed: int, say: Callable[[str], None]) -> tuple[list[Series], dict[str, int]]:
    """Rounds for so long, at least four. Blocks."""
    random, times, looks = Random(seed), list[float](), list[dict[str, float]]()
    counts = {"rounds": 0, "killed": 0, "stopped": 0, "wrong": 0}
    address = f"unix:{folder / 'service.sock'}"
    with _serving(folder, address) as pid, Client(address, call_seconds=_PATIENCE_SECONDS) as client:
        assert client.wait(_PATIENCE_SECONDS), "the service does not start"
        begun = time.monotonic()
        while len(times) < 4 or time.monotonic() - begun < seconds:
            _round(address, random, counts)
            looks.append(_look(pid, client))
            times.append(time.monotonic() - begun)
            say(f"{times[-1]:6.0f} s  " + "  ".join(f"{name} {value:.0f}" for name, value in looks[-1].items()))
    return series_of(times, looks, BOUNDS), counts


@contextmanager
def _serving(folder: Path, address: str) -> Iterator[int]:
    """A service with a small pool and a small SSD; its pid. Told to end afterwards, which must go well."""
    settings = [f"--ssd.dir={folder / 'ssd'}", "--ssd.size=48 MiB", "--ssd.file_size=2 MiB", "--ssd.free_floor=64 MiB"]
    command = [sys.executable, "-m", "tierstore", "serve", f"--listen={address}", "--host.size=16 MiB"]
    with (folder / "service.log").open("wb") as said, tied([*command, *settings], stderr=said) as process:
        try:
            yield process.pid
        finally:
            process.terminate()
            assert process.wait(_PATIENCE_SECONDS) == 0, (folder / "service.log").read_text("utf-8")


def _round(address: str, random: Random, counts: dict[str, int]) -> None:
    """Clients at work, until all are killed."""
    with ExitStack() as stack:
        clients = []
        for number in range(_CLIENTS):
            arguments = [address, "attach" if number % 2 else "stream", str(random.getrandbits(32))]
            command = [sys.executable, "-m", "bench.churn_client", *arguments]
            ends = tied(command, ends_by=signal.SIGKILL, stdout=subprocess.PIPE, cwd=_ROOT)
            client = stack.enter_context(ends)
            stack.callback(client.kill)
            clients.append(client)
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline(), "a client has not begun"
        time.sleep(random.uniform(0.1, _WORK_SECONDS))
        random.choice(clients).send_signal(signal.SIGSTOP)
        time.sleep(random.uniform(0.0, _WORK_SECONDS / 4))
        for client in clients:
            client.kill()
            counts["wrong"] += client.wait() == WRONG_BYTES
    counts["rounds"] += 1
    counts["killed"] += _CLIENTS
    counts["stopped"] += 1


def _look(pid: int, client: Client) -> dict[str, float]:
    """Measure, once the service has noticed that its clients are gone, or for as long as patience lasts."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        client.flush().result()
        metrics = client.metrics()
        held = {
            name: sum(value for key, value in metrics.items() if key.startswith(f"tierstore_{metric}"))
            for name, metric in _HELD.items()
        }
        if (metrics and sum(held.values()) == 1) or time.monotonic() > until:
            break
        time.sleep(_LOOK_SECONDS)
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines())
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    heap_mib = int(status["RssAnon"].split()[0]) / 1024
    return {"heap_mib": heap_mib, "descriptors": descriptors, "threads": int(status["Threads"]), **held}


@click.command()
@click.option("--seconds", default=600.0, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path, exists=True), help="Where to make the store's folder.")
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "json_path", help='File for the result; "-" is stdout.')
def main(*, seconds: float, folder: Path | None, seed: int, json_path: str | None) -> None:
    """Kill clients of a service for some time and say whether anything of it grows."""
    with tempfile.TemporaryDirectory(prefix="tierstore-churn-", dir=folder) as name:
        series, counts = churn(Path(name), seconds, seed, lambda line: click.echo(line, err=True))
        machine = describe_machine(Path(name))
    flat = all(each.is_flat for each in series) and not counts["wrong"]
    rows = [each.row for each in series]
    result = {"seconds": seconds, "seed": seed, "flat": flat, "rows": rows, "counts": counts, "machine": machine}
    if json_path == "-":
        click.echo(json.dumps(result))
    else:
        click.echo(table(series, counts))
    if json_path not in (None, "-"):
        Path(str(json_path)).write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    sys.exit(0 if flat else 1)


if __name__ == "__main__":
    main()
