"""Remove a reading: publish a tombstone, a record with its key and a null value."""

import sys
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin

import treq
from twisted.internet.error import ConnectError
from twisted.internet.task import react


async def main(reactor: Any, url: str = "http://127.0.0.1:8080/") -> None:
    """Publish it, and wait until it is stored."""
    target = urljoin(url, "topics/readings?key=kitchen")
    try:
        response = await treq.delete(target, reactor=reactor, timeout=35)
    except ConnectError as error:
        raise SystemExit(f"Nothing answers at {url}: {error}") from error
    if response.code != HTTPStatus.OK:
        raise SystemExit(await response.text())
    print(await response.text())


if __name__ == "__main__":
    react(main, sys.argv[1:])
