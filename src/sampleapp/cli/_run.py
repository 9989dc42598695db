"""Running a coroutine in the reactor from a click command."""

from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from sampleapp.cli._output import INTERRUPTED, CommandFailed, interrupt_output, note

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IReactorTime

    from sampleapp.client import ClientError


SILENCE_S = 3.0
GIVE_A_TOKEN = "Put a token into the environment variable SAMPLEAPP_TOKEN, or into a file for --token-file."  # noqa: S105 -- no token
OTHER_TOKEN = "It may have expired, been replaced, or be for another service: ask the operator for another."  # noqa: S105 -- no token
ASK_FOR_RIGHTS = "The operator of the service can grant the right."


def run(command: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    """
    Run the reactor until a command is done, and return or raise as the command did.

    Ctrl-C and SIGTERM cancel the command, which then ends the process with `INTERRUPTED`, unless it
    handles the `twisted.internet.defer.CancelledError`; a second signal cancels its handling of the first.
    Connections that a command leaves open end with the process. Waiting for them would only give signals one
    more moment to arrive.

    :param command: is called with the reactor.
    """
    from twisted.internet import reactor, task
    from twisted.internet.defer import CancelledError, Deferred
    from twisted.python.failure import Failure

    from sampleapp.concurrency.monotonic_time import use_monotonic_time

    failures: list[Failure] = []

    def main(reactor: Any) -> Deferred[None]:
        # For a failure, react() would log a traceback. click shows it as a sentence.
        running = Deferred.fromCoroutine(command(reactor)).addErrback(failures.append)
        ended: Deferred[None] = Deferred()
        running.addBoth(lambda _: ended.callback(None))

        def interrupted(_number: int, _frame: object) -> None:
            reactor.callFromThread(running.cancel)
            interrupt_output()

        # Twisted does not replace another handler of SIGINT. Its own stops the reactor, and logs an error if
        # the reactor is stopping already.
        signal.signal(signal.SIGINT, interrupted)
        # Twisted replaces the handler of SIGTERM when the reactor starts.
        reactor.callWhenRunning(signal.signal, signal.SIGTERM, interrupted)

        def terminated() -> Deferred[None]:
            running.cancel()
            return ended

        # The shutdown waits, since a command may have to clean up.
        reactor.addSystemEventTrigger("before", "shutdown", terminated)
        return running

    use_monotonic_time(reactor)
    previous = signal.getsignal(signal.SIGINT)
    try:
        task.react(main)
    except SystemExit:
        if not failures:
            return
    finally:
        signal.signal(signal.SIGINT, previous)
    if isinstance(failures[0].value, CancelledError):
        raise click.exceptions.Exit(INTERRUPTED)
    failures[0].raiseException()


_Result = TypeVar("_Result")


def note_waiting(awaited: Deferred[_Result], *, clock: IReactorTime, url: str) -> Deferred[_Result]:
    """Print a sentence if a response takes long, so that no command waits in silence."""
    return after_silence(awaited, clock=clock, call=lambda: note(f"Waiting for {url} to answer."))


def after_silence(
    awaited: Deferred[_Result], *, clock: IReactorTime, call: Callable[[], None]
) -> Deferred[_Result]:
    """Call a function if a response takes more than `SILENCE_S`."""
    timer = clock.callLater(SILENCE_S, call)

    def ended(result: _Result) -> _Result:
        if timer.active():
            timer.cancel()
        return result

    return awaited.addBoth(ended)


def start_it() -> str:
    """Return sentences on what to do about a service that cannot be reached, by the origin of its URL."""
    context = click.get_current_context(silent=True)
    source = None if context is None else context.get_parameter_source("url")
    url = "give its URL with --url or SAMPLEAPP_URL"
    if source is ParameterSource.COMMANDLINE:
        url = "correct the URL in --url"
    elif source is ParameterSource.ENVIRONMENT:
        url = "correct the URL in SAMPLEAPP_URL"
    return f"Is the service running? Start it with: sampleapp serve. Or {url}."


def command_failure(error: ClientError, *, outcome: str = "") -> CommandFailed:
    """
    Convert a client's error to sentences that tell a person what to do.

    :param outcome: a sentence about the possible effect of the request in spite of the error.
    """
    from sampleapp.client import Forbidden, ServiceUnreachable, TLSFailed, Unauthorized

    sentences = [str(error), *([outcome] if outcome else [])]
    if isinstance(error, ServiceUnreachable) and not isinstance(error, TLSFailed):
        sentences.append(start_it())
    elif isinstance(error, Unauthorized):
        sentences.append(OTHER_TOKEN if error.has_token else GIVE_A_TOKEN)
    elif isinstance(error, Forbidden):
        sentences.append(ASK_FOR_RIGHTS)
    return CommandFailed(" ".join(sentences))
