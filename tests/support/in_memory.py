"""The service's real HTTP site on connections that are only in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest.mock import patch

import h11
from msgspec.structs import astuple
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, DeferredList, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import ITCPTransport
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from zope.interface import implementer

from sampleapp.access import Callers, HookVerifier, parse_callers
from sampleapp.access.hook_verification import HookKeys
from sampleapp.interfaces import IBroker
from sampleapp.messages.schemas import Schema, compile_schemas
from sampleapp.model import Health, ReadResult, Record, RecordMetadata
from sampleapp.readings import Readings, follower
from sampleapp.service.assembly import build
from sampleapp.service.config import Config
from sampleapp.web import HTTPServer, Limits, RouteTable
from tests.support.readings import next_record
from tests.support.schema_worker import Processes
from tests.support.secrets import record_output


@implementer(IBroker)
class ManualBroker:
    """A broker whose every answer is up to the test."""

    work = None

    def __init__(self):
        self.records: list[Record] = []
        self.waiting: list[Deferred[RecordMetadata]] = []

    def check(self):
        pass

    def start(self):
        pass

    def publish(self, record):
        self.records.append(record)
        waiting = Deferred()
        self.waiting.append(waiting)
        return waiting

    def publish_many(self, records):
        publishing = DeferredList([self.publish(each) for each in records], consumeErrors=True)
        return publishing.addCallback(
            lambda ends: [end if succeeded else end.value for succeeded, end in ends]
        )

    def check_topics(self, topics, *, create=True, identified=False):
        return succeed({})

    def list_topics(self):
        return succeed([])

    def describe_topics(self, topics):
        return succeed([])

    def read(self, request):
        return succeed(ReadResult(topic_id="_", records=(), positions={0: 0}, ends={0: 0}, partitions=1))

    def follow(self, *, topic, observer):
        raise NotImplementedError

    def health(self):
        return Health(ready=True)

    def stop(self, *, deadline_s):
        return succeed(None)

    def acknowledge(self, index=0, *, partition=0, offset=None):
        """Answer one of the publishes that wait, and count it as the record of the next offset."""
        offset = len(self.records) - len(self.waiting) if offset is None else offset
        topic = self.records[len(self.records) - len(self.waiting) + index].topic
        self.waiting.pop(index).callback(RecordMetadata(topic=topic, partition=partition, offset=offset))


class PromptBroker(ManualBroker):
    """A broker that has stored each record at once."""

    def publish(self, record):
        publishing = super().publish(record)
        # A broker with groups of workers has a method of this name.
        ManualBroker.acknowledge(self, offset=len(self.records) - 1)
        return publishing


class Response(NamedTuple):
    """One response, as an HTTP implementation that is not ours reads it."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


@implementer(ITCPTransport)
class MemoryTransport(StringTransport):
    """The server's end of a connection, which remembers how it was closed."""

    half_closed = False
    aborted = False

    def write(self, data):
        record_output("answers", data)
        super().write(data)

    def loseWriteConnection(self):
        self.half_closed = True

    def abortConnection(self):
        self.aborted = True
        self.loseConnection()

    def setTcpNoDelay(self, enabled):
        pass

    def getTcpNoDelay(self):
        return True

    def setTcpKeepAlive(self, enabled):
        pass

    def getTcpKeepAlive(self):
        return False


class Connection:
    """A client's connection to a site."""

    def __init__(self, site: HTTPServer, transport=MemoryTransport):
        address = IPv4Address("TCP", "127.0.0.1", 40000)
        self.transport = transport(peerAddress=address)
        self.channel = site.buildProtocol(address)
        self.channel.makeConnection(self.transport)
        self.is_lost = False

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            if not self.is_lost:
                self.channel.dataReceived(piece)
            self.settle()

    def settle(self) -> None:
        """Let the connection end, if the server has closed it."""
        if self.transport.disconnecting and not self.is_lost:
            self.lose()

    def lose(self) -> None:
        self.is_lost = True
        # As Twisted's transports do.
        self.transport.producer = None
        self.channel.connectionLost(Failure(ConnectionDone()))

    @property
    def is_closed_for_reading(self) -> bool:
        """Whether a client would see the end of what the server sends."""
        return self.is_lost or self.transport.half_closed

    @property
    def sent(self) -> bytes:
        """All that the server has sent."""
        return self.transport.value()

    def responses(self, methods: Iterable[str]) -> list[Response]:
        """
        What the server has sent, as responses to requests of these methods.

        Fails if it sent anything that is not a whole response to one of them.
        """
        received = self.sent
        responses = []
        for method in methods:
            client = h11.Connection(h11.CLIENT)
            client.send(h11.Request(method=method, target="/", headers=[("Host", "h")]))
            client.send(h11.EndOfMessage())
            client.receive_data(received)
            event = client.next_event()
            while isinstance(event, h11.InformationalResponse):
                event = client.next_event()
            assert isinstance(event, h11.Response), event
            status, headers = event.status_code, dict(event.headers)
            assert len(headers) == len(event.headers), "a header field is there twice"
            body = b""
            while isinstance(event := client.next_event(), h11.Data):
                body += event.data
            assert isinstance(event, h11.EndOfMessage), event
            received = client.trailing_data[0]
            responses.append(Response(status, headers, bytes(body)))
        assert received == b""
        return responses


def callers_of(text: str) -> Callers:
    return parse_callers(text.encode(), name="callers.toml")


def schemas_of(by_name: dict[str, object]) -> dict[str, Schema]:
    """Compile schemas, each by its topic or the path of its file without ``.json``."""
    files = {f"{name}.json": json.dumps(schema).encode() for name, schema in by_name.items()}
    return compile_schemas(files, directory="schemas")


def write_schemas(directory: Path, by_name: dict[str, object]) -> str:
    for name, schema in by_name.items():
        path = directory / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(schema))
    return str(directory)


def write_private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


class ThreadsAtOnce:
    """A pool of threads whose work is done during the call."""

    def callInThreadWithCallback(self, on_result, work, *arguments):
        on_result(True, work(*arguments))  # noqa: FBT003 -- Twisted's argument


class InMemoryService:
    """The service that `sampleapp.service.assembly.build` creates, with another broker and reactor."""

    make_clock = Clock

    @staticmethod
    def make_broker(_clock):
        """Return the broker of a service for which a test chooses none."""
        return ManualBroker()

    def __init__(
        self,
        *,
        broker=None,
        callers=None,
        allowed_origins=(),
        allowed_webhook_origins=(),
        allowed_hosts=None,
        others=(),
        record_headers=(),
        record_queries=(),
        has_record_content_type=True,
        records_caller=False,
        schemas=None,
        secrets=None,
        on_response=None,
        are_processes_prompt=True,
        **limits,
    ):
        """
        :param allowed_hosts: that requests may be for, as well as loopback; any host by default.
        :param callers: a callers file, as text; by default everybody may do everything.
        :param secrets: of the hooks in the callers file: lists of them, by the names of the hooks.
        :param schemas: the schemas of topics, by topic.
        :param on_response: called for each response.
        :param are_processes_prompt: false if a test says when the process that checks contents works.
        :param others: applications that are served instead of the metrics, each bound to an object.
        """
        self.clock = self.make_clock()
        self.clock.advance(1_700_000_000)
        self.clock.getThreadPool = ThreadsAtOnce
        self.clock.callFromThread = lambda call, *arguments: call(*arguments)
        self.processes = Processes(are_prompt=are_processes_prompt)
        self.clock.spawnProcess = self.processes.spawnProcess
        self.broker = self.make_broker(self.clock) if broker is None else broker
        self.secrets = {} if secrets is None else secrets
        with TemporaryDirectory() as name:
            directory = Path(name)
            self.service = build(
                Config(
                    listen=(),
                    allowed_origins=allowed_origins,
                    allowed_webhook_origins=allowed_webhook_origins,
                    allowed_hosts=() if allowed_hosts is None else allowed_hosts,
                    is_open_to_everybody=allowed_hosts is None,
                    callers="" if callers is None else self._write_callers(directory, callers),
                    record_headers=record_headers,
                    record_queries=record_queries,
                    has_record_content_type=has_record_content_type,
                    records_caller=records_caller,
                    schemas="" if schemas is None else write_schemas(directory / "schemas", schemas),
                    limits=Limits(**limits),
                ),
                reactor=self.clock,
                broker=self.broker,
                now=self.clock.seconds,
            )
        self.gateway, self.table, self.documentation, self.site = astuple(self.service.web)
        if others:
            *apps, _metrics = self.table.apps
            self.table = RouteTable(*apps, *others)
            self.site.dispatch = self.table.dispatch
        self.follower = self.service.follower
        self.follower.caught_up()
        self.validation = self.gateway.validation
        self.authenticator = None
        self.hooks = HookVerifier({}, {}, seconds=self.clock.seconds, now=self.clock.seconds)
        if self.service.callers is None:
            # A service without callers has no hooks. Here, requests need no credentials for either.
            self.gateway.hooks.verifier = self.hooks
        else:
            self.authenticator, self.hooks = self.service.callers.authenticator, self.service.callers.hooks
            # Hooks of a test may have different secrets in files of one name.
            self.use_hooks(callers)
        if on_response is not None:
            self.site.on_response = on_response

    def _write_callers(self, directory: Path, text: str) -> str:
        for name, hook in callers_of(text).hooks.items():
            for file in hook.secret_files:
                write_private(directory / file, self.secrets[name][0])
        write_private(directory / "callers.toml", text.encode())
        return str(directory / "callers.toml")

    def use_callers(self, text: str) -> None:
        """Take another callers file."""
        self.authenticator.use(callers_of(text))
        self.use_hooks(text)

    def use_hooks(self, text: str) -> None:
        """Take the hooks of a callers file."""
        hooks = callers_of(text).hooks
        self.hooks.use(
            hooks,
            {
                name: HookKeys(hook.scheme.key_of(secret) for secret in self.secrets[name])
                for name, hook in hooks.items()
            },
        )

    @property
    def readings(self) -> Readings:
        """The readings as they are now."""
        return self.follower._readings  # noqa: SLF001 -- a test may look at the collection behind the responses

    def begin_again(self, **settings) -> None:
        """Begin again with a collection that has these settings, as if the topic had been made again."""
        with patch.object(follower, "Readings", partial(Readings, **settings)):
            self.follower.reset()
        self.follower.caught_up()

    def fail(self, *reasons: str) -> None:
        """Let the broker be unable to store records, for these reasons."""
        self.broker.health = lambda: Health(ready=not reasons, reasons=reasons, public_reasons=reasons)

    def read(self, key: bytes, value: bytes | None, **position) -> None:
        """One more record of the readings was read."""
        self.follower.record_received(next_record(key, value, **position))

    def give_same_request_ids(self) -> None:
        """Let answers be compared byte by byte with those of another service."""
        self.site.new_request_id = lambda: b"1"

    def connect(self, transport=MemoryTransport) -> Connection:
        return Connection(self.site, transport)

    def request(self, method, target="/", headers=(), body=None) -> Response:
        """Make one request on a connection of its own, and return the response to it."""
        connection = self.connect()
        connection.send(request_bytes(method, target, headers, body))
        (response,) = connection.responses([method])
        return response

    def post(self, body: bytes, headers=((b"Content-Type", b"application/json"),)) -> Response:
        return self.request("POST", "/messages", headers, body)


FRAMING = {b"content-length", b"transfer-encoding"}


def request_bytes(method, target="/", headers=(), body=None) -> bytes:
    """One request as it is sent; a POST whose headers do not frame a body has an empty one."""
    lines = [f"{method} {target} HTTP/1.1".encode(), b"Host: localhost:8080"]
    lines += [b"%b: %b" % header for header in headers]
    if body is None and method == "POST" and FRAMING.isdisjoint(name.lower() for name, _ in headers):
        body = b""
    if body is not None:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")
