"""Publish a message with a key: here a reading, whose key is its id and whose content is a number."""

import json
import sys
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin

import treq
from twisted.internet.task import react


async def main(reactor: Any, base_url: str) -> None:
    """Post the message, and wait until the broker has its record."""
    message = {"topic": "readings", "key": "kitchen", "content": "21.5"}
    response = await treq.post(urljoin(base_url, "messages"), json=message, reactor=reactor, timeout=30)
    if response.code != HTTPStatus.OK:
        raise SystemExit(await response.text())
    print(json.dumps(await response.json()))


if __name__ == "__main__":
    react(main, sys.argv[1:])
