"""Certificates, passwords and tokens that are replaced while connections are made."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import pytest
import pytest_twisted
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from sampleapp.brokers.kafka.config import parse
from sampleapp.brokers.kafka.connections.security import REJECTION_INTERVAL_S, CurrentSecurity
from sampleapp.errors import StartUpError
from tests.support.brokers import within
from tests.support.certificates import Authority
from tests.support.connecting import SECRET, USER, Connecting, Inner, as_client, trusting
from tests.support.examples import examples
from tests.support.files import written
from tests.support.kafka_simulator.server import FakeBroker, ServerTLS, listening
from tests.support.logs import logged_lines
from tests.support.secrets import secret

NEW_SECRET = secret("n3w-s3cr3t-Plugh", "a password")
REREAD = "Reloaded Kafka's credentials or certificates after a rejection: they have changed."


def credentials(path, password=SECRET):
    return written(path / "credentials", f"username={USER}\npassword={password}\n")


def with_password(path, mechanism="PLAIN"):
    return f"kafka://?sasl={mechanism}&credentials={quote(str(path))}"


@pytest.fixture
def lines():
    """The logged lines, without any secret."""
    with logged_lines() as lines:
        yield lines
    assert not [line for line in lines if SECRET in line or NEW_SECRET in line or USER in line]


async def succeeds(connecting):
    protocol = await within(connecting.connect(Inner))
    protocol.transport.abortConnection()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest_twisted.ensureDeferred
async def test_a_password_that_was_replaced_is_used_for_the_next_connection_when_it_was_read_again(
    tmp_path, mechanism, lines
):
    broker = FakeBroker(mechanisms=[mechanism], users={USER: SECRET})
    path = credentials(tmp_path)
    async with listening(broker) as port:
        connecting = Connecting(port, with_password(path, mechanism))
        await succeeds(connecting)
        broker.users = {USER: NEW_SECRET}
        credentials(tmp_path, NEW_SECRET)
        connecting.security.reload()
        await succeeds(connecting)
    assert len(broker.connections) == 2


@pytest_twisted.ensureDeferred
async def test_a_rejection_has_the_files_read_again_and_what_is_new_is_tried_at_once(tmp_path, lines):
    broker = FakeBroker(mechanisms=["PLAIN"], users={USER: NEW_SECRET})
    credentials(tmp_path)
    async with listening(broker) as port:
        connecting = Connecting(port, with_password(tmp_path / "credentials"))
        credentials(tmp_path, NEW_SECRET)
        await succeeds(connecting)
    assert len(broker.connections) == 2
    assert REREAD in lines


@pytest_twisted.ensureDeferred
async def test_rejections_have_the_files_read_again_at_most_once_a_minute(tmp_path, lines):
    broker = FakeBroker(mechanisms=["PLAIN"], users={USER: NEW_SECRET})
    clock = Clock()
    credentials(tmp_path)
    async with listening(broker) as port:
        connecting = Connecting(port, with_password(tmp_path / "credentials"), clock=clock)
        assert "rejected the credentials" in (await connecting.reason()).sentence
        # Nothing was new: there was nothing to try at once.
        assert len(broker.connections) == 1
        credentials(tmp_path, NEW_SECRET)
        clock.advance(REJECTION_INTERVAL_S - 1)
        await connecting.reason()
        assert REREAD not in lines
        clock.advance(1)
        await succeeds(connecting)
    assert REREAD in lines
    assert len(broker.connections) == 4


@examples(30)
@given(st.lists(st.sampled_from([0.0, 0.5, 10.0, 30.0, 59.9, 60.0, 100.0])))
def test_however_often_it_is_rejected_reading_again_is_a_minute_apart(pauses):
    clock = Clock()
    with TemporaryDirectory() as directory:
        path = credentials(Path(directory))
        current = CurrentSecurity(
            parse(f"kafka://a?sasl=SCRAM-SHA-256&credentials={path}"), environ={}, clock=clock
        )
        last_s = None
        for number, pause_s in enumerate(pauses):
            clock.advance(pause_s)
            credentials(Path(directory), f"{SECRET}-{number}")
            may_read = last_s is None or clock.seconds() - last_s >= 60
            assert current.has_changed_since(current.for_new_connection()) == may_read
            if may_read:
                last_s = clock.seconds()


@pytest_twisted.ensureDeferred
async def test_what_somebody_else_has_read_again_meanwhile_is_tried_at_once(tmp_path, lines):
    path = credentials(tmp_path)
    current = CurrentSecurity(parse(f"kafka://a?sasl=PLAIN&credentials={path}"), environ={}, clock=Clock())
    rejected = current.for_new_connection()
    current.reload()
    assert current.has_changed_since(rejected)
    assert not current.has_changed_since(current.for_new_connection())


@pytest.mark.parametrize("content", ["", f"username=x\npasword={NEW_SECRET}", None])
@pytest_twisted.ensureDeferred
async def test_a_file_that_is_wrong_changes_nothing_and_its_content_is_not_told(tmp_path, content, lines):
    broker = FakeBroker(mechanisms=["PLAIN"], users={USER: SECRET})
    path = credentials(tmp_path)
    async with listening(broker) as port:
        connecting = Connecting(port, with_password(path))
        path.unlink() if content is None else path.write_text(content)
        with pytest.raises(StartUpError, match=f"The file {path}, given with credentials=,") as caught:
            connecting.security.reload()
        assert NEW_SECRET not in str(caught.value)
        await succeeds(connecting)
        broker.users = {}
        await connecting.reason()
    [told] = [line for line in lines if str(path) in line]
    assert told.endswith("The credentials and certificates that were read before stay in use.")


@pytest_twisted.ensureDeferred
async def test_a_token_is_read_for_each_connection(tmp_path, lines):
    path = written(tmp_path / "token", SECRET)
    broker = FakeBroker(mechanisms=["OAUTHBEARER"], tokens=[SECRET])
    async with listening(broker) as port:
        connecting = Connecting(port, f"kafka://?sasl=OAUTHBEARER&token_file={path}")
        await succeeds(connecting)
        broker.tokens = [NEW_SECRET]
        written(path, NEW_SECRET)
        await succeeds(connecting)
    assert len(broker.connections) == 2


@pytest_twisted.ensureDeferred
async def test_a_token_file_that_is_wrong_is_told_once_and_the_last_token_is_used(tmp_path, lines):
    path = written(tmp_path / "token", SECRET)
    broker = FakeBroker(mechanisms=["OAUTHBEARER"], tokens=[SECRET])
    async with listening(broker) as port:
        connecting = Connecting(port, f"kafka://?sasl=OAUTHBEARER&token_file={path}")
        path.unlink()
        for _ in range(3):
            await succeeds(connecting)
        written(path, SECRET)
        await succeeds(connecting)
        path.write_text("")
        await succeeds(connecting)
    missing, empty = [line for line in lines if str(path) in line]
    assert "does not exist: give the path of one. The credentials and certificates that were read" in missing
    assert "is empty" in empty


@pytest_twisted.ensureDeferred
async def test_a_client_certificate_that_was_replaced_is_used_when_the_old_one_is_rejected(
    tmp_path, authority, lines
):
    other = Authority(tmp_path, "other")
    tls = ServerTLS(authority.server(), client_ca=authority.certificate)
    # Both write the same files.
    issued = other.client()
    url = trusting(authority, *as_client(issued))
    broker = FakeBroker()
    async with listening(broker, tls=tls) as port:
        connecting = Connecting(port, url)
        assert "rejected the client certificate" in (await connecting.reason()).sentence
        assert authority.client() == issued
        connecting.security.reload()
        await succeeds(connecting)
        # Also without a request to reload.
        other.client()
        connecting = Connecting(port, url)
        authority.client()
        await succeeds(connecting)
    assert lines.count(REREAD) == 1


@pytest_twisted.ensureDeferred
async def test_a_new_certificate_with_the_key_of_the_old_one_changes_nothing(tmp_path, authority, lines):
    tls = ServerTLS(authority.server(), client_ca=authority.certificate)
    issued = authority.client()
    key = issued.key.read_bytes()
    async with listening(FakeBroker(), tls=tls) as port:
        connecting = Connecting(port, trusting(authority, *as_client(issued)))
        authority.client()
        new_key = issued.key.read_bytes()
        written(issued.key, key)
        with pytest.raises(StartUpError, match="does not belong to the first certificate"):
            connecting.security.reload()
        await succeeds(connecting)
        written(issued.key, new_key)
        connecting.security.reload()
        await succeeds(connecting)


@pytest_twisted.ensureDeferred
async def test_authorities_that_were_replaced_are_trusted_when_the_broker_s_certificate_was_not(
    tmp_path, authority, lines
):
    other = Authority(tmp_path, "other")
    trusted = written(tmp_path / "trusted.pem", other.certificate.read_bytes())
    async with listening(FakeBroker(), tls=ServerTLS(authority.server())) as port:
        connecting = Connecting(port, f"kafka+tls://?ca={trusted}")
        written(trusted, authority.certificate.read_bytes())
        await succeeds(connecting)
    assert REREAD in lines


def test_the_files_are_named(tmp_path, authority):
    issued = authority.client()
    path = written(tmp_path / "token", SECRET)
    options = trusting(authority, *as_client(issued), "sasl=OAUTHBEARER", f"token_file={path}")
    current = CurrentSecurity(parse(options.replace("://", "://a")), environ={}, clock=Clock())
    assert current.paths == [authority.certificate, issued.certificate, issued.key, path]
    assert CurrentSecurity(parse("kafka://a"), environ={}, clock=Clock()).paths == []


def test_plain_and_tokens_without_tls_are_worth_a_warning_once(tmp_path, warnings):
    for number, (sasl, word) in enumerate(
        [
            (f"PLAIN&credentials={credentials(tmp_path)}", "password"),
            (f"OAUTHBEARER&token_file={written(tmp_path / 'token', SECRET)}", "token"),
        ],
        start=1,
    ):
        current = CurrentSecurity(parse(f"kafka://a?sasl={sasl}"), environ={}, clock=Clock())
        current.reload()
        assert len(warnings) == number
        assert f"The {word} for Kafka is sent over the network unencrypted: use kafka+tls://" in warnings[-1]
        CurrentSecurity(parse(f"kafka+tls://a?sasl={sasl}"), environ={}, clock=Clock())
        assert len(warnings) == number
