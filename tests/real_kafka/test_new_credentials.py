"""
What becomes of messages that are published over HTTP all the time while what lets the service in changes.

In every test: what was answered 200 is in the topic exactly once and where the answer says, what was answered
503 is not there, nothing is there twice, and the records of a key are in order; and the service goes on
without a restart.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from contextlib import contextmanager

import pytest

from tests.real_kafka.admin import new_topic
from tests.real_kafka.listeners import SESSION_LIFETIME_S, unsecured_token, write_credentials
from tests.real_kafka.publishers import CLIENTS, Publishers, check_answers, figures, report_recovery
from tests.real_kafka.reading import read_all
from tests.real_kafka.versions import (
    PEM,
    REAUTHENTICATION,
    SASL_WITH_CERTIFICATES,
    SCRAM_BY_REQUEST,
    needs,
)
from tests.support.files import written
from tests.support.secrets import secret
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.one_version, pytest.mark.release]

OLD, NEW = (secret(each, "a password") for each in ("Xyzzy-43-do-not-show", "Plugh-44-do-not-show"))
USER = "rotating"
# Until the service has read a file that has changed, a connection has expired, and all clients were answered.
DEADLINE_S = 30
PARTITIONS = 3


@pytest.fixture
def publishing(one_node, start_service, request):
    """A context manager in which messages are published all the time, and which checks them at its end."""

    @contextmanager
    def publishing(change, secrets, **options):
        topic = one_node.admin.create(new_topic("credentials"), partitions=PARTITIONS)
        service = start_service(one_node, **options)
        with Publishers(service.url, topic) as publishers:
            publishers.until_all_are_accepted()
            yield service, publishers
            publishers.until_all_are_accepted()
        assert publishers.broken == []
        found = figures(publishers.answers)
        report_recovery(request.node, one_node.version, change, found)
        check_answers(publishers.answers, read_all(one_node.bootstrap, topic))
        assert found.accepted > CLIENTS
        assert service.stop() == -15
        assert "Traceback" not in service.output
        for each in secrets:
            assert each not in service.output

    return publishing


def replaced(path, content):
    """As whoever cares replaces a file: another one takes its name."""
    written(path.with_suffix(".new"), content).rename(path)


@needs(SCRAM_BY_REQUEST, REAUTHENTICATION)
def test_a_password_changes_in_kafka_and_then_in_the_file(one_node, publishing, tmp_path):
    one_node.admin.set_password(USER, OLD)
    path = write_credentials(tmp_path, user=USER, password=OLD)
    with publishing(
        "password changes",
        [OLD, NEW],
        listener="SASL",
        sasl="SCRAM-SHA-256",
        credentials=path,
    ) as (service, publishers):
        one_node.admin.set_password(USER, NEW)
        # Connections that are open go on until their time is over.
        service.wait_for_output("rejected the credentials for SCRAM-SHA-256", deadline_s=DEADLINE_S)
        replaced(path, path.read_text().replace(OLD, NEW))
        service.wait_for_output("Reloaded the broker's certificates and credentials")
        publishers.until_all_are_accepted()


@needs(PEM, SASL_WITH_CERTIFICATES, SCRAM_BY_REQUEST)
def test_a_client_certificate_expires_and_is_replaced(one_node, publishing, certificates, tmp_path):
    one_node.admin.set_password(USER, OLD)
    issued = certificates.authority.client("short")
    with publishing(
        "certificate expires",
        [OLD],
        listener="MTLSSASL",
        tls=True,
        ca=certificates.ca,
        certificate=issued.certificate,
        key=issued.key,
        sasl="SCRAM-SHA-256",
        credentials=write_credentials(tmp_path, user=USER, password=OLD),
    ) as (service, publishers):
        assert certificates.authority.client("short", end=dt.timedelta(seconds=10)) == issued
        service.wait_for_output("(rejected|rejects) the client certificate", deadline_s=DEADLINE_S)
        # Until then connections that are open go on: Kafka does not end them with the certificate.
        wait_until(
            lambda: any(each.status == 503 for each in publishers.answers),
            "a publish needs a connection",
            deadline_s=DEADLINE_S,
        )
        assert certificates.authority.client("short") == issued
        publishers.until_all_are_accepted()


@needs(REAUTHENTICATION)
def test_tokens_expire_and_are_replaced_in_time_and_then_too_late(publishing, tmp_path):
    tokens = []

    def token(lifetime_s=3 * SESSION_LIFETIME_S):
        tokens.append(unsecured_token(until_s=time.time() + lifetime_s))
        return tokens[-1]

    # The service may take long to start.
    path = written(tmp_path / "token", token(600))
    with publishing("tokens expire", tokens, listener="TOKEN", sasl="OAUTHBEARER", token_file=path) as (
        service,
        publishers,
    ):
        first_has_expired_s = time.time() + 3 * SESSION_LIFETIME_S
        while time.time() < first_has_expired_s:
            replaced(path, token())
            publishers.until_all_are_accepted()
        # What ends in time costs nothing: neither a session nor a token.
        assert {each.status for each in publishers.answers} == {200}
        assert not re.search("No connection|still trying|refused", service.output)
        service.wait_for_output(
            r"rejected the token for OAUTHBEARER \(invalid_token\)", deadline_s=DEADLINE_S
        )
        replaced(path, token())
        publishers.until_all_are_accepted()
