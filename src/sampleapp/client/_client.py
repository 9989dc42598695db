"""The operations of the HTTP interface as methods."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Generic, Literal, TypeVar, cast, overload

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.web.client import HTTPConnectionPool
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IResponse

from sampleapp.client._errors import ClientError
from sampleapp.client._exchange import Exchanger, OpenResponse, Repeats, Response, idempotency_headers
from sampleapp.client._messages import (
    Entry,
    Lease,
    Message,
    Page,
    encode_message,
    encode_messages,
    group_path,
    ids_of,
    records_path,
    topic_path,
)
from sampleapp.client._responses import NO_CONTENT, OK, RECORDS_MEDIA_TYPE, ResponseReader, decode
from sampleapp.client._settings import certificate_context, check_token, parse_base_url
from sampleapp.client._stream import Stream
from sampleapp.client._work import Handler, Worker, log_trouble
from sampleapp.model import MEDIA_TYPES, Acknowledged, LeasedRecord, Reading, RecordMetadata, Version
from sampleapp.outgoing.https import BoundedPool, make_agent

NOT_MODIFIED = 304

EVENT_STREAM = b"text/event-stream"

# Shorter than servers, ours (75 s) included, keep idle connections: if a message is written to a connection
# that is just being closed, it is not known whether it was published.
IDLE_CONNECTION_S = 30
# A host that does not answer at all, or not in TLS, is reported while it is certain that nothing was sent.
CONNECT_TIMEOUT_S = 10.0

_Readings = TypeVar("_Readings")
_Result = TypeVar("_Result")


class Snapshot(Struct, Generic[_Readings], frozen=True):
    """The readings at one time, with their entity tag."""

    readings: _Readings
    etag: bytes | None
    """As the service sent it, to ask whether the readings have changed; ``None`` if it sent none."""


class Client:
    """
    A client of one service. Its connections stay open between requests, until `close`.

    Unless a method says otherwise, its Deferred fails with

    - `sampleapp.client.ServiceUnreachable` if nothing was sent, or the server cannot have understood it,
    - `sampleapp.client.RequestTimedOut` or `sampleapp.client.ResponseLost` if the service may have carried
      out the request,
    - `sampleapp.client.ProblemError` if the service answers with a problem,
    - `sampleapp.client.UnexpectedResponse` if the response is not one of this service.

    Cancelling the Deferred closes its connection; it then fails with `sampleapp.client.RequestCancelled`,
    which is ``possibly_published`` if the request may have reached the service.
    """

    def __init__(
        self,
        *,
        base_url: str,
        reactor: IReactorTime,
        token: str | None = None,
        client_certificate: str | os.PathLike[str] | None = None,
        client_key: str | os.PathLike[str] | None = None,
        agent: IAgent | None = None,
        timeout_s: float = 30.0,
        repeat_for_s: float = 60.0,
        on_repeat: Callable[[ClientError], None] | None = None,
        max_idle_connections: int = 64,
    ) -> None:
        """
        Connects only when the first request is made.

        :param base_url: the URL of the service, such as ``http://127.0.0.1:8080/``.
        :param reactor: provides the time and, without an agent, connections.
        :param token: the caller's credentials: a token of the service's own, or a JSON Web Token. It is sent
            with each request (RFC 6750), only to the service, and is in no error and no ``repr()``. Plain
            HTTP shows it to every machine between the client and the service.
        :param client_certificate: a PEM file with the caller's certificate, then its intermediate
            authorities, which the client presents to an ``https`` service. It is read here, and only here.
        :param client_key: a PEM file with the private key, unencrypted; ``None`` if it is in the file of the
            certificate.
        :param agent: makes the requests, instead of the client's own agent; it has its own certificates.
        :param timeout_s: seconds for one request, from the call to the last byte of the response.
        :param repeat_for_s: seconds in which the client repeats a request with an idempotency key after an
            error that may pass: 408, 500, 502, 503, 504, no connection, or no response. 0 for never.
        :param on_repeat: is called with the error before each pause after which such a request is repeated.
        :param max_idle_connections: the number of connections to keep for later requests. The number of
            concurrent requests, and so of connections, is not limited.
        :raise ValueError: the base URL or the token is invalid, or the certificate cannot be used: a file is
            wrong, or nothing would present it, since the base URL is not ``https``, or there is an agent.
        """
        self._base_url = parse_base_url(base_url)
        if token is not None:
            check_token(token)
        if client_certificate is None and client_key is not None:
            raise ValueError("A client key needs a client certificate.")
        if client_certificate is not None and not self._base_url.startswith("https:"):
            raise ValueError(
                "A client certificate is presented over TLS only: give the service's URL with https://, or "
                "no certificate."
            )
        if client_certificate is not None and agent is not None:
            raise ValueError("A client certificate is for the client's own agent; give one of them.")
        context = None if client_certificate is None else certificate_context(client_certificate, client_key)
        self._pool: HTTPConnectionPool | None = None
        if agent is None:
            pool = BoundedPool(reactor)
            pool.maxPersistentPerHost = max_idle_connections
            pool.cachedConnectionTimeout = IDLE_CONNECTION_S
            connect_timeout_s = min(CONNECT_TIMEOUT_S, timeout_s)
            agent = make_agent(reactor, connect_timeout_s=connect_timeout_s, pool=pool, context=context)
            self._pool = pool
        self._reactor = reactor
        self._exchanger = Exchanger(agent=agent, reactor=reactor, timeout_s=timeout_s, token=token)
        self._responses = ResponseReader(token=token)
        self._repeats = Repeats(clock=reactor, repeat_for_s=repeat_for_s, on_repeat=on_repeat)

    def publish(
        self,
        *,
        topic: str,
        content: str | bytes,
        key: str | bytes | None = None,
        headers: Mapping[str, str] | Sequence[tuple[str, bytes | None]] | None = None,
        timestamp: int | datetime | None = None,
        idempotency_key: str | None = None,
    ) -> Deferred[RecordMetadata]:
        """
        Publish one message.

        When it fails with a `sampleapp.client.ClientError`, the error's ``possibly_published`` says whether
        the record may exist all the same. Without an idempotency key, the client never sends a message twice
        by itself.

        :param topic: the name of the topic.
        :param content: the record's value; text is stored as UTF-8.
        :param key: the record's key; text is stored as UTF-8. ``None`` for no key, which differs from the
            empty key.
        :param headers: the record's headers, in this order; text is stored as UTF-8. Headers whose names
            repeat, or whose values are bytes or null, are pairs, as in `sampleapp.model.ConsumerRecord`.
        :param timestamp: the time of the record: milliseconds since the epoch, an integer of 12 to 14 digits
            (1973 to 5138), or a `datetime.datetime` with an offset, from 1970 on; ``None`` for the time at
            which the service receives it.
        :param idempotency_key: names this request, so that the service publishes the record once, however
            often the request is made; another one for each record, such as ``str(uuid.uuid4())``. 1 to 255
            visible ASCII characters. With it, the client repeats the request by itself; see ``repeat_for_s``.
        :return: fires with the metadata of the record, once the broker has acknowledged it: a
            `sampleapp.model.ReplayedRecord` if an earlier request had published it. Fails also with
            `sampleapp.errors.InvalidMessage`, before anything is sent, for text with lone surrogates.
        :raise ValueError: the idempotency key is invalid.
        """
        headers_of_request = idempotency_headers(idempotency_key)
        message = Message(
            topic=topic,
            content=content,
            key=key,
            headers=dict(headers) if isinstance(headers, Mapping) else headers,
            timestamp=timestamp,
        )
        return Deferred.fromCoroutine(self._publish(message, headers_of_request))

    def publish_many(
        self, messages: Iterable[Message], *, idempotency_key: str | None = None
    ) -> Deferred[list[RecordMetadata]]:
        """
        Publish many messages in one request, at a small part of the cost of single requests.

        The service checks all messages before it publishes any. Records of one topic and key keep the order
        of the messages. The service limits the size: by default to 16 MiB of JSON. The whole request is
        encoded at once, in a few milliseconds per megabyte.

        When it fails with `sampleapp.client.PartlyPublished`, the error's ``results`` have, for each message,
        the metadata of its record or an error. Any other `sampleapp.client.ClientError` is about all
        messages: unless it is ``possibly_published``, none was published. In a
        `sampleapp.client.ProblemError`, the pointers in ``problem.errors`` begin with the number of the
        message, from 0: ``/17/content``.

        :param messages: if there are none, no request is made.
        :param idempotency_key: as for `publish`. The service knows each record again by the key and its index
            among the messages, so a repetition publishes those that were not published yet.
        :return: fires with the metadata of the records, in the order of the messages, once the broker has
            acknowledged all of them. Fails also with `sampleapp.errors.InvalidMessage`, before anything is
            sent, for text with lone surrogates.
        :raise ValueError: the idempotency key is invalid.
        """
        headers = idempotency_headers(idempotency_key)
        return Deferred.fromCoroutine(self._publish_many(list(messages), headers))

    def publish_raw(
        self,
        *,
        topic: str,
        body: bytes,
        key: str | bytes | None = None,
        content_type: str | None = None,
        idempotency_key: str | None = None,
    ) -> Deferred[RecordMetadata]:
        """
        Publish one record whose value is any bytes.

        :param topic: the name of the topic.
        :param body: the record's value, byte for byte.
        :param key: the record's key, which may be any bytes as well; text is stored as UTF-8. ``None`` for no
            key, which differs from the empty key.
        :param content_type: the media type of the body. It becomes the header ``content-type`` of the record,
            unless the operator has turned that off; one of CloudEvents makes the body an event. Those of
            Confluent's REST Proxy (``application/vnd.kafka.…``) are not for this method: they have other
            responses.
        :param idempotency_key: as for `publish`.
        :return: fires and fails as the result of `publish`; also with `sampleapp.errors.InvalidMessage` for
            an illegal name of a topic.
        :raise ValueError: the idempotency key is invalid.
        """
        headers = idempotency_headers(idempotency_key)
        if content_type is not None:
            headers.setRawHeaders("Content-Type", [content_type])
        return Deferred.fromCoroutine(self._publish_raw(topic=topic, body=body, key=key, headers=headers))

    def delete(
        self, *, topic: str, key: str | bytes, idempotency_key: str | None = None
    ) -> Deferred[RecordMetadata]:
        """
        Publish a tombstone: a record with a key and a null value, which removes the reading of that key.

        Earlier records with that key stay in the topic, unless its broker compacts it.

        :param topic: the name of the topic.
        :param key: as for `publish_raw`, but required.
        :param idempotency_key: as for `publish`.
        :return: fires with the metadata of the tombstone; fails as the result of `publish_raw`.
        :raise ValueError: the idempotency key is invalid.
        """
        headers = idempotency_headers(idempotency_key)
        return Deferred.fromCoroutine(self._delete(topic=topic, key=key, headers=headers))

    def topics(self) -> Deferred[list[str]]:
        """
        List the topics that the caller may publish to, read or work in.

        :return: fires with their names, sorted. They may be two seconds old.
        """
        return Deferred.fromCoroutine(self._topics())

    @overload
    def readings(self, *, version: Literal[1] = 1) -> Deferred[list[float]]: ...

    @overload
    def readings(self, *, version: Literal[2]) -> Deferred[list[Reading]]: ...

    def readings(self, *, version: Version = 1) -> Deferred[list[float]] | Deferred[list[Reading]]:
        """
        Fetch the readings.

        :param version: the version of the representation: 1 for the values, 2 for values with their ids.
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
        Fetch the readings if they have changed; if not, only a few headers are transferred.

        :param version: as for `readings`.
        :param after: the result of an earlier call for the same version.
        :return: fires with ``after`` itself if nothing has changed since, otherwise with a new snapshot.
        """
        if version == 1:
            values = cast("Snapshot[list[float]] | None", after)
            # Without Accept: servers of every version accept this request.
            return Deferred.fromCoroutine(self._poll(Headers(), _numbers, values))
        if version == 2:  # noqa: PLR2004 -- the name of the representation
            entries = cast("Snapshot[list[Reading]] | None", after)
            return Deferred.fromCoroutine(
                self._poll(Headers({"Accept": [MEDIA_TYPES[2]]}), _entries, entries)
            )
        raise ValueError(f"The readings have versions 1 and 2, not {version!r}.")

    def read(
        self,
        *,
        topic: str,
        start: str = "earliest",
        partitions: Iterable[int] | None = None,
        key: str | bytes | None = None,
        headers: Iterable[tuple[str, str | bytes]] = (),
        limit: int | None = None,
        wait_s: int = 0,
    ) -> Deferred[Page]:
        """
        Fetch a page: some records of a topic.

        Read on with the ``position`` of the page as the next ``start``, until the page is ``up_to_date``. A
        page may be empty without being up to date: go on.

        :param topic: the name of the topic.
        :param start: the position after an earlier page; or ``"earliest"``, ``"latest"``, ``"-N"`` for the
            last N records of each partition, ``"offset:N"``, or a time, for the first record of each
            partition that is not earlier: in milliseconds since the epoch, in at least 12 digits, or as in
            RFC 3339, such as ``"2026-11-21T08:00:00Z"``.
        :param partitions: the partitions to read; ``None`` for all.
        :param key: reads only records with this key; text is encoded as UTF-8. ``None`` for all records.
        :param headers: reads only records with all of these headers, up to 8; text is encoded as UTF-8.
        :param limit: the maximum number of records, from 1 to 10,000; ``None`` for 500. A page has about 1
            MiB at most.
        :param wait_s: the seconds to wait for a record if there is none, from 0 to 60.
        :return: fires with the page. Fails also with `sampleapp.client.PositionExpired`,
            `sampleapp.client.TopicReplaced` or `sampleapp.client.PositionUnknown` if the service cannot read
            on at a position, and with `sampleapp.errors.InvalidMessage` for an illegal name of a topic, a
            colon in the name of a header, or text with lone surrogates.
        """
        return Deferred.fromCoroutine(
            self._read(
                topic=topic,
                start=start,
                partitions=partitions,
                key=key,
                headers=headers,
                limit=limit,
                wait_s=wait_s,
            )
        )

    def stream(
        self,
        *,
        topic: str,
        start: str = "latest",
        partitions: Iterable[int] | None = None,
        key: str | bytes | None = None,
        headers: Iterable[tuple[str, str | bytes]] = (),
    ) -> Stream:
        """
        Read a topic, and the records that are added to it, for as long as you like.

        :param topic: the name of the topic.
        :param start: as for `read`. If the service cannot read on at a position, that is not an error: the
            stream returns a `sampleapp.client.Gap` or a `sampleapp.client.Reset`, and goes on.
        :param partitions: the partitions to read; ``None`` for all.
        :param key: as for `read`.
        :param headers: as for `read`.
        :return: an asynchronous iterator; it makes the first request when it is asked for the first item.
        :raise sampleapp.errors.InvalidMessage: as the result of `read` fails.
        """
        # Only a position has this character.
        position = start if "~" in start else None
        chosen = None if partitions is None else list(partitions)
        wanted = list(headers)
        path, first = records_path(topic, start=start, partitions=chosen, key=key, headers=wanted)
        _, later = records_path(topic, partitions=chosen, key=key, headers=wanted)

        def open_stream(position: str | None) -> Deferred[OpenResponse]:
            headers = Headers({b"Accept": [EVENT_STREAM]})
            if position is not None:
                headers.setRawHeaders(b"Last-Event-ID", [position.encode("utf-8")])
            return self._exchanger.open(
                url=f"{self._base_url}{path}",
                query=first if position is None else later,
                headers=headers,
                is_open=_is_event_stream,
            ).addCallback(self._opened)

        return Stream(open_stream=open_stream, reactor=self._reactor, position=position)

    def pull(self, *, topic: str, group: str, most: int = 1, wait_s: int = 0) -> Deferred[Lease | None]:
        """
        Take messages as a worker of a group, under a lease.

        :param topic: the name of the topic.
        :param group: the name of the group; the first pull creates it.
        :param most: the maximum number of messages, from 1 to 500.
        :param wait_s: the seconds to wait for the first message, from 0 to 60.
        :return: fires with the lease, or with ``None`` if no message has come. If it is cancelled, the
            service releases the messages. Fails also with `sampleapp.errors.InvalidMessage` for an illegal
            name of a topic or group.
        """

        def read_response(response: Response) -> Lease | None:
            return None if response.status == NO_CONTENT else self._responses.lease(response)

        body = {"max": most, "wait": wait_s}
        return Deferred.fromCoroutine(self._work(topic, group, "pull", body, read_response, extra_s=wait_s))

    def ack(
        self,
        *,
        topic: str,
        group: str,
        lease: Lease,
        accept: Iterable[LeasedRecord] | Literal["all"] = (),
        release: Iterable[LeasedRecord] | Literal["all"] = (),
        reject: Iterable[LeasedRecord] | Literal["all"] = (),
    ) -> Deferred[Acknowledged]:
        """
        End a lease, with the results for its messages. Messages without a result are released.

        The client repeats the request as one with an idempotency key; see ``repeat_for_s``.

        :param accept: messages that are done; ``"all"`` for all of the lease, as for the others.
        :param release: messages that are free for any worker, as another attempt.
        :param reject: messages that are never given again.
        :return: fires with the numbers of messages. Fails also with `sampleapp.client.LeaseLost`: after an
            attempt without a response, the results may stand all the same.
        """
        given = {"accept": accept, "release": release, "reject": reject}
        results = {name: ids_of(messages) for name, messages in given.items()}
        read_response = partial(self._responses.value, shape=Acknowledged)
        body = {"lease": lease.token, **results}
        return Deferred.fromCoroutine(self._work(topic, group, "ack", body, read_response))

    def extend(self, *, topic: str, group: str, lease: Lease) -> Deferred[Lease]:
        """
        Get more time for the messages of a lease.

        :return: fires with the lease that replaces it. Fails also with `sampleapp.client.LeaseLost`.
        """

        def read_response(response: Response) -> Lease:
            return replace(self._responses.lease(response), messages=lease.messages)

        body = {"lease": lease.token}
        return Deferred.fromCoroutine(self._work(topic, group, "extend", body, read_response))

    def work(
        self,
        *,
        topic: str,
        group: str,
        handler: Handler,
        parallel: int = 1,
        most: int | None = None,
        on_result: Callable[[Acknowledged], None] = lambda _: None,
        on_trouble: Callable[[str], None] = log_trouble,
    ) -> Deferred[None]:
        """
        Handle the messages of a group.

        A message is accepted when its handler is done, rejected if the handler raises
        `sampleapp.client.Rejected`, and released if it raises `sampleapp.client.Released`, or anything else,
        which is logged. Until then its lease is extended. If the lease is lost, the handler is cancelled.

        :param handler: is called with each message; may be a coroutine function, or return a Deferred.
        :param parallel: the maximum number of messages that are handled at one time.
        :param most: the number of messages after which it ends; ``None`` for no end.
        :param on_result: is called with each response to an acknowledgement.
        :param on_trouble: is called with a sentence about each error that may pass; by default it is logged.
        :return: fires after ``most`` messages. If it is cancelled, it fails with
            `twisted.internet.defer.CancelledError` after the messages that are being handled. A second cancel
            also cancels their handlers, and releases them.
        """
        worker = Worker(
            handler=handler,
            pull=partial(self.pull, topic=topic, group=group),
            ack=partial(self.ack, topic=topic, group=group),
            extend=partial(self.extend, topic=topic, group=group),
            clock=self._reactor,
            on_result=on_result,
            on_trouble=on_trouble,
        )
        return Deferred.fromCoroutine(worker.run(parallel=parallel, most=most))

    def close(self) -> Deferred[None]:
        """
        Close idle connections. Call it when no request is in flight.

        :return: fires with ``None`` when they are closed. Never fails; cancelling it only stops the waiting.
        """
        closed: Deferred[None] = Deferred()
        if self._pool is None:
            closed.callback(None)
        else:
            # Not the pool's own Deferred: after a cancel, it would log the failure of each connection.
            self._pool.closeCachedConnections().addCallback(lambda _: closed.callback(None))
        return closed

    async def _publish(self, message: Message, headers: Headers) -> RecordMetadata:
        headers.setRawHeaders(b"Content-Type", [b"application/json"])
        body = encode_message(message)
        read_response = partial(self._responses.metadata, topic=message.topic)
        return await self._send("POST", "messages", headers, body, read_response)

    async def _publish_many(self, messages: list[Message], headers: Headers) -> list[RecordMetadata]:
        if not messages:
            return []
        headers.setRawHeaders(b"Content-Type", [b"application/x-ndjson"])
        body, topics = encode_messages(messages), [message.topic for message in messages]
        read_response = partial(self._responses.metadata_of_many, topics=topics)
        return await self._send("POST", "messages", headers, body, read_response)

    async def _publish_raw(
        self, *, topic: str, body: bytes, key: str | bytes | None, headers: Headers
    ) -> RecordMetadata:
        path, query = topic_path(topic, key=key)
        read_response = partial(self._responses.metadata, topic=topic)
        return await self._send("POST", path, headers, body, read_response, query=query)

    async def _delete(self, *, topic: str, key: str | bytes, headers: Headers) -> RecordMetadata:
        path, query = topic_path(topic, key=key)
        read_response = partial(self._responses.metadata, topic=topic)
        return await self._send("DELETE", path, headers, b"", read_response, query=query)

    async def _send(
        self,
        method: str,
        path: str,
        headers: Headers,
        body: bytes,
        read_response: Callable[[Response], _Result],
        *,
        query: str = "",
        extra_s: float = 0.0,
        may_repeat: bool = False,
    ) -> _Result:
        """
        Make a request with a body; repeat it after errors that may pass, if it has an idempotency key.

        :param may_repeat: repeat it without a key, too.
        """

        async def attempt() -> _Result:
            return read_response(
                await self._exchanger.request(
                    method=method,
                    url=f"{self._base_url}{path}",
                    query=query,
                    headers=headers.copy(),
                    body=body,
                    extra_s=extra_s,
                )
            )

        may_repeat = may_repeat or headers.hasHeader(b"Idempotency-Key")
        return await (self._repeats.run(attempt) if may_repeat else attempt())

    async def _work(
        self,
        topic: str,
        group: str,
        action: str,
        body: Mapping[str, object],
        read_response: Callable[[Response], _Result],
        *,
        extra_s: float = 0.0,
    ) -> _Result:
        return await self._send(
            "POST",
            f"{group_path(topic, group)}/{action}",
            Headers({b"Content-Type": [b"application/json"]}),
            msgspec.json.encode(body),
            read_response,
            extra_s=extra_s,
            # A pull without a response may have taken messages, and while an extension is repeated, a lease
            # can be neither acknowledged nor known to have ended.
            may_repeat=action == "ack",
        )

    async def _read(
        self,
        *,
        topic: str,
        start: str,
        partitions: Iterable[int] | None,
        key: str | bytes | None,
        headers: Iterable[tuple[str, str | bytes]],
        limit: int | None,
        wait_s: int,
    ) -> Page:
        path, query = records_path(
            topic,
            start=start,
            partitions=partitions,
            key=key,
            headers=headers,
            limit=limit,
            wait_s=wait_s,
        )
        answer = await self._exchanger.request(
            method="GET",
            url=f"{self._base_url}{path}",
            query=query,
            headers=Headers({b"Accept": [RECORDS_MEDIA_TYPE.encode("ascii")]}),
            extra_s=wait_s,
            # A page that is cut off between two lines would look whole, and its position would skip the rest.
            until_closed=False,
        )
        return self._responses.page(answer)

    def _opened(self, answer: OpenResponse | Response) -> OpenResponse:
        if isinstance(answer, Response):
            raise self._responses.rejection(answer)
        return answer

    async def _topics(self) -> list[str]:
        response = await self._exchanger.request(
            method="GET", url=f"{self._base_url}topics", headers=Headers({b"Accept": [b"application/json"]})
        )
        if response.status != OK:
            raise self._responses.rejection(response)
        return decode(response, list[str])

    async def _poll(
        self, headers: Headers, read: Callable[[Response], _Readings], after: Snapshot[_Readings] | None
    ) -> Snapshot[_Readings]:
        if after is not None and after.etag is not None:
            headers.setRawHeaders(b"If-None-Match", [after.etag])
        answer = await self._exchanger.request(method="GET", url=self._base_url, headers=headers)
        if answer.status == NOT_MODIFIED and after is not None:
            return after
        if answer.status != OK:
            raise self._responses.rejection(answer)
        etags = answer.headers.getRawHeaders(b"etag")
        return Snapshot(read(answer), etags[0] if etags else None)


def _is_event_stream(response: IResponse) -> bool:
    media_type = (response.headers.getRawHeaders(b"content-type") or [b""])[-1].partition(b";")[0]
    return bool(response.code == OK and media_type.strip().lower() == EVENT_STREAM)


def _numbers(answer: Response) -> list[float]:
    return decode(answer, list[float])


def _entries(answer: Response) -> list[Reading]:
    return [entry.reading() for entry in decode(answer, list[Entry])]
