"""
The identity of a record that its caller may send again, from the header field ``Idempotency-Key``.

Syntax: an RFC 9651 string, as in draft-ietf-httpapi-idempotency-key-header, or the same key without quotation
marks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from operator import itemgetter
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from sampleapp.errors import MalformedIdempotencyKey
from sampleapp.messages.parsing import RecordHeaders, record_of
from sampleapp.model import Message, Record, RecordIdentity

_MOST: Final = 255
_RULE: Final = (
    f'one key of 1 to {_MOST} visible ASCII characters, such as "{{field}}: 8e03978e-40d5" or '
    '"{field}: \\"8e03978e-40d5\\""'
)
_BARE: Final = re.compile(rb"[!#-~][!-~]*")
# RFC 9651, section 3.3.3; and parameters (section 3.1.2), of which only the form is looked at.
_STRING: Final = re.compile(rb'"((?:[ !#-\[\]-~]|\\["\\])*)"((?: *;.*)?)', re.DOTALL)
# No two kinds of value begin with the same character. Otherwise the time to reject a value could double with
# each parameter.
_PARAMETERS: Final = re.compile(
    rb"""(?:\ *;\ *[a-z*][a-z0-9_.*-]*(?:=(?:
        %?"(?:[ !#-\[\]-~]|\\["\\])*"             # string, display string
        | [A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*  # token
        | :[A-Za-z0-9+/=]*:                       # byte sequence
        | @?-?[0-9]+(?:\.[0-9]+)?                 # date, integer, decimal
        | \?[01]                                  # boolean
    ))?)*""",
    re.VERBOSE,
)
_ESCAPED: Final = re.compile(rb"\\(.)")


def parse_idempotency_key(values: Sequence[bytes], *, field: str = "Idempotency-Key") -> str | None:
    """
    Parse the header field ``Idempotency-Key``.

    :param values: the values of all its field lines.
    :param field: its name, for messages: some senders have another field for the same purpose.
    :return: the key; ``None`` if the field is not there.
    :raise MalformedIdempotencyKey: there are two, or it has no key of 1 to 255 characters.
    """
    if not values:
        return None
    if len(values) > 1:
        raise MalformedIdempotencyKey(
            f"There are {len(values)} fields {field}. Send {_RULE.format(field=field)}."
        )
    value = values[0].strip(b" \t")
    key = _unquoted(value) if value.startswith(b'"') else value if _BARE.fullmatch(value) else None
    if key is None or not 1 <= len(key) <= _MOST:
        raise MalformedIdempotencyKey(f"The field {field} has no key. Send {_RULE.format(field=field)}.")
    return key.decode("ascii")


def _unquoted(value: bytes) -> bytes | None:
    match = _STRING.fullmatch(value)
    if match is None or not _PARAMETERS.fullmatch(match[2]):
        return None
    return _ESCAPED.sub(rb"\1", match[1])


class IdempotencyScope:
    """Makes the identities of the records of one request."""

    def __init__(self, *, caller: str, key: str) -> None:
        """
        :param caller: the name of the caller; empty for callers without credentials.
        :param key: see `parse_idempotency_key`.
        """
        self._prefix = _part(caller.encode("utf-8", "surrogatepass")) + _part(key.encode("ascii"))

    def identity(
        self,
        number: int,
        *,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders = (),
        timestamp_ms: int | None = None,
    ) -> RecordIdentity:
        """
        Make the identity of a record.

        :param number: of the record in its request, from 0.
        :param headers: those of the message itself, without those of the request, such as the trace: they
            are different at each try. Only the order of those with one name matters.
        :param timestamp_ms: the time that the message gives, in milliseconds since the epoch; ``None`` if it
            gives none.
        """
        time = None if timestamp_ms is None else b"%d" % timestamp_ms
        content = [_part(key), _part(value), _part(time)]
        # They are made of members of a JSON object or of fields of HTTP, neither of which have an order: a
        # client or a proxy may send them in another one each time.
        for name, header in sorted(headers, key=itemgetter(0)):
            content += _part(name.encode("utf-8", "surrogatepass")), _part(header)
        return RecordIdentity(
            id=sha256(self._prefix + _part(b"%d" % number) + _part(topic.encode("ascii"))).digest(),
            fingerprint=sha256(b"".join(content)).digest(),
        )

    def record_of(
        self, message: Message, number: int, *, now_ms: int, of_request: RecordHeaders = ()
    ) -> Record:
        """
        Convert a message into a record with an identity.

        :param number: of the message in its request, from 0.
        :param now_ms: see `sampleapp.messages.parsing.record_of`, as for ``of_request``.
        :raise InvalidMessage: the message brings a header that the service adds.
        """
        own = len(message.headers or ()) + len(message.headers_base64 or ())
        record = record_of(message, now_ms=now_ms, of_request=of_request)
        identity = self.identity(
            number,
            topic=record.topic,
            key=record.key,
            value=record.value,
            # The message's own come first.
            headers=record.headers[:own],
            timestamp_ms=None if message.timestamp is UNSET else record.timestamp_ms,
        )
        return replace(record, identity=identity)


def _part(part: bytes | None) -> bytes:
    # The length in front of each part keeps different lists of parts apart.
    return b"-" if part is None else b"%d:%b" % (len(part), part)
