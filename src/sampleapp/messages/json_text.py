"""JSON texts of callers: checked in a millisecond or two, or decoded with repeated members kept."""

from __future__ import annotations

import codecs
import json
from functools import partial
from typing import Any, Final

import msgspec

from sampleapp.errors import MalformedMessage

LARGE: Final = 64 * 1024
"""Bytes. Python's decoder is busy for up to 4 ms with a text of this length, such as ``[{},{},…]``."""

_LONGEST_INTEGER: Final = 40
"""Digits. No integer that a message may contain has more."""

_skip: Final = msgspec.json.Decoder(msgspec.Raw).decode


class JSONObject(list[tuple[str, Any]]):
    """The members of a JSON object in order, repeated ones included."""


def require_json(text: bytes, *, source: str = "body") -> None:
    """
    Check that something is JSON (RFC 8259), without decoding its values.

    :param source: the name of the text in error messages.
    :raise MalformedMessage: the text is not JSON in UTF-8, or nested too deeply.
    """
    try:
        # The decoder does not look at the bytes of strings that it skips.
        text.decode()
        try:
            _skip(text)
        except msgspec.DecodeError:
            # A lone surrogate is JSON, but this decoder rejects it. Replace surrogates by other characters.
            _skip(text.replace(rb"\ud", rb"\u0").replace(rb"\uD", rb"\u0"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if len(text) <= LARGE:
            # Its messages have the line and the column.
            decode_json(text, source=source)
        raise _malformed(text, source, error) from error


def decode_json(text: bytes, *, source: str = "body") -> Any:
    """
    Decode JSON; an object becomes a `JSONObject`.

    :param text: up to `LARGE` bytes, or a text that is known to have few values: this takes long otherwise.
    :param source: the name of the text in error messages.
    :raise MalformedMessage: the text is not JSON in UTF-8, or nested too deeply.
    """
    try:
        return json.loads(
            text.decode("utf-8"),
            object_pairs_hook=JSONObject,
            parse_constant=partial(_reject_constant, source),
            parse_int=_parse_int,
        )
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(text, source, error) from error


def _malformed(text: bytes, source: str, error: Exception) -> MalformedMessage:
    if isinstance(error, UnicodeDecodeError):
        return MalformedMessage(
            f"The {source} is not UTF-8: see byte 0x{text[error.start]:02x} at offset {error.start}."
        )
    if isinstance(error, RecursionError):
        return MalformedMessage(f"The {source} is nested too deeply.")
    if not text.strip():
        return MalformedMessage(
            f'The {source} is empty; send a JSON object such as {{"topic": "readings", "content": "21.5"}}.'
        )
    if text.startswith(codecs.BOM_UTF8):
        why = "it begins with a byte order mark"
    elif isinstance(error, json.JSONDecodeError):
        line = "" if source == "line" else f"line {error.lineno}, "
        why = f"{error.msg} ({line}column {error.colno})"
    else:
        why = str(error).removeprefix("JSON is malformed: ")
    return MalformedMessage(f"The {source} is not JSON: {why}.")


def _parse_int(digits: str) -> int | float:
    # Only a timestamp may be a number. int() rejects more than 4,300 digits, and takes long for many.
    return int(digits) if len(digits) <= _LONGEST_INTEGER else float(digits)


def _reject_constant(source: str, name: str) -> None:
    raise MalformedMessage(f"The {source} is not JSON: {name} is not a JSON value.")
