r"""
The JSON text that becomes the key or the value of a record: byte for byte what REST Proxy writes.

REST Proxy reads a request into Jackson's ``JsonNode`` and writes each key and value with a plain
``ObjectMapper`` (``io.confluent.kafka.serializers.KafkaJsonSerializer``). The partition of a record, and what
a compacted topic keeps, depend on each byte of the key. So this is the same text:

- no white space; members in the order of their first appearance, a repeated one with its last value;
- in strings, ``\b``, ``\t``, ``\n``, ``\f``, ``\r``, ``\"`` and ``\\``; other control characters as
  ``\u001F``, in upper case. ``/``, DEL and everything up to U+FFFF are as they are, in UTF-8. What is beyond
  is a pair of escapes (``\uD83D\uDE00``), and so is a lone surrogate one escape;
- integers of any length digit by digit, but ``-0`` as ``0``;
- all other numbers as doubles, in the form of Java's ``Double.toString``: ``1.0``, ``0.001``, ``1.0E7``,
  ``4.9E-324``. It is that of Java 19 and later, the shortest that reads back as the same double: older ones
  write some numbers with a digit more.

A number beyond the range of doubles, which becomes the string ``"Infinity"`` there, has no text here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from math import isinf
from typing import Any, Final

import msgspec

__all__ = [
    "Members",
    "Number",
    "NumberTooLarge",
    "encode_plain",
    "encode_with_escapes",
    "write",
    "written_double",
]

# In this range Java has no exponent, and Python's shortest form is the same.
_LEAST_PLAIN: Final = 1e-3
_LEAST_WITH_EXPONENT: Final = 1e7

_BEYOND_BMP: Final = re.compile(rb"[\xf0-\xf4][\x80-\xbf]{3}")
_ESCAPE: Final = re.compile(rb"\\(?:u00([01][0-9a-f])|.)", re.DOTALL)
_CONTROL: Final = b"\\u00"
_SURROGATE_OR_BEYOND_BMP: Final = re.compile("[\ud800-\udfff\U00010000-\U0010ffff]")

encode_plain = msgspec.json.Encoder().encode
"""Write what was read with `written_double` from text without escapes, all of it ASCII."""


class NumberTooLarge(ValueError):
    """No double is as large as that."""


class Number(str):
    """A number as it was written."""

    __slots__ = ()


class Members(list[tuple[str, Any]]):
    """The members of a JSON object in order, repeated ones included."""

    __slots__ = ()


def written_double(text: str) -> msgspec.Raw:
    """
    Turn a number with a fraction or an exponent into the text of its double, for `encode_plain`.

    :raise NumberTooLarge: it is beyond the range of doubles.
    """
    return msgspec.Raw(_double_text(text).encode("ascii"))


def encode_with_escapes(value: object) -> bytes:
    """Write what was read with `written_double` from any text."""
    text = encode_plain(value)
    if not text.isascii():
        text = _BEYOND_BMP.sub(_as_pair, text)
    return _ESCAPE.sub(_with_upper_case, text) if _CONTROL in text else text


def write(value: object) -> bytes:
    """
    Write what json has read, with `Members` for objects and `Number` for numbers.

    :raise NumberTooLarge: one is beyond the range of doubles.
    """
    return _ESCAPE.sub(_with_upper_case, _text(value).encode("utf-8"))


def _text(value: Any) -> str:
    if isinstance(value, Number):
        if "." in value or "e" in value or "E" in value:
            return _double_text(value)
        return "0" if value == "-0" else str(value)
    if isinstance(value, str):
        return _SURROGATE_OR_BEYOND_BMP.sub(_as_escapes, json.dumps(value, ensure_ascii=False))
    if isinstance(value, Members):
        members = (f"{_text(name)}:{_text(each)}" for name, each in dict(value).items())
        return f"{{{','.join(members)}}}"
    if isinstance(value, Sequence):
        return f"[{','.join(map(_text, value))}]"
    return json.dumps(value)


def _double_text(text: str) -> str:
    value = float(text)
    if isinf(value):
        raise NumberTooLarge(text)
    if value == 0 or _LEAST_PLAIN <= abs(value) < _LEAST_WITH_EXPONENT:
        return repr(value)
    sign, digits, exponent = _decimal(repr(value))
    if len(digits) == 1:
        # Java takes the nearest of two digits where the shortest form has one.
        nearest = f"{value:.1e}"
        if float(nearest) == value:
            sign, digits, exponent = _decimal(nearest)
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent + len(digits) - 1}"


def _decimal(text: str) -> tuple[str, str, int]:
    """:return: the sign, the digits without zeros around them, and the exponent of the last one."""
    # decimal.Decimal would take three times as long.
    sign = "-" if text.startswith("-") else ""
    mantissa, _, exponent = text.removeprefix("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).rstrip("0")
    last = int(exponent or 0) + len(whole) - len(digits)
    return sign, digits.lstrip("0"), last


def _with_upper_case(escape: re.Match[bytes]) -> bytes:
    return escape[0] if escape[1] is None else _CONTROL + escape[1].upper()


def _as_pair(character: re.Match[bytes]) -> bytes:
    return _escapes(character[0].decode("utf-8")).encode("ascii")


def _as_escapes(character: re.Match[str]) -> str:
    return _escapes(character[0])


def _escapes(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n : n + 2].hex().upper()}" for n in range(0, len(units), 2))
