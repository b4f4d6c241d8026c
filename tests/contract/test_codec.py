"""Every registered codec keeps the contract of its seam."""

from __future__ import annotations

from typing import cast

import pytest

from tierstore.codec.base import Codec
from tierstore.registry import load, names
from tierstore.testing.contracts.codec import CodecContract


@pytest.fixture(scope="module", params=names("codecs"))
def codec(request: pytest.FixtureRequest) -> Codec:
    return cast(Codec, load("codecs", request.param)())


class TestRegisteredCodecs(CodecContract): ...


def test_the_built_in_codecs_are_registered() -> None:
    assert {"lz4", "raw"} <= set(names("codecs"))


def test_no_two_codecs_share_a_number() -> None:
    numbers = [cast(Codec, load("codecs", name)()).codec_id for name in names("codecs")]
    assert len(set(numbers)) == len(numbers)
