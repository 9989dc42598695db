"""The arguments in an ``https:`` endpoint's description."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.endpoints import quoteStringArgument, serverFromString
from twisted.internet.interfaces import IStreamServerEndpoint
from twisted.internet.testing import MemoryReactorClock

from sampleapp.errors import StartUpError
from sampleapp.service.listener import Listener
from sampleapp.tls.https_arguments import HTTPSArguments
from tests.support.certificates import Authority
from tests.support.examples import examples

# The characters with a meaning in descriptions, and some others of file names.
NAMES = st.text(alphabet="ab:=\\ .,é'\"%{}", min_size=1, max_size=12).filter(
    lambda name: name not in {".", ".."}
)


@pytest.fixture(scope="module")
def pair():
    """A certificate and its authority, for all examples."""
    with tempfile.TemporaryDirectory() as directory:
        authority = Authority(directory)
        yield authority.server(), authority.certificate


@given(data=st.data())
@examples(60)
def test_arguments_are_taken_in_any_order_and_with_any_file_name(data, pair):
    issued, authority = pair
    names = data.draw(st.lists(NAMES, min_size=4, max_size=4, unique=True))
    with tempfile.TemporaryDirectory() as directory:
        files = [str(Path(directory, name)) for name in names]
        sources = [issued.key, issued.certificate, authority, authority]
        for source, file in zip(sources, files, strict=True):
            shutil.copyfile(source, file)
        expected = {
            "port": data.draw(st.integers(0, 65535)),
            "private_key": files[0],
            "certificate": files[1],
            **data.draw(st.fixed_dictionaries({}, optional={"extra_chain": st.just(files[2])})),
            "client_ca": files[3],
            "requires_client": data.draw(st.booleans()),
            "minimum": data.draw(st.sampled_from(["TLSv1.2", "TLSv1.3"])),
            "interface": data.draw(st.sampled_from(["", "127.0.0.1", "::1", "fe80::1%lo"])),
            "backlog": data.draw(st.integers(1, 2**31 - 1)),
        }
        written = {
            "port": str(expected["port"]),
            "privateKey": files[0],
            "certKey": files[1],
            **({"extraCertChain": files[2]} if "extra_chain" in expected else {}),
            "clientCA": files[3],
            "clientCertificate": "required" if expected["requires_client"] else "optional",
            "minimum": expected["minimum"],
            "interface": expected["interface"],
            "backlog": str(expected["backlog"]),
        }
        places = data.draw(st.integers(0, 3))
        by_place = [quoteStringArgument(written.pop(name)) for name in list(written)[:places]]
        # An equals sign makes a name of what stands before it.
        by_place = [text.replace("=", "\\=") for text in by_place]
        by_name = [f"{name}={quoteStringArgument(value)}" for name, value in written.items()]
        description = ":".join(["https", *by_place, *data.draw(st.permutations(by_name))])
        endpoint = serverFromString(MemoryReactorClock(), description)
    assert IStreamServerEndpoint.providedBy(endpoint)
    assert endpoint.arguments == HTTPSArguments(**expected)


def rejection(description):
    with pytest.raises(StartUpError) as caught:
        Listener.from_description(description, reactor=MemoryReactorClock())
    return str(caught.value).removeprefix(f"--listen {description}: ")


EXAMPLE = "Give one such as https:8443:privateKey=key.pem:certKey=certificate.pem."


@pytest.mark.parametrize(
    ("description", "sentence"),
    [
        ("https:8443", f"an https: endpoint needs a private key. {EXAMPLE}"),
        ("https:privateKey=k", f"an https: endpoint needs a port. {EXAMPLE}"),
        ("https:eighty:k", "port=eighty is not a number from 0 to 65535."),
        ("https:65536:k", "port=65536 is not a number from 0 to 65535."),
        ("https:1_0:k", "port=1_0 is not a number from 0 to 65535."),
        ("https:1:k:c:backlog=0", "backlog=0 is not a number from 1 to 2147483647."),
        (
            "https:1:k:c:clientca=x",
            "clientca= is not an argument of an https: endpoint. Did you mean clientCA=?",
        ),
        (
            "https:1:k:c:colour=red",
            (
                "colour= is not an argument of an https: endpoint. It takes port, privateKey, certKey, "
                "extraCertChain, clientCA, clientCertificate, minimum, interface, backlog."
            ),
        ),
        ("https:1:k:c:minimum=TLSv1.1", "minimum=TLSv1.1 is not a valid value. Give TLSv1.2 or TLSv1.3."),
        (
            "https:1:k:c:clientCA=a:clientCertificate=yes",
            "clientCertificate=yes is not a valid value. Give optional or required.",
        ),
        (
            "https:1:k:c:clientCertificate=required",
            (
                "clientCertificate= needs clientCA=, a PEM file with the authorities that sign the "
                "certificates of clients."
            ),
        ),
        (
            "https:1:k:c:interface=localhost",
            (
                r"interface=localhost is not an IP address. Give one such as 127.0.0.1 or \:\:1, or leave it "
                "out to listen on every IPv4 address."
            ),
        ),
        (
            "https:1:privateKey=k:certKey=c:interface=::1",
            (
                "a colon ends an argument, so each colon of an address needs a backslash before it: "
                r"'https:1:privateKey=k:certKey=c:interface=\:\:1'."
            ),
        ),
        (
            "https:1:k:c:d",
            r"the argument 'd' has no name. A colon inside a value is written \:, as in interface=\:\:1.",
        ),
        ("https:1:k:c:clientCA=", "clientCA= has no value. Give one, or leave it out."),
    ],
)
def test_a_mistake_is_answered_with_what_would_be_right(description, sentence):
    assert rejection(description) == sentence
