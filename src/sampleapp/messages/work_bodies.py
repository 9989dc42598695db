"""Bodies of the requests of workers, and of the responses to them: pull, acknowledge and extend."""

from __future__ import annotations

import re
from base64 import b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from sampleapp.errors import Fault, InvalidWorkRequest, LeaseLost, pointer_token, shown
from sampleapp.messages.json_text import LARGE, JSONObject, decode_json
from sampleapp.model import ALL, MessageIds, RecordMetadata, Verdicts

MAX_BODY: Final = LARGE
"""The greatest length of the body of a request, in bytes."""

MOST_MESSAGES: Final = 500
"""The most messages of a lease."""
_MOST_FAULTS: Final = 100
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ID: Final = re.compile("(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,18})")

_Id: TypeAlias = Annotated[
    # Not checked by msgspec: in Python, $ also matches before a line feed at the end.
    str, Meta(examples=["0-42"], extra_json_schema={"pattern": f"^{_ID.pattern}$"})
]
_Ids: TypeAlias = Annotated[list[_Id], Meta(max_length=MOST_MESSAGES)] | Literal["all"]
_Lease: TypeAlias = Annotated[str, Meta(max_length=16384, examples=["kqVvcmRlcnM"])]


class PullRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A request for messages."""

    max: Annotated[int, Meta(ge=1, le=MOST_MESSAGES, description="The most messages.")] = 1
    wait: Annotated[int, Meta(ge=0, le=60, description="The seconds to wait for the first message.")] = 0


class AckRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The results for the messages of a lease. Messages that are not named are released."""

    lease: _Lease
    accept: Annotated[_Ids, Meta(description="Done: ids, or `all`.")] = []
    release: Annotated[_Ids, Meta(description="To be given again, at once: ids, or `all`.")] = []
    reject: Annotated[_Ids, Meta(description="Never to be given again: ids, or `all`.")] = []

    def verdicts(self) -> Verdicts:
        """
        Return the results by message.

        :raise InvalidWorkRequest: a text is not an id, a message has two results, or there is ``all`` and
            another list. Names all faults, up to a hundred.
        """
        faults = self._contradictions()
        if faults:
            raise InvalidWorkRequest(faults)
        return Verdicts(**{name: _parsed(getattr(self, name)) for name in _LISTS})

    def naming(self, unknown: Collection[tuple[int, int]]) -> InvalidWorkRequest:
        """Make the error for messages that are not in the lease, by partition and offset."""
        ids = {f"{partition}-{offset}" for partition, offset in unknown}
        return InvalidWorkRequest(self._naming(ids, "is not the id of a message of this lease"))

    def _contradictions(self) -> list[Fault]:
        given = [name for name in _LISTS if getattr(self, name)]
        for name in given:
            if getattr(self, name) == ALL and len(given) > 1:
                return [Fault(f"/{name}", f'"{name}" is "all", so the other lists must be empty.')]
        named = self._named()
        malformed = {each for _, _, each in named if not _ID.fullmatch(each)}
        counts = Counter(each for _, each in {(name, each) for name, _, each in named})
        twice = {each for each, count in counts.items() if count > 1}
        return self._naming(malformed, 'is not an id, such as "0-42"') or self._naming(
            twice, "is in two lists; a message has one result"
        )

    def _named(self) -> list[tuple[str, int, str]]:
        lists = [(name, getattr(self, name)) for name in _LISTS]
        return [
            (name, index, each)
            for name, ids in lists
            if isinstance(ids, list)
            for index, each in enumerate(ids)
        ]

    def _naming(self, ids: Collection[str], fault: str) -> list[Fault]:
        places = ((name, index, each) for name, index, each in self._named() if each in ids)
        return [
            Fault(f"/{name}/{index}", f'"{shown(each)}" {fault}.')
            for name, index, each in islice(places, _MOST_FAULTS)
        ]


class ExtendRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A request for more time."""

    lease: _Lease


class WorkMessage(RecordMetadata, frozen=True, kw_only=True):
    """A message of a lease: a record as in a line of a page, with its id and its number of attempts."""

    id: _Id
    attempts: Annotated[int, Meta(ge=1)]
    timestamp: int
    headers: dict[str, str]
    key: str | UnsetType = UNSET
    key_base64: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    content_base64: str | UnsetType = UNSET
    headers_base64: list[list[str | None]] | UnsetType = UNSET


class NewLease(Struct, frozen=True):
    """A lease that replaces another one, and its end."""

    lease: _Lease
    expires: Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class LeasedMessages(NewLease, frozen=True):
    """Messages, and the lease under which the worker has them."""

    messages: list[WorkMessage]


class Backlog(Struct, frozen=True):
    """The number of messages that a group has neither accepted nor rejected nor given up."""

    topic: str
    group: str
    backlog: int


_LISTS: Final = ("accept", "release", "reject")
_RIGHT_VALUES: Final = {
    "max": f"an integer from 1 to {MOST_MESSAGES}",
    "wait": "an integer of seconds from 0 to 60",
    "lease": "a string: the lease of the last response to pull or extend",
    **dict.fromkeys(_LISTS, f'an array of up to {MOST_MESSAGES} ids such as "0-42", or "all"'),
}
# It leaves a function that refers to itself.
_fields_of: Final = lru_cache(msgspec.structs.fields)
WorkBody = TypeVar("WorkBody", PullRequest, AckRequest, ExtendRequest)


def read_work_request(body: bytes, kind: type[WorkBody]) -> WorkBody:
    """
    Read the body of a request; an empty one is ``{}``.

    :param body: up to `MAX_BODY` bytes.
    :raise MalformedMessage: it is not JSON.
    :raise InvalidWorkRequest: it is another JSON value; names all faults, up to a hundred.
    """
    members = decode_json(body.strip() or b"{}")
    if not isinstance(members, JSONObject):
        raise InvalidWorkRequest([Fault("", "The body must be a JSON object.")])
    known = ", ".join(kind.__struct_fields__)
    counts = Counter(name for name, _ in members)
    values = {name: _plain(value) for name, value in members}
    unknown = (name for name in counts if name not in kind.__struct_fields__)
    faults = [
        Fault(f"/{pointer_token(shown(name))}", f'There is no "{shown(name)}" here, only: {known}.')
        for name in islice(unknown, _MOST_FAULTS)
    ]
    for field in _fields_of(kind):
        name = field.name
        if counts[name] > 1:
            faults.append(Fault(f"/{name}", f'"{name}" is there {counts[name]} times.'))
        elif name in counts or field.required:
            faults += _faults_of(name, values.get(name), field.type)
    if faults:
        raise InvalidWorkRequest(faults[:_MOST_FAULTS])
    return msgspec.convert(values, kind)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        # JSON Schema takes 20.0 for an integer.
        return int(value)
    # An empty JSONObject would be taken for an empty list.
    return dict(value) if isinstance(value, JSONObject) else value


def _faults_of(name: str, value: Any, kind: Any) -> list[Fault]:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        # In an array of ids, each that is none.
        ids = value if name in _LISTS and isinstance(value, list) else ()
        wrong = (index for index, each in enumerate(ids) if not isinstance(each, str))
        places = [f"/{name}/{index}" for index in islice(wrong, _MOST_FAULTS)]
        return [Fault(place, f'"{name}" must be {_RIGHT_VALUES[name]}.') for place in places or [f"/{name}"]]
    return []


def _parsed(ids: _Ids) -> MessageIds:
    if isinstance(ids, str):
        return ALL
    pairs = (each.split("-") for each in ids)
    return frozenset((int(partition), int(offset)) for partition, offset in pairs)


def token_of(lease: str) -> bytes:
    """
    Decode a lease.

    :raise LeaseLost: the service has given no such lease.
    """
    try:
        return b64decode(lease + "=" * (-len(lease) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise LeaseLost("There is no such lease. Send the lease of the last response.") from None


def new_lease(token: bytes, ends_ms: int) -> NewLease:
    """Encode a lease and its end, in milliseconds since the epoch."""
    ends = _EPOCH + timedelta(milliseconds=ends_ms)
    expires = ends.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return NewLease(urlsafe_b64encode(token).decode("ascii").rstrip("="), expires)
