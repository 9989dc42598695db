"""Where the service is reached."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from functools import partial
from typing import Any, Final

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import AdoptedStreamServerEndpoint, serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory, IStreamServerEndpoint
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.endpoint_string import EndpointString, escaped_interface, is_loopback
from sampleapp.errors import StartUpError
from sampleapp.reloads import Reloads
from sampleapp.tls import ExpiryWatch, HTTPSEndpoint, RenewableSSLEndpoint, require_callbacks
from sampleapp.web import HTTPServer, is_on_loopback

__all__ = ["Listener"]

_TLS: Final = ("https", "ssl", "tls")
_WITH_QUEUE: Final = ("https", "tcp", "tcp6", "ssl", "tls", "unix")
_LONGEST_QUEUE: Final = 2**31 - 1
"""Of connections that are not accepted yet. The system shortens it to somaxconn (listen(2))."""
_FIRST_FREE_PORT: Final = 1024
_SYSTEMD: Final = "systemd"


class Listener:
    """One endpoint, and the words in which to speak of it."""

    _log = Logger()

    def __init__(
        self, *, endpoint: IStreamServerEndpoint, description: str, expiry: ExpiryWatch | None = None
    ) -> None:
        """
        :param description: as the operator gave it.
        :param expiry: looks after its certificates while it listens.
        """
        self._expiry = expiry
        self._endpoint = endpoint
        self._description = description
        self._kind = EndpointString.parse(description).kind
        self._port: IListeningPort | None = None

    @classmethod
    def from_description(cls, description: str, *, reactor: Any, option: str = "--listen") -> Listener:
        """
        Make what listens as a string says (`twisted.internet.endpoints.serverFromString`).

        :param option: that the operator gave it with.
        :raise StartUpError: Twisted does not understand it, or cannot read a file that it names.
        """
        meant = escaped_interface(description)
        if meant is not None:
            raise StartUpError(
                f"{option} {description}: a colon ends an argument, so those of an address need a backslash "
                f"before each: '{meant}'."
            )
        try:
            kind = EndpointString.parse(description).kind
            if kind in _TLS:
                require_callbacks()
            endpoint = (
                _handed_over(description, reactor) if kind == _SYSTEMD else _endpoint(description, reactor)
            )
        except StartUpError as error:
            raise StartUpError(f"{option} {description}: {error}") from error
        except OSError as error:
            raise StartUpError(
                f"{option} {description}: cannot read {error.filename}: {error.strerror}."
            ) from error
        except Exception as error:
            # What the parser of an endpoint raises is up to the plugin that brings it.
            raise StartUpError(
                f"{option} {description}: not an endpoint that Twisted understands ({error}). Give one "
                "such as tcp:8080, or https:8443:privateKey=key.pem:certKey=certificate.pem."
            ) from error
        expiry = ExpiryWatch(reactor, endpoint.complaints) if isinstance(endpoint, HTTPSEndpoint) else None
        return cls(endpoint=endpoint, description=description, expiry=expiry)

    def add_to(self, reloads: Reloads) -> None:
        """Let its private key and its certificates be read again, if it has some."""
        endpoint = self._endpoint
        if isinstance(endpoint, HTTPSEndpoint | RenewableSSLEndpoint):
            port = EndpointString.parse(self._description).argument("port")
            reloads.add(f"the key and certificates of {self._kind}:{port}", self._reload, endpoint.paths)

    def _reload(self) -> None:
        endpoint: Any = self._endpoint
        endpoint.reload()
        if self._expiry is not None:
            self._expiry.look()

    def listen(self, factory: IProtocolFactory) -> None:
        """
        Take the port.

        :raise StartUpError: it cannot be had.
        """
        if isinstance(self._endpoint, HTTPSEndpoint) and isinstance(factory, HTTPServer):
            self._endpoint.on_refused = partial(factory.refused, "client-certificate")
        outcome: list[IListeningPort | Failure] = []
        self._endpoint.listen(factory).addBoth(outcome.append)
        if not outcome:
            raise StartUpError(f"Cannot listen on {self._description}: the endpoint is not ready at once.")
        port = outcome[0]
        if isinstance(port, Failure):
            raise StartUpError(self._explain(port.value)) from port.value
        if isinstance(self._endpoint, AdoptedStreamServerEndpoint):
            _lengthen_queue(port)
        self._port = port
        if self._expiry is not None:
            self._expiry.look()

    def _explain(self, error: BaseException | None) -> str:
        reason = error.socketError if isinstance(error, CannotListenError) else error
        words = str(getattr(reason, "strerror", None) or reason).rstrip(".")
        number = getattr(reason, "errno", None)
        port = error.port if isinstance(error, CannotListenError) else None
        advice = "Give another endpoint with --listen"
        if number == errno.EADDRINUSE:
            advice += ", or stop what uses this one"
        elif number in {errno.EACCES, errno.EPERM} and isinstance(port, int) and port < _FIRST_FREE_PORT:
            advice += (
                f" with a port from {_FIRST_FREE_PORT}, or run the service with the capability "
                "CAP_NET_BIND_SERVICE, which lower ports need"
            )
        return f"Cannot listen on {self._description}: {words}. {advice}."

    def stop(self) -> Deferred[None]:
        """Give the port back; fires with ``None`` once it is closed. A failure is logged, and no more."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        if self._expiry is not None:
            self._expiry.stop()
        port, self._port = self._port, None
        if port is None:
            return
        try:
            await maybeDeferred(port.stopListening)
        except Exception:  # noqa: BLE001 -- whatever it was, the rest of the service has to be stopped
            self._log.failure("Cannot stop listening on {description}", description=self._description)

    @property
    def description(self) -> str:
        """The endpoint, as the operator gave it."""
        return self._description

    @property
    def takes_certificates(self) -> bool:
        """Whether it asks clients for certificates."""
        endpoint = self._endpoint
        return isinstance(endpoint, HTTPSEndpoint) and endpoint.arguments.client_ca is not None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it; before it listens, by its description or its socket."""
        if self._port is None:
            endpoint = self._endpoint
            if isinstance(endpoint, AdoptedStreamServerEndpoint):
                return is_on_loopback(_address_of(endpoint))
            return is_loopback(self._description)
        return is_on_loopback(self._port.getHost())

    @property
    def url(self) -> str:
        """Where to reach the service, for people; it has the port that was really taken."""
        address: Any = None if self._port is None else self._port.getHost()
        scheme = "https" if self._kind in _TLS else "http"
        if isinstance(address, IPv6Address):
            return f"{scheme}://[{address.host}]:{address.port}/"
        if isinstance(address, IPv4Address):
            return f"{scheme}://{address.host}:{address.port}/"
        if isinstance(address, UNIXAddress) and address.name is not None:
            return f"unix:{address.name.decode(errors='replace')}"
        return self._description


def _handed_over(description: str, reactor: Any) -> IStreamServerEndpoint:
    """
    Make an endpoint of a socket that systemd has handed over.

    :raise StartUpError: it has not, or Twisted cannot take it over.
    """
    endpoint = EndpointString.parse(description)
    if "UNIX" in (endpoint.by_name.get("domain"), *endpoint.by_place):
        raise StartUpError(
            "a Unix socket of systemd cannot be taken over, since Twisted would remove it at the end. Let "
            "systemd hand over a TCP socket, or give unix:PATH."
        )
    try:
        adopted: IStreamServerEndpoint = serverFromString(reactor, description)
    except LookupError as error:
        raise StartUpError(
            "systemd has handed over no such socket. Start the service by its socket unit, with "
            "FileDescriptorName= in it, and give that name: systemd:domain=INET:name=http."
        ) from error
    return adopted


def _address_of(endpoint: AdoptedStreamServerEndpoint) -> IPv4Address | IPv6Address | None:
    with socket.socket(fileno=os.dup(endpoint.fileno)) as same:
        if same.family == socket.AF_INET:
            return IPv4Address("TCP", *same.getsockname())
        return IPv6Address("TCP", *same.getsockname()) if same.family == socket.AF_INET6 else None


def _lengthen_queue(port: Any) -> None:
    # Twisted makes that of a socket which it takes over 50 (tcp.Port.backlog), however long it was.
    with socket.socket(fileno=os.dup(port.fileno())) as same:
        same.listen(_LONGEST_QUEUE)


def _endpoint(description: str, reactor: Any) -> IStreamServerEndpoint:
    """Make the endpoint, with a queue as long as can be unless it says how long."""
    kind = EndpointString.parse(description).kind
    parse = RenewableSSLEndpoint if kind == "ssl" else serverFromString
    endpoint: IStreamServerEndpoint | None = None
    if kind in _WITH_QUEUE and ":backlog=" not in description:
        # It may say so by the place of the argument, or be wrong, which is seen without this one too.
        with suppress(TypeError):
            endpoint = parse(reactor, f"{description}:backlog={_LONGEST_QUEUE}")
    if endpoint is None:
        endpoint = parse(reactor, description)
    return endpoint
