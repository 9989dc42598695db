"""The operations of the HTTP interface as methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, Literal, TypeVar, cast, overload

from msgspec import Struct
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.web.client import Agent, HTTPConnectionPool
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent

from sampleapp.client._answers import OK, AnswerReader, decode
from sampleapp.client._exchange import Exchanger
from sampleapp.client._messages import Message, encode_message, encode_messages, topic_path
from sampleapp.client._tls import TLSPolicy
from sampleapp.client._tokens import check_token
from sampleapp.client._urls import parse_base_url
from sampleapp.model import Reading, RecordMetadata
from sampleapp.negotiation import MEDIA_TYPES, Version

__all__ = ["Client", "Snapshot"]

NOT_MODIFIED = 304

# Shorter than servers keep idle connections, ours (60 s) included: a message written to a connection
# that is just being closed would be neither published nor known not to be.
IDLE_CONNECTION_S = 30
# A host that does not answer at all, or not in TLS, is reported while it is still certain that nothing was
# sent.
CONNECT_TIMEOUT_S = 10.0

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
        if token is not None:
            check_token(token)
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
        self._exchanger = Exchanger(agent=agent, reactor=reactor, timeout_s=timeout_s, token=token)
        self._answers = AnswerReader(token=token)

    def publish(
        self,
        *,
        topic: str,
        content: str,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timestamp_ms: int | None = None,
    ) -> Deferred[RecordMetadata]:
        """
        Publish one message.

        When it fails with a `sampleapp.client.ClientError`, that error's ``possibly_published`` tells
        whether there may be a record all the same. A message is never sent twice by itself.

        :param topic: the name of the topic.
        :param content: the record's value; stored as UTF-8.
        :param key: the record's key, stored as UTF-8; ``None`` for none, which the empty key is not.
        :param headers: the record's headers, in this order; values are stored as UTF-8.
        :param timestamp_ms: when the record was made, in milliseconds since the epoch; ``None`` for when the
            service gets it.
        :return: fires, once the broker has acknowledged the record, with where it is. Fails also with
            `sampleapp.errors.InvalidMessage`, before anything is sent, for text with lone surrogates.
        """
        message = Message(
            topic=topic,
            content=content,
            key=key,
            headers=None if headers is None else dict(headers),
            timestamp_ms=timestamp_ms,
        )
        return Deferred.fromCoroutine(self._publish(message))

    def publish_many(self, messages: Iterable[Message]) -> Deferred[list[RecordMetadata]]:
        """
        Publish many messages in one request, at a small part of what each would cost alone.

        The service looks at all of them before it publishes any. Records of one topic and key keep the order
        of the messages. How many there may be, the service decides: by default 16 MiB of JSON. The whole
        request is made at once, in a few milliseconds for a megabyte.

        When it fails with `sampleapp.client.PartlyPublished`, that error's ``results`` tell for each message
        where its record is, or what went wrong. Any other `sampleapp.client.ClientError` is about all of
        them: unless it is ``possibly_published``, none was published. Of a
        `sampleapp.client.ProblemError`, the pointers in ``problem.errors`` begin with the number of the
        message, from 0: ``/17/content``.

        :param messages: without any, no request is made.
        :return: fires, once the broker has acknowledged all records, with where each is, in the order of the
            messages. Fails also with `sampleapp.errors.InvalidMessage`, before anything is sent, for text
            with lone surrogates.
        """
        return Deferred.fromCoroutine(self._publish_many(list(messages)))

    def publish_raw(
        self, *, topic: str, body: bytes, key: str | bytes | None = None, content_type: str | None = None
    ) -> Deferred[RecordMetadata]:
        """
        Publish one record whose value is any bytes.

        :param topic: the name of the topic.
        :param body: the record's value, byte for byte.
        :param key: the record's key, which may be any bytes as well; text is stored as UTF-8. ``None`` for
            none, which the empty key is not.
        :param content_type: of the body. It changes nothing, except that those of Confluent's REST Proxy
            (``application/vnd.kafka.…``) are not for this method: they ask for another answer.
        :return: fires and fails as that of `publish`; with `sampleapp.errors.InvalidMessage` also for a topic
            that there cannot be.
        """
        return Deferred.fromCoroutine(
            self._publish_raw(topic=topic, body=body, key=key, content_type=content_type)
        )

    def delete(self, *, topic: str, key: str | bytes) -> Deferred[RecordMetadata]:
        """
        Publish a tombstone: a record with a key and a null value, which removes the reading of that key.

        What was published with that key before stays in the topic, unless its broker compacts it.

        :param topic: the name of the topic.
        :param key: as for `publish_raw`, but there has to be one.
        :return: fires and fails as that of `publish_raw`, with where the tombstone is.
        """
        return Deferred.fromCoroutine(self._delete(topic=topic, key=key))

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

    async def _publish(self, message: Message) -> RecordMetadata:
        answer = await self._exchanger.request(
            method="POST",
            url=f"{self._base_url}messages",
            headers=Headers({b"Content-Type": [b"application/json"]}),
            body=encode_message(message),
        )
        return self._answers.metadata(answer)

    async def _publish_many(self, messages: list[Message]) -> list[RecordMetadata]:
        if not messages:
            return []
        answer = await self._exchanger.request(
            method="POST",
            url=f"{self._base_url}messages",
            headers=Headers({b"Content-Type": [b"application/x-ndjson"]}),
            body=encode_messages(messages),
        )
        return self._answers.metadata_of_many(answer, count=len(messages))

    async def _publish_raw(
        self, *, topic: str, body: bytes, key: str | bytes | None, content_type: str | None
    ) -> RecordMetadata:
        path, query = topic_path(topic, key=key)
        headers = Headers() if content_type is None else Headers({"Content-Type": [content_type]})
        answer = await self._exchanger.request(
            method="POST", url=f"{self._base_url}{path}", query=query, headers=headers, body=body
        )
        return self._answers.metadata(answer)

    async def _delete(self, *, topic: str, key: str | bytes) -> RecordMetadata:
        path, query = topic_path(topic, key=key)
        answer = await self._exchanger.request(
            method="DELETE", url=f"{self._base_url}{path}", query=query, headers=Headers(), body=b""
        )
        return self._answers.metadata(answer)

    async def _poll(
        self, headers: Headers, shape: type[_Readings], after: Snapshot[_Readings] | None
    ) -> Snapshot[_Readings]:
        if after is not None and after.etag is not None:
            headers.setRawHeaders(b"If-None-Match", [after.etag])
        answer = await self._exchanger.request(method="GET", url=self._base_url, headers=headers)
        if answer.status == NOT_MODIFIED and after is not None:
            return after
        if answer.status != OK:
            raise self._answers.refusal(answer)
        etags = answer.headers.getRawHeaders(b"etag")
        return Snapshot(decode(answer, shape), etags[0] if etags else None)
