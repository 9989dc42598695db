"""Work through a topic with sampleapp's client."""

import json
import sys
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater, react

from sampleapp.client import Client, Rejected
from sampleapp.model import LeasedRecord


async def work(reactor: Any, url: str, group: str, most: int | None) -> None:
    """Work until a number of messages is done."""

    async def bill(message: LeasedRecord) -> None:
        record = message.record
        if not record.value:
            raise Rejected
        # The lease is extended for as long as this takes.
        await deferLater(reactor, 0.1)
        print(f"{record.partition}-{record.offset} {record.value.decode()}", flush=True)

    client = Client(base_url=url, reactor=reactor)
    # Cancel it to end after the messages in progress.
    await client.work(topic="orders", group=group, handler=bill, parallel=4, most=most)


def main(
    reactor: Any,
    url: str = "http://127.0.0.1:8080/",
    group: str = "billing",
    count: str = "null",
) -> Deferred[None]:
    """Run the coroutine."""
    return Deferred.fromCoroutine(work(reactor, url, group, json.loads(count)))


if __name__ == "__main__":
    react(main, sys.argv[1:])
