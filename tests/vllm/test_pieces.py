"""The parts of the connector that need no engine: options, versions, patience, digests of weights."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import re
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from tests.payload import TIMEOUT_SECONDS
from tests.processes import ROOT
from tierstore.connectors.vllm.adapters import Adapters
from tierstore.connectors.vllm.options import Options
from tierstore.connectors.vllm.patience import Patience, Stopwatch
from tierstore.connectors.vllm.versions import check_version
from tierstore.connectors.vllm.weights import digest_folder
from tierstore.errors import ConfigError
from tierstore.testing.clock import SimClock


def test_options_of_the_connector_and_settings_of_the_store_are_told_apart() -> None:
    options = Options.read({"host_size": "2 GiB", "load": "layerwise", "lookup_seconds": 0.2, "prompt_only": True})
    assert (options.load, options.lookup_seconds, options.prompt_only) == ("layerwise", 0.2, True)
    assert options.store_config(dp_rank=0, dp_size=1, device="cpu").host.size == 2 << 30


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"host_sise": 1}, "did you mean host_size"),
        ({"lod": "async"}, "did you mean load"),
        ({"load": "sometimes"}, "one of async, layerwise"),
        ({"blocks_per_store_block": 0}, "from 1 to 1024"),
        ({"revision": ""}, "text"),
        ({"mode": "service"}, "needs an endpoint"),
        ({"endpoint": "unix:/run/t"}, 'set mode to "service"'),
        ({"mode": "service", "endpoint": "unix:/run/t", "host_size": 1}, "belong to the service"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(given: Mapping[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Options.read(given)


def test_settings_of_the_store_are_checked_where_it_is_opened() -> None:
    with pytest.raises(ConfigError, match="host_size"):
        Options.read({"host_size": "much"}).store_config(dp_rank=0, dp_size=1, device="cpu")


def test_data_parallel_engines_need_folders_of_their_own() -> None:
    shared = Options.read({"ssd_dir": "kv"})
    assert shared.store_config(dp_rank=0, dp_size=1, device="cpu").ssd.dir == "kv"
    with pytest.raises(ConfigError, match=r"mode=.service"):
        shared.store_config(dp_rank=1, dp_size=2, device="cpu")
    own = Options.read({"ssd_dir": "kv-{dp_rank}"})
    assert own.store_config(dp_rank=1, dp_size=2, device="cpu").ssd.dir == "kv-1"


@pytest.mark.parametrize("found", ["0.31.2", "0.9.0rc1"])
def test_a_version_that_is_too_old_is_refused(found: str) -> None:
    with pytest.raises(ConfigError, match=r"0\.32"):
        check_version(found)


@pytest.mark.parametrize(
    ("found", "warned"), [("0.32.0", False), ("0.32.1+cpu", False), ("0.40.0", True), ("dev", True)]
)
def test_a_version_that_nobody_tried_is_warned_of(found: str, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    check_version(found)
    assert bool(caplog.records) is warned


def test_few_requests_wait_and_none_for_long() -> None:
    clock = SimClock()
    patience = Patience(2, 1.0, clock)
    assert patience.may_wait("a")
    assert patience.may_wait("b")
    assert not patience.may_wait("c")
    clock.now += 0.9
    assert patience.may_wait("a")
    patience.end("b")
    assert patience.may_wait("c")
    clock.now += 0.2
    assert not patience.may_wait("a")
    assert not patience.may_wait("a"), "who has waited long enough waits no more"
    patience.end("a")
    assert patience.may_wait("a")


def test_only_a_step_with_one_prompt_is_measured() -> None:
    clock = SimClock()
    watch = Stopwatch(1, clock)

    def measured(**tokens: int) -> tuple[int, int, float] | None:
        watch.begin(tokens, lambda _request_id: 64)
        clock.now += 2.0
        return watch.end()

    assert measured(a=500) == (64, 500, 2.0)
    assert watch.end() is None
    assert measured(a=500, b=1) is None
    assert measured(a=1) is None
    many = Stopwatch(2, clock)
    many.begin({"a": 500}, lambda _request_id: 64)
    assert many.end() is None, "of steps that overlap none can be measured from outside"


@pytest.mark.parametrize("page", ["README.md", "docs/vllm.md"])
def test_the_line_to_start_vllm_with_is_one_that_works(page: str) -> None:
    lines = re.findall(r"--kv-transfer-config '(\{.*?\})'", (ROOT / page).read_text("utf-8"), re.DOTALL)
    assert lines
    for given in map(json.loads, lines):
        module = importlib.util.find_spec(given["kv_connector_module_path"])
        assert (given["kv_connector"], module is None) == ("TierStoreConnector", False)
        options = Options.read(given["kv_connector_extra_config"])
        store = options.store_config(dp_rank=0, dp_size=1, device="cpu")
        assert store.ssd.enabled is (options.mode == "embedded")


def test_the_page_tells_every_option() -> None:
    text = (ROOT / "docs" / "vllm.md").read_text("utf-8")
    told = re.findall(r"^\| `(\w+)` \| .* \|$", text.partition("## Options")[2].partition("\n## ")[0], re.MULTILINE)
    assert told == [option.name for option in dataclasses.fields(Options) if option.name != "store"]


def write_weights(path: Path, tensors: Mapping[str, bytes]) -> None:
    """A file in the form of safetensors."""
    offset, header = 0, {}
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(tensors.values()))


def test_weights_are_told_apart_by_any_tensor_that_changed(tmp_path: Path) -> None:
    first, second = bytes(range(256)) * 1000, bytes(256) * 1000
    digests = []
    for name, tensors in {
        "one": {"a": first, "b": second},
        "same": {"a": first, "b": second},
        "head": {"a": b"\1" + first[1:], "b": second},
        "tail": {"a": first, "b": second[:-1] + b"\1"},
        "middle": {"a": first[:128000] + b"\7" + first[128001:], "b": second},
        "name": {"a": first, "c": second},
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        write_weights(folder / "model.safetensors", tensors)
        digests.append(digest_folder(folder))
    assert digests[0] == digests[1]
    assert len(set(digests)) == 5


def test_weights_that_were_read_before_they_changed_name_no_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ends = ({name: threading.Event() for name in ("old", "new")} for _ in range(2))
    weights = iter(begun)

    def read(_folder: Path) -> str:
        name = next(weights)
        begun[name].set()
        assert ends[name].wait(TIMEOUT_SECONDS)
        return name

    monkeypatch.setattr("tierstore.connectors.vllm.adapters.digest_folder", read)
    with closing(Adapters()) as adapters:
        assert adapters.digest("a") is None
        assert begun["old"].wait(TIMEOUT_SECONDS)
        adapters.forget("a")
        ends["old"].set()
        assert begun["new"].wait(TIMEOUT_SECONDS)
        assert adapters.digest("a") is None, "the old ones have been read, and are the adapter's no more"
        ends["new"].set()
    assert adapters.digest("a") == hashlib.sha256(b"new").digest()


def test_a_folder_without_weights_is_refused_and_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set revision"):
        digest_folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ConfigError, match="cannot be read as weights"):
        digest_folder(tmp_path)
