"""Without a file of callers the service listens where no other machine can reach it, unless it is told to."""

from __future__ import annotations

import pytest
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.testing import MemoryReactorClock

from sampleapp.errors import StartUpError
from sampleapp.options import Config
from sampleapp.service import build
from tests.support.callers import FULL


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
