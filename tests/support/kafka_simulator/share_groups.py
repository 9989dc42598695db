"""The share groups of a simulated cluster (KIP-932), as far as tests with real brokers have shown them."""

from __future__ import annotations

from dataclasses import dataclass, field

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import (
    END_SHARE_SESSION,
    LEAVE_GROUP,
    OF_GROUP,
    AcknowledgeType,
    AcquiredRecords,
    Coordinator,
    DescribeShareGroupOffsetsRequest,
    FindCoordinatorRequest,
    SetGroupConfigsRequest,
    ShareAcknowledged,
    ShareAcknowledgeRequest,
    ShareFetched,
    ShareFetchRequest,
    ShareGroupHeartbeat,
    ShareGroupHeartbeatRequest,
    ShareGroupOffsets,
    SharePartition,
)

__all__ = ["SHARE_REQUESTS", "ShareGroups"]

SHARE_REQUESTS = (
    DescribeShareGroupOffsetsRequest,
    FindCoordinatorRequest,
    SetGroupConfigsRequest,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareGroupHeartbeatRequest,
)
DONE = (AcknowledgeType.GAP, AcknowledgeType.ACCEPT, AcknowledgeType.REJECT)


@dataclass
class _Delivery:
    count: int = 0
    holder: object = None
    until_s: float = 0.0
    is_done: bool = False


@dataclass
class _Session:
    """A session of one node."""

    topic: str
    partitions: tuple[int, ...] = ()
    epoch: int = 1
    connection: object = None


@dataclass
class _State:
    """The state of a group in one partition."""

    start: int | None = None
    """``None`` before the first fetch."""
    deliveries: dict[int, _Delivery] = field(default_factory=dict)
    is_acknowledged: bool = False

    def release(self, offset, attempts):
        delivery = self.deliveries[offset]
        delivery.holder = None
        delivery.is_done = delivery.is_done or delivery.count >= attempts
        self.is_acknowledged = self.is_acknowledged or delivery.is_done

    def move_start(self):
        while (delivery := self.deliveries.get(self.start)) is not None and delivery.is_done:
            del self.deliveries[self.start]
            self.start += 1


class ShareGroups:
    """Those of a cluster: a test may change the limits, and what the next answers say."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.most_sessions = 2000
        self.lock_s = 30.0
        self.attempts = 5
        self.is_supported = True
        self.settings_take_s = 0.0
        """The time until brokers know new settings of a group."""
        self.load_s = 0.0
        """The time in which a node loads the state of a group; until then, fetches find nothing."""
        self.members = set()
        self.sessions = {}
        """By node, group and member."""
        self.errors = {}
        """What the next answers to a class of requests say."""
        self._states = {}
        self._loaded_at_s = {}
        """By node and group. A node forgets a group when its last session ends with a connection."""
        self._of_connection = {}
        """The last session that was begun on each connection."""

    def close(self, connection):
        """As when a broker sees that a connection is closed: it ends the last session."""
        key = self._of_connection.pop(connection, None)
        session = self.sessions.get(key)
        if session is not None and session.connection is connection:
            self._end(key)
        if key is not None and not any(each[:2] == key[:2] for each in self.sessions):
            self._loaded_at_s.pop(key[:2], None)

    def elect(self, leader):
        """Let another broker lead all partitions. It knows of no delivery that was not acknowledged."""
        self.cluster.elect(leader)
        for state in self._states.values():
            for delivery in state.deliveries.values():
                if delivery.holder is not None:
                    delivery.holder, delivery.count = None, delivery.count - 1

    def held(self, group):
        """The offsets that some member holds."""
        self._expire()
        return sorted(
            offset
            for (name, _, _), state in self._states.items()
            if name == group
            for offset, delivery in state.deliveries.items()
            if delivery.holder is not None
        )

    def handler(self, node_id, connection, request):
        answer_by_s = self.cluster.clock.seconds() + getattr(request, "max_wait_ms", 0) / 1000
        begun = []

        def handle():
            self._expire()
            errors = self.errors.get(type(request))
            error = errors.pop(0) if errors else 0
            if isinstance(request, ShareFetchRequest):
                key = node_id, request.group, request.member_id
                if not begun:
                    begun.append(error or self._begin(key, connection, request))
                return self._fetch(key, begun[0], request.max_records, answer_by_s)
            if isinstance(request, ShareAcknowledgeRequest):
                return self._acknowledge(node_id, request, error)
            if isinstance(request, FindCoordinatorRequest):
                return Coordinator(error, -1 if error else self.cluster.brokers[0])
            if isinstance(request, SetGroupConfigsRequest):
                if not error:
                    known = self.cluster.configs.setdefault((OF_GROUP, request.group), {})
                    self.cluster.clock.callLater(self.settings_take_s, known.update, request.values)
                return error
            if isinstance(request, ShareGroupHeartbeatRequest):
                return self._heartbeat(request, error)
            return self._describe(request, error)

        return handle

    def _heartbeat(self, request, error):
        if error:
            return ShareGroupHeartbeat(error, 0, None)
        key = request.group, request.member_id
        if request.member_epoch == LEAVE_GROUP:
            self.members.discard(key)
            return ShareGroupHeartbeat(0, LEAVE_GROUP, None)
        self.members.add(key)
        if request.topic is None:
            return ShareGroupHeartbeat(0, request.member_epoch, None)
        topic_id, logs = self.cluster.known_to(self.cluster.brokers[0], request.topic)
        for number in logs:
            self._states.setdefault((request.group, request.topic, number), _State())
        return ShareGroupHeartbeat(0, 1, {topic_id: tuple(logs)})

    def _describe(self, request, error):
        topics = {}
        for (group, topic, number), state in self._states.items():
            if group == request.group and not error:
                topics.setdefault(topic, {})[number] = self._lag(state, topic, number)
        return ShareGroupOffsets(error, topics)

    def _lag(self, state, topic, number):
        if not state.is_acknowledged:
            return -1
        end = self.cluster.topics[topic][number].readable_to()
        done = sum(each.is_done for each in state.deliveries.values())
        return end - state.start - done

    def _fetch(self, key, error, most, answer_by_s):
        session = self.sessions.get(key)
        if error or session is None:
            return ShareFetched(error or ErrorCode.SHARE_SESSION_NOT_FOUND, 0, ())
        found, left, now_s = [], most, self.cluster.clock.seconds()
        is_loaded = now_s >= self._loaded_at_s.setdefault(key[:2], now_s + self.load_s)
        for number in session.partitions if is_loaded else ():
            part = self._acquire(key, session, number, left)
            if part is not None:
                found.append(part)
                left -= sum(run.last_offset - run.first_offset + 1 for run in part.acquired)
        if not found and now_s < answer_by_s:
            return None
        return ShareFetched(0, int(1000 * self.lock_s), tuple(found))

    def _begin(self, key, connection, request):
        session = self.sessions.get(key)
        if request.session_epoch == 0:
            if session is None and sum(each[0] == key[0] for each in self.sessions) >= self.most_sessions:
                return ErrorCode.SHARE_SESSION_LIMIT_REACHED
            topic = self._topic_of(key[0], request.topic_id)
            self.sessions[key] = _Session(topic, tuple(request.partitions), connection=connection)
            self._of_connection[connection] = key
            return 0
        if session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if request.session_epoch != session.epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        session.epoch += 1
        return 0

    def _topic_of(self, node_id, topic_id):
        topics = self.cluster.topics
        return next((each for each in topics if self.cluster.known_to(node_id, each)[0] == topic_id), "")

    def _error_of(self, node_id, topic, number):
        log = self.cluster.topics.get(topic, {}).get(number)
        if log is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return 0 if log.leader == node_id else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _acquire(self, key, session, number, most):
        node_id, group, _ = key
        error = self._error_of(node_id, session.topic, number)
        state = self._states.get((group, session.topic, number))
        if error or state is None:
            return SharePartition(number, error or ErrorCode.UNKNOWN_SERVER_ERROR)
        log = self.cluster.topics[session.topic][number]
        if state.start is None:
            settings = self.cluster.configs.get((OF_GROUP, group), {})
            at_first = isinstance(settings, dict) and settings.get("share.auto.offset.reset") == "earliest"
            state.start = log.start if at_first else log.end
        aborted = [range(each.first_offset, end) for each, end in log.aborted]
        runs = []
        for offset in range(state.start, log.readable_to()):
            delivery = state.deliveries.setdefault(offset, _Delivery())
            delivery.is_done = delivery.is_done or any(offset in each for each in aborted)
            if len(runs) >= most or delivery.is_done or delivery.holder is not None:
                continue
            delivery.count += 1
            delivery.holder, delivery.until_s = key, self.cluster.clock.seconds() + self.lock_s
            runs.append(AcquiredRecords(offset, offset, delivery.count))
        if not runs:
            return None
        wanted = {run.first_offset for run in runs}
        data = [data for first, last, data in log.batches if wanted & set(range(first, last + 1))]
        return SharePartition(number, 0, tuple(runs), b"".join(data))

    def _acknowledge(self, node_id, request, error):
        key = node_id, request.group, request.member_id
        session = self.sessions.get(key)
        is_last = request.session_epoch == END_SHARE_SESSION
        if session is None:
            error = error or ErrorCode.SHARE_SESSION_NOT_FOUND
        elif not is_last and request.session_epoch != session.epoch:
            error = error or ErrorCode.INVALID_SHARE_SESSION_EPOCH
        if error:
            return ShareAcknowledged(error, {}, 0)
        session.epoch += 1
        errors = {
            number: self._acknowledge_partition(key, session, number, some)
            for number, some in request.acknowledgements.items()
        }
        if is_last:
            self._end(key)
        return ShareAcknowledged(0, errors, int(1000 * self.lock_s))

    def _acknowledge_partition(self, key, session, number, acknowledgements):
        error = self._error_of(key[0], session.topic, number)
        if error:
            return error
        state = self._states[key[1], session.topic, number]
        kinds = {
            offset: each.type
            for each in acknowledgements
            for offset in range(each.first_offset, each.last_offset + 1)
            # Offsets that the group has passed are answered as a success.
            if offset >= state.start
        }
        held = {
            offset for offset, each in state.deliveries.items() if each.holder == key and not each.is_done
        }
        if kinds.keys() - held:
            return ErrorCode.INVALID_RECORD_STATE
        for offset, kind in kinds.items():
            delivery = state.deliveries[offset]
            if kind == AcknowledgeType.RENEW:
                delivery.until_s = self.cluster.clock.seconds() + self.lock_s
                continue
            state.is_acknowledged = True
            delivery.is_done = kind in DONE
            state.release(offset, self.attempts)
        state.move_start()
        return 0

    def _end(self, key):
        del self.sessions[key]
        self._release(lambda delivery: delivery.holder == key)

    def _expire(self):
        now_s = self.cluster.clock.seconds()
        self._release(lambda delivery: delivery.holder is not None and delivery.until_s <= now_s)

    def _release(self, is_meant):
        for state in self._states.values():
            for offset, delivery in state.deliveries.items():
                if is_meant(delivery):
                    state.release(offset, self.attempts)
            state.move_start()
