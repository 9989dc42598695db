"""
The callers file: each caller's credentials, rights and rates.

::

    [callers.thermometer]
    publish = ["readings", "sensors.*"]
    consume = ["readings"]
    work = ["orders/billing", "invoices/*"]
    read = true
    metrics = false
    certificates = ["subject:CN=thermometer,O=Example", "dns:thermometer.example"]
    requests_per_second = 50
    requests_burst = 100
    bytes_per_second = 100_000
    bytes_burst = 1_000_000
    max_streams = 100

    [[callers.thermometer.tokens]]
    sha256 = "…"
    until = 2027-01-31

It also has the issuers of JSON Web Tokens, see `sampleapp.access.issuers`, and senders that sign their
requests, see `sampleapp.access.hooks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sampleapp.access.caller import (
    NO_TOPICS,
    PREFIX,
    Caller,
    TopicPatterns,
    is_legal_group_pattern,
    is_legal_name,
    is_legal_pattern,
    parse_digest,
)
from sampleapp.access.callers_file_tables import (
    CallerTable,
    FileTable,
    Mistake,
    TokenTable,
    TOMLDocument,
    TOMLMistake,
    convert,
    in_words,
)
from sampleapp.access.callers_file_tables import Path as TOMLPath
from sampleapp.access.certificate_names import CertificateName, parse_certificate_name
from sampleapp.access.hooks import Hook, read_hook
from sampleapp.access.issuers import Issuer, IssuersReader, Subject
from sampleapp.errors import StartUpError
from sampleapp.files import read_file, shown_path

_DIGEST_COMMAND: Final = "printf %s TOKEN | sha256sum"
_CREDENTIALS: Final = ("tokens", "certificates", "subjects")
_NO_TOPIC: Final = (
    "matches no topic: names of topics have 1 to 249 characters of A-Z a-z 0-9 . _ -, and in a pattern * is "
    "any run of them"
)
_NO_GROUP: Final = (
    "matches no group of workers: write TOPIC/GROUP, such as orders/billing or orders/*, with 1 to 249 "
    "characters of A-Z a-z 0-9 . _ - * on each side, or * for every group"
)

C = TypeVar("C", bytes, CertificateName, Subject)


class CallersFileError(StartUpError):
    """The callers file cannot be used. The message has the line of the first mistake, and the right form."""


class Callers(Struct, frozen=True, kw_only=True):
    """All callers of a file, and their credentials."""

    by_name: Mapping[str, Caller] = MappingProxyType({})
    tokens: Mapping[bytes, tuple[Caller, float | None]] = MappingProxyType({})
    """
    By the SHA-256 of a token: its caller, and the first moment at which it is no longer valid.

    In seconds since the epoch, or ``None`` if it never ends.
    """
    certificates: Mapping[CertificateName, Caller] = MappingProxyType({})
    """Callers by a name in a client certificate."""
    subjects: Mapping[Subject, Caller] = MappingProxyType({})
    """Callers by a value of the ``caller_claim`` of an issuer's tokens."""
    issuers: Mapping[str, Issuer] = MappingProxyType({})
    """Issuers of JSON Web Tokens, by their names in the file."""
    hooks: Mapping[str, Hook] = MappingProxyType({})
    """Senders that sign their requests, by their names in the file."""


def load_callers(path: Path) -> Callers:
    """
    Read a callers file.

    :raise CallersFileError: it cannot be read, or there is a mistake in it.
    """
    return parse_callers(read_callers_file(path), name=str(path))


def read_callers_file(path: Path) -> bytes:
    """
    Return the content of a callers file.

    :raise CallersFileError: it cannot be read.
    """
    try:
        return read_file(path)
    except OSError as error:
        raise CallersFileError(f"--callers: cannot read {shown_path(path)}: {error.strerror}.") from error


def parse_callers(data: bytes, *, name: str) -> Callers:
    """
    Parse a callers file.

    :param data: its content: TOML, in UTF-8.
    :param name: of the file, for messages.
    :raise CallersFileError: there is a mistake in it.
    """
    with callers_document(data, name=name) as document:
        return callers_in(document)


@contextmanager
def callers_document(data: bytes, *, name: str) -> Iterator[TOMLDocument]:
    """
    Parse a callers file as TOML, and find the line of a `Mistake` that is raised while it is used.

    :param data: its content.
    :param name: of the file, for messages.
    :raise CallersFileError: instead of the mistake.
    """
    try:
        document = TOMLDocument(data)
    except TOMLMistake as mistake:
        raise CallersFileError(f"--callers: {name}, line {mistake.line}: {mistake}.") from mistake
    try:
        yield document
    except Mistake as mistake:
        line = document.line_of(mistake.path)
        raise CallersFileError(f"--callers: {name}, line {line}: {mistake}") from mistake
    finally:
        document.free()


def callers_in(document: TOMLDocument) -> Callers:
    """
    Return the callers of a document.

    :raise Mistake: there is one in it.
    """
    file = convert(document.value, FileTable, ())
    if not (file.callers or file.issuers or file.hooks):
        # An editor may have emptied the file, and is about to fill it again.
        raise Mistake(
            (),
            "names no caller, so every request would be rejected; begin one with a line such as "
            "[callers.thermometer]",
        )
    issuers = IssuersReader()
    for name, table in file.issuers.items():
        issuers.read(name, table)
    hooks = {name: read_hook(name, table) for name, table in file.hooks.items()}
    reader = _CallersReader(issuers=issuers)
    for name, table in file.callers.items():
        reader.read(name, table)
    return replace(reader.callers(), hooks=hooks)


class _CallersReader:
    """Reads one caller after the other. Each credential may occur once in the file."""

    def __init__(self, *, issuers: IssuersReader) -> None:
        """:param issuers: has read all issuers of the file."""
        self._issuers = issuers
        self._by_name: dict[str, Caller] = {}
        self._tokens: dict[bytes, tuple[Caller, float | None]] = {}
        self._certificates: dict[CertificateName, Caller] = {}
        self._subjects: dict[Subject, Caller] = {}
        self._places: dict[bytes | CertificateName | Subject, TOMLPath] = {}

    def callers(self) -> Callers:
        """Return all callers and issuers."""
        return Callers(
            by_name=self._by_name,
            tokens=self._tokens,
            certificates=self._certificates,
            subjects=self._subjects,
            issuers=self._issuers.by_name,
        )

    def read(self, name: str, value: Any) -> None:
        """
        Read one caller.

        :param value: its table.
        :raise Mistake: there is one in it.
        """
        path: TOMLPath = ("callers", name)
        if not is_legal_name(name):
            raise Mistake(
                path, "is not a name for a caller: that is 1 to 100 characters of A-Z a-z 0-9 . _ - @"
            )
        table = convert(value, CallerTable, path)
        caller = self._by_name[name] = Caller(
            name=name,
            publish=_patterns(table.publish, (*path, "publish"), is_legal_pattern, _NO_TOPIC),
            consume=_patterns(table.consume, (*path, "consume"), is_legal_pattern, _NO_TOPIC),
            work=_patterns(table.work, (*path, "work"), is_legal_group_pattern, _NO_GROUP),
            read=table.read,
            metrics=table.metrics,
            requests=table.requests(path),
            bytes=table.bytes(path),
            max_streams=table.streams(path),
        )
        for index, text in enumerate(table.certificates):
            at = (*path, "certificates", index)
            self._certificates[self._parsed(parse_certificate_name, text, at)] = caller
        for index, text in enumerate(table.subjects):
            at = (*path, "subjects", index)
            self._subjects[self._parsed(self._issuers.parse_subject, text, at)] = caller
        for index, token in enumerate(table.tokens):
            self._read_token(caller, token, (*path, "tokens", index))
        if not self._issuers.has_naming_issuer and not any(kind in value for kind in _CREDENTIALS):
            header = f"[[{in_words((*path, 'tokens'))}]]"
            raise Mistake(path, f"has no credentials; add tokens with {header}, certificates or subjects")

    def _read_token(self, caller: Caller, value: object, path: TOMLPath) -> None:
        table = convert(value, TokenTable, path)
        if table.sha256 is None:
            raise Mistake(path, f"has no sha256: 64 hexadecimal digits, as {_DIGEST_COMMAND} gives them")
        digest = self._parsed(_digest, table.sha256, (*path, "sha256"))
        self._tokens[digest] = (caller, table.until_s(path))

    def _parsed(self, parse: Callable[[str], C], text: str, path: TOMLPath) -> C:
        try:
            credential = parse(text)
        except ValueError as error:
            raise Mistake(path, str(error)) from error
        before = self._places.setdefault(credential, path)
        if before != path:
            raise Mistake(
                path, f"is already at {in_words(before)}; each credential belongs to one caller, once"
            )
        return credential


def _digest(text: str) -> bytes:
    try:
        return parse_digest(text)
    except ValueError as error:
        if text.startswith(PREFIX):
            raise ValueError(
                "seems to be a token itself, which must not be used any more; "
                f"write its SHA-256 here, as {_DIGEST_COMMAND} gives it"
            ) from error
        raise ValueError(
            f"must be 64 hexadecimal digits, as {_DIGEST_COMMAND} gives them; it has {len(text)} characters"
        ) from error


def _patterns(
    texts: Sequence[str], path: TOMLPath, is_legal: Callable[[str], bool], mistake: str
) -> TopicPatterns:
    for index, text in enumerate(texts):
        if not is_legal(text):
            raise Mistake((*path, index), mistake)
    return TopicPatterns(texts) if texts else NO_TOPICS
