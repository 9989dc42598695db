"""``Content-Type`` that is there more than once: sent twice, or joined with a comma by a proxy."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.web.server import Site

from sampleapp.brokers.memory import MemoryBroker
from tests.support.in_memory import Connection, InMemoryService, PromptBroker, request_bytes
from tests.web.http import assert_problem

MESSAGE = b'{"topic":"t","content":"c"}'
EVENT = b'{"specversion":"1.0","id":"1","source":"s","type":"t"}'
RECORDS = b'{"records":[{"value":1}]}'
REST = b"application/vnd.kafka.json.v2+json"

PUBLISHING = [
    ("/messages", b"application/json", MESSAGE),
    ("/messages", b"application/x-ndjson", MESSAGE),
    ("/topics/t", b"text/plain", b"21.5"),
    ("/topics/t", b"multipart/mixed; boundary=a-B", b"--a-B--"),
    ("/topics/t", b"application/cloudevents+json", EVENT),
    ("/topics/t", b"application/cloudevents-batch+json", b"[%b]" % EVENT),
    ("/topics/t", REST, RECORDS),
    ("/topics/t/partitions/0", REST, RECORDS),
]
"""A path, a media type that decides on the meaning of the body, and a body."""


@st.composite
def spellings(draw, content_type):
    """Draw a spelling of a media type, which is the same one."""
    kind, *parameters = content_type.split(b";")
    if draw(st.booleans()):
        kind = kind.upper()
    written = [kind]
    for parameter in parameters:
        name, _, value = parameter.strip().partition(b"=")
        if name == b"charset" and draw(st.booleans()):
            value = value.upper()
        quoted = b'"%b"' % value.replace(b"-", draw(st.sampled_from([b"-", b"\\-"])))
        written.append(draw(st.sampled_from([b"%b=%b", b"%b=%b", b" %b=%b"])) % (name, value))
        if draw(st.booleans()):
            written[-1] = b"%b=%b" % (name.title(), quoted)
    return b";".join(written) + draw(st.sampled_from([b"", b";", b" ; "]))


@st.composite
def the_same_twice(draw):
    path, content_type, body = draw(st.sampled_from(PUBLISHING))
    if path != "/topics/t/partitions/0":
        content_type += draw(st.sampled_from([b"", b"; charset=utf-8", b";x=1; charset=utf-8"]))
    written = draw(st.lists(spellings(content_type), min_size=2, max_size=3))
    cuts = draw(st.lists(st.booleans(), min_size=len(written) - 1, max_size=len(written) - 1))
    lines = [written[0]]
    for is_joined, each in zip(cuts, written[1:], strict=True):
        if is_joined:
            lines[-1] += draw(st.sampled_from([b",", b", ", b" ,, "])) + each
        else:
            lines.append(each)
    return path, written, lines, body


def asked(service, path, lines, body, *, is_in_twisted_web=False):
    connection = Connection(Site(service.gateway.app.resource())) if is_in_twisted_web else service.connect()
    connection.send(request_bytes("POST", path, [(b"Content-Type", line) for line in lines], body))
    (response,) = connection.responses(["POST"])
    return response


@example(("/messages", [b"application/json"] * 2, [b"application/json, application/json"], MESSAGE), "own")
@given(the_same_twice(), st.sampled_from(["own", "twisted.web"]))
def test_the_same_media_type_twice_is_that_media_type(request_of, server):
    path, written, lines, body = request_of
    published = []
    for each in ([written[0]], lines):
        service = InMemoryService(broker=PromptBroker())
        response = asked(service, path, each, body, is_in_twisted_web=server != "own")
        assert response.status == 200, response.body
        (record,) = service.broker.records
        headers = [value.strip(b"; \t") for _, value in record.headers]
        published.append((record.value, headers, response.body))
    assert published[0] == published[1]


DIFFERENT = [
    [b"application/json", b"text/plain"],
    [b"application/json", b"application/json; charset=utf-8"],
    [b"application/json; charset=utf-8", b"application/json; charset=latin-1"],
    [b"multipart/mixed; boundary=a", b"multipart/mixed; boundary=A"],
    [b'a/b; x="1,2"', b'a/b; x="1,3"'],
    [REST, b"application/json"],
    [b"application/cloudevents+json", b"application/json"],
    [b"application/cloudevents+json", b"application/cloudevents-batch+json"],
]


@pytest.mark.parametrize("is_in_twisted_web", [False, True])
@pytest.mark.parametrize("separator", [None, b",", b", "])
@pytest.mark.parametrize("content_types", DIFFERENT)
@pytest.mark.parametrize("path", ["/messages", "/topics/t"])
def test_media_types_that_differ_are_rejected_and_named(path, content_types, separator, is_in_twisted_web):
    service = InMemoryService(broker=PromptBroker())
    lines = content_types if separator is None else [separator.join(content_types)]
    response = asked(service, path, lines, MESSAGE, is_in_twisted_web=is_in_twisted_web)
    assert response.status == 415
    answer = json.loads(response.body)
    detail = answer["message"] if path == "/topics/t" and REST in content_types else answer["detail"]
    assert ", and ".join(each.decode() for each in content_types) in detail
    assert service.broker.records == []


def test_a_comma_that_separates_no_media_types_is_a_part_of_the_value():
    for value in (b"text/plain, charset=utf-8", b'a/b; x="1,2"', b'a/b; x="1,c/d', b",", b"a, b"):
        service = InMemoryService(broker=PromptBroker())
        assert asked(service, "/topics/t", [value], b"x").status == 200
        assert service.broker.records[0].headers == (("content-type", value),)


def test_a_doubled_type_is_one_for_workers_too():
    service = InMemoryService(broker=MemoryBroker(clock=Clock()))
    assert asked(service, "/topics/t", [], b"x").status == 200
    pull = "/topics/t/groups/g/pull"
    assert asked(service, pull, [b"application/json, application/json"], b"{}").status == 200
    assert_problem(asked(service, pull, [b"application/json", b"text/plain"], b"{}"), 415)


@pytest.mark.parametrize(
    ("expectations", "status"),
    [
        ([b"100-continue", b"100-Continue"], 200),
        ([b"100-continue, 100-continue"], 200),
        ([b"100-continue,"], 200),
        ([b"100-continue, miracles"], 417),
        ([b"100-continue", b"miracles"], 417),
        ([b""], 417),
    ],
)
def test_an_expectation_that_is_there_twice_is_one(expectations, status):
    service = InMemoryService(broker=PromptBroker())
    connection = service.connect()
    fields = [(b"Expect", each) for each in expectations]
    connection.send(request_bytes("POST", "/topics/t", [*fields, (b"Content-Length", b"1")]))
    assert connection.sent.startswith(b"HTTP/1.1 100 Continue\r\n") is (status == 200)
    connection.send(b"x")
    assert connection.responses(["POST"])[0].status == status
