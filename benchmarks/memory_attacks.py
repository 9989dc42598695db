"""
Attacks on the memory of the service: its peak, and how honest clients fare meanwhile.

Each attack holds what it has for some seconds, against a service of its own, and comes again where it is
rejected. Honest clients publish small messages, bodies of 100 KB and batches, and read pages; each must be
answered with 200 during the attack. Nothing is sent but to services on loopback that this starts and ends.

    python benchmarks/memory_attacks.py                    all, about five minutes
    python benchmarks/memory_attacks.py pages streams      some of them
    python benchmarks/memory_attacks.py --broker memory:
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import math
import re
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from clients import peak_mib
from servers import HERE, Server, free_port, sampleapp

sys.path.append(str(HERE.parent))
from tests.support.memory_attackers import (
    ATTACKS,
    HONEST,
    HOST,
    Attacker,
    Honest,
    callers_file,
    fill_topics,
)

__all__: list[str] = []

HELD_S = 15.0
MIB = 1024 * 1024


def certificate(directory: Path) -> Path:
    """Write a certificate of its own, and its key, into one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = directory / "server.pem"
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(private + signed.public_bytes(pem))
    file.chmod(0o600)
    return file


def counted_mib(server: Server) -> float:
    """Return what the service itself has counted (``--max-body-memory``)."""
    asked = urllib.request.Request(f"{server.url}metrics", headers={"Authorization": f"Bearer {HONEST}"})
    with urllib.request.urlopen(asked) as answer:
        found = re.search(rb"^sampleapp_body_memory_bytes (\S+)", answer.read(), re.MULTILINE)
    return float(found[1]) / MIB if found else math.nan


@contextlib.contextmanager
def service(broker: str) -> Iterator[tuple[Server, int]]:
    """Start the service with a callers file and a TLS endpoint, whose port is returned, too."""
    with tempfile.TemporaryDirectory() as name:
        directory, tls_port = Path(name), free_port()
        pem = certificate(directory)
        options = ["--callers", str(callers_file(directory))]
        options += ["--listen", f"https:{tls_port}:interface={HOST}:privateKey={pem}:certKey={pem}"]
        url = broker if broker != "sqlite" else f"sqlite:{directory / 'records.sqlite3'}"
        with sampleapp(broker=url, readings=False, options=options, path="live") as server:
            yield server, tls_port


async def attack(server: Server, tls_port: int, names: Sequence[str]) -> None:
    await fill_topics(server.port)
    await asyncio.sleep(1)
    before = peak_mib(server)
    honest = Honest(server.port)
    attackers = {name: Attacker(server.port, ATTACKS[name][0], tls_port=tls_port) for name in names}
    tasks = [asyncio.ensure_future(ATTACKS[name][1](each)) for name, each in attackers.items()]
    # Once the attack stands.
    await asyncio.sleep(4)
    tasks.append(asyncio.ensure_future(honest.run()))
    await asyncio.wait(tasks, timeout=HELD_S)
    counted = counted_mib(server)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    most = peak_mib(server)
    await asyncio.sleep(10)
    rejected = ", ".join(f"{name} {dict(each.statuses)}" for name, each in attackers.items() if each.statuses)
    print(
        f"{' '.join(names) if len(names) < len(ATTACKS) else 'all':14} {before:4.0f} -> {most:5.0f} MiB "
        f"({counted:.0f} counted), 10 s after {server.resident_mib():5.0f} ({counted_mib(server):.0f})",
        f"honest: {honest}",
        f"rejected: {rejected or 'none'}",
        *(f"never 200: {each}" for each in honest.starved),
        sep="; ",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("attacks", nargs="*", help=f"only these: {', '.join(ATTACKS)}, together")
    parser.add_argument("--broker", default="sqlite", help="the URL of the broker")
    options = parser.parse_args()
    for names in [[name] for name in options.attacks or ATTACKS] + ([] if options.attacks else [[*ATTACKS]]):
        with service(options.broker) as (server, tls_port):
            asyncio.run(attack(server, tls_port, names))


if __name__ == "__main__":
    main()
