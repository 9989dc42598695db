"""Follow a topic with httpx-sse: a stream that goes on after each interruption."""

import json
import sys
import time
from collections.abc import Iterator
from urllib.parse import urljoin

import httpx
from httpx_sse import ServerSentEvent, connect_sse

# A quiet stream has a line every 15 seconds.
TIMEOUT = httpx.Timeout(60, connect=10)
TRY_AGAIN = (429, 502, 503, 504)
START = {"from": "earliest"}


def events(url: str) -> Iterator[ServerSentEvent]:
    """Return the events of a topic; ask for the stream again when it has ended."""
    position, retry_s = "", 2.0
    with httpx.Client(timeout=TIMEOUT) as client:
        while True:
            headers = {"Last-Event-ID": position} if position else {}
            try:
                request = {"params": START, "headers": headers}
                with connect_sse(client, "GET", url, **request) as source:
                    if source.response.status_code not in TRY_AGAIN:
                        source.response.raise_for_status()
                        for event in source.iter_sse():
                            if event.retry is not None:
                                retry_s = event.retry / 1000
                            if event.data:
                                yield event
                            # Only now: the record has been handled.
                            position = event.id or position
            except httpx.TransportError:
                pass
            time.sleep(retry_s)


def main(url: str, topic: str, count: str = "0") -> None:
    """Print the contents of records, and each gap or reset."""
    left = int(count) or sys.maxsize
    for event in events(urljoin(url, f"topics/{topic}/records")):
        if event.event == "message":
            record = json.loads(event.data)
            print(record["offset"], record.get("content"), flush=True)
            left -= 1
        else:
            # A gap or a reset. The stream goes on after it.
            print(event.event, event.data, file=sys.stderr)
        if left == 0:
            break


if __name__ == "__main__":
    main(*sys.argv[1:])
