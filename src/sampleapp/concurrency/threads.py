"""Work that would block the reactor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from twisted.internet.defer import Deferred

__all__ = ["Run"]

Run: TypeAlias = Callable[[Callable[[], Any]], "Deferred[Any]"]
"""Calls a function in a thread. The `Deferred` fires with its result, or fails with its error."""
