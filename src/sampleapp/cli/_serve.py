"""``sampleapp serve``: run the service."""

from __future__ import annotations

import click

__all__ = ["serve"]


class _PassedOn(click.Command):
    """A command that passes on all its arguments, ``--help`` and ``--`` included."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept all arguments unparsed."""
        ctx.params["options"] = tuple(args)
        return []


@click.command(cls=_PassedOn, add_help_option=False, short_help="Run the service.")
def serve(*, options: tuple[str, ...]) -> None:
    """Run the service until Ctrl-C or SIGTERM."""
    from sampleapp.service.serve import serve

    serve(options)
