"""Publish a body as it is, such as that of a webhook."""

import sys
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin

import treq
from twisted.internet.error import ConnectError
from twisted.internet.task import react

EVENT = b'{"order": 17, "paid": true}'


async def main(reactor: Any, url: str = "http://127.0.0.1:8080/") -> None:
    """Post the bytes; the sender need not know the format of messages."""
    target = urljoin(url, "topics/webhooks?key=shop")
    try:
        response = await treq.post(target, EVENT, reactor=reactor, timeout=35)
    except ConnectError as error:
        raise SystemExit(f"Nothing answers at {url}: {error}") from error
    if response.code != HTTPStatus.OK:
        raise SystemExit(await response.text())
    print(await response.text(), end="")


if __name__ == "__main__":
    react(main, sys.argv[1:])
