"""The negotiation with a client, independent of its certificate."""

from __future__ import annotations

import ssl

import pytest
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from tests.support.tls_in_memory import Client, Server, client_context

V12, V13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


@pytest.fixture
def plain(files):
    """Starts a server that does not ask for certificates."""

    def plain(*arguments, scheme="https"):
        given = (f"privateKey={files.key}", f"certKey={files.certificate}", *arguments)
        return Server(":".join([scheme, "8443", *given]))

    return plain


@pytest.mark.parametrize("scheme", ["https", "ssl"])
@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(["h2", "http/1.1"], "http/1.1"), (["http/1.1"], "http/1.1"), ([], None)],
)
def test_http_1_1_is_all_that_is_agreed_on(plain, authority, scheme, offered, chosen):
    context = client_context(authority)
    if offered:
        context.set_alpn_protocols(offered)
    client = Client(plain(scheme=scheme), context)
    assert client.tls.selected_alpn_protocol() == chosen
    assert b"200 OK" in client.ask()


def test_a_client_that_speaks_another_protocol_only_is_told(plain, authority):
    context = client_context(authority)
    context.set_alpn_protocols(["h2"])
    with pytest.raises(ssl.SSLError, match=r"(?i)alert no application protocol"):
        Client(plain(), context)


@pytest.mark.parametrize(("version", "works"), [(V12, False), (V13, True)])
def test_a_minimum_of_tls_1_3_is_one(plain, authority, version, works):
    server, context = plain("minimum=TLSv1.3"), client_context(authority, versions=(version, version))
    if works:
        assert b"200 OK" in Client(server, context).ask()
    else:
        with pytest.raises(ssl.SSLError, match=r"(?i)alert protocol version"):
            Client(server, context)


@pytest.mark.parametrize(
    "cipher", ["AES256-GCM-SHA384", "ECDHE-ECDSA-AES256-SHA", "DHE-RSA-AES256-GCM-SHA384"]
)
def test_ciphers_without_forward_secrecy_or_authentication_are_not_used(plain, authority, cipher):
    context = client_context(authority, versions=(V12, V12))
    context.set_ciphers(f"{cipher}:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError, match=r"(?i)alert handshake failure"):
        Client(plain(), context)


@pytest.mark.parametrize("scheme", ["https", "ssl"])
@pytest.mark.parametrize("version", [V12, V13])
def test_a_rejected_client_gets_the_end_of_tls_and_may_send_the_rest_of_its_body(
    plain, authority, scheme, version
):
    client = Client(plain(scheme=scheme), client_context(authority, versions=(version, version)))
    rejected = b"POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 99999999\r\n\r\n"
    assert client.ask(rejected).startswith(b"HTTP/1.1 400 ")
    for _ in range(3):
        # The end of TLS (close_notify), and not of TCP: a reset would follow the bytes that still come.
        assert client.ask(b"x" * 10_000) == b""
        assert not client.transport.disconnecting
        assert not client.transport.aborted
    client.end()
    assert client.transport.disconnecting


def test_plain_http_is_not_served(plain):
    server = plain()
    protocol, transport = server.accept()
    protocol.dataReceived(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert transport.half_closed
    server.reactor.advance(2)
    assert transport.aborted
    assert server.seen == []


@pytest.mark.parametrize("at", ["before a byte", "in the middle"])
def test_a_client_that_goes_away_during_the_handshake_leaves_nothing(plain, at):
    server = plain()
    protocol, transport = server.accept()
    if at == "in the middle":
        protocol.dataReceived(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")
    protocol.connectionLost(Failure(ConnectionDone()))
    assert not transport.half_closed
    assert server.site.connections == 0
