"""
The ``sampleapp`` command: publish messages, look at readings, read a topic.

What can be parsed is parsed before anything heavier than click is imported: ``--help`` answers at once.
"""

from __future__ import annotations

import click

from sampleapp.cli._consume import consume
from sampleapp.cli._publish import publish
from sampleapp.cli._readings import readings

__all__ = ["main"]

EPILOG = """
\b
Examples:
  sampleapp publish readings --key kitchen 21.5
  sampleapp readings --version 2
  sampleapp consume readings

Exit codes: 0 for success, 1 for failure, 2 for a command line that makes no sense.
"""


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="sampleapp", prog_name="sampleapp")
def main() -> None:
    """
    Talk to a running sampleapp service, or look into its broker.

    The service itself is started with: twistd -n sampleapp
    """


main.add_command(publish)
main.add_command(readings)
main.add_command(consume)
