"""The log as lines: one record a line, whatever is in it, and no line twice."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from tierstore.monitor.log_lines import JsonLines, TextLines, write_log
from tierstore.sections import LogConfig

NAME = "tierstore.tested"


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    """The logger is as it was behind each test."""
    logger = logging.getLogger(NAME)
    before = logger.level, logger.propagate
    yield
    logger.handlers.clear()
    logger.setLevel(before[0])
    logger.propagate = before[1]


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("tierstore.disk", logging.WARNING, __file__, 1, message, arguments, None)
    made.created, made.msecs = 1_800_000_000.25, 250.0
    vars(made).update(extra)
    return made


def test_json_is_one_object_a_line() -> None:
    line = JsonLines().format(record('the disk said "%s"', "no\nspace\u2028left", session=7))
    assert "\n" not in line
    assert "\u2028" not in line
    fields = json.loads(line)
    assert fields.pop("thread") == "MainThread"
    assert fields == {
        "time": "2027-01-15T08:00:00.250Z",
        "level": "warning",
        "logger": "tierstore.disk",
        "message": 'the disk said "no\nspace\u2028left"',
        "session": 7,
    }


def test_json_holds_what_was_raised() -> None:
    try:
        raise OSError("gone\nforever")
    except OSError:
        made = record("failed", exc_info=sys.exc_info())
    fields = json.loads(JsonLines().format(made))
    assert fields["error"] == "OSError: gone\nforever"
    assert fields["trace"].startswith("Traceback")


def test_an_extra_takes_no_fields_place_and_needs_no_json_of_its_own() -> None:
    fields = json.loads(JsonLines().format(record("true", level="forged", path=io)))
    assert fields["level"] == "warning"
    assert "module 'io'" in fields["path"]


def test_text_is_one_line_whatever_it_says() -> None:
    assert (
        TextLines().format(record("full\r\n%s", "2027 info forged"))
        == "2027-01-15T08:00:00.250Z warning tierstore.disk: full\\r\\n2027 info forged"
    )


def test_text_shows_a_trace_below_its_line() -> None:
    try:
        raise OSError("gone")
    except OSError:
        made = record("failed", exc_info=sys.exc_info())
    first, *others = TextLines().format(made).splitlines()
    assert first.endswith("tierstore.disk: failed")
    assert all(line.startswith("    ") for line in others)
    assert others[-1].endswith("OSError: gone")


@pytest.mark.parametrize("form", ["text", "json"])
def test_records_of_the_level_and_above_are_written_once(capsys: pytest.CaptureFixture[str], form: str) -> None:
    for _store in range(2):
        write_log(LogConfig(form, "warning"), NAME)
    below = logging.getLogger(f"{NAME}.below")
    below.info("too little")
    below.warning("seen")
    written = capsys.readouterr().err
    assert written.count("\n") == 1
    assert "seen" in written


def test_another_form_takes_the_place_of_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    write_log(LogConfig("text"), NAME)
    write_log(LogConfig("json"), NAME)
    logging.getLogger(NAME).info("seen")
    assert json.loads(capsys.readouterr().err)["message"] == "seen"


def test_the_log_is_the_programs_own_where_nothing_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    write_log(LogConfig(), NAME)
    logger = logging.getLogger(NAME)
    assert (logger.handlers, logger.propagate, capsys.readouterr().err) == ([], True, "")
