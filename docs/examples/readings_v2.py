"""Print the readings with their ids: the same path, with the media type of version 2."""

import sys
from http import HTTPStatus
from typing import Any

import treq
from twisted.internet.task import react


async def main(reactor: Any, base_url: str) -> None:
    """Fetch the objects: only the Accept header asks for version 2."""
    accept = {"Accept": "application/vnd.sampleApp.v2+json"}
    response = await treq.get(base_url, headers=accept, reactor=reactor, timeout=10)
    if response.code != HTTPStatus.OK:
        raise SystemExit(await response.text())
    for reading in await response.json():
        print(reading["id"], reading["value"])


if __name__ == "__main__":
    react(main, sys.argv[1:])
