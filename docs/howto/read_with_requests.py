"""Follow a topic with requests: one page after the other, and go on later."""

import json
import os
import sys
import time
from pathlib import Path
from urllib.parse import urljoin

import requests

# To connect, and for an answer: the service waits for a record for 30 seconds.
TIMEOUT_S = (10, 60)
WAIT_S = 30

session = requests.Session()
if "SAMPLEAPP_TOKEN" in os.environ:
    session.headers["Authorization"] = f"Bearer {os.environ['SAMPLEAPP_TOKEN']}"


def fetch(url: str, position: str) -> requests.Response:
    """Fetch a page; ask again while the service is away or busy."""
    query = {"from": position, "wait": WAIT_S}
    while True:
        try:
            response = session.get(url, params=query, timeout=TIMEOUT_S)
        except (requests.ConnectionError, requests.Timeout):
            time.sleep(1)
            continue
        if response.status_code not in (429, 502, 503, 504):
            return response
        time.sleep(min(int(response.headers.get("Retry-After", "1")), 30))


def main(url: str, topic: str, file: str, count: str = "0") -> None:
    """Print the contents of records; keep the position in a file."""
    saved = Path(file)
    position = saved.read_text() if saved.exists() else "earliest"
    left = int(count) or sys.maxsize
    while left > 0:
        page = fetch(urljoin(url, f"topics/{topic}/records"), position)
        if page.status_code == requests.codes.gone:
            # Not read in time: the problem names the missing records.
            problem = page.json()
            print(problem["detail"], file=sys.stderr)
            position = problem.get("resume", "earliest")
            continue
        page.raise_for_status()
        for line in page.iter_lines():
            record = json.loads(line)
            print(record["offset"], record.get("content"))
            left -= 1
        # After the records, so that none is left out after a crash.
        position = page.headers["Position"]
        saved.write_text(position)


if __name__ == "__main__":
    main(*sys.argv[1:])
