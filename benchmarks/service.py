"""What the service costs: its two endpoints, with the brokers that need no cluster, and its process."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
from pathlib import Path

from readings import READINGS
from servers import aiohttp_readings, name_of_aiohttp, sampleapp, stock_klein
from tables import Rounds, heading, line, lines, medians, ratio

__all__ = ["compare_get", "count_fsyncs", "measure_post", "measure_process"]


def compare_get(*, rounds: int, requests: int) -> None:
    heading("GET /, 100 readings, 64 connections")
    aiohttp = name_of_aiohttp()
    with contextlib.ExitStack() as running:
        service = running.enter_context(sampleapp())
        servers = {"sampleapp": service, "stock Klein": running.enter_context(stock_klein())}
        if aiohttp is not None:
            servers[aiohttp] = running.enter_context(aiohttp_readings())
        for server in servers.values():
            server.load("get", connections=64, requests=requests // 4)
        found: Rounds = {name: [] for name in servers}
        for _ in range(rounds):
            for name, server in servers.items():
                found[name].append(server.load("get", connections=64, requests=requests))
        one = medians([service.load("get", connections=1, requests=requests // 4) for _ in range(rounds)])
    lines(found)
    line("sampleapp, 1 connection", one)
    ratio(found, "sampleapp", "stock Klein", figure="cpu_us", aim="at most 0.54, which is 60 / 112")
    if aiohttp is not None:
        ratio(found, "sampleapp", aiohttp, figure="cpu_us", aim="at most 0.5")


def measure_post(*, rounds: int, requests: int) -> None:
    heading("POST /messages, about 100 bytes")
    with contextlib.ExitStack() as servers:
        services = {
            name: servers.enter_context(sampleapp(broker=broker))
            for name, broker in (("sqlite", "sqlite:records.sqlite3"), ("memory", "memory:"))
        }
        klein = servers.enter_context(stock_klein())
        figures: dict[str, list[dict[str, float]]] = {}
        # In turns, so that a machine that becomes slower meanwhile does so for all of them.
        for _ in range(rounds + 1):
            for name, service in services.items():
                for connections, share in ((1, 8), (64, 1)):
                    figures.setdefault(f"{name}, {connections} connection(s)", []).append(
                        service.load("post", connections=connections, requests=requests // share)
                    )
            figures.setdefault("for comparison: GET of stock Klein, 64", []).append(
                klein.load("get", connections=64, requests=requests)
            )
    # The first of each was to warm up.
    results = {name: medians(each[1:]) for name, each in figures.items()}
    for name, each in results.items():
        line(name, each)
    yardstick = results["for comparison: GET of stock Klein, 64"]["cpu_us"]
    for name in services:
        share = results[f"{name}, 64 connection(s)"]["cpu_us"] / yardstick
        print(f"POST on {name} / GET of stock Klein, CPU: {share:.2f}")


def count_fsyncs(*, requests: int) -> None:
    print("\nfsyncs a message, sqlite, 64 connections")
    strace = shutil.which("strace")
    if strace is None:
        print("not measured: it takes strace (Debian: apt-get install strace)")
        return
    with tempfile.NamedTemporaryFile() as summary:
        prefix = [strace, "-f", "-c", "-e", "trace=fsync,fdatasync", "-o", summary.name]
        with sampleapp(prefix=prefix) as service:
            service.load("post", connections=64, requests=requests)
        rows = [row.split() for row in Path(summary.name).read_text().splitlines()]
    calls = sum(int(row[3]) for row in rows if row and row[-1] in ("fsync", "fdatasync"))
    # Each of the readings was published alone: one fsync each.
    calls -= len(READINGS)
    print(f"{calls} fsyncs for {requests} messages: {requests / calls:.1f} messages a fsync (the floor: 10)")


def measure_process(*, messages: int, starts: int) -> None:
    print("\nThe process")
    firsts = []
    for _ in range(starts):
        with sampleapp() as service:
            firsts.append(service.first_answer_s)
    print(f"from start to first answer: {1000 * statistics.median(firsts):.0f} ms")
    with sampleapp() as service:
        print(f"resident, idle with 100 readings: {service.resident_mib():.1f} MiB")
        service.load("post", connections=64, requests=messages)
        print(f"resident, after {messages} messages: {service.resident_mib():.1f} MiB")
