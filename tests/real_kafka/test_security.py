"""TLS and SASL with real listeners: what lets the service in, and what it says if something is wrong."""

from __future__ import annotations

import re
import time
from functools import partial

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.task import deferLater
from twisted.logger import formatEvent, globalLogPublisher

from sampleapp.errors import PublishError
from tests.real_kafka.admin import new_topic
from tests.real_kafka.listeners import (
    PASSWORD,
    SESSION_LIFETIME_S,
    USER,
    unsecured_token,
    write_credentials,
)
from tests.real_kafka.reading import read_all
from tests.real_kafka.service import in_thread, kafka_url, post, ready, running
from tests.real_kafka.versions import KRAFT, PEM, REAUTHENTICATION, SCRAM, needs
from tests.support.brokers import Recorder, eventually, outcomes, record, within
from tests.support.files import written
from tests.support.secrets import secret

WRONG_PASSWORD = secret("Plugh-43-do-not-show", "a password")
MECHANISMS = (
    "PLAIN",
    pytest.param("SCRAM-SHA-256", marks=needs(SCRAM)),
    pytest.param("SCRAM-SHA-512", marks=needs(SCRAM)),
)


@pytest.fixture
def credentials(tmp_path):
    """A function that writes a file with a user's name and password."""
    return partial(write_credentials, tmp_path)


@pytest.fixture
def said():
    """What is logged, as it would be printed."""
    lines = []

    def observe(event):
        lines.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)
    yield lines
    globalLogPublisher.removeObserver(observe)
    assert not [line for line in lines if PASSWORD in line or WRONG_PASSWORD in line]


async def assert_published(cluster, url):
    topic = await in_thread(cluster.admin.create, new_topic("secured"), partitions=3)
    async with running(url) as broker:
        await ready(broker)
        for n in range(30):
            await within(broker.publish(record(topic, b"%d" % n, key=b"%d" % n)))
        assert broker.health().reasons == ()
    stored = await in_thread(read_all, cluster.bootstrap, topic)
    assert sorted(int(each.value) for each in stored) == list(range(30))


async def assert_told(cluster, said, url, pattern):
    """Nothing can be published, and one sentence says why, in the log and to whoever asks for the health."""
    topic = await in_thread(cluster.admin.create, new_topic("refused"))
    # While it may still come right, a record waits.
    async with running(f"{url}{'&' if '?' in url else '?'}delivery_timeout=2") as broker:
        expression = re.compile(pattern)
        await eventually(lambda: any(expression.search(each) for each in broker.health().reasons))
        assert not broker.health().ready
        reasons = broker.health().reasons
        [rejected] = await outcomes([broker.publish(record(topic))])
    assert isinstance(rejected, PublishError), rejected
    assert not rejected.possibly_published
    # Whoever publishes is told nothing of the inside.
    assert not re.search(r"127\.0\.0\.1|localhost|\.pem", str(rejected)), rejected
    assert len(reasons) == 1, reasons
    # Another reason than the first is logged a minute later: the first attempt may have taken too long.
    assert [line for line in said if line and (expression.search(line) or " in time" in line)], said
    for text in (*reasons, str(rejected)):
        assert PASSWORD not in text
        assert WRONG_PASSWORD not in text
    assert await in_thread(read_all, cluster.bootstrap, topic) == []


@needs(PEM)
@pytest_twisted.ensureDeferred
async def test_tls(one_node, certificates, said):
    await assert_published(one_node, kafka_url(one_node, "TLS", tls=True, ca=certificates.ca))


@needs(PEM)
@pytest_twisted.ensureDeferred
async def test_mutual_tls(one_node, certificates, said):
    client = certificates.client
    await assert_published(
        one_node,
        kafka_url(
            one_node, "MTLS", tls=True, ca=certificates.ca, certificate=client.certificate, key=client.key
        ),
    )


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest_twisted.ensureDeferred
async def test_sasl(one_node, mechanism, credentials, said):
    await assert_published(one_node, kafka_url(one_node, "SASL", sasl=mechanism, credentials=credentials()))


@pytest_twisted.ensureDeferred
async def test_a_token(one_node, tmp_path, said):
    path = written(tmp_path / "token", unsecured_token(until_s=time.time() + 60))
    await assert_published(
        one_node, kafka_url(one_node, "TOKEN", sasl="OAUTHBEARER", token_file=path, extensions="someThing=1")
    )
    assert not [line for line in said if line and path.read_text() in line]


@pytest_twisted.ensureDeferred
async def test_a_token_that_has_expired(one_node, tmp_path, said):
    path = written(tmp_path / "token", unsecured_token(until_s=time.time() - 60))
    url = kafka_url(one_node, "TOKEN", sasl="OAUTHBEARER", token_file=path)
    await assert_told(one_node, said, url, r"rejected the token for OAUTHBEARER \(invalid_token\)")
    assert not [line for line in said if line and path.read_text() in line]


@needs(PEM, SCRAM)
@pytest_twisted.ensureDeferred
async def test_sasl_over_tls_with_credentials_from_the_environment(one_node, certificates, monkeypatch, said):
    monkeypatch.setenv("SAMPLEAPP_KAFKA_USERNAME", USER)
    monkeypatch.setenv("SAMPLEAPP_KAFKA_PASSWORD", PASSWORD)
    await assert_published(
        one_node, kafka_url(one_node, "SASLTLS", tls=True, ca=certificates.ca, sasl="SCRAM-SHA-512")
    )


@needs(SCRAM, REAUTHENTICATION)
@pytest_twisted.ensureDeferred
async def test_sessions_that_end_after_a_while_cost_nothing(one_node, credentials, said):
    topic = await in_thread(one_node.admin.create, new_topic("sessions"))
    recorder = Recorder()
    published = 0
    until_s = reactor.seconds() + 3 * SESSION_LIFETIME_S
    async with running(
        kafka_url(one_node, "SASL", sasl="SCRAM-SHA-256", credentials=credentials(), idempotence="false")
    ) as broker:
        broker.follow(topic=topic, observer=recorder)
        while reactor.seconds() < until_s:
            # Fails with the first answer that is lost.
            await within(broker.publish(record(topic, b"%d" % published)))
            published += 1
            await deferLater(reactor, 0.01)
        await recorder.until(published)
    assert recorder.values() == [b"%d" % n for n in range(published)]
    assert [line for line in said if line and ("No connection" in line or "still trying" in line)] == []


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest_twisted.ensureDeferred
async def test_a_wrong_password(one_node, mechanism, credentials, said):
    url = kafka_url(one_node, "SASL", sasl=mechanism, credentials=credentials(password=WRONG_PASSWORD))
    await assert_told(one_node, said, url, r"user name|password|credentials")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest_twisted.ensureDeferred
async def test_a_user_that_there_is_not(one_node, mechanism, credentials, said):
    url = kafka_url(one_node, "SASL", sasl=mechanism, credentials=credentials(user="nobody"))
    await assert_told(one_node, said, url, r"user name|password|credentials")


@needs(PEM, SCRAM)
@pytest_twisted.ensureDeferred
async def test_a_mechanism_that_the_broker_does_not_offer(one_node, certificates, credentials, said):
    url = kafka_url(
        one_node, "SASLTLS", tls=True, ca=certificates.ca, sasl="PLAIN", credentials=credentials()
    )
    await assert_told(one_node, said, url, r"PLAIN.*SCRAM-SHA-512")


@pytest_twisted.ensureDeferred
async def test_sasl_where_there_is_none(one_node, credentials, said):
    url = kafka_url(one_node, sasl="PLAIN", credentials=credentials())
    await assert_told(one_node, said, url, r"SASL")


@pytest_twisted.ensureDeferred
async def test_no_credentials_where_they_are_required(one_node, said):
    await assert_told(one_node, said, kafka_url(one_node, "SASL"), r"SASL.*sasl=")


@needs(PEM)
@pytest_twisted.ensureDeferred
async def test_a_certificate_for_another_name(one_node, certificates, said):
    url = kafka_url(one_node, "OTHERNAME", tls=True, ca=certificates.ca)
    await assert_told(one_node, said, url, r"certificate.*(127\.0\.0\.1|name)")


@needs(PEM)
@pytest_twisted.ensureDeferred
async def test_a_certificate_that_has_expired(one_node, certificates, said):
    url = kafka_url(one_node, "EXPIRED", tls=True, ca=certificates.ca)
    await assert_told(one_node, said, url, r"certificate.*expired")


@needs(PEM)
@pytest_twisted.ensureDeferred
async def test_a_certificate_of_another_authority(one_node, certificates, said):
    url = kafka_url(one_node, "TLS", tls=True, ca=certificates.other_ca)
    await assert_told(one_node, said, url, r"certificate.*ca=")


@needs(PEM)
@pytest_twisted.ensureDeferred
async def test_a_certificate_of_an_authority_that_the_system_does_not_know(one_node, said):
    await assert_told(one_node, said, kafka_url(one_node, "TLS", tls=True), r"certificate.*ca=")


@needs(PEM)
@pytest_twisted.ensureDeferred
async def test_no_client_certificate_where_one_is_required(one_node, certificates, said):
    url = kafka_url(one_node, "MTLS", tls=True, ca=certificates.ca)
    await assert_told(one_node, said, url, r"client certificate.*certificate=")


@needs(PEM)
@pytest_twisted.ensureDeferred
async def test_a_client_certificate_that_the_broker_does_not_trust(one_node, certificates, said):
    stranger = certificates.stranger
    url = kafka_url(
        one_node, "MTLS", tls=True, ca=certificates.ca, certificate=stranger.certificate, key=stranger.key
    )
    await assert_told(one_node, said, url, r"client certificate")


@needs(PEM)
@pytest_twisted.ensureDeferred
async def test_a_tls_port_that_is_spoken_to_in_plain_text(one_node, said):
    await assert_told(one_node, said, kafka_url(one_node, "TLS"), r"kafka\+tls://")


@pytest_twisted.ensureDeferred
async def test_a_plain_port_that_is_spoken_to_in_tls(one_node, certificates, said):
    await assert_told(one_node, said, kafka_url(one_node, tls=True, ca=certificates.ca), r"kafka://")


@needs(KRAFT)
@pytest_twisted.ensureDeferred
async def test_a_port_of_the_controller(one_node, said):
    await assert_told(one_node, said, kafka_url(one_node, "CONTROLLER"), r"controller")


@pytest_twisted.ensureDeferred
async def test_an_advertised_address_that_nobody_listens_at(one_node, said):
    url = kafka_url(one_node, "PROXIED")
    advertised = one_node.node(1).ports["PROXIED-ADVERTISED"]
    await assert_told(one_node, said, url, rf"127\.0\.0\.1:{advertised}")


@needs(SCRAM)
def test_the_service_says_what_is_wrong_and_not_the_password(one_node, start_service, credentials):
    topic = one_node.admin.create(new_topic("wrong-password"))
    wrong = credentials(password=WRONG_PASSWORD)
    service = start_service(
        one_node, listener="SASL", sasl="SCRAM-SHA-512", credentials=wrong, delivery_timeout=2
    )
    service.wait_for_output(r"(?i)user name|password|credentials", deadline_s=90)
    status, body = post(service, topic, "x")
    assert (status, body["type"]) == (503, "urn:sampleapp:problem:broker-unavailable")
    assert service.stop() == -15
    assert WRONG_PASSWORD not in service.output + str(body)
    assert "Traceback" not in service.output
