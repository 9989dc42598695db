"""What is read again: when somebody asks for it, and when its files have changed."""

from __future__ import annotations

from functools import partial

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.internet.threads import deferToThreadPool
from twisted.logger import LogLevel

from sampleapp.errors import StartUpError
from sampleapp.service.reloads import Reloads
from tests.support.logs import logged, logged_lines
from tests.support.threads import ReactorWithThreads


class Source:
    """Something that can be read again, and counts how often it was."""

    def __init__(self):
        self.count = 0
        self.problem = None

    def reload(self):
        self.count += 1
        if self.problem is not None:
            raise self.problem


class SlowSource:
    """Something that is read until the test says so."""

    def __init__(self):
        self.readings = []

    def reload(self):
        self.readings.append(Deferred())
        return self.readings[-1]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def reloads(clock):
    reloads = Reloads(clock, run=maybeDeferred)
    reloads.start()
    yield reloads
    reloads.stop()
    assert clock.getDelayedCalls() == []


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_text("1")
    return path


def replace(path):
    other = path.with_name("other")
    other.write_text("2")
    other.rename(path)


def replace_linked_directory(path):
    """As Kubernetes replaces a projected secret: all names stay, and a link among them turns."""
    link = path.parent / "link"
    link.unlink()
    link.symlink_to("new")


def test_it_is_read_again_when_somebody_asks_for_it(reloads):
    source, other = Source(), Source()
    reloads.add("the source", source.reload)
    reloads.add("the other source", other.reload)
    with logged_lines() as lines, logged(LogLevel.info) as events:
        assert reloads.reload().result
    assert (source.count, other.count) == (1, 1)
    assert lines == ["Reloaded the source.", "Reloaded the other source."]
    assert {event["log_namespace"] for event in events} == {"sampleapp.service.reloads.Reloads"}


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_text("longer"),
        replace,
        lambda path: path.unlink(),
        # It may be one that can be read only now.
        lambda path: path.chmod(0o640),
        # Its directory may have been one that every user could write to.
        lambda path: path.parent.chmod(0o750),
    ],
)
def test_it_is_read_again_within_two_seconds_when_a_file_has_changed(reloads, clock, path, change):
    source, other = Source(), Source()
    reloads.add("the source", source.reload, [str(path)])
    reloads.add("the other source", other.reload, [str(path.with_name("missing"))])
    clock.pump([1, 1, 1])
    assert source.count == 0
    change(path)
    clock.pump([1, 1, 1, 1])
    assert (source.count, other.count) == (1, 0)


def test_a_link_that_turns_is_a_change(reloads, clock, tmp_path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("of the same length")
    (tmp_path / "link").symlink_to("old")
    (tmp_path / "file").symlink_to("link/file")
    source = Source()
    reloads.add("the source", source.reload, [str(tmp_path / "file")])
    replace_linked_directory(tmp_path / "file")
    clock.advance(1)
    assert source.count == 1


def test_which_files_there_are_may_change(reloads, clock, tmp_path):
    files = [tmp_path / "a"]
    source = Source()
    reloads.add("the source", source.reload, lambda: map(str, files))
    clock.advance(1)
    assert source.count == 0
    files.append(tmp_path / "b")
    clock.advance(1)
    (tmp_path / "b").write_text("1")
    clock.advance(1)
    assert source.count == 2


def test_what_cannot_be_used_is_said_once_and_the_others_are_read_all_the_same(reloads, clock, path):
    wrong, right = Source(), Source()
    wrong.problem = StartUpError("a mistake in line 3.")
    reloads.add("the wrong source", wrong.reload, [str(path)])
    reloads.add("the right source", right.reload, [str(path)])
    replace(path)
    with logged_lines() as lines:
        clock.pump([1, 1, 1])
    assert (wrong.count, right.count) == (1, 1)
    assert lines == [
        "Could not reload the wrong source; the previous version stays in use: a mistake in line 3.",
        "Reloaded the right source.",
    ]
    assert not reloads.reload().result


def test_a_fault_in_one_of_them_is_logged_and_nothing_else_suffers(reloads, clock, no_failure_is_lost):
    wrong, right = Source(), Source()
    wrong.problem = ZeroDivisionError()
    reloads.add("the wrong source", wrong.reload)
    reloads.add("the right source", right.reload)
    with logged(LogLevel.critical) as events:
        assert not reloads.reload().result
    assert len(events) == 1
    assert no_failure_is_lost.pop().check(ZeroDivisionError)
    assert right.count == 1


def test_what_was_asked_for_is_not_read_once_more_for_the_change_that_was_its_reason(reloads, clock, path):
    source = Source()
    reloads.add("the source", source.reload, [str(path)])
    replace(path)
    reloads.reload()
    clock.pump([1, 1])
    assert source.count == 1


def test_a_file_that_is_written_to_is_said_to_be_opened(reloads):
    source = Source()
    reloads.add("the log", source.reload, is_written=True)
    with logged_lines() as lines:
        assert reloads.reload().result
        source.problem = StartUpError("gone.")
        assert not reloads.reload().result
    assert lines == [
        "Reopened the log.",
        "Could not reopen the log; the previous file stays in use: gone.",
    ]


def test_who_asks_while_it_is_read_gets_one_more_reading_for_all_after_that(reloads, clock, path):
    slow, quick = SlowSource(), Source()
    reloads.add("the slow source", slow.reload, [str(path)])
    reloads.add("the quick source", quick.reload)
    outcomes = []
    with logged_lines() as lines:
        for number in range(3):
            reloads.reload().addCallback(lambda result, number=number: outcomes.append((number, result)))
        replace(path)
        clock.advance(1)
        # What does not take long is not kept waiting.
        assert quick.count == 3
        assert (len(slow.readings), outcomes) == (1, [])
        slow.readings[0].errback(StartUpError("a mistake in line 3."))
        assert (len(slow.readings), outcomes) == (2, [(0, False)])
        slow.readings[1].callback(None)
        assert (len(slow.readings), sorted(outcomes)) == (2, [(0, False), (1, True), (2, True)])
    assert lines == [
        *["Reloaded the quick source."] * 3,
        "Could not reload the slow source; the previous version stays in use: a mistake in line 3.",
        "Reloaded the slow source.",
    ]


def test_what_is_being_read_at_the_end_ends_in_silence(clock, no_failure_is_lost):
    reloads, slow = Reloads(clock, run=maybeDeferred), SlowSource()
    reloads.add("the slow source", slow.reload)
    reloads.start()
    outcomes = []
    with logged_lines() as lines:
        for _ in range(2):
            reloads.reload().addCallback(outcomes.append)
        reloads.stop()
    assert outcomes == [False, False]
    assert (len(slow.readings), lines, no_failure_is_lost) == (1, [], [])


def test_a_fault_in_looking_at_one_of_them_keeps_no_other_from_being_looked_at(
    reloads, clock, path, no_failure_is_lost
):
    source = Source()
    paths = ["/wrong"]
    reloads.add("the wrong source", Source().reload, lambda: paths)
    reloads.add("the right source", source.reload, [str(path)])
    reloads.start()
    paths[:] = ["\0"]
    path.write_text("changed")
    clock.advance(1)
    assert source.count == 1
    assert [failure.type for failure in no_failure_is_lost] == [ValueError]
    no_failure_is_lost.clear()
    reloads.stop()


def test_files_are_checked_in_a_thread_one_check_at_a_time_and_none_at_the_end(path, no_failure_is_lost):
    reactor, source = ReactorWithThreads(), Source()
    threads = reactor.threads
    reloads = Reloads(reactor, run=partial(deferToThreadPool, reactor, threads))
    reloads.add("the log", Source().reload, is_written=True)
    reloads.start()
    reactor.advance(1)
    assert threads.waiting == []
    reloads.add("the source", source.reload, [str(path)])
    replace(path)
    reactor.pump([1, 1, 1])
    assert (source.count, len(threads.waiting)) == (0, 1)
    # The check, and the reload after it.
    threads.do_one()
    threads.do_one()
    assert (source.count, threads.waiting) == (1, [])
    path.write_text("changed")
    reactor.advance(1)
    reloads.stop()
    threads.do_one()
    assert (source.count, threads.waiting, reactor.getDelayedCalls(), no_failure_is_lost) == (1, [], [], [])
