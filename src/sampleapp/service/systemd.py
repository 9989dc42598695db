"""
Notification of systemd about the state of the service, by the protocol of sd_notify(3).

The protocol is one datagram for each message. Of the packages that speak it, ``sdnotify`` may block, and has
had no release since 2017; those that bind libsystemd must be compiled.
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

_INTERVAL_S: Final = 1.0
_ABSTRACT: Final = "@"
_LONGEST_STATUS: Final = 500


class Notifier:
    """Sends messages to systemd without blocking."""

    _log = Logger()

    def __init__(self, address: str | None) -> None:
        """
        :param address: the value of ``NOTIFY_SOCKET``: the path of a Unix socket, or ``@`` and an abstract
            name. Without an address, nothing is sent.
        """
        self._address = address
        self._socket: socket.socket | None = None
        self._unsent: dict[str, bytes] = {}
        """By the variable that a message sets first, the oldest message first."""
        self._reasons: set[str] = set()
        """The reasons for which sending fails, since it last worked."""
        if not address:
            return
        if not address.startswith(("/", _ABSTRACT)):
            self._log.warn(
                "NOTIFY_SOCKET is neither a path nor an abstract name, so systemd gets no notifications: "
                "{address}",
                address=address,
            )
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(0)

    @property
    def is_on(self) -> bool:
        """True if messages are sent."""
        return self._socket is not None

    def send(self, *assignments: str) -> None:
        """
        Send a message, or keep it for later if it cannot be sent now.

        Of several unsent messages that set one variable, only the last is kept, such as the last ``STATUS``.
        So a long outage takes little memory, and loses neither ``READY`` nor ``STOPPING``.

        :param assignments: such as ``READY=1``.
        """
        if self._socket is not None:
            variable = assignments[0].partition("=")[0]
            self._unsent.pop(variable, None)
            self._unsent[variable] = "\n".join(assignments).encode()
            self.send_rest()

    def send_rest(self) -> None:
        """Send unsent messages: systemd's queue was full, or its socket was missing."""
        while self._socket is not None and self._unsent:
            variable, message = next(iter(self._unsent.items()))
            try:
                # Not connected, so that it also works after systemd has replaced its own socket.
                self._socket.sendto(message, self._destination())
            except BlockingIOError:
                return
            except OSError as error:
                self._log_failure(error)
                return
            del self._unsent[variable]
            if self._reasons:
                self._reasons.clear()
                self._log.info("systemd can be notified of the state of the service again")

    def _log_failure(self, error: OSError) -> None:
        reason = str(error)
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._log.warn(
                "systemd cannot be notified of the state of the service; trying again: {error}", error=reason
            )

    def _destination(self) -> str:
        address = self._address or ""
        # An abstract name begins with NUL (unix(7)).
        return f"\0{address[1:]}" if address.startswith(_ABSTRACT) else address

    def close(self) -> None:
        """Close the socket; unsent messages are lost."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Supervision:
    """
    Notifies systemd of the service's state, of its status in words, and that its watchdog may be reset.

    The reactor resets the watchdog, so that systemd restarts a service whose reactor is stuck.
    """

    _log = Logger()

    def __init__(
        self,
        *,
        notifier: Notifier,
        watchdog_s: float | None,
        clock: IReactorTime,
        reasons: Callable[[], Sequence[str]],
    ) -> None:
        """
        :param watchdog_s: systemd's watchdog interval in seconds; ``None`` for no watchdog.
        :param reasons: returns why the service is not ready; none if it is ready.
        """
        self._notifier = notifier
        self._has_watchdog = watchdog_s is not None
        # Half of the watchdog's interval, as sd_watchdog_enabled(3) recommends; at most that of the status.
        self._interval_s = _INTERVAL_S if watchdog_s is None else min(_INTERVAL_S, watchdog_s / 2)
        self._reasons = reasons
        self._status = ""
        self._reloading = 0
        self._is_stopping = False
        self._updates = LoopingCall(self._update)
        self._updates.clock = clock

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str], *, clock: IReactorTime, reasons: Callable[[], Sequence[str]]
    ) -> Supervision:
        """
        Configure it by the environment variables that systemd sets.

        :param environ: its ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID`` are read.
        """
        return cls(
            notifier=Notifier(environ.get("NOTIFY_SOCKET")),
            watchdog_s=_watchdog_s(environ),
            clock=clock,
            reasons=reasons,
        )

    def started(self) -> None:
        """Notify systemd that the service listens."""
        if self._notifier.is_on:
            self._notifier.send("READY=1")
            self._updates.start(self._interval_s)

    def reloading(self) -> None:
        """Notify systemd that files are being reloaded. Calls may overlap."""
        self._reloading += 1
        # Type=notify-reload compares the time (systemd.service(5)).
        self._notifier.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """
        Notify systemd that a reload has ended, whether or not the files are valid.

        It is sent when the last overlapping reload has ended; never while the service stops, since systemd
        would take the service for running again.
        """
        self._reloading -= 1
        if not self._reloading and not self._is_stopping:
            self._notifier.send("READY=1")

    def stopping(self) -> None:
        """Notify systemd that the service is stopping."""
        self._is_stopping = True
        self._notifier.send("STOPPING=1")
        self._send_status()

    def stopped(self) -> None:
        """End the notifications: the service has stopped."""
        if self._updates.running:
            self._updates.stop()
        self._notifier.close()

    def _update(self) -> None:
        self._notifier.send_rest()
        if self._has_watchdog:
            self._notifier.send("WATCHDOG=1")
        try:
            self._send_status()
        except Exception:  # noqa: BLE001 -- after any failure, the watchdog must still be reset
            self._log.failure("Could not determine the status of the service for systemd")

    def _send_status(self) -> None:
        if self._notifier.is_on:
            reasons = self._reasons()
            status = f"Not ready: {' '.join(reasons)}" if reasons else "Ready."
            if status != self._status:
                self._status = status
                self._notifier.send(f"STATUS={' '.join(status.split())[:_LONGEST_STATUS]}")


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    # With another PID, the watchdog is for a parent or a child of this process (sd_watchdog_enabled(3)).
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    with suppress(KeyError, ValueError):
        microseconds = int(environ["WATCHDOG_USEC"])
        return microseconds / 1_000_000 if microseconds > 0 else None
    return None
