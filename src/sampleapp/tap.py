"""What ``twistd sampleapp`` runs: the edge between the service and the process around it."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import Any, Final, NoReturn

from twisted.application.service import IServiceCollection, Service
from twisted.internet.defer import Deferred
from twisted.logger import ILogObserver, Logger
from twisted.python.components import Componentized
from twisted.python.usage import UsageError

from sampleapp.errors import StartUpError
from sampleapp.logs import log_observer, require_possible
from sampleapp.options import Options as ServiceOptions
from sampleapp.service import SampleApp, build
from sampleapp.systemd import Supervision
from sampleapp.web import Descriptors

__all__ = ["Options", "TwistdService", "makeService"]

_log: Final = Logger()

_SWITCH_S: Final = 0.0001
"""How long a thread waits for the interpreter before it asks for it, in seconds; Python's own is 0.005."""

_NO_VARIABLE: Final = "{variable} is no variable of the service, and has no effect{hint}"


class Options(ServiceOptions):
    """The options, whose mistakes end the process with one sentence."""

    help_command = "twistd sampleapp --help"
    """Where they are explained."""

    def parseOptions(self, options: Sequence[str] | None = None) -> None:  # noqa: N802 -- Twisted's name
        """
        Parse what follows ``twistd sampleapp``.

        :raise SystemExit: something is wrong with it. For a UsageError, twistd prints the whole help with
            the sentence last, and up to Twisted 26.4 ends as if nothing were wrong.
        """
        try:
            super().parseOptions(options)
        except UsageError as error:
            sentence = str(error).rstrip(".")
            raise SystemExit(f"sampleapp: {sentence}. See: {self.help_command}") from error


class TwistdService(Service):
    """The service as the only thing in its process."""

    name = "sampleapp"

    def __init__(
        self, sampleapp: SampleApp, *, supervision: Supervision, observer: ILogObserver | None = None
    ) -> None:
        """
        :param sampleapp: what is run.
        :param supervision: is told what it does.
        :param observer: writes the log of the process, if not what twistd would make itself.
        """
        self._sampleapp = sampleapp
        self._supervision = supervision
        self._observer = observer

    def setServiceParent(self, parent: IServiceCollection) -> None:  # noqa: N802 -- Twisted's name
        """Belong to an application, and tell twistd, which asks it next, what writes the log."""
        super().setServiceParent(parent)
        if self._observer is not None and isinstance(parent, Componentized):
            parent.setComponent(ILogObserver, self._observer)

    def privilegedStartService(self) -> None:  # noqa: N802 -- Twisted's name
        """
        Take the ports.

        :raise StartUpError: one of them cannot be had. The process will end with that sentence.
        """
        super().privilegedStartService()
        with _shown_as_sentence():
            self._sampleapp.privilegedStartService()

    def startService(self) -> None:  # noqa: N802 -- Twisted's name
        """
        Start the service.

        :raise StartUpError: the access log cannot be opened. The process will end with that sentence.
        """
        super().startService()
        with _shown_as_sentence():
            self._sampleapp.startService()
        # What is there now stays for good. Looking through it again and again is what made one answer
        # in a hundred late.
        gc.collect()
        gc.freeze()
        # With each system call, the reactor's thread lets go of the interpreter for a moment that is too
        # short for another thread to wake, whose wait begins anew then. So SQLite's thread waited for a tenth
        # of a second in the middle of a commit while a large body came.
        sys.setswitchinterval(_SWITCH_S)

    def reload(self) -> None:
        """Read again what can be read again, while the service runs."""
        if self.running:
            self._supervision.reloading()
            self._sampleapp.reload().addCallback(lambda _: self._supervision.reloaded())

    def stopService(self) -> Deferred[None]:  # noqa: N802 -- Twisted's name
        """Stop the service; fires with ``None`` when everything has ended."""
        super().stopService()
        stopping = self._sampleapp.stopService()
        self._supervision.stopping()
        return stopping.addCallback(lambda _: self._supervision.stopped())


@contextmanager
def _shown_as_sentence() -> Iterator[None]:
    try:
        yield
    except StartUpError:
        # Only for an Exception does twistd remove its pid file, and tell the process that started the daemon;
        # so this is no SystemExit, and must be kept from being shown as a traceback.
        sys.excepthook = _show_sentence
        raise


def _show_sentence(_type: object, error: BaseException, _traceback: object) -> None:
    sys.stderr.write(f"sampleapp: {error}\n")


def _heed_first_signal_only() -> None:
    """
    Let the process end by the signal that comes first.

    A second one would hurry nothing, and leave a traceback in the log: the reactor cannot be stopped twice.
    """
    before = count()

    def first_only(handler: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], Any]:
        # Another one may come in the middle of this, but not of next().
        return lambda number, frame: handler(number, frame) if next(before) == 0 else None

    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        # A shell may have it ignored, for what runs in the background.
        if callable(handler):
            signal.signal(number, first_only(handler))


def _reload_on_hangup(service: TwistdService, reactor: Any) -> None:
    """
    Read files again when SIGHUP comes.

    Also where it was ignored before, as ``nohup`` does: what matters there is that it ends nothing.
    """

    def reload(_number: int, _frame: FrameType | None) -> None:
        reactor.callFromThread(service.reload)

    signal.signal(signal.SIGHUP, reload)


def makeService(options: Options, reactor: Any = None) -> TwistdService:  # noqa: N802 -- Twisted's name
    """
    Make the service that ``twistd`` runs.

    :param reactor: the global one by default.
    :raise SystemExit: the service cannot start as it is configured; says why, in a sentence.
    """
    if reactor is None:
        from twisted.internet import reactor
    config = options.config
    try:
        if options.parent is not None:
            require_possible(options.parent, config.log)
        if options["check"]:
            _tell_that_it_would_start(options, build(config, reactor=reactor).warnings())
        descriptors = Descriptors.of_process(for_connections=config.limits.descriptors)
        sampleapp = build(config, reactor=reactor, descriptors=descriptors)
        supervision = Supervision.from_environment(os.environ, clock=reactor, reasons=sampleapp.reasons)
        service = TwistdService(
            sampleapp,
            supervision=supervision,
            observer=None if options.parent is None else log_observer(options.parent, config.log),
        )
    except StartUpError as error:
        raise SystemExit(f"sampleapp: {options.explained(str(error))}") from error
    _reload_on_hangup(service, reactor)
    for variable, hint in options.surplus_variables:
        _log.warn(_NO_VARIABLE, variable=variable, hint=hint)
    reactor.callWhenRunning(supervision.started)
    # The reactor has its handlers by then.
    reactor.callWhenRunning(_heed_first_signal_only)
    return service


def _tell_that_it_would_start(options: Options, warnings: Sequence[str]) -> NoReturn:
    sys.stdout.write(f"sampleapp would start with this configuration:\n{options.summary}\n")
    # In a file or a pipe, too, what follows comes after it.
    sys.stdout.flush()
    for warning in warnings:
        sys.stderr.write(f"sampleapp: {warning}\n")
    for variable, hint in options.surplus_variables:
        sys.stderr.write(f"sampleapp: {_NO_VARIABLE.format(variable=variable, hint=hint)}\n")
    raise SystemExit(0)
