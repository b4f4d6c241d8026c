"""The canonical byte form: equal values have equal bytes, and only they."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierstore.encoding import encode_canonical

scalars = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


def typed(value: object) -> object:
    """A value whose equality tells True from 1."""
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return type(value), value


@given(values, values)
def test_encodings_are_equal_just_where_the_values_are(left: object, right: object) -> None:
    assert (encode_canonical(left) == encode_canonical(right)) == (typed(left) == typed(right))


@pytest.mark.parametrize(
    ("left", "right"),
    [(1, "1"), (1, True), (0, None), (None, ""), ("a", b"a"), (["a", "b"], ["ab"]), ([["a"], "b"], ["a", ["b"]])],
)
def test_values_that_look_alike_have_different_bytes(left: object, right: object) -> None:
    assert encode_canonical(left) != encode_canonical(right)


def test_the_order_in_which_a_mapping_was_filled_does_not_show() -> None:
    assert encode_canonical({"a": 1, "b": 2}) == encode_canonical({"b": 2, "a": 1})


@pytest.mark.parametrize("value", [1.0, {1, 2}, object(), [1.5], {"a": 0.5}])
def test_a_type_without_one_form_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="has no canonical encoding"):
        encode_canonical(value)


def test_the_form_never_changes() -> None:
    assert encode_canonical({"b": [1, None, True], "a": b"\x00"}) == (
        b"m\x33\0\0\0\0\0\0\0"
        b"s\x01\0\0\0\0\0\0\0a"
        b"b\x01\0\0\0\0\0\0\0\0"
        b"s\x01\0\0\0\0\0\0\0b"
        b"l\x0c\0\0\0\0\0\0\0"
        b"i\x01\0\0\0\0\0\0\x001nt"
    )
