"""Follow a topic with sampleapp's client, and keep the position in a file."""

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from sampleapp.client import Client, Gap, Reset


def load(file: Path) -> str:
    """Return the position of the last time."""
    return file.read_text() if file.exists() else "earliest"


def save(file: Path, position: str) -> None:
    """Save the position for the next time."""
    file.write_text(position)


async def follow(reactor: Any, url: str, topic: str, file: Path, count: int) -> None:
    """Print the contents of records, and each gap or reset."""
    start, left = load(file), count or sys.maxsize
    client = Client(base_url=url, reactor=reactor)
    with closing(client.stream(topic=topic, start=start)) as stream:
        async for item in stream:
            if isinstance(item, Gap | Reset):
                print(item, file=sys.stderr)
                continue
            print(item.offset, (item.value or b"").decode())
            # After the record, so that it is not left out after a crash.
            save(file, stream.position or start)
            left -= 1
            if left == 0:
                break


def main(url: str, topic: str, file: str, count: str = "0") -> None:
    """Run the reactor until the records are printed."""
    saved, limit = Path(file), int(count)
    react(lambda r: Deferred.fromCoroutine(follow(r, url, topic, saved, limit)))


if __name__ == "__main__":
    main(*sys.argv[1:])
