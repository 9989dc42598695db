"""
A Kafka cluster without Kafka: librdkafka's mock cluster, and a tap on the wires to it.

    with MockCluster() as mock:
        mock.create_topic("t", partitions=3)
        mock.push_errors(PRODUCE, NOT_ENOUGH_REPLICAS)
        from_url(f"kafka://{mock.bootstrap}", reactor=reactor)

The mock comes with confluent-kafka and is driven through ctypes, in a process of its own: neither its
threads nor the interpreter's lock are shared with the tests. What it does not do: it never looks at
producer ids and sequences (without transactions), sizes, checksums, replicas and times; never cuts a
Fetch short that waits for records; returns one batch for each partition; and keeps 5 MiB of each.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from ctypes.util import find_library
from functools import cached_property
from importlib.util import find_spec
from multiprocessing import Pipe
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.protocol import Factory
from twisted.protocols.basic import Int32StringReceiver

PROCESS = Path(__file__).with_name("mock_cluster_process.py")
START_DEADLINE_S = 20.0
COMMAND_DEADLINE_S = 10.0

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 1, 2, 3, 18, 22
"""API keys: https://kafka.apache.org/protocol#protocol_api_keys"""
DROP_CONNECTION = -195
"""Not an error code of Kafka's: the mock closes the connection, without looking into the request."""
ALL_BROKERS = -1


class Request(NamedTuple):
    """A request that a broker of the mock has got."""

    broker: int
    api_key: int
    at_s: float
    """When, by a clock of the mock's own."""


def library() -> str:
    """Where librdkafka is: in the wheel of confluent-kafka, or, with one built here, in the system."""
    spec = find_spec("confluent_kafka")
    assert spec is not None, "confluent-kafka is not installed"
    assert spec.origin is not None
    bundled = Path(spec.origin).parent.parent / "confluent_kafka.libs"
    found = [str(path) for path in bundled.glob("librdkafka*.so*")] or [find_library("rdkafka")]
    assert found[0] is not None, f"there is no librdkafka in {bundled}, and none in the system"
    return found[0]


class MockCluster:
    """
    A running cluster, whose brokers have the node ids 1, 2, …, and which takes what Kafka 4 takes.

    A topic that is made by asking for it has four partitions, on three brokers if there are so many.
    Every method raises `AssertionError` if the mock rejects, or does not answer in time.
    """

    def __init__(self, *, brokers: int = 3) -> None:
        """Start it; whoever asks for an address waits until it can be connected to."""
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-S", str(PROCESS), library(), str(theirs.fileno()), str(brokers)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C in the terminal of the tests is for the tests, which then close it.
                start_new_session=True,
            )

    @cached_property
    def addresses(self) -> dict[int, tuple[str, int]]:
        """Host and port of each broker."""
        return dict(enumerate(self._command("addresses", deadline_s=START_DEADLINE_S), 1))

    @property
    def bootstrap(self) -> str:
        """Host and port of every broker, as in a URL."""
        return ",".join(f"{host}:{port}" for host, port in self.addresses.values())

    def __enter__(self) -> Self:
        try:
            _ = self.addresses
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and every connection."""
        self._pipe.close()
        self._process.kill()
        self._process.wait()

    def create_topic(self, name: str, *, partitions: int = 1, replicas: int = 1) -> None:
        """Make a topic; the leader of each partition is a random one of its replicas."""
        self._command("create_topic", name, partitions, replicas)

    def set_topic_error(self, name: str, code: int) -> None:
        """Have Metadata answer with an error for a topic that exists; 0 ends that."""
        self._command("set_topic_error", name, int(code))

    def set_leader(self, topic: str, partition: int, broker: int) -> None:
        """Move a partition; to -1 for a partition that nobody leads."""
        self._command("set_leader", topic, partition, broker)

    def broker_down(self, broker: int = ALL_BROKERS) -> None:
        """Close a broker's connections, and refuse others. Its partitions stay with it."""
        self._command("broker_down", broker)

    def broker_up(self, broker: int = ALL_BROKERS) -> None:
        """Accept connections again."""
        self._command("broker_up", broker)

    def set_round_trip(self, milliseconds: int, *, broker: int = ALL_BROKERS) -> None:
        """Handle what comes at once, and answer so much later."""
        self._command("set_round_trip", broker, milliseconds)

    def set_api_version(self, api_key: int, lowest: int, highest: int) -> None:
        """Offer these versions of a request, and close a connection on others; -1 and -1 for none."""
        self._command("set_api_version", api_key, lowest, highest)

    def restore_api_version(self, api_key: int) -> None:
        """Offer all versions again that Kafka 4 and the mock take."""
        self._command("restore_api_version", api_key)

    def push_errors(self, api_key: int, *codes: int) -> None:
        """Reject the next requests with these errors, one each, whichever brokers they come to."""
        self._command("push_errors", api_key, tuple(map(int, codes)))

    def clear_errors(self, api_key: int) -> None:
        """Forget what is left of those."""
        self._command("clear_errors", api_key)

    def track_requests(self) -> None:
        """Remember requests from now on."""
        self._command("track_requests")

    def requests(self, *api_keys: int) -> list[Request]:
        """The requests since then, in the order in which they came; of all API keys if none are named."""
        found = [Request(*each) for each in self._command("requests")]
        return [each for each in found if not api_keys or each.api_key in api_keys]

    def _command(self, name: str, *arguments: Any, deadline_s: float = COMMAND_DEADLINE_S) -> Any:
        self._pipe.send((name, arguments))
        try:
            assert self._pipe.poll(deadline_s), f"the mock cluster did not answer {name} in time"
            result, error = self._pipe.recv()
        except EOFError:
            raise AssertionError(f"the mock cluster ended at {name}") from None
        assert error is None, error
        return result


class MockClusters:
    """New clusters, each of which starts while the one before it is in use."""

    def __init__(self) -> None:
        self._next = MockCluster()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._next.close()

    def new(self) -> MockCluster:
        """One that nobody has used; enter it, and leave it when it is no longer needed."""
        new, self._next = self._next, MockCluster()
        return new


class Batch(NamedTuple):
    """The header of a record batch, as it was on the wire: https://kafka.apache.org/documentation/#recordbatch"""

    topic: str
    partition: int
    producer_id: int
    epoch: int
    base_sequence: int
    count: int
    codec: int


class TappedRequest(NamedTuple):
    """A request as it went by."""

    broker: int
    api_key: int
    version: int
    body: bytes
    """What comes after the header."""

    def batches(self) -> list[Batch]:
        """What a Produce request of version 3 to 8 carries."""
        assert self.api_key == PRODUCE
        assert 3 <= self.version <= 8
        reader = _Reader(self.body)
        reader.string()
        _acks, _timeout_ms, topics = reader.take(">hii")
        found = []
        for _ in range(topics):
            topic = reader.string().decode()
            (partitions,) = reader.take(">i")
            for _ in range(partitions):
                partition, length = reader.take(">ii")
                (records,) = reader.take(f"{length}s")
                attributes, _, _, _, producer_id, epoch, sequence, count = struct.unpack_from(
                    ">hiqqqhii", records, 21
                )
                found.append(
                    Batch(topic, partition, producer_id, epoch, sequence, count, codec=attributes & 0b111)
                )
        return found


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        taken = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return taken

    def string(self) -> bytes:
        (length,) = self.take(">h")
        return self.take(f"{max(length, 0)}s")[0]

    def rest(self) -> bytes:
        return self._data[self._at :]


class Tap:
    """
    A relay in front of each broker of a mock cluster, which sees every request.

    Metadata leads its users to the relays again. Answers to a request can be lost on their way, which
    the mock alone cannot do: it drops a connection before it looks into the request.

        async with Tap(mock, reactor) as tap:
            from_url(f"kafka://{tap.bootstrap}", reactor=reactor)
    """

    def __init__(self, mock: MockCluster, reactor: Any) -> None:
        self.requests: list[TappedRequest] = []
        """Those that went by, in that order."""
        self.connections = 0
        """How many were made so far."""
        self.addresses: dict[int, tuple[str, int]] = {}
        """Host and port that Metadata says for each broker; a test may change them."""
        self.alter: Callable[[int, bytes], bytes] = lambda _, answer: answer
        """Gets the API key of each answer, and the answer from its correlation id on; returns another one."""
        self._mock = mock
        self._reactor = reactor
        self._to_lose: dict[int, int] = {}
        self._ports: list[Any] = []
        self._open: set[_Incoming] = set()

    @property
    def bootstrap(self) -> str:
        """Host and port of each relay, as in a URL."""
        hosts = [port.getHost() for port in self._ports]
        return ",".join(f"{host.host}:{host.port}" for host in hosts)

    async def __aenter__(self) -> Self:
        for broker in self._mock.addresses:
            endpoint = TCP4ServerEndpoint(self._reactor, 0, interface="127.0.0.1")
            factory = Factory.forProtocol(lambda broker=broker: _Incoming(self, broker))
            port = await endpoint.listen(factory)
            self._ports.append(port)
            self.addresses[broker] = (port.getHost().host, port.getHost().port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        closed = [connection.closed for connection in self._open]
        self.drop_connections()
        for port in self._ports:
            await port.stopListening()
        await gatherResults(closed)

    def lose_answers(self, api_key: int, count: int = 1) -> None:
        """Let the next requests through to the broker, but drop the connection instead of answering."""
        self._to_lose[api_key] = self._to_lose.get(api_key, 0) + count

    @property
    def open_connections(self) -> int:
        """How many there are now."""
        return len(self._open)

    def drop_connections(self) -> None:
        """Drop every connection as it is."""
        for connection in list(self._open):
            connection.transport.abortConnection()

    def of(self, api_key: int) -> list[TappedRequest]:
        """The requests of one kind."""
        return [request for request in self.requests if request.api_key == api_key]

    def batches(self) -> list[Batch]:
        """Of all Produce requests, in order."""
        return [batch for request in self.of(PRODUCE) for batch in request.batches()]

    def loses(self, api_key: int) -> bool:
        """Whether this answer is one of those to lose."""
        lost = self._to_lose.get(api_key, 0) > 0
        if lost:
            self._to_lose[api_key] -= 1
        return lost

    def with_own_addresses(self, metadata: bytes) -> bytes:
        """An answer to Metadata that leads to the relays."""
        for broker, address in self._mock.addresses.items():
            for flexible in (False, True):
                metadata = metadata.replace(
                    _on_the_wire(broker, address, flexible=flexible),
                    _on_the_wire(broker, self.addresses[broker], flexible=flexible),
                )
        return metadata

    def begin(self, connection: _Incoming) -> Deferred[Any]:
        """Connect to the broker that a connection is for."""
        self.connections += 1
        self._open.add(connection)
        host, port = self._mock.addresses[connection.broker]
        factory = Factory.forProtocol(lambda: _Outgoing(self, connection))
        return TCP4ClientEndpoint(self._reactor, host, port).connect(factory)

    def end(self, connection: _Incoming) -> None:
        """It is closed."""
        self._open.discard(connection)


def _on_the_wire(broker: int, address: tuple[str, int], *, flexible: bool) -> bytes:
    host = address[0].encode()
    length = struct.pack(">B", len(host) + 1) if flexible else struct.pack(">h", len(host))
    return struct.pack(">i", broker) + length + host + struct.pack(">i", address[1])


class _Incoming(Int32StringReceiver):
    """The connection of a user of the tap."""

    MAX_LENGTH = 2**30

    def __init__(self, tap: Tap, broker: int) -> None:
        self.broker = broker
        self.closed: Deferred[None] = Deferred()
        self.outgoing: _Outgoing | None = None
        self._tap = tap
        self._waiting: list[bytes] = []

    def connectionMade(self) -> None:
        self.transport.setTcpNoDelay(True)
        self._tap.begin(self).addCallbacks(self._connected, lambda _: self.transport.abortConnection())

    def _connected(self, outgoing: _Outgoing) -> None:
        if self.closed.called:
            outgoing.transport.abortConnection()
            return
        self.outgoing = outgoing
        waiting, self._waiting = self._waiting, []
        for frame in waiting:
            self.stringReceived(frame)

    def stringReceived(self, string: bytes) -> None:
        if self.outgoing is None:
            self._waiting.append(string)
            return
        reader = _Reader(string)
        api_key, version, correlation_id = reader.take(">hhi")
        reader.string()
        self._tap.requests.append(TappedRequest(self.broker, api_key, version, reader.rest()))
        self.outgoing.api_keys[correlation_id] = api_key
        self.outgoing.sendString(string)

    def connectionLost(self, reason: Any = None) -> None:
        self._tap.end(self)
        self.closed.callback(None)
        if self.outgoing is not None:
            self.outgoing.transport.abortConnection()


class _Outgoing(Int32StringReceiver):
    """The connection to the broker behind it."""

    MAX_LENGTH = 2**30

    def __init__(self, tap: Tap, incoming: _Incoming) -> None:
        self.api_keys: dict[int, int] = {}
        self._tap = tap
        self._incoming = incoming

    def connectionMade(self) -> None:
        self.transport.setTcpNoDelay(True)

    def stringReceived(self, string: bytes) -> None:
        api_key = self.api_keys.pop(int.from_bytes(string[:4], "big"))
        if self._tap.loses(api_key):
            self._incoming.transport.abortConnection()
            return
        if api_key == METADATA:
            string = self._tap.with_own_addresses(string)
        self._incoming.sendString(self._tap.alter(api_key, string))

    def connectionLost(self, reason: Any = None) -> None:
        self._incoming.transport.abortConnection()
