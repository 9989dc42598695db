"""With ``--record-caller``, each record has the name of its caller, which no message can forge."""

from __future__ import annotations

import hashlib
import hmac
import json
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.testing import MemoryReactorClock

from sampleapp.errors import StartUpError
from sampleapp.service.assembly import build
from sampleapp.service.config import Config
from tests.support.callers import FULL, by, caller
from tests.support.in_memory import InMemoryService, PromptBroker
from tests.support.secrets import secret
from tests.web.http import JSON, assert_problem

NAME = "sampleapp-caller"
BY = [by("shop.7"), (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
FORGED = [(b"Sampleapp-Caller", b"admin"), (b"ce_sampleapp-caller", b"admin")]
SECRET = secret("the-secret-of-the-hook-of-this-test", "the secret of a hook").encode()
FILE = (
    FULL
    + caller("shop.7", 'publish = ["*"]')
    + '[hooks.github]\ntopic = "t"\nscheme = "github"\nsecret_files = ["1"]\n'
)
EVENT = {"specversion": "1.0", "id": "1", "source": "/", "type": "t"}
MESSAGE = {"topic": "t", "content": "c"}


def made(**options):
    options = {"records_caller": True, "record_headers": ("x-*", "sampleapp-*"), **options}
    return InMemoryService(broker=PromptBroker(), callers=FILE, secrets={"github": [SECRET]}, **options)


def encoded(value):
    return json.dumps(value).encode()


WAYS = {
    "message": ("POST", "/messages", "application/json", encoded(MESSAGE)),
    "message with headers": (
        "POST",
        "/messages",
        "application/json",
        encoded({**MESSAGE, "headers": {"a": "b"}}),
    ),
    "message with a trace": (
        "POST",
        "/messages",
        "application/json",
        encoded({**MESSAGE, "headers": {"traceparent": "own"}}),
    ),
    "batch": (
        "POST",
        "/messages",
        "application/x-ndjson",
        encoded(MESSAGE) + b"\n" + encoded({**MESSAGE, "headers": {"a": "b"}}),
    ),
    "raw": ("POST", "/topics/t", "text/plain", b"x"),
    "tombstone": ("DELETE", "/topics/t?key=k", None, None),
    "structured event": ("POST", "/topics/t", "application/cloudevents+json", encoded(EVENT)),
    "batched events": ("POST", "/topics/t", "application/cloudevents-batch+json", encoded([EVENT, EVENT])),
    "REST Proxy": ("POST", "/topics/t", "application/vnd.kafka.json.v2+json", b'{"records":[{"value":1}]}'),
    "REST Proxy, partition": (
        "POST",
        "/topics/t/partitions/0",
        "application/vnd.kafka.binary.v2+json",
        b'{"records":[{"value":"Zg=="},{"value":"Zg=="}]}',
    ),
}


@pytest.mark.parametrize(
    ("way", "again"),
    # REST Proxy's API takes no key.
    [
        (way, again)
        for way in WAYS
        for again in ([], [(b"Idempotency-Key", b"k")])
        if not (again and "REST" in way)
    ],
)
def test_each_record_has_the_name_of_its_caller_once(way, again):
    method, target, content_type, body = WAYS[way]
    service = made()
    headers = [(b"Content-Type", content_type.encode())] if content_type else []
    response = service.request(method, target, [*headers, *BY, *FORGED, *again], body)
    assert response.status == 200
    assert service.broker.records
    for record in service.broker.records:
        assert [value for name, value in record.headers if name.lower() == NAME] == [b"shop.7"]
        assert "traceparent" in dict(record.headers)


def test_a_binary_event_and_a_hook_have_it_too():
    service = made()
    attributes = [(f"ce-{name}".encode(), value.encode()) for name, value in EVENT.items()]
    assert service.request("POST", "/topics/t", [*attributes, *BY, *FORGED], b"x").status == 200
    signature = b"sha256=" + hmac.digest(SECRET, b"x", hashlib.sha256).hex().encode()
    signed = [(b"X-Hub-Signature-256", signature), *FORGED, by("full")]
    assert service.request("POST", "/hooks/github", signed, b"x").status == 200
    event, hook = service.broker.records
    assert [value for name, value in event.headers if name == NAME] == [b"shop.7"]
    ((_, name),) = [header for header in hook.headers if header[0] == NAME]
    assert b"github" in name
    assert name not in {b"full", b"admin"}


@given(name=st.lists(st.booleans(), min_size=len(NAME), max_size=len(NAME)), is_batch=st.booleans())
def test_a_message_cannot_bring_the_header_in_any_case(name, is_batch):
    text = "".join(c.upper() if upper else c for c, upper in zip(NAME, name, strict=True))
    service = made()
    headers = {"headers": {"a": "b", text: "admin"}, "headers_base64": [["a", None], [text, "AP8="]]}
    message = encoded({**MESSAGE, **headers})
    media_type = b"application/x-ndjson" if is_batch else b"application/json"
    body = encoded(MESSAGE) + b"\n" + message if is_batch else message
    response = service.request("POST", "/messages", [(b"Content-Type", media_type), BY[0]], body)
    assert_problem(response, 422)
    problem = json.loads(response.body)
    prefix = "/1" * is_batch
    assert [error["pointer"] for error in problem["errors"]] == [
        *[f"{prefix}/headers/{text}", f"{prefix}/headers_base64/1"]
    ]
    assert "reserved" in problem["errors"][0]["detail"]
    assert service.broker.records == []


def test_without_the_option_no_record_says_who_has_sent_it_and_a_message_may_bring_the_header():
    service = made(records_caller=False)
    for body in (MESSAGE, {**MESSAGE, "headers": {NAME: "own"}}):
        assert service.request("POST", "/messages", [*JSON, by("full")], encoded(body)).status == 200
    assert service.request("POST", "/topics/t", [by("full"), *FORGED], b"x").status == 200
    headers = chain.from_iterable(record.headers for record in service.broker.records)
    assert [value for name, value in headers if name == NAME] == [b"own"]


def test_the_option_needs_callers_that_have_names():
    with pytest.raises(StartUpError, match="--record-caller needs --callers"):
        build(Config(broker="memory:", records_caller=True), reactor=MemoryReactorClock())
