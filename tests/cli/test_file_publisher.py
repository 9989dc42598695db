"""Publishing the lines of a file, with answers that come when a test says so."""

from __future__ import annotations

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred, succeed

from sampleapp.cli._file_publisher import publish_lines
from sampleapp.cli._lines import LineSource
from sampleapp.client import RequestTimedOut, ServiceUnreachable
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

    def acknowledge(self):
        self.waiting.pop(0).callback(RecordMetadata(topic="t", partition=0, offset=0))


def publishing(publisher, *chunks, in_flight=2):
    """Begin to publish the lines of a file; the end of the file is where the chunks end."""
    unread = [*chunks, b""]
    return Deferred.fromCoroutine(
        publish_lines(
            client=publisher,
            topic="t",
            key=None,
            source=LineSource(lambda: succeed(unread.pop(0))),
            in_flight=in_flight,
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


@pytest_twisted.ensureDeferred
async def test_a_mistake_of_the_program_is_not_taken_for_a_failed_line():
    class Broken:
        def publish(self, **_):
            raise ZeroDivisionError

    with pytest.raises(Exception, match="ZeroDivisionError"):
        await publishing(Broken(), b"1\n")
