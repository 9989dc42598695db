"""A fault at any line of some modules, as when there is no memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Fault", "first_times", "require_for_faults"]


class Fault:
    """Raises an error at one of the lines of some files that are run in the methods that it watches."""

    def __init__(self, files: Collection[str], number: int | None = None) -> None:
        """:param number: of the line, from 1; without one, nothing is raised."""
        self._files = files
        self._number = number
        self.lines: list[tuple[str, int]] = []
        """The lines that were run, each with its file."""

    def watch(self, monkeypatch: pytest.MonkeyPatch, owner: type, *names: str) -> None:
        """Watch methods, and all that they call."""
        for name in names:
            monkeypatch.setattr(owner, name, self._watched(getattr(owner, name)))

    def _watched(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            before = sys.gettrace()
            sys.settrace(self._trace)
            try:
                return method(*arguments)
            finally:
                sys.settrace(before)

        return watched

    def _trace(self, frame: Any, event: str, _: object) -> Any:
        name = Path(frame.f_code.co_filename).name
        if name not in self._files:
            return None
        if event == "line":
            self.lines.append((name, frame.f_lineno))
            if len(self.lines) == self._number:
                raise MemoryError
        return self._trace


def first_times(lines: Sequence[tuple[str, int]]) -> Collection[int]:
    """Return when each line is run for the first time."""
    return {line: number for number, line in reversed([*enumerate(lines, 1)])}.values()


def require_for_faults(
    files: Collection[str],
    run: Callable[[Fault, pytest.MonkeyPatch], None],
    failures: list[Any],
    choose: Callable[[Sequence[tuple[str, int]]], Collection[int]] = first_times,
) -> int:
    """
    Check something with one fault after the other.

    :param run: does it, with methods that the fault watches.
    :param failures: what was logged.
    :return: the number of faults.
    """
    whole = Fault(files)
    with pytest.MonkeyPatch.context() as monkeypatch:
        run(whole, monkeypatch)
    numbers = choose(whole.lines)
    for number in numbers:
        fault = Fault(files, number)
        try:
            with pytest.MonkeyPatch.context() as monkeypatch:
                run(fault, monkeypatch)
        except AssertionError as error:
            raise AssertionError(f"after a fault at {fault.lines[number - 1]}, number {number}") from error
        assert {failure.type for failure in failures} == {MemoryError}
        failures.clear()
    return len(numbers)
