"""Checks of contents that wait for the process: their order, their limit, and the ends of the process."""

from __future__ import annotations

import json

import pytest
from twisted.internet.task import Clock

from sampleapp.errors import (
    BrokerStopped,
    SchemaChecksFull,
    SchemaChecksOfCallerFull,
    SchemaChecksUnavailable,
    SchemaMismatch,
    SchemaTooExpensive,
)
from sampleapp.validation.line import Client
from sampleapp.validation.validation import Validation
from tests.support.in_memory import schemas_of
from tests.support.schema_worker import Processes

UNIQUE = {"uniqueItems": True}


class Checks:
    """A validation whose process works when a test says so."""

    def __init__(self, *, limit=1_000_000, schema=UNIQUE):
        self.clock = Clock()
        self.processes = Processes(are_prompt=False)
        self.clock.spawnProcess = self.processes.spawnProcess
        self.validation = Validation(self.clock, limit=limit)
        self.use(schema)
        self.ended = []
        """The results that have come, each with the name of its check."""

    def use(self, schema):
        self.validation.use({"t.json": json.dumps(schema).encode()}, schemas_of({"t": schema}))

    def begin(self, name, *, caller="", host="h", content=b"[1]"):
        checking = self.validation.check("t", content, at="/at", client=Client(caller, host))
        checking.addBoth(lambda result: self.ended.append((name, getattr(result, "value", result))))

    def work(self):
        """Do requests until nothing is left."""
        while (process := self.processes.started[-1]).requests:
            process.work()

    def results(self):
        return {name: type(result) for name, result in self.ended}


def test_the_callers_take_turns():
    checks = Checks()
    for number in range(3):
        checks.begin(f"a{number}", caller="a")
    checks.begin("b0", caller="b")
    checks.begin("c0", host="c")
    checks.begin("d0", host="d")
    checks.work()
    assert [name for name, _ in checks.ended] == ["a0", "a1", "b0", "c0", "d0", "a2"]


def test_the_checks_of_others_wait_for_one_slow_check_of_a_caller_only():
    checks = Checks()
    for number in range(10):
        checks.begin(f"slow{number}", caller="a")
    checks.begin("other", caller="b")
    for _ in range(2):
        checks.processes.started[-1].work()
        checks.clock.advance(1)
    checks.processes.started[-1].work()
    checks.processes.started[-1].work()
    assert checks.results() == {"slow0": SchemaTooExpensive, "slow1": SchemaTooExpensive, "other": type(None)}
    assert [each.has_ended for each in checks.processes.started] == [True, True, False]


def test_the_first_fault_is_the_result_if_to_find_all_takes_too_long():
    checks = Checks()
    checks.begin("a", content=b"[1,1" + b" " * 2000 + b"]")
    process = checks.processes.started[0]
    process.work()
    process.work_until_first_reply()
    assert checks.ended == []
    checks.clock.advance(1)
    ((_, error),) = checks.ended
    assert isinstance(error, SchemaMismatch)
    assert [each.pointer for each in error.faults] == ["/at"]


def test_what_waits_is_limited_in_bytes_and_one_caller_may_have_half():
    checks = Checks(limit=9_000)
    content = b"[%b]" % (b" " * 2000)
    checks.begin("first", caller="a", content=content)
    checks.begin("second", caller="a", content=content)
    checks.begin("others", caller="b", content=content)
    checks.begin("all", caller="c", content=content)
    assert checks.results() == {"second": SchemaChecksOfCallerFull, "all": SchemaChecksFull}
    checks.work()
    checks.begin("again", caller="a", content=b"[%b]" % (b" " * 20_000))
    checks.work()
    assert [name for name, result in checks.ended if result is None] == ["first", "others", "again"]


def test_a_check_is_repeated_once_after_the_process_has_ended():
    checks = Checks()
    checks.begin("a")
    checks.begin("b")
    for _ in range(2):
        checks.processes.started[-1].work()
        checks.processes.started[-1].end(9)
        checks.clock.advance(1)
    checks.work()
    assert checks.results() == {"a": SchemaTooExpensive, "b": type(None)}


def test_a_process_that_cannot_be_started_is_told_and_tried_again_after_a_while():
    checks = Checks(limit=1100)
    checks.begin("a")
    for _ in range(2):
        checks.processes.started[-1].end(1)
        checks.clock.advance(0.2)
    checks.processes.started[-1].end(1)
    checks.begin("b")
    assert checks.results() == {"a": SchemaChecksUnavailable, "b": SchemaChecksUnavailable}
    checks.clock.advance(0.5)
    checks.work()
    checks.begin("c")
    checks.work()
    assert checks.ended[-1] == ("c", None)


def test_a_system_without_room_for_a_process_is_told():
    checks = Checks()

    def refuse(*_arguments, **_settings):
        raise OSError(11, "Resource temporarily unavailable")

    checks.clock.spawnProcess = refuse
    checks.begin("a")
    checks.clock.pump([0.1, 0.2])
    assert checks.results() == {"a": SchemaChecksUnavailable}


def test_an_idle_process_that_has_ended_is_replaced_before_the_next_check():
    checks = Checks()
    checks.validation.start()
    checks.work()
    checks.processes.started[0].end(9)
    checks.clock.advance(0.1)
    assert len(checks.processes.started) == 2
    checks.begin("a")
    checks.work()
    assert checks.ended == [("a", None)]


def test_a_request_is_checked_by_the_schemas_with_which_it_began():
    checks = Checks()
    checks.begin("old", content=b"[1,1]")
    checks.use({"contains": {"const": 1}, "uniqueItems": False})
    checks.begin("new", content=b"[1,1]")
    checks.work()
    assert checks.results() == {"old": SchemaMismatch, "new": type(None)}


def test_stopping_fails_what_waits_and_ends_the_process():
    checks = Checks()
    checks.begin("running")
    checks.begin("waiting")
    stopped = []
    checks.validation.stop().addCallback(stopped.append)
    assert stopped == [None]
    checks.begin("late")
    assert checks.results() == dict.fromkeys(("running", "waiting", "late"), BrokerStopped)
    assert [each.has_ended for each in checks.processes.started] == [True]
    assert not checks.clock.getDelayedCalls()


@pytest.mark.parametrize("content", [b"[1]", None])
def test_nothing_is_started_for_contents_that_are_checked_at_once(content):
    checks = Checks(schema={"items": {"type": "integer"}})
    assert checks.validation.check("t", content, at="", client=Client("", "")) is None
    assert checks.validation.check("other", b"x", at="", client=Client("", "")) is None
    assert checks.processes.started == []
