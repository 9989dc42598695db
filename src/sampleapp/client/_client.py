"""The operations of the HTTP interface as methods."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar, cast, overload

import msgspec
from msgspec import Struct
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.web.client import Agent, HTTPConnectionPool
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent

from sampleapp.client._errors import (
    Forbidden,
    Problem,
    ProblemError,
    TooManyRequests,
    Unauthorized,
    UnexpectedAnswer,
)
from sampleapp.client._exchange import Answer, Exchanger
from sampleapp.client._tls import TLSPolicy
from sampleapp.client._tokens import check_token
from sampleapp.client._urls import parse_base_url
from sampleapp.errors import Fault, InvalidMessage
from sampleapp.model import Reading, RecordMetadata
from sampleapp.negotiation import MEDIA_TYPES, Version

__all__ = ["Client", "Snapshot"]

PROBLEM_MEDIA_TYPE = "application/problem+json"
OK = 200
NOT_MODIFIED = 304
UNAUTHORIZED = 401
FORBIDDEN = 403
TOO_MANY_REQUESTS = 429

SHORTEST_SECRET = 16

# Shorter than servers keep idle connections, ours (60 s) included: a message written to a connection
# that is just being closed would be neither published nor known not to be.
IDLE_CONNECTION_S = 30
# A host that does not answer at all, or not in TLS, is reported while it is still certain that nothing was
# sent.
CONNECT_TIMEOUT_S = 10.0

_T = TypeVar("_T")
_Readings = TypeVar("_Readings")


class Snapshot(Struct, Generic[_Readings], frozen=True):
    """The readings as they were at one time, and what is needed to ask whether they have changed."""

    readings: _Readings
    etag: bytes | None
    """The entity tag, as the service sent it; ``None`` if it sent none."""


class Client:
    """
    Talks to one service, over connections that stay open between requests until `close`.

    Unless a method says otherwise, its Deferred fails with

    - `sampleapp.client.ServiceUnreachable`, when nothing was sent,
    - `sampleapp.client.RequestTimedOut` or `sampleapp.client.AnswerLost`, when the service may have done
      what it was asked to,
    - `sampleapp.client.ProblemError`, when the service says what is wrong,
    - `sampleapp.client.UnexpectedAnswer`, when the answer is not one of this service,

    and may be cancelled, which closes its connection.
    """

    def __init__(
        self,
        *,
        base_url: str,
        reactor: IReactorTime,
        token: str | None = None,
        agent: IAgent | None = None,
        timeout_s: float = 30.0,
        max_idle_connections: int = 64,
    ) -> None:
        """
        Connects only when the first request is made.

        :param base_url: where the service is, such as ``http://127.0.0.1:8080/``.
        :param reactor: for the time and, without an agent, for connections.
        :param token: says who calls: a token of the service's own, or a JSON Web Token. It goes with each
            request (RFC 6750), to nobody but the service, and is in no error and no ``repr()``. Over plain
            HTTP everybody on the way can read it.
        :param agent: makes the requests in place of an agent of the client's own.
        :param timeout_s: seconds for one request, from the call to the last byte of the answer.
        :param max_idle_connections: how many connections to keep for later requests. There is no bound on
            the requests, and so on the connections, at one time.
        :raise ValueError: the base URL is not one, or the token cannot be one.
        """
        self._base_url = parse_base_url(base_url)
        self._token = None if token is None else check_token(token)
        self._pool: HTTPConnectionPool | None = None
        if agent is None:
            pool = HTTPConnectionPool(reactor)
            pool.maxPersistentPerHost = max_idle_connections
            pool.cachedConnectionTimeout = IDLE_CONNECTION_S
            connect_timeout_s = min(CONNECT_TIMEOUT_S, timeout_s)
            agent = Agent(
                reactor,
                contextFactory=TLSPolicy(reactor=reactor, timeout_s=connect_timeout_s),
                connectTimeout=connect_timeout_s,
                pool=pool,
            )
            self._pool = pool
        self._exchanger = Exchanger(agent=agent, reactor=reactor, timeout_s=timeout_s, token=self._token)

    def publish(self, *, topic: str, content: str, key: str | None = None) -> Deferred[RecordMetadata]:
        """
        Publish one message.

        When it fails with a `sampleapp.client.ClientError`, that error's ``possibly_published`` tells
        whether there may be a record all the same. A message is never sent twice by itself.

        :param topic: the name of the topic.
        :param content: the record's value; stored as UTF-8.
        :param key: the record's key, stored as UTF-8; ``None`` for none, which the empty key is not.
        :return: fires, once the broker has acknowledged the record, with where it is. Fails also with
            `sampleapp.errors.InvalidMessage`, before anything is sent, for text with lone surrogates.
        """
        return Deferred.fromCoroutine(self._publish(topic=topic, content=content, key=key))

    @overload
    def readings(self, *, version: Literal[1] = 1) -> Deferred[list[float]]: ...

    @overload
    def readings(self, *, version: Literal[2]) -> Deferred[list[Reading]]: ...

    def readings(self, *, version: Version = 1) -> Deferred[list[float]] | Deferred[list[Reading]]:
        """
        Fetch the readings.

        :param version: of the representation: 1 for the values alone, 2 for values with their ids.
        :return: fires with the readings, in the order in which each id was first seen.
        """
        return cast(
            "Deferred[list[float]] | Deferred[list[Reading]]",
            self.poll(version=version).addCallback(lambda snapshot: snapshot.readings),
        )

    @overload
    def poll(
        self, *, version: Literal[1], after: Snapshot[list[float]] | None = None
    ) -> Deferred[Snapshot[list[float]]]: ...

    @overload
    def poll(
        self, *, version: Literal[2], after: Snapshot[list[Reading]] | None = None
    ) -> Deferred[Snapshot[list[Reading]]]: ...

    def poll(
        self, *, version: Version, after: Snapshot[list[float]] | Snapshot[list[Reading]] | None = None
    ) -> Deferred[Snapshot[list[float]]] | Deferred[Snapshot[list[Reading]]]:
        """
        Fetch the readings if they have changed, at the price of a few headers if they have not.

        :param version: as for `readings`.
        :param after: what an earlier call, of the same version, fired with.
        :return: fires with ``after`` itself if nothing has changed since, else with a new snapshot.
        """
        if version == 1:
            values = cast("Snapshot[list[float]] | None", after)
            # Without an Accept: the one form of the request that every server ever took.
            return Deferred.fromCoroutine(self._poll(Headers(), list[float], values))
        if version == 2:  # noqa: PLR2004 -- the name of the representation
            entries = cast("Snapshot[list[Reading]] | None", after)
            return Deferred.fromCoroutine(
                self._poll(Headers({"Accept": [MEDIA_TYPES[2]]}), list[Reading], entries)
            )
        raise ValueError(f"There are versions 1 and 2 of the readings, and no {version!r}.")

    def close(self) -> Deferred[None]:
        """
        Close the connections that are kept open; to be called when no request is in flight.

        :return: fires with ``None`` when they are closed. Never fails; cancelling it stops the waiting only.
        """
        closed: Deferred[None] = Deferred()
        if self._pool is None:
            closed.callback(None)
        else:
            # A Deferred of its own: the pool's, cancelled, would leave the failure of each connection behind.
            self._pool.closeCachedConnections().addCallback(lambda _: closed.callback(None))
        return closed

    async def _publish(self, *, topic: str, content: str, key: str | None) -> RecordMetadata:
        message = {"topic": topic, "content": content}
        if key is not None:
            message["key"] = key
        answer = await self._exchanger.request(
            method="POST",
            url=f"{self._base_url}messages",
            headers=Headers({b"Content-Type": [b"application/json"]}),
            body=_encode(message),
        )
        if answer.status != OK:
            raise self._refusal(answer)
        return _decode(answer, RecordMetadata)

    async def _poll(
        self, headers: Headers, shape: type[_Readings], after: Snapshot[_Readings] | None
    ) -> Snapshot[_Readings]:
        if after is not None and after.etag is not None:
            headers.setRawHeaders(b"If-None-Match", [after.etag])
        answer = await self._exchanger.request(method="GET", url=self._base_url, headers=headers)
        if answer.status == NOT_MODIFIED and after is not None:
            return after
        if answer.status != OK:
            raise self._refusal(answer)
        etags = answer.headers.getRawHeaders(b"etag")
        return Snapshot(_decode(answer, shape), etags[0] if etags else None)

    def _refusal(self, answer: Answer) -> ProblemError | UnexpectedAnswer:
        """Make an error of an answer that is none of the expected ones."""
        if answer.media_type == PROBLEM_MEDIA_TYPE:
            try:
                problem = _decode(
                    msgspec.structs.replace(answer, body=self._without_token(answer.body)), Problem
                )
            except UnexpectedAnswer as error:
                return error
            if problem.status == answer.status:
                return self._problem_error(problem, retry_after_s=_retry_after_s(answer.headers))
        locations = answer.headers.getRawHeaders(b"location") or []
        place = self._without_token(locations[0]).decode("ascii", "backslashreplace") if locations else ""
        elsewhere = f" and refers to {place}" if locations else ""
        return UnexpectedAnswer(
            f"{answer.url} answered {answer.status} ({answer.media_type or 'no type'}){elsewhere}, "
            "which is not an answer of the service: is there a proxy in between, or something else there?",
            status=answer.status,
        )

    def _problem_error(self, problem: Problem, *, retry_after_s: int | None) -> ProblemError:
        if problem.status == UNAUTHORIZED:
            return Unauthorized(problem, has_token=self._token is not None, retry_after_s=retry_after_s)
        kind = {FORBIDDEN: Forbidden, TOO_MANY_REQUESTS: TooManyRequests}.get(problem.status, ProblemError)
        return kind(problem, retry_after_s=retry_after_s)

    def _without_token(self, text: bytes) -> bytes:
        """Take the token out of what is to be shown: some servers, not this one, repeat what they refuse."""
        # What is shorter is no secret, and may be a part of any word.
        if self._token is None or len(self._token) < SHORTEST_SECRET:
            return text
        return text.replace(self._token.encode("ascii"), b"[token]")


def _encode(message: dict[str, str]) -> bytes:
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            [
                Fault(f"/{name}", f"The {name} has characters that UTF-8 cannot carry (lone surrogates).")
                for name, text in message.items()
                if any("\ud800" <= character <= "\udfff" for character in text)
            ]
        ) from error


def _decode(answer: Answer, shape: type[_T]) -> _T:
    """Read a body by what it has to be. What Content-Type says of it proves nothing, and is not asked."""
    try:
        return msgspec.json.decode(answer.body, type=shape)
    # Not JSON, or of another shape; not UTF-8; or brackets without end.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnexpectedAnswer(
            f"{answer.url} answered {answer.status} ({answer.media_type or 'no type'}), but not with what "
            f"the service sends: {error}. Is it the address of the service, in a version that knows this "
            "request?",
            status=answer.status,
        ) from error


def _retry_after_s(headers: Headers) -> int | None:
    """The seconds of a Retry-After; the service does not use its other form, a date."""
    values = headers.getRawHeaders(b"retry-after") or [b""]
    return int(values[-1]) if values[-1].isdigit() else None
