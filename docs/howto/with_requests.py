"""Publish a batch, the body of a webhook and a tombstone with requests."""

import json
import os
import sys
import time
from typing import Any
from urllib.parse import urljoin

import requests

# To connect, and to wait: the service itself waits for its broker for 30 seconds.
TIMEOUT_S = (10, 60)
# The caller exceeds its rate, or the service cannot publish now: nothing was published.
TRY_AGAIN = (429, 503)

session = requests.Session()
if "SAMPLEAPP_TOKEN" in os.environ:
    session.headers["Authorization"] = f"Bearer {os.environ['SAMPLEAPP_TOKEN']}"


def send(method: str, url: str, **request: Any) -> requests.Response:
    """Send a request, and send it again if it has certainly published nothing."""
    for _ in range(10):
        response = session.request(method, url, timeout=TIMEOUT_S, **request)
        if response.status_code not in TRY_AGAIN:
            break
        time.sleep(min(int(response.headers.get("Retry-After", "1")), 60))
    return response


def publish_many(url: str, messages: list[dict[str, Any]]) -> None:
    """Publish messages in one request; print those that were not published, and why."""
    response = send(
        "POST",
        urljoin(url, "messages"),
        data="".join(json.dumps(message) + "\n" for message in messages).encode(),
        headers={"Content-Type": "application/x-ndjson"},
    )
    if response.ok:
        print(f"published: {len(messages)}")
        return
    problem = response.json()
    # Without results, none was published, unless the status is 500 or 504.
    results = problem.get("results", [problem] * len(messages))
    for message, result in zip(messages, results, strict=True):
        if "offset" not in result:
            print(f"{message}: {result['detail']}", file=sys.stderr)


def main(url: str = "http://127.0.0.1:8080/") -> None:
    """Publish some of each kind."""
    readings = {"kitchen": 21.5, "hall": 19, "damp": "?"}
    publish_many(
        url,
        [
            {
                "topic": "readings",
                "key": room,
                "content": str(value),
            }
            for room, value in readings.items()
        ],
    )
    answer = send(
        "POST",
        urljoin(url, "topics/webhooks"),
        params={"key": "shop"},
        data=b'{"order": 17, "paid": true}',
        headers={"Content-Type": "application/json"},
    )
    print(answer.status_code, answer.text, end="")
    answer = send("DELETE", urljoin(url, "topics/readings"), params={"key": "hall"})
    print(answer.status_code, answer.text, end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
