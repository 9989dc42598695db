"""Publish several messages in one request: each is one line of JSON."""

import sys
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin

import treq
from twisted.internet.error import ConnectError
from twisted.internet.task import react

NDJSON = {"Content-Type": "application/x-ndjson"}
BODY = b'{"topic":"batch","content":"21.5"}\n{"topic":"batch","content":"19"}'


async def main(reactor: Any, url: str = "http://127.0.0.1:8080/") -> None:
    """Post the messages, and wait until all their records are stored."""
    post = {"data": BODY, "headers": NDJSON, "timeout": 35, "reactor": reactor}
    try:
        response = await treq.post(urljoin(url, "messages"), **post)
    except ConnectError as error:
        raise SystemExit(f"Nothing answers at {url}: {error}") from error
    if response.code != HTTPStatus.OK:
        raise SystemExit(await response.text())
    print(await response.text(), end="")


if __name__ == "__main__":
    react(main, sys.argv[1:])
