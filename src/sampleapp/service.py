"""The whole service: what it is made of, and the order in which that starts and stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from sampleapp import brokers
from sampleapp.callers import CallersOfFile
from sampleapp.errors import StartUpError
from sampleapp.follower import ReadingsFollower
from sampleapp.interfaces import IBroker, IReloadable
from sampleapp.listener import Listener
from sampleapp.logs import AccessLog, LogSettings, require_writable
from sampleapp.metrics import Families, MetricsPage, RequestCounts
from sampleapp.options import Config
from sampleapp.readiness import Readiness
from sampleapp.reloads import Reloads
from sampleapp.web import (
    Answer,
    Cors,
    Descriptors,
    Dispatch,
    Documentation,
    Exchange,
    FrontDoor,
    HTTPServer,
    OnAnswer,
    Probes,
    RouteTable,
    answer_to_failure,
    refusal_in_form,
)

__all__ = ["Admin", "SampleApp", "build"]

_Part: TypeAlias = "Probes | MetricsPage"

_OPEN_ADMIN: Final = (
    "What is for operators (--admin) can be reached over the network, and asks nobody for credentials: let "
    "nobody else reach {url}, by a firewall or a network policy."
)
_LAST_ANSWERS_S: Final = 1.0
"""How long the answers that the broker's end brings about may take to get out."""


class Admin(NamedTuple):
    """What is for operators only."""

    listener: Listener
    server: HTTPServer


class SampleApp(Service):
    """
    The whole: connections, broker, and the readings between them.

    Not a `MultiService`, because that stops its children all at once, and the broker has to outlive the
    last request.
    """

    name = "sampleapp"
    _log = Logger()

    def __init__(
        self,
        *,
        config: Config,
        broker: IBroker,
        follower: ReadingsFollower,
        server: HTTPServer,
        listeners: list[Listener],
        reloads: Reloads,
        readiness: Readiness,
        clock: IReactorTime,
        callers: CallersOfFile | None = None,
        admin: Admin | None = None,
        access_log: AccessLog | None = None,
    ) -> None:
        """
        :param listeners: where the server is to be reached.
        :param reloads: what can be read again while all that runs.
        :param readiness: is told when the service begins to stop.
        :param callers: who may call; everybody by default.
        :param admin: outlives all the rest, so that operators can see how it ends.
        :param access_log: is open for as long as all that runs.
        :param clock: measures how long stopping may take.
        """
        self._config = config
        self._broker = broker
        self._follower = follower
        self._server = server
        self._listeners = listeners
        self._reloads = reloads
        self._readiness = readiness
        self._clock = clock
        self._callers = callers
        self._admin = admin
        self._access_log = access_log
        self._is_listening = False

    @property
    def urls(self) -> list[str]:
        """Where the service is reached, once it listens."""
        return [listener.url for listener in self._listeners]

    def warnings(self) -> list[str]:
        """What an operator should know of the configuration, before anything of it runs."""
        listener = None if self._admin is None else self._admin.listener
        return [] if listener is None or listener.is_local else [_OPEN_ADMIN.format(url=listener.url)]

    def reasons(self) -> list[str]:
        """Why the service is not ready to serve, see `Readiness.reasons`; none if it is."""
        return self._readiness.reasons()

    def reload(self) -> Deferred[bool]:
        """
        Read again what can be read again, such as files with the rights of callers.

        :return: fires, once that is done, with whether all of it could be used; what could not stays as it
            was, and the log says why. Never fails.
        """
        return self._reloads.reload()

    def privilegedStartService(self) -> None:  # noqa: N802 -- Twisted's name
        """
        Take the ports, perhaps as a user who may do more than the service later may.

        :raise StartUpError: one of them cannot be had.
        """
        super().privilegedStartService()
        for listener in self._listeners:
            listener.listen(self._server)
            if self._callers is None and not self._config.is_open_to_everybody:
                # A name may be that of another address than one has thought.
                _require_local(listener)
        if self._admin is not None:
            self._admin.listener.listen(self._admin.server)
        self._is_listening = True

    def startService(self) -> None:  # noqa: N802 -- Twisted's name
        """
        Start everything; what the broker needs time for goes on in the background.

        :raise StartUpError: a port cannot be had, or the access log cannot be opened.
        """
        super().startService()
        # Not before, when the process may be another user.
        if self._access_log is not None:
            self._access_log.open()
        if not self._is_listening:
            self.privilegedStartService()
        self._broker.start()
        self._follower.start()
        if self._callers is not None:
            self._callers.start()
        self._reloads.start()
        wanted, most = self._config.limits.max_connections, self._server.limits.max_connections
        if most < wanted:
            self._log.warn(
                "At most {most} connections will be open at once, not {wanted}: the process may have no more "
                "files open (ulimit -n).",
                most=most,
                wanted=wanted,
            )
        for url in self.urls:
            self._log.info("Listening at {url}", url=url)
        reachable = next((url for url in self.urls if url.startswith("http")), None)
        if reachable is not None:
            self._log.info("In a browser, {url} shows what can be asked of it", url=f"{reachable}docs")
        if self._admin is not None:
            self._log_admin(self._admin.listener)

    def _log_admin(self, listener: Listener) -> None:
        self._log.info("For operators, listening at {url}", url=listener.url)
        if not listener.is_local:
            self._log.warn(_OPEN_ADMIN, url=listener.url)

    def stopService(self) -> Deferred[None]:  # noqa: N802 -- Twisted's name
        """
        Say that the service is not ready; then take no new connections, let running requests finish, and stop
        the broker.

        :return: fires with ``None`` when everything has ended. Whatever still runs at the deadline is
            failed by the broker, answered, and cut off.
        """
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        self._readiness.stop()
        await self._let_load_balancers_notice()
        deadline_s = self._clock.seconds() + self._config.drain_timeout_s
        for listener in self._listeners:
            await listener.stop()
        await self._wait(self._server.drain(), timeout_s=self._config.drain_timeout_s)
        if self._server.connections:
            self._log.warn(
                "Requests were still running after {timeout_s} seconds, on {count} connection(s).",
                timeout_s=self._config.drain_timeout_s,
                count=self._server.connections,
            )
        self._reloads.stop()
        if self._callers is not None:
            self._callers.stop()
        # Not waited for: the broker stops whoever follows it, and has a deadline for that.
        self._follower.stop()
        await self._broker.stop(deadline_s=max(deadline_s - self._clock.seconds(), _LAST_ANSWERS_S))
        await self._wait(self._server.wait_until_closed(), timeout_s=_LAST_ANSWERS_S)
        self._server.abort()
        if self._admin is not None:
            await self._admin.listener.stop()
            await self._wait(self._admin.server.drain(), timeout_s=_LAST_ANSWERS_S)
            self._admin.server.abort()
        if self._access_log is not None:
            self._access_log.close()

    async def _let_load_balancers_notice(self) -> None:
        delay_s = self._config.drain_delay_s
        if delay_s:
            self._log.info(
                "Not ready any more; everything is served for {delay_s:g} seconds, then the ports close.",
                delay_s=delay_s,
            )
            await deferLater(self._clock, delay_s)

    async def _wait(self, waiting: Deferred[None], *, timeout_s: float) -> None:
        timer = self._clock.callLater(timeout_s, waiting.cancel)
        try:
            await waiting
        except CancelledError:
            return
        if timer.active():
            timer.cancel()


def build(config: Config, *, reactor: Any, descriptors: Descriptors | None = None) -> SampleApp:
    """
    Put a service together; nothing of it runs yet.

    :param reactor: provides time, threads, and everything that the endpoints ask for.
    :param descriptors: of the process; so many that it does not matter by default.
    :raise StartUpError: the configuration cannot work.
    """
    try:
        broker = brokers.from_url(config.broker, reactor=reactor)
    except brokers.BrokerURLError as error:
        raise StartUpError(f"--broker: {error}") from error
    broker.check()
    follower = ReadingsFollower(broker=broker, topic=config.readings_topic, clock=reactor)
    limits = config.limits
    if descriptors is not None:
        limits = limits.within(descriptors.for_connections)
    reloads = Reloads(reactor)
    if IReloadable.providedBy(broker) and broker.reloaded_paths:
        reloads.add(
            "the broker's certificates and credentials", broker.reload, map(str, broker.reloaded_paths)
        )
    readiness = Readiness(broker=broker, follower=follower)
    listeners = [Listener.from_description(description, reactor=reactor) for description in config.listen]
    callers = _callers(config, listeners, reactor=reactor)
    gate = None
    if callers is not None:
        gate = callers.gate
        reloads.add("the file of callers", callers.reload, callers.paths)
    front_door = FrontDoor(
        broker=broker,
        get_representation=follower.representation,
        clock=reactor,
        gate=gate,
        allowed_origins=config.allowed_origins,
        limits=limits,
    )
    counts = RequestCounts(seconds=reactor.seconds)
    access_log = _access_log(config.log, reloads, clock=reactor)
    on_answer = counts.answered if access_log is None else _both(counts.answered, access_log.answered)
    metrics = MetricsPage(clock=reactor)
    probes = Probes(
        get_reasons=readiness.reasons, may_see_reasons=(lambda _request: True) if gate is None else gate.knows
    )
    for_everybody: list[_Part] = [probes] if config.admin else [probes, metrics]
    documentation = _documentation(reactor)
    table = front_door.table(*((part.routes, part) for part in (*for_everybody, documentation)))
    cors = Cors(config.allowed_origins, methods=table.methods) if config.allowed_origins else None
    documentation.show(
        table,
        takes_certificates=any(listener.takes_certificates for listener in listeners),
        is_for_other_sites=cors is not None,
    )
    make_server = partial(
        HTTPServer,
        answer_to=answer_to_failure,
        form_refusal=refusal_in_form,
        reactor=reactor,
        descriptors=descriptors,
        on_answer=on_answer,
    )
    server = make_server(table.dispatch, limits=limits, cors=cors)
    # There, whoever asks may know why the service is not ready.
    for_operators: list[_Part] = [Probes(get_reasons=readiness.reasons), metrics]
    make_admin_server = partial(make_server, limits=limits.for_admin())
    admin = _admin(config, for_operators, reactor=reactor, make_server=make_admin_server)
    metrics.show(
        Families(
            requests=counts,
            server=server,
            admin=None if admin is None else admin.server,
            broker=broker,
            follower=follower,
            rate_refusals={} if callers is None else callers.refusals,
        )
    )
    for listener in listeners if admin is None else [*listeners, admin.listener]:
        listener.add_to(reloads)
    return SampleApp(
        config=config,
        broker=broker,
        follower=follower,
        server=server,
        listeners=listeners,
        reloads=reloads,
        readiness=readiness,
        clock=reactor,
        callers=callers,
        admin=admin,
        access_log=access_log,
    )


def _access_log(settings: LogSettings, reloads: Reloads, *, clock: IReactorTime) -> AccessLog | None:
    if not settings.access_log:
        return None
    require_writable(settings.access_log)
    access_log = AccessLog(path=settings.access_log, line_format=settings.access_log_format, clock=clock)
    reloads.add("the access log", access_log.reopen, is_written=True)
    return access_log


def _both(first: OnAnswer, second: OnAnswer) -> OnAnswer:
    def tell(exchange: Exchange, answer: Answer) -> None:
        first(exchange, answer)
        second(exchange, answer)

    return tell


def _callers(config: Config, listeners: Sequence[Listener], *, reactor: Any) -> CallersOfFile | None:
    """
    Find out who may call.

    :raise StartUpError: the file with that cannot be used; or everybody may, from other machines too, and
        nobody has said that this is wanted.
    """
    if config.callers:
        return CallersOfFile(Path(config.callers), reactor=reactor, max_body=config.limits.max_body)
    if not config.is_open_to_everybody:
        for listener in listeners:
            _require_local(listener)
    return None


def _require_local(listener: Listener) -> None:
    """
    See that an endpoint, where everybody may do everything, is for this machine only.

    :raise StartUpError: it is not, or that cannot be told.
    """
    if not listener.is_local:
        raise StartUpError(
            f"--listen {listener.description}: other machines can reach this, or it cannot be told that they "
            "cannot, and nothing says who may call. Say so in a file, with --callers FILE; or listen on this "
            "machine only, as with --listen tcp:8080:interface=127.0.0.1; or, if a proxy or a network policy "
            "lets in only those who may do everything, add --open-to-everybody."
        )


def _admin(
    config: Config,
    parts: Sequence[_Part],
    *,
    reactor: Any,
    make_server: Callable[[Dispatch], HTTPServer],
) -> Admin | None:
    """Make what is for operators only: it asks nobody for credentials, and neither reads nor publishes."""
    if config.admin is None:
        return None
    documentation = _documentation(reactor)
    (routes, first), *others = [(part.routes, part) for part in (*parts, documentation)]
    table = RouteTable(routes, first, *others)
    documentation.show(table)
    listener = Listener.from_description(config.admin, reactor=reactor, option="--admin")
    return Admin(listener, make_server(table.dispatch))


def _documentation(reactor: Any) -> Documentation:
    """Make what reads its files in a thread."""
    return Documentation(
        read=lambda read_files: deferToThreadPool(reactor, reactor.getThreadPool(), read_files), clock=reactor
    )
