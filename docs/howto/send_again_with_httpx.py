"""Publish a message once with httpx, however often it must be sent."""

import sys
import time
import uuid

import httpx

ATTEMPTS = 8
MAY_PASS = (408, 429, 500, 502, 503, 504)


def publish(
    client: httpx.Client,
    message: dict[str, str],
    key: str,
) -> httpx.Response:
    """Send a message with Idempotency-Key until its outcome is known."""
    for attempt in range(ATTEMPTS):
        try:
            response = client.post(
                "messages",
                json=message,
                headers={"Idempotency-Key": key},
            )
        except httpx.TransportError:
            if attempt == ATTEMPTS - 1:
                raise
            seconds = 2.0**attempt / 2
        else:
            if response.status_code not in MAY_PASS:
                break
            pause = response.headers.get("Retry-After", 2.0**attempt / 2)
            seconds = min(float(pause), 60)
        time.sleep(seconds)
    return response


def main(url: str = "http://127.0.0.1:8080/", key: str | None = None) -> None:
    """Publish a message; the same key again publishes nothing."""
    message = {"topic": "orders", "key": "17", "content": "paid"}
    # Longer than the service waits for its broker.
    timeout = httpx.Timeout(60, connect=10)
    with httpx.Client(base_url=url, timeout=timeout) as client:
        response = publish(client, message, key or str(uuid.uuid4()))
    again = ", published before" if "Idempotent-Replayed" in response.headers else ""
    print(f"{response.status_code}{again}: {response.text}", end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
