"""Identity: who differs in anything that shaped the bytes shares nothing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierstore.arguments import as_hashes
from tierstore.errors import IdentityError
from tierstore.keys import Namespace, chain_hashes, pack_hashes
from tierstore.layout import KVLayout

LAYOUT = KVLayout.attention(layers=2, kv_heads=8, head_size=128, block_tokens=16)
NAMESPACE = Namespace(model="meta-llama/Llama-3.1-8B", layout=LAYOUT)

VARIANTS = [
    replace(NAMESPACE, model="meta-llama/Llama-3.1-8B-Instruct"),
    replace(NAMESPACE, layout=replace(LAYOUT, dtype="float16")),
    replace(NAMESPACE, revision="r1"),
    replace(NAMESPACE, revision="r2"),
    replace(NAMESPACE, revision=""),
    replace(NAMESPACE, engine_config="r1"),
    replace(NAMESPACE, quantization="fp8"),
    replace(NAMESPACE, tp_size=1),
    replace(NAMESPACE, pp_size=1),
    replace(NAMESPACE, shard=(0, 2)),
    replace(NAMESPACE, shard=(1, 2)),
    replace(NAMESPACE, tenant="a"),
    replace(NAMESPACE, stored_as="fp8_e4m3"),
    replace(NAMESPACE, stored_as="int8"),
]


def test_namespaces_that_differ_in_any_field_have_different_fingerprints() -> None:
    assert len({one.fingerprint for one in (NAMESPACE, *VARIANTS)}) == 1 + len(VARIANTS)


def test_the_fingerprint_of_a_namespace_never_changes() -> None:
    assert NAMESPACE.fingerprint.hex() == "ddf04ad7158c31681a301f172d1379b75c98f92fb74417287b9075254ba81a89"
    lossy = replace(NAMESPACE, stored_as="int8")
    assert lossy.fingerprint.hex() == "1264043fb8845674407e0a4f89055016cd5d0cc0594430713a95992fce078f19"


def test_model_names_of_any_spelling_are_identities() -> None:
    names = ["org/model", "../x", "/abs", "a:b@c d", "модель", "x\0y", "m" * 4096]
    assert len({replace(NAMESPACE, model=name).fingerprint for name in names}) == len(names)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": ""}, "model is empty"),
        ({"shard": (1, 1)}, r"shard is \(1, 1\)"),
        ({"shard": (-1, 2)}, r"shard is \(-1, 2\)"),
        ({"tp_size": 0}, "tp_size is 0"),
        ({"pp_size": -1}, "pp_size is -1"),
        ({"model": b"org/model"}, "model is b'org/model'; pass text"),
        ({"model": "half a pair \ud800"}, "model is .*; pass text that UTF-8 can hold"),
        ({"tenant": 5}, "tenant is 5; pass text"),
        ({"layout": "NHD"}, "layout is of type str; pass a KVLayout"),
        ({"tp_size": True}, "tp_size is True.*of type int"),
        ({"pp_size": 2.0}, "pp_size 2.0.*of type int"),
        ({"shard": (0, 2.0)}, r"shard \(0, 2.0\).*of type int"),
    ],
)
def test_a_namespace_that_makes_no_sense_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(IdentityError, match=message):
        replace(NAMESPACE, **change)  # type: ignore[arg-type]


def test_only_full_blocks_have_hashes() -> None:
    assert [len(chain_hashes(range(length), 16)) for length in (0, 15, 16, 31, 32)] == [0, 0, 1, 1, 2]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=64), st.lists(st.integers(0, 2**32 - 1), max_size=64))
def test_hashes_are_equal_just_as_far_as_the_prefixes_are(left: list[int], right: list[int]) -> None:
    hashes = zip(chain_hashes(left, 4), chain_hashes(right, 4), strict=False)
    for index, (mine, other) in enumerate(hashes, 1):
        assert (mine == other) == (left[: index * 4] == right[: index * 4])


@pytest.mark.parametrize("extra", [b"salt", {0: b"salt"}, {0: b"salt", 1: b""}])
def test_a_salt_changes_every_hash_of_the_chain(extra: bytes | dict[int, bytes]) -> None:
    plain, salted = chain_hashes(range(32), 16), chain_hashes(range(32), 16, extra)
    assert not set(plain) & set(salted)


def test_media_of_one_block_leaves_the_blocks_before_it_shared() -> None:
    plain, picture = chain_hashes([0] * 48, 16), chain_hashes([0] * 48, 16, {1: b"picture"})
    assert [mine == other for mine, other in zip(plain, picture, strict=True)] == [True, False, False]


def test_extra_bytes_never_pass_for_tokens() -> None:
    assert chain_hashes([1, 2], 2) != chain_hashes([1], 1, (2).to_bytes(4, "little"))


def test_many_media_of_equal_tokens_never_share_a_hash() -> None:
    digests = (index.to_bytes(4, "big") for index in range(10_000))
    assert len({chain_hashes([0] * 4, 4, digest)[0] for digest in digests}) == 10_000


@pytest.mark.parametrize("token", [-1, 1 << 32])
def test_a_token_id_out_of_range_is_refused_with_its_block(token: int) -> None:
    with pytest.raises(IdentityError, match="block 1 holds a token id outside"):
        chain_hashes([0, 0, 0, token], 2)


def test_a_token_id_that_is_no_whole_number_does_not_pass_for_one() -> None:
    with pytest.raises(IdentityError, match="block 1 holds a token id that is no whole number"):
        chain_hashes([0, 0, 0, 1.5], 2)  # type: ignore[list-item]


def test_blocks_of_no_tokens_are_refused() -> None:
    with pytest.raises(IdentityError, match="block_tokens is 0"):
        chain_hashes([1, 2], 0)


def test_the_chain_is_what_its_formula_says() -> None:
    first = hashlib.sha256(bytes(32) + b"\1\0\0\0\2\0\0\0" + b"\3\0\0\0\0\0\0\0" + b"abc").digest()
    second = hashlib.sha256(first + b"\3\0\0\0\4\0\0\0" + bytes(8)).digest()
    assert chain_hashes([1, 2, 3, 4], 2, b"abc") == [first, second]


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_hashes_and_fingerprints_are_the_same_in_every_process(seed: str) -> None:
    program = (
        "from tierstore.keys import *; from tierstore.layout import KVLayout;"
        "layout = KVLayout.attention(layers=2, kv_heads=8, head_size=128, block_tokens=16);"
        "print(Namespace(model='m', layout=layout).fingerprint.hex(), chain_hashes(range(16), 16)[0].hex())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == [
        replace(NAMESPACE, model="m").fingerprint.hex(),
        chain_hashes(range(16), 16)[0].hex(),
    ]


def test_packed_hashes_lie_one_after_another() -> None:
    assert pack_hashes([b"a" * 32, b"b" * 32]) == b"a" * 32 + b"b" * 32


@pytest.mark.parametrize(
    ("bad", "message"), [(b"short", "hash 1 has 5 bytes"), ("x" * 32, "hash 1 is a str"), (7, "hash 1 is a int")]
)
def test_a_hash_of_the_wrong_kind_is_refused_with_its_position(bad: bytes, message: str) -> None:
    with pytest.raises(IdentityError, match=message):
        pack_hashes([bytes(32), bad])


def test_hashes_that_begin_alike_are_different_ones() -> None:
    alike = [bytes(8) + bytes([number]) * 24 for number in range(4)]
    assert as_hashes(alike).shape == (4, 32)
    with pytest.raises(IdentityError, match="hash 4 is hash 1 again"):
        as_hashes([*alike, alike[1]])
