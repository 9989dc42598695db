"""Publish a message once with requests, however often it must be sent."""

import sys
import uuid
from urllib.parse import urljoin

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

RETRIES = Retry(
    total=8,
    # By default, POST is not repeated. With Idempotency-Key it may be.
    allowed_methods=None,
    status_forcelist=(408, 429, 500, 502, 503, 504),
    # Wait for Retry-After, or 0.5, 1, 2, … seconds.
    backoff_factor=0.5,
    raise_on_status=False,
)


def main(url: str = "http://127.0.0.1:8080/", key: str | None = None) -> None:
    """Publish a message; the same key again publishes nothing."""
    session = requests.Session()
    session.mount(url, HTTPAdapter(max_retries=RETRIES))
    response = session.post(
        urljoin(url, "messages"),
        json={"topic": "orders", "key": "17", "content": "paid"},
        headers={"Idempotency-Key": key or str(uuid.uuid4())},
        timeout=(10, 60),
    )
    again = ", published before" if "Idempotent-Replayed" in response.headers else ""
    print(f"{response.status_code}{again}: {response.text}", end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
