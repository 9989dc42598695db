"""
The file of callers in a service.

Without one, it listens where no other machine can reach it, unless it is told to.
"""

from __future__ import annotations

import gc

import pytest
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure

from sampleapp.errors import StartUpError
from sampleapp.options import Config
from sampleapp.service import build
from tests.support.callers import FULL, by, caller
from tests.support.in_memory import Connection, request_bytes
from tests.support.issuer import ISSUER, jwk, jwks
from tests.support.logs import logged_lines


def started(*listen, **config):
    service = build(Config(broker="memory:", listen=listen, **config), reactor=MemoryReactorClock())
    service.privilegedStartService()


@pytest.mark.parametrize(
    "description", ["tcp:8080", r"tcp6:8080:interface=\:\:", "tcp:80:interface=10.0.0.1"]
)
def test_an_endpoint_that_is_open_to_the_network_is_refused_without_callers(description):
    with pytest.raises(StartUpError) as caught:
        started("tcp:8080:interface=127.0.0.1", description)
    assert str(caught.value) == (
        f"--listen {description}: other machines can reach this, or it cannot be told that they cannot, and "
        "nothing says who may call. Say so in a file, with --callers FILE; or listen on this machine only, "
        "as with --listen tcp:8080:interface=127.0.0.1; or, if a proxy or a network policy lets in only "
        "those who may do everything, add --open-to-everybody."
    )
    started("tcp:8080:interface=127.0.0.1", description, is_open_to_everybody=True)


def test_an_endpoint_that_is_open_to_the_network_is_taken_with_callers(tmp_path):
    (tmp_path / "callers.toml").write_text(FULL)
    started("tcp:8080", callers=str(tmp_path / "callers.toml"))


@pytest.mark.parametrize(
    ("address", "is_local"),
    [
        (IPv4Address("TCP", "127.0.0.1", 80), True),
        (IPv6Address("TCP", "::1", 80), True),
        (UNIXAddress(b"/run/http.sock"), True),
        (IPv4Address("TCP", "0.0.0.0", 80), False),
        (IPv6Address("TCP", "::", 80), False),
        (object(), False),
    ],
)
def test_what_the_description_does_not_tell_is_asked_of_the_port(address, is_local):
    class Reactor(MemoryReactorClock):
        def listenTCP(self, *arguments, **named):
            port = super().listenTCP(*arguments, **named)
            port.getHost = lambda: address
            return port

    def start(**config):
        # A name is looked up when it listens.
        listen = ("tcp:8080:interface=localhost",)
        service = build(Config(broker="memory:", listen=listen, **config), reactor=Reactor())
        service.privilegedStartService()

    if is_local:
        start()
    else:
        with pytest.raises(StartUpError) as caught:
            start()
        assert "other machines can reach this" in str(caught.value)
    start(is_open_to_everybody=True)


WITH_ISSUER = f"""
[issuers.example]
issuer = "{ISSUER}"
audience = "sampleapp"
jwks = "keys.json"
caller_claim = "sub"
"""


class Threads:
    """A pool of threads whose work is done when the test says so."""

    def __init__(self):
        self.waiting = []

    def callInThreadWithCallback(self, on_result, work, *arguments):
        self.waiting.append((on_result, work, arguments))

    def do_one(self):
        on_result, work, arguments = self.waiting.pop(0)
        try:
            result = work(*arguments)
        except Exception:  # noqa: BLE001 -- as Twisted's pool does it
            on_result(False, Failure())  # noqa: FBT003 -- Twisted's argument
        else:
            on_result(True, result)  # noqa: FBT003 -- as above


class ReactorWithThreads(MemoryReactorClock):
    def __init__(self):
        super().__init__()
        self.threads = Threads()

    def getThreadPool(self):
        return self.threads

    def callFromThread(self, call, *arguments):
        call(*arguments)


class ServiceWithFile:
    """A service, its file of callers, and a client that wants to see metrics."""

    def __init__(self, path):
        self.path = path
        self.write(may=True)
        self.reactor = ReactorWithThreads()
        listen = ("tcp:8080:interface=127.0.0.1",)
        self.service = build(Config(broker="memory:", listen=listen, callers=str(path)), reactor=self.reactor)
        self.service.privilegedStartService()
        self._client = Connection(self.reactor.tcpServers[-1][1])
        self._methods = []

    def write(self, *, may):
        self.path.write_text(caller("t", f"metrics = {str(may).lower()}"))

    def reload(self):
        outcome = []
        self.service.reload().addCallback(outcome.append)
        return outcome

    def read_one(self):
        self.reactor.threads.do_one()

    def read_all(self):
        """Read what is to be read, and what has changed."""
        for _ in range(3):
            self.reactor.advance(1)
            while self.reactor.threads.waiting:
                self.read_one()

    def status(self):
        self._client.send(request_bytes("GET", "/metrics", [by("t")]))
        self._methods.append("GET")
        return self._client.responses(self._methods)[-1].status


@pytest.fixture
def with_file(tmp_path):
    return ServiceWithFile(tmp_path / "callers.toml")


def test_the_file_is_read_beside_the_requests_and_counts_when_it_is_read(with_file):
    assert with_file.status() == 200
    with_file.write(may=False)
    outcome = with_file.reload()
    assert (with_file.status(), outcome) == (200, [])
    with_file.read_one()
    assert (with_file.status(), outcome) == (403, [True])


def test_a_change_while_the_file_is_read_is_what_counts_in_the_end(with_file):
    with_file.write(may=False)
    first = with_file.reload()
    with_file.write(may=True)
    second = with_file.reload()
    with_file.write(may=False)
    third = with_file.reload()
    assert len(with_file.reactor.threads.waiting) == 1
    with_file.read_one()
    with_file.read_one()
    assert (first, second, third) == ([True], [True], [True])
    assert with_file.status() == 403
    assert with_file.reactor.threads.waiting == []


def test_a_mistake_that_is_found_while_requests_are_served_changes_nothing(with_file):
    with_file.path.write_text("[callers.t]\nraed = true\n")
    with logged_lines() as lines:
        outcome = with_file.reload()
        with_file.read_one()
    assert (with_file.status(), outcome) == (200, [False])
    (line,) = lines
    assert "callers.toml, line 2: callers.t.raed is not known here" in line


@pytest.mark.parametrize("is_right", [True, False])
def test_nothing_looks_for_garbage_again_and_again_while_many_callers_are_read(with_file, is_right):
    phases = []
    many = "".join(caller(f"c{number}", f"read = {str(is_right).lower()}") for number in range(500))
    with_file.path.write_text(many if is_right else f"{many}\n[callers.t]\n")
    outcome = with_file.reload()
    gc.callbacks.append(lambda phase, _: phases.append(phase))
    try:
        with_file.read_one()
        assert outcome == [is_right]
        # That is the one when all is read.
        assert phases.count("start") <= 1
        assert gc.isenabled()
    finally:
        gc.callbacks.pop()


def test_keys_that_come_after_the_file_that_names_them_are_read(with_file):
    with_file.service.startService()
    with_file.path.write_text(FULL + WITH_ISSUER)
    with logged_lines() as lines:
        with_file.reload()
        with_file.read_all()
        assert "keys.json cannot be read: No such file or directory" in lines[-1]
        with_file.path.with_name("keys.json").write_bytes(jwks(jwk()))
        with_file.read_all()
    assert lines[-1] == "Read the file of callers again."


def test_what_is_read_when_the_service_has_stopped_has_no_effect(with_file):
    with_file.write(may=False)
    with_file.service.startService()
    outcome = with_file.reload()
    with_file.service.stopService()
    with_file.reactor.advance(60)
    assert outcome == [False]
    with logged_lines() as lines:
        with_file.read_one()
    assert lines == []
