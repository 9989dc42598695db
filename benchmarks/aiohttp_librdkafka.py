"""
What the service on Kafka is compared with: the gateway that one would write otherwise.

aiohttp, on uvloop if that is here, with librdkafka for a producer: JSON that is checked as it is decoded, an
answer once all in-sync replicas have the record, and delivery reports that come to the event loop in bunches,
from one thread. Many messages in one request (NDJSON) have one future together. It has no limits, no problem
documents and no readings, does not ask for topics before it publishes, and lets nobody in between.

    python benchmarks/aiohttp_librdkafka.py PORT BOOTSTRAP
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import confluent_kafka
import msgspec
from aiohttp import web


class Message(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The same body as the service takes."""

    topic: str
    content: str
    key: str | None = None


class Stored(msgspec.Struct, gc=False):
    """And the same answer."""

    topic: str
    partition: int
    offset: int


decode_message = msgspec.json.Decoder(Message).decode
decode_lines = msgspec.json.Decoder(Message).decode_lines
encoder = msgspec.json.Encoder()
encode, encode_lines = encoder.encode, encoder.encode_lines


class Batch:
    """What has become of many messages so far."""

    def __init__(self, count: int, answer: asyncio.Future[list[Stored | str]]) -> None:
        self.stored: list[Stored | str] = [""] * count
        self.missing = count
        self.answer = answer


class Producer:
    """librdkafka, and a future for each message."""

    def __init__(self, bootstrap: str, *, loop: asyncio.AbstractEventLoop) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0}
        )
        self._loop = loop
        self._delivered: list[tuple[asyncio.Future[Stored] | tuple[Batch, int], Any, Any]] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def publish(self, topic: str, key: bytes | None, value: bytes) -> asyncio.Future[Stored]:
        answer = self._loop.create_future()

        def delivered(error: Any, message: Any) -> None:
            self._delivered.append((answer, error, message))

        self._producer.produce(topic, value, key, on_delivery=delivered)
        return answer

    def publish_many(self, messages: list[Message]) -> asyncio.Future[list[Stored | str]]:
        answer: asyncio.Future[list[Stored | str]] = self._loop.create_future()
        batch = Batch(len(messages), answer)
        produce = self._producer.produce
        for number, message in enumerate(messages):
            key = None if message.key is None else message.key.encode()
            produce(message.topic, message.content.encode(), key, on_delivery=self._deliver_to(batch, number))
        return answer

    def _deliver_to(self, batch: Batch, number: int) -> Callable[[Any, Any], None]:
        def delivered(error: Any, message: Any) -> None:
            self._delivered.append(((batch, number), error, message))

        return delivered

    def _poll(self) -> None:
        while not self._stopping:
            if self._producer.poll(0.1):
                delivered, self._delivered = self._delivered, []
                self._loop.call_soon_threadsafe(self._response, delivered)

    def _response(self, delivered: list[tuple[asyncio.Future[Stored] | tuple[Batch, int], Any, Any]]) -> None:
        for answer, error, message in delivered:
            if isinstance(answer, tuple):
                batch, number = answer
                batch.stored[number] = (
                    Stored(message.topic(), message.partition(), message.offset())
                    if error is None
                    else str(error)
                )
                batch.missing -= 1
                if not batch.missing and not batch.answer.cancelled():
                    batch.answer.set_result(batch.stored)
                continue
            if answer.cancelled():
                continue
            if error is None:
                answer.set_result(Stored(message.topic(), message.partition(), message.offset()))
            else:
                answer.set_exception(confluent_kafka.KafkaException(error))

    async def stop(self) -> None:
        await asyncio.to_thread(self._producer.flush, 5)
        self._stopping = True
        await asyncio.to_thread(self._thread.join)


PRODUCER = web.AppKey("producer", Producer)


async def publish_lines(request: web.Request) -> web.Response:
    try:
        messages = decode_lines(await request.read())
    except msgspec.DecodeError as error:
        raise web.HTTPBadRequest(text=str(error)) from error
    try:
        stored = await request.app[PRODUCER].publish_many(messages)
    except (confluent_kafka.KafkaException, BufferError) as error:
        raise web.HTTPServiceUnavailable(text=str(error)) from error
    if any(isinstance(each, str) for each in stored):
        raise web.HTTPServiceUnavailable
    return web.Response(body=encode_lines(stored), content_type="application/x-ndjson")


async def publish(request: web.Request) -> web.Response:
    if request.content_type == "application/x-ndjson":
        return await publish_lines(request)
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType
    try:
        message = decode_message(await request.read())
    except msgspec.DecodeError as error:
        raise web.HTTPBadRequest(text=str(error)) from error
    key = None if message.key is None else message.key.encode()
    try:
        stored = await request.app[PRODUCER].publish(message.topic, key, message.content.encode())
    except (confluent_kafka.KafkaException, BufferError) as error:
        raise web.HTTPServiceUnavailable(text=str(error)) from error
    return web.Response(body=encode(stored), content_type="application/json")


async def is_there(_: web.Request) -> web.Response:
    return web.Response()


async def with_producer(app: web.Application) -> AsyncIterator[None]:
    app[PRODUCER] = Producer(sys.argv[2], loop=asyncio.get_running_loop())
    gc.collect()
    gc.freeze()
    yield
    await app[PRODUCER].stop()


if __name__ == "__main__":
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    application = web.Application(client_max_size=16 * 1024 * 1024)
    application.add_routes([web.post("/messages", publish), web.get("/", is_there)])
    application.cleanup_ctx.append(with_producer)
    web.run_app(application, host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None)
