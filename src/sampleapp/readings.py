"""
The collection of readings, and its two representations.

The collection is what remains of a topic when, for each key, only the latest value counts.
"""

from __future__ import annotations

import hashlib
import math
import re

import msgspec
from msgspec import Struct

from sampleapp.model import Reading
from sampleapp.negotiation import MEDIA_TYPES, Version

__all__ = ["NotAReading", "Readings", "Representation"]

# A number as people and programs write it. Python's float() takes more: "nan", "1_000", other digits.
_NUMBER = re.compile(rb"[ \t\r\n]*([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[ \t\r\n]*")


class NotAReading(ValueError):
    """A record of the topic says nothing about a reading; the message says why."""


class Representation(Struct, frozen=True, kw_only=True):
    """The whole collection in one version, ready to be sent."""

    media_type: str
    body: bytes
    """JSON text in UTF-8."""
    etag: str
    """A strong entity tag, with its quotes (RFC 9110, section 8.8.3)."""


class Readings:
    """
    The latest value of each id, in the order in which the ids were first seen.

    An id that was removed and comes back is seen for the first time again: it takes the last place.
    """

    def __init__(self) -> None:
        self._readings: dict[str, Reading] = {}
        self._representations: dict[Version, Representation] = {}

    def __len__(self) -> int:
        return len(self._readings)

    def apply(self, *, key: bytes | None, value: bytes | None) -> None:
        """
        Take one record into account.

        :param key: the id of the reading, in UTF-8.
        :param value: the text of a finite number in ASCII, perhaps with white space around it;
            ``None`` removes the reading.
        :raise NotAReading: the record is to be skipped; nothing was changed.
        """
        reading_id = _parse_id(key)
        before = self._readings.get(reading_id)
        if value is None:
            if before is None:
                return
            del self._readings[reading_id]
        else:
            number = _parse_number(value)
            if before is not None and _same(before.value, number):
                return
            self._readings[reading_id] = Reading(reading_id, number)
        self._representations.clear()

    def representation(self, version: Version) -> Representation:
        """Return the collection as it is now in one version; encoded once for each state."""
        made = self._representations.get(version)
        if made is None:
            made = self._representations[version] = self._represent(version)
        return made

    def _represent(self, version: Version) -> Representation:
        readings = list(self._readings.values())
        body = msgspec.json.encode([reading.value for reading in readings] if version == 1 else readings)
        # Both versions of the empty collection are "[]", and a tag names one representation only.
        digest = hashlib.blake2b(body, digest_size=12, person=b"readings-v%d" % version)
        return Representation(
            media_type=MEDIA_TYPES[version],
            body=body,
            etag=f'"{digest.hexdigest()}"',
        )


def _parse_id(key: bytes | None) -> str:
    if key is None:
        raise NotAReading("the record has no key")
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        raise NotAReading("the record's key is not UTF-8") from None


def _parse_number(value: bytes) -> float:
    match = _NUMBER.fullmatch(value)
    if match is None:
        raise NotAReading("the record's value is not the text of a number")
    number = float(match[1])
    if not math.isfinite(number):
        raise NotAReading("the record's value is too large for a finite number")
    return number


def _same(before: float, after: float) -> bool:
    # 0.0 and -0.0 are equal, and not the same reading.
    return before == after and math.copysign(1.0, before) == math.copysign(1.0, after)
