"""
The file of callers: who they are, and what each may do.

::

    [callers.thermometer]
    publish = ["readings", "sensors.*"]
    read = true
    metrics = false
    certificates = ["subject:CN=thermometer,O=Example", "dns:thermometer.example"]
    requests_per_second = 50
    requests_burst = 100
    bytes_per_second = 100_000
    bytes_burst = 1_000_000

    [[callers.thermometer.tokens]]
    sha256 = "…"
    until = 2027-01-31

Issuers of JSON Web Tokens are in it as well; see `sampleapp.access.issuers`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import Struct

from sampleapp.access.caller import Caller, is_legal_name
from sampleapp.access.certificate_names import CertificateName, parse_certificate_name
from sampleapp.access.files import read_file
from sampleapp.access.issuers import Issuer, IssuersReader, Subject
from sampleapp.access.members import Faults, Members, in_words
from sampleapp.access.patterns import TopicPatterns, is_legal_pattern
from sampleapp.access.rates import Rate
from sampleapp.access.tokens import PREFIX, parse_digest
from sampleapp.access.toml_lines import Path as TOMLPath
from sampleapp.access.toml_lines import TOMLDocument, TOMLMistake
from sampleapp.errors import StartUpError

__all__ = ["Callers", "CallersFileError", "load_callers", "parse_callers"]

_MOST_TOLD: Final = 20
"""So many mistakes are told at once."""
_DIGEST_COMMAND: Final = "printf %s TOKEN | sha256sum"


class CallersFileError(StartUpError):
    """The file of callers cannot be used. The message has a line for each mistake, with its line's number."""


class Callers(Struct, frozen=True, kw_only=True):
    """All callers, and by what each is known."""

    by_name: Mapping[str, Caller] = MappingProxyType({})
    tokens: Mapping[bytes, tuple[Caller, float | None]] = MappingProxyType({})
    """
    By SHA-256 of a token: whose it is, and the first moment at which it is not valid any more.

    That is in seconds since the epoch, or ``None``.
    """
    certificates: Mapping[CertificateName, Caller] = MappingProxyType({})
    """By a name that a client certificate has: whose it is."""
    subjects: Mapping[Subject, Caller] = MappingProxyType({})
    """By what an issuer's tokens may have in their ``caller_claim``: whose they are."""
    issuers: Mapping[str, Issuer] = MappingProxyType({})
    """Who makes JSON Web Tokens that count here, by their names in the file."""


def load_callers(path: Path) -> Callers:
    """
    Read a file of callers.

    :raise CallersFileError: it cannot be read, or there are mistakes in it.
    """
    try:
        data = read_file(path)
    except OSError as error:
        raise CallersFileError(f"--callers: cannot read {path}: {error.strerror}.") from error
    return parse_callers(data, name=str(path))


def parse_callers(data: bytes, *, name: str) -> Callers:
    """
    Read what a file of callers says.

    :param data: its content: TOML, in UTF-8.
    :param name: of the file, for people.
    :raise CallersFileError: there are mistakes in it.
    """
    try:
        document = TOMLDocument(data)
    except TOMLMistake as mistake:
        raise CallersFileError(f"--callers: {name}, line {mistake.line}: {mistake}.") from mistake
    faults = Faults()
    callers = _read(Members(document.value, path=(), faults=faults), faults)
    if faults.found:
        lines = sorted((document.line_of(path), _sentence(path, said)) for path, said in _first(faults))
        told = [f"--callers: {name}, line {line}: {sentence}" for line, sentence in lines]
        if len(faults.found) > _MOST_TOLD:
            told.append(f"--callers: {name}: {len(faults.found) - _MOST_TOLD} more mistakes are not shown.")
        raise CallersFileError("\n".join(told))
    if not callers.by_name and not callers.issuers:
        # Perhaps an editor has emptied it, to fill it again.
        raise CallersFileError(
            f"--callers: {name}, line 1: names no caller, so nobody could call; begin one with a line "
            "such as [callers.thermometer]."
        )
    return callers


def _first(faults: Faults) -> list[tuple[TOMLPath, str]]:
    return faults.found[:_MOST_TOLD]


def _sentence(path: TOMLPath, said: str) -> str:
    sentence = f"{in_words(path)} {said}" if path else said
    return sentence if sentence.endswith("?") else f"{sentence}."


def _read(members: Members, faults: Faults) -> Callers:
    issuers = IssuersReader()
    for name, table in members.named_tables("issuers"):
        issuers.read(name, table)
    reader = _CallersReader(faults, issuers=issuers)
    for name, table in members.named_tables("callers"):
        reader.read(name, table)
    members.end()
    return msgspec.structs.replace(reader.callers(), issuers=issuers.by_name)


class _CallersReader:
    """Reads one caller after the other, and knows what the ones before have."""

    def __init__(self, faults: Faults, *, issuers: IssuersReader) -> None:
        """:param issuers: whose tokens may name callers, which then need no other credentials."""
        self._faults = faults
        self._issuers = issuers
        self._by_name: dict[str, Caller] = {}
        self._tokens: dict[bytes, tuple[Caller, float | None]] = {}
        self._certificates: dict[CertificateName, Caller] = {}
        self._subjects: dict[Subject, Caller] = {}
        self._places: dict[bytes | CertificateName | Subject, TOMLPath] = {}

    def callers(self) -> Callers:
        """Return all of them."""
        return Callers(
            by_name=self._by_name,
            tokens=self._tokens,
            certificates=self._certificates,
            subjects=self._subjects,
        )

    def read(self, name: str, members: Members) -> None:
        """Read one, whose table this is."""
        if not is_legal_name(name):
            members.fault("is no name for a caller: that is 1 to 100 characters of A-Z a-z 0-9 . _ - @")
        caller = Caller(
            name=name,
            publish=_patterns(members),
            read=members.boolean("read"),
            metrics=members.boolean("metrics"),
            requests=_rate(members, "requests"),
            bytes=_rate(members, "bytes"),
        )
        self._by_name[name] = caller
        for place, text in members.strings("certificates"):
            self._read_certificate(caller, members, place, text)
        for place, text in members.strings("subjects"):
            self._read_subject(caller, members, place, text)
        for token in members.tables("tokens"):
            self._read_token(caller, token)
        if not (self._issuers.name_callers or members.has("tokens") or members.has("certificates")):
            header = f"[[{in_words((*members.path, 'tokens'))}]]"
            members.fault(f"has no credentials; add tokens with {header}, or certificates")
        members.end()

    def _read_certificate(self, caller: Caller, members: Members, place: int, text: str) -> None:
        try:
            name = parse_certificate_name(text)
        except ValueError as error:
            members.fault(str(error), "certificates", place)
            return
        if self._is_new(name, members, "certificates", place):
            self._certificates[name] = caller

    def _read_subject(self, caller: Caller, members: Members, place: int, text: str) -> None:
        try:
            subject = self._issuers.parse_subject(text)
        except ValueError as error:
            members.fault(str(error), "subjects", place)
            return
        if self._is_new(subject, members, "subjects", place):
            self._subjects[subject] = caller

    def _read_token(self, caller: Caller, members: Members) -> None:
        text = members.string("sha256")
        until_s = members.moment_s("until")
        members.end()
        if not members.has("sha256"):
            members.fault(f"has no sha256: 64 hexadecimal digits, as {_DIGEST_COMMAND} gives them")
        if text is None:
            return
        try:
            digest = parse_digest(text)
        except ValueError:
            members.fault(_wrong_digest(text), "sha256")
            return
        if self._is_new(digest, members, "sha256"):
            self._tokens[digest] = (caller, until_s)

    def _is_new(
        self, credential: bytes | CertificateName | Subject, members: Members, *within: str | int
    ) -> bool:
        before = self._places.get(credential)
        if before is None:
            self._places[credential] = (*members.path, *within)
            return True
        members.fault(
            f"is already at {in_words(before)}; a credential is of one caller, and stands once", *within
        )
        return False


def _wrong_digest(text: str) -> str:
    if text.startswith(PREFIX):
        return (
            "seems to be a token itself, which now must not be used any more; "
            f"here stands its SHA-256, as {_DIGEST_COMMAND} gives it"
        )
    return f"has to be 64 hexadecimal digits, as {_DIGEST_COMMAND} gives them; it has {len(text)} characters"


def _patterns(members: Members) -> TopicPatterns:
    patterns = []
    for place, pattern in members.strings("publish"):
        if is_legal_pattern(pattern):
            patterns.append(pattern)
        else:
            members.fault(
                "fits no topic: names of topics have 1 to 249 characters of A-Z a-z 0-9 . _ -, "
                "and in a pattern * is any run of them",
                "publish",
                place,
            )
    return TopicPatterns(patterns)


def _rate(members: Members, what: str) -> Rate | None:
    """Read a rate; by default as much may come at once as may come in a second, and at least one."""
    rate, burst = f"{what}_per_second", f"{what}_burst"
    per_second = members.above_zero(rate)
    at_once = members.above_zero(burst)
    if at_once is not None and at_once < 1:
        members.fault("has to be at least 1", burst)
        return None
    if per_second is None:
        if members.has(burst) and not members.has(rate):
            members.fault(f"is the most that may come at once, and needs {rate} beside it", burst)
        return None
    return Rate(per_second, max(1.0, math.ceil(per_second)) if at_once is None else at_once)
