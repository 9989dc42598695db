"""How the nodes of a cluster are configured: what the tests need otherwise than Kafka has it by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

__all__ = [
    "CONTROLLER",
    "HOST",
    "PLAIN",
    "SETTINGS",
    "Listener",
    "kraft_settings",
    "listener_settings",
    "replication",
    "zookeeper_settings",
]

HOST = "127.0.0.1"


class Listener(Struct, frozen=True, kw_only=True):
    """A port of a node."""

    name: str
    protocol: str = "PLAINTEXT"
    settings: Mapping[str, str] = {}
    """What holds for this one only, without the prefix ``listener.name.NAME.``."""
    is_behind_proxy: bool = False
    """Whether clients are told another port, on which somebody else listens: ``NAME-ADVERTISED``."""


PLAIN = Listener(name="PLAIN")
CONTROLLER = Listener(name="CONTROLLER")

SETTINGS = {
    "inter.broker.listener.name": PLAIN.name,
    # A topic that is published to with auto_create has three partitions.
    "auto.create.topics.enable": "true",
    "num.partitions": "3",
    # The tests make records from 1970 to far beyond this age.
    "log.retention.ms": "-1",
    "log.message.timestamp.before.max.ms": str(2**63 - 1),
    "log.message.timestamp.after.max.ms": str(2**63 - 1),
    # Nobody has to wait for members that do not come, or for what fifty partitions take to be made.
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    # Leaders change when a test wants them to, not every five minutes.
    "auto.leader.rebalance.enable": "false",
    # Whatever can be compacted is, soon, and in little memory.
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": str(4 * 2**20),
    "log.initial.task.delay.ms": "500",
    # broker.session.timeout.ms stays at 9 s: how long a crashed leader is missed is a figure to report, and
    # it should be the one of clusters as they are run.
}


def kraft_settings(number: int, controllers: Mapping[int, int]) -> dict[str, str]:
    """:param controllers: the port of each node's controller."""
    return {
        "process.roles": "broker,controller",
        "controller.listener.names": CONTROLLER.name,
        "node.id": str(number),
        "controller.quorum.voters": ",".join(f"{n}@{HOST}:{port}" for n, port in controllers.items()),
    }


def zookeeper_settings(number: int, address: str) -> dict[str, str]:
    return {
        "broker.id": str(number),
        "zookeeper.connect": address,
        # zookeeper.session.timeout.ms stays at what the version has, for the reason given above.
    }


def replication(nodes: int) -> dict[str, str]:
    """How often everything is kept: three times where there are three nodes, two of which have to answer."""
    replicas, in_sync = (3, 2) if nodes >= 3 else (1, 1)
    return {
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(in_sync),
    }


def listener_settings(listeners: Sequence[Listener], ports: Mapping[str, int]) -> dict[str, str]:
    def address(listener: Listener, port_name: str) -> str:
        return f"{listener.name}://{HOST}:{ports[port_name]}"

    own = {
        f"listener.name.{listener.name.lower()}.{name}": value
        for listener in listeners
        for name, value in listener.settings.items()
    }
    return {
        "listeners": ",".join(address(each, each.name) for each in listeners),
        "advertised.listeners": ",".join(
            address(each, f"{each.name}-ADVERTISED" if each.is_behind_proxy else each.name)
            for each in listeners
            if each is not CONTROLLER
        ),
        "listener.security.protocol.map": ",".join(f"{each.name}:{each.protocol}" for each in listeners),
        **own,
    }
