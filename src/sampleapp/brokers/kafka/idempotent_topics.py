"""
Admission of records with an identity: the topics that take them, their times, and their rate.

Kafka remembers a producer id, by which it recognises a record that is sent again, until
``producer.id.expiration.ms`` after the record's time (KIP-854; before Kafka 3.4, until
``transactional.id.expiration.ms``). But a broker that starts, or a new replica, knows only the ids of records
that are still there. So a topic whose ``retention.ms`` is less takes no identities. An operator may change
that at any time, and then restart a broker. To compare a record that is sent again with the first, the
service must also be allowed to read the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.cluster_client import ClusterClient, MetadataLoads, RequestFailed
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.producer.results import unavailable
from sampleapp.brokers.kafka.protocol import (
    OF_BROKER,
    OF_TOPIC,
    DescribeConfigsRequest,
    DescribedConfig,
    Fetched,
    FetchRequest,
)
from sampleapp.brokers.shared.idempotency import IdempotencySettings
from sampleapp.concurrency.failures import LogLimit
from sampleapp.concurrency.rates import Bucket, Rate
from sampleapp.errors import IdempotencyNotEnabled, PublishError, RecordRefused, TooManyIdempotencyKeys
from sampleapp.model import Record

REFRESH_S: Final = 3.0
"""The age of an answer, in seconds, from which on the topic is asked about again in the background."""
MOST_AGE_S: Final = 6.0
"""The age of an answer, in seconds, from which on a record waits for a new one."""
_PACE_S: Final = 1.0
"""The least time between two requests about a topic if none of its records waits, in seconds."""
_IN_USE_S: Final = 60.0
"""A topic is asked about together with others for this time after its last record, in seconds."""
_FORGET_S: Final = 600.0
"""A topic that no record with an identity came for is forgotten after about this time, in seconds."""
_TIMEOUT_S: Final = 5.0
_AT_ONCE: Final = 100
"""Maximum number of topics in one request: decoding their configuration takes about a millisecond."""
_MOST_AGE_MS: Final = 12 * 3600 * 1000
"""
Maximum distance from now of the time of a record with an identity, in milliseconds.

Brokers count from the record's time. So an older record would be forgotten too soon, and one in the far
future never. It is half of the default; if the brokers have less, it is half of theirs.
"""
_TOPIC_SETTINGS: Final = ("cleanup.policy", "retention.ms", "retention.bytes")
_EXPIRATIONS: Final = ("producer.id.expiration.ms", "transactional.id.expiration.ms")
_BEYOND: Final = 2**63 - 1
"""An offset without a record: the broker checks the right to read, and sends no records."""
_NOT_ALLOWED: Final = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


class _Topic(Struct):
    """A topic that exists, as of the last answer."""

    asked_s: float
    """When the last answer was asked for, in seconds of the reactor's clock."""
    change: int
    """The number of changes of the cluster that were noticed before that."""
    used_s: float
    """When a record with an identity last came for it, in seconds of the reactor's clock."""
    config: DescribedConfig | None
    """The last answer of a broker; ``None`` before the first."""
    rejection: str | None
    """A sentence: the reason why it takes no identities."""


class IdempotentTopics:
    """
    Decides which records with an identity may be published.

    A topic is asked about at its first record with an identity. While such records come, all these topics are
    asked about again after `REFRESH_S`, in one request, in the background. A record waits for an answer if
    the last one is older than `MOST_AGE_S`, if it is from before a change of the cluster, after which a
    broker may have forgotten identities (`cluster_changed`), and if it would be rejected. Any broker may
    answer: it compares with its own ``producer.id.expiration.ms``, and the keys are remembered for the least
    one of all brokers.
    """

    _log = Logger()

    def __init__(
        self,
        *,
        settings: IdempotencySettings,
        new_client: Callable[[], ClusterClient],
        clock: IReactorTime,
        now: Callable[[], float],
    ) -> None:
        """
        :param new_client: makes a client, at the first record with an identity.
        :param now: returns the time of day, in seconds since the epoch.
        """
        self._settings = settings
        self._new_client = new_client
        self._clock = clock
        self._now = now
        self._client: ClusterClient | None = None
        self._loads = MetadataLoads(
            ask=lambda node_id, topics: Deferred.fromCoroutine(self._ask(node_id, topics)),
            candidates=self._candidates,
            clock=clock,
        )
        self._topics: dict[str, _Topic] = {}
        self._changes = 0
        """The number of changes of the cluster that were noticed."""
        self._is_refreshing = False
        self._refresh_after_s = 0.0
        """The earliest time of the next request in the background, in seconds of the reactor's clock."""
        self._expiration: tuple[str, int] | None = None
        """How long brokers remember a producer id: the name of the setting, and milliseconds, if known."""
        self._limit = LogLimit(clock)
        self._bucket: Bucket | None = None
        """The records that may be published now, since the first one."""

    def disabled(self, topics: Collection[str]) -> Mapping[str, PublishError]:
        """Return an error for each topic that the operator has not enabled."""
        return {
            topic: IdempotencyNotEnabled(
                f"The topic {topic} takes no idempotency keys; the operator can enable them with "
                "--idempotent-topic."
            )
            for topic in topics
            if not self._settings.is_enabled_for(topic)
        }

    def rejections(self, topics: Collection[str]) -> Mapping[str, PublishError]:
        """Return an error for each topic that takes no identities, as far as it is known."""
        return {
            **self.disabled(topics),
            **{
                topic: IdempotencyNotEnabled(known.rejection)
                for topic in topics
                if (known := self._topics.get(topic)) is not None and known.rejection is not None
            },
        }

    def are_known(self, topics: Collection[str]) -> bool:
        """
        Return ``True`` if all topics take identities, or are disabled; otherwise call `learn` first.

        If an answer is old, all topics in use are asked about again in the background.
        """
        now_s = self._clock.seconds()
        if any(self._is_unsure(topic, now_s) for topic in topics):
            return False
        is_due = False
        for topic in topics:
            known = self._topics.get(topic)
            if known is not None:
                known.used_s = now_s
                is_due |= now_s - known.asked_s >= REFRESH_S
        if is_due and not self._is_refreshing and now_s >= self._refresh_after_s:
            self._is_refreshing = True
            self._refresh_after_s = now_s + _PACE_S
            Deferred.fromCoroutine(self._load(())).addErrback(self._not_loaded).addBoth(self._refreshed)
        return True

    def learn(self, topics: Collection[str]) -> Deferred[Sequence[str]]:
        """
        Ask a broker about topics that are not known.

        :return: fires with the topics that do not exist, or about which the broker has said nothing yet.
            Fails with `PublishError` if no broker answers. Cancelling it stops the waiting only.
        """
        return Deferred.fromCoroutine(self._learn(topics))

    def forget(self, topic: str) -> None:
        """Ask about a topic again before its next record: the service may not read it any more."""
        self._topics.pop(topic, None)

    def cluster_changed(self) -> None:
        """
        Ask about every topic again before its next record.

        A connection was lost, and a broker may have restarted; or another replica leads a partition.
        """
        self._changes += 1

    def too_many(self, total: int) -> PublishError | None:
        """Return the error if no request may have this number of records with an identity."""
        most = self._settings.burst
        if total <= most:
            return None
        return RecordRefused(
            f"A request with an idempotency key may have up to {most} messages; this one has {total}. "
            "Nothing was published."
        )

    def admit(self, records: Sequence[Record]) -> PublishError | None:
        """
        Charge records to their rate.

        :param records: not `too_many`; each has an identity, and a topic that is known.
        :return: the error if not all of them may be published; then none is charged.
        """
        for error in self.rejections({record.topic for record in records}).values():
            return error
        now_ms = int(self._now() * 1000)
        expires_ms = 2 * _MOST_AGE_MS if self._expiration is None else self._expiration[1]
        most_ms = min(_MOST_AGE_MS, expires_ms // 2)
        if any(abs(record.timestamp_ms - now_ms) > most_ms for record in records):
            return RecordRefused(
                f"With an idempotency key, the time of a message must be within {most_ms / 3_600_000:g} "
                "hours of now, since Kafka forgets a key by the time of its message. Nothing was published."
            )
        total, most, now_s = len(records), self._settings.burst, self._clock.seconds()
        if self._bucket is None:
            self._bucket = Bucket(Rate(self._settings.records_per_s, most), now_s=now_s)
        wait_s = self._bucket.wait_s(total, now_s=now_s)
        if wait_s > 0:
            return TooManyIdempotencyKeys(
                "More records with an idempotency key than this service allows; nothing was published.",
                retry_after_s=wait_s,
            )
        self._bucket.take(total, now_s=now_s)
        return None

    def stop(self) -> Deferred[None]:
        """Close the connections; `learn` fails. Fires when they are closed."""
        return succeed(None) if self._client is None else self._client.close()

    def _is_unsure(self, topic: str, now_s: float) -> bool:
        known = self._topics.get(topic)
        if known is None:
            return self._settings.is_enabled_for(topic)
        return (
            known.rejection is not None
            or known.change != self._changes
            or now_s - known.asked_s >= MOST_AGE_S
        )

    async def _learn(self, topics: Collection[str]) -> Sequence[str]:
        now_s = self._clock.seconds()
        unsure = [topic for topic in topics if self._is_unsure(topic, now_s)]
        if unsure:
            try:
                await self._load(unsure)
            except RequestFailed as error:
                raise unavailable(error.reason) from error
        return [topic for topic in unsure if topic not in self._topics]

    async def _load(self, topics: Collection[str]) -> None:
        """Ask about topics, and about all that are in use."""
        if self._client is None:
            self._client = self._new_client()
        now_s = self._clock.seconds()
        in_use = [
            name
            for name, known in self._topics.items()
            if known.rejection is None
            and now_s - known.asked_s >= _PACE_S
            and now_s - known.used_s < _IN_USE_S
        ]
        # The brokers may have changed since the last time.
        await self._client.load_metadata(())
        await self._loads.load([*topics, *in_use])

    def _refreshed(self, _: object) -> None:
        self._is_refreshing = False

    def _not_loaded(self, failure: Failure) -> None:
        # The last answer counts until it is too old.
        if not failure.check(RequestFailed):
            self._log.failure("Asking for the configuration of topics failed", failure=failure)

    def _candidates(self) -> Sequence[int]:
        client = self._client
        # Any broker can answer; one that is connected answers sooner.
        return (
            []
            if client is None
            else sorted(client.node_ids(), key=lambda node: not client.is_connected(node))
        )

    async def _ask(self, node_id: int, topics: Sequence[str]) -> None:
        assert self._client is not None  # noqa: S101 -- `_load` has made it
        for start in range(0, len(topics), _AT_ONCE):
            await self._ask_about(self._client, node_id, topics[start : start + _AT_ONCE])

    async def _ask_about(self, client: ClusterClient, node_id: int, topics: Sequence[str]) -> None:
        now_s, change = self._clock.seconds(), self._changes
        describing = Deferred.fromCoroutine(_describe(client, node_id, topics))
        fetch = FetchRequest(
            topics=[(topic, [(0, _BEYOND)]) for topic in topics],
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1,
            partition_max_bytes=1,
            read_committed=False,
        )
        fetched = await client.request(node_id, fetch, timeout_s=_TIMEOUT_S)
        configs, failure = await describing
        self._learn_expiration(configs.get((OF_BROKER, str(node_id))), failure)
        for each in fetched:
            last = self._topics.pop(each.topic, None)
            config = configs.get((OF_TOPIC, each.topic)) or (None if last is None else last.config)
            if each.error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._topics[each.topic] = _Topic(
                    asked_s=now_s,
                    change=change,
                    used_s=now_s if last is None else last.used_s,
                    config=config,
                    rejection=self._rejection(each, config, failure),
                )
        for name in [name for name, known in self._topics.items() if now_s - known.used_s >= _FORGET_S]:
            del self._topics[name]

    def _learn_expiration(self, config: DescribedConfig | None, failure: str | None) -> None:
        for name in _EXPIRATIONS:
            value = _number(config, name)
            if value is not None:
                self._expiration = name, value
                return
        self._warn(
            "",
            "For how long Kafka remembers idempotency keys (producer.id.expiration.ms) is not known. In a "
            "topic with a shorter retention, a repeat may make a second record. "
            + _why(config, failure, "the right DescribeConfigs on the cluster"),
        )

    def _rejection(self, fetched: Fetched, config: DescribedConfig | None, failure: str | None) -> str | None:
        topic = fetched.topic
        if fetched.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            rejection: str | None = (
                f"The topic {topic} takes no idempotency keys: this service is not allowed to read it, and "
                "cannot compare a repeat with the first message. An operator can grant the right Read on it."
            )
        else:
            rejection = self._examine(topic, config, failure)
        if rejection is not None:
            self._warn(topic, rejection)
        return rejection

    def _examine(self, topic: str, config: DescribedConfig | None, failure: str | None) -> str | None:
        """Return the reason for which records of a topic can be deleted too soon; warn if it is possible."""
        policy = None if config is None else config.values.get("cleanup.policy")
        if policy is not None and "delete" not in policy.split(","):
            # Compaction keeps the last batch of each producer id (KIP-98), and retention deletes nothing.
            return None
        retention_ms, retention_bytes = _number(config, "retention.ms"), _number(config, "retention.bytes")
        if retention_ms is None or retention_bytes is None:
            self._warn(
                topic,
                f"The retention of the topic {topic} is not known. If it is shorter than Kafka remembers "
                "idempotency keys (producer.id.expiration.ms), a repeat may make a second record. "
                + _why(config, failure, "the right DescribeConfigs on the topic"),
            )
        elif self._expiration is not None and 0 <= retention_ms < self._expiration[1]:
            name, expires_ms = self._expiration
            return (
                f"The topic {topic} takes no idempotency keys: Kafka deletes its records after "
                f"retention.ms={retention_ms}, which is less than {name}={expires_ms}, and then may forget "
                f"their keys. An operator can raise retention.ms to {expires_ms} or more, or lower {name}."
            )
        elif retention_bytes >= 0:
            self._warn(
                topic,
                f"The topic {topic} has retention.bytes={retention_bytes}. If Kafka deletes records for it "
                "before producer.id.expiration.ms, it may forget their idempotency keys, and a repeat may "
                "make a second record. Set retention.bytes=-1, or to more than comes in that time.",
            )
        return None

    def _warn(self, subject: str, sentence: str) -> None:
        if self._limit.is_news(subject, sentence):
            self._log.warn("{sentence}", sentence=sentence)


async def _describe(
    client: ClusterClient, node_id: int, topics: Sequence[str]
) -> tuple[Mapping[tuple[int, str], DescribedConfig], str | None]:
    """
    Ask a broker for its configuration and that of topics.

    :return: the configurations, by type and name; and a sentence if the request failed: the reason.
    """
    request = DescribeConfigsRequest(
        resources=[
            (OF_BROKER, str(node_id), _EXPIRATIONS),
            *((OF_TOPIC, topic, _TOPIC_SETTINGS) for topic in topics),
        ]
    )
    try:
        described = await client.request(node_id, request, timeout_s=_TIMEOUT_S)
    except RequestFailed as error:
        return {}, error.reason.sentence
    return {(each.resource_type, each.name): each for each in described}, None


def _number(config: DescribedConfig | None, name: str) -> int | None:
    """Return the value of a setting; ``None`` if it is not known."""
    value = None if config is None else config.values.get(name)
    try:
        return None if value is None else int(value)
    except ValueError:
        return None


def _why(config: DescribedConfig | None, failure: str | None, right: str) -> str:
    if config is not None and config.error in _NOT_ALLOWED:
        return f"The service needs {right}."
    if config is not None and config.error:
        return f"The Kafka broker answers {ErrorCode.name_of(config.error)}."
    return failure or "The Kafka broker does not tell it."
