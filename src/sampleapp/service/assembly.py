"""The assembly of the service: creates its parts and connects them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from twisted.internet.interfaces import IReactorTime
from twisted.internet.threads import deferToThreadPool

from sampleapp import brokers
from sampleapp.access.current_callers import CurrentCallers
from sampleapp.errors import StartUpError
from sampleapp.interfaces import IBroker, IReloadable
from sampleapp.logs import AccessLog, LogSettings, require_writable
from sampleapp.messages.request_headers import RecordedFields
from sampleapp.metrics import Families, MetricsPage, RequestCounts
from sampleapp.readings.follower import ReadingsFollower
from sampleapp.service.application import Admin, SampleAppService
from sampleapp.service.config import Config
from sampleapp.service.listener import Listener
from sampleapp.service.readiness import Readiness
from sampleapp.service.reloads import Reloads
from sampleapp.web import (
    AdminApp,
    Answer,
    Cors,
    Descriptors,
    Documentation,
    Exchange,
    Gate,
    HostRule,
    HTTPServer,
    MetricsApp,
    OnAnswer,
    Probes,
    RouteTable,
    SampleApp,
    answer_to_failure,
    problem_answer,
    refusal_in_form,
)

__all__ = ["build"]

_MakeServer: TypeAlias = Callable[..., HTTPServer]


def build(
    config: Config,
    *,
    reactor: Any,
    descriptors: Descriptors | None = None,
    lost_lines: Counter[str] | None = None,
) -> SampleAppService:
    """
    Create the service. Nothing of it runs yet.

    :param reactor: provides time, threads, and the interfaces that the endpoints need.
    :param descriptors: of the process; unlimited by default.
    :param lost_lines: lost lines by log; those of the access log are counted here.
    :raise StartUpError: the configuration is invalid.
    """
    reloads = Reloads(reactor)
    broker = _broker(config, reloads, reactor=reactor)
    follower = ReadingsFollower(broker=broker, topic=config.readings_topic, clock=reactor)
    readiness = Readiness(broker=broker, follower=follower)
    listeners = [Listener.from_description(description, reactor=reactor) for description in config.listen]
    recorded = RecordedFields(config.record_headers, has_content_type=config.has_record_content_type)
    callers = _callers(config, listeners, reloads, recorded_names=recorded.names, reactor=reactor)
    lost_lines = Counter() if lost_lines is None else lost_lines
    access_log = _access_log(config.log, reloads, clock=reactor, lost_lines=lost_lines)

    limits = config.limits if descriptors is None else config.limits.within(descriptors.for_connections)
    counts = RequestCounts(seconds=reactor.seconds)
    make_server = partial(
        HTTPServer,
        refuse=problem_answer,
        answer_to=answer_to_failure,
        form_refusal=refusal_in_form,
        reactor=reactor,
        descriptors=descriptors,
        on_answer=counts.answered if access_log is None else _both(counts.answered, access_log.answered),
        on_stream_end=None if access_log is None else access_log.stream_ended,
        has_hsts=config.has_hsts,
    )
    gate = None
    if callers is not None:
        gate = Gate(callers.authenticator, seconds=reactor.seconds, max_body=limits.max_body)
    gateway = SampleApp(
        broker=broker,
        get_representation=follower.representation,
        changes=follower.changes,
        clock=reactor,
        gate=gate,
        allowed_origins=config.allowed_origins,
        limits=limits,
        recorded=recorded,
        hooks=None if callers is None else callers.hooks,
    )
    metrics = MetricsPage(clock=reactor)
    server = _server(
        config,
        gateway=gateway,
        probes=Probes(
            get_reasons=readiness.reasons, may_see_reasons=_every_client if gate is None else gate.knows
        ),
        metrics=metrics,
        listeners=listeners,
        make_server=partial(make_server, limits=limits),
        reactor=reactor,
    )
    admin = _admin(
        config,
        probes=Probes(get_reasons=readiness.reasons),
        metrics=metrics,
        make_server=partial(make_server, limits=limits.for_admin()),
        reactor=reactor,
    )
    metrics.show(
        Families(
            requests=counts,
            server=server,
            admin=None if admin is None else admin.server,
            broker=broker,
            follower=follower,
            streams=gateway.streams,
            reads=gateway.reads,
            idempotent_records=gateway.idempotent_records,
            rate_refusals={} if callers is None else callers.refusals,
            hook_results={} if callers is None else callers.hooks.results,
            lost_lines=lost_lines,
        )
    )
    for listener in listeners if admin is None else [*listeners, admin.listener]:
        listener.add_to(reloads)
    return SampleAppService(
        config=config,
        broker=broker,
        follower=follower,
        gateway=gateway,
        server=server,
        listeners=listeners,
        reloads=reloads,
        readiness=readiness,
        clock=reactor,
        callers=callers,
        admin=admin,
        access_log=access_log,
    )


def _broker(config: Config, reloads: Reloads, *, reactor: Any) -> IBroker:
    idempotency = brokers.IdempotencySettings(
        window_s=config.idempotency_window_s,
        is_enabled_for=config.idempotent_topics.__contains__,
        records_per_s=config.idempotency_rate,
    )
    try:
        broker = brokers.from_url(config.broker, reactor=reactor, idempotency=idempotency)
    except brokers.BrokerURLError as error:
        raise StartUpError(f"--broker: {error}") from error
    broker.check()
    if IReloadable.providedBy(broker) and broker.reloaded_paths:
        reloads.add(
            "the broker's certificates and credentials", broker.reload, map(str, broker.reloaded_paths)
        )
    return broker


def _callers(
    config: Config,
    listeners: Sequence[Listener],
    reloads: Reloads,
    *,
    recorded_names: AbstractSet[str],
    reactor: Any,
) -> CurrentCallers | None:
    """
    Read the callers file, if there is one.

    :raise StartUpError: it is invalid; or there is none, other machines can reach a listener, and the
        operator has not allowed that.
    """
    if config.callers:
        callers = CurrentCallers(Path(config.callers), reactor=reactor, recorded_names=recorded_names)
        reloads.add("the callers file", callers.reload, callers.paths)
        return callers
    if not config.is_open_to_everybody:
        for listener in listeners:
            listener.require_local()
    return None


def _access_log(
    settings: LogSettings, reloads: Reloads, *, clock: IReactorTime, lost_lines: Counter[str]
) -> AccessLog | None:
    if not settings.access_log:
        return None
    require_writable(settings.access_log)
    access_log = AccessLog(
        path=settings.access_log,
        line_format=settings.access_log_format,
        clock=clock,
        lost_lines=lost_lines,
    )
    reloads.add("the access log", access_log.reopen, is_written=True)
    return access_log


def _both(first: OnAnswer, second: OnAnswer) -> OnAnswer:
    def on_answer(exchange: Exchange, answer: Answer) -> None:
        first(exchange, answer)
        second(exchange, answer)

    return on_answer


def _every_client(_request: object) -> bool:
    return True


def _server(
    config: Config,
    *,
    gateway: SampleApp,
    probes: Probes,
    metrics: MetricsPage,
    listeners: Sequence[Listener],
    make_server: _MakeServer,
    reactor: Any,
) -> HTTPServer:
    """Create the server for clients, with the metrics unless there is an endpoint for operators."""
    documentation = _documentation(reactor)
    admin = AdminApp(probes, documentation, access=gateway.access)
    apps = [admin.app] if config.admin else [admin.app, MetricsApp(metrics.answer).app]
    table = RouteTable(gateway.app, *apps)
    cors = Cors(config.allowed_origins, methods=table.methods) if config.allowed_origins else None
    host_rule = None if config.callers else _host_rule(config)
    documentation.show(
        table,
        takes_certificates=any(listener.takes_certificates for listener in listeners),
        is_for_other_sites=cors is not None,
        has_hsts=config.has_hsts and any(listener.has_tls for listener in listeners),
        has_host_rule=host_rule is not None,
    )
    return make_server(
        table.dispatch if cors is None else cors.answering_preflights(table.dispatch),
        extend_answer=None if cors is None else cors.extend,
        host_rule=host_rule,
    )


def _admin(
    config: Config, *, probes: Probes, metrics: MetricsPage, make_server: _MakeServer, reactor: Any
) -> Admin | None:
    """Create the endpoint for operators: without credentials, readings or messages."""
    if config.admin is None:
        return None
    documentation = _documentation(reactor)
    table = RouteTable(AdminApp(probes, documentation).app, MetricsApp(metrics.answer).app)
    listener = Listener.from_description(config.admin, reactor=reactor, option="--admin")
    host_rule = _host_rule(config) if listener.is_local else None
    documentation.show(
        table, has_hsts=config.has_hsts and listener.has_tls, has_host_rule=host_rule is not None
    )
    return Admin(listener, make_server(table.dispatch, host_rule=host_rule))


def _host_rule(config: Config) -> HostRule | None:
    # With --open-to-everybody, a proxy or a network policy decides which clients reach the service.
    return None if config.is_open_to_everybody else HostRule(config.allowed_hosts)


def _documentation(reactor: Any) -> Documentation:
    """Create the documentation, whose files are read and generated in a thread."""
    return Documentation(
        run=lambda function: deferToThreadPool(reactor, reactor.getThreadPool(), function), clock=reactor
    )
