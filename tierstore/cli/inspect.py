"""`tierstore inspect`: lists, verifies, repairs and exports a store's folder.

`tierstore.inspect` does the work. Output for programs goes to stdout, progress for people to stderr. Exits 0 if all is
well, 1 if something is bad or missing, 2 if the folder cannot be read.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tierstore.errors import ConfigError, IdentityError
from tierstore.types import HASH_NBYTES

if TYPE_CHECKING:
    from tierstore.inspect.checkup import ZarrShare
    from tierstore.inspect.findings import Finding
    from tierstore.inspect.folder import FolderNamespace, StoreFolder

__all__ = ["command"]

_FOLDER = click.argument("folder", type=click.Path(path_type=Path))
_JSON = click.option("--json", "json_path", metavar="PATH", help='Write one JSON object; "-" is stdout.')
_NAMESPACE = click.option("--namespace", metavar="TEXT", help="Beginning of a fingerprint, or a part of an identity.")


class _Verbs(click.Group):
    """If a user names a folder but no verb, the error suggests the verb for a first look."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and Path(args[0]).is_dir():
            ctx.fail(f"{args[0]} is a folder; say what to do with it: {ctx.command_path} ls {args[0]}")
        return super().resolve_command(ctx, args)


@click.group("inspect", cls=_Verbs)
def command() -> None:
    """Look into a store's folder: list, verify, repair, export.

    On a closed folder or beside its live owner; only repair needs the folder for itself.
    """
    logging.getLogger("tierstore").setLevel(logging.ERROR)  # what would be a warning is said as a finding


@command.command("ls")
@_FOLDER
@_NAMESPACE
@click.option("--blocks", is_flag=True, help="List every living block.")
@_JSON
def list_command(*, folder: Path, namespace: str | None, blocks: bool, json_path: str | None) -> None:
    """List namespaces, arrays and files, and what lives in them."""
    from tierstore.inspect.contents import read_contents
    from tierstore.inspect.listing import list_folder, listing_lines

    found = _read(folder)
    chosen = _chosen(found, namespace)
    with _progress(found.nbytes, "reading") as advance:
        contents = read_contents(found, advance)
    listing = list_folder(found, contents, chosen, with_blocks=blocks)
    if not _write_json(listing, json_path):
        for line in listing_lines(listing):
            click.echo(line)
    _say_skipped(found.skipped)


@command.command("verify")
@_FOLDER
@click.option(
    "--zarr",
    "share",
    type=click.Choice(["none", "sample", "all"]),
    default="sample",
    show_default=True,
    help="Blocks of sealed files that are read through Zarr too: one of each file, or all.",
)
@_JSON
def verify_command(*, folder: Path, share: ZarrShare, json_path: str | None) -> None:
    """Read every record of every file and list what is bad.

    Beside a live owner, and after a crash, the end of an open file may hold a write that was cut off; a start
    passes over it.
    """
    from tierstore.inspect.checkup import check_folder

    found = _read(folder)
    reader = None
    if share != "none":
        from tierstore.inspect.zarr_reading import ZarrReader

        reader = ZarrReader(str(folder))
    with _progress(found.nbytes, "verifying") as advance:
        checkup = check_folder(found, zarr=reader, share=share, advance=advance)
    summary = f"{checkup.num_blocks} blocks in {checkup.num_files} files, {len(checkup.findings)} bad"
    report = {
        "files": checkup.num_files,
        "blocks": checkup.num_blocks,
        "nbytes": checkup.nbytes,
        "bad": _as_values(checkup.findings),
        "skipped": list(checkup.skipped),
    }
    if not _write_json(report, json_path):
        for finding in checkup.findings:
            click.echo(f"bad {finding.text}")
        click.echo(summary)
    _say_skipped(checkup.skipped)
    if checkup.findings:
        sys.exit(1)


@command.command("repair")
@_FOLDER
@click.option("--yes", is_flag=True, help="Do it; without, only say what would be done.")
def repair_command(*, folder: Path, yes: bool) -> None:
    """Drop what is bad and keep all that is whole.

    Needs the folder for itself: its store must be closed.
    """
    from tierstore.disk.posix import PosixDisk
    from tierstore.inspect.folder import StoreFolder
    from tierstore.inspect.repair import plan_repair
    from tierstore.tiers.manifest import Manifest

    _read(folder)  # so that nothing is made in a folder that is no store's
    disk = PosixDisk(str(folder))
    with closing(Manifest.open(disk)):
        found = StoreFolder.read(disk)
        with _progress(found.nbytes, "verifying") as advance:
            mends, left = plan_repair(found, advance)
        for mend in mends:
            for line in mend.lines:
                click.echo(f"{'mended' if yes else 'would mend'} {line}")
            if yes:
                mend.apply(disk)
    for line in left:
        click.echo(f"left {line}")
    _say_skipped(found.skipped)
    if not mends and not left:
        click.echo("nothing is bad")
    elif mends and not yes:
        click.echo("nothing has been changed; say --yes to do it")
    if left or (mends and not yes):
        sys.exit(1)


@command.command("export")
@_FOLDER
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--format", "kind", type=click.Choice(["zarr", "safetensors"]), required=True, help="What OUT becomes.")
@_NAMESPACE
@click.option(
    "--hash", "hashes", metavar="HEX", multiple=True, help="A block's hash; may be given again.  [default: all]"
)
def export_command(*, folder: Path, out: Path, kind: str, namespace: str | None, hashes: tuple[str, ...]) -> None:
    """Write living blocks, decoded, into a Zarr v3 store or a .safetensors file that others can read."""
    from tierstore.inspect.contents import read_contents
    from tierstore.inspect.exporting import choose

    if out.exists():
        raise ConfigError(f"{out} exists; give a name that does not")
    wanted = [_block_hash(text) for text in hashes]
    found = _read(folder)
    chosen = _chosen(found, namespace)
    with _progress(found.nbytes, "reading") as advance:
        exports, missing = choose(found, read_contents(found, advance), chosen, wanted)
    try:
        if kind == "zarr":
            from tierstore.inspect.zarr_writing import write_zarr

            count = write_zarr(out, exports)
        else:
            from tierstore.inspect.safetensors import write_safetensors

            count = write_safetensors(out, exports)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}; give a new name in a folder you own") from error
    bad = [*missing, *(line for export in exports for line in export.bad)]
    for line in bad:
        click.echo(f"left out {line}")
    click.echo(f"{count} blocks of {len(exports)} namespaces in {out}")
    _say_skipped(found.skipped)
    if bad:
        sys.exit(1)


def _block_hash(text: str) -> bytes:
    try:
        name = bytes.fromhex(text)
    except ValueError as error:
        raise IdentityError(f"--hash is {text!r}; block hashes are 64 hex digits") from error
    if len(name) != HASH_NBYTES:
        raise IdentityError(f"--hash is {text!r}; block hashes are 64 hex digits")
    return name


def _read(folder: Path) -> StoreFolder:
    from tierstore.disk.posix import PosixDisk
    from tierstore.inspect.folder import StoreFolder

    return StoreFolder.read(PosixDisk(str(folder), read_only=True))


def _chosen(folder: StoreFolder, text: str | None) -> list[FolderNamespace]:
    """The namespaces that a text names; all of them without a text."""
    chosen = [space for space in folder.namespaces if text is None or space.matches(text)]
    if text is not None and not chosen:
        known = "; ".join(f"{space.fingerprint.hex()[:12]} ({space.text})" for space in folder.namespaces)
        raise ConfigError(f"--namespace {text!r} names none of the folder's namespaces: {known or 'there are none'}")
    return chosen


@contextmanager
def _progress(total_nbytes: int, what: str) -> Iterator[Callable[[int], None]]:
    """One bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total_nbytes)
        yield lambda nbytes: progress.advance(task, nbytes)


def _write_json(report: Mapping[str, object], path: str | None) -> bool:
    """Write one JSON object if requested; returns whether it went to stdout."""
    if path is None:
        return False
    text = json.dumps(report, indent=1)
    if path == "-":
        click.echo(text)
        return True
    try:
        Path(path).write_text(text + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(f"--json is {path}: {error.strerror}; give a path that can be written") from error
    return False


def _as_values(findings: Sequence[Finding]) -> list[dict[str, object]]:
    return [
        {
            "path": finding.path,
            "fault": finding.fault.value,
            "page": finding.page if finding.page >= 0 else None,
            "hash": finding.block_hash or None,
            "detail": finding.detail,
        }
        for finding in findings
    ]


def _say_skipped(skipped: Sequence[str]) -> None:
    for line in skipped:
        click.echo(f"skipped {line}", err=True)
