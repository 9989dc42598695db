"""
The client's own worker: ``python -m tests.chaos.client_worker URL TOPIC GROUP LOCK_S BAD``.

It prints the same lines as ``ShareWorker.java``. Its handler accepts, releases and rejects messages, and now
and then needs longer than a lease. Messages whose offset can be divided by BAD are never accepted.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import sys
import time

from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater

from sampleapp.client import Client, Lease, Rejected, Released
from sampleapp.model import Acknowledged, LeasedRecord

__all__ = ["main"]

_PARALLEL = 3
_SLOW_ONE_IN = 40
_RELEASES, _REJECTS = 0.05, 0.01


class _RecordingClient(Client):
    """Prints its messages, and the answers to its acknowledgements."""

    def __init__(self, url: str) -> None:
        super().__init__(base_url=url, reactor=reactor, repeat_for_s=10)
        self._numbers: dict[tuple[int, int], int] = {}
        self._new = itertools.count()

    def pull(self, **options: object) -> Deferred[Lease | None]:
        begun_s = time.time()

        def show(lease: Lease | None) -> Lease | None:
            if lease is not None:
                message = lease.messages[0]
                place = _place(lease)
                self._numbers[place] = next(self._new)
                messages = [[*place, message.attempts, message.record.value.decode()]]
                _print(lease=self._numbers[place], begun=begun_s, ended=time.time(), messages=messages)
            return lease

        return super().pull(**options).addCallback(show)

    def ack(self, *, lease: Lease, **results: object) -> Deferred[Acknowledged]:
        number = self._numbers[_place(lease)]
        [verdict] = [name for name in results if name in ("accept", "release", "reject")]
        _print(lease=number, begun=time.time(), verdicts=[[*_place(lease), verdict]])

        def show(result: object) -> object:
            outcome = "done" if isinstance(result, Acknowledged) else "unknown"
            _print(lease=number, ended=time.time(), outcomes=[[_place(lease)[0], outcome]])
            return result

        return super().ack(lease=lease, **results).addBoth(show)


def _place(lease: Lease) -> tuple[int, int]:
    record = lease.messages[0].record
    return record.partition, record.offset


def _print(**members: object) -> None:
    print(json.dumps(members), flush=True)


def main() -> None:
    """Work until SIGTERM."""
    url, topic, group, lock_s, bad = sys.argv[1:]

    async def handle(message: LeasedRecord) -> None:
        is_slow = not random.randrange(_SLOW_ONE_IN)
        await deferLater(reactor, float(lock_s) if is_slow else random.uniform(0, 0.2))
        drawn = random.random()
        if message.record.offset % int(bad) == 0 or drawn < _RELEASES:
            raise Released
        if drawn < _RELEASES + _REJECTS:
            raise Rejected

    def begin() -> None:
        working = _RecordingClient(url).work(
            topic=topic, group=group, handler=handle, parallel=_PARALLEL, on_trouble=lambda _: None
        )
        signal.signal(signal.SIGTERM, lambda *_: reactor.callFromThread(working.cancel))
        working.addErrback(lambda failure: failure.trap(CancelledError) and None)
        working.addErrback(lambda failure: failure.printTraceback(sys.stderr))
        working.addBoth(lambda _: reactor.stop())

    reactor.callWhenRunning(begin)
    reactor.run(installSignalHandlers=False)


if __name__ == "__main__":
    main()
