"""
What systemd is told of the service, by the protocol of sd_notify(3).

The protocol is one datagram for each message. Of the packages that speak it, ``sdnotify`` may block, and has
had no release since 2017; those that bind libsystemd have to be compiled.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

__all__ = ["Notifier", "Supervision"]

_INTERVAL_S: Final = 1.0
_ABSTRACT: Final = "@"
_MOST_UNSENT: Final = 16
_LONGEST_STATUS: Final = 500


class Notifier:
    """Sends messages to systemd, and never waits for it."""

    _log = Logger()

    def __init__(self, address: str | None) -> None:
        """
        :param address: as ``NOTIFY_SOCKET`` has it: the path of a Unix socket, or, after an ``@``, an
            abstract name. Without one, nothing is sent.
        """
        self._address = address
        self._socket: socket.socket | None = None
        self._unsent: list[bytes] = []
        if not address:
            return
        if not address.startswith(("/", _ABSTRACT)):
            self._log.warn(
                "NOTIFY_SOCKET is neither a path nor an abstract name, so systemd is told nothing: {address}",
                address=address,
            )
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(0)

    @property
    def is_on(self) -> bool:
        """Whether anybody is told anything."""
        return self._socket is not None

    def send(self, *assignments: str) -> None:
        """
        Send a message, or keep it for the next time if systemd has no room for it now.

        :param assignments: such as ``READY=1``.
        """
        if self._socket is not None:
            self._unsent.append("\n".join(assignments).encode())
            # What it has not heard of by then, it need not hear of.
            del self._unsent[:-_MOST_UNSENT]
            self.send_rest()

    def send_rest(self) -> None:
        """Send what systemd had no room for."""
        while self._socket is not None and self._unsent:
            try:
                self._socket.sendto(self._unsent[0], self._where())
            except BlockingIOError:
                return
            except OSError as error:
                self._log.warn(
                    "systemd cannot be told of the state of the service: {error}", error=str(error)
                )
                self.close()
                return
            del self._unsent[0]

    def _where(self) -> str:
        address = self._address or ""
        # An abstract name begins with NUL (unix(7)).
        return f"\0{address[1:]}" if address.startswith(_ABSTRACT) else address

    def close(self) -> None:
        """Send nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Supervision:
    """
    Keeps systemd up to date: with the state of the service, with a sentence on it, and with a sign of life.

    The sign of life comes from the reactor, so that a service whose reactor is stuck is started again.
    """

    def __init__(
        self,
        *,
        notifier: Notifier,
        watchdog_s: float | None,
        clock: IReactorTime,
        reasons: Callable[[], Sequence[str]],
    ) -> None:
        """
        :param watchdog_s: within how many seconds systemd wants a sign of life; ``None`` if it wants none.
        :param reasons: why the service is not ready; none if it is.
        """
        self._notifier = notifier
        self._sign_of_life = ("WATCHDOG=1",) if watchdog_s is not None else ()
        # In half of the time, as sd_watchdog_enabled(3) recommends, and often enough for the sentence.
        self._interval_s = _INTERVAL_S if watchdog_s is None else min(_INTERVAL_S, watchdog_s / 2)
        self._reasons = reasons
        self._status = ""
        self._reloading = 0
        self._is_stopping = False
        self._telling = LoopingCall(self._tell)
        self._telling.clock = clock

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str], *, clock: IReactorTime, reasons: Callable[[], Sequence[str]]
    ) -> Supervision:
        """
        Do what systemd asks for in the environment of the process.

        :param environ: the variables ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID`` are looked at.
        """
        return cls(
            notifier=Notifier(environ.get("NOTIFY_SOCKET")),
            watchdog_s=_watchdog_s(environ),
            clock=clock,
            reasons=reasons,
        )

    def started(self) -> None:
        """The service listens."""
        if self._notifier.is_on:
            self._notifier.send("READY=1")
            self._telling.start(self._interval_s)

    def reloading(self) -> None:
        """Files are read again, perhaps while they still are for an earlier time."""
        self._reloading += 1
        # Type=notify-reload compares the time (systemd.service(5)).
        self._notifier.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """
        They were read, whether or not they could be used.

        systemd hears of it once nothing is being read any more; not while the service stops, since that would
        look as if it ran again.
        """
        self._reloading -= 1
        if not self._reloading and not self._is_stopping:
            self._notifier.send("READY=1")

    def stopping(self) -> None:
        """The service stops, which takes a while."""
        self._is_stopping = True
        self._notifier.send("STOPPING=1")
        self._tell_status()

    def stopped(self) -> None:
        """Nothing is left to be told of."""
        if self._telling.running:
            self._telling.stop()
        self._notifier.close()

    def _tell(self) -> None:
        self._notifier.send_rest()
        if self._sign_of_life:
            self._notifier.send(*self._sign_of_life)
        self._tell_status()

    def _tell_status(self) -> None:
        if self._notifier.is_on:
            reasons = self._reasons()
            status = f"Not ready: {' '.join(reasons)}" if reasons else "Ready."
            if status != self._status:
                self._status = status
                self._notifier.send(f"STATUS={' '.join(status.split())[:_LONGEST_STATUS]}")


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    # It is not meant for a process that was forked, or whose parent was asked (sd_watchdog_enabled(3)).
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    with suppress(KeyError, ValueError):
        microseconds = int(environ["WATCHDOG_USEC"])
        return microseconds / 1_000_000 if microseconds > 0 else None
    return None
