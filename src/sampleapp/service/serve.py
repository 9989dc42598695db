"""
``sampleapp serve``: runs twistd as ``twistd -n --pidfile= sampleapp`` does, without its executable.

Log, signals and exit statuses are those of twistd. It is given the service here, instead of searching for
plugins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from twisted.application.service import ServiceMaker
from twisted.scripts import twistd

from sampleapp.service import tap

__all__ = ["serve"]


class Options(tap.Options):
    """The service's options, as ``sampleapp serve --help`` shows them."""

    command = "sampleapp serve"
    help_command = "sampleapp serve --help"


# mypy does not see what twistd chooses by the platform.
class _TwistdOptions(twistd.ServerOptions):  # type: ignore[name-defined,misc]
    # Twisted joins this, the name of the subcommand, and the subcommand's own synopsis.
    synopsis = "Usage: sampleapp"
    subCommands: ClassVar[list[list[Any]]] = [["serve", None, Options, "Run the service."]]  # noqa: N815


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
