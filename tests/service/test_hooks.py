"""Hooks in a service: their secrets are read again with the callers file."""

from __future__ import annotations

import hmac

import pytest

from sampleapp.access import CallersFileError
from sampleapp.access.caller import TopicPatterns
from sampleapp.access.current_callers import CurrentCallers
from sampleapp.service.assembly import build
from sampleapp.service.config import Config
from tests.service.test_callers import ReactorWithThreads
from tests.support.in_memory import Connection, request_bytes
from tests.support.logs import logged_lines
from tests.support.secrets import secret

FIRST, SECOND = (secret(f"secret-of-a-hook-{number}", "the secret of a hook") for number in (1, 2))
HOOK = '[hooks.h]\ntopic = "t"\nscheme = "hmac"\nheader = "X-Sig"\nsecret_files = ["secrets/one"]\n'


class ServiceWithHook:
    def __init__(self, directory, **config):
        self.directory = directory
        (directory / "secrets").mkdir(parents=True)
        self.secret_file = directory / "secrets" / "one"
        self.write(FIRST)
        self.callers = directory / "callers.toml"
        self.callers.write_text(HOOK)
        self.reactor = ReactorWithThreads()
        self.service = build(
            Config(
                broker="memory:",
                listen=("tcp:8080:interface=127.0.0.1",),
                callers=str(self.callers),
                **config,
            ),
            reactor=self.reactor,
        )
        self.service.privilegedStartService()
        self.service.startService()

    def write(self, text, mode=0o600):
        self.secret_file.write_text(f"{text}\n")
        self.secret_file.chmod(mode)

    def read_all(self):
        for _ in range(3):
            self.reactor.advance(1)
            while self.reactor.threads.waiting:
                self.reactor.threads.do_one()

    def status(self, key):
        signature = hmac.digest(key.encode(), b"x", "sha256").hex().encode()
        client = Connection(self.reactor.tcpServers[-1][1])
        client.send(request_bytes("POST", "/hooks/h", [(b"X-Sig", signature)], b"x"))
        self.reactor.advance(0.1)
        (response,) = client.responses(["POST"])
        return response.status


def test_a_secret_that_changes_counts_without_a_change_of_the_callers_file(tmp_path):
    hook = ServiceWithHook(tmp_path)
    assert (hook.status(FIRST), hook.status(SECOND)) == (200, 401)
    hook.write(SECOND)
    hook.read_all()
    assert hook.status(SECOND) == 200
    assert hook.status(FIRST) == 401


def test_a_secret_that_cannot_be_used_changes_nothing_and_is_not_in_the_log(tmp_path):
    hook = ServiceWithHook(tmp_path)
    with logged_lines() as lines:
        hook.secret_file.write_text(f"{SECOND}\n{SECOND}\n")
        hook.read_all()
    assert hook.status(FIRST) == 200
    (line,) = [line for line in lines if "reload" in line]
    assert line == (
        "Could not reload the callers file; the previous version stays in use: "
        f"--callers: {hook.callers}, line 5: hooks.h.secret_files[1] names a file that has several lines; "
        "give each secret a file of its own, in secret_files."
    )


PUBLIC_KEY = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="


def test_a_public_key_is_never_a_secret_neither_at_the_start_nor_later(tmp_path):
    hook = ServiceWithHook(tmp_path)
    with logged_lines() as lines:
        hook.write(PUBLIC_KEY)
        hook.read_all()
    assert (hook.status(FIRST), hook.status(PUBLIC_KEY)) == (200, 401)
    (line,) = [line for line in lines if "reload" in line]
    assert line.endswith(
        "line 5: hooks.h.secret_files[1] names a file that has a public key (whpk_), with which only the "
        "scheme standard verifies."
    )
    with pytest.raises(CallersFileError, match=r"secret_files\[1\] names a file that has a public key"):
        CurrentCallers(hook.callers, reactor=hook.reactor)


def test_a_secret_that_every_user_may_read_is_named_once(tmp_path):
    with logged_lines() as lines:
        hook = ServiceWithHook(tmp_path)
        hook.write(FIRST, mode=0o644)
        hook.read_all()
        hook.write(SECOND, mode=0o644)
        hook.read_all()
    assert [line for line in lines if "holds the secret" in line] == [
        (
            f"The file {hook.secret_file} holds the secret of a hook, and every user of this machine may "
            f"read it: remove that permission (chmod o= {hook.secret_file})."
        )
    ]


def test_a_header_with_a_signature_cannot_become_a_header_of_records(tmp_path):
    with pytest.raises(CallersFileError) as caught:
        ServiceWithHook(tmp_path, record_headers=("x-sig",))
    assert str(caught.value) == (
        f"--callers: {tmp_path / 'callers.toml'}, line 1: hooks.h has its signature in the header x-sig, and "
        "--record-header would keep that in each record; give one of them another name."
    )


KEYED = HOOK + 'idempotency_header = "X-Id"\n'


def kafka_service(directory, text, **config):
    hook = directory / "callers.toml"
    (directory / "secrets").mkdir(exist_ok=True)
    (directory / "secrets/one").write_text(FIRST)
    hook.write_text(text)
    reactor = ReactorWithThreads()
    build(Config(broker="kafka://127.0.0.1:1", callers=str(hook), **config), reactor=reactor)
    return reactor


def test_a_hook_whose_deliveries_kafka_would_all_reject_is_a_mistake(tmp_path):
    with pytest.raises(CallersFileError) as caught:
        kafka_service(tmp_path, KEYED, idempotent_topics=TopicPatterns(["others.*"]))
    assert str(caught.value) == (
        f"--callers: {tmp_path / 'callers.toml'}, line 6: hooks.h.idempotency_header makes the service "
        "reject every delivery, since the topic t on Kafka takes no idempotency keys; start the service with "
        "--idempotent-topic t, or remove idempotency_header."
    )


def test_a_hook_may_have_keys_where_its_topic_takes_them(tmp_path):
    kafka_service(tmp_path, HOOK)
    kafka_service(tmp_path, KEYED, idempotent_topics=TopicPatterns(["t*"]))
    hook = ServiceWithHook(tmp_path / "memory")
    hook.callers.write_text(KEYED)
    hook.read_all()
    assert hook.status(FIRST) == 200


def test_a_reload_with_a_hook_that_cannot_have_keys_changes_nothing_and_says_why(tmp_path):
    path = tmp_path / "callers.toml"
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/one").write_text(FIRST)
    path.write_text(HOOK)
    reactor = ReactorWithThreads()
    callers = CurrentCallers(path, reactor=reactor, idempotent_topics=TopicPatterns())
    path.write_text(KEYED.replace("X-Sig", "X-Other"))
    reloading = callers.reload()
    reactor.threads.do_one()
    failures = []
    reloading.addErrback(failures.append)
    assert "hooks.h.idempotency_header makes the service reject every delivery" in str(failures[0].value)
    assert callers.hooks.signature_fields == {b"x-sig"}
