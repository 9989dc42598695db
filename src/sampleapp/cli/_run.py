"""From click's world to Twisted's, and back with an exit code."""

from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

from sampleapp.cli._output import INTERRUPTED, CommandFailed, interrupt_output

if TYPE_CHECKING:
    from sampleapp.client import ClientError

__all__ = ["START_IT", "explained", "run"]

START_IT = "Start it with: sampleapp serve"
GIVE_A_TOKEN = "Put one into the environment variable SAMPLEAPP_TOKEN, or into a file for --token-file."  # noqa: S105 -- no token
OTHER_TOKEN = (
    "It may be over, or replaced, or for another service: ask whoever runs the service for another one."  # noqa: S105 -- no token
)
ASK_FOR_RIGHTS = "Whoever runs the service can grant it."


def run(command: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    """
    Run the reactor until a command is done, and return or raise as the command did.

    Ctrl-C and SIGTERM cancel the command, which then ends the process with `INTERRUPTED`, unless it
    handles the `twisted.internet.defer.CancelledError`; a second one cancels what it does about that.
    Connections that a command leaves open end with the process: to wait for them would only be one more
    moment at which a signal can come.

    :param command: is called with the reactor.
    """
    from twisted.internet import task
    from twisted.internet.defer import CancelledError, Deferred
    from twisted.python.failure import Failure

    failures: list[Failure] = []

    def main(reactor: Any) -> Deferred[None]:
        # react() would log a traceback for a failure. What click knows how to show is for click.
        running = Deferred.fromCoroutine(command(reactor)).addErrback(failures.append)
        ended: Deferred[None] = Deferred()
        running.addBoth(lambda _: ended.callback(None))

        def interrupted(_number: int, _frame: object) -> None:
            reactor.callFromThread(running.cancel)
            interrupt_output()

        # Twisted leaves SIGINT alone if somebody else handles it. Its own handler stops the reactor, and
        # complains in the log if that happens to be stopping already.
        signal.signal(signal.SIGINT, interrupted)
        # It takes SIGTERM in any case, when the reactor starts.
        reactor.callWhenRunning(signal.signal, signal.SIGTERM, interrupted)

        def terminated() -> Deferred[None]:
            running.cancel()
            return ended

        # Waited for, since a command may have something to put away first.
        reactor.addSystemEventTrigger("before", "shutdown", terminated)
        return running

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


def explained(error: ClientError, *, outcome: str = "") -> CommandFailed:
    """
    Make of a client's error the sentences that tell a person what to do.

    :param outcome: a sentence about what the request may have done in spite of the error.
    """
    from sampleapp.client import Forbidden, ServiceUnreachable, TLSFailed, Unauthorized

    sentences = [str(error), *([outcome] if outcome else [])]
    if isinstance(error, ServiceUnreachable) and not isinstance(error, TLSFailed):
        sentences.append(f"Is the service running? {START_IT}")
    elif isinstance(error, Unauthorized):
        sentences.append(OTHER_TOKEN if error.has_token else GIVE_A_TOKEN)
    elif isinstance(error, Forbidden):
        sentences.append(ASK_FOR_RIGHTS)
    return CommandFailed(" ".join(sentences))
