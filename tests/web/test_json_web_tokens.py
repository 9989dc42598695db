"""Requests with JSON Web Tokens: which callers are authenticated, and when a client must try again."""

from __future__ import annotations

import json

import pytest
from twisted.internet.defer import Deferred

from sampleapp.access.issuer_keys import ASK_AGAIN_S, REFRESH_S, FetchFailed, IssuerKeys
from tests.support.callers import FULL, bearer, by
from tests.support.in_memory import InMemoryService, PromptBroker, callers_of, request_bytes
from tests.support.issuer import AUDIENCE, ISSUER, jwk, jwks, signed
from tests.web.http import JSON, assert_problem

ISSUERS = f"""
[issuers.names]
issuer = "{ISSUER}"
audience = "{AUDIENCE}"
jwks = "https://login.example/jwks.json"
caller_claim = "sub"
names_callers = true

[issuers.rights]
issuer = "https://rights.example"
audience = "{AUDIENCE}"
jwks = "https://rights.example/jwks.json"
publish_claim = "topics"
"""
MESSAGE = b'{"topic":"t","content":"c"}'


class Service(InMemoryService):
    """A service with issuers, which answer when a test says so."""

    def __init__(self):
        super().__init__(broker=PromptBroker(), callers=FULL + ISSUERS)
        self.fetches = {}
        callers = callers_of(FULL + ISSUERS)
        self.keys = IssuerKeys(
            fetch=self._fetch,
            clock=self.clock,
            on_withdrawn=lambda: self.authenticator.use(callers, verifier),
        )
        verifier = self.keys.use(callers, {})
        self.authenticator.use(callers, verifier)
        self.keys.start()

    def _fetch(self, url):
        self.fetches[url] = Deferred()
        return self.fetches[url]

    def answer(self, *keys, host="login.example"):
        self.fetches[f"https://{host}/jwks.json"].callback(jwks(*keys))

    def fail(self):
        self.fetches["https://login.example/jwks.json"].errback(FetchFailed("cannot be reached"))

    def token(self, *, valid_s=600, sub="full", **changes):
        return bearer(signed(sub=sub, exp=self.clock.seconds() + valid_s, **changes).decode())

    def get(self, *headers):
        return self.request("GET", "/", headers)

    def post(self, *headers):
        return self.request("POST", "/messages", [*JSON, *headers], MESSAGE)


@pytest.fixture
def service():
    made = Service()
    yield made
    made.keys.stop()


@pytest.fixture
def known(service):
    service.answer(jwk())
    service.answer(jwk("RS256"), host="rights.example")
    return service


def test_a_token_stands_for_the_caller_that_it_names(known):
    assert known.get(known.token()).status == 200
    assert known.post(known.token()).status == 200
    for rejected in (
        known.token(sub="nobody"),
        known.token(aud="other"),
        known.token(number=1, header={"kid": "ES256-0"}),
    ):
        answer = known.post(rejected)
        assert_problem(answer, 401)
        assert b'error="invalid_token"' in answer.headers[b"www-authenticate"]
    assert len(known.broker.records) == 1


def test_a_token_may_bring_rights_along(known):
    def token(topics):
        return known.token(iss="https://rights.example", algorithm="RS256", topics=topics)

    assert known.post(token(["t"])).status == 200
    assert known.post(token(["s", "t*"])).status == 200
    assert known.post(token(["s"])).status == 403
    assert known.post(token([])).status == 403
    assert known.get(token(["t"])).status == 403


def test_until_the_keys_are_there_a_caller_is_asked_to_come_again_before_its_body_is_taken(service):
    connection = service.connect()
    head = request_bytes("POST", "/messages", [*JSON, service.token(), (b"Content-Length", b"1000000")])
    connection.send(head)
    (answer,) = connection.responses(["POST"])
    assert_problem(answer, 503)
    assert json.loads(answer.body)["type"] == "urn:sampleapp:problem:issuer-keys-not-known"
    assert answer.headers[b"retry-after"] == b"1"
    assert service.broker.records == []
    # Others do not wait for them.
    assert service.get(by("full")).status == 200
    service.answer(jwk())
    assert service.post(service.token()).status == 200


def test_while_the_issuer_is_down_only_those_wait_whose_key_is_not_known(known):
    token = known.token(valid_s=10_000)
    known.clock.advance(REFRESH_S)
    known.fail()
    assert known.get(token).status == 200
    assert known.get(known.token()).status == 200
    assert known.get(known.token(number=1)).status == 503


def test_a_key_that_the_issuer_does_not_have_is_rejected_until_it_is_asked_again(known):
    token = known.token(number=1, valid_s=10_000)
    assert known.get(token).status == 503
    known.answer(jwk())
    assert known.get(token).status == 401
    known.clock.advance(ASK_AGAIN_S)
    assert known.get(token).status == 503
    known.answer(jwk(), jwk(number=1))
    assert known.get(token).status == 200


def test_a_token_ends_to_the_second_and_a_withdrawn_key_ends_all_of_its_tokens(known):
    short, long = known.token(valid_s=10), known.token(valid_s=10_000)
    assert known.get(short).status == known.get(long).status == 200
    known.clock.advance(10 + 29)
    assert known.get(short).status == 200
    known.clock.advance(1)
    assert known.get(short).status == 401
    known.clock.advance(REFRESH_S - 40)
    assert known.get(long).status == 200
    known.answer(jwk(number=1))
    assert known.get(long).status == 503


def test_the_name_of_who_calls_is_known_to_who_logs(known):
    names = []
    known.site.on_response = lambda exchange, _: names.append(exchange.caller)
    known.get(known.token())
    known.post(
        known.token(iss="https://rights.example", algorithm="RS256", sub="somebody else", topics=["t"])
    )
    assert names == ["full", "rights:somebody%20else"]


END_OF_STREAM = b"\r\n0\r\n\r\n"


def open_stream(service, *headers):
    connection = service.connect()
    connection.send(request_bytes("GET", "/changes", headers))
    service.clock.pump([1] * 20)
    assert connection.sent.startswith(b"HTTP/1.1 200 OK\r\n")
    assert END_OF_STREAM not in connection.sent
    return connection


def test_a_stream_ends_within_five_seconds_after_its_token_has_expired(service):
    service.answer(jwk())
    connection = open_stream(service, service.token(valid_s=60))
    # Clocks may differ by half a minute.
    service.clock.pump([1] * 69)
    assert END_OF_STREAM not in connection.sent
    service.clock.pump([1] * 6)
    assert END_OF_STREAM in connection.sent


def test_a_stream_ends_when_the_issuer_withdraws_the_key_of_its_token(service):
    service.answer(jwk())
    connection = open_stream(service, service.token(valid_s=10_000))
    service.clock.advance(REFRESH_S)
    service.answer(jwk(number=1))
    service.clock.pump([1] * 5)
    assert END_OF_STREAM in connection.sent


def test_a_stream_ends_when_its_issuer_is_not_in_the_file_any_more(service):
    service.answer(jwk())
    connection = open_stream(service, service.token(valid_s=10_000))
    service.use_callers(FULL)
    service.clock.pump([1] * 5)
    assert END_OF_STREAM in connection.sent
