"""
The ``sampleapp`` command: run the service, publish, delete, print readings and records, work in groups,
create tokens and hooks.

Arguments are parsed before any module heavier than click is imported, so ``--help`` answers at once.
"""

from __future__ import annotations

import errno
import sys
from typing import Any

import click

from sampleapp import __version__
from sampleapp.cli._hook import hook
from sampleapp.cli._output import INTERRUPTED, discard_stdout, note, open_standard_streams
from sampleapp.cli._publish import delete, publish
from sampleapp.cli._read import consume, readings, topics
from sampleapp.cli._token import token
from sampleapp.cli._work import work
from sampleapp.files import system_error

__all__ = ["main"]

EPILOG = """
\b
Examples:
  sampleapp serve
  sampleapp publish readings --key kitchen 21.5
  sampleapp delete readings kitchen
  sampleapp readings --version 2
  sampleapp consume readings
  sampleapp topics
  sampleapp work orders billing -- ./bill
  sampleapp token thermometer --publish readings
  sampleapp hook github --scheme github --topic github

\b
Exit codes:
  0    success
  1    failure
  2    invalid command line
  3    the record was published, but the response could not be printed (publish, delete)
  130  interrupted
"""


class _Main(click.Group):
    """The command group, for standard streams that may be closed or full."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run it, and end the process."""
        open_standard_streams()
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            # click writes help to stdout directly.
            discard_stdout()
            if error.errno != errno.EBADF:
                note(f"Error: {system_error(error)}")
            sys.exit(0 if error.errno == errno.EBADF else 1)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Ctrl-C ends it as in `run`, at a prompt too."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):
            note("Interrupted.")
            raise click.exceptions.Exit(INTERRUPTED) from None


@click.group(cls=_Main, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sampleapp")
def main() -> None:
    """
    An HTTP gateway to Apache Kafka: publish messages with POST, get the response once they are stored, and
    read topics as pages or event streams.

    This command runs the service, sends requests to a running one, or reads its broker.
    """


class _PassedOn(click.Command):
    """A command that passes on all its arguments, ``--help`` and ``--`` included."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept all arguments unparsed."""
        ctx.params["options"] = tuple(args)
        return []


@click.command(cls=_PassedOn, add_help_option=False, short_help="Run the service.")
def serve(*, options: tuple[str, ...]) -> None:
    """Run the service until Ctrl-C or SIGTERM."""
    from sampleapp.service.tap import serve

    serve(options)


main.add_command(serve)
main.add_command(publish)
main.add_command(delete)
main.add_command(readings)
main.add_command(consume)
main.add_command(topics)
main.add_command(work)
main.add_command(token)
main.add_command(hook)
