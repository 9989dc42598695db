"""``python -m sampleapp``: the ``sampleapp`` command. Without a command, it is ``serve``."""

import sys

from sampleapp.cli import main

if __name__ == "__main__":
    arguments = sys.argv[1:]
    if not arguments or arguments[0].startswith("-"):
        arguments = ["serve", *arguments]
    main(arguments, prog_name="python -m sampleapp")
