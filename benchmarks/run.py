"""
Measure what sampleapp costs, on this machine, now.

Everything runs on loopback, with the records in a temporary directory: on a real disk, if what is said
of syncs is to mean anything (TMPDIR chooses another). Figures of different runs, or different machines,
cannot be compared; the ratios within a run can. CPU time is that of the measured process alone. The load
comes from one process, which is what bounds the requests a second of the cheapest answers.

    make bench                              everything
    python benchmarks/run.py --quick        to see that it works
    python benchmarks/run.py get producers  some of it
    python benchmarks/batches.py --help     what many messages in one request cost
    python benchmarks/growth.py --help      how costs grow with the work
    python benchmarks/clients.py --help     what slow clients, large uploads and many connections do to it
    python benchmarks/streams.py --help     what streams of events cost
    python benchmarks/work.py --help        what groups of workers cost
    python benchmarks/turns.py --help       how long a hostile request holds up all others
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from batches import measure_cost as measure_batches
from clients import burst, idle, overload
from growth import measure_growth
from kafka import compare_post_on_kafka, compare_producers, measure_unknown_topic
from kafka_leader import measure_kill_of_leader
from many_readings import measure_many_readings
from metrics import measure_metrics
from service import compare_get, count_fsyncs, measure_post, measure_process
from streams import measure_rate
from work import measure_work


def parts(*, scale: int, rounds: int) -> dict[str, Callable[[], None]]:
    requests = 20_000 // scale
    return {
        "get": lambda: compare_get(rounds=rounds, requests=requests),
        "post": lambda: measure_post(rounds=rounds, requests=requests),
        "fsyncs": lambda: count_fsyncs(requests=requests),
        "process": lambda: measure_process(messages=100_000 // scale, starts=rounds),
        "readings": lambda: measure_many_readings(
            sizes=[100_000 // scale, 1_000_000 // scale], records=2_000_000 // scale
        ),
        "metrics": measure_metrics,
        "burst": burst,
        "idle": idle,
        "overload": overload,
        "producers": lambda: compare_producers(rounds=rounds, messages=100_000 // scale),
        "post-on-kafka": lambda: compare_post_on_kafka(rounds=rounds, requests=requests),
        "batches": lambda: measure_batches(rounds=min(rounds, 3), messages=100_000 // scale),
        "unknown-topic": lambda: measure_unknown_topic(rounds=rounds),
        "leader": lambda: measure_kill_of_leader(rounds=rounds),
        "growth": lambda: measure_growth(scale=scale, rounds=min(rounds, 3)),
        "streams": lambda: measure_rate(scale=scale, broker=None),
        "work": lambda: measure_work(seconds=20 / scale),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(parts(scale=1, rounds=1))
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="few requests: to see that it works")
    options = parser.parse_args()
    unknown = set(options.parts) - set(names)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    scale, rounds = (10, 1) if options.quick else (1, 5)
    for name, measure in parts(scale=scale, rounds=rounds).items():
        if not options.parts or name in options.parts:
            measure()


if __name__ == "__main__":
    main()
