"""How figures are put together and printed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TypeAlias

__all__ = ["Figures", "Rounds", "heading", "line", "lines", "medians", "ratio"]

Figures: TypeAlias = dict[str, float]
Rounds: TypeAlias = dict[str, list[Figures]]
"""Of each that is compared, what every round has shown; the rounds were run in turns."""

_CALLED = {"cpu_us": "CPU", "requests_per_s": "rate"}


def medians(rounds: Sequence[Figures]) -> Figures:
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def heading(title: str, *, unit: str = "requests") -> None:
    print(f"\n{title:42}{'µs CPU':>9}{unit + '/s':>12}{'p50 ms':>9}{'p99 ms':>9}")


def line(name: str, figures: Figures) -> None:
    print(
        f"{name:42}{figures['cpu_us']:9.1f}{figures['requests_per_s']:12.0f}"
        f"{figures['p50_ms']:9.2f}{figures['p99_ms']:9.2f}",
        flush=True,
    )


def lines(rounds: Rounds) -> None:
    for name, each in rounds.items():
        line(name, medians(each))


def ratio(rounds: Rounds, one: str, other: str, *, figure: str, aim: str) -> None:
    """Print the median of the ratios within the rounds, which what else the machine does disturbs least."""
    found = statistics.median(
        mine[figure] / theirs[figure] for mine, theirs in zip(rounds[one], rounds[other], strict=True)
    )
    print(f"{one} / {other}, {_CALLED[figure]}: {found:.2f} (the aim: {aim})", flush=True)
