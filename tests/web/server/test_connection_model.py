"""
One connection, its client, the broker and the clock, in any order, against a model of the outcome.

The model is made from the promises alone: the limits, one answer for each request in their order, and each
record published once.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from contextlib import ExitStack
from unittest.mock import patch
from zlib import crc32

from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from twisted.internet.defer import Deferred

from sampleapp.errors import BrokerUnavailable
from sampleapp.model import RecordMetadata
from sampleapp_testing import failures_collected
from tests.support.examples import examples
from tests.support.in_memory import InMemoryService, ManualBroker
from tests.support.simulated_socket import Link, end_of_client, unread_by_client

HEADER_S = 10.0
BODY_GRACE_S = 10.0
BODY_RATE = 1024
IDLE_S = 75.0
UNREAD_S = 30.0
ABANDONED_S = 60.0
# All connections are looked at once a second, and some times are noted as of the next look.
LATE_S = 2.0
STEP_S = 0.25
# True if every byte that the client reads counts as progress; where the system does not tell, pieces do.
PROGRESS_IS_EXACT = sys.platform.startswith("linux")
SLOP_S = LATE_S + 2 * STEP_S


class Broker(ManualBroker):
    def publish(self, record):
        self.records.append(record)
        waiting = Deferred()
        self.waiting.append((waiting, record))
        return waiting

    def succeed(self):
        waiting, record = self.waiting.pop(0)
        waiting.callback(RecordMetadata(topic=record.topic, partition=0, offset=crc32(record.value)))

    def fail(self):
        waiting, _ = self.waiting.pop(0)
        waiting.errback(BrokerUnavailable("The broker is away."))


def parsed(data):
    """The whole responses in the bytes that were sent, and the part of the next one."""
    responses = []
    position = 0
    while (end := data.find(b"\r\n\r\n", position)) >= 0:
        head = data[position:end]
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
        stop = end + 4 + int(fields[b"Content-Length"])
        if stop > len(data):
            break
        responses.append((int(head.split(b" ")[1]), fields, data[end + 4 : stop]))
        position = stop
    return responses, data[position:]


class ConnectionMachine(RuleBasedStateMachine):
    @initialize(
        is_known=st.booleans(),
        room=st.sampled_from([float("inf"), 300]),
        readings=st.sampled_from([300, 0, 20_000]),
    )
    def connect(self, is_known, room, readings):
        self.stack = ExitStack()
        self.stack.enter_context(failures_collected())
        self.stack.enter_context(patch("sampleapp.web.server.writer.unacknowledged", unread_by_client))
        self.stack.enter_context(patch("sampleapp.web.server.connection.client_end", end_of_client))
        self.broker = Broker()
        self.service = InMemoryService(broker=self.broker)
        for n in range(readings):
            self.service.read(b"%d" % n, b"1.5")
        self.readings = [1.5] * readings
        self.link = Link(self.service.site, self.service.clock, is_known=is_known, room=room)
        self.numbers = iter(range(10**6))
        self.drained = None
        # Sent by the client: whole requests, and a part of another.
        self.requests = []
        self.asked_s = []
        self.failed = set()
        self.left = b""
        self.partial = None
        self.has_said_all = self.sends_rubbish = False
        self.has_finished = False
        self.has_reset = False
        # Seen of the server, and when.
        self.responses = []
        self.tail = b""
        self.seen = 0
        self.first_byte_s = self.head_s = 0.0
        self.body_sent = 0
        self.body_was_slow = False
        self.ready_s = self.progress_s = self.piece_s = self.now
        self.was_busy = False
        self.ended_s = None

    @property
    def now(self):
        return self.service.clock.seconds()

    @property
    def is_over(self):
        return self.link.socket.is_shut_down or self.link.socket.is_closed

    @property
    def may_send(self):
        said_all = self.has_finished or self.has_reset or self.has_said_all
        return not (said_all or self.is_over or self.is_rejected)

    @property
    def responded(self):
        return min(len(self.responses), len(self.requests))

    @property
    def is_busy(self):
        """True if there is a whole request whose answer has not been taken by the system, or a rejection."""
        return self.responded < len(self.requests) or bool(self.tail)

    @property
    def is_rejected(self):
        """True once a rejection has been begun."""
        return len(self.responses) + bool(self.tail) > len(self.requests)

    # Steps of the client.

    def new_request(self):
        if next(self.numbers) % 3 == 2:
            return ("GET", None), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b""
        number = next(self.numbers)
        # A compressed body takes several turns to decode, and does not come in one segment either.
        is_coded = number % 4 == 0
        content = str(number) + (
            random.Random(number).randbytes(2500).hex() * 120
            if is_coded
            else "x" * (3000 if next(self.numbers) % 2 else 0)
        )
        body = json.dumps({"topic": "t", "content": content}).encode()
        head = b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        if is_coded:
            body = gzip.compress(body)
            head += b"Content-Encoding: gzip\r\n"
        return ("POST", content.encode()), head + b"Content-Length: %d\r\n\r\n" % len(body), body

    def ask(self, request):
        self.requests.append(request)
        self.asked_s.append(self.now)

    def sent(self, data):
        self.link.send(data)
        self.look()

    @precondition(lambda self: self.may_send and not self.left)
    @rule(count=st.integers(1, 3))
    def send_requests(self, count):
        data = b""
        for _ in range(count):
            request, head, body = self.new_request()
            self.ask(request)
            data += head + body
        self.sent(data)

    @precondition(lambda self: self.may_send and not self.left)
    @rule(reservation=st.floats(0.01, 0.99), wait_s=st.sampled_from([0, 0, 7, 13]))
    def send_part(self, reservation, wait_s):
        self.partial, head, body = self.new_request()
        self.left = head + body
        self.body_size = len(body)
        self.first_byte_s = self.now
        self.body_sent = 0
        self.body_was_slow = False
        self.send_more(reservation)
        self.pass_time(wait_s)

    @precondition(lambda self: self.may_send and self.left)
    @rule(reservation=st.floats(0.01, 1))
    def send_more(self, reservation):
        size = max(1, int(len(self.left) * reservation))
        data, self.left = self.left[:size], self.left[size:]
        had_head = self.body_sent > 0 or len(self.left) + len(data) <= self.body_size
        if not had_head and len(self.left) <= self.body_size:
            self.head_s = self.now
        self.body_sent = max(0, self.body_size - len(self.left))
        if not self.left:
            self.ask(self.partial)
            self.partial = None
        self.sent(data)

    @property
    def has_part_of_body(self):
        return bool(self.left) and len(self.left) <= self.body_size

    @precondition(lambda self: self.may_send and not self.left)
    @rule()
    def send_the_last_request(self):
        self.has_said_all = True
        self.ask(("GET", None))
        self.sent(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")

    @precondition(lambda self: self.may_send and not self.left)
    @rule()
    def send_rubbish(self):
        self.has_said_all = self.sends_rubbish = True
        self.sent(b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n")

    @precondition(lambda self: self.link.socket.unread)
    @rule(count=st.integers(1, 2000) | st.just(10**9))
    def read(self, count):
        self.link.read(count)
        self.look()

    @precondition(lambda self: not self.has_finished and not self.has_reset)
    @rule()
    def finish(self):
        self.has_finished = True
        self.finished_s = self.now
        self.link.finish()
        self.look()

    @precondition(lambda self: not self.has_reset and len(self.requests) > 1)
    @rule()
    def reset(self):
        self.has_reset = True
        self.link.reset()
        self.look()

    # Steps of the broker, the clock and the operator.

    @precondition(lambda self: self.broker.waiting)
    @rule(succeeds=st.sampled_from([True, True, True, False]))
    def broker_answers(self, succeeds):
        if succeeds:
            self.broker.succeed()
        else:
            self.failed.add(len(self.broker.records) - len(self.broker.waiting))
            self.broker.fail()
        self.link.turn()
        self.look()

    @rule(seconds=st.sampled_from([1, 10, 13, 35, 80]))
    def time_passes(self, seconds):
        self.pass_time(seconds)

    def pass_time(self, seconds):
        for _ in range(int(seconds / STEP_S)):
            self.link.advance(STEP_S, step_s=STEP_S)
            self.look()

    @precondition(lambda self: self.drained is None)
    @rule()
    def drain(self):
        self.drained = []
        self.drained_s = self.now
        self.service.site.drain().addCallback(self.drained.append)
        self.link.turn()
        self.look()

    # Checks of the outcome.

    def look(self):
        """Compare the changes with the promises."""
        socket = self.link.socket
        now = self.now
        before = len(self.responses)
        if socket.sent != self.seen:
            self.seen = socket.sent
            self.progress_s = now
            self.responses, self.tail = parsed(bytes(self.link.received + socket.unread))
            if PROGRESS_IS_EXACT or len(self.responses) > before:
                self.piece_s = now
        if self.broker.waiting or not self.is_busy:
            self.piece_s = now
        if self.was_busy and not self.is_busy:
            self.ready_s = now
        self.was_busy = self.is_busy
        if self.has_part_of_body and not self.is_busy:
            elapsed_s = now - self.head_s
            self.body_was_slow |= elapsed_s >= BODY_GRACE_S and self.body_sent < BODY_RATE * elapsed_s
        if len(self.responses) > before:
            self.check_answers()
        if self.is_over and self.ended_s is None:
            self.ended_s = now
            assert self.may_have_ended(), "the connection was closed, and nothing allows that"
        if not self.is_over:
            self.check_that_it_had_not_to_end()
        if self.drained:
            assert self.link.is_lost
        assert len(self.service.site._connections) == (not self.link.is_lost)  # noqa: SLF001 -- what is left

    def check_answers(self):
        posts = 0
        for number, (status, fields, body) in enumerate(self.responses):
            if number == len(self.requests):
                self.check_rejection(status, fields)
                assert number + 1 == len(self.responses)
                return
            kind, content = self.requests[number]
            if kind == "GET":
                assert (status, json.loads(body)) == (200, self.readings)
            elif posts in self.failed:
                assert status == 503
            else:
                assert status == 200
                assert json.loads(body)["offset"] == crc32(content)
            posts += kind == "POST"

    def check_rejection(self, status, fields):
        assert fields[b"Connection"] == b"close"
        if self.sends_rubbish:
            assert status == 400
        else:
            assert status == 408
            assert self.left
            if self.has_part_of_body:
                assert self.body_was_slow
            else:
                assert self.now - self.first_byte_s >= HEADER_S

    def may_have_ended(self):
        last = self.responses[-1] if self.responses else None
        idle_s = self.now - max(self.ready_s, self.progress_s if self.responses else 0)
        return (
            self.has_reset
            or self.is_rejected
            or (last is not None and b"Connection" in last[1])
            or (not self.is_busy and (self.has_finished or self.drained is not None or idle_s >= IDLE_S))
            or (self.is_busy and not self.broker.waiting and self.now - self.piece_s >= UNREAD_S)
            or (
                self.has_finished
                and self.broker.waiting
                and self.now - self.asked_s[self.responded] >= ABANDONED_S
            )
            # The end of the last answer may be in the buffers of the systems, unread.
            or (self.link.socket.unread and self.now - self.progress_s >= UNREAD_S)
        )

    def check_that_it_had_not_to_end(self):
        if self.is_busy:
            # An answer that is there, and of which nothing more is taken.
            if not self.broker.waiting:
                assert self.now - max(self.progress_s, self.piece_s) < UNREAD_S + SLOP_S
            elif self.has_finished:
                asked_s = max(self.asked_s[self.responded], self.progress_s)
                assert self.now - max(asked_s + ABANDONED_S, self.finished_s) < SLOP_S
            return
        last = self.responses[-1] if self.responses else None
        assert last is None or last[1].get(b"Connection") != b"close", "it goes on after it was said to end"
        assert not self.has_finished
        assert not self.sends_rubbish
        if not self.left:
            idle_s = self.now - max(self.ready_s, self.first_byte_s)
            assert idle_s < IDLE_S + SLOP_S
            if self.drained is not None:
                assert self.now - max(self.drained_s, self.ready_s) < SLOP_S
        elif self.has_part_of_body:
            elapsed_s = self.now - max(self.head_s, self.ready_s)
            if elapsed_s >= BODY_GRACE_S + SLOP_S:
                assert self.body_sent >= BODY_RATE * (elapsed_s - SLOP_S)
        else:
            assert self.now - max(self.first_byte_s, self.ready_s) < HEADER_S + SLOP_S

    @invariant()
    def each_record_is_published_once_and_in_order(self):
        posts = [content for kind, content in getattr(self, "requests", ()) if kind == "POST"]
        published = [record.value for record in self.broker.records] if posts else []
        assert published == posts[: len(published)]

    def teardown(self):
        if not hasattr(self, "link"):
            return
        # Client, broker and clock finish their work; a narrow client takes thousands of pieces.
        for _ in range(100_000):
            if self.broker.waiting:
                self.broker_answers(succeeds=True)
            elif self.link.socket.unread:
                self.read(10**9)
            else:
                break
        was_cut = self.has_reset or (self.is_busy and self.is_over)
        if not was_cut:
            assert not self.is_busy, "a request was not answered"
            posts = [content for kind, content in self.requests if kind == "POST"]
            assert [record.value for record in self.broker.records] == posts
        for _ in range(120):
            if self.link.is_lost:
                break
            self.pass_time(1)
        assert self.link.is_lost, "the connection stays for ever"
        self.service.clock.advance(1)
        assert not self.service.clock.getDelayedCalls()
        assert self.drained in (None, [None])
        self.stack.close()


def test_a_client_that_never_reads_its_answer_is_cut_off():
    machine = ConnectionMachine()
    machine.connect(readings=0, is_known=True, room=float("inf"))
    machine.send_requests(count=1)
    machine.broker_answers(succeeds=True)
    machine.pass_time(UNREAD_S + SLOP_S)
    assert machine.is_over
    machine.teardown()


def test_a_connection_keeps_its_promises_whatever_client_broker_and_clock_do():
    run_state_machine_as_test(
        ConnectionMachine,
        # A history that fails is printed as it is: to make it smaller takes longer than a test may.
        settings=examples(40, stateful_step_count=30, phases=[Phase.explicit, Phase.reuse, Phase.generate]),
    )
