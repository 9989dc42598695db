"""Clients that show a certificate, another one, or none."""

from __future__ import annotations

import datetime as dt
import ssl

import pytest
from cryptography import x509
from twisted.logger import capturedLogs, formatEvent

from tests.support.certificates import Authority
from tests.support.tls_in_memory import REQUEST, Client, Server, client_context

V12, V13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
each_version = pytest.mark.parametrize("version", [V12, V13])


def loaded(issued):
    return x509.load_pem_x509_certificate(issued.certificate.read_bytes())


@each_version
def test_the_certificate_of_a_client_is_seen(serve, authority, version):
    server, certificate = serve(), authority.client("thermometer")
    client = Client(server, client_context(authority, certificate=certificate, versions=(version, version)))
    assert b"200 OK" in client.ask()
    assert server.seen == [loaded(certificate)]


@each_version
def test_a_client_without_a_certificate_is_served_as_nobody(serve, authority, version):
    server = serve()
    assert b"200 OK" in Client(server, client_context(authority, versions=(version, version))).ask()
    assert server.seen == [None]


def rejected(server, context):
    """Why a client cannot ask anything, as it sees that itself."""
    with pytest.raises(ssl.SSLError) as caught:
        # With TLS 1.3 the client is done before the server has looked.
        Client(server, context).ask()
    assert server.seen == []
    return caught.value.reason


UNKNOWN_CA = {"TLSV1_ALERT_UNKNOWN_CA", "SSL/TLS_ALERT_UNKNOWN_CA"}


@each_version
@pytest.mark.parametrize("requirement", [(), ("clientCertificate=required",)])
def test_a_certificate_of_another_authority_is_rejected_with_an_alert(
    serve, authority, foreign, version, requirement
):
    server = serve(*requirement)
    context = client_context(authority, certificate=foreign.client(), versions=(version, version))
    with capturedLogs() as events:
        assert rejected(server, context) in UNKNOWN_CA
    assert +server.site.rejections == {"client-certificate": 1}
    (line,) = [event for event in events if "reason" in event]
    assert line["peer"] == "192.0.2.7"
    assert line["reason"] == "no authority in the file of clientCA= has signed it"
    assert "CN=client" in line["name"]


@each_version
def test_a_certificate_that_names_a_trusted_authority_but_was_signed_by_another_is_rejected(
    serve, authority, tmp_path, version
):
    (tmp_path / "twin").mkdir()
    twin = Authority(tmp_path / "twin", authority.name)
    server = serve()
    context = client_context(authority, certificate=twin.client(), versions=(version, version))
    assert rejected(server, context)
    assert +server.site.rejections == {"client-certificate": 1}


@pytest.mark.parametrize(
    ("validity", "reason"),
    [
        ({"end": -dt.timedelta(minutes=1)}, "it has expired"),
        ({"start": dt.timedelta(minutes=1)}, "it is not valid yet"),
    ],
)
def test_a_certificate_outside_its_time_is_rejected(serve, authority, validity, reason):
    server = serve()
    with capturedLogs() as events:
        assert rejected(server, client_context(authority, certificate=authority.client(**validity)))
    assert [event["reason"] for event in events if "reason" in event] == [reason]


def test_a_rejected_client_has_time_to_read_why(serve, authority, foreign):
    server = serve()
    client = Client(server, client_context(authority, certificate=foreign.client(), versions=(V13, V13)))
    # It is done, and does not know yet what the server will think of its certificate.
    client.tls.write(REQUEST)
    with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
        client.ask()
    assert client.transport.half_closed
    assert not client.transport.disconnecting
    server.reactor.advance(2)
    assert client.transport.aborted
    client.close()
    assert server.site.connections == 0


def test_the_certificate_of_a_server_is_none_of_a_client(serve, authority):
    server = serve()
    with capturedLogs() as events:
        rejected(server, client_context(authority, certificate=authority.server("another")))
    assert [event["reason"] for event in events if "reason" in event] == [
        "it is not issued for clients (extended key usage)"
    ]


@each_version
def test_a_certificate_may_be_required(serve, authority, version):
    server = serve("clientCertificate=required")
    with capturedLogs() as events:
        rejected(server, client_context(authority, versions=(version, version)))
    assert +server.site.rejections == {"client-certificate": 1}
    assert [event["reason"] for event in events if "reason" in event] == [
        "no certificate was sent, and this endpoint requires one"
    ]
    client = Client(
        server, client_context(authority, certificate=authority.client(), versions=(version, version))
    )
    assert b"200 OK" in client.ask()
    assert +server.site.rejections == {"client-certificate": 1}


def test_no_cipher_in_common_is_no_question_of_certificates(serve, authority):
    server = serve("clientCertificate=required")
    context = client_context(authority, certificate=authority.client(), versions=(V12, V12))
    context.set_ciphers("AES256-SHA")
    rejected(server, context)
    assert not +server.site.rejections


def test_clients_that_are_rejected_again_and_again_do_not_fill_the_log(serve, authority, foreign):
    server = serve()
    context = client_context(authority, certificate=foreign.client())
    with capturedLogs() as events:
        for _ in range(5):
            rejected(server, context)
        assert [event["count"] for event in events if "reason" in event] == [1]
        server.reactor.advance(60)
        rejected(server, context)
    assert [event["count"] for event in events if "reason" in event] == [1, 5]
    assert server.site.rejections["client-certificate"] == 6


def test_what_a_stranger_calls_itself_makes_no_lines_in_the_log(serve, authority, foreign):
    server = serve()
    with capturedLogs() as events:
        rejected(server, client_context(authority, certificate=foreign.client("a\nThe broker works again")))
    (line,) = [event for event in events if "reason" in event]
    assert "\n" not in formatEvent(line)
    assert "works again" in line["name"]


def test_an_intermediate_authority_is_trusted_without_its_root(authority, files, tmp_path):
    between = Authority(tmp_path, "between", parent=authority)
    server = Server(
        f"https:8443:privateKey={files.key}:certKey={files.certificate}:clientCA={between.certificate}"
    )
    certificate = between.client("thermometer")
    Client(server, client_context(authority, certificate=certificate)).ask()
    assert server.seen == [loaded(certificate)]
    # Its issuer is not.
    rejected_server = Server(
        f"https:8443:privateKey={files.key}:certKey={files.certificate}:clientCA={between.certificate}"
    )
    rejected(rejected_server, client_context(authority, certificate=authority.client("other")))


@each_version
def test_a_certificate_may_have_eight_authorities_between_itself_and_a_trusted_one(
    serve, authority, tmp_path, version
):
    issuers = [authority]
    for number in range(9):
        issuers.append(Authority(tmp_path, f"between-{number}", parent=issuers[-1]))
    with capturedLogs() as events:
        certificate = issuers[9].client("nine")
        rejected(serve(), client_context(authority, certificate=certificate, versions=(version, version)))
    assert [event["reason"] for event in events if "reason" in event] == [
        "it has more than 8 authorities between itself and a trusted one"
    ]
    certificate = issuers[8].client("eight")
    context = client_context(authority, certificate=certificate, versions=(version, version))
    assert b"200 OK" in Client(serve(), context).ask()


def test_clients_are_told_which_authorities_are_meant(serve, authority):
    server = serve()
    # Before TLS 1.3 that is sent as it is (RFC 5246, section 7.4.4), in its own message.
    client = Client(server, client_context(authority, versions=(V12, V12)))
    name = authority.subject.public_bytes()
    assert len(name).to_bytes(2, "big") + name in client.received


@pytest.mark.parametrize("scheme", ["ssl", "https"])
def test_without_client_ca_nobody_is_asked_and_nobody_is_believed(authority, files, scheme):
    server = Server(f"{scheme}:8443:privateKey={files.key}:certKey={files.certificate}")
    client = Client(server, client_context(authority, certificate=authority.client()))
    assert b"200 OK" in client.ask()
    assert server.seen == [None]


@each_version
def test_no_session_is_resumed_so_that_each_connection_verifies(serve, authority, version):
    server = serve()
    context = client_context(authority, certificate=authority.client(), versions=(version, version))
    first = Client(server, context)
    first.ask()
    second = Client(server, context, session=first.tls.session)
    second.ask()
    assert not second.tls.session_reused
    assert server.seen[0] == server.seen[1] is not None


@each_version
def test_a_session_does_not_outlive_the_authority_behind_it(serve, authority, foreign, version):
    server = serve()
    context = client_context(authority, certificate=authority.client(), versions=(version, version))
    first = Client(server, context)
    first.ask()
    authority.certificate.write_bytes(foreign.certificate.read_bytes())
    assert server.reloads.reload().result
    with pytest.raises(ssl.SSLError):
        Client(server, context, session=first.tls.session).ask()
    # The open connection continues with its old settings.
    assert b"200 OK" in first.ask()
    assert server.seen[0] == server.seen[1] is not None
    assert len(server.seen) == 2


def test_who_it_was_is_known_when_the_connection_is_gone(serve, authority):
    server = serve()
    client = Client(server, client_context(authority, certificate=authority.client()))
    client.ask()
    client.close()
    assert server.peers[0].certificate() == server.seen[0]
    nobody = Client(server, client_context(authority))
    nobody.ask()
    nobody.close()
    assert server.peers[1].certificate() is None
