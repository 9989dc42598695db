"""Publishing the lines of a file, with answers that come when a test says so."""

from __future__ import annotations

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from sampleapp.cli._file_publisher import publish_lines
from sampleapp.cli._lines import LineSource
from sampleapp.client import (
    Forbidden,
    Problem,
    RequestTimedOut,
    ServiceUnreachable,
    TooManyRequests,
    Unauthorized,
)
from sampleapp.model import RecordMetadata


class Publisher:
    """Stands for a client; its answers come when a test says so."""

    def __init__(self):
        self.waiting = []
        self.contents = []

    def publish(self, *, topic, content, key):
        answer = Deferred()
        self.contents.append(content)
        self.waiting.append(answer)
        return answer

    def refuse(self, error):
        self.waiting.pop(0).errback(error)

    def acknowledge(self):
        self.waiting.pop(0).callback(RecordMetadata(topic="t", partition=0, offset=0))


def publishing(publisher, *chunks, in_flight=2, clock=None):
    """Begin to publish the lines of a file; the end of the file is where the chunks end."""
    unread = [*chunks, b""]
    return Deferred.fromCoroutine(
        publish_lines(
            client=publisher,
            topic="t",
            key=None,
            source=LineSource(lambda: succeed(unread.pop(0))),
            in_flight=in_flight,
            clock=clock or Clock(),
            progress=lambda _: None,
        )
    )


def reported(publishing):
    results = []
    publishing.addBoth(results.append)
    (report,) = results
    return list(report.sentences())


def test_no_more_messages_are_in_flight_than_allowed():
    publisher = Publisher()
    ended = publishing(publisher, b"1\n2\n3\n4\n5\n", in_flight=2)
    assert publisher.contents == ["1", "2"]
    publisher.acknowledge()
    assert publisher.contents == ["1", "2", "3"]
    while publisher.waiting:
        assert len(publisher.waiting) <= 2
        publisher.acknowledge()
    assert reported(ended) == ["Published 5 lines, 0 failed."]


def test_lines_are_read_only_when_they_can_be_sent():
    publisher = Publisher()
    chunks = [b"1\n", b"2\n", b"3\n", b""]
    Deferred.fromCoroutine(
        publish_lines(
            client=publisher,
            topic="t",
            key=None,
            source=LineSource(lambda: succeed(chunks.pop(0))),
            in_flight=1,
            clock=Clock(),
            progress=lambda _: None,
        )
    )
    assert chunks == [b"2\n", b"3\n", b""]


def test_one_at_a_time_keeps_the_order_of_the_lines():
    publisher = Publisher()
    publishing(publisher, b"1\n2", b"\n3\n", in_flight=1)
    while publisher.waiting:
        publisher.acknowledge()
    assert publisher.contents == ["1", "2", "3"]


def test_failed_lines_are_told_by_their_reasons_and_numbers():
    publisher = Publisher()
    ended = publishing(publisher, b"1\n\xff\n3\n4\n\xff\n\xff\n\xff\n", in_flight=1)
    publisher.acknowledge()
    publisher.waiting.pop(0).errback(RequestTimedOut("It took too long."))
    publisher.acknowledge()
    assert reported(ended) == [
        "Lines 2, 5-7: not UTF-8.",
        "Line 3: It took too long. May have been published.",
        "Published 2 lines, 5 failed.",
    ]


def test_when_the_service_is_unreachable_the_rest_of_the_file_is_not_sent():
    publisher = Publisher()
    ended = publishing(publisher, b"1\n2\n3\n4\n", in_flight=2)
    publisher.waiting.pop(0).errback(ServiceUnreachable("Nothing there."))
    publisher.acknowledge()
    assert publisher.contents == ["1", "2"]
    first, second, third = reported(ended)
    assert first == "Line 1: Nothing there."
    assert second.startswith("Stopped after line 2: what follows was not sent.")
    assert third == "Published 1 line, 1 failed."


def test_an_interrupted_publishing_accounts_for_what_was_under_way():
    publisher = Publisher()
    ended = publishing(publisher, b"1\n2\n3\n4\n5\n", in_flight=2)
    publisher.acknowledge()
    ended.cancel()
    assert reported(ended) == [
        "Lines 2-3: interrupted before the answer. May have been published.",
        "Interrupted after line 3: what follows was not sent.",
        "Published 1 line, 2 failed.",
    ]


def problem(status):
    return Problem(title="Title", status=status, detail="Detail.")


def test_a_line_that_comes_too_early_is_sent_again_when_it_may_be_and_no_other_before():
    publisher, clock = Publisher(), Clock()
    ended = publishing(publisher, b"1\n2\n3\n4\n", in_flight=2, clock=clock)
    publisher.refuse(TooManyRequests(problem(429), retry_after_s=3))
    publisher.acknowledge()
    assert publisher.contents == ["1", "2"]
    clock.advance(2.9)
    assert publisher.contents == ["1", "2"]
    clock.advance(0.1)
    assert publisher.contents == ["1", "2", "1", "3"]
    while publisher.waiting:
        publisher.acknowledge()
    assert reported(ended) == [
        "Nothing was sent for 3 seconds in all: the service allows no more.",
        "Published 4 lines, 0 failed.",
    ]


@pytest.mark.parametrize(("retry_after_s", "pause_s"), [(None, 1), (0, 0), (3600, 60)])
def test_how_long_a_refusal_holds_lines_back_is_bounded(retry_after_s, pause_s):
    publisher, clock = Publisher(), Clock()
    publishing(publisher, b"1\n", clock=clock)
    publisher.refuse(TooManyRequests(problem(429), retry_after_s=retry_after_s))
    clock.advance(max(0, pause_s - 0.1))
    assert len(publisher.contents) == (1 if pause_s else 2)
    clock.advance(0.1)
    assert len(publisher.contents) == 2


def test_a_line_that_is_always_too_much_ends_the_publishing_in_the_end():
    publisher, clock = Publisher(), Clock()
    ended = publishing(publisher, b"1\n2\n", in_flight=1, clock=clock)
    while publisher.waiting:
        assert clock.seconds() < 1000
        publisher.refuse(TooManyRequests(problem(429), retry_after_s=30))
        clock.advance(30)
    assert set(publisher.contents) == {"1"}
    first, second, *_ = reported(ended)
    assert first == "Line 1: Title (429): Detail. There is room again in 30 seconds."
    assert second.startswith(
        "Stopped after line 1: what follows was not sent, since the service would refuse"
    )


def test_who_is_interrupted_while_lines_are_held_back_is_told_that_they_were_not_sent():
    publisher = Publisher()
    ended = publishing(publisher, b"1\n2\n", in_flight=1)
    publisher.refuse(TooManyRequests(problem(429), retry_after_s=30))
    ended.cancel()
    assert reported(ended)[0] == "Line 1: interrupted before it was sent."


@pytest.mark.parametrize("error", [Unauthorized(problem(401), has_token=True), Forbidden(problem(403))])
def test_when_the_caller_is_not_let_in_the_rest_of_the_file_is_not_sent(error):
    publisher = Publisher()
    ended = publishing(publisher, b"1\n2\n3\n4\n", in_flight=2)
    publisher.refuse(error)
    publisher.acknowledge()
    assert publisher.contents == ["1", "2"]
    first, second, third = reported(ended)
    assert first == f"Line 1: {error}"
    assert second.startswith(
        "Stopped after line 2: what follows was not sent, since the service would refuse"
    )
    assert third == "Published 1 line, 1 failed."


@pytest_twisted.ensureDeferred
async def test_a_mistake_of_the_program_is_not_taken_for_a_failed_line():
    class Broken:
        def publish(self, **_):
            raise ZeroDivisionError

    with pytest.raises(Exception, match="ZeroDivisionError"):
        await publishing(Broken(), b"1\n")
