"""The hundred readings that are served while it is measured."""

from __future__ import annotations

import json

__all__ = ["READINGS", "readings_body"]

READINGS = {f"sensor-{n:03d}": 15 + n / 10 for n in range(100)}


def readings_body() -> bytes:
    """Version 1 of the readings."""
    return json.dumps(list(READINGS.values()), separators=(",", ":")).encode()
