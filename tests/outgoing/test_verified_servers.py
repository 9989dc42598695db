"""The certificates that outgoing TLS connections accept, and the messages for those that they reject."""

from __future__ import annotations

import contextlib
import datetime as dt
import socket
import ssl
import threading

import pytest
import pytest_twisted
from hypothesis import example, given
from hypothesis import strategies as st
from OpenSSL import SSL
from twisted.internet.error import CannotListenError
from twisted.web.server import Site

from sampleapp.access.issuer_keys import FetchFailed, fetch_with
from sampleapp.brokers.kafka.connections.diagnostics import ConnectionFailed
from sampleapp.client import Client, TLSFailed
from sampleapp.outgoing.verified_tls import VerifiedConnections, WrongHost, client_context
from tests.support.brokers import eventually, within
from tests.support.certificates import Authority, self_signed
from tests.support.client_servers import ContractResource
from tests.support.command import DEADLINE_S, sampleapp
from tests.support.connecting import Connecting, Names, WithNames, trusting
from tests.support.kafka_simulator.server import FakeBroker, ServerTLS, listening
from tests.support.logs import logged_lines
from tests.support.secrets import secret

HOUR = dt.timedelta(hours=1)
TOKEN = secret("a-token-for-one-server-only", "a token")


class HTTPUser:
    """Connects to a server of HTTP, by names of the test's own."""

    def __init__(self, authority, monkeypatch):
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        self.resource = ContractResource()
        self.factory = Site(self.resource)
        self.names = Names("127.0.0.1")

    @property
    def requests(self):
        return [*self.resource.requests, *self.resource.records]


class WithClient(HTTPUser):
    async def connect(self, host, port):
        client = Client(base_url=f"https://{host}:{port}/", reactor=WithNames(self.names), token=TOKEN)
        try:
            await within(client.publish(topic="t", content="c"))
        except TLSFailed as error:
            return str(error)
        finally:
            await within(client.close())
        return None


class WithIssuer(HTTPUser):
    async def connect(self, host, port):
        try:
            await within(fetch_with(WithNames(self.names))(f"https://{host}:{port}/keys.json"))
        except FetchFailed as error:
            return str(error)
        return None


class WithKafka:
    def __init__(self, authority, monkeypatch):
        self.authority = authority
        self.factory = FakeBroker()
        self.names = Names("127.0.0.1")

    @property
    def requests(self):
        return self.factory.requests

    async def connect(self, host, port):
        connecting = Connecting(port, trusting(self.authority), host=host, names=self.names)
        try:
            protocol = await within(connecting.connect())
        except ConnectionFailed as error:
            await eventually(lambda: self.factory.lost)
            return str(error)
        protocol.transport.abortConnection()
        await eventually(lambda: protocol.lost)
        return None


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture(params=[WithClient, WithIssuer, WithKafka])
def user(request, authority, monkeypatch):
    """Each of those that connect with TLS, and the server that it connects to."""
    return request.param(authority, monkeypatch)


async def rejection(user, host, issued, *, interface="127.0.0.1"):
    """Connect to this machine; return why that was rejected, after nothing was asked, or ``None``."""
    user.names = Names(interface)
    with logged_lines() as lines:
        async with listening(user.factory, tls=ServerTLS(issued), interface=interface) as port:
            reason = await user.connect(host, port)
    assert lines == []
    assert bool(user.requests) == (reason is None)
    return reason


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("localhost", {"dns": ["localhost"], "ip": []}),
        ("LocalHost", {"dns": ["other.example", "LOCALHOST"], "ip": []}),
        ("127.0.0.1", {"dns": [], "ip": ["127.0.0.1"]}),
        # As some tools make them, for browsers of long ago.
        ("127.0.0.1", {"dns": ["127.0.0.1"], "ip": ["127.0.0.1"]}),
        # Ignored names do no harm, either.
        ("localhost", {"dns": ["*.com", "localhost"], "ip": []}),
        ("localhost", {"dns": ["localhost"], "uri": ["urn:host:OPCUA:Server", "https://x:8443/"]}),
        ("a.service.example", {"dns": ["*.service.example"], "ip": []}),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_certificate_for_the_name_or_address_that_was_asked_for_is_accepted(
    user, authority, host, names
):
    assert await rejection(user, host, authority.server(**names)) is None


@pytest.mark.parametrize(("ip", "reason"), [("::1", None), ("::2", " is for localhost, ::2, not for ::1: ")])
@pytest_twisted.ensureDeferred
async def test_an_ipv6_address_is_one_whatever_brackets_it_has_in_a_url(user, authority, ip, reason):
    host = "::1" if isinstance(user, WithKafka) else "[::1]"
    try:
        rejected = await rejection(user, host, authority.server(ip=[ip]), interface="::1")
    except CannotListenError:
        pytest.skip("this machine has no IPv6")
    assert rejected is None if reason is None else reason in rejected


UNNAMED = "as a subject alternative name; a common name is not enough"
INSTEAD = "connect to a name that it has, or give the server a certificate that has this one"


@pytest.mark.parametrize(
    ("host", "options", "reason"),
    [
        ("localhost", {"dns": [], "ip": []}, f"names no host: it needs DNS:localhost {UNNAMED}"),
        ("127.0.0.1", {"dns": [], "ip": []}, f"names no host: it needs IP:127.0.0.1 {UNNAMED}"),
        (
            "localhost",
            {"dns": [], "ip": [], "uri": ["https://localhost/"]},
            f"names no host: it needs DNS:localhost {UNNAMED}",
        ),
        (
            "localhost",
            {"dns": ["a.example", "localhost.example"], "ip": ["127.0.0.1"]},
            f"is for a.example, localhost.example, 127.0.0.1, not for localhost: {INSTEAD}",
        ),
        (
            "127.0.0.1",
            {"dns": ["localhost"], "ip": ["127.0.0.2", "::1"]},
            f"is for localhost, 127.0.0.2, ::1, not for 127.0.0.1: {INSTEAD}",
        ),
        (
            "127.0.0.1",
            {"dns": ["127.0.0.1"], "ip": []},
            (
                "has 127.0.0.1 as a DNS name, which is not allowed: it needs IP:127.0.0.1 as a subject "
                "alternative name"
            ),
        ),
        (
            "localhost",
            {"dns": ["*"], "ip": []},
            (
                "has a name that is not allowed (Certificate's DNS-ID b'*' has too few host components for "
                "wildcard usage): it needs DNS:localhost as a subject alternative name"
            ),
        ),
        (
            "service.example",
            {"dns": ["*.example"], "ip": []},
            "has a name that is not allowed (Certificate's",
        ),
        ("service.example", {"dns": ["*.service.example"]}, "is for *.service.example, 127.0.0.1, not for"),
        ("a.b.service.example", {"dns": ["*.service.example"]}, "is for *.service.example, 127.0.0.1, not"),
        ("so.service.example", {"dns": ["s*.service.example"]}, "is for s*.service.example, 127.0.0.1, not"),
        (
            "localhost",
            {"dns": ["localhost "], "ip": []},
            "has a name that is not allowed ('localhost '): it needs DNS:localhost as a subject",
        ),
        ("localhost", {"start": HOUR}, "is not valid yet: check its dates, and this machine's clock"),
        ("localhost", {"end": -HOUR}, "has expired: renew it, or set this machine's clock"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_any_other_certificate_is_rejected_in_a_sentence_before_anything_is_sent(
    user, authority, host, options, reason
):
    rejected = await rejection(user, host, authority.server(**options))
    assert f" {reason}" in rejected
    assert "he certificate " in rejected


@pytest_twisted.ensureDeferred
async def test_a_certificate_of_another_authority_or_of_none_or_for_clients_is_rejected(
    user, authority, tmp_path
):
    untrusted = " is not signed by a trusted authority: "
    assert untrusted in await rejection(user, "localhost", Authority(tmp_path, "other").server("for-other"))
    assert untrusted in await rejection(user, "localhost", self_signed(tmp_path))
    clients = await rejection(user, "localhost", authority.client())
    assert " cannot be used (OpenSSL's verification error 26): check what it was issued for" in clients


@pytest.mark.parametrize(("count", "is_accepted"), [(8, True), (9, False), (60, False)])
@pytest_twisted.ensureDeferred
async def test_a_chain_has_at_most_eight_authorities_between(user, authority, tmp_path, count, is_accepted):
    issuer = authority
    for place in range(count):
        issuer = Authority(tmp_path, f"between-{place}", parent=issuer)
    rejected = await rejection(user, "localhost", issuer.server())
    if is_accepted:
        assert rejected is None
    else:
        assert "has more than 8 authorities between itself and a trusted one" in rejected


@pytest_twisted.ensureDeferred
async def test_an_authority_that_has_expired_is_told_apart_from_the_servers_own_certificate(
    user, authority, tmp_path
):
    between = Authority(tmp_path, "between", parent=authority, end=-HOUR)
    rejected = await rejection(user, "localhost", between.server())
    assert "certificate in the chain " in rejected
    assert " has expired: renew it, or set this machine's clock" in rejected


@contextlib.contextmanager
def one_connection(issued):
    """A TLS server for one connection; yields its port, and collects what comes after the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*issued)
    received = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with (
                connection,
                contextlib.suppress(OSError),
                context.wrap_socket(connection, server_side=True) as secure,
            ):
                received.extend(secure.recv(1))

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1], received
        thread.join(DEADLINE_S)


def test_the_command_rejects_a_server_without_a_traceback(authority):
    trust = {"SSL_CERT_FILE": str(authority.certificate)}
    for issued, host, reason in [
        (authority.server(dns=[], ip=[]), "localhost", f"names no host: it needs DNS:localhost {UNNAMED}"),
        (authority.server("other", ip=[]), "127.0.0.1", f"is for localhost, not for 127.0.0.1: {INSTEAD}"),
        (authority.expired(), "localhost", "has expired: renew it, or set this machine's clock"),
    ]:
        with one_connection(issued) as (port, received):
            url = f"https://{host}:{port}"
            output, errors = sampleapp(None, "publish", "t", "c", url=url, environment=trust, code=1)
        told = " ".join(errors.split())
        assert output == ""
        assert f"The certificate of {url}/messages {reason}. Nothing was sent." in told
        assert "Traceback" not in told
        assert received == b""


LABELS = st.sampled_from(["a", "b", "localhost", "example", "com"])
HOSTS = st.lists(LABELS, min_size=1, max_size=4).map(".".join)
# OpenSSL compares them byte for byte.
ODD_NAMES = st.builds(
    lambda before, name, after: f"{before}{name}{after}",
    *(
        st.sampled_from(["", " ", "\t", "\n", "."]),
        HOSTS,
        st.sampled_from(["", " ", "\r\n", "\v", ".", ".."]),
    ),
)
PATTERNS = st.lists(LABELS | st.sampled_from(["*", "a*", "*a"]), min_size=1, max_size=4).map(".".join)
ADDRESSES = st.sampled_from(["127.0.0.1", "127.0.0.2", "::1", "2001:db8::1"])


@given(
    host=HOSTS | ADDRESSES,
    dns=st.lists(HOSTS | PATTERNS | ODD_NAMES, max_size=3),
    ip=st.lists(ADDRESSES, max_size=2),
)
@example(host="127.0.0.1", dns=["127.0.0.1"], ip=[])
@example(host="a.example.com", dns=["*.example.com"], ip=[])
@example(host="b.a.example.com", dns=["*.example.com"], ip=[])
@example(host="2001:db8::1", dns=[], ip=["2001:db8::1"])
@example(host="localhost", dns=["localhost "], ip=[])
@example(host="localhost", dns=["\tlocalhost"], ip=[])
@example(host="a.example.com", dns=["*.example.com\n"], ip=[])
def test_the_names_that_are_accepted_are_those_that_openssl_accepts(tmp_path_factory, host, dns, ip):
    """OpenSSL's own check of names, as the standard library has it, is the oracle."""
    directory = tmp_path_factory.getbasetemp()
    authority = Authority(directory, "oracle")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.server("of-oracle", dns=dns, ip=ip))
    oracle = ssl.create_default_context(cafile=authority.certificate)
    oracle.hostname_checks_common_name = False
    assert accepts(Ours(authority, host), server) == accepts(Oracle(oracle, host), server)
    assert accepts(Ours(authority, f"{host}."), server) == accepts(Oracle(oracle, host), server)


class Oracle:
    def __init__(self, context, host):
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=host)

    def step(self, data):
        """Take what the server has sent; return whether the handshake is over, and what to send."""
        self.incoming.write(data)
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return None, self.outgoing.read()
        except ssl.SSLCertVerificationError:
            return False, b""
        return True, self.outgoing.read()


class Ours:
    def __init__(self, authority, host):
        self.failure = None
        context = client_context(authorities=authority.certificate)
        self.tls = VerifiedConnections(context, host).clientConnectionForTLS(self)
        self.tls.set_connect_state()

    def failVerification(self, failure):
        self.failure = failure

    def step(self, data):
        if data:
            self.tls.bio_write(data)
        try:
            self.tls.do_handshake()
        except SSL.WantReadError:
            return None, self.tls.bio_read(65536)
        except SSL.Error:
            assert self.failure.check(WrongHost)
            return False, b""
        assert self.failure is None
        return True, b""


def accepts(client, context):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(incoming, outgoing, server_side=True)
    data = b""
    for _ in range(5):
        verdict, sent = client.step(data)
        if verdict is not None:
            return verdict
        incoming.write(sent)
        with contextlib.suppress(ssl.SSLWantReadError):
            server.do_handshake()
        data = outgoing.read()
    raise AssertionError("the handshake does not end")
