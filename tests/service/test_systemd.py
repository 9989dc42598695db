"""What systemd is told, message by message."""

from __future__ import annotations

from pathlib import Path

import pytest
from twisted.internet.task import Clock

from sampleapp.service.systemd import Notifier, Supervision
from tests.support.logs import logged_lines
from tests.support.systemd import NotifySocket


@pytest.fixture
def systemd(tmp_path):
    with NotifySocket(tmp_path) as systemd:
        yield systemd


class Setup:
    def __init__(self, systemd, **variables):
        self.systemd = systemd
        self.clock = Clock()
        self.reasons = []
        self.supervision = Supervision.from_environment(
            {"NOTIFY_SOCKET": systemd.address, **variables}, clock=self.clock, reasons=lambda: self.reasons
        )

    def told(self):
        """All that has come since the last look."""
        before = len(self.systemd.messages)
        assert self.systemd.falls_silent(silence_s=0.01)
        return self.systemd.messages[before:]


@pytest.fixture
def supervised(systemd):
    made = []

    def supervised(**variables):
        made.append(Setup(systemd, **variables))
        return made[-1]

    yield supervised
    for setup in made:
        setup.supervision.stopped()


def test_it_is_told_of_a_change_within_a_second_and_of_nothing_else(supervised):
    setup = supervised()
    setup.reasons = ["Kafka was not reached yet.", "The stored readings are still being read."]
    setup.supervision.started()
    assert setup.told() == [
        ["READY=1"],
        ["STATUS=Not ready: Kafka was not reached yet. The stored readings are still being read."],
    ]
    setup.clock.pump([1] * 10)
    assert setup.told() == []
    setup.reasons = []
    setup.clock.advance(1)
    assert setup.told() == [["STATUS=Ready."]]


def test_a_reason_with_line_breaks_is_no_other_message(supervised):
    setup = supervised()
    setup.reasons = ["One.\nREADY=1\n" + "x" * 1000]
    setup.supervision.started()
    (_, (status,)) = setup.told()
    assert status.startswith("STATUS=Not ready: One. READY=1 x")
    assert len(status) < 600


def test_signs_of_life_come_in_half_of_the_time(supervised):
    setup = supervised(WATCHDOG_USEC="1000000")
    setup.supervision.started()
    setup.told()
    setup.clock.pump([0.5] * 4)
    assert setup.told() == [["WATCHDOG=1"]] * 4


@pytest.mark.parametrize("microseconds", ["", "0", "-1", "soon"])
def test_without_a_time_there_is_no_watchdog(supervised, microseconds):
    setup = supervised(WATCHDOG_USEC=microseconds)
    setup.supervision.started()
    setup.clock.pump([1] * 10)
    assert ["WATCHDOG=1"] not in setup.told()


def test_it_hears_that_all_is_read_once_nothing_is_being_read_any_more(supervised):
    setup = supervised()
    setup.supervision.started()
    setup.told()
    setup.supervision.reloading()
    setup.supervision.reloading()
    setup.supervision.reloaded()
    assert [message[0] for message in setup.told()] == ["RELOADING=1", "RELOADING=1"]
    setup.supervision.reloaded()
    assert setup.told() == [["READY=1"]]


def test_what_is_read_to_its_end_while_the_service_stops_does_not_make_it_ready(supervised):
    setup = supervised()
    setup.supervision.started()
    setup.supervision.reloading()
    setup.supervision.stopping()
    setup.told()
    setup.supervision.reloaded()
    assert setup.told() == []


def test_nothing_is_sent_after_the_end_and_nothing_is_left_scheduled(supervised):
    setup = supervised(WATCHDOG_USEC="1000000")
    setup.supervision.started()
    setup.supervision.stopping()
    setup.supervision.stopped()
    setup.told()
    assert setup.clock.getDelayedCalls() == []
    setup.supervision.stopping()
    assert setup.told() == []


def test_it_may_end_before_it_has_started(supervised):
    setup = supervised()
    setup.supervision.stopping()
    setup.supervision.stopped()
    assert setup.told() == [["STOPPING=1"], ["STATUS=Ready."]]


def test_what_systemd_has_no_room_for_comes_later_and_in_order(systemd):
    notifier = Notifier(systemd.address)
    # More than the queue of a Unix socket holds (net.unix.max_dgram_qlen).
    for number in range(5000):
        notifier.send(f"STATUS={number}")
    assert systemd.falls_silent(silence_s=0.01)
    first = [int(message[0].partition("=")[2]) for message in systemd.messages]
    assert first == list(range(len(first)))
    assert len(first) < 5000
    for _ in range(16):
        notifier.send_rest()
        assert systemd.falls_silent(silence_s=0.01)
    rest = [int(message[0].partition("=")[2]) for message in systemd.messages[len(first) :]]
    assert rest == list(range(5000 - len(rest), 5000))
    assert len(rest) > 0
    notifier.close()


def test_many_unsent_messages_do_not_displace_the_state_of_the_service(tmp_path):
    notifier = Notifier(str(tmp_path / "notify"))
    with logged_lines():
        notifier.send("READY=1")
        for number in range(100):
            notifier.send(f"STATUS={number}")
            notifier.send("RELOADING=1", f"MONOTONIC_USEC={number}")
            notifier.send("WATCHDOG=1")
        notifier.send("STOPPING=1")
        with NotifySocket(tmp_path) as systemd:
            notifier.send_rest()
            assert systemd.falls_silent(silence_s=0.01)
    assert systemd.messages == [
        ["READY=1"],
        ["STATUS=99"],
        ["RELOADING=1", "MONOTONIC_USEC=99"],
        ["WATCHDOG=1"],
        ["STOPPING=1"],
    ]
    notifier.close()


def test_without_systemd_nothing_is_sent_and_nothing_is_said():
    with logged_lines() as lines:
        supervision = Supervision.from_environment({}, clock=Clock(), reasons=list)
        supervision.started()
        supervision.reloading()
        supervision.reloaded()
        supervision.stopping()
        supervision.stopped()
    assert lines == []


@pytest.mark.parametrize("is_abstract", [False, True], ids=["path", "abstract name"])
def test_after_its_socket_was_away_systemd_is_told_again_and_each_reason_is_logged_once(
    tmp_path, is_abstract
):
    with NotifySocket(tmp_path, is_abstract=is_abstract) as before:
        notifier = Notifier(before.address)
        notifier.send("READY=1")
        assert before.receive() == ["READY=1"]
    with logged_lines() as lines:
        # For a path: rejected, as nothing listens there; then the file is gone, too.
        notifier.send("STATUS=1")
        Path(before.address).unlink(missing_ok=True)
        for _ in range(20):
            notifier.send("WATCHDOG=1")
        notifier.send("STATUS=2")
        failures = lines[:]
        assert len(failures) == len(set(failures)) == (1 if is_abstract else 2)
        for line in failures:
            assert line.startswith("systemd cannot be notified of the state of the service; trying again: ")
        with NotifySocket(tmp_path, is_abstract=is_abstract) as after:
            notifier.send_rest()
            # Only the last message that sets a variable is kept.
            assert [after.receive() for _ in range(2)] == [["WATCHDOG=1"], ["STATUS=2"]]
            assert lines[len(failures) :] == ["systemd can be notified of the state of the service again"]
            notifier.send("WATCHDOG=1")
            assert after.receive() == ["WATCHDOG=1"]
    notifier.close()


def test_signs_of_life_go_on_after_the_state_of_the_service_could_not_be_told(supervised, no_failure_is_lost):
    setup = supervised(WATCHDOG_USEC="1000000")
    setup.supervision.started()
    setup.told()
    setup.reasons = 17
    setup.clock.pump([0.5] * 2)
    assert setup.told() == [["WATCHDOG=1"]] * 2
    assert [failure.type for failure in no_failure_is_lost] == [TypeError] * 2
    no_failure_is_lost.clear()


def test_the_watchdog_gets_signs_of_life_again_after_its_socket_was_away(supervised, systemd, tmp_path):
    setup = supervised(WATCHDOG_USEC="1000000")
    with logged_lines():
        setup.supervision.started()
        systemd.close()
        setup.clock.pump([0.5] * 4)
        Path(systemd.address).unlink()
        setup.clock.pump([0.5] * 4)
        with NotifySocket(tmp_path) as after:
            setup.clock.advance(0.5)
            assert after.receive() == ["WATCHDOG=1"]
