"""Publish readings that come in on stdin, one line each: an id, a space, a number."""

import sys
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater, react

from sampleapp.client import Client, ClientError
from sampleapp.model import RecordMetadata


async def publish(
    client: Client, *, key: str, content: str, reactor: Any, attempts: int = 5
) -> RecordMetadata:
    """Publish a reading; try again if it is certain that nothing was published."""
    try:
        return await client.publish(topic="readings", key=key, content=content)
    except ClientError as error:
        if attempts == 1 or error.possibly_published or not error.retriable:
            raise
        print(f"{key}: {error} Trying again.", file=sys.stderr)
    await deferLater(reactor, 1)
    return await publish(
        client,
        key=key,
        content=content,
        reactor=reactor,
        attempts=attempts - 1,
    )


async def forward(reactor: Any, url: str) -> None:
    """Publish the lines one after the other, in their order."""
    client = Client(base_url=url, reactor=reactor)
    for line in sys.stdin:
        match line.split():
            case [key, content]:
                pass
            case _:
                print(f"not an id and a number: {line!r}", file=sys.stderr)
                continue
        try:
            metadata = await publish(
                client,
                key=key,
                content=content,
                reactor=reactor,
            )
        except ClientError as error:
            note = " It may be in the topic." if error.possibly_published else ""
            raise SystemExit(f"{key}: {error}{note}") from error
        print(f"{key}: partition {metadata.partition}, offset {metadata.offset}")
    await client.close()


def main(reactor: Any, url: str = "http://127.0.0.1:8080/") -> Deferred[None]:
    """Run the coroutine."""
    return Deferred.fromCoroutine(forward(reactor, url))


if __name__ == "__main__":
    react(main, sys.argv[1:])
