"""The options of `tierstore serve`: what each value comes to, and what is said of one that makes no sense."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "0.0.0.0:0"], "service.tls_certificate"),
        (["--listen", "nowhere"], "service.listen"),
        (["--listen", "127.0.0.1:65536", "--insecure"], "service.listen"),
        (["--listen", "unix:/does/not/exist/socket"], "/does/not/exist"),
        (["--listen", f"unix:/tmp/{'long' * 26}"], "at most 107 bytes"),
        (["--service-lease-seconds", "soon"], "service.lease_seconds"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(arguments: list[str], words: str) -> None:
    command = [sys.executable, "-m", "tierstore", "serve", "--host-size=1 MiB", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (ran.returncode, ran.stdout) == (2, "")
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("tierstore: ")
    assert words in last


def test_an_option_without_its_value_is_refused() -> None:
    command = [sys.executable, "-m", "tierstore", "serve", "--ssd-size"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (ran.returncode, "'--ssd-size' requires an argument" in ran.stderr) == (2, True)


def test_every_value_is_printed_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "tierstore.toml"
    file.write_text('[ssd]\nread_threads = 7\n[service]\nlisten = "unix:/run/a.sock"\n', "utf-8")
    command = [sys.executable, "-m", "tierstore", "serve", f"--config={file}", "--print-config"]
    ran = subprocess.run(
        [*command, "--host-shared", "--ssd.read_threads=9", "--insecure"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    lines = {line.split()[0]: line.split()[1:] for line in ran.stdout.splitlines()}
    assert lines["host.shared"] == ["true", "argument", "host_shared"]
    assert lines["ssd.read_threads"][:2] == ["9", "argument"]
    assert lines["service.listen"][:2] == ["unix:/run/a.sock", "file"]
    assert lines["service.insecure"][:2] == ["true", "argument"]
    assert lines["service.lease_seconds"] == ["30", "default"]


@pytest.mark.parametrize(("said", "shared"), [("auto", "true"), ("true", "true"), ("false", "false")])
def test_a_services_pool_is_shared_unless_that_is_false(said: str, shared: str, tmp_path: Path) -> None:
    file = tmp_path / "tierstore.toml"
    file.write_text(f'[host]\nshared = "{said}"\n', "utf-8")
    command = [sys.executable, "-m", "tierstore", "serve", f"--config={file}", "--print-config"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    (line,) = (line.split() for line in ran.stdout.splitlines() if line.startswith("host.shared "))
    assert line[:3] == ["host.shared", shared, "file"]


@pytest.mark.parametrize("asked", ["serve", "bench --serve", "config", "serve --print-config"])
def test_only_what_serves_needs_grpc_and_says_so(asked: str) -> None:
    without = "import sys; sys.modules['grpc'] = None; from tierstore.cli.main import main; main()"
    ran = subprocess.run([sys.executable, "-c", without, *asked.split()], capture_output=True, text=True, timeout=120)
    if "config" in asked:
        assert (ran.returncode, ran.stderr) == (0, "")
    else:
        assert (ran.returncode, ran.stdout) == (2, "")
        assert "pip install 'tierstore[grpc]'" in ran.stderr


def test_a_client_without_grpc_cannot_be_imported_and_says_so() -> None:
    without = (
        "import sys; sys.modules['grpc'] = None\ntry:\n    import tierstore.client\n"
        "except ImportError as error:\n    print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=True, timeout=120)
    assert "tierstore[grpc]" in ran.stdout
