"""Twisted's endpoint ``ssl:``, with files that are read again while it listens."""

from __future__ import annotations

from typing import Any

from OpenSSL import SSL, crypto
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import VerifyError
from twisted.internet.interfaces import (
    IListeningPort,
    IOpenSSLContextFactory,
    IProtocolFactory,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import Factory
from zope.interface import implementer

from sampleapp.endpoint_string import EndpointString
from sampleapp.errors import StartUpError
from sampleapp.tls.callbacks import require_callbacks
from sampleapp.tls.credentials import require_pem_files

__all__ = ["RenewableSSLEndpoint"]


class _Recorder:
    """Keeps what an endpoint asks of a reactor, which is all that it knows."""

    def __init__(self) -> None:
        self.port = 0
        self.context_factory: Any = None
        self.options: dict[str, Any] = {}

    def listenSSL(  # noqa: N802 -- Twisted's
        self,
        port: int,
        factory: IProtocolFactory,  # noqa: ARG002 -- it is another one that will listen
        contextFactory: Any,  # noqa: N803 -- Twisted's
        **options: Any,
    ) -> None:
        self.port = port
        self.context_factory = contextFactory
        self.options = options


@implementer(IStreamServerEndpoint, IOpenSSLContextFactory)
class RenewableSSLEndpoint:
    """
    What `serverFromString` makes of ``ssl:…``, listening with files that may be read again.

    What they mean is Twisted's to say, in each reading.
    """

    def __init__(self, reactor: Any, description: str) -> None:
        """
        Read the files.

        :param description: the endpoint, which begins with ``ssl:``.
        :raise StartUpError: they cannot be used.
        :raise TypeError: an argument is not known, or twice there, as from Twisted.
        """
        require_callbacks()
        self._reactor = reactor
        self._description = description
        endpoint = EndpointString.parse(description)
        self._private_key = endpoint.argument("privateKey") or "server.pem"
        self._certificate = endpoint.argument("certKey") or self._private_key
        other = [endpoint.argument("extraCertChain"), endpoint.argument("dhParameters")]
        self.paths = tuple(
            dict.fromkeys([self._private_key, self._certificate, *(path for path in other if path)])
        )
        """The files that it needs."""
        self._recorded, self._context = self._read()

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:  # noqa: N803 -- Twisted's
        """
        Take the port.

        :return: fires with the port, or fails with `twisted.internet.error.CannotListenError`.
        """
        port: Deferred[IListeningPort] = maybeDeferred(
            self._reactor.listenSSL, self._recorded.port, protocolFactory, self, **self._recorded.options
        )
        return port

    def getContext(self) -> SSL.Context:  # noqa: N802 -- Twisted's name
        """Return what the next connection is made with."""
        return self._context

    def reload(self) -> None:
        """
        Read the files again, for the connections that come from now on.

        :raise StartUpError: they cannot be used; nothing has changed then.
        """
        try:
            self._recorded, self._context = self._read()
        except ValueError as error:
            # What Twisted says of a chain that has no certificates.
            raise StartUpError(f"the certificates cannot be used: {str(error).rstrip('.')}.") from error

    def _read(self) -> tuple[_Recorder, SSL.Context]:
        require_pem_files(private_key=self._private_key, certificate=self._certificate)
        recorder = _Recorder()
        try:
            serverFromString(recorder, self._description).listen(Factory())
            return recorder, recorder.context_factory.getContext()
        except OSError as error:
            raise StartUpError(f"cannot read {error.filename}: {error.strerror}.") from error
        except (SSL.Error, crypto.Error, VerifyError) as error:
            raise StartUpError(
                f"the private key and the certificates cannot be used: {str(error).rstrip('.')}."
            ) from error
