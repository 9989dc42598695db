"""What a record of the topic says: of which reading, and which number."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Final

import msgspec

__all__ = ["NotAReading", "parse_id", "parse_number", "parse_numbers"]

# What a number is written with, and white space. Python's float() takes more: "nan", "1_000", "\v1". Within
# these characters it takes exactly what the documentation of the interface says.
_IN_NUMBERS: Final = b"0123456789+-.eE \t\r\n"
_IN_LISTS: Final = _IN_NUMBERS + b","
_NO_NUMBER: Final = "the record's value is not the text of a number"


_decode_list = msgspec.json.Decoder(list[float]).decode


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


def parse_numbers(values: Sequence[bytes]) -> list[float] | None:
    """
    Read many numbers at once, each as `parse_number` reads it.

    :return: ``None`` where they have to be read one by one: one is no number, or not written as JSON has it.
    """
    joined = b",".join(values)
    if joined.translate(None, _IN_LISTS):
        return None
    try:
        numbers = _decode_list(b"[%b]" % joined)
    except msgspec.MsgspecError:
        return None
    # A comma inside of a value makes more numbers of it.
    if len(numbers) != len(values):
        return None
    if 0.0 in numbers:
        # To JSON, "-0" is the integer.
        return [number or float(value) for number, value in zip(numbers, values, strict=True)]
    return numbers
