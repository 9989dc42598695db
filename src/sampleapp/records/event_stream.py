"""
Event streams as bytes: ``text/event-stream``.

The format is the one of HTML's server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html,
section 9.2.5). All text is UTF-8. Each function returns whole blocks, so any of them may follow any other.
"""

from __future__ import annotations

from typing import Final

MEDIA_TYPE: Final = "text/event-stream"
"""Its encoding is always UTF-8, so there is no parameter."""

END_OF_EVENT: Final = b"\n\n"
"""Follows the last byte of an event that `begin_event` has begun."""

# JSON may have these characters in its strings. The specification ends lines at CR and LF only; many clients
# in Python use `str.splitlines`, which ends lines at these characters, too.
_LINE_ENDS: Final = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)


def encode_event(data: bytes, *, event: str = "", event_id: str | None = None) -> bytes:
    """
    Encode one event.

    :param data: one line, in UTF-8 and without CR and LF, such as compact JSON; see `escape_line_ends`.
        Clients drop an event whose data is empty.
    :param event: the type of the event; by default clients take it for ``message``.
    :param event_id: what the client sends as ``Last-Event-ID`` when it comes back after this event. ``None``
        leaves the client with the id before; an empty one lets it come back without an id.
    """
    return b"%b%b\n\n" % (begin_event(event=event, event_id=event_id), data)


def begin_event(*, event: str = "", event_id: str | None = None) -> bytes:
    """
    Encode the beginning of an event whose data comes in parts.

    The parts follow, as one line, and then `END_OF_EVENT`. The parameters are those of `encode_event`.
    """
    start = b"" if event_id is None else b"id: %b\n" % event_id.encode("ascii")
    if event:
        start += b"event: %b\n" % event.encode("ascii")
    return start + b"data: "


def encode_id(event_id: str) -> bytes:
    """
    Encode an id without an event.

    A client dispatches nothing, and sends the id as ``Last-Event-ID`` when it comes back.
    """
    return b"id: %b\n\n" % event_id.encode("ascii")


def encode_retry(milliseconds: int) -> bytes:
    """Encode the time after which a client comes back when the stream has ended, in milliseconds."""
    return b"retry: %d\n\n" % milliseconds


def escape_line_ends(text: bytes) -> bytes:
    """
    Escape U+0085, U+2028 and U+2029 in JSON text, where some clients of event streams end a line.

    :param text: valid JSON in UTF-8, where these characters are in strings only. It may be a part of a longer
        text, if it does not begin or end inside a character.
    """
    for character, escape in _LINE_ENDS:
        if character in text:
            text = text.replace(character, escape)
    return text
