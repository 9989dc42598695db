"""
The cost of an idempotency key: POST /messages with one, beside POST /messages without.

By default on SQLite: CPU of the service for each request, with a new key in each, and with one that was sent
before. The service parses a head once if requests repeat it, which those with a new key cannot. So they are
also compared with requests without a key that have another field with a new value. On Kafka, the median at
one connection shows the round trip that a key takes more.

    python benchmarks/idempotency.py                               on SQLite, about a minute
    python benchmarks/idempotency.py --broker kafka://HOST:PORT    on a cluster that creates the topic bench
    python benchmarks/idempotency.py --quick                       to see that it works
"""

from __future__ import annotations

import argparse

from servers import sampleapp
from tables import Rounds, heading, lines, ratio

__all__ = ["compare"]

SQLITE = "sqlite:records.sqlite3"
WITHOUT = ("without a key", "without a key, new head")
WITH_A_NEW_KEY = "with a new key"
KINDS = {
    WITHOUT[0]: "post",
    WITHOUT[1]: "post-numbered",
    WITH_A_NEW_KEY: "post-identified",
    "sent again": "post-again",
}
ANY_RATE = "1000000"


def compare(*, broker: str, rounds: int, requests: int) -> None:
    is_kafka = broker.startswith("kafka")
    options = ["--idempotent-topic", "bench", "--idempotency-rate", ANY_RATE] if is_kafka else []
    heading(f"POST /messages, about 100 bytes, on {broker.partition(':')[0]}")
    with sampleapp(broker=broker, readings=not is_kafka, options=options) as service:
        found: dict[int, Rounds] = {count: {name: [] for name in KINDS} for count in (64, 1)}
        # In turns; the first round is to warm up.
        for round_ in range(rounds + 1):
            for connections, each in found.items():
                for name, kind in KINDS.items():
                    count = requests if connections > 1 else requests // 8
                    figures = service.load(kind, connections=connections, requests=count)
                    if round_:
                        each[name].append(figures)
    for connections, each in found.items():
        lines({f"{name}, {connections} connection(s)": rounds_ for name, rounds_ in each.items()})
        for other in WITHOUT:
            aim = "none" if is_kafka else "at most 1.3"
            ratio(each, WITH_A_NEW_KEY, other, figure="cpu_us", aim=aim)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure POST /messages with an idempotency key.")
    parser.add_argument("--broker", default=SQLITE, help="as of the service; default: a new SQLite file")
    parser.add_argument("--quick", action="store_true", help="few requests")
    arguments = parser.parse_args()
    rounds, requests = (1, 400) if arguments.quick else (7, 8000)
    compare(broker=arguments.broker, rounds=rounds, requests=requests)


if __name__ == "__main__":
    main()
