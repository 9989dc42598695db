"""
The names of dependencies that are used here and are not public: one that is missing is missing in one place.

Each of these dependencies has an upper bound in setup.py. Before it is raised, this has to pass.
"""

from __future__ import annotations

import importlib
import inspect
import io
import re

import pytest
from afkak.brokerclient import _KafkaBrokerClient
from afkak.client import KafkaClient
from afkak.common import BrokerMetadata
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from klein import Klein
from klein.resource import KleinResource
from twisted.internet.task import Clock
from twisted.internet.tcp import Connection as TCPConnection
from twisted.internet.tcp import Server
from twisted.logger import textFileLogObserver
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.scripts import twistd


def afkak_client():
    return KafkaClient([], reactor=Clock())


def afkak_broker_client():
    broker = BrokerMetadata(1, "localhost", 9092)
    return _KafkaBrokerClient(Clock(), lambda *_: None, broker, "tests", lambda _: 1.0)


def record_batch():
    builder = batch_builder()
    builder.append(0, 0, b"key", b"value", [])
    return DefaultRecordBatch(bytes(builder.build()))


def batch_builder():
    return DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1000,
    )


USED = [
    # The client of a cluster: sampleapp.brokers.kafka.cluster_client.afkak_client
    (
        afkak_client,
        [
            *["_brokers", "_closing", "_merge_topic_metadata", "_close_brokerclients"],
            *["_retry_policy", "_endpoint_factory", "_get_brokerclient"],
            *["clients", "reactor", "clientId"],
            *["topic_errors", "topic_partitions", "topics_to_brokers", "partition_meta"],
            *["reset_topic_metadata", "close"],
        ],
    ),
    # The connection to a broker: sampleapp.brokers.kafka.cluster_client.broker_connection
    (
        afkak_broker_client,
        [
            *["_dDown", "_connect", "_retryPolicy", "_endpointFactory", "_reactor", "requests"],
            *["proto", "connector", "host", "port", "clientId", "handleResponse", "disconnect"],
            *["connected", "close", "updateMetadata", "protocol"],
        ],
    ),
    # How requests are written: sampleapp.brokers.kafka.cluster_client.broker_connection
    (lambda: TCPConnection, ["getHandle", "TLS"]),
    # The verification of certificates: sampleapp.outgoing.verified_tls
    (lambda: TLSMemoryBIOProtocol, ["failVerification"]),
    # How a handshake fails: sampleapp.tls.endpoints
    (lambda: TLSMemoryBIOProtocol, ["_tlsShutdownFinished", "_handshakeDone"]),
    # Where twistd writes its log: sampleapp.logs.observer
    (lambda: twistd, ["_SomeApplicationRunner"]),
    (lambda: vars(twistd)["_SomeApplicationRunner"].loggerFactory({}), ["_getLogObserver"]),
    (lambda: textFileLogObserver(io.StringIO()), ["_outFile"]),
    # Record batches: sampleapp.brokers.kafka.batches
    (batch_builder, ["append", "build"]),
    (record_batch, ["__iter__"]),
    # How requests come in, and answers go out: sampleapp.web
    (lambda: Server, ["getHandle", "TLS"]),
    (Klein, ["url_map"]),
    (lambda: KleinResource(Klein()), ["_app"]),
]


@pytest.mark.parametrize(
    ("make", "name"),
    [pytest.param(make, name, id=name) for make, names in USED for name in names],
)
def test_what_is_used_without_being_public_is_there(make, name):
    owner = make()
    owner_name = owner.__name__ if inspect.isclass(owner) else type(owner).__name__
    assert hasattr(owner, name), f"{owner_name} has no {name} any more: see who uses it in src/sampleapp"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("afkak.brokerclient", "_KafkaBrokerClient"),
        ("aiokafka.record.util", "calc_crc32c"),
        ("aiokafka.errors", "CorruptRecordException"),
    ],
)
def test_what_is_imported_without_being_public_is_there(module, name):
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("dependency", ["afkak", "aiokafka", "klein", r"twisted\[tls\]"])
def test_each_dependency_with_private_names_has_an_upper_bound(project, dependency):
    [required] = re.findall(rf'^ +"({dependency} .*)",$', (project / "setup.py").read_text(), re.MULTILINE)
    assert re.search("==|<", required), required
