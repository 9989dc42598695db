"""Where the service is reached."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import Any, Final

from OpenSSL import SSL, crypto
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError, VerifyError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory, IStreamServerEndpoint
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.errors import StartUpError
from sampleapp.tls_endpoint import require_callbacks, require_pem_files
from sampleapp.web import is_on_loopback

__all__ = ["Listener"]

_TLS: Final = ("ssl:", "tls:")
_WITH_QUEUE: Final = ("tcp:", "tcp6:", "ssl:", "tls:", "unix:")
_LONGEST_QUEUE: Final = 2**31 - 1
"""Of connections that are not accepted yet. The system shortens it to somaxconn (listen(2))."""
_FIRST_FREE_PORT: Final = 1024


class Listener:
    """One endpoint, and the words in which to speak of it."""

    _log = Logger()

    def __init__(self, *, endpoint: IStreamServerEndpoint, description: str) -> None:
        """:param description: as the operator gave it."""
        self._endpoint = endpoint
        self._description = description
        self._port: IListeningPort | None = None

    @classmethod
    def from_description(cls, description: str, *, reactor: Any, option: str = "--listen") -> Listener:
        """
        Make what listens as a string says (`twisted.internet.endpoints.serverFromString`).

        :param option: that the operator gave it with.
        :raise StartUpError: Twisted does not understand it, or cannot read a file that it names.
        """
        try:
            if description.startswith(_TLS):
                require_callbacks(description)
            if description.startswith("ssl:"):
                require_pem_files(description)
            endpoint = _endpoint(description, reactor)
        except StartUpError:
            raise
        except OSError as error:
            raise StartUpError(
                f"{option} {description}: cannot read {error.filename}: {error.strerror}."
            ) from error
        except (SSL.Error, crypto.Error, VerifyError) as error:
            raise StartUpError(
                f"{option} {description}: the private key and the certificates cannot be used: "
                f"{str(error).rstrip('.')}."
            ) from error
        except Exception as error:
            # What the parser of an endpoint raises is up to the plugin that brings it.
            raise StartUpError(
                f"{option} {description}: not an endpoint that Twisted understands ({error}). Give one "
                "such as tcp:8080, or ssl:8443:privateKey=key.pem:certKey=certificate.pem."
            ) from error
        return cls(endpoint=endpoint, description=description)

    def listen(self, factory: IProtocolFactory) -> None:
        """
        Take the port.

        :raise StartUpError: it cannot be had.
        """
        outcome: list[IListeningPort | Failure] = []
        self._endpoint.listen(factory).addBoth(outcome.append)
        if not outcome:
            raise StartUpError(f"Cannot listen on {self._description}: the endpoint is not ready at once.")
        port = outcome[0]
        if isinstance(port, Failure):
            raise StartUpError(self._explain(port.value)) from port.value
        self._port = port

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
        port, self._port = self._port, None
        if port is None:
            return
        try:
            await maybeDeferred(port.stopListening)
        except Exception:  # noqa: BLE001 -- whatever it was, the rest of the service has to be stopped
            self._log.failure("Cannot stop listening on {description}", description=self._description)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it, by what it listens on now."""
        return self._port is not None and is_on_loopback(self._port.getHost())

    @property
    def url(self) -> str:
        """Where to reach the service, for people; it has the port that was really taken."""
        address: Any = None if self._port is None else self._port.getHost()
        scheme = "https" if self._description.startswith(_TLS) else "http"
        if isinstance(address, IPv6Address):
            return f"{scheme}://[{address.host}]:{address.port}/"
        if isinstance(address, IPv4Address):
            return f"{scheme}://{address.host}:{address.port}/"
        if isinstance(address, UNIXAddress) and address.name is not None:
            return f"unix:{address.name.decode(errors='replace')}"
        return self._description


def _endpoint(description: str, reactor: Any) -> IStreamServerEndpoint:
    """Make the endpoint, with a queue as long as can be unless it says how long."""
    endpoint: IStreamServerEndpoint | None = None
    if description.startswith(_WITH_QUEUE) and ":backlog=" not in description:
        # It may say so by the place of the argument, or be wrong, which is seen without this one too.
        with suppress(TypeError):
            endpoint = serverFromString(reactor, f"{description}:backlog={_LONGEST_QUEUE}")
    if endpoint is None:
        endpoint = serverFromString(reactor, description)
    return endpoint
