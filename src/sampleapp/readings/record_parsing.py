"""Parsing of the id and the number of a reading from a record."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Final

import msgspec

__all__ = ["NotAReading", "parse_id", "parse_number", "parse_numbers"]

# The characters of a number, and white space. Python's float() accepts more: "nan", "1_000", "\v1". With only
# these characters, it accepts exactly the numbers that the documentation of the interface allows.
_IN_NUMBERS: Final = b"0123456789+-.eE \t\r\n"
_IN_LISTS: Final = _IN_NUMBERS + b","
_NO_NUMBER: Final = "the record's value is not the text of a number"


_decode_list = msgspec.json.Decoder(list[float]).decode


class NotAReading(ValueError):
    """A record of the topic has no reading; the message says why."""


def parse_id(key: bytes | None) -> str:
    """
    Parse the id of a reading from a record's key.

    :raise NotAReading: the key is missing, or not UTF-8.
    """
    if key is None:
        raise NotAReading("the record has no key")
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise NotAReading("the record's key is not UTF-8") from None


def parse_number(value: bytes) -> float:
    """
    Parse a finite number from a record's value.

    :raise NotAReading: the value is not the text of a finite number.
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
    Parse many numbers at once, each as `parse_number` does.

    :return: ``None`` if they must be parsed one by one: a value is not a number, or not in JSON's form.
    """
    joined = b",".join(values)
    if joined.translate(None, _IN_LISTS):
        return None
    try:
        numbers = _decode_list(b"[%b]" % joined)
    except msgspec.MsgspecError:
        return None
    # A value with a comma would be several numbers.
    if len(numbers) != len(values):
        return None
    if 0.0 in numbers:
        # The JSON decoder takes "-0" for the integer 0.
        return [number or float(value) for number, value in zip(numbers, values, strict=True)]
    return numbers
