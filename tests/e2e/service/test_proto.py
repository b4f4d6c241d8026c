"""The protocol's description: judged by buf, documented, and never apart from the code that is made of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tierstore.service._pb import generate
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.wire import METHODS, encode_data
from tierstore.types import Outcome

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
PROTOBUFS = ["5.29.6", "6.33.5"]
"""Both ends of what an engine may bring along."""


def find_linter() -> str:
    found = shutil.which("buf") or next((str(p) for p in [BIN / "buf"] if p.exists()), "")
    if not found:
        pytest.skip("buf is not installed")
    return found


def test_the_protocol_passes_lint_with_a_comment_on_everything() -> None:
    ran = subprocess.run([find_linter(), "lint", "proto"], cwd=ROOT, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_the_protocol_is_formatted() -> None:
    ran = subprocess.run([find_linter(), "format", "-d", "proto"], cwd=ROOT, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "")


def test_the_generated_code_is_what_the_protocol_makes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tierstore.service._pb.generate", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT)
    for name in generate.MADE:
        committed = (Path(generate.__file__).with_name(name)).read_text("utf-8")
        assert (tmp_path / name).read_text("utf-8") == committed, "run python -m tierstore.service._pb.generate"


@pytest.mark.slow  # installs a package
@pytest.mark.parametrize("version", PROTOBUFS)
def test_client_and_server_run_with_the_protobuf_of(version: str, tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path)]
    if subprocess.run([*install, f"protobuf=={version}"], capture_output=True).returncode:
        pytest.skip(f"protobuf {version} cannot be installed here")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import tierstore.client, tierstore.service.server\n"
        "import google.protobuf; print(google.protobuf.__version__)"
    )
    ran = subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (ran.stderr, ran.stdout.strip()) == ("", version)


def test_importing_the_client_loads_no_torch_and_no_store() -> None:
    program = "import sys, tierstore.client; print(' '.join(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    assert "grpc" in loaded
    heavy = {"torch", "tierstore.store", "tierstore.tiers.ssd", "tierstore.control.planner"}
    assert not loaded & heavy


@pytest.mark.parametrize("nbytes", [0, 1, 127, 128, 16383, 16384, 524288])
def test_data_is_an_ordinary_message_to_a_stranger(nbytes: int) -> None:
    body = bytes(range(256)) * (nbytes // 256 + 1)
    parts = [memoryview(body)[: nbytes // 2], memoryview(body)[nbytes // 2 : nbytes]]
    assert pb.GetResponse.FromString(encode_data(parts, put=False)).data == body[:nbytes]
    assert pb.PutRequest.FromString(encode_data(parts, put=True)).data == body[:nbytes]


def test_data_of_a_stranger_is_taken_however_it_is_encoded() -> None:
    decode = METHODS["Put"].decode_request
    plain = decode(pb.PutRequest(data=b"bytes").SerializeToString())
    assert isinstance(plain, memoryview)
    assert bytes(plain) == b"bytes"
    padded = b"\x12\x85\x80\x00bytes"  # a length in more bytes than it needs
    assert bytes(decode(padded)) == b"bytes"  # type: ignore[arg-type]
    twice = b"\x12\x01a" + b"\x12\x01b"  # of two values the last one counts
    assert bytes(decode(twice)) == b"b"  # type: ignore[arg-type]


def test_outcomes_on_the_wire_are_the_stores_one_further() -> None:
    for outcome in Outcome:
        assert pb.Outcome.Name(outcome + 1) == f"OUTCOME_{outcome.name}"


def test_every_call_has_a_request_and_a_response_of_its_own_name() -> None:
    for name, method in METHODS.items():
        assert method.path == f"/tierstore.v1.StoreService/{name}"
        assert hasattr(pb, f"{name}Request")
        assert hasattr(pb, f"{name}Response")
