"""Each event of the log is one line of JSON, whatever is in it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import Logger, LogLevel, LogPublisher
from twisted.python.failure import Failure
from twisted.python.log import LogPublisher as LegacyPublisher

from sampleapp.logs import json_line


def logged(write):
    """The lines for events of a logger."""
    events = []
    write(Logger(namespace="sampleapp.test", observer=LogPublisher(events.append)))
    return [read(json_line(event)) for event in events]


def logged_as_legacy(write):
    """The lines for events of twisted.python.log."""
    events = []
    new = LogPublisher(events.append)
    write(LegacyPublisher(observerPublisher=new, publishPublisher=new))
    return [read(json_line(event)) for event in events]


def read(line):
    """The members of a line, for a strict reader."""
    assert line.isascii()
    assert line.endswith("}\n")
    assert line.count("\n") == 1
    names = [name for name, _ in json.loads(line, object_pairs_hook=list)]
    assert len(names) == len(set(names))
    assert names[:5] == ["time", "level", "logger", "event", "message"]
    return msgspec.json.decode(line)


def test_the_text_is_constant_and_the_fields_are_beside_it():
    (event,) = logged(
        lambda log: log.emit(LogLevel.warn, "Waited {seconds} s for {name}", seconds=2.5, name="K\u00e4the")
    )
    when = datetime.strptime(event.pop("time"), "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    assert abs((datetime.now(UTC) - when).total_seconds()) < 60
    assert event == {
        "level": "warn",
        "logger": "sampleapp.test",
        "event": "Waited {seconds} s for {name}",
        "message": "Waited 2.5 s for K\u00e4the",
        "seconds": 2.5,
        "name": "K\u00e4the",
    }


@given(st.text(max_size=3000))
def test_the_message_is_the_text_of_a_log_that_is_no_json_and_bounded(name):
    events = []
    Logger(namespace="sampleapp.test", observer=events.append).info("Hello, {name}: {{}}", name=name)
    event = read(json_line(events[0]))
    text = f"Hello, {name}: {{}}"
    assert event["message"] == (text if len(text) <= 2000 else f"{text[:1999]}\u2026")
    assert event["name"] == name


@pytest.mark.parametrize("level", list(LogLevel.iterconstants()), ids=lambda level: level.name)
def test_each_level_has_its_name(level):
    (event,) = logged(lambda log: log.emit(level, "It happened."))
    assert event["level"] == level.name


def test_a_traceback_is_one_field():
    def fail(log):
        try:
            int("not this\nnor that")
        except ValueError:
            log.failure("Could not read {name}", name="a file")

    (event,) = logged(fail)
    assert (event["level"], event["event"], event["name"]) == ("critical", "Could not read {name}", "a file")
    assert event["traceback"].startswith("Traceback (most recent call last):\n")
    assert repr("not this\nnor that") in event["traceback"]


def test_parts_of_fields_are_fields_with_the_names_that_they_have_in_the_text():
    class Address:
        host = "127.0.0.1"

    (event,) = logged(
        lambda log: log.info(
            "{address.host} {count()} {parts[0]} {parts.away}",
            address=Address(),
            count=lambda: 3,
            parts=["a"],
        )
    )
    assert (event["address.host"], event["count"], event["parts[0]"]) == ("127.0.0.1", 3, "a")
    assert event["parts.away"] == "<cannot be shown: AttributeError>"


def test_a_field_with_the_name_of_a_part_of_the_line_does_not_replace_it():
    fields = {"time": 1, "logger": 3, "event": 4, "message": 5, "traceback": 6}
    (event,) = logged(lambda log: log.info("At {time}", **fields))
    assert (event["level"], event["message"]) == ("info", "At 1")
    assert {name: event[f"{name}_"] for name in fields} == fields
    assert "traceback" not in event


def test_what_was_written_in_the_old_way_is_told_as_well():
    (event,) = logged_as_legacy(lambda log: log.msg("It is {done}", "now", extra=1))
    assert (event["level"], event["event"], event["extra"]) == ("info", "It is {done} now", 1)
    (failed,) = logged_as_legacy(lambda log: log.msg(failure=Failure(OSError("gone")), why="Why", isError=1))
    assert (failed["level"], failed["event"]) == ("critical", "Why")
    assert "gone" in failed["traceback"]


def test_what_twisted_has_rendered_is_the_text():
    (event,) = logged(lambda log: log.info("{log_io}", log_io="printed {so}"))
    assert event["event"] == "printed {so}"


class Unshowable:
    def __str__(self):
        raise LookupError

    __repr__ = __str__


class Circular(list):
    def __init__(self):
        super().__init__()
        self.append(self)


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.binary(),
    st.text(),
    st.text(st.characters(categories=["Cs"]), min_size=1),
    st.builds(Unshowable),
    st.builds(Circular),
    st.builds(object),
    st.builds(Failure, st.builds(ValueError, st.text())),
    st.sampled_from([LogLevel.warn, datetime.max.replace(tzinfo=UTC), float("nan"), int, b"\xff", 10**400]),
)
VALUES = st.recursive(
    ODD,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(ODD.filter(lambda odd: not isinstance(odd, Circular)), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(
    [
        *("log_format", "log_level", "log_time", "log_namespace", "log_failure", "log_system", "log_legacy"),
        *("isError", "failure", "why", "message", "time", "system", "level", "event", "value", "other"),
    ]
)
FORMATS = st.text() | st.sampled_from(["{value}", "{value.other}", "{", "{0}", "{value!r:>{other}}", "{{}}"])


@given(
    st.dictionaries(NAMES | st.text(), VALUES, max_size=6),
    st.none() | FORMATS,
)
def test_every_event_is_one_line_and_none_is_lost(event, log_format):
    if log_format is not None:
        event["log_format"] = log_format
    line = read(json_line(event))
    assert re.fullmatch(r"[0-9]{4,}-[01][0-9]-[0-3][0-9]T[0-9:]{8}\.[0-9]{6}Z", line["time"])
    assert all(isinstance(line[name], str) for name in ("level", "logger", "event"))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_what_json_has_stays_as_it_is(value):
    event = read(json_line({"log_format": "{value}", "log_level": LogLevel.info, "value": value}))
    assert event["value"] == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"caf\xc3\xa9 \xff", "caf\u00e9 \\xff"),
        (float("nan"), "nan"),
        ("half \ud800", "half \\ud800"),
        (["half \ud800"], "['half \\ud800']"),
        (LogLevel.warn, "<LogLevel=warn>"),
        (Unshowable(), "<Unshowable that cannot be shown: LookupError>"),
    ],
)
def test_what_json_does_not_have_is_its_text(value, text):
    event = read(json_line({"log_format": "{value}", "value": value}))
    assert event["value"] == text
