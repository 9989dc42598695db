"""The service while it runs: its readiness, and the order in which its parts start and stop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec import Struct
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from sampleapp.access.current_callers import CurrentCallers
from sampleapp.interfaces import IBroker
from sampleapp.logs import AccessLog
from sampleapp.readings.follower import ReadingsFollower
from sampleapp.service.config import Config
from sampleapp.service.listener import Listener
from sampleapp.service.reloads import Reloads
from sampleapp.validation.validation import Validation
from sampleapp.web import Documentation, HTTPServer, RouteTable, SampleApp

_STOPPING = "The service is stopping."


class Readiness:
    """
    The readiness of the service: it can publish messages, and has read all readings once.

    The check answers at once, from the known state. After all readings have been read once, a failure of
    reading does not count: the readings become stale, but messages are accepted, and no other process would
    read further.
    """

    def __init__(self, *, broker: IBroker, follower: ReadingsFollower) -> None:
        self._broker = broker
        self._follower = follower
        self._is_stopping = False

    def stop(self) -> None:
        """Report not ready from now on: the service is shutting down."""
        self._is_stopping = True

    def reasons(self) -> list[str]:
        """
        Return why the service is not ready; none if it is ready.

        :return: sentences that any caller may see: they have no path, address or secret.
        """
        reasons = [_STOPPING] if self._is_stopping else []
        reasons += self._broker.health().public_reasons
        unavailable_reason = self._follower.unavailable_reason()
        if unavailable_reason is not None:
            reasons.append(unavailable_reason)
        return list(dict.fromkeys(reasons))

    def warnings(self) -> Sequence[str]:
        """Return problems that do not make the service unready; sentences as those of `reasons`."""
        return self._broker.health().warnings


_OPEN_ADMIN: Final = (
    "The endpoint for operators (--admin), {url}, is open to the network without credentials: let only "
    "operators reach it, by a firewall or a network policy."
)
_UNENCRYPTED_TOKENS: Final = (
    "Tokens of callers cross the network unencrypted to {url}, which has no TLS: listen with https:, or on "
    "this machine only, behind a proxy that has TLS."
)
_LAST_RECORDS_S: Final = 1.0
"""Seconds at the end of the drain in which only the broker finishes; at most half of the drain."""
_LAST_RESPONSES_S: Final = 1.0
"""How long the last responses may take to be sent, and the connections of operators to end."""
_STUCK_BROKER_S: Final = 6.0
"""How long to wait for a broker after its deadline; SQLite gives a disk that does not answer 5 s."""


class Admin(NamedTuple):
    """The endpoint for operators, and its server."""

    listener: Listener
    server: HTTPServer


class Web(Struct, frozen=True):
    """The HTTP interface for callers."""

    gateway: SampleApp
    table: RouteTable
    """All routes of the server."""
    documentation: Documentation
    server: HTTPServer


class SampleAppService(Service):
    """
    The running service: listeners, server, broker and readings.

    Not a `MultiService`, because that stops its children all at once, and the broker must outlive the last
    request.
    """

    name = "sampleapp"
    _log = Logger()

    def __init__(
        self,
        *,
        config: Config,
        broker: IBroker,
        follower: ReadingsFollower,
        web: Web,
        listeners: list[Listener],
        reloads: Reloads,
        readiness: Readiness,
        clock: IReactorTime,
        callers: CurrentCallers | None = None,
        admin: Admin | None = None,
        access_log: AccessLog | None = None,
        validation: Validation | None = None,
    ) -> None:
        """
        :param web: the interface for callers; its server listens at the listeners.
        :param listeners: the endpoints of the server.
        :param reloads: is started and stopped with the service.
        :param readiness: is told when the service begins to stop.
        :param callers: the callers with their rights; by default every client may do everything.
        :param admin: is stopped last, so that operators can see how the service ends.
        :param access_log: is opened at the start and closed at the end.
        :param validation: checks contents by schemas; its process is started and stopped with the service.
        :param clock: measures the time for stopping.
        """
        self._config = config
        self._broker = broker
        self.follower: Final = follower
        """Keeps the readings."""
        self.web: Final = web
        self._server = web.server
        self._listeners = listeners
        self._reloads = reloads
        self._readiness = readiness
        self._clock = clock
        self.callers: Final = callers
        """``None`` if requests need no credentials."""
        self._admin = admin
        self._access_log = access_log
        self._validation = validation
        self._is_listening = False

    @property
    def urls(self) -> list[str]:
        """The URLs of the listeners, once they listen."""
        return [listener.url for listener in self._listeners]

    def warnings(self) -> list[str]:
        """Return warnings about the configuration, before anything runs."""
        warnings = [
            _UNENCRYPTED_TOKENS.format(url=listener.url) for listener in self._unencrypted_listeners()
        ]
        if self._admin is not None and not self._admin.listener.is_local:
            warnings.append(_OPEN_ADMIN.format(url=self._admin.listener.url))
        return warnings

    def _unencrypted_listeners(self) -> list[Listener]:
        """Return the listeners to which callers send tokens over a network without TLS."""
        if self.callers is None:
            return []
        return [each for each in self._listeners if not each.has_tls and not each.is_local]

    def reasons(self) -> list[str]:
        """Return why the service is not ready, or none if it is; see `Readiness.reasons`."""
        return self._readiness.reasons()

    @property
    def requests_in_flight(self) -> int:
        """The number of requests without a complete response."""
        return self._server.requests_in_flight

    def reload(self) -> Deferred[bool]:
        """
        Reload all files that can be reloaded, such as the callers file.

        :return: fires, once all are reloaded, with True if all are valid. The previous version of an invalid
            file stays in use, and the log says why. Never fails.
        """
        return self._reloads.reload()

    def privilegedStartService(self) -> None:  # noqa: N802 -- Twisted's name
        """
        Open the ports, perhaps as a user with more privileges than the service has later.

        :raise StartUpError: a port cannot be opened.
        """
        super().privilegedStartService()
        for listener in self._listeners:
            on_rejected = partial(self._server.count_rejection, "client-certificate")
            listener.listen(self._server, on_certificate_rejected=on_rejected)
            if self.callers is None and not self._config.is_open_to_everybody:
                # Only now is it known which address a host name stands for.
                listener.require_local()
        if self._admin is not None:
            on_rejected = partial(self._admin.server.count_rejection, "client-certificate")
            self._admin.listener.listen(self._admin.server, on_certificate_rejected=on_rejected)
        self._is_listening = True

    def startService(self) -> None:  # noqa: N802 -- Twisted's name
        """
        Start everything. The broker connects in the background.

        :raise StartUpError: a port or the access log cannot be opened.
        """
        super().startService()
        # Not earlier, when the process may still belong to another user.
        if self._access_log is not None:
            self._access_log.open()
        if not self._is_listening:
            self.privilegedStartService()
        self._broker.start()
        self.follower.start()
        if self._validation is not None:
            self._validation.start()
        if self.callers is not None:
            self.callers.start()
        self._reloads.start()
        wanted, most = self._config.limits.max_connections, self._server.limits.max_connections
        if most < wanted:
            self._log.warn(
                "At most {most} connections can be open, not {wanted} (--max-connections): the process may "
                "not open more files (ulimit -n).",
                most=most,
                wanted=wanted,
            )
        for url in self.urls:
            self._log.info("Listening at {url}", url=url)
        for listener in self._unencrypted_listeners():
            self._log.warn(_UNENCRYPTED_TOKENS, url=listener.url)
        reachable = next((url for url in self.urls if url.startswith("http")), None)
        if reachable is not None:
            self._log.info("The documentation of the HTTP interface is at {url}", url=f"{reachable}docs")
        if self._admin is not None:
            self._log_admin(self._admin.listener)

    def _log_admin(self, listener: Listener) -> None:
        self._log.info("Listening for operators at {url}", url=listener.url)
        if not listener.is_local:
            self._log.warn(_OPEN_ADMIN, url=listener.url)

    def stopService(self) -> Deferred[None]:  # noqa: N802 -- Twisted's name
        """
        Report not ready; then accept no new connections, let requests in flight finish, and stop the broker.

        :return: fires with ``None`` when everything has ended. A second before the deadline, only the broker
            goes on storing records; at the deadline, unfinished requests fail, are answered, and are cut off.
        """
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        self._readiness.stop()
        await self._wait_for_load_balancers()
        timeout_s = self._config.drain_timeout_s
        last_records_s = min(_LAST_RECORDS_S, timeout_s / 2)
        deadline_s = self._clock.seconds() + timeout_s
        # Until then, a worker may need a new connection to answer.
        await self._wait(self.web.gateway.end_waits(), timeout_s=timeout_s / 2)
        for listener in self._listeners:
            await listener.stop()
        left_s = deadline_s - self._clock.seconds()
        await self._wait(
            self._server.drain(streams_within_s=left_s / 2), timeout_s=max(left_s - last_records_s, 0)
        )
        if self._server.connections:
            self._log.warn(
                "Requests on {count} connection(s) are unfinished after {waited_s:g} of {timeout_s:g} "
                "seconds (--drain-timeout).",
                waited_s=timeout_s - last_records_s,
                timeout_s=timeout_s,
                count=self._server.connections,
            )
        self._reloads.stop()
        if self._validation is not None:
            await self._wait(self._validation.stop(), timeout_s=_LAST_RESPONSES_S)
        if self.callers is not None:
            self.callers.stop()
        # Not waited for: the broker stops its followers within its own deadline.
        self.follower.stop()
        self.web.gateway.feeds.stop()
        left_s = max(deadline_s - self._clock.seconds(), last_records_s)
        if not await self._wait(self._broker.stop(deadline_s=left_s), timeout_s=left_s + _STUCK_BROKER_S):
            self._log.error("The broker did not stop in time; ending without it.")
        end_s = self._clock.seconds() + _LAST_RESPONSES_S
        await self._wait(self._server.wait_until_closed(), timeout_s=_LAST_RESPONSES_S)
        self._server.abort()
        if self._admin is not None:
            await self._admin.listener.stop()
            await self._wait(self._admin.server.drain(), timeout_s=max(end_s - self._clock.seconds(), 0))
            self._admin.server.abort()
        if self._access_log is not None:
            self._access_log.close()

    async def _wait_for_load_balancers(self) -> None:
        delay_s = self._config.drain_delay_s
        if delay_s:
            self._log.info(
                "Stopping: /ready answers 503; requests are served for {delay_s:g} more seconds, then the "
                "ports close.",
                delay_s=delay_s,
            )
            await deferLater(self._clock, delay_s)

    async def _wait(self, waiting: Deferred[None], *, timeout_s: float) -> bool:
        """Wait for a Deferred, and return True if it fired in time."""
        timer = self._clock.callLater(timeout_s, waiting.cancel)
        try:
            await waiting
        except CancelledError:
            return False
        if timer.active():
            timer.cancel()
        return True
