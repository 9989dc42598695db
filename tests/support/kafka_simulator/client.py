"""What stands for the client of a cluster: its connections, and its metadata."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import msgspec
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import deferLater

from sampleapp.brokers.kafka.cluster_client import RequestFailed
from sampleapp.brokers.kafka.connections.diagnostics import FailureReason
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import (
    OF_GROUP,
    ClusterMetadata,
    DescribeConfigsRequest,
    DescribedConfig,
    DescribeQuorumRequest,
    Fetched,
    FetchRequest,
    InitProducerIdRequest,
    ListedOffset,
    ListOffsetsRequest,
    MetadataRequest,
    PartitionMetadata,
    Produced,
    ProduceRequest,
    ProduceResponse,
    ProducerIdentity,
    Request,
    SessionFetched,
    SessionFetchRequest,
    TopicMetadata,
    TopicsRequest,
)
from tests.support.kafka_simulator.fate import ERRORS, Fate
from tests.support.kafka_simulator.share_groups import SHARE_REQUESTS

if TYPE_CHECKING:
    from tests.support.kafka_simulator.cluster import Cluster

__all__ = ["SimulatedClient"]

R = TypeVar("R")

_NO_QUORUM = FailureReason(
    sentence="It runs with ZooKeeper.", public="It runs with ZooKeeper.", lasting=True, incompatible=True
)
_NO_SHARE_GROUPS = FailureReason(
    sentence="It is too old.", public="It is too old.", lasting=True, incompatible=True
)
_POLL_S = 0.01
_METADATA_TIMEOUT_S = 5.0
_FIRST_PRODUCER_ID = 1001
_NEW_TOPIC_PARTITIONS = 2


class SimulatedClient:
    """
    What `ClusterClient` promises, on a `Cluster`.

    Each has metadata of its own, as it was when it was loaded.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.closed = False
        self.connections = []
        """Those of one caller each, in the order in which they were made."""
        self.open = {}
        """Who was asked what, by the Deferred that waits for the answer."""
        self._metadata = {}
        """Of each topic: Kafka's error code, the leaders of its partitions, its id."""
        self._epochs = {}
        """Of each topic: the epochs of those leaders."""
        self._connected = set()
        self._turn = 0

    # What is known of the cluster

    def load_metadata(self, topics: Iterable[str], *, auto_create: bool = False) -> Deferred[None]:
        topics = tuple(topics)
        self.cluster.loads.append((self.cluster.clock.seconds(), topics, auto_create))
        request = MetadataRequest(topics=topics, auto_create=auto_create)
        loading = self._send(None, request, self._answer_metadata, timeout_s=_METADATA_TIMEOUT_S)
        return loading.addCallback(self._learn)

    def describe_topics(self, topics: Sequence[str] | None) -> Deferred[Iterator[TopicMetadata | None]]:
        request = TopicsRequest(topics=topics, auto_create=False)
        describing = self._send(None, request, self._answer_description, timeout_s=_METADATA_TIMEOUT_S)
        if self.cluster.speaks_bytes:
            return describing
        return describing.addCallback(
            lambda metadata: chain.from_iterable((each, None) for each in metadata.topics)
        )

    def topic_error(self, topic: str) -> int | None:
        return self._known(topic)[0]

    def partitions_of(self, topic: str) -> Sequence[int]:
        return sorted(self._known(topic)[1])

    def leader_of(self, topic: str, partition: int) -> int | None:
        return self._known(topic)[1].get(partition)

    def topic_id(self, topic: str) -> UUID | None:
        return self._known(topic)[2]

    def leader_epoch_of(self, topic: str, partition: int) -> int:
        return self._epochs.get(topic, {}).get(partition, -1)

    def forget_topic(self, topic: str) -> None:
        self._metadata.pop(topic, None)
        self._epochs.pop(topic, None)

    def node_ids(self) -> Sequence[int]:
        return self.cluster.brokers

    def _learn(self, metadata):
        for each in metadata.topics:
            leaders = {part.partition: None if part.leader < 0 else part.leader for part in each.partitions}
            self._metadata[each.topic] = each.error, leaders, each.topic_id
            self._epochs[each.topic] = {part.partition: part.leader_epoch for part in each.partitions}

    def _known(self, topic):
        return self._metadata.get(topic, (None, {}, None))

    # Connections

    def is_connected(self, node_id: int) -> bool:
        if node_id in self.cluster.down:
            self._connected.discard(node_id)
        return not self.closed and node_id in self._connected

    def when_connected(self, node_id: int) -> Deferred[None]:
        if node_id in self.cluster.down or self.closed:
            return deferLater(self.cluster.clock, self.cluster.latency_s, self._reject_connection)
        self._connected.add(node_id)
        return succeed(None)

    def _reject_connection(self):
        raise RequestFailed(self.cluster.down_reason, sent=False)

    def close(self) -> Deferred[None]:
        self.closed = True
        for answer in list(self.open):
            answer.errback(RequestFailed(self.cluster.down_reason, sent=True))
        return deferLater(self.cluster.clock, self.cluster.latency_s, lambda: None)

    # Requests

    def request(self, node_id: int, request: Request[R], *, timeout_s: float) -> Deferred[R]:
        cluster = self.cluster
        if self.closed or isinstance(request, DescribeQuorumRequest):
            return fail(RequestFailed(cluster.down_reason if self.closed else _NO_QUORUM, sent=False))
        if isinstance(request, SHARE_REQUESTS):
            return self.send_on(self, node_id, request, timeout_s=timeout_s)
        cluster.asked.append((node_id, request))
        if isinstance(request, ProduceRequest):
            cluster.produces.append(request)
        elif isinstance(request, FetchRequest | SessionFetchRequest):
            # A fetcher reads from each broker in loops, which wait for the answers to their last requests.
            assert cluster.has_readers or not any(
                node_id == at and type(each) is type(request) for at, each in self.open.values()
            )
            cluster.fetches.append((node_id, request))
        return self._send(node_id, request, partial(self._handler, node_id), timeout_s=timeout_s)

    def new_connection(self, node_id: int) -> SimulatedConnection | None:
        if self.closed or node_id not in self.node_ids():
            return None
        self.connections.append(SimulatedConnection(self, node_id))
        return self.connections[-1]

    def send_on(self, connection, node_id, request, *, timeout_s):
        """Send a request that is about share groups."""
        cluster = self.cluster
        cluster.asked.append((node_id, request))
        if not cluster.share_groups.is_supported:
            return fail(RequestFailed(_NO_SHARE_GROUPS, sent=False))
        handler = partial(cluster.share_groups.handler, node_id, connection)
        return self._send(node_id, request, handler, timeout_s=timeout_s)

    def _handler(self, node_id, request):
        if isinstance(request, DescribeConfigsRequest):
            return lambda: self._configs(request)
        if isinstance(request, ProduceRequest):
            return lambda: self._produce(node_id, request)
        if isinstance(request, InitProducerIdRequest):
            return self._identify
        if isinstance(request, ListOffsetsRequest):
            return lambda: self._offsets(node_id, request)
        answer_by_s = self.cluster.clock.seconds() + request.max_wait_ms / 1000
        if isinstance(request, SessionFetchRequest):
            return partial(self._fetch_in_session, node_id, request, answer_by_s, [])
        return lambda: self._fetch(node_id, request, answer_by_s)

    def _send(self, node_id, request, handler, *, timeout_s):
        """
        :param handler: makes, of the request, what the broker does: returns the answer, or ``None`` while
            there is none yet.
        """
        over_wire = None
        if self.cluster.speaks_bytes:
            # kio takes a third of a second to import.
            from tests.support.kafka_simulator.wire import Exchange

            over_wire = Exchange(request)
        handle = handler(request if over_wire is None else over_wire.request)
        kind = FetchRequest if isinstance(request, SessionFetchRequest) else type(request)
        clock, fate = self.cluster.clock, self.cluster.fate_of(kind)
        lost = RequestFailed(self.cluster.down_reason, sent=True)
        if fate is Fate.NOT_SENT:
            return fail(RequestFailed(self.cluster.down_reason, sent=False))
        if fate is Fate.LOST_ON_THE_WAY:
            return self._ask(node_id, request, lambda: lost, timeout_s)
        if fate is Fate.LATE:
            clock.callLater(3 * timeout_s, handle)
            return self._ask(node_id, request, lambda: lost, timeout_s, delay_s=timeout_s)
        if fate in ERRORS:
            code, is_handled = ERRORS[fate]
            handle = _failed_afterwards(handle, code) if is_handled else partial(_rejected, request, code)
        if over_wire is not None:
            handle = _then(handle, over_wire.decoded)
        if fate is Fate.ANSWER_LOST:
            handle = _then(handle, lambda _: lost)
        delay_s = 0.9 * timeout_s if fate is Fate.REJECTED_LATE else None
        return self._ask(node_id, request, handle, timeout_s, delay_s=delay_s)

    def _ask(self, node_id, request, handle, timeout_s, *, delay_s=None):
        cluster, clock = self.cluster, self.cluster.clock
        give_up_at_s = clock.seconds() + timeout_s
        was_down = node_id in cluster.down
        if node_id is not None and not was_down:
            self._connected.add(node_id)
        answer = Deferred()
        self.open[answer] = (node_id, request)
        found = None
        if isinstance(request, ProduceRequest) and not was_down and node_id not in cluster.silent:
            # The leader has it before its answer is there, whatever becomes of who waits for it.
            found = handle()

        def done(result):
            del self.open[answer]
            if timer.active():
                timer.cancel()
            return result

        def look():
            nonlocal timer, found
            is_dead = node_id in cluster.down or cluster.down >= set(cluster.brokers)
            if is_dead or clock.seconds() >= give_up_at_s:
                answer.errback(RequestFailed(cluster.down_reason, sent=not was_down))
                return
            if found is None and node_id not in cluster.silent:
                found = handle()
            if found is None:
                timer = clock.callLater(_POLL_S, look)
            elif cluster.slow[node_id]:
                timer = clock.callLater(cluster.slow[node_id], _fire, answer, found)
            else:
                _fire(answer, found)

        answer.addBoth(done)
        timer = clock.callLater(cluster.latency_s if delay_s is None else delay_s, look)
        return answer

    # As brokers answer

    def _answer_metadata(self, request):
        return lambda: self._metadata_of(request)

    def _metadata_of(self, request):
        cluster = self.cluster
        # Not always the same broker is asked.
        self._turn += 1
        node_id = cluster.brokers[self._turn % len(cluster.brokers)]
        topics = []
        for topic in request.topics:
            if request.auto_create and cluster.may_create(topic):
                cluster.add_partitions(_NEW_TOPIC_PARTITIONS, topic=topic)
            topic_id, logs = cluster.known_to(node_id, topic)
            if topic in cluster.topic_errors:
                found = TopicMetadata(cluster.topic_errors[topic], topic, ())
            elif cluster.ignorant or not logs:
                cluster.ignorant = max(0, cluster.ignorant - 1)
                found = TopicMetadata(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic, ())
            else:
                partitions = [
                    _partition_metadata(number, log, log.epoch if cluster.tells_epochs else -1)
                    for number, log in logs.items()
                    if number not in cluster.unmentioned
                ]
                found = TopicMetadata(ErrorCode.NONE, topic, tuple(partitions), topic_id)
            topics.append(found)
        return ClusterMetadata((), tuple(topics), node_id, None)

    def _answer_description(self, request):
        return lambda: self._description_of(request.topics)

    def _description_of(self, topics):
        cluster = self.cluster
        found = [
            TopicMetadata(
                error=cluster.topic_errors.get(topic, 0 if cluster.topics.get(topic) else 3),
                topic=topic,
                # As brokers do, in no order.
                partitions=tuple(
                    _partition_metadata(number, log)
                    for number, log in reversed(cluster.topics.get(topic, {}).items())
                ),
                is_internal=topic.startswith("__"),
            )
            for topic in (reversed(cluster.topics) if topics is None else topics)
        ]
        return ClusterMetadata((), tuple(found), -1, None)

    def _log(self, node_id, topic, number, topic_id=None, epochs=MappingProxyType({})):
        known_id, logs = self.cluster.known_to(node_id, topic)
        if topic_id not in (None, known_id) or (topic_id is not None and not logs):
            return ErrorCode.UNKNOWN_TOPIC_ID
        log = logs.get(number)
        if log is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        epoch = epochs.get((topic, number), -1)
        if epoch not in (-1, log.epoch):
            return ErrorCode.FENCED_LEADER_EPOCH if epoch < log.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if log.leader != node_id else log

    def _identify(self):
        self.cluster.ids_given += 1
        producer_id = _FIRST_PRODUCER_ID + self.cluster.ids_given
        return ProducerIdentity(error=self.cluster.identity_error, producer_id=producer_id, epoch=0)

    def _produce(self, node_id, request):
        answer = []
        for topic, batches in request.topics:
            for partition, data in batches:
                log = self._log(node_id, topic, partition)
                if isinstance(log, int):
                    error, offset = log, -1
                elif len(data) > self.cluster.batch_limit:
                    error, offset = ErrorCode.MESSAGE_TOO_LARGE, -1
                else:
                    error, offset = log.append_batch(data)
                answer.append(Produced(topic, partition, error, offset, self.cluster.append_time_ms))
        return ProduceResponse(answer, self.cluster.throttle_ms)

    def _configs(self, request):
        answer = []
        for kind, name, keys in request.resources:
            found = self.cluster.configs.get((kind, name), {})
            if isinstance(found, int):
                answer.append(DescribedConfig(found, kind, name, {}))
            else:
                values = {key: found[key] for key in keys if key in found}
                own = frozenset(values) if kind == OF_GROUP else frozenset()
                answer.append(DescribedConfig(0, kind, name, values, own))
        return answer

    def _offsets(self, node_id, request):
        answer = []
        for topic, partitions in request.topics:
            for number, which in partitions:
                log = self._log(node_id, topic, number, epochs=request.leader_epochs)
                if not isinstance(log, int) and log.unlisted[which]:
                    log = log.unlisted[which].pop(0)
                if isinstance(log, int):
                    answer.append(ListedOffset(topic, number, log, -1, -1))
                else:
                    offset = log.listed(which, read_committed=request.read_committed)
                    answer.append(ListedOffset(topic, number, 0, -1, offset, log.epoch))
        return answer

    def _fetch(self, node_id, request, answer_by_s):
        if self.cluster.throttled:
            self.cluster.throttled -= 1
            return []
        wanted = [
            (topic, request.topic_ids.get(topic), number, offset)
            for topic, partitions in request.topics
            for number, offset in partitions
        ]
        answer = self._fetch_all(node_id, request, wanted, request.leader_epochs)
        said = any(map(_is_news, answer))
        late = not self.cluster.waits or self.cluster.clock.seconds() >= answer_by_s
        return answer if said or late else None

    def _fetch_in_session(self, node_id, request, answer_by_s, begun):
        """
        :param begun: empty at first: a request changes its session once, however long its answer takes.
        """
        cluster = self.cluster
        if cluster.throttled:
            cluster.throttled -= 1
            return SessionFetched(0, 0, [])
        if not begun:
            begun.append(cluster.sessions[node_id].begin(request, has_sessions=cluster.has_sessions))
        (session,) = begun
        if isinstance(session, int):
            return SessionFetched(session, 0, [])
        answer = self._fetch_all(
            node_id,
            request,
            [(*key, offset) for key, offset in session.offsets.items()],
            session.leader_epochs,
        )
        said = any(map(_is_news, answer))
        late = not cluster.waits or cluster.clock.seconds() >= answer_by_s
        return SessionFetched(0, session.id, session.news(answer)) if said or late else None

    def _fetch_all(self, node_id, request, wanted, leader_epochs):
        answer, room, empty = [], request.max_bytes, True
        for topic, topic_id, number, offset in wanted:
            if topic in self.cluster.unreadable:
                answer.append(Fetched(topic, number, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
                continue
            log = self._log(node_id, topic, number, topic_id, epochs=leader_epochs)
            if isinstance(log, int):
                answer.append(Fetched(topic, number, log))
                continue
            most = min(room, request.partition_max_bytes)
            fetched = log.fetched(
                number, offset, most, at_least_one=empty, read_committed=request.read_committed
            )
            answer.append(msgspec.structs.replace(fetched, topic=topic))
            room = max(0, room - len(answer[-1].records))
            empty = empty and not answer[-1].records
        return answer


class SimulatedConnection:
    """A simulated `Connection`."""

    def __init__(self, client: SimulatedClient, node_id: int) -> None:
        self._client = client
        self._node_id = node_id
        self.is_expiring = False
        self.has_expired = False
        """Whether the broker drops it at the next request."""
        self.closed = self.has_died = False

    def ask(self, request: Request[R], *, timeout_s: float) -> Deferred[R]:
        if self.closed:
            return fail(RequestFailed(self._client.cluster.down_reason, sent=False))
        if self.has_expired:
            return fail(RequestFailed(self._client.cluster.down_reason, sent=True)).addErrback(self._lost)
        asking = self._client.send_on(self, self._node_id, request, timeout_s=timeout_s)
        return asking.addErrback(self._lost)

    def close(self) -> Deferred[None]:
        assert not self.closed or self.has_died, "afkak's connections are closed once"
        self.closed = True
        self._client.cluster.share_groups.close(self)
        return succeed(None)

    def _lost(self, failure):
        # A request without an answer takes its connection with it.
        self._client.cluster.share_groups.close(self)
        return failure


def _partition_metadata(number, log, epoch=-1):
    return PartitionMetadata(0, number, -1 if log.leader is None else log.leader, (1, 2), (1,), epoch)


def _is_news(fetched):
    return bool(fetched.error or fetched.records or fetched.diverging is not None)


def _fire(answer, result):
    if isinstance(result, Exception):
        answer.errback(result)
    else:
        answer.callback(result)


def _then(handle, change):
    def changed():
        answer = handle()
        return None if answer is None else change(answer)

    return changed


def _failed_afterwards(handle, code):
    """Have a Produce request handled, and answered with an error all the same."""

    def change(answer):
        if not isinstance(answer, ProduceResponse):
            return answer
        failed = [
            Produced(each.topic, each.partition, each.error or code, -1 if each.error else each.offset)
            for each in answer.partitions
        ]
        return ProduceResponse(failed, answer.throttle_ms)

    return _then(handle, change)


def _rejected(request, code):
    if isinstance(request, InitProducerIdRequest):
        return ProducerIdentity(error=code, producer_id=-1, epoch=-1)
    assert isinstance(request, ProduceRequest | FetchRequest | ListOffsetsRequest)
    parts = [(topic, number) for topic, partitions in request.topics for number, _ in partitions]
    if isinstance(request, ProduceRequest):
        return ProduceResponse([Produced(*part, code, -1) for part in parts])
    if isinstance(request, FetchRequest):
        return [Fetched(*part, code) for part in parts]
    return [ListedOffset(*part, code, -1, -1) for part in parts]
