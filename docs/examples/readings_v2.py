"""Print the readings with their ids: the same path, another media type."""

import sys
from http import HTTPStatus
from typing import Any

import treq
from twisted.internet.error import ConnectError
from twisted.internet.task import react


async def main(reactor: Any, url: str = "http://127.0.0.1:8080/") -> None:
    """Fetch the objects: only the Accept header asks for version 2."""
    accept = {"Accept": "application/vnd.sampleApp.v2+json"}
    try:
        response = await treq.get(url, headers=accept, reactor=reactor, timeout=10)
    except ConnectError as error:
        raise SystemExit(f"Nothing answers at {url}: {error}") from error
    if response.code != HTTPStatus.OK:
        raise SystemExit(await response.text())
    for reading in await response.json():
        print(reading["id"], reading["value"])


if __name__ == "__main__":
    react(main, sys.argv[1:])
