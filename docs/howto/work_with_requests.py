"""Work through a topic with Requests: pull, do the work, acknowledge."""

import sys
import time
from http import HTTPStatus
from typing import Any

import requests

AGAIN = {429, 502, 503, 504}
SERVICE = "http://127.0.0.1:8080/"


def post(url: str, body: dict[str, Any]) -> requests.Response:
    """Send a request again while the service is away or busy."""
    while True:
        pause_s = 1
        try:
            # Longer than the service waits for messages, or for its broker.
            response = requests.post(url, json=body, timeout=60)
            if response.status_code not in AGAIN:
                return response
            pause_s = int(response.headers.get("Retry-After", "1"))
        except (requests.ConnectionError, requests.Timeout):
            pass
        time.sleep(min(pause_s, 30))


def bill(message: dict[str, Any]) -> bool:
    """Do the work of one message; return whether it is done."""
    print(message["id"], message["content"], flush=True)
    return True


def main(url: str = SERVICE, name: str = "billing", count: str = "inf") -> None:
    """Work until a number of messages is done."""
    group = f"{url}topics/orders/groups/{name}"
    left = float(count)
    while left > 0:
        pulled = post(f"{group}/pull", {"wait": 20})
        if pulled.status_code == HTTPStatus.NO_CONTENT:
            continue
        pulled.raise_for_status()
        lease = pulled.json()
        done = [each["id"] for each in lease["messages"] if bill(each)]
        acknowledged = post(f"{group}/ack", {"lease": lease["lease"], "accept": done})
        if acknowledged.status_code == HTTPStatus.CONFLICT:
            # The lease has ended: the messages are given again.
            print(acknowledged.json()["detail"], file=sys.stderr)
            continue
        acknowledged.raise_for_status()
        left -= len(done)


if __name__ == "__main__":
    main(*sys.argv[1:])
