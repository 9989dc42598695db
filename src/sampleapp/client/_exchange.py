"""HTTP requests with their whole responses, within a deadline, every failure translated; their repetition."""

# ruff: noqa: N802 -- methods that Twisted calls have Twisted's names

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn, TypeVar, cast

from hyperlink import URL
from msgspec import Struct
from treq.client import HTTPClient
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.error import ConnectError, ConnectionClosed, DNSLookupError
from twisted.internet.interfaces import IConsumer, IReactorTime
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from twisted.web.client import RequestTransmissionFailed, ResponseFailed
from twisted.web.http import PotentialDataLoss
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IBodyProducer, IResponse
from zope.interface import implementer

from sampleapp.client._errors import (
    ClientError,
    PartlyPublished,
    ProblemError,
    RequestCancelled,
    RequestTimedOut,
    ResponseLost,
    ServiceUnreachable,
    TLSFailed,
    TooManyRequests,
    UnexpectedResponse,
)
from sampleapp.concurrency.rates import Backoff
from sampleapp.outgoing.https import BodyTooLong, HandshakeTimedOut, read_body
from sampleapp.outgoing.verified_tls import CertificateNotTrusted, openssl_reasons

MAX_BODY_BYTES = 64 * 1024 * 1024

_NOT_TLS = ("wrong version number", "packet length too long")
"""OpenSSL's reasons for bytes that are not TLS."""
_REJECTION = re.compile(r"alert .*(?:certificate|unknown ca)", re.IGNORECASE)
"""OpenSSL's reasons for alerts about the client's certificate (RFC 8446, section 6.2)."""
_TRUST = "to trust one more, name the file of its certificate in the environment variable SSL_CERT_FILE"

_Result = TypeVar("_Result")
_Outcome = TypeVar("_Outcome")


class Response(Struct, frozen=True, kw_only=True):
    """A whole response."""

    url: str
    """The URL of the request, for messages."""
    status: int
    headers: Headers
    body: bytes

    @property
    def media_type(self) -> str:
        """The media type in Content-Type, in lower case and without parameters; empty if there is none."""
        values = self.headers.getRawHeaders(b"content-type") or [b""]
        return values[-1].partition(b";")[0].strip().lower().decode("ascii", "backslashreplace")


class OpenResponse(Struct, frozen=True, kw_only=True):
    """The beginning of a response whose body has not been read."""

    url: str
    response: IResponse


class Exchanger:
    """Makes requests through an agent."""

    def __init__(
        self, *, agent: IAgent, reactor: IReactorTime, timeout_s: float, token: str | None = None
    ) -> None:
        """
        :param agent: makes the connections.
        :param reactor: provides the time for the deadline.
        :param timeout_s: seconds for one request, from the call to the last byte of the response.
        :param token: is sent with each request.
        """
        self._authorization = None if token is None else b"Bearer " + token.encode("ascii")
        # FileBodyProducer, the default for bytes, is driven by the global reactor.
        self._http = HTTPClient(agent, data_to_body_producer=lambda producer: producer)
        self._reactor = reactor
        self._timeout_s = timeout_s
        self._has_responded = False

    def request(
        self,
        *,
        method: str,
        url: str,
        headers: Headers,
        query: str = "",
        body: bytes | None = None,
        extra_s: float = 0.0,
        until_closed: bool = True,
    ) -> Deferred[Response]:
        """
        Send a request; cancelling it closes its connection.

        :param query: the query, with its question mark. No error shows it: it may be long.
        :param body: may be empty. If it is ``None`` and the connection turns out to be closed, Twisted may
            send the request a second time, unless it is a ``POST``.
        :param extra_s: seconds for which the service was asked to wait, in addition to the deadline.
        :param until_closed: false if a response that only the end of the connection ends is a lost one, since
            its body would not show that a part of it is missing.
        :return: fires with the whole response, whatever its status. Fails with `ServiceUnreachable`,
            `RequestTimedOut`, `ResponseLost`, or, for a response that is not HTTP, `UnexpectedResponse`.
        """
        # treq takes empty bytes for no body.
        producer = None if body is None else _Bytes(body)
        exchange = self._exchange(
            method=method,
            url=url,
            query=query,
            headers=headers,
            body=producer,
            is_open=lambda _: False,
            until_closed=until_closed,
        )
        return cast("Deferred[Response]", self._within(self._timeout_s + extra_s, url, exchange, producer))

    def open(
        self, *, url: str, headers: Headers, query: str = "", is_open: Callable[[IResponse], bool]
    ) -> Deferred[OpenResponse | Response]:
        """
        Send a ``GET`` whose answer may have a body without an end; cancelling it closes its connection.

        :param is_open: returns, by its head, true for a response whose body the caller reads. Its connection
            is paused until then.
        :return: fires with the beginning of such a response, or with another response as a whole. Fails as
            `request` does.
        """
        return self._within(
            self._timeout_s,
            url,
            self._exchange(method="GET", url=url, query=query, headers=headers, body=None, is_open=is_open),
        )

    def _within(
        self,
        timeout_s: float,
        url: str,
        coroutine: Coroutine[Any, Any, _Result],
        body: _Bytes | None = None,
    ) -> Deferred[_Result]:
        """Run an exchange with a deadline. Without a body, a request publishes nothing."""
        exchange = Deferred.fromCoroutine(coroutine)
        given_up = False

        def give_up(answer: Deferred[_Result]) -> None:
            nonlocal given_up
            given_up = True
            exchange.cancel()
            answer.errback(RequestCancelled(possibly_published=body is not None and body.is_begun))

        # A cancelled exchange fails with a lost connection, or a name that was not found, depending on its
        # progress. Only here is it known that it was cancelled.
        answer: Deferred[_Result] = Deferred(give_up)
        exchange.addCallbacks(
            lambda result: None if given_up else answer.callback(result),
            lambda failure: None if given_up else answer.errback(failure),
        )

        def timed_out(result: _Outcome, timeout_s: float) -> _Outcome:
            if isinstance(result, Failure):
                message = f"{url} did not answer within {timeout_s:g} seconds."
                doubt = getattr(result.value, "possibly_published", True)
                raise RequestTimedOut(message, possibly_published=doubt) from result.value
            return result

        # Not treq's own timeout, which ends with the headers: a body can take for ever as well.
        return answer.addTimeout(timeout_s, self._reactor, onTimeoutCancel=timed_out)

    async def _exchange(
        self,
        *,
        method: str,
        url: str,
        query: str,
        headers: Headers,
        body: _Bytes | None,
        is_open: Callable[[IResponse], bool],
        until_closed: bool = True,
    ) -> OpenResponse | Response:
        if self._authorization is not None:
            headers.setRawHeaders(b"Authorization", [self._authorization])
        try:
            response = await self._http.request(
                method,
                _ASCIIURL.from_text(url + query),
                headers=headers,
                data=cast("Any", body),
                # The interface has no redirects. Following one would publish, and send the token, elsewhere.
                allow_redirects=False,
                unbuffered=True,
                # Without a reactor, treq imports the global one, although it does not use it here.
                reactor=cast("Any", self._reactor),
            )
            if is_open(response):
                self._has_responded = True
                return OpenResponse(url=url, response=response)
            # A body without a length is whole if its JSON is: arrays and objects need their last byte.
            content = await read_body(response, max_bytes=MAX_BODY_BYTES, until_closed=until_closed)
        except (ConnectError, DNSLookupError) as error:
            raise ServiceUnreachable(f"Nothing answers at {url}: {_sentence(error)}") from error
        except (ResponseFailed, RequestTransmissionFailed) as error:
            if isinstance(error, ResponseFailed) and error.response is None and await self._speaks_tls(url):
                raise TLSFailed(
                    f"The server at {url} speaks TLS: use https:// instead. Nothing was published.",
                    retriable=False,
                ) from error
            _raise_lost(url, error)
        except BodyTooLong as error:
            message = f"{url} answered with more than {MAX_BODY_BYTES} bytes."
            raise UnexpectedResponse(message, status=response.code) from error
        except (ConnectionClosed, PotentialDataLoss) as error:
            raise ResponseLost(f"{url} closed the connection before it had answered.") from error
        self._has_responded = True
        return Response(url=url, status=response.code, headers=response.headers, body=content)

    async def _speaks_tls(self, url: str) -> bool:
        """
        Return whether a server has closed a plain HTTP connection because it speaks TLS.

        A port for TLS closes such a connection without a word (OpenSSL: ``http request``), as a server that
        crashes does. So this makes a TLS connection to the same port; it sends no token. A server that has
        answered over plain HTTP before is not asked.
        """
        if self._has_responded or not url.startswith("http://"):
            return False
        try:
            # Hyperlink keeps the port, 80 by default.
            secure_url = _ASCIIURL.from_text(url).replace(scheme="https")
            await self._http.request(
                "HEAD", secure_url, allow_redirects=False, unbuffered=True, reactor=cast("Any", self._reactor)
            )
        except (ResponseFailed, RequestTransmissionFailed) as error:
            return any(
                isinstance(reason.value, CertificateNotTrusted)
                or any("alert" in each for each in openssl_reasons(reason.value))
                for reason in error.reasons
            )
        except (ConnectError, ConnectionClosed, DNSLookupError):
            return False
        return True


def _raise_lost(url: str, error: ResponseFailed | RequestTransmissionFailed) -> NoReturn:
    """Translate the list of failures that Twisted collects for a connection that ended."""
    causes = [reason.value for reason in error.reasons]
    if any(isinstance(cause, ConnectionClosed) for cause in causes):
        raise ResponseLost(f"{url} closed the connection before it had answered.") from error
    for cause in causes:
        failed = _tls_failed(url, cause)
        if failed is not None:
            raise failed from error
    lost = ", ".join(_words(cause) for cause in causes)
    raise UnexpectedResponse(f"The server at {url} does not speak HTTP ({lost}).") from error


def _tls_failed(url: str, cause: BaseException | None) -> TLSFailed | None:
    """Translate a failure of a TLS handshake, before which nothing is sent; ``None`` for another failure."""
    if isinstance(cause, CertificateNotTrusted):
        reason = cause.reason(of=f"of {url}", authority=_TRUST)
        return TLSFailed(f"{reason[0].upper()}{reason[1:]}. Nothing was sent.", retriable=False)
    rejections = [each for each in openssl_reasons(cause) if _REJECTION.search(each)]
    if rejections:
        # Before the service has accepted the certificate, it carries out nothing (RFC 8446, section 4.4.2.4).
        return TLSFailed(
            f"The server at {url} does not accept the client certificate, or requires one ({rejections[0]}). "
            "Nothing was published.",
            retriable=False,
        )
    if isinstance(cause, HandshakeTimedOut) or any(each in _NOT_TLS for each in openssl_reasons(cause)):
        return TLSFailed(
            f"The server at {url} does not speak TLS: if it is a port for plain HTTP, use http:// instead. "
            "Nothing was sent.",
            retriable=True,
        )
    return None


def _words(cause: BaseException | None) -> str:
    return ", ".join(openssl_reasons(cause)) or f"{type(cause).__name__}: {cause}"


def _sentence(error: ConnectError | DNSLookupError) -> str:
    """Return why a connection failed, in the words of the operating system if it has rejected."""
    number = getattr(error, "osError", None)
    return f"{os.strerror(number) if isinstance(number, int) else str(error).rstrip('.')}."


class _ASCIIURL(URL):
    """
    A URL that is in ASCII already (`sampleapp.client.parse_base_url`).

    Hyperlink's own conversion mistakes the colons of an IPv6 address for characters of a host name.
    """

    def to_uri(self) -> URL:
        return self


@implementer(IBodyProducer)
class _Bytes:
    """A request body in memory, written at once."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.length = len(body)
        self.is_begun = False
        """True if there was a connection on which the request was written."""

    def startProducing(self, consumer: IConsumer) -> Deferred[None]:
        """Write everything."""
        self.is_begun = True
        consumer.write(self._body)
        return succeed(None)

    def pauseProducing(self) -> None:
        """Do nothing: all is written."""

    def resumeProducing(self) -> None:
        """Do nothing: all is written."""

    def stopProducing(self) -> None:
        """Do nothing: all is written."""


BACKOFF = Backoff(first_s=0.25, max_s=5.0)
MAX_RETRY_S = 30.0
"""The maximum pause that Retry-After may ask for, in seconds."""

_KEY = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?")


def idempotency_headers(key: str | None) -> Headers:
    """
    Return header fields with an idempotency key; none without a key.

    :raise ValueError: the key is not 1 to 255 visible ASCII characters; spaces may be inside.
    """
    headers = Headers()
    if key is not None:
        if not _KEY.fullmatch(key):
            raise ValueError(
                f"An idempotency key has 1 to 255 visible ASCII characters, which {key!r} has not."
            )
        # A string of RFC 9651: without quotation marks, a space would not be allowed.
        escaped = key.replace("\\", "\\\\").replace('"', '\\"')
        headers.setRawHeaders(b"Idempotency-Key", [f'"{escaped}"'.encode("ascii")])
    return headers


class Repeats:
    """Repeats requests until they succeed, fail for good, or a time is over."""

    def __init__(
        self,
        *,
        clock: IReactorTime,
        repeat_for_s: float,
        on_repeat: Callable[[ClientError], None] | None = None,
    ) -> None:
        """
        :param repeat_for_s: seconds after its first attempt in which a request is repeated.
        :param on_repeat: is called with an error before the pause after which the request is repeated.
        """
        self._clock = clock
        self._repeat_for_s = repeat_for_s
        self._on_repeat = on_repeat

    async def run(self, request: Callable[[], Awaitable[_Result]]) -> _Result:
        """
        Make a request, and make it again while it fails and may succeed later.

        Rejections for the caller's rate (429) are not repeated.

        :raise ClientError: the error of the last attempt. It is ``possibly_published`` if any attempt was.
        :raise RequestCancelled: ``possibly_published`` likewise.
        """
        until_s = self._clock.seconds() + self._repeat_for_s
        failures = 0
        possibly_published = False
        while True:
            try:
                return await request()
            except ClientError as error:
                failures += 1
                failure = error
                possibly_published |= error.possibly_published
                error.possibly_published = possibly_published
                pause = pause_s(error, failures)
                if not _may_succeed(error) or self._clock.seconds() + pause > until_s:
                    raise
            except RequestCancelled as error:
                raise RequestCancelled(
                    possibly_published=possibly_published or error.possibly_published
                ) from error
            if self._on_repeat is not None:
                self._on_repeat(failure)
            try:
                await deferLater(self._clock, pause)
            except CancelledError as error:
                raise RequestCancelled(possibly_published=possibly_published) from error


def _may_succeed(error: ClientError) -> bool:
    if isinstance(error, PartlyPublished):
        return any(isinstance(result, ProblemError) and result.retriable for result in error.results)
    return error.retriable and not isinstance(error, TooManyRequests)


def pause_s(error: ClientError, failures: int) -> float:
    """Return the seconds to wait after an error, the longer the more requests have failed in a row."""
    retry_after_s = error.retry_after_s if isinstance(error, ProblemError) else None
    return max(BACKOFF.delay_s(failures), min(retry_after_s or 0.0, MAX_RETRY_S))
