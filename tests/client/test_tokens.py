"""How the client says who calls, and what it makes of being rejected."""

from __future__ import annotations

import json
import traceback

import pytest
import pytest_twisted
import treq.testing
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from twisted.web.resource import Resource
from twisted.web.server import Site

from sampleapp.client import (
    Client,
    ClientError,
    Forbidden,
    ProblemError,
    TooManyRequests,
    Unauthorized,
    UnexpectedResponse,
)
from tests.support.client_servers import PROBLEM, V1, CannedResource, listening, problem
from tests.support.secrets import secret

TOKEN = secret("sampleapp_a-token-of-this-test-that-nobody-may-ever-see", "a token")


class Recorder(CannedResource):
    """Keeps what the Authorization of each request was."""

    def __init__(self, *answer, **kwargs):
        super().__init__(*answer, **kwargs)
        self.authorizations = []

    def render(self, request):
        self.authorizations.append(request.requestHeaders.getRawHeaders(b"authorization"))
        return super().render(request)


def client_of(resource, *, token=TOKEN):
    return Client(
        base_url="http://service.example",
        reactor=Clock(),
        token=token,
        agent=treq.testing.RequestTraversalAgent(resource),
    )


async def rejection(status, body, *, media_type=PROBLEM, headers=(), token=TOKEN):
    client = client_of(CannedResource(status, media_type, body, headers), token=token)
    with pytest.raises(ClientError) as caught:
        await client.publish(topic="t", content="c")
    return caught.value


@pytest_twisted.ensureDeferred
async def test_the_token_goes_with_every_request():
    resource = Recorder(200, V1, b"[]")
    client = client_of(resource)
    await client.readings()
    await maybeDeferred(client.publish, topic="t", content="c").addErrback(lambda _: None)
    assert resource.authorizations == [[f"Bearer {TOKEN}".encode()]] * 2


@pytest_twisted.ensureDeferred
async def test_without_a_token_none_is_sent():
    resource = Recorder(200, V1, b"[]")
    await client_of(resource, token=None).readings()
    assert resource.authorizations == [None]


@given(st.text().filter(lambda text: not text.isascii() or any(c in text for c in " \r\n:\"',") or not text))
def test_what_cannot_be_a_token_is_rejected_without_being_repeated(text):
    with pytest.raises(ValueError, match="a token has one or more characters out of") as caught:
        client_of(Resource(), token=text)
    assert len(text) < 4 or text not in str(caught.value)


@pytest_twisted.ensureDeferred
async def test_the_token_does_not_follow_a_redirect_to_another_place():
    elsewhere = Recorder(200, V1, b"[]")
    other_port, other_url = await listening(Site(elsewhere))
    here = CannedResource(307, "text/plain", b"", [("location", other_url)])
    port, url = await listening(Site(here))
    client = Client(base_url=url, reactor=reactor, token=TOKEN)
    with pytest.raises(UnexpectedResponse, match=f"refers to {other_url}"):
        await client.readings()
    assert elsewhere.authorizations == []
    await client.close()
    await port.stopListening()
    await other_port.stopListening()


@pytest_twisted.ensureDeferred
async def test_who_is_not_known_is_told_whether_a_token_was_sent():
    error = await rejection(401, problem(401))
    assert isinstance(error, Unauthorized)
    assert str(error) == "Title (401): Detail. The service does not accept the token."
    error = await rejection(401, problem(401), token=None)
    assert str(error) == "Title (401): Detail. No token was sent."
    assert (error.retriable, error.possibly_published) == (False, False)


@pytest_twisted.ensureDeferred
async def test_what_is_not_granted_was_not_published():
    error = await rejection(403, problem(403))
    assert isinstance(error, Forbidden)
    assert (error.retriable, error.possibly_published) == (False, False)


@pytest_twisted.ensureDeferred
async def test_who_sends_too_much_is_told_when_there_is_room_again():
    error = await rejection(429, problem(429), headers=[("retry-after", "7")])
    assert isinstance(error, TooManyRequests)
    assert str(error) == "Title (429): Detail. Try again in 7 seconds."
    assert (error.retriable, error.possibly_published, error.retry_after_s) == (True, False, 7)
    assert str(await rejection(429, problem(429))) == "Title (429): Detail."


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500])
@pytest_twisted.ensureDeferred
async def test_a_server_that_repeats_the_token_does_not_get_it_into_an_error(status):
    said = f"Who is Bearer {TOKEN}?"
    body = problem(status, detail=said, title=said, type=f"urn:{TOKEN}")
    errors = [
        await rejection(status, body),
        await rejection(status, json.dumps({"title": TOKEN}).encode()),
        await rejection(status, body, media_type="text/html", headers=[("location", f"/login?{TOKEN}")]),
    ]
    for error in errors:
        assert TOKEN not in "".join(traceback.format_exception(error))
        assert TOKEN not in repr(getattr(error, "problem", ""))


@pytest_twisted.ensureDeferred
async def test_a_word_that_is_a_short_token_stays_a_word():
    error = await rejection(400, problem(400, title="title"), token="title")
    assert isinstance(error, ProblemError)
    assert error.problem.title == "title"


def test_the_token_is_in_no_representation():
    client = client_of(Resource())
    assert TOKEN not in repr(client)
    assert TOKEN not in str(client)
