"""
The callers file in a service.

Without one, it listens where no other machine can reach it, unless it is told to.
"""

from __future__ import annotations

import gc
from weakref import ref

import pytest
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.testing import MemoryReactorClock

from sampleapp.errors import StartUpError
from sampleapp.service.assembly import build
from sampleapp.service.config import Config
from tests.service.executable_memory import rejected_start
from tests.support.callers import FULL, by, caller
from tests.support.in_memory import Connection, request_bytes
from tests.support.issuer import ISSUER, jwk, jwks
from tests.support.logs import logged_lines
from tests.support.threads import ReactorWithThreads


def started(*listen, **config):
    service = build(Config(broker="memory:", listen=listen, **config), reactor=MemoryReactorClock())
    service.privilegedStartService()


@pytest.mark.parametrize(
    "description", ["tcp:8080", r"tcp6:8080:interface=\:\:", "tcp:80:interface=10.0.0.1"]
)
def test_an_endpoint_that_is_open_to_the_network_is_rejected_without_callers(description):
    with pytest.raises(StartUpError) as caught:
        started("tcp:8080:interface=127.0.0.1", description)
    assert str(caught.value) == (
        f"--listen {description}: other machines can reach this endpoint, or it is not known that they "
        "cannot, so it needs a callers file: --callers FILE. Or listen on this machine only, "
        "for example with --listen tcp:8080:interface=127.0.0.1. Or, if a proxy or a network policy lets in "
        "only clients that may do everything, add --open-to-everybody."
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
        assert "other machines can reach this endpoint" in str(caught.value)
    start(is_open_to_everybody=True)


WITH_ISSUER = f"""
[issuers.example]
issuer = "{ISSUER}"
audience = "sampleapp"
jwks = "keys.json"
caller_claim = "sub"
"""


class ServiceWithFile:
    """A service, its callers file, and a client that wants to see metrics."""

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
        """Look at the files, and read them."""
        for _ in range(2):
            self.reactor.threads.do_one()

    def read_all(self):
        """Read what is to be read, and what has changed."""
        for _ in range(3):
            self.reactor.advance(1)
            while self.reactor.threads.waiting:
                self.reactor.threads.do_one()

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


def test_a_collection_of_garbage_looks_at_two_objects_for_each_right_to_topics(with_file):
    callers = [caller(f"c{number}", 'publish = ["a"]\nconsume = ["b"]') for number in range(1000)]
    with_file.path.write_text("\n".join([caller("t", "metrics = true"), *callers]))
    outcome = with_file.reload()
    gc.collect()
    before = len(gc.get_objects())
    with_file.read_one()
    assert outcome == [True]
    gc.collect()
    # A collection stops all threads: with nine objects for each of ten thousand callers, for 30 ms more.
    assert len(gc.get_objects()) - before < 4 * 1000 + 500


class Cycle:
    """An object that refers to itself."""

    def __init__(self):
        self.itself = self


def test_what_exists_while_callers_are_read_is_freed_when_it_becomes_garbage(with_file):
    outcome = with_file.reload()
    cycle = Cycle()
    with_file.read_one()
    assert outcome == [True]
    garbage = ref(cycle)
    del cycle
    gc.collect()
    assert garbage() is None


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


def test_a_file_that_every_user_may_write_to_from_now_on_changes_nothing(with_file):
    with_file.reactor.advance(0)
    with_file.service.startService()
    with logged_lines() as lines:
        with_file.write(may=False)
        with_file.path.chmod(0o666)
        with_file.read_all()
        assert with_file.status() == 200
        assert [line for line in lines if "Every user of this machine may write to it" in line]
        with_file.path.chmod(0o644)
        with_file.read_all()
    assert with_file.status() == 403
    assert lines[-1] == "Reloaded the callers file."


@pytest.mark.parametrize(
    ("listen", "named"),
    [
        ("tcp:8080", True),
        ("tcp:8080:interface=192.0.2.1", True),
        ("tcp6:8080", True),
        ("tcp:8080:interface=127.0.0.1", False),
        ("tcp:8080:interface=localhost", False),
        ("unix:/nowhere/socket", False),
    ],
)
def test_tokens_that_come_over_a_network_in_the_clear_are_named(tmp_path, listen, named):
    path = tmp_path / "callers.toml"
    path.write_text(caller("t"))
    config = Config(broker="memory:", listen=(listen,), callers=str(path))
    warnings = build(config, reactor=MemoryReactorClock()).warnings()
    assert ([f"unencrypted to {listen}, which has no TLS" in each for each in warnings] == [True]) is named
    open_to_all = Config(broker="memory:", listen=(listen,), is_open_to_everybody=True)
    # Nobody sends a token there.
    assert build(open_to_all, reactor=MemoryReactorClock()).warnings() == []


def test_tokens_in_the_clear_are_named_at_the_start(tmp_path):
    path = tmp_path / "callers.toml"
    path.write_text(caller("t"))

    class Reactor(ReactorWithThreads):
        def listenTCP(self, *arguments, interface, **named):
            port = super().listenTCP(*arguments, interface=interface, **named)
            port.getHost = lambda: IPv4Address("TCP", interface or "0.0.0.0", 8080)
            return port

    for interface, count in (("", 1), (":interface=127.0.0.1", 0)):
        config = Config(broker="memory:", listen=(f"tcp:8080{interface}",), callers=str(path))
        with logged_lines() as lines:
            build(config, reactor=Reactor()).startService()
        assert (
            len([line for line in lines if "Tokens of callers cross the network unencrypted" in line])
            == count
        )


@pytest.mark.parametrize("is_right", [True, False])
def test_nothing_looks_for_garbage_again_and_again_while_many_callers_are_read(with_file, is_right):
    phases = []
    many = "".join(caller(f"c{number}", f"read = {str(is_right).lower()}") for number in range(500))
    with_file.path.write_text(many if is_right else f"{many}\n[callers.t]\n")
    outcome = with_file.reload()
    # One of the youngest generation may be due before the reading begins.
    gc.callbacks.append(lambda phase, info: phases.append(phase) if info["generation"] else None)
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
        assert "issuers.example.jwks names a file that cannot be read: No such file or directory" in lines[-1]
        with_file.path.with_name("keys.json").write_bytes(jwks(jwk()))
        with_file.read_all()
    assert lines[-1] == "Reloaded the callers file."


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


def test_where_keys_cannot_be_fetched_over_tls_the_service_does_not_start(tmp_path):
    file = tmp_path / "callers.toml"
    file.write_text(
        '[issuers.login]\nissuer = "https://login.example/"\naudience = "a"\n'
        'jwks = "https://login.example/jwks.json"\npublish_claim = "topics"\n'
    )
    said = rejected_start("--callers", str(file), "--listen", "tcp:0:interface=127.0.0.1", directory=tmp_path)
    assert said == (
        "sampleapp: --callers: the keys of issuers.login: TLS cannot be used in a process that may not make "
        "memory executable: under systemd, set MemoryDenyWriteExecute=no.\n"
    )


def test_callers_without_any_right_are_named_until_that_changes(with_file):
    def lines_of_reload(text):
        with_file.path.write_text(text)
        with logged_lines() as lines:
            with_file.reload()
            with_file.read_one()
        return [line for line in lines if "no right" in line]

    without = [caller(f"c{number}") for number in range(12)]
    full = caller("t", "metrics = true")
    sentence = "The callers file grants no right to 12 caller(s), who can do nothing: "
    assert lines_of_reload(full + "".join(without)) == [
        f"{sentence}c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, \N{HORIZONTAL ELLIPSIS}."
    ]
    assert lines_of_reload("".join(without) + full) == []
    assert lines_of_reload(full) == []
