"""Ids for requests whose clients have given none."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import Final

__all__ = ["new_request_ids"]

_RANDOM_BYTES: Final = 8


def new_request_ids() -> Callable[[], bytes]:
    """
    Make a function that returns a new id at each call: 64 random bits, which stay the same, and a number.

    The random bits distinguish processes, and runs of one process. An id is not a secret: a client
    that has seen one can guess the next.
    """
    start = os.urandom(_RANDOM_BYTES).hex().encode("ascii") + b"-"
    numbers = count(1)
    return lambda: start + b"%d" % next(numbers)
