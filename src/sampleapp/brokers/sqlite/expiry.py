"""Deletion of expired identities, a few at a time, while the broker runs."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.sqlite.faults import StoreError
from sampleapp.brokers.sqlite.store import Store
from sampleapp.brokers.sqlite.thread import PrivateThread

__all__ = ["Expiry"]

_INTERVAL_S = 60.0
_PAUSE_S = 0.02
"""The pause between two transactions, in which records are stored."""


class Expiry:
    """Looks for expired identities every minute, and deletes them in small transactions."""

    _log = Logger()

    def __init__(self, *, store: Store, thread: PrivateThread, clock: IReactorTime) -> None:
        """:param clock: for the intervals. Identities expire by the clock of the store."""
        self._store = store
        self._thread = thread
        self._clock = clock
        self._next: IDelayedCall | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin a minute from now: the start has other work."""
        self._later(_INTERVAL_S)

    def stop(self) -> None:
        """Begin no more transactions. One may still be running on the thread."""
        self._stopped = True
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _later(self, delay_s: float) -> None:
        if not self._stopped:
            self._next = self._clock.callLater(delay_s, self._begin)

    def _begin(self) -> None:
        self._next = None
        Deferred.fromCoroutine(self._forget_some())

    async def _forget_some(self) -> None:
        is_more = False
        try:
            is_more = await self._thread.run(self._store.forget_some)
        except StoreError:
            # Publishing meets the same error, or a probe does, and reports it. An expired identity does not
            # count, even if it is still there.
            pass
        except Exception:  # noqa: BLE001 -- nothing cancels this, and the next time may work
            self._log.failure("Deleting expired identities from {path} failed", path=str(self._store.path))
        self._later(_PAUSE_S if is_more else _INTERVAL_S)
