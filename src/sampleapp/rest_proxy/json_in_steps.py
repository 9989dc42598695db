"""
The same text as that of `sampleapp.rest_proxy.json_text`, of a long value, a little at a time.

Each number, and each character with an escape, takes about a microsecond, and a record of some MiB has a
million of them. So such a record is taken apart into tokens, and others have their turn after some of these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Final

from sampleapp.rest_proxy.json_text import Number, write

__all__ = ["write_in_steps"]

_WORK_AT_ONCE: Final = 2000
"""About 2 ms."""
_BYTES_OF_WORK: Final = {"run": 50, "string": 4, "number": 2}
"""A token takes 1; those of these kinds take 1 more for so many bytes."""
_CHARACTERS_AT_ONCE: Final = 1000
_VALUES_AT_ONCE: Final = 1000

# Simple values of an array, with the comma after each, are taken together.
_TOKEN: Final = re.compile(
    rb"""[ \t\n\r,:]* (?:
        (?P<run>      (?: (?: 0 | -?[1-9][0-9]{0,30} | true | false | null ) , ){1,1000} )
      | (?P<plain>    "[^"\\\xf0-\xf4]*" | -?[1-9][0-9]{0,30}(?![.eE0-9]) | true | false | null )
      | (?P<number>   -?[0-9][-+.0-9eE]* )
      | (?P<string>   " )
      | (?P<opening>  [\[{] )
      | (?P<closing>  [\]}] )
    )""",
    re.VERBOSE,
)
# Half a pair of surrogates has the same text as it has in the pair.
_CHARACTERS: Final = re.compile(
    rb'(?: [^"\\\x80-\xff] | [\xc2-\xf4][\x80-\xbf]{1,3} | \\u[0-9A-Fa-f]{4} | \\. ){1,%d}'
    % _CHARACTERS_AT_ONCE,
    re.VERBOSE | re.DOTALL,
)


class _Array:
    """An array that is not at its end."""

    __slots__ = ("_done", "_some")

    def __init__(self) -> None:
        self._done: list[bytes] = []
        self._some: list[bytes] = []

    def add(self, value: bytes) -> None:
        self._some.append(value)
        if len(self._some) == _VALUES_AT_ONCE:
            self._done.append(b",".join(self._some))
            self._some.clear()

    def written(self) -> Generator[None, None, bytes]:
        yield from ()
        return b"[%b]" % b",".join([*self._done, *self._some])


class _Object:
    """An object that is not at its end. A member that comes again takes the place of the first."""

    __slots__ = ("_members", "_name")

    def __init__(self) -> None:
        self._members: dict[bytes, bytes] = {}
        self._name: bytes | None = None

    def add(self, text: bytes) -> None:
        """Add a name or a value: they come in turns."""
        if self._name is None:
            self._name = text
        else:
            self._members[self._name] = text
            self._name = None

    def written(self) -> Generator[None, None, bytes]:
        members = _Array()
        for number, (name, value) in enumerate(self._members.items(), 1):
            members.add(b"%b:%b" % (name, value))
            if number % _WORK_AT_ONCE == 0:
                yield
        return b"{%b}" % (yield from members.written())[1:-1]


def write_in_steps(text: bytes) -> Generator[None, None, bytes]:
    """
    Write a value, in steps of some milliseconds.

    :param text: JSON that `sampleapp.json_members.require_json_text` has seen.
    :return: what `sampleapp.rest_proxy.json_text.write` returns for it.
    :raise NumberTooLarge: a number is beyond the range of doubles.
    """
    opened: list[_Array | _Object] = []
    position = work = 0
    while (token := _TOKEN.match(text, position)) is not None:
        position = token.end()
        kind = token.lastgroup or ""
        value = token[kind]
        if kind == "opening":
            opened.append(_Array() if value == b"[" else _Object())
            continue
        if kind == "closing":
            value = yield from opened.pop().written()
        elif kind == "string":
            position, value = yield from _rest_of_string(text, position)
        elif kind != "plain":
            value = _NUMBERS[kind](value)
        if not opened:
            return value
        opened[-1].add(value)
        work += 1 + len(value) // _BYTES_OF_WORK.get(kind, len(value) + 1)
        if work >= _WORK_AT_ONCE:
            work = 0
            yield
    raise ValueError(text[position:])


def _without_comma(run: bytes) -> bytes:
    return run[:-1]


def _number(text: bytes) -> bytes:
    return write(Number(text.decode("ascii")))


_NUMBERS: Final = {"run": _without_comma, "number": _number}


def _rest_of_string(text: bytes, position: int) -> Generator[None, None, tuple[int, bytes]]:
    """:return: the position after a string, and what is written for it."""
    pieces = [b'"']
    while (characters := _CHARACTERS.match(text, position)) is not None:
        if len(pieces) > 1:
            yield
        position = characters.end()
        pieces.append(write(json.loads(b'"%b"' % characters[0]))[1:-1])
    return position + 1, b'%b"' % b"".join(pieces)
