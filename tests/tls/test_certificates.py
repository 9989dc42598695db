"""Invalid files of an ``https:`` endpoint."""

from __future__ import annotations

import os

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa, rsa, x25519
from twisted.internet.testing import MemoryReactorClock

from sampleapp.errors import StartUpError
from sampleapp.service.listener import Listener
from sampleapp.tls import HTTPSEndpoint
from tests.support.certificates import Authority, key_pem
from tests.support.logs import logged_lines
from tests.support.tls_in_memory import Client, Server, client_context
from tests.tls.test_https_arguments import rejection


@pytest.fixture
def rejection_of(authority, files, tmp_path):
    """Why an endpoint with some other files is none; the directory is left out of it."""

    def rejection_of(*arguments, key=files.key, certificate=files.certificate):
        description = ":".join(["https:1", f"privateKey={key}", f"certKey={certificate}", *arguments])
        return rejection(description).replace(f"{tmp_path}/", "")

    return rejection_of


def test_a_key_that_is_damaged_is_told(rejection_of, files, tmp_path):
    damaged = tmp_path / "damaged.key"
    damaged.write_bytes(files.key.read_bytes().replace(b"M", b"N"))
    assert rejection_of(key=damaged) == "the private key in damaged.key cannot be read: it is damaged."


def test_a_file_that_every_user_may_write_to_is_rejected(rejection_of, authority, files, tmp_path):
    chain = tmp_path / "chain.pem"
    chain.write_bytes(authority.certificate.read_bytes())
    arguments = [f"clientCA={authority.certificate}", f"extraCertChain={chain}"]
    for path in (files.key, files.certificate, authority.certificate, chain):
        mode = path.stat().st_mode
        path.chmod(0o646)
        assert rejection_of(*arguments) == (
            f"cannot use {path.name}: every user of this machine may write to it; remove that permission "
            "(chmod o-w)."
        )
        path.chmod(mode)


@pytest.mark.parametrize("kind", ["ssl", "https"])
def test_a_file_in_a_directory_that_every_user_may_write_to_is_rejected(files, kind):
    description = f"{kind}:1:privateKey={files.key}:certKey={files.certificate}"
    files.key.parent.chmod(0o777)
    assert "every user of this machine may replace it, since" in rejection(description)


def test_a_file_of_twisteds_own_endpoint_that_every_user_may_write_to_is_rejected(authority, files):
    description = f"ssl:1:privateKey={files.key}:certKey={files.certificate}"
    Listener.from_description(description, reactor=MemoryReactorClock())
    for path in (files.key, files.certificate):
        mode = path.stat().st_mode
        path.chmod(0o602)
        assert f"cannot use {path}: every user of this machine may write to it" in rejection(description)
        path.chmod(mode)


@pytest.mark.parametrize("kind", ["ssl", "https"])
def test_a_private_key_that_every_user_may_read_is_worth_a_warning(files, kind):
    description = f"{kind}:1:privateKey={files.key}:certKey={files.certificate}"
    for mode, count in ((0o600, 0), (0o640, 0), (0o604, 1)):
        files.key.chmod(mode)
        with logged_lines() as lines:
            Listener.from_description(description, reactor=MemoryReactorClock())
        assert (
            len([line for line in lines if f"remove that permission (chmod o= {files.key})" in line]) == count
        )


def test_a_key_that_every_user_may_write_to_later_changes_nothing(files):
    listener = HTTPSEndpoint.from_arguments(
        MemoryReactorClock(), "1", privateKey=str(files.key), certKey=str(files.certificate)
    )
    before = listener.getContext()
    files.key.chmod(0o606)
    with pytest.raises(StartUpError, match="every user of this machine may write to it"):
        listener.reload()
    assert listener.getContext() is before
    files.key.chmod(0o600)
    listener.reload()
    assert listener.getContext() is not before


def test_files_that_are_half_written_are_told(rejection_of, authority, files, tmp_path):
    key, certificate, chain = (tmp_path / name for name in ("half.key", "half.pem", "chain.pem"))
    key.write_bytes(files.key.read_bytes()[:100])
    certificate.write_bytes(files.certificate.read_bytes()[:400])
    chain.write_bytes(files.certificate.read_bytes() + authority.certificate.read_bytes()[:400])
    assert rejection_of(key=key) == "the private key in half.key has no end: the file was cut off."
    cut_off = "a certificate in {} cannot be read: the file was cut off."
    assert rejection_of(certificate=chain) == cut_off.format("chain.pem")
    assert rejection_of(f"clientCA={chain}") == cut_off.format("chain.pem")
    # Half of a single one is none.
    assert "half.pem cannot be read: " in rejection_of(certificate=certificate)


def test_a_key_that_belongs_to_another_certificate_of_the_file_is_told(
    rejection_of, authority, files, tmp_path
):
    turned = tmp_path / "turned.pem"
    turned.write_bytes(authority.certificate.read_bytes() + files.certificate.read_bytes())
    assert rejection_of(certificate=turned) == (
        "the private key in server.key does not belong to the first certificate in turned.pem, but to "
        "another one there. Put the certificate of this key first."
    )


@pytest.mark.parametrize(
    "make", [x25519.X25519PrivateKey.generate, lambda: dsa.generate_private_key(key_size=2048)]
)
def test_a_key_of_a_kind_that_tls_does_not_use_is_told(rejection_of, tmp_path, make):
    (tmp_path / "strange.key").write_bytes(key_pem(make()))
    assert rejection_of(key=tmp_path / "strange.key") == (
        "the private key in strange.key has a type that TLS does not use: give an RSA or EC key."
    )


def test_a_key_that_is_too_weak_is_told(rejection_of, authority, tmp_path):
    weak = authority.server("weak", key=rsa.generate_private_key(public_exponent=65537, key_size=1024))
    assert rejection_of(key=weak.key, certificate=weak.certificate) == (
        "OpenSSL rejected the private key and the certificates: they may be too weak for its security "
        "level (ee key too small)."
    )


@pytest.mark.parametrize("argument", ["clientCA", "extraCertChain"])
def test_a_file_of_authorities_without_one_is_told(rejection_of, files, argument):
    assert rejection_of(f"{argument}={files.key}") == (
        f"there is no certificate in server.key. Give {argument}= a PEM file with a line "
        "-----BEGIN CERTIFICATE-----."
    )


def test_a_certificate_of_a_client_in_the_place_of_its_authority_is_told(rejection_of, authority):
    client = authority.client("thermometer")
    assert rejection_of(f"clientCA={client.certificate}") == (
        "the certificate of CN=thermometer in thermometer.pem is not that of an authority. Give clientCA= a "
        "PEM file with the authorities that sign the certificates of clients."
    )


def test_what_is_no_file_is_told(rejection_of, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(bytes(1024 * 1024 + 1))
    assert rejection_of(key=tmp_path / "pipe") == "cannot read pipe: it is not a regular file."
    assert rejection_of(key=tmp_path / "none") == "cannot read none: No such file or directory."
    assert rejection_of(key="a\0b") == "cannot read a\0b: embedded null byte."
    assert rejection_of(key=tmp_path / "large") == ("cannot read large: it is larger than 1048576 bytes.")


def test_a_key_and_its_certificate_may_share_a_file(authority, files, tmp_path):
    both = tmp_path / "both.pem"
    both.write_bytes(files.certificate.read_bytes() + files.key.read_bytes())
    server = Server(f"https:8443:privateKey={both}")
    assert b"200 OK" in Client(server, client_context(authority)).ask()


@pytest.mark.parametrize("form", [serialization.PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize(
    "make", [None, lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048)]
)
def test_keys_may_be_in_the_old_form(authority, tmp_path, form, make):
    issued = authority.server(key=None if make is None else make())
    key = serialization.load_pem_private_key(issued.key.read_bytes(), None)
    parameters = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
    issued.key.write_bytes(parameters + key_pem(key, form=form))
    server = Server(f"https:8443:privateKey={issued.key}:certKey={issued.certificate}")
    assert b"200 OK" in Client(server, client_context(authority)).ask()


@pytest.mark.parametrize("place", ["certKey", "extraCertChain"])
def test_authorities_between_are_sent_from_either_file(authority, tmp_path, place):
    issued = Authority(tmp_path, "between", parent=authority).server()
    chain = ""
    if place == "extraCertChain":
        own, _, between = issued.certificate.read_text().partition("-----END CERTIFICATE-----\n")
        issued.certificate.write_text(own + "-----END CERTIFICATE-----\n")
        (tmp_path / "chain.pem").write_text(between)
        chain = f":extraCertChain={tmp_path / 'chain.pem'}"
    server = Server(f"https:8443:privateKey={issued.key}:certKey={issued.certificate}{chain}")
    assert b"200 OK" in Client(server, client_context(authority)).ask()


def test_nothing_of_a_key_is_in_an_error(files, tmp_path):
    secret = b"".join(files.key.read_bytes().splitlines()[1:-1])
    damaged = tmp_path / "damaged.key"
    damaged.write_bytes(files.key.read_bytes().replace(secret[:8], b"!" * 8))
    with pytest.raises(StartUpError) as caught:
        HTTPSEndpoint.from_arguments(None, "1", str(damaged), str(files.certificate))
    assert caught.value.__cause__ is None
    assert secret[8:16].decode() not in str(caught.value)


def test_an_ssl_endpoint_does_not_reload_its_certificate_and_the_log_says_so(authority, files):
    with logged_lines() as lines:
        server = Server(f"ssl:8443:privateKey={files.key}:certKey={files.certificate}")
    sentence = (
        "The endpoint ssl:8443 does not reload its certificate: restart the service when it is renewed, or "
        "use https: instead of ssl:, which reloads it."
    )
    assert sum(sentence in line for line in lines) == 1
    before = Client(server, client_context(authority)).tls.getpeercert(binary_form=True)
    authority.server()
    assert server.reloads.reload().result
    assert Client(server, client_context(authority)).tls.getpeercert(binary_form=True) == before
