"""What an administrator of a cluster does, through librdkafka, on plain listeners."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.support.waiting import wait_until

__all__ = [
    "Admin",
    "known_brokers",
    "new_topic",
]

_TIMEOUT_S = 20
_ANSWER_S = 3
# Of a broker that is frozen, killed or busy, and may have done what it was asked for all the same.
_NO_ANSWER = (
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError.REQUEST_TIMED_OUT,
)
_CLIENT = {
    # What it says on stderr is about brokers that the tests have stopped.
    "log_level": 0,
    "reconnect.backoff.max.ms": 500,
    "socket.timeout.ms": _ANSWER_S * 1000,
    "topic.metadata.refresh.interval.ms": 1000,
}


def known_brokers(address: str) -> set[int]:
    """The ids of the brokers that one node knows to be reachable; none if it does not answer."""
    try:
        return set(AdminClient({**_CLIENT, "bootstrap.servers": address}).list_topics(timeout=1).brokers)
    except KafkaException:
        return set()


def new_topic(name: str = "topic") -> str:
    """A name that no topic has."""
    return f"{name}-{uuid.uuid4().hex[:12]}"


class Admin:
    """Does one thing after the other, and waits until it has been done."""

    def __init__(self, bootstrap: str) -> None:
        self._replicas = len(bootstrap.split(","))
        self._client = AdminClient({**_CLIENT, "bootstrap.servers": bootstrap})

    def create(
        self,
        topic: str,
        *,
        partitions: int = 1,
        assignment: Sequence[Sequence[int]] | None = None,
        **config: object,
    ) -> str:
        """
        Create a topic, and wait until every partition has a leader.

        :param assignment: which nodes have which partition, the preferred leader first; by default Kafka
            decides.
        :param config: the topic's, with ``_`` for each dot.
        """
        count = len(assignment) if assignment else partitions
        # Before 2.4 brokers do not choose the number of replicas themselves (KIP-464).
        placed = {"replica_assignment": assignment} if assignment else {"replication_factor": self._replicas}

        new = NewTopic(topic, count, config=_settings(config), **placed)
        self._do(
            lambda: self._client.create_topics([new]),
            f"{topic} can be made",
            # With ZooKeeper, the name of a topic that is gone may be taken for another moment.
            again=lambda code: code == KafkaError.TOPIC_ALREADY_EXISTS and not self.exists(topic),
            already=KafkaError.TOPIC_ALREADY_EXISTS,
        )
        wait_until(lambda: len(self.leaders(topic)) == count, f"leaders of {topic}")
        return topic

    def configure(self, topic: str, **config: object) -> None:
        """:param config: the settings of the topic that change, as of `create`."""
        changes = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in _settings(config).items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
        self._do(lambda: self._client.incremental_alter_configs([resource]), f"{topic} gets its settings")

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self._do(
            lambda: self._client.delete_topics([topic]),
            f"{topic} can be deleted",
            already=KafkaError.UNKNOWN_TOPIC_OR_PART,
        )
        wait_until(lambda: not self.exists(topic), f"{topic} is gone")

    def controller(self) -> int:
        """The id of the node that is the controller, with ZooKeeper; with KRaft, that of any node; or -1."""
        return self._metadata().controller_id

    def exists(self, topic: str) -> bool:
        """Whether there is such a topic. Asking makes none."""
        return topic in self._metadata().topics

    def leaders(self, topic: str) -> dict[int, int]:
        """The node that leads each partition that has a leader."""
        found = self._partitions(topic)
        return {number: each.leader for number, each in found.items() if each.leader > 0}

    def replicas(self, topic: str, partition: int) -> set[int]:
        """The nodes that have a partition."""
        return set(self._partitions(topic)[partition].replicas)

    def in_sync(self, topic: str, partition: int) -> set[int]:
        """Those of the nodes that have all of it."""
        return set(self._partitions(topic)[partition].isrs)

    def wait_until_in_sync(self, topic: str, replicas: int) -> None:
        """Wait until that many replicas of every partition are in sync."""

        def in_sync() -> bool:
            found = self._partitions(topic).values()
            return bool(found) and all(len(each.isrs) == replicas for each in found)

        wait_until(in_sync, f"{replicas} replicas of {topic} are in sync")

    def wait_until_led_by(self, topic: str, node: int) -> None:
        """Wait until one node leads every partition."""
        wait_until(lambda: set(self.leaders(topic).values()) == {node}, f"{node} leads {topic}")

    def add_partitions(self, topic: str, total: int) -> None:
        """Give a topic more partitions, and wait until they have leaders."""
        self._do(
            lambda: self._client.create_partitions([NewPartitions(topic, total)]),
            f"{topic} can get partitions",
            already=KafkaError.INVALID_PARTITIONS,
        )
        wait_until(lambda: len(self.leaders(topic)) == total, f"leaders of {topic}")

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Make an offset the first one of its partition."""

        def deleting() -> Mapping[object, Future]:
            # librdkafka sends this to the leader that it knows, and after an election does not ask for the
            # new one by itself.
            self._metadata()
            return self._client.delete_records([TopicPartition(topic, partition, before)])

        self._do(
            deleting,
            f"records of {topic} can be deleted",
            again=lambda code: code == KafkaError.NOT_LEADER_FOR_PARTITION,
        )

    def elect(self, topic: str, *, partitions: Sequence[int], unclean: bool = False) -> None:
        """Have the preferred replicas, or any that are alive, lead."""
        kind = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
        chosen = [TopicPartition(topic, each) for each in partitions]

        def elected() -> bool:
            # Without a timeout of its own: confluent-kafka 2.16 raises SystemError when it is given one.
            [results] = self._do(
                lambda: {topic: self._client.elect_leaders(kind, chosen)}, f"leaders of {topic} can change"
            )
            # Where the right one leads already, that is said as an error.
            errors = {error.code() for error in results.values() if error} - {KafkaError.ELECTION_NOT_NEEDED}
            # A node that was frozen until now may have said that all are in sync.
            assert errors <= {KafkaError.PREFERRED_LEADER_NOT_AVAILABLE}, results
            return not errors

        wait_until(elected, f"leaders of {topic} are elected")

    def rule(self, topic: str, user: str, *, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> None:
        """
        Say what a user may do with a topic, and wait until a broker knows.

        Whatever is not said is denied then.
        """
        permissions = (AclPermissionType.ALLOW, allow), (AclPermissionType.DENY, deny)
        rules = [
            AclBinding(
                ResourceType.TOPIC,
                topic,
                ResourcePatternType.LITERAL,
                f"User:{user}",
                "*",
                AclOperation[operation],
                permission,
            )
            for permission, operations in permissions
            for operation in operations
        ]
        self._do(lambda: self._client.create_acls(rules), f"rules for {topic} can be made")
        # With KRaft it is the controller that has made them: a broker hears of them afterwards.
        of_this_topic = AclBindingFilter(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )

        def known() -> bool:
            [found] = self._do(
                lambda: {topic: self._client.describe_acls(of_this_topic)},
                f"the rules for {topic} are told",
            )
            return set(rules) <= set(found)

        wait_until(known, f"the rules for {topic} are known")

    def set_password(self, user: str, password: str) -> None:
        """Let a user, who need not be there yet, in with SCRAM-SHA-256 and this password, and no other."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        change = UserScramCredentialUpsertion(user, info, password.encode())
        self._do(lambda: self._client.alter_user_scram_credentials([change]), f"{user} can get a password")

    def _partitions(self, topic: str) -> Mapping:
        # The whole list: to ask for a topic by its name may make it.
        found = self._metadata().topics.get(topic)
        return {} if found is None else found.partitions

    def _metadata(self) -> ClusterMetadata:
        found = []

        def responded() -> bool:
            try:
                found.append(self._client.list_topics(timeout=_ANSWER_S))
            except KafkaException as error:
                # Next it may ask another broker.
                if error.args[0].code() not in _NO_ANSWER:
                    raise
            return bool(found)

        wait_until(responded, "a broker says what there is")
        return found[0]

    def _do(
        self,
        ask: Callable[[], Mapping[object, Future]],
        what: str,
        *,
        again: Callable[[int], bool] = lambda _: False,
        already: int | None = None,
    ) -> list:
        """
        Ask, and again while there is no answer, until it is done; return what the futures gave.

        :param ask: sends a request that does no harm when it is carried out twice.
        :param what: the request in words, for the test that fails.
        :param again: the errors after which to ask again.
        :param already: the error that says that an earlier request, which had no answer, was carried out.
        """
        may_be_done = False
        results = []

        def is_done() -> bool:
            nonlocal may_be_done
            try:
                results[:] = [future.result(_TIMEOUT_S) for future in ask().values()]
            except KafkaException as error:
                code = error.args[0].code()
                if code in _NO_ANSWER:
                    may_be_done = True
                    return False
                if again(code):
                    return False
                if not (may_be_done and code == already):
                    raise
            return True

        wait_until(is_done, what)
        return results


def _settings(config: Mapping[str, object]) -> dict[str, str]:
    return {name.replace("_", "."): str(value) for name, value in config.items()}
