"""A URL says which broker is used."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import pytest_twisted
from twisted.internet import reactor

from sampleapp.brokers import BrokerURLError, WorkSettings, from_url
from sampleapp.brokers.kafka.broker import KafkaBroker
from sampleapp.brokers.memory import MemoryBroker
from sampleapp.brokers.sqlite import SQLiteBroker
from sampleapp.model import Verdicts
from tests.support.brokers import record, within


@pytest.mark.parametrize("relative", [True, False])
def test_a_sqlite_url_names_a_file_relative_to_the_current_directory(tmp_path, monkeypatch, relative):
    monkeypatch.chdir(tmp_path)
    broker = from_url("sqlite:a b%20ü.db" if relative else f"sqlite:{tmp_path}/a b%20ü.db", reactor=reactor)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "a b%20ü.db").touch()
    broker.check()
    assert isinstance(broker, SQLiteBroker)
    # It took the empty file for its log.
    assert (tmp_path / "a b%20ü.db").stat().st_size > 0
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_making_a_broker_opens_nothing(tmp_path):
    from_url(f"sqlite:{tmp_path}/log.db", reactor=reactor)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["memory:", "MEMORY:"])
def test_a_memory_url_makes_a_memory_broker(url):
    assert isinstance(from_url(url, reactor=reactor), MemoryBroker)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "sampleapp.sqlite3",
        "sqlite:",
        "sqlite://user:hunter2@host/x",
        "sqlite::memory:",
        "sqlite:a\0b",
        "memory:hunter2",
        "kafka://user:hunter2@broker:9092",
        "amqp://user:hunter2@broker",
        "user:hunter2@broker",
        "hunter2://x",
    ],
)
def test_any_other_url_is_rejected_with_what_would_be_right_and_without_what_may_be_secret(url):
    with pytest.raises(BrokerURLError) as caught:
        from_url(url, reactor=reactor)
    message = str(caught.value)
    assert any(right in message for right in ("sqlite:PATH", "memory:", "credentials=FILE"))
    assert "hunter2" not in message
    assert "user:" not in message


@pytest.mark.parametrize("url", ["kafka://localhost", "KAFKA://a:1,[::1]:2?compression=lz4", "kafka+tls://a"])
def test_a_kafka_url_names_a_cluster_and_contacts_nobody(url):
    assert isinstance(from_url(url, reactor=None), KafkaBroker)


@pytest.mark.parametrize("url", ["kafka:localhost", "kafka://", "kafka://a?size=1", "kafka://a,hunter2:x"])
def test_a_wrong_kafka_url_is_rejected_with_what_would_be_right(url):
    with pytest.raises(BrokerURLError) as caught:
        from_url(url, reactor=None)
    message = str(caught.value)
    assert any(right in message for right in ("HOST:PORT", "the options are"))
    assert "hunter2" not in message
    assert caught.value.__cause__ is None


def test_a_broker_that_is_not_asked_for_is_not_imported():
    program = (
        "import sys; from sampleapp.brokers import from_url; "
        "from twisted.internet.task import Clock; from_url('memory:', reactor=Clock()); "
        "sys.exit('sqlite3' in sys.modules or 'afkak' in sys.modules "
        "or 'twisted.internet.reactor' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("scheme", ["memory:", "sqlite:"])
@pytest_twisted.ensureDeferred
async def test_a_broker_has_the_settings_of_workers(tmp_path, scheme):
    url = f"sqlite:{tmp_path}/log.db" if scheme == "sqlite:" else scheme
    broker = from_url(url, reactor=reactor, work=WorkSettings(lease_s=1000, attempts=1))
    broker.start()
    await within(broker.publish(record("t")))
    before_ms = 1000 * time.time()
    lease = await within(broker.work.pull("t", "g", most=1, wait_s=0))
    assert before_ms + 999_000 < lease.ends_ms < before_ms + 1_100_000
    await within(broker.work.acknowledge("t", "g", lease.token, Verdicts()))
    assert broker.work.given_up == 1
    await within(broker.stop(deadline_s=20))
