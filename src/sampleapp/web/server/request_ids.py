"""Ids for requests that come with none."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import Final

__all__ = ["new_request_ids"]

_RANDOM_BYTES: Final = 8


def new_request_ids() -> Callable[[], bytes]:
    """
    Make what gives each request an id of its own: 64 random bits, which stay, and a number.

    The random bits tell apart processes, and what a process was before a restart. An id is no secret: who
    knows one can guess the next.
    """
    start = os.urandom(_RANDOM_BYTES).hex().encode("ascii") + b"-"
    numbers = count(1)
    return lambda: start + b"%d" % next(numbers)
