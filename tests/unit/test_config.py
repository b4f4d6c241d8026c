"""Settings: four ways in, one check, one message; every value knows where it came from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierstore.config import CONFIG_VARIABLE, SETTINGS, StoreConfig
from tierstore.errors import ConfigError
from tierstore.settings import Setting, format_size, parse_size

ROOT = Path(__file__).parents[2]
SETTING = {setting.key: setting for setting in SETTINGS}


def load_each_way(setting: Setting, value: object, folder: Path) -> dict[str, StoreConfig | str]:
    """The configuration, or the message of its refusal without its source, by way in."""
    path = folder / "tierstore.toml"
    path.write_text(f"{setting.key} = {json.dumps(value)}\n", "utf-8")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    ways: dict[str, tuple[Path | None, Mapping[str, str], Mapping[str, object]]] = {
        "file": (path, {}, {}),
        "environment": (None, {setting.variable: text}, {}),
        "flag": (None, {}, {setting.argument: text}),
        "python": (None, {}, {setting.key: value}),
    }
    ended: dict[str, StoreConfig | str] = {}
    for way, (file, env, overrides) in ways.items():
        try:
            ended[way] = StoreConfig.load(file, env=env, overrides=overrides)
        except ConfigError as error:
            ended[way], _, source = str(error).partition(" (set by ")
            assert source, f"{way} does not say where the value came from"
    return ended


VALID = [
    ("host.size", "64 GiB"),
    ("host.size", 1 << 30),
    ("host.slab_size", "auto"),
    ("host.populate", True),
    ("ssd.dir", "kv cache/folder"),
    ("ssd.size", 0),
    ("ssd.read_threads", 8),
    ("ssd.stall_seconds", 0),
    ("ssd.read_only", True),
    ("codec.name", "lz4"),
    ("prefetch.inflight", "0"),
    ("prefetch.cold_seconds", 0.5),
    ("device.name", "cuda"),
    ("service.lease_seconds", 1),
    ("service.drain_seconds", 0),
]

INVALID = [
    ("host.size", 0),
    ("host.size", "100G"),
    ("host.size", "100 gb"),
    ("host.size", "10XB"),
    ("host.size", "1 iB"),
    ("host.size", ""),
    ("host.size", "1e3"),
    ("host.size", -1),
    ("host.size", "9999999TB"),
    ("host.slab_size", "automatic"),
    ("host.populate", "yes"),
    ("ssd.dir", ""),
    ("ssd.size", "1 KiB"),
    ("ssd.free_floor", 0),
    ("ssd.read_threads", 0),
    ("ssd.read_threads", "64GB"),
    ("ssd.read_threads", 1.5),
    ("codec.name", "../evil"),
    ("prefetch.cold_seconds", "30s"),
    ("prefetch.cold_seconds", "inf"),
    ("prefetch.cold_seconds", "nan"),
    ("prefetch.cold_seconds", -1),
    ("prefetch.share", 1.5),
    ("ssd.stall_seconds", "0.01"),
    ("service.lease_seconds", 0),
    ("service.lease_seconds", 0.5),
]


@pytest.mark.parametrize(("key", "value"), VALID)
def test_a_valid_value_means_the_same_on_all_four_ways_in(key: str, value: object, tmp_path: Path) -> None:
    ended = load_each_way(SETTING[key], value, tmp_path)
    assert set(ended.values()) == {StoreConfig.load(env={}, overrides={key: value})}


@pytest.mark.parametrize(("key", "value"), INVALID)
def test_an_invalid_value_is_refused_in_the_same_words_on_all_four_ways_in(
    key: str, value: object, tmp_path: Path
) -> None:
    ended = load_each_way(SETTING[key], value, tmp_path)
    assert set(ended.values()) == {f'{key} is "{value}"; give {SETTING[key].kind.accepts}'}


def test_arguments_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tierstore.toml"
    path.write_text('host.size = "2 GiB"\nssd.size = "2 GiB"\nssd.file_size = "2 GiB"\n', "utf-8")
    env = {"TIERSTORE_SSD_SIZE": "3 GiB", "TIERSTORE_SSD_FILE_SIZE": "3 GiB"}
    config = StoreConfig.load(path, env=env, overrides={"ssd_file_size": "4 GiB"})
    rows = {key: (value, source) for key, value, source in config.describe()}
    assert rows["ssd.free_floor"] == ("1 GiB", "default")
    assert rows["host.size"] == ("2 GiB", f"file {path}")
    assert rows["ssd.size"] == ("3 GiB", "variable TIERSTORE_SSD_SIZE")
    assert rows["ssd.file_size"] == ("4 GiB", "argument ssd_file_size")


def test_a_variable_names_the_file_where_no_path_is_given(tmp_path: Path) -> None:
    path = tmp_path / "any.toml"
    path.write_text("[host]\npopulate = true\n", "utf-8")
    assert StoreConfig.load(env={CONFIG_VARIABLE: str(path)}).host.populate


def test_none_as_an_argument_counts_as_not_given() -> None:
    config = StoreConfig.load(env={"TIERSTORE_HOST_SIZE": "2 GiB"}, overrides={"host_size": None})
    assert config.host.size == 2 << 30


def test_the_ssd_tier_is_off_without_a_folder_or_with_size_zero() -> None:
    on = {"ssd.dir": "kv"}
    assert StoreConfig.load(env={}, overrides=on).ssd.enabled
    assert not StoreConfig.load(env={}).ssd.enabled
    assert not StoreConfig.load(env={}, overrides={**on, "ssd.size": 0}).ssd.enabled


@pytest.mark.parametrize(
    ("env", "overrides", "message"),
    [
        ({}, {"host.sise": 1}, "host.sise is not a setting; did you mean host.size?"),
        ({}, {"host_slabsize": 1}, "host_slabsize is not a setting; did you mean host_slab_size?"),
        ({"TIERSTORE_HOST_SISE": "1"}, {}, "TIERSTORE_HOST_SISE is not a setting; did you mean TIERSTORE_HOST_SIZE?"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(
    env: dict[str, str], overrides: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        StoreConfig.load(env=env, overrides=overrides)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[host]\nsise = 1\n", "host.sise is not a setting; did you mean host.size?"),
        ("host = 1\n", "host is not a setting; did you mean host.size?"),
        ("[host.size]\nmost = 1\n", "host.size is \"{'most': 1}\"; give a size"),
        ("host.size = \n", "is not TOML"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tierstore.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        StoreConfig.load(path, env={})
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml cannot be read: No such file"):
        StoreConfig.load(tmp_path / "absent.toml", env={})


def test_every_default_is_what_its_own_text_reads_as() -> None:
    for setting in SETTINGS:
        assert setting.parse(setting.show(setting.default), "test") == setting.default, setting.key


def test_no_two_settings_share_a_name_on_any_way_in() -> None:
    assert len(SETTINGS) == len({setting.argument for setting in SETTINGS})


def test_the_manual_lists_every_setting_with_its_default_and_names() -> None:
    manual = (ROOT / "docs" / "operating.md").read_text("utf-8")
    rows = [line for line in manual.splitlines() if line.startswith("| `") and "TIERSTORE_" in line]
    assert rows == [f"| `{s.key}` | {s.show(s.default)} | {s.help} | `{s.variable}` |" for s in SETTINGS]


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("100GB", 100 * 10**9),
        ("100GiB", 100 * 2**30),
        ("1.5TiB", 3 * 2**39),
        ("500 GB", 500 * 10**9),
        ("4096", 4096),
        ("0", 0),
        (0, 0),
    ],
)
def test_a_size_counts_gb_in_thousands_and_gib_in_1024s(text: object, nbytes: int) -> None:
    assert parse_size(text, key="size") == nbytes


@pytest.mark.parametrize(
    "text", ["100G", "100 gb", "1e3", "-1", "", "10XB", "0.3 B", "１ GB", " 1 GB", True, 1.0, None]
)
def test_a_size_is_never_guessed(text: object) -> None:
    with pytest.raises(ConfigError, match="--host-size is"):
        parse_size(text, key="--host-size")


@given(st.integers(0, 1 << 60))
def test_a_size_written_out_reads_as_the_same_size(nbytes: int) -> None:
    assert parse_size(format_size(nbytes), key="size") == nbytes


NAMES = ["codec.name", "policy.name", "admission.name", "device.name", "device.pool_admission"]


@pytest.mark.parametrize("key", NAMES)
def test_a_name_that_nobody_has_registered_is_refused_whether_or_not_its_tier_is_on(key: str, tmp_path: Path) -> None:
    ended = load_each_way(SETTING[key], "belady", tmp_path)
    (message,) = set(ended.values())
    assert str(message).startswith(f"{key}: 'belady' is not one of the ")


ALONE: list[tuple[dict[str, object], str]] = [
    (
        {"prefetch.policy": "timeout", "prefetch.timeout_seconds": 0, "prefetch.timeout_seconds_per_1k_tokens": 0},
        "prefetch.policy is timeout, and both prefetch.timeout_seconds",
    ),
    (
        {"ssd.size": "1 GiB", "ssd.write_budget": "0.0001 DWPD"},
        "ssd.write_budget is 0.0001 DWPD, which of an ssd.size of 1 GiB is 107374 B a day; give at least 1 MiB",
    ),
    ({"service.tls_key": "key.pem"}, "service.tls_key is given, and service.tls_certificate is not"),
    ({"service.tls_certificate": "a.pem"}, "service.tls_certificate is given, and service.tls_key is not"),
    (
        {"service.tls_client_ca": "ca.pem", "service.insecure": True},
        "service.tls_client_ca is ca.pem, and nobody is asked for a certificate without",
    ),
]


@pytest.mark.parametrize(("given", "message"), ALONE, ids=[message.split()[0] for _, message in ALONE])
def test_settings_that_contradict_each_other_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        StoreConfig.load(env={}, overrides=given)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "given",
    [
        {"ssd.size": 0, "ssd.write_budget": "1 DWPD"},
        {
            "prefetch.policy": "timeout",
            "prefetch.timeout_seconds": 0,
            "prefetch.timeout_seconds_per_1k_tokens": 0,
            "prefetch.inflight": 0,
        },
    ],
    ids=["ssd", "prefetch"],
)
def test_settings_of_what_is_turned_off_contradict_nothing(given: dict[str, object]) -> None:
    StoreConfig.load(env={}, overrides=given)
