"""One HTTP request and the whole of its answer, within a deadline, with every failure translated."""

# ruff: noqa: N802 -- methods that Twisted calls have Twisted's names

from __future__ import annotations

import os
from typing import Any, NoReturn, TypeVar, cast

from hyperlink import URL
from msgspec import Struct
from OpenSSL.SSL import Error as SSLError
from service_identity import VerificationError
from treq.client import HTTPClient
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectError, ConnectionClosed, DNSLookupError
from twisted.internet.interfaces import IConsumer, IReactorTime
from twisted.python.failure import Failure
from twisted.web.client import RequestTransmissionFailed, ResponseFailed
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IBodyProducer
from zope.interface import implementer

from sampleapp.client._errors import (
    AnswerLost,
    RequestTimedOut,
    ServiceUnreachable,
    TLSFailed,
    UnexpectedAnswer,
)
from sampleapp.client._tls import HandshakeTimedOut
from sampleapp.response_bodies import BodyTooLong, read_body

__all__ = ["Answer", "Exchanger"]

MAX_BODY_BYTES = 64 * 1024 * 1024

_NOT_TLS = ("wrong version number", "packet length too long")
"""What OpenSSL says of bytes that are no TLS."""

_Result = TypeVar("_Result")


class Answer(Struct, frozen=True, kw_only=True):
    """A whole answer."""

    url: str
    """What was asked, for messages."""
    status: int
    headers: Headers
    body: bytes

    @property
    def media_type(self) -> str:
        """Of which type it says that its body is, in lower case without parameters; or the empty string."""
        values = self.headers.getRawHeaders(b"content-type") or [b""]
        return values[-1].partition(b";")[0].strip().lower().decode("ascii", "backslashreplace")


class Exchanger:
    """Makes requests through an agent."""

    def __init__(
        self, *, agent: IAgent, reactor: IReactorTime, timeout_s: float, token: str | None = None
    ) -> None:
        """
        :param agent: makes the connections.
        :param reactor: tells the time for the deadline.
        :param timeout_s: seconds for one request, from the call to the last byte of the answer.
        :param token: goes with each request.
        """
        self._authorization = None if token is None else b"Bearer " + token.encode("ascii")
        # FileBodyProducer, the default for bytes, is driven by the global reactor.
        self._http = HTTPClient(agent, data_to_body_producer=lambda producer: producer)
        self._reactor = reactor
        self._timeout_s = timeout_s

    def request(
        self, *, method: str, url: str, headers: Headers, query: str = "", body: bytes | None = None
    ) -> Deferred[Answer]:
        """
        Send a request; cancelling it closes its connection.

        :param query: what follows the URL, with its question mark. It is in no error: it may be long.
        :param body: what to send, if only the empty body. A request without one may be sent a second time by
            Twisted, unless it is a ``POST``, when its connection turns out to be closed.
        :return: fires with the whole answer, whatever its status. Fails with `ServiceUnreachable`,
            `RequestTimedOut`, `AnswerLost`, or, for what is not HTTP, `UnexpectedAnswer`.
        """
        if self._authorization is not None:
            headers.setRawHeaders(b"Authorization", [self._authorization])
        exchange = Deferred.fromCoroutine(
            self._exchange(method=method, url=url, query=query, headers=headers, body=body)
        )
        given_up = False

        def give_up(_: object) -> None:
            nonlocal given_up
            given_up = True
            exchange.cancel()

        # Depending on how far it was, what is cancelled fails as a lost connection, or a name that was not
        # found. Only here is it known that it was neither.
        answer: Deferred[Answer] = Deferred(give_up)
        exchange.addCallbacks(
            lambda result: None if given_up else answer.callback(result),
            lambda failure: None if given_up else answer.errback(failure),
        )

        def timed_out(result: _Result, timeout_s: float) -> _Result:
            if isinstance(result, Failure):
                message = f"{url} did not answer within {timeout_s:g} seconds."
                raise RequestTimedOut(message) from result.value
            return result

        # Not treq's own timeout: that one ends with the headers, and a body can take for ever as well.
        return answer.addTimeout(self._timeout_s, self._reactor, onTimeoutCancel=timed_out)

    async def _exchange(
        self, *, method: str, url: str, query: str, headers: Headers, body: bytes | None
    ) -> Answer:
        try:
            response = await self._http.request(
                method,
                _ASCIIURL.from_text(url + query),
                headers=headers,
                # Bytes that are empty would be no body to treq.
                data=None if body is None else cast("Any", _Bytes(body)),
                # The interface has no redirects: to follow one would be to publish, and to send the token,
                # somewhere else.
                allow_redirects=False,
                unbuffered=True,
                # Given no reactor, treq imports the global one, although it has no use for it here.
                reactor=cast("Any", self._reactor),
            )
            # That a body without a length is whole shows in its JSON, which no array or object is without its
            # last byte.
            content = await read_body(response, max_bytes=MAX_BODY_BYTES)
        except (ConnectError, DNSLookupError) as error:
            raise ServiceUnreachable(f"Nothing answers at {url}: {_sentence(error)}") from error
        except (ResponseFailed, RequestTransmissionFailed) as error:
            _raise_lost(url, error)
        except BodyTooLong as error:
            message = f"{url} answered with more than {MAX_BODY_BYTES} bytes."
            raise UnexpectedAnswer(message, status=response.code) from error
        except ConnectionClosed as error:
            raise AnswerLost(f"{url} closed the connection before it had answered.") from error
        return Answer(url=url, status=response.code, headers=response.headers, body=content)


def _raise_lost(url: str, error: ResponseFailed | RequestTransmissionFailed) -> NoReturn:
    """Say what is behind the list of failures that Twisted makes of a connection that ended."""
    causes = [reason.value for reason in error.reasons]
    if any(isinstance(cause, ConnectionClosed) for cause in causes):
        raise AnswerLost(f"{url} closed the connection before it had answered.") from error
    for cause in causes:
        failed = _tls_failed(url, cause)
        if failed is not None:
            raise failed from error
    lost = ", ".join(_words(cause) for cause in causes)
    raise UnexpectedAnswer(f"What answers at {url} cannot be understood as HTTP ({lost}).") from error


def _tls_failed(url: str, cause: BaseException | None) -> TLSFailed | None:
    """Make an error of what ended a TLS handshake, which is before anything is sent."""
    if isinstance(cause, VerificationError):
        return TLSFailed(
            f"The certificate of {url} is not one to trust: it is for another host name. Nothing was sent.",
            retriable=False,
        )
    words = _words(cause)
    if "certificate verify failed" in words:
        return TLSFailed(
            f"The certificate of {url} is not one to trust: it has expired, or no authority that this "
            "machine trusts has signed it. Nothing was sent. To trust one more authority, name the file of "
            "its certificate in the environment variable SSL_CERT_FILE.",
            retriable=False,
        )
    if isinstance(cause, HandshakeTimedOut) or any(reason in words for reason in _NOT_TLS):
        return TLSFailed(
            f"What answers at {url} does not speak TLS: if it is a port for plain HTTP, use http:// instead. "
            "Nothing was sent.",
            retriable=True,
        )
    return None


def _words(cause: BaseException | None) -> str:
    """Say what an exception says; OpenSSL's has a list of (library, function, reason)."""
    if isinstance(cause, SSLError) and cause.args and isinstance(cause.args[0], list):
        return ", ".join(str(reason) for _, _, reason in cause.args[0])
    return f"{type(cause).__name__}: {cause}"


def _sentence(error: ConnectError | DNSLookupError) -> str:
    """Say why there is no connection, in the system's words where it was the system that refused."""
    number = getattr(error, "osError", None)
    return f"{os.strerror(number) if isinstance(number, int) else str(error).rstrip('.')}."


class _ASCIIURL(URL):
    """
    A URL that is in ASCII already (`sampleapp.client.parse_base_url`).

    Hyperlink's own conversion takes the colons of an IPv6 address for characters of a host name.
    """

    def to_uri(self) -> URL:
        return self


@implementer(IBodyProducer)
class _Bytes:
    """A request body that is at hand, written at once."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.length = len(body)

    def startProducing(self, consumer: IConsumer) -> Deferred[None]:
        """Write everything."""
        consumer.write(self._body)
        return succeed(None)

    def pauseProducing(self) -> None:
        """Do nothing: all is written."""

    def resumeProducing(self) -> None:
        """Do nothing: all is written."""

    def stopProducing(self) -> None:
        """Do nothing: all is written."""
