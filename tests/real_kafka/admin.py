"""What an administrator of a cluster does, through librdkafka, on plain listeners."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

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

        def created() -> bool:
            try:
                self._done(
                    self._client.create_topics([NewTopic(topic, count, config=_settings(config), **placed)])
                )
            except KafkaException as error:
                # With ZooKeeper, the name of a topic that is gone may be taken for another moment.
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or self.exists(topic):
                    raise
                return False
            return True

        wait_until(created, f"{topic} can be made")
        wait_until(lambda: len(self.leaders(topic)) == count, f"leaders of {topic}")
        return topic

    def configure(self, topic: str, **config: object) -> None:
        """:param config: the settings of the topic that change, as of `create`."""
        changes = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in _settings(config).items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)

        def configured() -> bool:
            # It may have asked a broker that is frozen. To set them twice changes nothing.
            return self._is_done(self._client.incremental_alter_configs([resource]), KafkaError._TIMED_OUT)

        wait_until(configured, f"{topic} gets its settings")

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self._done(self._client.delete_topics([topic]))
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
        self._done(self._client.create_partitions([NewPartitions(topic, total)]))
        wait_until(lambda: len(self.leaders(topic)) == total, f"leaders of {topic}")

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Make an offset the first one of its partition."""

        def deleted() -> bool:
            # librdkafka sends this to the leader that it knows, and after an election does not ask for the
            # new one by itself.
            self._metadata()
            deleting = self._client.delete_records([TopicPartition(topic, partition, before)])
            return self._is_done(deleting, KafkaError.NOT_LEADER_FOR_PARTITION)

        wait_until(deleted, f"records of {topic} can be deleted")

    def elect(self, topic: str, *, partitions: Sequence[int], unclean: bool = False) -> None:
        """Have the preferred replicas, or any that are alive, lead."""
        kind = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
        chosen = [TopicPartition(topic, each) for each in partitions]
        # Without a timeout of its own: confluent-kafka 2.16 raises SystemError when it is given one.
        results = self._client.elect_leaders(kind, chosen).result(_TIMEOUT_S)
        # Where the right one leads already, that is said as an error.
        allowed = (None, KafkaError.ELECTION_NOT_NEEDED)
        rejected = {p: error for p, error in results.items() if error and error.code() not in allowed}
        assert not rejected, rejected

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
        self._done(self._client.create_acls(rules))
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
        wait_until(
            lambda: set(rules) <= set(self._client.describe_acls(of_this_topic).result(_TIMEOUT_S)),
            f"the rules for {topic} are known",
        )

    def set_password(self, user: str, password: str) -> None:
        """Let a user, who need not be there yet, in with SCRAM-SHA-256 and this password, and no other."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        change = UserScramCredentialUpsertion(user, info, password.encode())
        self._done(self._client.alter_user_scram_credentials([change]))

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
                # It has asked a broker that is frozen; next it may ask another.
                if error.args[0].code() not in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
                    raise
            return bool(found)

        wait_until(responded, "a broker says what there is")
        return found[0]

    def _is_done(self, futures: Mapping, again: int) -> bool:
        """Whether it was done, and not rejected with an error after which it may be asked for again."""
        try:
            self._done(futures)
        except KafkaException as error:
            if error.args[0].code() != again:
                raise
            return False
        return True

    def _done(self, futures: Mapping) -> None:
        for future in futures.values():
            future.result(_TIMEOUT_S)


def _settings(config: Mapping[str, object]) -> dict[str, str]:
    return {name.replace("_", "."): str(value) for name, value in config.items()}
