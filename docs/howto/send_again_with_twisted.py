"""Publish a message once with sampleapp's client, which repeats it by itself."""

import sys
import uuid
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from sampleapp.client import Client
from sampleapp.model import ReplayedRecord


async def publish(reactor: Any, url: str, key: str) -> None:
    """Publish a message; the same key again publishes nothing."""
    client = Client(base_url=url, reactor=reactor, timeout_s=60, repeat_for_s=300)
    place = await client.publish(
        topic="orders",
        key="17",
        content="paid",
        idempotency_key=key,
    )
    again = "published before" if isinstance(place, ReplayedRecord) else "published"
    print(f"{again}: partition {place.partition}, offset {place.offset}")
    await client.close()


def main(
    reactor: Any,
    url: str = "http://127.0.0.1:8080/",
    key: str | None = None,
) -> Deferred[None]:
    """Run the coroutine."""
    return Deferred.fromCoroutine(publish(reactor, url, key or str(uuid.uuid4())))


if __name__ == "__main__":
    react(main, sys.argv[1:])
