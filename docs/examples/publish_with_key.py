"""Publish a message with a key: here a reading, whose key is its id."""

import json
import sys
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin

import treq
from twisted.internet.error import ConnectError
from twisted.internet.task import react


async def main(reactor: Any, url: str = "http://127.0.0.1:8080/") -> None:
    """Post the message, and wait until its record is stored."""
    message = {"topic": "readings", "key": "kitchen", "content": "21.5"}
    target = urljoin(url, "messages")
    try:
        response = await treq.post(target, json=message, reactor=reactor, timeout=35)
    except ConnectError as error:
        raise SystemExit(f"Nothing answers at {url}: {error}") from error
    if response.code != HTTPStatus.OK:
        raise SystemExit(await response.text())
    print(json.dumps(await response.json()))


if __name__ == "__main__":
    react(main, sys.argv[1:])
