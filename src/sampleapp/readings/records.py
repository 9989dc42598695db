"""What a record of the topic says: of which reading, and which number."""

from __future__ import annotations

from math import isfinite
from typing import Final

__all__ = ["NotAReading", "parse_id", "parse_number"]

# What a number is written with, and white space. Python's float() takes more: "nan", "1_000", "\v1". Within
# these characters it takes exactly what the documentation of the interface says.
_IN_NUMBERS: Final = b"0123456789+-.eE \t\r\n"
_NO_NUMBER: Final = "the record's value is not the text of a number"


class NotAReading(ValueError):
    """A record of the topic says nothing about a reading; the message says why."""


def parse_id(key: bytes | None) -> str:
    """
    Read the id of a reading from a record's key.

    :raise NotAReading: there is no key, or it is not UTF-8.
    """
    if key is None:
        raise NotAReading("the record has no key")
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise NotAReading("the record's key is not UTF-8") from None


def parse_number(value: bytes) -> float:
    """
    Read a finite number from the text that is a record's value.

    :raise NotAReading: it is none.
    """
    if value.translate(None, _IN_NUMBERS):
        raise NotAReading(_NO_NUMBER)
    try:
        number = float(value)
    except ValueError:
        raise NotAReading(_NO_NUMBER) from None
    if not isfinite(number):
        raise NotAReading("the record's value is too large for a finite number")
    return number
