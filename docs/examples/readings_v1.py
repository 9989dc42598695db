"""Print the readings as an array of numbers: version 1, which is the default."""

import json
import sys
from http import HTTPStatus
from typing import Any

import treq
from twisted.internet.error import ConnectError
from twisted.internet.task import react


async def main(reactor: Any, url: str = "http://127.0.0.1:8080/") -> None:
    """Fetch the numbers: without an Accept header, the answer is version 1."""
    try:
        response = await treq.get(url, reactor=reactor, timeout=10)
    except ConnectError as error:
        raise SystemExit(f"Nothing answers at {url}: {error}") from error
    if response.code != HTTPStatus.OK:
        raise SystemExit(await response.text())
    print(json.dumps(await response.json()))


if __name__ == "__main__":
    react(main, sys.argv[1:])
