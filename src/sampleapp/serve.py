"""
``sampleapp serve``: the service as ``twistd -n --pidfile= sampleapp`` runs it, without a ``twistd`` to find.

It is twistd that runs, with its log, its signals and its exit codes; only that it is told here which
service there is, instead of looking for plugins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from twisted.application.service import ServiceMaker
from twisted.scripts import twistd

from sampleapp import tap

__all__ = ["serve"]


class Options(tap.Options):
    """The service's options, as ``sampleapp serve --help`` shows them."""

    command = "sampleapp serve"
    help_command = "sampleapp serve --help"


# mypy does not see what twistd chooses by the platform.
class _TwistdOptions(twistd.ServerOptions):  # type: ignore[name-defined,misc]
    # Twisted puts a usage line together from this, the name of the subcommand, and that one's own synopsis.
    synopsis = "Usage: sampleapp"
    subCommands: ClassVar[list[list[Any]]] = [["serve", None, Options, "Run the service."]]  # noqa: N815


def serve(options: Sequence[str]) -> None:
    """
    Run the service until a signal ends it, and the process with it.

    :param options: those of ``twistd sampleapp``.
    :raise SystemExit: one of them is wrong, or the service cannot start; says why, in a sentence.
    """
    config = _TwistdOptions()
    config.parseOptions(["--nodaemon", "--pidfile=", "serve", *options])
    # As tahoe-lafs does it: this is where twistd keeps the plugins that it has found.
    config.loadedPlugins = {
        "serve": ServiceMaker(
            name="sampleapp", module="sampleapp.tap", description="The service.", tapname="sampleapp"
        )
    }
    twistd.runApp(config)
