"""Faults that a seed draws: they come alone and together, are healed, and come again."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock

from confluent_kafka import KafkaException

from tests.chaos.clock import set_ahead
from tests.chaos.history import FOREIGN
from tests.chaos.logs import Logs
from tests.chaos.work_history import JAVA, Trouble
from tests.real_kafka.cluster import Cluster
from tests.real_kafka.dropping_proxy import DroppingProxy
from tests.real_kafka.node import Node
from tests.real_kafka.process import JavaProcess
from tests.real_kafka.world import ReturningService
from tests.real_kafka.writing import open_transaction, produce
from tests.support.waiting import wait_until

__all__ = ["CUT", "GROWN", "KEYS", "READINGS", "REMADE", "SHORT", "Nemesis", "create_topics"]

KEYS = "keys"
"""Takes idempotency keys; nothing in it is ever lost."""
GROWN = "grown"
"""Gets partitions, and records of other clients' transactions."""
SHORT = "short"
"""Loses its oldest records, by retention and by request."""
CUT = "cut"
"""Is led by replicas that were not in sync."""
REMADE = "remade"
"""Is deleted and made again."""
READINGS = "readings"

_PARTITIONS = 4
_MOST_PARTITIONS = 12
_RETENTION_MS = 15_000
_SEGMENT_MS = 5_000
_TOGETHER = (1, 1, 2, 3)
"""How many faults there are at once."""
_LASTS_S = (2, 14)
_QUIET_S = (2, 6)
_AHEAD_S = (-7200, -90, 90, 7200)
_LOSS_OF_ONE_IN = 20
_TRANSACTION_S = 60
_CUT = 30
"""Records that an unclean election loses; three times as many follow at once."""

_SPARE_LEASES = (
    "records_deleted",
    "topic_made_again",
    "partitions_added",
    "transaction_open",
    "gateway_killed",
    "gateway_stopped",
    "gateway_frozen",
    "gateway_clock_wrong",
    "java_killed",
    "java_frozen",
)
"""Faults after which the leases of all workers, or of those of one gateway and Java, go on."""

Fault = Callable[[], AbstractContextManager[None]]


def create_topics(cluster: Cluster, logs: Logs) -> None:
    """Create the topics of a run."""
    admin = cluster.admin
    for name in (KEYS, GROWN, REMADE, READINGS):
        admin.create(name, partitions=_PARTITIONS)
    admin.create(SHORT, partitions=2, retention_ms=_RETENTION_MS, segment_ms=_SEGMENT_MS)
    admin.create(CUT, assignment=[[1, 2], [2, 3], [3, 1]], min_insync_replicas=1)
    for name in (KEYS, GROWN, REMADE, READINGS, SHORT, CUT):
        logs.add(name, is_cut=name == CUT)


class Nemesis:
    """
    Faults of a cluster, of gateways and of the connections between them.

    A fault is a context manager: it begins with the ``with`` block, and is healed at its end.
    """

    def __init__(
        self,
        cluster: Cluster,
        proxies: Sequence[DroppingProxy],
        gateways: Sequence[ReturningService],
        clocks: Sequence[Path],
        logs: Logs,
        *,
        remaking: Lock,
        seed: int,
        java: JavaProcess | None = None,
    ) -> None:
        """
        :param clocks: the file of each gateway's clock.
        :param remaking: held while the topic `REMADE` must not be published to.
        :param java: a consumer of a share group, if there is one.
        """
        self.happened: Counter[str] = Counter()
        """How often each fault came."""
        self.troubles: list[Trouble] = []
        """The faults that workers may notice."""
        self._of_one: list[Trouble] = []
        self._cluster, self._proxies, self._gateways, self._clocks = cluster, proxies, gateways, clocks
        self._logs, self._remaking, self._java = logs, remaking, java
        self._random = random.Random(seed)
        self._bag: list[Fault] = []
        self._nodes: list[Node] = []
        self._idle: list[ReturningService] = []
        self._partitions = _PARTITIONS
        self._written = 0

    def faults(self) -> Sequence[Fault]:
        """All faults; an administrator's come first, who needs a cluster that works."""
        return [
            self.leaders_elected,
            self.records_deleted,
            self.topic_made_again,
            self.partitions_added,
            self.transaction_open,
            self.unclean_election,
            self.too_few_in_sync,
            self.broker_restarted,
            self.broker_killed,
            self.broker_frozen,
            self.all_brokers_killed,
            self.gateway_killed,
            self.gateway_stopped,
            self.gateway_frozen,
            self.gateway_clock_wrong,
            self.connections_cut,
            self.connections_reset,
            self.requests_held,
            self.responses_lost,
            *([] if self._java is None else [self.java_killed, self.java_frozen]),
        ]

    def turn(self) -> list[str]:
        """Have one to three faults at once, heal them, and be quiet; return their names."""
        drawn = sorted(self._draw(), key=self.faults().index)
        self._nodes = self._random.sample(self._cluster.nodes, len(self._cluster.nodes))
        self._idle = self._random.sample(self._gateways, len(self._gateways))
        begun_s = time.time()
        with ExitStack() as faults:
            for each in drawn:
                self.happened[each.__name__] += 1
                faults.enter_context(each())
            self._wait(_LASTS_S)
        self.heal()
        self._note_troubles(drawn, begun_s)
        self._wait(_QUIET_S)
        return [each.__name__ for each in drawn]

    def heal(self) -> None:
        """Have all nodes run, and all replicas in sync."""
        self._cluster.restore()
        for name in self._logs.topics:
            self._cluster.admin.wait_until_in_sync(name, 2 if name == CUT else 3)

    def _note_troubles(self, drawn: Sequence[Fault], begun_s: float) -> None:
        for each in self._of_one:
            each.ended_s = time.time()
        self.troubles += self._of_one
        self._of_one = []
        if not {each.__name__ for each in drawn} <= {*_SPARE_LEASES}:
            self.troubles.append(Trouble(begun_s, time.time()))

    def _concern(self, gateway: str, *, is_clock: bool = False) -> None:
        self._of_one.append(Trouble(time.time(), 0.0, gateway, is_clock=is_clock))

    def _draw(self) -> list[Fault]:
        """Each fault comes once before any comes again."""
        count = self._random.choice(_TOGETHER)
        if len(self._bag) < count:
            self._bag += self._random.sample(self.faults(), len(self.faults()))
        drawn, self._bag = self._bag[:count], self._bag[count:]
        return list(dict.fromkeys(drawn))

    def _wait(self, limits_s: tuple[float, float]) -> None:
        time.sleep(self._random.uniform(*limits_s))

    def _foreign(self, name: str, count: int) -> list[bytes]:
        """Values for another client to write."""
        self._written += count
        return [f"{FOREIGN} {name} {self._written - n}".encode() for n in range(count)]

    def _revive(self, node: Node) -> None:
        if node.is_running:
            node.thaw()
        else:
            node.start()

    @contextmanager
    def broker_killed(self) -> Iterator[None]:
        node = self._nodes.pop()
        node.kill9()
        yield
        self._revive(node)

    @contextmanager
    def broker_frozen(self) -> Iterator[None]:
        node = self._nodes.pop()
        if node.is_running:
            node.freeze()
        yield
        self._revive(node)

    @contextmanager
    def all_brokers_killed(self) -> Iterator[None]:
        self._cluster.kill9()
        yield
        for node in self._cluster.nodes:
            if not node.is_running:
                node.start()

    @contextmanager
    def broker_restarted(self) -> Iterator[None]:
        node = self._nodes.pop()
        node.stop()
        yield
        self._revive(node)

    @contextmanager
    def gateway_killed(self) -> Iterator[None]:
        with self._gateway(ReturningService.kill, ReturningService.start):
            yield

    @contextmanager
    def gateway_stopped(self) -> Iterator[None]:
        with self._gateway(ReturningService.stop, ReturningService.start):
            yield

    @contextmanager
    def gateway_frozen(self) -> Iterator[None]:
        with self._gateway(
            lambda gateway: gateway.signal(signal.SIGSTOP), lambda gateway: gateway.signal(signal.SIGCONT)
        ):
            yield

    @contextmanager
    def _gateway(
        self, begin: Callable[[ReturningService], None], end: Callable[[ReturningService], None]
    ) -> Iterator[None]:
        """Have a fault of a gateway that has none yet, if there is one."""
        if not self._idle:
            yield
            return
        gateway = self._idle.pop()
        self._concern(gateway.url)
        begin(gateway)
        yield
        end(gateway)

    @contextmanager
    def gateway_clock_wrong(self) -> Iterator[None]:
        clock = self._random.choice(self._clocks)
        self._concern(self._gateways[self._clocks.index(clock)].url, is_clock=True)
        set_ahead(clock, self._random.choice(_AHEAD_S))
        yield
        set_ahead(clock, 0)

    @contextmanager
    def java_killed(self) -> Iterator[None]:
        assert self._java is not None
        self._concern(JAVA)
        self._java.kill9()
        yield
        self._java.start()

    @contextmanager
    def java_frozen(self) -> Iterator[None]:
        assert self._java is not None
        if not self._java.is_running:
            # Killed at the same time.
            yield
            return
        self._concern(JAVA)
        self._java.freeze()
        yield
        self._java.thaw()

    @contextmanager
    def connections_cut(self) -> Iterator[None]:
        self._random.choice(self._proxies).drop_all()
        yield
        for each in self._proxies:
            each.drop_all()

    @contextmanager
    def connections_reset(self) -> Iterator[None]:
        self._random.choice(self._proxies).reset_all()
        yield
        for each in self._proxies:
            each.reset_all()

    @contextmanager
    def requests_held(self) -> Iterator[None]:
        proxy = self._random.choice(self._proxies)
        proxy.hold()
        yield
        proxy.resume()

    @contextmanager
    def responses_lost(self) -> Iterator[None]:
        for each in self._proxies:
            each.loss_of_one_in = _LOSS_OF_ONE_IN
        yield
        for each in self._proxies:
            each.loss_of_one_in = 0

    @contextmanager
    def leaders_elected(self) -> Iterator[None]:
        admin = self._cluster.admin
        for name in self._logs.topics:
            admin.elect(name, partitions=sorted(admin.leaders(name)))
        yield

    @contextmanager
    def too_few_in_sync(self) -> Iterator[None]:
        """Need three replicas in sync where there are two."""
        admin = self._cluster.admin
        for name in (KEYS, GROWN):
            admin.configure(name, min_insync_replicas=3)
        with self.broker_killed():
            yield
        self._cluster.restore()
        for name in (KEYS, GROWN):
            admin.configure(name, min_insync_replicas=2)

    @contextmanager
    def records_deleted(self) -> Iterator[None]:
        self._logs.look(SHORT)
        found = self._logs.topics[SHORT].latest
        if found:
            chosen = self._random.choice(found)
            self._cluster.admin.delete_records(SHORT, chosen.partition, chosen.offset)
        yield

    @contextmanager
    def partitions_added(self) -> Iterator[None]:
        if self._partitions < _MOST_PARTITIONS:
            self._partitions += 1
            self._cluster.admin.add_partitions(GROWN, self._partitions)
        yield

    @contextmanager
    def topic_made_again(self) -> Iterator[None]:
        with self._remaking:
            self._logs.look(REMADE)
            self._cluster.admin.delete(REMADE)
        self._wait((0, 3))
        with self._remaking:
            self._logs.renew(REMADE)
            self._cluster.admin.create(REMADE, partitions=self._random.randint(1, _PARTITIONS))
        yield

    @contextmanager
    def transaction_open(self) -> Iterator[None]:
        """A transaction of another client, which is committed or aborted at the end."""
        is_committed = self._random.random() < 0.5
        [value] = self._foreign("committed" if is_committed else "aborted", 1)
        producer = open_transaction(self._cluster, GROWN, value)
        yield
        self._cluster.restore()
        # Kafka has aborted it if it was open for too long.
        with suppress(KafkaException):
            (producer.commit_transaction if is_committed else producer.abort_transaction)(_TRANSACTION_S)

    @contextmanager
    def unclean_election(self) -> Iterator[None]:
        """Have a replica lead that lacks the last records, and then get some itself."""
        admin = self._cluster.admin
        partition = self._random.choice(sorted(admin.leaders(CUT)))
        leader = self._cluster.node(admin.leaders(CUT)[partition])
        [follower] = [self._cluster.node(n) for n in admin.replicas(CUT, partition) if n != leader.number]
        follower.kill9()
        wait_until(lambda: admin.in_sync(CUT, partition) == {leader.number}, "the follower is behind")
        produce(self._cluster, CUT, self._foreign("lost", _CUT), partition=partition)
        self._wait((1, 4))
        # Its readers find a log that is longer than it was.
        with self.gateway_frozen():
            leader.kill9()
            follower.start()
            wait_until(lambda: self._is_elected(partition, follower), "the follower leads")
            produce(self._cluster, CUT, self._foreign("kept", 3 * _CUT), partition=partition)
        leader.start()
        self._cluster.restore()
        yield

    def _is_elected(self, partition: int, node: Node) -> bool:
        admin = self._cluster.admin
        # It takes a moment until the controller knows the node.
        with suppress(KafkaException, AssertionError):
            admin.elect(CUT, partitions=[partition], unclean=True)
        return admin.leaders(CUT).get(partition) == node.number
