"""
The service as a process that counts its objects: run by `long_run.py`.

    python benchmarks/object_probe.py FILE [options of sampleapp serve]

At SIGRTMIN, the number of objects that the garbage collector knows, after a collection, is written to FILE.
"""

from __future__ import annotations

import gc
import signal
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    file = Path(sys.argv[1])

    def count(*_: Any) -> None:
        gc.collect()
        # Those of the start are frozen, which get_objects() leaves out.
        file.write_text(f"{gc.get_freeze_count() + len(gc.get_objects())}")

    signal.signal(signal.SIGRTMIN, count)

    from sampleapp.service.tap import serve

    serve(sys.argv[2:])


if __name__ == "__main__":
    main()
