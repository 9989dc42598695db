"""Publishing the lines of a file, with answers that come when a test says so."""

from __future__ import annotations

import itertools
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

from sampleapp.cli._line_readers import ContentReader, MessageReader, Template
from sampleapp.cli._lines import LineSource, LineSplitter
from sampleapp.cli._options import date_time
from sampleapp.cli._publish_lines import publish_lines
from sampleapp.client import (
    Forbidden,
    PartlyPublished,
    Problem,
    ProblemError,
    RequestTimedOut,
    ResponseLost,
    ServiceUnreachable,
    TLSFailed,
    TooManyRequests,
    Unauthorized,
    UnexpectedResponse,
)
from sampleapp.errors import Fault
from sampleapp.model import RecordMetadata

PLACE = RecordMetadata(topic="t", partition=0, offset=0)


class Publisher:
    """Stands for a client; its answers come when a test says so."""

    def __init__(self):
        self.waiting = []
        self.keys = []
        """The idempotency key of each batch."""
        self.batches = []
        """The contents of each batch."""

    def publish_many(self, messages, *, idempotency_key):
        self.keys.append(idempotency_key)
        return self._sent([message.content for message in messages])

    def _sent(self, batch):
        answer = Deferred()
        self.batches.append(batch)
        self.waiting.append(answer)
        return answer

    def reject(self, error):
        self.waiting.pop(0).errback(error)

    def acknowledge(self):
        self.waiting.pop(0).callback([PLACE])


def publishing(
    publisher,
    *chunks,
    in_flight=2,
    clock=None,
    progress=lambda _: None,
    is_idempotent=False,
    is_base64=False,
    template=Template(topic="t"),  # noqa: B008 -- it is immutable
):
    """Begin to publish the lines of a file; the end of the file is where the chunks end."""
    unread = [*chunks, b""]
    return Deferred.fromCoroutine(
        publish_lines(
            client=publisher,
            reader=ContentReader(template, is_base64=is_base64),
            source=LineSource(
                lambda: succeed(unread.pop(0)),
                splitter=LineSplitter(max_bytes=1024 * 1024 + 9),
                waits_for_all=is_idempotent,
            ),
            in_flight=in_flight,
            clock=clock or Clock(),
            progress=progress,
            key_seed="" if is_idempotent else None,
        )
    )


def reported(publishing):
    results = []
    publishing.addBoth(results.append)
    (report,) = results
    return list(report.sentences())


def problem(status, *, errors=()):
    return Problem(title="Title", status=status, detail="Detail.", errors=tuple(errors))


def rejection(status, *, errors=(), retry_after_s=None):
    return ProblemError(problem(status, errors=errors), retry_after_s=retry_after_s)


def test_the_lines_that_are_there_go_in_one_batch_of_bounded_size():
    publisher = Publisher()
    ended = publishing(publisher, b"x\n" * 2500, b"y" * 1024 * 1024 + b"\nz", in_flight=1)
    while publisher.waiting:
        publisher.acknowledge()
    assert [len(batch) for batch in publisher.batches] == [1000, 1000, 500, 1, 1]
    assert reported(ended) == ["Published 2502 lines, 0 failed."]


def test_no_more_batches_are_in_flight_than_allowed():
    publisher = Publisher()
    ended = publishing(publisher, b"1\n", b"2\n3\n", b"4\n", b"5\n", in_flight=2)
    assert publisher.batches == [["1"], ["2", "3"]]
    publisher.acknowledge()
    assert publisher.batches == [["1"], ["2", "3"], ["4"]]
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
            reader=ContentReader(Template(topic="t")),
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
    assert publisher.batches == [["1"], ["2", "3"]]


def test_what_all_lines_have_in_common_is_in_each_message():
    class Taking(Publisher):
        def publish_many(self, messages, *, idempotency_key=None):
            self.messages = messages
            return succeed([PLACE] * len(messages))

    publisher = Taking()
    common = {"topic": "t", "key": "k", "headers": {"h": "v"}, "timestamp": date_time(7)}
    Deferred.fromCoroutine(
        publish_lines(
            client=publisher,
            reader=ContentReader(Template(**common)),
            source=LineSource(iter([succeed(b"1\n\n"), succeed(b"")]).__next__),
            in_flight=1,
            clock=Clock(),
            progress=lambda _: None,
        )
    )
    assert [message.content for message in publisher.messages] == ["1", ""]
    for message, (name, value) in itertools.product(publisher.messages, common.items()):
        assert getattr(message, name) == value


def test_the_same_keys_of_records_as_text_and_as_base64_make_different_keys():
    assert keys_of(b"1\n", template=Template(topic="t", key="QUJD")) != keys_of(
        b"1\n", template=Template(topic="t", key=b"ABC")
    )


def test_the_same_lines_as_text_and_as_base64_have_different_keys():
    publisher = Publisher()
    for is_base64 in (False, True):
        publishing(publisher, b"AP8=\n", is_idempotent=True, is_base64=is_base64)
    assert publisher.batches == [["AP8="], [b"\0\xff"]]
    assert len(set(publisher.keys)) == 2


def test_failed_lines_are_told_by_their_reasons_and_numbers():
    publisher = Publisher()
    too_long = b"x" * (1024 * 1024 + 10)
    ended = publishing(
        publisher, b"1\n\xff\n", b"3\n", b"4\n\xff\n\xff\n" + too_long + b"\n\xff\n", in_flight=1
    )
    publisher.acknowledge()
    publisher.reject(RequestTimedOut("It took too long."))
    publisher.acknowledge()
    assert publisher.batches == [["1"], ["3"], ["4"]]
    assert reported(ended) == [
        "Lines 2, 5-6, 8: not UTF-8.",
        "Line 3: It took too long. May have been published.",
        "Line 7: longer than 16777216 bytes.",
        "Published 2 lines, 5 failed, 1 may have been published.",
    ]


@pytest.mark.parametrize(
    "error", [ServiceUnreachable("Nothing there."), TLSFailed("Nothing there.", retriable=False)]
)
def test_when_the_service_was_never_there_the_rest_of_the_file_is_not_sent(error):
    publisher = Publisher()
    ended = publishing(publisher, b"1\n", b"2\n", b"3\n", in_flight=2)
    publisher.reject(error)
    publisher.acknowledge()
    assert publisher.batches == [["1"], ["2"]]
    first, second, third = reported(ended)
    assert first == "Line 1: Nothing there."
    assert second.startswith(
        "Stopped after line 2: the lines that follow were not sent. Is the service running?"
    )
    assert third == "Published 1 line, 1 failed."


@pytest.mark.parametrize(
    "error", [ServiceUnreachable("Nothing there."), rejection(503), UnexpectedResponse("Odd.", status=429)]
)
def test_a_service_that_is_away_for_a_while_is_waited_for(error):
    publisher, clock, waiting = Publisher(), Clock(), []
    ended = publishing(
        publisher,
        b"1\n",
        b"2\n3\n",
        b"4\n",
        in_flight=1,
        clock=clock,
        progress=lambda report: waiting.append(report.waiting_because),
    )
    publisher.acknowledge()
    for _ in range(30):
        publisher.reject(error)
        assert (waiting[-1], publisher.waiting) == (str(error), [])
        clock.advance(1)
    publisher.acknowledge()
    publisher.acknowledge()
    assert waiting[-1] is None
    assert publisher.batches == [["1"], *[["2", "3"]] * 31, ["4"]]
    assert reported(ended) == [
        "Nothing was sent for 30 seconds in all: the service was busy or away.",
        "Published 4 lines, 0 failed.",
    ]


def test_a_service_that_does_not_come_back_is_given_up_in_the_end():
    publisher, clock = Publisher(), Clock()
    ended = publishing(publisher, b"1\n", b"2\n", b"3\n", in_flight=1, clock=clock)
    publisher.acknowledge()
    while publisher.waiting:
        assert clock.seconds() < 1000
        publisher.reject(ServiceUnreachable("Nothing there."))
        clock.advance(1)
    assert clock.seconds() > 300
    first, second, *_ = reported(ended)
    assert first == "Line 2: Nothing there."
    assert second.startswith(
        "Stopped after line 2: the lines that follow were not sent. Is the service running?"
    )


def test_what_was_on_its_way_when_the_service_went_is_in_doubt_and_not_sent_again():
    publisher, clock = Publisher(), Clock()
    ended = publishing(publisher, b"1\n2\n", b"3\n", b"4\n", in_flight=2, clock=clock)
    publisher.reject(ResponseLost("Gone."))
    publisher.reject(ServiceUnreachable("Nothing there."))
    publisher.reject(ServiceUnreachable("Nothing there."))
    clock.advance(1)
    assert sorted(publisher.batches[3:]) == [["3"], ["4"]]
    publisher.acknowledge()
    publisher.acknowledge()
    assert reported(ended) == [
        "Lines 1-2: Gone. May have been published.",
        "Nothing was sent for 1 second in all: the service was busy or away.",
        "Published 2 lines, 0 failed, 2 may have been published.",
    ]


def test_an_interrupted_publishing_accounts_for_what_was_under_way():
    publisher = Publisher()
    ended = publishing(publisher, b"1\n", b"2\n", b"3\n4\n", b"5\n", in_flight=2)
    publisher.acknowledge()
    ended.cancel()
    assert reported(ended) == [
        "Lines 2-4: interrupted before the answer. May have been published.",
        "Interrupted after line 4: the lines that follow were not sent.",
        "Published 1 line, 0 failed, 3 may have been published.",
    ]


def test_a_batch_that_comes_too_early_is_sent_again_when_it_may_be_and_no_other_before():
    publisher, clock = Publisher(), Clock()
    ended = publishing(publisher, b"1\n", b"2\n", b"3\n", b"4\n", in_flight=2, clock=clock)
    publisher.reject(TooManyRequests(problem(429), retry_after_s=3))
    publisher.acknowledge()
    assert publisher.batches == [["1"], ["2"]]
    clock.advance(2.9)
    assert publisher.batches == [["1"], ["2"]]
    clock.advance(0.1)
    assert publisher.batches == [["1"], ["2"], ["1"], ["3"]]
    while publisher.waiting:
        publisher.acknowledge()
    assert reported(ended) == [
        "Nothing was sent for 3 seconds in all: a rate limit was reached (429).",
        "Published 4 lines, 0 failed.",
    ]


@pytest.mark.parametrize(("retry_after_s", "pause_s"), [(None, 1), (0, 0), (3600, 60)])
def test_how_long_a_rejection_holds_lines_back_is_bounded(retry_after_s, pause_s):
    publisher, clock = Publisher(), Clock()
    publishing(publisher, b"1\n", clock=clock)
    publisher.reject(TooManyRequests(problem(429), retry_after_s=retry_after_s))
    clock.advance(max(0, pause_s - 0.1))
    assert len(publisher.batches) == (1 if pause_s else 2)
    clock.advance(0.1)
    assert len(publisher.batches) == 2


@pytest.mark.parametrize(("retry_after_s", "said_at"), [(10, 0), (60, 0), (4, 8), (None, 9)])
def test_a_rate_that_holds_lines_back_for_ten_seconds_is_reported_meanwhile(retry_after_s, said_at):
    publisher, clock, said = Publisher(), Clock(), []
    publishing(
        publisher,
        b"1\n",
        clock=clock,
        progress=lambda report: (
            report.waiting_because and said.append((clock.seconds(), report.waiting_because))
        ),
    )
    while clock.seconds() < 9.5 and not said:
        if publisher.waiting:
            publisher.reject(TooManyRequests(problem(429), retry_after_s=retry_after_s))
        clock.advance(0.5)
    assert said[0][0] == said_at
    assert said[0][1].startswith("Title (429): Detail.")


def test_a_line_that_is_always_too_much_ends_the_publishing_in_the_end():
    publisher, clock = Publisher(), Clock()
    ended = publishing(publisher, b"1\n", b"2\n", in_flight=1, clock=clock)
    while publisher.waiting:
        assert clock.seconds() < 1000
        publisher.reject(TooManyRequests(problem(429), retry_after_s=30))
        clock.advance(30)
    assert publisher.batches == [["1"]] * len(publisher.batches)
    first, second, *_ = reported(ended)
    assert first == "Line 1: Title (429): Detail. Try again in 30 seconds."
    assert second.startswith(
        "Stopped after line 1: the lines that follow were not sent; they would be rejected as well."
    )


def test_a_rejection_after_hours_without_lines_is_no_reason_to_give_up():
    publisher, clock = Publisher(), Clock()
    publishing(publisher, b"1\n", b"2\n", in_flight=1, clock=clock)
    clock.advance(7200)
    publisher.acknowledge()
    clock.advance(7200)
    publisher.reject(TooManyRequests(problem(429), retry_after_s=1))
    clock.advance(1)
    assert publisher.batches == [["1"], ["2"], ["2"]]


def test_who_is_interrupted_while_lines_are_held_back_is_told_that_they_were_not_sent():
    publisher = Publisher()
    ended = publishing(publisher, b"1\n", b"2\n", in_flight=1)
    publisher.reject(TooManyRequests(problem(429), retry_after_s=30))
    ended.cancel()
    assert reported(ended)[0] == "Line 1: interrupted before it was sent."


@pytest.mark.parametrize("error", [Unauthorized(problem(401), has_token=True), Forbidden(problem(403))])
def test_when_the_caller_is_not_let_in_the_rest_of_the_file_is_not_sent(error):
    publisher = Publisher()
    ended = publishing(publisher, b"1\n", b"2\n", b"3\n", in_flight=2)
    publisher.reject(error)
    publisher.acknowledge()
    assert publisher.batches == [["1"], ["2"]]
    first, second, third = reported(ended)
    assert first == f"Line 1: {error}"
    assert second.startswith(
        "Stopped after line 2: the lines that follow were not sent; they would be rejected as well."
    )
    assert third == "Published 1 line, 1 failed."


def test_a_mistake_of_the_program_is_not_taken_for_a_failed_line():
    class Broken:
        def publish_many(self, _messages, **_):
            raise ZeroDivisionError

    results = []
    publishing(Broken(), b"1\n").addBoth(results.append)
    assert "ZeroDivisionError" in repr(results)


def partly(*results):
    return PartlyPublished(problem(504), results=results)


def test_of_a_batch_that_is_partly_published_only_what_is_safe_is_sent_again():
    publisher, clock = Publisher(), Clock()
    ended = publishing(publisher, b"1\n2\n3\n4\n5\n", clock=clock)
    publisher.reject(partly(PLACE, rejection(503), rejection(504), rejection(413), rejection(503)))
    clock.advance(1)
    assert publisher.batches[1:] == [["2", "5"]]
    publisher.acknowledge()
    assert reported(ended) == [
        "Line 3: Title (504): Detail. May have been published.",
        "Line 4: Title (413): Detail.",
        "Nothing was sent for 1 second in all: the service was busy or away.",
        "Published 3 lines, 1 failed, 1 may have been published.",
    ]


def test_one_at_a_time_no_line_is_sent_again_behind_a_later_one():
    publisher, clock = Publisher(), Clock()
    ended = publishing(publisher, b"1\n2\n3\n4\n", in_flight=1, clock=clock)
    publisher.reject(partly(rejection(503), PLACE, rejection(503), rejection(503)))
    clock.advance(1)
    assert publisher.batches[1:] == [["3", "4"]]
    publisher.reject(partly(rejection(503), rejection(504)))
    assert publisher.batches[2:] == []
    again = "Title (503): Detail. Not sent again, since a later line may have been published."
    assert reported(ended)[:2] == [
        f"Lines 1, 3: {again}",
        "Line 4: Title (504): Detail. May have been published.",
    ]


def test_lines_that_are_wrong_are_told_and_the_others_of_their_batch_sent_again_at_once():
    publisher = Publisher()
    ended = publishing(publisher, b"1\n2\n3\n4\n")
    publisher.reject(
        rejection(
            422,
            errors=[
                Fault("/1/content", "Odd."),
                Fault("/3/content", "Bad."),
                Fault("/3/content", "Worse."),
            ],
        )
    )
    assert publisher.batches[1:] == [["1", "3"]]
    publisher.reject(rejection(400, errors=[Fault("/0/content", "Bad."), Fault("/1/content", "Bad.")]))
    assert reported(ended) == [
        "Line 2: Title (422): Odd.",
        "Line 4: Title (422): Bad. Worse.",
        "Lines 1, 3: Title (400): Bad.",
        "Published 0 lines, 4 failed.",
    ]


def test_of_a_line_alone_it_is_told_what_is_wrong_and_not_which_of_a_batch_it_is():
    publisher = Publisher()
    ended = publishing(publisher, b"1\n")
    publisher.reject(rejection(422, errors=[Fault("/0", "Too long.")]))
    assert reported(ended)[0] == "Line 1: Title (422): Too long."


@pytest.mark.parametrize("pointer", ["/0/topic", "/1/headers/a", "/0/key", "/2/timestamp"])
@pytest.mark.parametrize("status", [404, 422])
def test_what_is_wrong_with_what_all_lines_have_is_not_tried_with_each(pointer, status):
    publisher = Publisher()
    ended = publishing(publisher, b"1\n2\n3\n", b"4\n", in_flight=1)
    publisher.reject(rejection(status, errors=[Fault(pointer, "Odd.")]))
    publisher.acknowledge()
    assert reported(ended) == [f"Lines 1-3: Title ({status}): Odd.", "Published 1 line, 3 failed."]


def test_a_topic_that_is_not_granted_ends_the_publishing():
    publisher = Publisher()
    ended = publishing(publisher, b"1\n2\n", b"3\n", in_flight=1)
    publisher.reject(Forbidden(problem(403, errors=[Fault("/0/topic", "Not yours.")])))
    assert publisher.waiting == []
    first, second, _ = reported(ended)
    assert first == "Lines 1-2: Title (403): Not yours."
    assert second.startswith(
        "Stopped after line 2: the lines that follow were not sent; they would be rejected"
    )


@pytest.mark.parametrize("pointer", ["", "/topic", "/0", "/4/content", "/x/content", "0"])
@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_batch_that_is_rejected_as_a_whole_is_halved_until_each_line_is_answered(status, pointer):
    publisher = Publisher()
    ended = publishing(publisher, b"1\n2\n3\n")
    publisher.reject(rejection(status, errors=[Fault(pointer, "Odd.")]))
    assert publisher.batches[1:] == [["1", "2"]]
    publisher.acknowledge()
    assert publisher.batches[2:] == [["3"]]
    publisher.reject(rejection(status))
    assert reported(ended) == [f"Line 3: Title ({status}): Detail.", "Published 2 lines, 1 failed."]


@pytest.mark.parametrize("status", [404, 405, 415, 500])
def test_what_is_not_about_a_part_of_a_batch_counts_for_all_its_lines(status):
    publisher = Publisher()
    ended = publishing(publisher, b"1\n2\n", b"3\n", in_flight=1)
    publisher.reject(rejection(status))
    publisher.acknowledge()
    doubt = " May have been published." if status == 500 else ""
    assert reported(ended) == [
        f"Lines 1-2: Title ({status}): Detail.{doubt}",
        "Published 1 line, 0 failed, 2 may have been published." if doubt else "Published 1 line, 2 failed.",
    ]


def test_the_numbers_of_messages_in_an_error_become_those_of_lines():
    publisher = Publisher()
    ended = publishing(publisher, b"1\n2\n", b"3\n4\n", in_flight=1)
    publisher.acknowledge()
    detail = "None of the 2 messages is published. Line 2: Odd. Line 7: Odd."
    publisher.reject(ProblemError(Problem(title="Title", status=504, detail=detail)))
    assert reported(ended)[0] == (
        "Lines 3-4: Title (504): None of the 2 messages is published. Line 4: Odd. Line 7: Odd. "
        "May have been published."
    )


AT_ONCE = {
    "unreachable": (ServiceUnreachable("Nothing there."), False),
    "busy": (rejection(503), False),
    "lost before": (ResponseLost("Gone."), False),
    "lost after": (ResponseLost("Gone."), True),
    "too large": (rejection(413), False),
    "too much": (TooManyRequests(problem(429), retry_after_s=2), False),
    "wrong": (rejection(422, errors=[Fault("/0/content", "Odd.")]), False),
}


class Log:
    """A topic behind a service that does what it is told to each time, and says so truthfully."""

    def __init__(self, fates):
        self.fates = iter(fates)
        self.records = []

    def publish_many(self, messages, *, idempotency_key=None):
        outcome = self._outcomes([message.content for message in messages])
        if isinstance(outcome, Exception):
            return fail(outcome)
        return self._response(outcome if outcome == [PLACE] * len(outcome) else partly(*outcome))

    def _response(self, outcome):
        return fail(outcome) if isinstance(outcome, Exception) else succeed(outcome)

    def _outcomes(self, contents):
        fate = next(self.fates, [(None, True)])
        if not isinstance(fate, str):
            return [
                self._outcome(content, *each)
                for content, each in zip(contents, itertools.cycle(fate), strict=False)
            ]
        error, stored = AT_ONCE[fate]
        self.records += contents if stored else []
        return error

    def _outcome(self, content, status, stored):
        self.records += [content] if stored else []
        return PLACE if status is None else rejection(status)


fates_of_a_line = st.sampled_from(
    [(None, True), (None, True), (503, False), (504, False), (504, True), (413, False)]
)
fates = st.sampled_from(list(AT_ONCE)) | st.lists(fates_of_a_line, min_size=1, max_size=5)


@given(
    fates=st.lists(fates, max_size=15),
    chunks=st.lists(st.integers(1, 4), max_size=4),
    in_flight=st.sampled_from([1, 1, 2]),
)
def test_whatever_happens_each_line_is_published_once_and_in_order_or_told(fates, chunks, in_flight):
    numbers = itertools.count(1)
    files = [b"".join(b"%d\n" % next(numbers) for _ in range(count)) for count in chunks]
    log, clock = Log(fates), Clock()
    ended = publishing(log, *files, in_flight=in_flight, clock=clock)
    while not ended.called:
        clock.advance(1)
    sentences = reported(ended)
    in_doubt, rejected = told(sentences)
    published, failed, *doubtful = map(int, re.findall(r"\d+", sentences[-1]))
    assert (failed, sum(doubtful)) == (len(rejected), len(in_doubt))
    failed += sum(doubtful)
    stored = [int(content) for content in log.records]
    assert len(set(stored)) == len(stored)
    assert rejected.isdisjoint(stored)
    # The lines that were begun are the first ones.
    assert set(range(1, published + failed + 1)) - in_doubt - rejected == set(stored) - in_doubt
    if in_flight == 1:
        assert sorted(stored) == stored
    if not any(sentence.startswith("Stopped") for sentence in sentences):
        assert published + failed == sum(chunks)


def told(sentences):
    """The numbers of the lines that may have been published, and of those that were not."""
    in_doubt, rejected = set(), set()
    for sentence in sentences:
        found = re.match(r"Lines? ([-\d, ]+): (.*)", sentence)
        for part in found[1].split(", ") if found else []:
            first, _, last = part.partition("-")
            lines = range(int(first), int(last or first) + 1)
            (in_doubt if found[2].endswith(" May have been published.") else rejected).update(lines)
    return in_doubt, rejected


def keys_of(*chunks, **options):
    publisher = Publisher()
    publishing(publisher, *chunks, in_flight=1, is_idempotent=True, **options)
    while publisher.waiting:
        publisher.acknowledge()
    return publisher.keys


@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(1, 40), max_size=20))
def test_the_keys_of_a_file_do_not_depend_on_how_it_arrives(data, cuts):
    data = data.replace(b"\xff", b"\n") * 30
    chunks, rest = [], data
    for cut in cuts:
        chunks.append(rest[:cut])
        rest = rest[cut:]
    assert keys_of(*filter(None, [*chunks, rest])) == keys_of(*filter(None, [data]))


def test_each_batch_of_a_file_has_a_key_of_its_own():
    keys = keys_of(b"same\n" * 3000)
    assert len(set(keys)) == len(keys) == 3


@pytest.mark.parametrize(
    "other",
    [
        {"template": Template(topic="other")},
        {"template": Template(topic="t", key="k")},
        {"template": Template(topic="t", headers={"a": "b"})},
        {"template": Template(topic="t", timestamp=date_time(1))},
    ],
)
def test_other_options_make_other_keys(other):
    assert keys_of(b"line\n", **other) != keys_of(b"line\n")


def test_without_the_option_no_key_is_sent():
    publisher = Publisher()
    publishing(publisher, b"1\n")
    assert publisher.keys == [None]


@pytest.mark.parametrize(
    "error",
    [
        ResponseLost("Cut."),
        RequestTimedOut("Late."),
        rejection(504),
        rejection(503),
        PartlyPublished(problem(504), results=[PLACE, rejection(504), rejection(503)]),
    ],
)
def test_a_batch_with_a_key_is_sent_again_as_it_was(error):
    publisher, clock = Publisher(), Clock()
    ended = publishing(publisher, b"1\n2\n3\n", clock=clock, in_flight=1, is_idempotent=True)
    publisher.reject(error)
    clock.advance(1)
    assert publisher.batches == [["1", "2", "3"]] * 2
    assert len(set(publisher.keys)) == 1
    publisher.acknowledge()
    assert reported(ended)[-1] == "Published 3 lines, 0 failed."


def test_a_batch_with_a_key_is_given_up_after_the_time_for_which_lines_wait():
    publisher, clock = Publisher(), Clock()
    ended = publishing(publisher, b"1\n2\n", clock=clock, in_flight=1, is_idempotent=True)
    for _ in range(400):
        if publisher.waiting:
            publisher.reject(rejection(504))
        clock.advance(1)
    assert reported(ended)[0] == "Lines 1-2: Title (504): Detail. May have been published."


@pytest.mark.parametrize(
    "last",
    [ServiceUnreachable("Nothing there."), rejection(503), TooManyRequests(problem(429)), rejection(422)],
    ids=["unreachable", "busy", "too much", "refused"],
)
@pytest.mark.parametrize(
    "first",
    [ResponseLost("Cut."), PartlyPublished(problem(504), results=[PLACE, rejection(503)])],
    ids=["cut", "published in part"],
)
def test_lines_with_a_key_are_in_doubt_if_any_of_their_requests_was(first, last):
    publisher, clock = Publisher(), Clock()
    ended = publishing(publisher, b"1\n2\n", clock=clock, in_flight=1, is_idempotent=True)
    publisher.reject(first)
    clock.advance(1)
    for _ in range(400):
        if publisher.waiting:
            publisher.reject(last)
        clock.advance(1)
    # In smaller batches they would have other keys.
    assert {tuple(batch) for batch in publisher.batches} == {("1", "2")}
    failed, *_, numbers = reported(ended)
    assert failed == f"Lines 1-2: {last} May have been published."
    assert numbers == "Published 0 lines, 0 failed, 2 may have been published."


def test_lines_with_a_key_are_in_doubt_if_the_command_is_interrupted_after_such_a_request():
    publisher, clock = Publisher(), Clock()
    ended = publishing(publisher, b"1\n2\n", clock=clock, in_flight=1, is_idempotent=True)
    publisher.reject(ResponseLost("Cut."))
    ended.cancel()
    assert reported(ended)[0] == "Lines 1-2: interrupted before the answer. May have been published."


@pytest.mark.parametrize(
    ("status", "kind"), [(422, "idempotency-not-enabled"), (501, "idempotency-not-supported")]
)
def test_the_rest_is_not_sent_if_the_service_takes_no_keys_for_the_topic(status, kind):
    publisher = Publisher()
    ended = publishing(publisher, b"1\n" * 1500, in_flight=1, is_idempotent=True)
    rejected = Problem(type=f"urn:sampleapp:problem:{kind}", title="No keys", status=status, detail="None.")
    publisher.reject(ProblemError(rejected))
    assert (len(publisher.keys), publisher.waiting) == (1, [])
    assert reported(ended) == [
        f"Lines 1-1000: No keys ({status}): None.",
        "Stopped after line 1000: the lines that follow were not sent; they would be rejected as well.",
        "Published 0 lines, 1000 failed.",
    ]


def publishing_messages(publisher, *lines, key_seed=None):
    unread = [b"\n".join([*lines, b""]), b""]
    return Deferred.fromCoroutine(
        publish_lines(
            client=publisher,
            reader=MessageReader(),
            source=LineSource(lambda: succeed(unread.pop(0))),
            in_flight=1,
            clock=Clock(),
            progress=lambda _: None,
            key_seed=key_seed,
        )
    )


TWO_TOPICS = [b'{"topic":"a","content":"1"}', b'{"topic":"b","content":"2"}']


@pytest.mark.parametrize("faults", [[], [Fault("/0/topic", "Not yours.")]])
def test_a_topic_that_is_rejected_does_not_stop_the_lines_of_another(faults):
    publisher = Publisher()
    ended = publishing_messages(publisher, *TWO_TOPICS)
    publisher.reject(Forbidden(problem(403, errors=faults)))
    publisher.acknowledge()
    first, last = reported(ended)
    assert first.startswith("Line 1: Title (403): ")
    assert last == "Published 1 line, 1 failed."


def test_when_the_caller_is_not_known_no_other_topic_is_tried():
    publisher = Publisher()
    ended = publishing_messages(publisher, *TWO_TOPICS)
    publisher.reject(Unauthorized(problem(401), has_token=True))
    assert publisher.batches == [["1"]]
    assert "Line 2: not sent." in reported(ended)


def test_messages_that_differ_only_in_text_or_bytes_have_other_idempotency_keys():
    keys = []
    for contents in [{"content": "QUJD"}, {"content_base64": "QUJD"}]:
        publisher = Publisher()
        lines = [msgspec.json.encode({"topic": "t", **each}) for each in ({"content": "c"}, contents)]
        publishing_messages(publisher, *lines, key_seed="")
        keys += publisher.keys
    assert len(set(keys)) == 2
