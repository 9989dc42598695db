"""Where the service listens, and what is said when it cannot."""

from __future__ import annotations

import errno
import selectors
import signal
import socket
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest
import pytest_twisted
from cryptography.hazmat.primitives import serialization
from twisted.internet import reactor
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import fail, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.testing import MemoryReactorClock

from sampleapp.errors import StartUpError
from sampleapp.service.listener import Listener
from tests.service.executable_memory import rejected_start
from tests.support.certificates import Authority
from tests.support.in_memory import InMemoryService
from tests.support.live_service import LiveService

DEADLINE_S = 30.0
AS_LONG_AS_THE_SYSTEM_ALLOWS = 2**31 - 1


class Endpoint:
    def __init__(self, outcome):
        self._outcome = outcome

    def listen(self, factory):
        return self._outcome


class Port:
    def __init__(self, address):
        self._address = address

    def getHost(self):
        return self._address


@pytest.fixture
def pem(tmp_path):
    return Authority(tmp_path).server()


@pytest.mark.parametrize(
    ("description", "address", "url"),
    [
        ("tcp:0:interface=127.0.0.1", IPv4Address("TCP", "127.0.0.1", 4711), "http://127.0.0.1:4711/"),
        ("ssl:0", IPv4Address("TCP", "127.0.0.1", 4711), "https://127.0.0.1:4711/"),
        ("https:0", IPv6Address("TCP", "::1", 4711), "https://[::1]:4711/"),
        ("tcp6:0", IPv6Address("TCP", "::1", 4711), "http://[::1]:4711/"),
        ("unix:/run/http.sock", UNIXAddress(b"/run/http.sock"), "unix:/run/http.sock"),
        ("systemd:domain=INET:index=0", object(), "systemd:domain=INET:index=0"),
    ],
)
def test_it_says_where_the_service_is_reached(description, address, url):
    listener = Listener(endpoint=Endpoint(succeed(Port(address))), description=description)
    listener.listen(InMemoryService().site)
    assert listener.url == url


STOP = "or stop the program that uses this one"
ELSEWHERE = "Give another endpoint with --listen"
HIGHER = (
    f"{ELSEWHERE} with a port from 1024, or run the service with the capability CAP_NET_BIND_SERVICE, which "
    "lower ports need"
)


@pytest.mark.parametrize(
    ("port", "error", "reason", "advice"),
    [
        (80, OSError(errno.EADDRINUSE, "In use"), "In use", f"{ELSEWHERE}, {STOP}"),
        (80, OSError(errno.EACCES, "Not allowed"), "Not allowed", HIGHER),
        (8080, OSError(errno.EACCES, "Not allowed"), "Not allowed", ELSEWHERE),
        ("/run/http.sock", OSError(errno.EACCES, "Not allowed"), "Not allowed", ELSEWHERE),
        (99999, OverflowError("Port must be 0-65535."), "Port must be 0-65535", ELSEWHERE),
    ],
)
def test_a_port_that_cannot_be_had_is_told_in_a_sentence(port, error, reason, advice):
    failing = Endpoint(fail(CannotListenError("127.0.0.1", port, error)))
    with pytest.raises(StartUpError) as caught:
        Listener(endpoint=failing, description="tcp:80").listen(InMemoryService().site)
    assert str(caught.value) == f"Cannot listen on tcp:80: {reason}. {advice}."


def queue_of(description):
    """How many connections may wait to be accepted."""
    reactor = MemoryReactorClock()
    Listener.from_description(description, reactor=reactor).listen(InMemoryService().site)
    (listening,) = [*reactor.tcpServers, *reactor.sslServers, *reactor.unixServers]
    return next(each for each in listening[2:] if isinstance(each, int))


@pytest.mark.parametrize(
    "description",
    [
        "tcp:8080",
        "tcp:8080:interface=127.0.0.1",
        r"tcp6:8080:interface=\:\:1",
        "unix:/run/http.sock:mode=660",
        "ssl:8443:privateKey=KEY:certKey=CERTIFICATE",
        "ssl:8443:KEY:CERTIFICATE",
        "https:8443:privateKey=KEY:certKey=CERTIFICATE",
        "https:8443:KEY:CERTIFICATE",
    ],
)
def test_the_queue_of_connections_is_as_long_as_the_system_allows(pem, description):
    description = description.replace("KEY", str(pem.key)).replace("CERTIFICATE", str(pem.certificate))
    assert queue_of(description) == AS_LONG_AS_THE_SYSTEM_ALLOWS


@pytest.mark.parametrize(
    "description", ["tcp:8080:backlog=7", "tcp:8080:127.0.0.1:7", "tcp:backlog=7:port=80"]
)
def test_the_queue_is_as_long_as_the_endpoint_says_if_it_does(description):
    assert queue_of(description) == 7


@pytest.mark.parametrize(
    ("description", "mode"),
    [
        ("unix:{path}", 0o660),
        ("unix:address={path}", 0o660),
        ("unix:{path}:backlog=7:lockfile=0", 0o660),
        ("haproxy:unix:{path}", 0o660),
        ("unix:{path}:mode=600", 0o600),
        ("unix:{path}:666", 0o666),
        ("haproxy:unix:{path}:mode=777", 0o777),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_unix_socket_is_for_user_and_group_unless_the_endpoint_says_otherwise(
    tmp_path, description, mode
):
    path = tmp_path / "http.sock"
    listener = Listener.from_description(description.format(path=path), reactor=reactor)
    listener.listen(InMemoryService().site)
    try:
        assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        await listener.stop()


def test_a_burst_of_connections_waits_for_a_busy_service_and_none_is_turned_away(tmp_path):
    count = 300
    if int(Path("/proc/sys/net/core/somaxconn").read_text()) <= count:
        pytest.skip("the system allows no longer queue")
    with ExitStack() as stack:
        service = stack.enter_context(LiveService(directory=tmp_path))
        host, _, port = service.url.removeprefix("http://").rstrip("/").partition(":")
        service.process.send_signal(signal.SIGSTOP)
        stack.callback(service.process.send_signal, signal.SIGCONT)
        selector = stack.enter_context(selectors.DefaultSelector())
        for _ in range(count):
            client = stack.enter_context(socket.socket())
            client.settimeout(0)
            assert client.connect_ex((host, int(port))) in {0, errno.EINPROGRESS}
            selector.register(client, selectors.EVENT_WRITE)
        # What finds no place is tried again by TCP, and never succeeds while nobody accepts.
        while selector.get_map():
            ready = selector.select(DEADLINE_S)
            assert ready, f"{len(selector.get_map())} connections found no place in the queue"
            for key, _ in ready:
                assert key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
                selector.unregister(key.fileobj)


def rejection(description):
    with pytest.raises(StartUpError) as caught:
        Listener.from_description(description, reactor=MemoryReactorClock())
    return str(caught.value).removeprefix(f"--listen {description}: ")


@pytest.fixture
def wrong(tmp_path, pem):
    """Files that are not what they have to be."""
    key = serialization.load_pem_private_key(pem.key.read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "encrypted.pem").write_bytes(encrypted)
    (tmp_path / "text.pem").write_text("hello")
    (tmp_path / "a:b.pem").write_text("hello")
    damaged = pem.key.read_bytes().replace(b"M", b"N")
    (tmp_path / "damaged.pem").write_bytes(damaged)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "privateKey=DIR/text.pem:certKey=DIR/server.pem",
            (
                "there is no private key in DIR/text.pem. Give privateKey= a PEM file with a line such as "
                "-----BEGIN PRIVATE KEY-----."
            ),
        ),
        (
            r"privateKey=DIR/a\:b.pem:certKey=DIR/server.pem",
            (
                "there is no private key in DIR/a:b.pem. Give privateKey= a PEM file with a line such as "
                "-----BEGIN PRIVATE KEY-----."
            ),
        ),
        (
            "DIR/text.pem:DIR/server.pem",
            (
                "there is no private key in DIR/text.pem. Give privateKey= a PEM file with a line such as "
                "-----BEGIN PRIVATE KEY-----."
            ),
        ),
        (
            "privateKey=DIR/encrypted.pem:certKey=DIR/server.pem",
            (
                "the private key in DIR/encrypted.pem is encrypted, and there is nobody to ask for a "
                "password. Give a key that is not encrypted, in a file that only its user may read."
            ),
        ),
        (
            "privateKey=DIR/server.key:certKey=DIR/text.pem",
            (
                "there is no certificate in DIR/text.pem. Give certKey= a PEM file with a line "
                "-----BEGIN CERTIFICATE-----."
            ),
        ),
        (
            "privateKey=DIR/server.key",
            (
                "there is no certificate in DIR/server.key. Give certKey= a PEM file with a line "
                "-----BEGIN CERTIFICATE-----."
            ),
        ),
        ("privateKey=DIR/nowhere.pem", "cannot read DIR/nowhere.pem: No such file or directory."),
        (
            "privateKey=DIR/other.key:certKey=DIR/server.pem",
            (
                "the private key in DIR/other.key does not belong to the certificate in DIR/server.pem. Give "
                "a certificate and its own key."
            ),
        ),
    ],
)
@pytest.mark.parametrize("scheme", ["ssl", "https"])
def test_a_file_for_tls_that_is_not_what_it_has_to_be_is_told_apart(wrong, scheme, arguments, sentence):
    Authority(wrong, "other-ca").server("other")
    arguments = arguments.replace("DIR", str(wrong))
    assert rejection(f"{scheme}:0:{arguments}") == sentence.replace("DIR", str(wrong))


def test_a_damaged_file_for_tls_is_no_question_of_the_endpoint(wrong):
    said = rejection(f"ssl:0:privateKey={wrong / 'damaged.pem'}:certKey={wrong / 'server.pem'}")
    assert said == f"the private key in {wrong / 'damaged.pem'} cannot be read: it is damaged."


@pytest.mark.parametrize("description", ["nonsense:1", "tcp:eighty", "tcp:80:colour=red", "ssl:0:a:b:c"])
def test_what_twisted_does_not_understand_is_answered_with_an_example(pem, description):
    description = description.replace(":a:b:c", f":{pem.key}:{pem.certificate}:colour=red")
    assert rejection(description).startswith("not an endpoint that Twisted understands (")


@pytest.mark.parametrize("option", ["--listen", "--admin"])
def test_how_an_address_with_colons_is_written_is_said(option):
    with pytest.raises(StartUpError) as caught:
        Listener.from_description("tcp6:8080:interface=::1", reactor=MemoryReactorClock(), option=option)
    assert str(caught.value) == (
        f"{option} tcp6:8080:interface=::1: a colon ends an argument, so each colon of an address needs a "
        r"backslash before it: 'tcp6:8080:interface=\:\:1'."
    )


@pytest.mark.parametrize(
    "scheme",
    [
        "ssl:0:privateKey=KEY:certKey=CERTIFICATE",
        "https:0:privateKey=KEY:certKey=CERTIFICATE",
        "tls:DIRECTORY:0",
    ],
)
def test_where_tls_cannot_work_the_service_does_not_start(tmp_path, pem, scheme):
    description = (
        scheme.replace("KEY", str(pem.key))
        .replace("CERTIFICATE", str(pem.certificate))
        .replace("DIRECTORY", str(tmp_path))
    )
    said = rejected_start("--listen", description, directory=tmp_path)
    assert said == (
        f"sampleapp: --listen {description}: TLS cannot be used in a process that may not make memory "
        "executable: under systemd, set MemoryDenyWriteExecute=no.\n"
    )
