"""Publish batches with httpx, a few at a time; repeat only safe requests."""

import asyncio
import json
import sys
from collections.abc import Iterable
from typing import Any

import httpx

# The service itself waits for its broker for 30 seconds.
TIMEOUT = httpx.Timeout(60, connect=10)
TRY_AGAIN = (429, 503)


async def publish(client: httpx.AsyncClient, messages: list[dict[str, Any]]) -> None:
    """Publish messages in one request; raise an error if that fails in the end."""
    body = "".join(json.dumps(message) + "\n" for message in messages)
    for _ in range(10):
        try:
            response = await client.post(
                "messages",
                content=body,
                headers={"Content-Type": "application/x-ndjson"},
            )
        except httpx.ConnectError:
            # Nothing was sent. After other errors, something may have been published.
            await asyncio.sleep(1)
            continue
        if response.status_code not in TRY_AGAIN:
            break
        await asyncio.sleep(min(int(response.headers.get("Retry-After", "1")), 60))
    else:
        raise RuntimeError("The service cannot publish now; none was published.")
    if response.is_error:
        # With "results", if some of the messages were published.
        raise RuntimeError(response.text)


async def publish_all(url: str, batches: Iterable[list[dict[str, Any]]]) -> None:
    """Publish batches, four at a time. Records of one key belong into one batch."""
    at_once = asyncio.Semaphore(4)

    async def publish_one(batch: list[dict[str, Any]]) -> None:
        async with at_once:
            await publish(client, batch)

    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as client:
        await asyncio.gather(*(publish_one(batch) for batch in batches))


def main(url: str = "http://127.0.0.1:8080/") -> None:
    """Publish ten batches of a hundred messages."""
    batches = [
        [
            {
                "topic": "events",
                "key": f"sensor-{sensor}",
                "content": str(number),
            }
            for number in range(100)
        ]
        for sensor in range(10)
    ]
    asyncio.run(publish_all(url, batches))
    print("published: 1000")


if __name__ == "__main__":
    main(*sys.argv[1:])
