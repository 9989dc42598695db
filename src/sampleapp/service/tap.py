"""
The service that ``twistd sampleapp`` and ``sampleapp serve`` run: signals, log, exit status of its process.

``sampleapp serve`` runs twistd as ``twistd -n --pidfile= sampleapp`` does, without its executable. Log,
signals and exit statuses are those of twistd. It is given the service here, instead of searching for plugins.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from types import FrameType
from typing import Any, ClassVar, Final, NoReturn, TypeAlias

from twisted.application.service import IServiceCollection, Service, ServiceMaker
from twisted.internet.defer import Deferred
from twisted.logger import ILogObserver, LogEvent, Logger, LogLevel, formatEvent, globalLogPublisher
from twisted.python.components import Componentized
from twisted.python.usage import UsageError
from twisted.scripts import twistd
from zope.interface import implementer

from sampleapp.concurrency.monotonic_time import use_monotonic_time
from sampleapp.errors import InvalidOption, StartUpError, visible
from sampleapp.files import system_error
from sampleapp.logs import BackgroundWriter, ProcessLog, process_log, require_possible
from sampleapp.service.application import SampleAppService
from sampleapp.service.assembly import build
from sampleapp.service.command_line import CommandLine
from sampleapp.service.systemd import Supervision
from sampleapp.web import Descriptors

_log: Final = Logger()

_SWITCH_INTERVAL_S: Final = 0.0001
"""After how many seconds a waiting thread asks for the interpreter; Python's default is 0.005."""

_MALLOC_OPTIONS: Final = {-3: 1024 * 1024, -1: 16 * 1024 * 1024}
"""For ``mallopt`` of glibc: the size of blocks outside of the heap, and of the free end that it keeps."""

_LAST_LINES_S: Final = 1.0
"""How long writing the last lines of the log may take, in seconds."""

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_OTHER_RELOAD_SIGNALS: Final = (signal.SIGUSR1, signal.SIGUSR2)
"""Scripts that rotate the logs of other servers send them. By default, they end a process at once."""
_SAME_SIGNAL_S: Final = 0.5
"""A signal within this time after the first one does not count as a second one."""
_SignalHandler: TypeAlias = Callable[[int, "FrameType | None"], Any]

_USAGE_ERROR: Final = 2
"""The exit status for an invalid command line, as in click."""

_UNKNOWN_VARIABLE: Final = "The environment variable {variable} is unknown, and has no effect{hint}"


class Options(CommandLine):
    """Options that end the process with one sentence if they are invalid."""

    help_command = "twistd sampleapp --help"
    """The command that explains them."""

    def parseOptions(self, options: Sequence[str] | None = None) -> None:  # noqa: N802 -- Twisted's name
        """
        Parse the arguments after ``twistd sampleapp``.

        :raise SystemExit: one of them is invalid; with status 2, as the other commands end. For a UsageError,
            twistd prints the whole help before the sentence, and up to Twisted 26.4 ends with status 0.
        """
        try:
            super().parseOptions(options)
        except UsageError as error:
            sentence = str(error)
            end = "" if sentence.endswith((".", "?", ")")) else "."
            sys.stderr.write(f"sampleapp: {sentence}{end} See: {self.help_command}\n")
            raise SystemExit(_USAGE_ERROR) from error


class TwistdService(Service):
    """The service in a process of its own."""

    name = "sampleapp"

    def __init__(
        self, sampleapp: SampleAppService, *, supervision: Supervision, log: ProcessLog | None = None
    ) -> None:
        """
        :param sampleapp: the service that is run.
        :param supervision: notifies systemd of its state.
        :param log: the log of the process, instead of twistd's default.
        """
        self._sampleapp = sampleapp
        self._supervision = supervision
        self._log = log

    def setServiceParent(self, parent: IServiceCollection) -> None:  # noqa: N802 -- Twisted's name
        """Join an application, and set its log observer, which twistd reads next."""
        super().setServiceParent(parent)
        if self._log is not None and isinstance(parent, Componentized):
            parent.setComponent(ILogObserver, self._log.observer)

    def privilegedStartService(self) -> None:  # noqa: N802 -- Twisted's name
        """
        Open the ports.

        :raise StartUpError: a port cannot be opened. The process will end with its message.
        """
        super().privilegedStartService()
        with _message_without_traceback():
            self._sampleapp.privilegedStartService()

    def startService(self) -> None:  # noqa: N802 -- Twisted's name
        """
        Start the service.

        :raise StartUpError: the access log cannot be opened. The process will end with its message.
        """
        super().startService()
        with _message_without_traceback():
            self._sampleapp.startService()
        # The objects that exist now stay for good. Traversing them in each collection made one response in a
        # hundred late.
        gc.collect()
        gc.freeze()
        # By default, glibc puts blocks of up to 32 MiB on the heap, once one of that size was freed. To grow
        # there, a body is copied, which took 8 ms of a turn for 16 MiB. Other C libraries lack the function.
        with suppress(AttributeError):
            for option, value in _MALLOC_OPTIONS.items():
                ctypes.CDLL(None).mallopt(option, value)
        # With each system call, the reactor's thread releases the interpreter for a moment, too short for
        # another thread to wake, and so restarts its waiting time. With the default interval, SQLite's thread
        # waited for 0.1 s in the middle of a commit while a large body arrived.
        sys.setswitchinterval(_SWITCH_INTERVAL_S)

    def reload(self, reason: str) -> None:
        """
        Reload all files that can be reloaded, if the service runs.

        :param reason: for the log: the name of a signal.
        """
        if self.running:
            _log.info("{reason}: reloading files, and reopening the access log.", reason=reason)
            self._supervision.reloading()
            self._sampleapp.reload().addCallback(lambda _: self._supervision.reloaded())

    def stopService(self) -> Deferred[None]:  # noqa: N802 -- Twisted's name
        """Stop the service; fires with ``None`` when everything has ended."""
        super().stopService()
        stopping = self._sampleapp.stopService()
        self._supervision.stopping()
        return stopping.addCallback(lambda _: self._supervision.stopped())

    def end_at_once(self, number: int) -> None:
        """End the process by a signal, waiting only for the log; called by the signal's handler."""
        for each in _STOP_SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        _log.warn(
            "Second signal ({signal}): ending at once; {count} unfinished request(s) are cut off.",
            signal=signal.Signals(number).name,
            count=self._sampleapp.requests_in_flight,
        )
        if self._log is not None and self._log.writer is not None:
            self._log.writer.finish(_LAST_LINES_S)
        os.kill(os.getpid(), number)
        # The first process of a container cannot end itself by a signal.
        os._exit(128 + number)


@contextmanager
def _message_without_traceback() -> Iterator[None]:
    try:
        yield
    except StartUpError:
        # Only after an Exception, twistd removes its PID file and reports to the process that started the
        # daemon. So this is not a SystemExit, and the traceback must be suppressed.
        sys.excepthook = _show_message
        raise


def _show_message(_type: object, error: BaseException, _traceback: object) -> None:
    sys.stderr.write(f"sampleapp: {visible(str(error), keeping='')}\n")


def _handle_stop_signals(end_at_once: Callable[[int], None]) -> None:
    """
    Let the first signal stop the service, and a later one end the process at once.

    A duplicate of the first signal is ignored: timeout(1) signals its child, then the whole group; Ctrl-C in
    a terminal reaches the group, and a parent in it may forward the signal.
    """
    signals = count()
    first_s = math.inf

    def first_or_second(handler: _SignalHandler) -> _SignalHandler:
        def on_signal(number: int, frame: FrameType | None) -> None:
            nonlocal first_s
            # Another signal may interrupt this function, but not next().
            if next(signals) == 0:
                first_s = time.monotonic()
                handler(number, frame)
            elif time.monotonic() - first_s >= _SAME_SIGNAL_S:
                end_at_once(number)

        return on_signal

    for number in _STOP_SIGNALS:
        handler = signal.getsignal(number)
        # Not a handler if a shell has the signal ignored for a background process.
        if callable(handler):
            signal.signal(number, first_or_second(handler))


def _write_in_background(writer: BackgroundWriter, reactor: Any) -> None:
    """Write the log in a thread while the reactor runs; at the end, wait up to a second for it."""
    # The thread starts after twistd has forked. Until then, lines are written at once.
    reactor.callWhenRunning(writer.start)
    reactor.addSystemEventTrigger("after", "shutdown", writer.finish, _LAST_LINES_S)
    # For the end of the reactor by an error. When twistd ends by a signal, atexit is not called.
    atexit.register(writer.finish, _LAST_LINES_S)


def _reload_on(number: signal.Signals, service: TwistdService, reactor: Any) -> None:
    """
    Reload files on a signal, and then call the handler that it has.

    Even if the signal was ignored, as ``nohup`` ignores SIGHUP so that it does not end the process.
    """
    before = signal.getsignal(number)

    def reload(number: int, frame: FrameType | None) -> None:
        reactor.callFromThread(service.reload, signal.Signals(number).name)
        if callable(before):
            before(number, frame)

    signal.signal(number, reload)


def makeService(options: Options, reactor: Any = None) -> TwistdService:  # noqa: N802 -- Twisted's name
    """
    Create the service that ``twistd`` runs.

    :param reactor: the global one by default; from now on its time is `time.monotonic`.
    :raise SystemExit: the service cannot start with its configuration; the message says why.
    """
    if reactor is None:
        from twisted.internet import reactor
    # Before the first timer is set.
    use_monotonic_time(reactor)
    config = options.config
    try:
        if options.parent is not None:
            require_possible(options.parent, config.log)
        if options["check"]:
            with _warnings_logged() as logged:
                sampleapp = build(config, reactor=reactor)
            _report_check(options, [*logged, *sampleapp.warnings()])
        descriptors = Descriptors.of_process(for_connections=config.limits.descriptors)
        lost_lines: Counter[str] = Counter()
        sampleapp = build(config, reactor=reactor, descriptors=descriptors, lost_lines=lost_lines)
        supervision = Supervision.from_environment(os.environ, clock=reactor, reasons=sampleapp.reasons)
        log = None
        if options.parent is not None:
            log = process_log(options.parent, config.log, lost_lines=lost_lines)
        service = TwistdService(sampleapp, supervision=supervision, log=log)
    except (StartUpError, OSError) as error:
        sentence = str(error) if isinstance(error, StartUpError) else system_error(error)
        # It may quote the name of a file, or a part of its content.
        sys.stderr.write(f"sampleapp: {visible(options.with_origins(sentence), keeping='')}\n")
        raise SystemExit(_USAGE_ERROR if isinstance(error, InvalidOption) else 1) from error
    if log is not None and log.writer is not None:
        _write_in_background(log.writer, reactor)
    _reload_on(signal.SIGHUP, service, reactor)
    for number in _OTHER_RELOAD_SIGNALS:
        # After twistd has installed its own handler, which rotates the file of --logfile.
        reactor.callWhenRunning(_reload_on, number, service, reactor)
    for variable, hint in options.unknown_variables:
        _log.warn(_UNKNOWN_VARIABLE, variable=variable, hint=hint)
    reactor.callWhenRunning(supervision.started)
    # After the reactor has installed its own handlers.
    reactor.callWhenRunning(_handle_stop_signals, service.end_at_once)
    return service


@contextmanager
def _warnings_logged() -> Iterator[list[str]]:
    """Collect logged warnings, while no log is written yet."""
    warnings: list[str] = []

    @implementer(ILogObserver)
    def observe(event: LogEvent) -> None:
        if event.get("log_level") is LogLevel.warn:
            warnings.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)
    try:
        yield warnings
    finally:
        globalLogPublisher.removeObserver(observe)


def _report_check(options: Options, warnings: Sequence[str]) -> NoReturn:
    sys.stdout.write(f"sampleapp would start with this configuration:\n{options.summary}\n")
    # So that the warnings follow it in a file or a pipe, too.
    sys.stdout.flush()
    for warning in warnings:
        sys.stderr.write(f"sampleapp: {visible(warning, keeping='')}\n")
    for variable, hint in options.unknown_variables:
        sys.stderr.write(f"sampleapp: {_UNKNOWN_VARIABLE.format(variable=variable, hint=hint)}\n")
    raise SystemExit(0)


class _ServeOptions(Options):
    """The service's options, as ``sampleapp serve --help`` shows them."""

    command = "sampleapp serve"
    help_command = "sampleapp serve --help"


# mypy does not see what twistd chooses by the platform.
class _TwistdOptions(twistd.ServerOptions):  # type: ignore[name-defined,misc]
    # Twisted joins this, the name of the subcommand, and the subcommand's own synopsis.
    synopsis = "Usage: sampleapp"
    subCommands: ClassVar[list[list[Any]]] = [["serve", None, _ServeOptions, "Run the service."]]  # noqa: N815


def serve(options: Sequence[str]) -> None:
    """
    Run the service until a signal ends the process.

    :param options: the arguments after ``twistd sampleapp``.
    :raise SystemExit: one of them is invalid, or the service cannot start; the message says why.
    """
    config = _TwistdOptions()
    config.parseOptions(["--nodaemon", "--pidfile=", "serve", *options])
    # twistd keeps the plugins that it has found there; tahoe-lafs sets it as well.
    config.loadedPlugins = {
        "serve": ServiceMaker(
            name="sampleapp", module="sampleapp.service.tap", description="The service.", tapname="sampleapp"
        )
    }
    twistd.runApp(config)
