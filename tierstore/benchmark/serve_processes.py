"""Starts the processes of one run, which end with it: a service, and a bare gRPC server beside it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tierstore.benchmark.tied import tied
from tierstore.errors import UnavailableError
from tierstore.service.bare import BareClient

if TYPE_CHECKING:
    from tierstore.benchmark.serve_plan import ServePlan

__all__ = ["Served", "serving"]

_START_SECONDS = 60.0
_END_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Served:
    """Where to call.

    Attributes:
        address: The service.
        bare: A client of the bare server.
        pid: The service's process.
    """

    address: str
    bare: BareClient
    pid: int


@contextmanager
def serving(plan: ServePlan) -> Iterator[Served]:
    """Start both, wait until they answer, and end them. Blocks.

    Raises:
        UnavailableError: One of them does not start, with what it says.
    """
    address, bare_address = f"unix:{plan.folder}/service.sock", f"unix:{plan.folder}/bare.sock"
    settings = {
        "service.listen": address,
        "host.size": plan.host_nbytes,
        "host.slab_size": plan.slab_nbytes,
        "host.populate": "true",
        "policy.name": "lru",  # by whose order the calls know what the pool still holds
    }
    options = [f"--{key}={value}" for key, value in settings.items()]
    with ExitStack() as stack:
        pid = stack.enter_context(_process(["-m", "tierstore", "serve", *options], plan.folder / "service.log"))
        stack.enter_context(_process(["-m", "tierstore.service.bare", bare_address], plan.folder / "bare.log"))
        bare = stack.enter_context(closing(BareClient(bare_address)))
        bare.wait(_START_SECONDS)
        with closing(BareClient(address)) as channel:
            channel.wait(_START_SECONDS)
        yield Served(address, bare, pid)


@contextmanager
def _process(arguments: Sequence[str], log: Path) -> Iterator[int]:
    """A Python program in a process of its own, told to end afterwards; its pid. What it says goes into a file.

    Raises:
        UnavailableError: Instead of one raised meanwhile, with the last that the program has said.
    """
    command = [sys.executable, *arguments]
    with log.open("wb") as output, tied(command, stderr=output) as process:
        try:
            yield process.pid
        except UnavailableError as error:
            said = log.read_text("utf-8").strip().rpartition("\n")[2]
            raise UnavailableError(f"{error}; {log.stem} said: {said or 'nothing'}") from error
        finally:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
