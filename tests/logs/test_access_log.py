"""When lines for requests are written, and what happens when they cannot be."""

from __future__ import annotations

import json
import os
from collections import Counter

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from sampleapp.errors import StartUpError
from sampleapp.logs import AccessLog, AccessLogFormat, require_writable
from sampleapp.web import Exchange, Response
from sampleapp.web.server import Peer
from tests.support.waiting import wait_until

FULL = "/dev/full"
RESPONSE = Response(200)


class Log:
    """An access log with a clock that the test moves."""

    def __init__(self, path):
        self.path = path
        self.clock = Clock()
        self.lost_lines = Counter()
        self.log = AccessLog(
            path=str(path),
            line_format=AccessLogFormat.JSON,
            clock=self.clock,
            lost_lines=self.lost_lines,
        )
        self.log.open()
        self.responded = 0

    def answer(self, times=1):
        for _ in range(times):
            self.responded += 1
            self.log.responded(Exchange(Peer(None), b"%06d" % self.responded, 0.0), RESPONSE)

    def written(self, path=None):
        """The numbers of the answers in the file, each from a whole line."""
        text = (path or self.path).read_text()
        assert text == "" or text.endswith("\n")
        return [int(json.loads(line)["request_id"]) for line in text.splitlines()]

    def wait_for(self, *numbers, path=None):
        """Wait until the thread that writes has written exactly these answers."""

        def written():
            # A line of which a part is there is for the next look.
            return (path or self.path).read_text().endswith("\n") and self.written(path) == list(numbers)

        wait_until(written, f"{numbers} in the file", deadline_s=10)


@pytest.fixture
def log(tmp_path):
    log = Log(tmp_path / "access.log")
    yield log
    log.log.close()
    assert log.clock.getDelayedCalls() == []


def test_lines_are_written_within_a_second(log):
    log.answer()
    log.clock.advance(0.6)
    log.answer()
    assert log.written() == []
    log.clock.advance(0.4)
    log.wait_for(1, 2)
    log.answer()
    log.clock.advance(1)
    log.wait_for(1, 2, 3)


def test_nothing_is_done_while_nobody_asks(log):
    assert log.clock.getDelayedCalls() == []
    log.answer()
    log.clock.advance(1)
    assert log.clock.getDelayedCalls() == []


def test_many_lines_are_written_at_once(log):
    log.answer(1000)
    wait_until(lambda: len(log.path.read_text().splitlines()) > 500, "500 lines are there")


def test_what_waits_is_written_at_the_end(log):
    log.answer()
    log.log.close()
    assert log.written() == [1]


def test_others_may_not_read_it(log):
    assert log.path.stat().st_mode & 0o007 == 0


def test_after_it_was_moved_away_the_lines_go_to_a_new_file(log):
    log.answer()
    moved = log.path.with_name("access.log.1")
    log.path.rename(moved)
    log.answer()
    log.clock.advance(1)
    log.answer()
    log.log.reopen()
    log.answer()
    log.clock.advance(1)
    log.wait_for(4)
    assert log.written(moved) == [1, 2, 3]


def test_a_file_that_was_there_goes_on(tmp_path):
    for expected in ([1], [1, 1]):
        log = Log(tmp_path / "access.log")
        log.answer()
        log.log.close()
        assert log.written() == expected


def test_a_directory_that_has_vanished_leaves_it_as_it_was(tmp_path):
    directory = tmp_path / "logs"
    directory.mkdir()
    log = Log(directory / "access.log")
    kept = tmp_path / "kept"
    os.link(log.path, kept)
    log.path.unlink()
    directory.rmdir()
    with pytest.raises(StartUpError) as caught:
        log.log.reopen()
    assert str(caught.value).startswith(
        f"--access-log: cannot open {log.path}: No such file or directory. Give a file in an existing"
    )
    log.answer()
    log.clock.advance(1)
    log.wait_for(1, path=kept)
    log.log.close()


def told(events):
    return [formatEvent(event) for event in events]


def said(words, events):
    return wait_until(lambda: [each for each in told(events) if words in each], words, deadline_s=10)


def test_a_full_disk_is_told_once_and_costs_no_line_until_too_many_wait(tmp_path):
    link = tmp_path / "access.log"
    link.symlink_to(FULL)
    log = Log(link)
    with capturedLogs() as events:
        for _ in range(5):
            log.answer(10)
            log.clock.advance(1)
        said("cannot be written to", events)
        link.unlink()
        log.log.reopen()
        said("written to again", events)
    failed, again = told(events)
    assert failed.startswith(f"The access log {link} cannot be written to: No space left on device.")
    assert again == f"The access log {link} can be written to again; 0 line(s) were lost."
    assert log.written() == list(range(1, 51))
    log.log.close()


def test_a_file_that_could_not_be_written_to_is_opened_again_by_its_name(tmp_path):
    link = tmp_path / "access.log"
    link.symlink_to(FULL)
    log = Log(link)
    with capturedLogs() as events:
        log.answer()
        log.clock.advance(1)
        said("cannot be written to", events)
        link.unlink()
        said("written to again", events)
    assert log.written() == [1]
    log.log.close()


def test_of_more_than_can_be_kept_later_lines_are_lost_and_counted(tmp_path):
    link = tmp_path / "access.log"
    link.symlink_to(FULL)
    log = Log(link)
    with capturedLogs() as events:
        log.answer(20_000)
        link.unlink()
        log.log.reopen()
        said("written to again", events)
    kept = log.written()
    assert kept == sorted(set(kept))
    assert kept[:5_000] == list(range(1, 5_001))
    assert 5_000 < len(kept) < 20_000
    assert log.lost_lines == {"access": 20_000 - len(kept)}
    assert (
        told(events)[-1]
        == f"The access log {link} can be written to again; {20_000 - len(kept)} line(s) were lost."
    )
    log.answer()
    log.clock.advance(1)
    log.wait_for(*kept, 20_001)
    log.log.close()


def test_a_line_of_which_a_part_was_written_is_completed(log, monkeypatch):
    limit = [150]

    def short_write(file, data, write=os.write):
        if not limit[0]:
            raise OSError(28, "No space left on device")
        count = write(file, data[: limit[0]])
        limit[0] -= count
        return count

    monkeypatch.setattr(os, "write", short_write)
    with capturedLogs() as events:
        log.answer(3)
        log.clock.advance(1)
        said("cannot be written to", events)
        assert log.path.stat().st_size == 150
        limit[0] = 10**6
        log.answer()
        log.clock.advance(1)
        log.wait_for(1, 2, 3, 4)


def test_what_could_not_be_written_by_the_end_is_counted(tmp_path):
    link = tmp_path / "access.log"
    link.symlink_to(FULL)
    log = Log(link)
    log.answer(3)
    with capturedLogs() as events:
        log.log.close()
    assert (
        told(events)[-1]
        == f"3 line(s) of the access log {link} could not be written at shutdown, and are lost."
    )
    assert log.clock.getDelayedCalls() == []


@pytest.mark.parametrize(("name", "reason"), [("gone/a.log", "No such file"), (".", "Is a directory")])
def test_what_cannot_be_opened_is_rejected(tmp_path, name, reason):
    for attempt in (require_writable, Log):
        with pytest.raises(StartUpError, match=reason):
            attempt(str(tmp_path / name))


def test_to_look_at_a_file_makes_and_changes_none(tmp_path):
    require_writable("-")
    require_writable(str(tmp_path / "new.log"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old.log").write_text("old")
    require_writable(str(tmp_path / "old.log"))
    assert (tmp_path / "old.log").read_text() == "old"
