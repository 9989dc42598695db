"""
Workers who pull from a group and accept each message; prints their results as one line of JSON.

A worker with a pause works for that time on each lease; without one, it pulls again at once. A latency is
that of a pull and its acknowledgement together. It is a process of its own, as `load.py`.

    python benchmarks/work_load.py PORT WORKERS MAX SECONDS PAUSE
"""

from __future__ import annotations

import json
import random
import sys
import time

from long_run_http import Connection, Loop, Response, request
from stream_load import quantile

GROUP = "/topics/bench/groups/workers"
HEADERS = {"Content-Type": "application/json"}


class Worker:
    """Pulls and acknowledges, and remembers how long both took, and how many messages it got."""

    def __init__(self, loop: Loop, port: int, most: int, pause_s: float) -> None:
        self.latencies_ms: list[float] = []
        self.messages = self.empty = 0
        self.is_idle = self.is_stopped = False
        self._loop = loop
        self._connection = Connection(loop, port, self._fail)
        self._pull_request = request("POST", f"{GROUP}/pull", HEADERS, b'{"max": %d, "wait": 5}' % most)
        self._pause_s = pause_s
        # Not all at the same moment.
        loop.call_later(random.random() * pause_s, self._pull)

    @staticmethod
    def _fail(text: str) -> None:
        raise SystemExit(text)

    def _pull(self) -> None:
        if self.is_stopped:
            self.is_idle = True
            return
        self._began_s = time.perf_counter()
        self._connection.ask(self._pull_request, self._take)

    def _take(self, answer: Response) -> None:
        if answer.status == 204:
            self.empty += 1
            self._pull()
            return
        if answer.status != 200:
            raise SystemExit(f"Not an answer to measure: {answer}")
        self._pulled_s = time.perf_counter() - self._began_s
        lease = json.loads(answer.body)
        self._count = len(lease["messages"])
        self._acknowledge = json.dumps({"lease": lease["lease"], "accept": "all"}).encode()
        if self._pause_s:
            self._loop.call_later(self._pause_s, self._ack)
        else:
            self._ack()

    def _ack(self) -> None:
        self._began_s = time.perf_counter()
        self._connection.ask(request("POST", f"{GROUP}/ack", HEADERS, self._acknowledge), self._take_counts)

    def _take_counts(self, answer: Response) -> None:
        if answer.status != 200 or json.loads(answer.body)["accepted"] != self._count:
            raise SystemExit(f"Not an answer to measure: {answer}")
        self.latencies_ms.append(1000 * (self._pulled_s + time.perf_counter() - self._began_s))
        self.messages += self._count
        self._pull()


def main(port: int, count: int, most: int, seconds: float, pause_s: float) -> None:
    loop = Loop()
    workers = [Worker(loop, port, most, pause_s) for _ in range(count)]
    began_s = time.perf_counter()
    loop.run_while(lambda: time.perf_counter() < began_s + seconds)
    messages = sum(worker.messages for worker in workers)
    took_s = time.perf_counter() - began_s
    # Those who come next have room for leases.
    for worker in workers:
        worker.is_stopped = True
    loop.run_while(lambda: not all(worker.is_idle for worker in workers))
    latencies_ms = [each for worker in workers for each in worker.latencies_ms]
    print(
        json.dumps(
            {
                "messages": sum(worker.messages for worker in workers),
                "empty": sum(worker.empty for worker in workers),
                "requests_per_s": messages / took_s,
                "p50_ms": quantile(latencies_ms, 0.5),
                "p99_ms": quantile(latencies_ms, 0.99),
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]))
