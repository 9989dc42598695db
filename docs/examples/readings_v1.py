"""Print the readings as an array of numbers: what every caller gets that asks for nothing else."""

import json
import sys
from http import HTTPStatus
from typing import Any

import treq
from twisted.internet.task import react


async def main(reactor: Any, base_url: str) -> None:
    """Fetch the numbers: without an Accept header, the answer is version 1."""
    response = await treq.get(base_url, reactor=reactor, timeout=10)
    if response.code != HTTPStatus.OK:
        raise SystemExit(await response.text())
    print(json.dumps(await response.json()))


if __name__ == "__main__":
    react(main, sys.argv[1:])
