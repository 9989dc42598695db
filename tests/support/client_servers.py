"""Servers for tests of the client: one that keeps the contract, and every other kind."""

from __future__ import annotations

import json

import treq.testing
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.web.client import Agent
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from sampleapp.client import (
    Client,
)

V1 = "application/json"


V2 = "application/vnd.sampleApp.v2+json"


NDJSON = "application/x-ndjson"


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
        if request.path != b"/messages":
            return self.take_raw(request, request.content.read())
        content_type = request.getHeader("content-type")
        assert content_type in {V1, NDJSON}
        body = request.content.read()
        messages = [json.loads(body)] if content_type == V1 else list(map(json.loads, body.splitlines()))
        answers = [self.stored(message) for message in messages]
        request.setHeader("content-type", content_type)
        return "\n".join(map(json.dumps, answers)).encode()

    def render_DELETE(self, request):
        assert b"key" in request.args
        return self.take_raw(request, None)

    def take_raw(self, request, value):
        (directory, topic) = request.postpath
        assert directory == b"topics"
        record = {"topic": topic.decode(), "value": value, "type": request.getHeader("content-type")}
        for (key,) in [request.args[b"key"]] if b"key" in request.args else []:
            record["key"] = key
        request.setHeader("content-type", V1)
        return json.dumps(self.stored(record)).encode()

    def stored(self, record):
        self.records.append(record)
        return {"topic": record["topic"], "partition": 0, "offset": len(self.records) - 1}


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


def talker(answer):
    """Make what answers so, whatever it is asked."""
    factory = Factory.forProtocol(Talker)
    factory.answer = answer
    return factory


class HangingUp(Protocol):
    """Answers the first request of each connection, and hangs up at the second one."""

    asked = False

    def dataReceived(self, data):
        self.factory.requests.append(data.partition(b" HTTP/")[0])
        if self.asked:
            self.transport.loseConnection()
            return
        self.asked = True
        body = b'{"topic": "t", "partition": 0, "offset": 0}'
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
