"""Servers for tests of the client: one that keeps the contract, and every other kind."""

from __future__ import annotations

import json

import treq.testing
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.web.client import Agent
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from sampleapp.client import (
    Client,
)

V1 = "application/json"


V2 = "application/vnd.sampleApp.v2+json"


PROBLEM = "application/problem+json"


class ContractResource(Resource):
    """The service as its contract describes it, with a topic that is a list."""

    isLeaf = True

    def __init__(self):
        super().__init__()
        self.readings = [("kitchen", 21.5), ("cellar", -5.0)]
        self.records = []
        self.requests = []

    def render_GET(self, request):
        accept = request.getHeader("accept")
        self.requests.append((request.path, accept, request.getHeader("if-none-match")))
        if accept == V2:
            body = json.dumps([{"id": name, "value": value} for name, value in self.readings])
        else:
            body = json.dumps([value for _, value in self.readings])
        request.setHeader("content-type", V2 if accept == V2 else V1)
        # setETag answers If-None-Match, and says so by a true value.
        return b"" if request.setETag(f'"{hash(body)}"'.encode()) else body.encode()

    def render_POST(self, request):
        assert request.path == b"/messages"
        assert request.getHeader("content-type") == V1
        message = json.loads(request.content.read())
        self.records.append(message)
        answer = {"topic": message["topic"], "partition": 0, "offset": len(self.records) - 1}
        request.setHeader("content-type", V1)
        return json.dumps(answer).encode()


class CannedResource(Resource):
    """One answer to every request."""

    isLeaf = True

    def __init__(self, status, content_type, body, headers=()):
        super().__init__()
        self.status, self.content_type, self.body, self.headers = status, content_type, body, headers

    def render(self, request):
        request.setResponseCode(self.status)
        request.setHeader("content-type", self.content_type)
        for name, value in self.headers:
            request.setHeader(name, value)
        return self.body


class SilentResource(Resource):
    """Takes requests, and perhaps begins an answer, but never ends one."""

    isLeaf = True

    def __init__(self, beginning=b""):
        super().__init__()
        self.beginning = beginning
        self.asked = Deferred()
        self.gone = Deferred()

    def render(self, request):
        request.notifyFinish().addErrback(lambda _: self.gone.callback(None))
        if self.beginning:
            request.write(self.beginning)
        self.asked.callback(None)
        return NOT_DONE_YET


class Arrivals:
    """An agent that tells when the headers of an answer have arrived, and its body is being read."""

    def __init__(self):
        self.agent = Agent(reactor)
        self.arrived = Deferred()

    def request(self, *args, **kwargs):
        def announce(response):
            # Afterwards, not now: this callback is called before the one that begins to read the body.
            reactor.callLater(0, self.arrived.callback, None)
            return response

        return self.agent.request(*args, **kwargs).addCallback(announce)


def in_memory(resource):
    """A client whose requests go straight into a resource."""
    return Client(
        base_url="http://service.example",
        reactor=Clock(),
        agent=treq.testing.RequestTraversalAgent(resource),
    )


def canned(status, content_type, body, headers=()):
    return in_memory(CannedResource(status, content_type, body, headers))


def problem(status, **members):
    document = {"type": "about:blank", "title": "Title", "status": status, "detail": "Detail.", **members}
    return json.dumps(document).encode()


async def listening(factory):
    port = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(factory)
    return port, f"http://127.0.0.1:{port.getHost().port}/"


class Listener(Protocol):
    """Waits for the end of a line, as a server of plain HTTP does."""

    def dataReceived(self, data):
        if not self.factory.heard.called:
            self.factory.heard.callback(data)


class Talker(Protocol):
    """Answers the first bytes of anything with what its factory says, and hangs up."""

    def dataReceived(self, data):
        self.transport.write(self.factory.answer)
        self.transport.loseConnection()
