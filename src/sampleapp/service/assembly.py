"""The assembly of the service: creates its parts and connects them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.threads import deferToThreadPool

from sampleapp import brokers
from sampleapp.access import Authenticator, HookVerifier
from sampleapp.access.current_callers import CurrentCallers
from sampleapp.concurrency.slices import Run
from sampleapp.errors import InvalidOption
from sampleapp.interfaces import IBroker, IReloadable
from sampleapp.logs import AccessLog, LogSettings, require_writable
from sampleapp.messages.headers import RecordedFields
from sampleapp.metrics import Families, MetricsPage, RequestCounts
from sampleapp.readings.changes import Changes
from sampleapp.readings.follower import ReadingsFollower
from sampleapp.service.application import Admin, Readiness, SampleAppService, Web
from sampleapp.service.config import Config
from sampleapp.service.listener import Listener
from sampleapp.service.reloads import Reloads, SchemaFiles
from sampleapp.validation.validation import Validation
from sampleapp.web import (
    AccessControl,
    AdminApp,
    App,
    Cors,
    Descriptors,
    Dispatch,
    Documentation,
    Exchange,
    Features,
    HostRule,
    HTTPServer,
    Limits,
    MetricsApp,
    OnResponse,
    Probes,
    Response,
    RouteTable,
    SampleApp,
    problem_response,
    rejection_in_form,
    response_to_failure,
)
from sampleapp.web.read.readings import GetRepresentation
from sampleapp.web.webhook_origins import answering_validations

_WAITING_FOR_VALIDATION: Final = 1 / 4
"""The part of the memory for bodies that may wait to be checked by schemas."""

_NewServer: TypeAlias = Callable[..., HTTPServer]


def build(
    config: Config,
    *,
    reactor: Any,
    broker: IBroker | None = None,
    descriptors: Descriptors | None = None,
    lost_lines: Counter[str] | None = None,
    now: Callable[[], float] = time.time,
) -> SampleAppService:
    """
    Create the service. Nothing of it runs yet.

    :param reactor: provides time, threads, and the interfaces that the endpoints need.
    :param broker: is used instead of the broker of the configuration.
    :param descriptors: of the process; unlimited by default.
    :param lost_lines: lost lines by log; those of the access log are counted here.
    :param now: the time of day, in seconds since the epoch.
    :raise StartUpError: the configuration is invalid.
    """

    def run(function: Callable[[], Any]) -> Deferred[Any]:
        return deferToThreadPool(reactor, reactor.getThreadPool(), function)

    reloads = Reloads(reactor, run=run)
    if broker is None:
        broker = _broker(config, reloads, reactor=reactor)
    follower = ReadingsFollower(broker=broker, topic=config.readings_topic, clock=reactor)
    readiness = Readiness(broker=broker, follower=follower)
    listeners = [Listener.from_description(description, reactor=reactor) for description in config.listen]
    recorded = RecordedFields(
        config.record_headers,
        has_content_type=config.has_record_content_type,
        parameters=config.record_queries,
    )
    callers = _callers(config, listeners, reloads, recorded_names=recorded.names, reactor=reactor, now=now)
    lost_lines = Counter() if lost_lines is None else lost_lines
    access_log = _access_log(config.log, reloads, clock=reactor, lost_lines=lost_lines)

    limits = config.limits if descriptors is None else config.limits.within(descriptors.for_connections)
    counts = RequestCounts(seconds=reactor.seconds)
    new_server = partial(
        make_server,
        reactor=reactor,
        descriptors=descriptors,
        on_response=counts.responded if access_log is None else _both(counts.responded, access_log.responded),
        on_stream_end=None if access_log is None else access_log.stream_ended,
        has_hsts=config.has_hsts,
        now=now,
    )

    validation = None
    if config.schemas:
        validation = Validation(reactor, limit=int(limits.max_body_memory * _WAITING_FOR_VALIDATION))
        schema_files = SchemaFiles(config.schemas, run=run, validation=validation)
        reloads.add("the schemas", schema_files.reload, schema_files.paths)
    metrics = MetricsPage(clock=reactor)
    metrics_app = MetricsApp(metrics.respond).app
    web = _web(
        config,
        broker=broker,
        get_representation=follower.representation,
        changes=follower.changes,
        get_reasons=readiness.reasons,
        get_warnings=readiness.warnings,
        reactor=reactor,
        limits=limits,
        recorded=recorded,
        authenticator=None if callers is None else callers.authenticator,
        hooks=None if callers is None else callers.hooks,
        validation=validation,
        listeners=listeners,
        # With an endpoint for operators, the metrics are there only.
        others=() if config.admin else (metrics_app,),
        new_server=new_server,
        run=run,
        now=now,
    )
    admin = _admin(
        config,
        probes=Probes(get_reasons=readiness.reasons, get_warnings=readiness.warnings),
        metrics=metrics_app,
        new_server=partial(new_server, limits=limits.for_admin()),
        run=run,
        clock=reactor,
    )
    metrics.show(
        Families(
            requests=counts,
            server=web.server,
            admin=None if admin is None else admin.server,
            broker=broker,
            follower=follower,
            streams=web.gateway.streams,
            reads=web.gateway.reads,
            idempotent_records=web.gateway.idempotent_records,
            work=web.gateway.work,
            rate_rejections={} if callers is None else callers.rejections,
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
        web=web,
        listeners=listeners,
        reloads=reloads,
        readiness=readiness,
        clock=reactor,
        callers=callers,
        admin=admin,
        access_log=access_log,
        validation=validation,
    )


def _web(
    config: Config,
    *,
    broker: IBroker,
    get_representation: GetRepresentation,
    changes: Changes,
    get_reasons: Callable[[], Sequence[str]],
    get_warnings: Callable[[], Sequence[str]],
    reactor: Any,
    limits: Limits,
    recorded: RecordedFields,
    new_server: _NewServer,
    run: Run,
    authenticator: Authenticator | None = None,
    hooks: HookVerifier | None = None,
    validation: Validation | None = None,
    listeners: Sequence[Listener] = (),
    others: Sequence[App] = (),
    now: Callable[[], float],
) -> Web:
    """
    Create the HTTP interface for callers, on the parts that it uses.

    :param get_reasons: returns the reasons why the service is not ready.
    :param get_warnings: returns problems that do not make it unready.
    :param new_server: `make_server` with the settings that all servers share.
    :param run: calls functions that take long in a thread.
    :param authenticator: authenticates callers; ``None`` if they need no credentials.
    :param validation: checks contents by schemas; ``None`` if they are not checked.
    """
    access_control = None
    if authenticator is not None:
        access_control = AccessControl(authenticator, seconds=reactor.seconds, max_body=limits.max_body)
    gateway = SampleApp(
        broker=broker,
        get_representation=get_representation,
        changes=changes,
        clock=reactor,
        access_control=access_control,
        allowed_origins=config.allowed_origins,
        limits=limits,
        recorded=recorded,
        records_caller=config.records_caller,
        hooks=hooks,
        validation=validation,
        now=now,
    )
    probes = Probes(
        get_reasons=get_reasons,
        get_warnings=get_warnings,
        may_see_reasons=_every_client if access_control is None else access_control.knows,
    )
    documentation = Documentation(run=run, clock=reactor)
    table = RouteTable(gateway.app, AdminApp(probes, documentation, access=gateway.access).app, *others)
    cors = Cors(config.allowed_origins, methods=table.methods) if config.allowed_origins else None
    host_rule = _host_rule(config) if access_control is None else None
    features = Features(
        is_guarded=access_control is not None,
        takes_certificates=any(listener.takes_certificates for listener in listeners),
        is_for_other_sites=cors is not None,
        has_hsts=config.has_hsts and any(listener.has_tls for listener in listeners),
        has_host_rule=host_rule is not None,
        recorded_parameters=config.record_queries,
    )
    documentation.show(table, features)
    dispatch = table.dispatch if cors is None else cors.answering_preflights(table.dispatch)
    if config.allowed_webhook_origins:
        dispatch = answering_validations(dispatch, config.allowed_webhook_origins)
    server = new_server(
        dispatch,
        limits=limits,
        extend_response=None if cors is None else cors.extend,
        host_rule=host_rule,
    )
    return Web(gateway, table, documentation, server)


def _broker(config: Config, reloads: Reloads, *, reactor: Any) -> IBroker:
    idempotency = brokers.IdempotencySettings(
        window_s=config.idempotency_window_s,
        is_enabled_for=config.idempotent_topics.__contains__,
        records_per_s=config.idempotency_rate,
    )
    work = brokers.WorkSettings(
        most_leases=config.limits.max_leases, lease_s=config.work_lease_s, attempts=config.work_attempts
    )
    try:
        broker = brokers.from_url(config.broker, reactor=reactor, idempotency=idempotency, work=work)
    except brokers.BrokerURLError as error:
        raise InvalidOption(f"--broker: {error}") from error
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
    now: Callable[[], float],
) -> CurrentCallers | None:
    """
    Read the callers file, if there is one.

    :raise StartUpError: it is invalid; or there is none, other machines can reach a listener, and the
        operator has not allowed that; or there is none, and records must have the caller.
    """
    if config.callers:
        callers = CurrentCallers(
            Path(config.callers),
            reactor=reactor,
            recorded_names=recorded_names,
            now=now,
            idempotent_topics=None if brokers.takes_all_keys(config.broker) else config.idempotent_topics,
        )
        reloads.add("the callers file", callers.reload, callers.paths)
        return callers
    if config.records_caller:
        raise InvalidOption("--record-caller needs --callers: without a callers file, no caller has a name.")
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


def _both(first: OnResponse, second: OnResponse) -> OnResponse:
    def on_response(exchange: Exchange, response: Response) -> None:
        first(exchange, response)
        second(exchange, response)

    return on_response


def _every_client(_request: object) -> bool:
    return True


def make_server(dispatch: Dispatch, **settings: Any) -> HTTPServer:
    """
    Create an HTTP server whose errors are problem documents, or as a client of REST Proxy reads them.

    :param settings: more arguments of `HTTPServer`.
    """
    return HTTPServer(
        dispatch,
        reject=problem_response,
        response_to=response_to_failure,
        form_rejection=rejection_in_form,
        **settings,
    )


def _admin(
    config: Config, *, probes: Probes, metrics: App, new_server: _NewServer, run: Run, clock: Any
) -> Admin | None:
    """Create the endpoint for operators: without credentials, readings or messages."""
    if config.admin is None:
        return None
    documentation = Documentation(run=run, clock=clock)
    table = RouteTable(AdminApp(probes, documentation).app, metrics)
    listener = Listener.from_description(config.admin, reactor=clock, option="--admin")
    host_rule = _host_rule(config) if listener.is_local else None
    features = Features(has_hsts=config.has_hsts and listener.has_tls, has_host_rule=host_rule is not None)
    documentation.show(table, features)
    return Admin(listener, new_server(table.dispatch, host_rule=host_rule))


def _host_rule(config: Config) -> HostRule | None:
    # With --open-to-everybody, a proxy or a network policy decides which clients reach the service.
    return None if config.is_open_to_everybody else HostRule(config.allowed_hosts)
