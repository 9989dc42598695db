"""A listener: one endpoint on which the service accepts connections."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import AdoptedStreamServerEndpoint, serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory, IStreamServerEndpoint
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.errors import InvalidOption, StartUpError
from sampleapp.files import shown_path
from sampleapp.service.endpoint_string import (
    EndpointString,
    escaped_interface,
    is_loopback,
    shown_endpoint,
    with_socket_mode,
    without_secrets,
)
from sampleapp.service.reloads import Reloads
from sampleapp.tls import ExpiryWatch, HTTPSEndpoint, check_ssl_endpoint, require_callbacks
from sampleapp.web import is_on_loopback

_TLS: Final = ("https", "ssl", "tls")
_WITH_QUEUE: Final = ("https", "tcp", "tcp6", "ssl", "tls", "unix")
_LONGEST_QUEUE: Final = 2**31 - 1
"""The queue of connections that are not accepted yet. The system shortens it to somaxconn (listen(2))."""
_SOCKET_MODE: Final = "660"
"""Mode of a Unix socket: only the service's user and group may connect. Twisted's default is every user."""
_FIRST_FREE_PORT: Final = 1024
_SYSTEMD: Final = "systemd"


class Listener:
    """One endpoint, with its port while it listens."""

    _log = Logger()

    def __init__(
        self, *, endpoint: IStreamServerEndpoint, description: str, expiry: ExpiryWatch | None = None
    ) -> None:
        """
        :param description: Twisted's description of the endpoint, as the operator gave it.
        :param expiry: warns before its certificates expire, while it listens.
        """
        self._expiry = expiry
        self._endpoint = endpoint
        self._description = description
        self._kind = EndpointString.parse(description).kind
        self._port: IListeningPort | None = None

    @classmethod
    def from_description(
        cls,
        description: str,
        *,
        reactor: Any,
        option: str = "--listen",
        now: Callable[[], float] = time.time,
    ) -> Listener:
        """
        Create a listener from a description (`twisted.internet.endpoints.serverFromString`).

        :param option: the option that had the description, for error messages.
        :param now: returns the time of day, in seconds since the epoch.
        :raise StartUpError: Twisted does not understand the description, or cannot read a file named in it.
        """
        shown = shown_endpoint(description)
        escaped = escaped_interface(description)
        if escaped is not None:
            raise InvalidOption(
                f"{option} {shown}: a colon ends an argument, so each colon of an address needs a backslash "
                f"before it: '{without_secrets(escaped, description)}'."
            )
        kind_of_fault: type[StartUpError] = StartUpError
        try:
            kind = EndpointString.parse(description).kind
            if kind in _TLS:
                require_callbacks()
            endpoint = (
                _from_systemd(description, reactor) if kind == _SYSTEMD else _endpoint(description, reactor)
            )
        except StartUpError as error:
            said, kind_of_fault = str(error), type(error)
        except OSError as error:
            said = f"cannot read {shown_path(str(error.filename))}: {error.strerror}."
        except Exception as error:  # noqa: BLE001 -- plugins with endpoint parsers may raise any exception
            kind_of_fault = InvalidOption
            said = (
                f"not an endpoint that Twisted understands ({error}). Give one "
                "such as tcp:8080, or https:8443:privateKey=key.pem:certKey=certificate.pem."
            )
        else:
            said = ""
        if said:
            # Without the cause, which may repeat a value.
            raise kind_of_fault(f"{option} {shown}: {without_secrets(said, description)}")
        expiry = None
        if isinstance(endpoint, HTTPSEndpoint):
            expiry = ExpiryWatch(reactor, endpoint.expiry_warnings, now=now)
        return cls(endpoint=endpoint, description=description, expiry=expiry)

    def add_to(self, reloads: Reloads) -> None:
        """Register its private key and certificates, if it has them, to be reloaded."""
        endpoint = self._endpoint
        if isinstance(endpoint, HTTPSEndpoint):
            port = EndpointString.parse(self._description).argument("port")
            reloads.add(f"the key and certificates of https:{port}", self._reload, endpoint.paths)

    def _reload(self) -> None:
        endpoint: Any = self._endpoint
        endpoint.reload()
        if self._expiry is not None:
            self._expiry.check()

    def listen(
        self, factory: IProtocolFactory, *, on_certificate_rejected: Callable[[], None] | None = None
    ) -> None:
        """
        Open the port.

        :param on_certificate_rejected: is called for each client whose certificate is missing or rejected.
        :raise StartUpError: the port cannot be opened.
        """
        if isinstance(self._endpoint, HTTPSEndpoint) and on_certificate_rejected is not None:
            self._endpoint.on_rejected = on_certificate_rejected
        outcome: list[IListeningPort | Failure] = []
        self._endpoint.listen(factory).addBoth(outcome.append)
        if not outcome:
            raise StartUpError(
                f"Cannot listen on {shown_endpoint(self._description)}: the endpoint is not ready at once."
            )
        port = outcome[0]
        if isinstance(port, Failure):
            raise StartUpError(self._explain(port.value)) from port.value
        if isinstance(self._endpoint, AdoptedStreamServerEndpoint):
            _lengthen_queue(port)
        self._port = port
        if self._expiry is not None:
            self._expiry.check()

    def _explain(self, error: BaseException | None) -> str:
        reason = error.socketError if isinstance(error, CannotListenError) else error
        words = str(getattr(reason, "strerror", None) or reason).rstrip(".")
        number = getattr(reason, "errno", None)
        port = error.port if isinstance(error, CannotListenError) else None
        advice = "Give another endpoint with --listen"
        if number == errno.EADDRINUSE:
            advice += ", or stop the program that uses this one"
        elif number in {errno.EACCES, errno.EPERM} and isinstance(port, int) and port < _FIRST_FREE_PORT:
            advice += (
                f" with a port from {_FIRST_FREE_PORT}, or run the service with the capability "
                "CAP_NET_BIND_SERVICE, which lower ports need"
            )
        shown, words = shown_endpoint(self._description), without_secrets(words, self._description)
        return f"Cannot listen on {shown}: {words}. {advice}."

    def require_local(self) -> None:
        """
        Check that only this machine can reach the endpoint.

        :raise InvalidOption: other machines can, or it is not known whether they can.
        """
        if not self.is_local:
            raise InvalidOption(
                f"--listen {shown_endpoint(self._description)}: other machines can reach this endpoint, or "
                "it is not known that they cannot, so it needs a callers file: --callers FILE. Or listen on "
                "this machine only, for example with --listen tcp:8080:interface=127.0.0.1. Or, if a proxy "
                "or a network policy lets in only clients that may do everything, add --open-to-everybody."
            )

    def stop(self) -> Deferred[None]:
        """Close the port; fires with ``None`` once it is closed. Never fails: a failure is logged."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        if self._expiry is not None:
            self._expiry.stop()
        port, self._port = self._port, None
        if port is None:
            return
        try:
            await maybeDeferred(port.stopListening)
        except Exception:  # noqa: BLE001 -- after any failure, the rest of the service must be stopped
            self._log.failure("Cannot stop listening on {description}", description=self._description)

    @property
    def description(self) -> str:
        """Twisted's description of the endpoint, as the operator gave it."""
        return self._description

    @property
    def takes_certificates(self) -> bool:
        """True if it asks clients for certificates."""
        endpoint = self._endpoint
        return isinstance(endpoint, HTTPSEndpoint) and endpoint.arguments.client_ca is not None

    @property
    def has_tls(self) -> bool:
        """True if clients speak TLS to it."""
        description = self._description
        if self._kind == "haproxy":
            description = description.partition(":")[2]
        return EndpointString.parse(description).kind in _TLS

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach it; before it listens, by its description or its socket."""
        if self._port is None:
            endpoint = self._endpoint
            if isinstance(endpoint, AdoptedStreamServerEndpoint):
                return is_on_loopback(_address_of(endpoint))
            return is_loopback(self._description)
        return is_on_loopback(self._port.getHost())

    @property
    def url(self) -> str:
        """The URL of the service, for people, with the port that is really open."""
        address: Any = None if self._port is None else self._port.getHost()
        scheme = "https" if self.has_tls else "http"
        if isinstance(address, IPv6Address):
            return f"{scheme}://[{address.host}]:{address.port}/"
        if isinstance(address, IPv4Address):
            return f"{scheme}://{address.host}:{address.port}/"
        if isinstance(address, UNIXAddress) and address.name is not None:
            return f"unix:{address.name.decode(errors='replace')}"
        return self._description


def _from_systemd(description: str, reactor: Any) -> IStreamServerEndpoint:
    """
    Create an endpoint from a socket that systemd has passed to the process.

    :raise StartUpError: there is no such socket, or Twisted cannot adopt it.
    """
    endpoint = EndpointString.parse(description)
    if "UNIX" in (endpoint.by_name.get("domain"), *endpoint.by_place):
        raise StartUpError(
            "a Unix socket from systemd cannot be used, since Twisted would remove it at the end. Let "
            "systemd pass a TCP socket, or give unix:PATH."
        )
    try:
        adopted: IStreamServerEndpoint = serverFromString(reactor, description)
    except LookupError as error:
        raise StartUpError(
            "systemd has not passed such a socket. Start the service by its socket unit, set "
            "FileDescriptorName= there, and give this name: systemd:domain=INET:name=http."
        ) from error
    return adopted


def _address_of(endpoint: AdoptedStreamServerEndpoint) -> IPv4Address | IPv6Address | None:
    with socket.socket(fileno=os.dup(endpoint.fileno)) as same:
        if same.family == socket.AF_INET:
            return IPv4Address("TCP", *same.getsockname())
        return IPv6Address("TCP", *same.getsockname()) if same.family == socket.AF_INET6 else None


def _lengthen_queue(port: Any) -> None:
    # Twisted sets the queue of an adopted socket to 50 (tcp.Port.backlog), however long it was.
    with socket.socket(fileno=os.dup(port.fileno())) as same:
        same.listen(_LONGEST_QUEUE)


def _endpoint(description: str, reactor: Any) -> IStreamServerEndpoint:
    """Create an endpoint with the longest queue and `_SOCKET_MODE`, unless its description has others."""
    description = with_socket_mode(description, _SOCKET_MODE)
    parsed = EndpointString.parse(description)
    if parsed.kind == "ssl":
        check_ssl_endpoint(parsed.argument)
    endpoint: IStreamServerEndpoint | None = None
    if parsed.kind in _WITH_QUEUE and ":backlog=" not in description:
        # A TypeError: the backlog is a positional argument already, or the description is invalid anyway.
        with suppress(TypeError):
            endpoint = serverFromString(reactor, f"{description}:backlog={_LONGEST_QUEUE}")
    if endpoint is None:
        endpoint = serverFromString(reactor, description)
    return endpoint
