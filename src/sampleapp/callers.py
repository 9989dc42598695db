"""The file of callers while the service runs: read at the start, and again when it has changed."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool

from sampleapp.access import Authenticator, Callers, TokenVerifier, load_callers
from sampleapp.access.jwks import KeySet
from sampleapp.issuer_keys import IssuerKeys, fetch_with, key_paths, load_keys
from sampleapp.web import Gate

__all__ = ["CallersOfFile"]


class _Content(NamedTuple):
    """What the file says, and the files that it names."""

    callers: Callers
    keys: Mapping[str, KeySet]
    """Those out of files, by the names of their issuers."""


class CallersOfFile:
    """Who may call, as a file says."""

    def __init__(self, path: Path, *, reactor: Any, max_body: int) -> None:
        """
        Read the file.

        :param reactor: for the time, and for connections to issuers of tokens.
        :param max_body: the limit for a request's body, in bytes.
        :raise CallersFileError: it cannot be read, or there are mistakes in it.
        """
        self._path = path
        self._reactor = reactor
        self._keys = IssuerKeys(fetch=fetch_with(reactor), clock=reactor, on_withdrawn=self._forget)
        self._key_paths: tuple[str, ...] = ()
        content = self._load()
        self._authenticator = Authenticator(
            content.callers, *self._verifiers(content), seconds=reactor.seconds
        )
        self.gate = Gate(self._authenticator, seconds=reactor.seconds, max_body=max_body)
        """Lets in whom the file names."""

    def _load(self) -> _Content:
        callers = load_callers(self._path)
        directory = self._path.parent
        # If one of them cannot be used, it is looked at until it can.
        self._key_paths = tuple(map(os.fspath, key_paths(callers, directory=directory).values()))
        return _Content(callers, load_keys(callers, directory=directory))

    def _load_many(self) -> _Content:
        # Of ten thousand callers, the parser makes a million objects. Looking through them for garbage, again
        # and again as they become more, keeps all threads waiting for up to a tenth of a second.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return self._load()
        finally:
            if was_enabled:
                gc.enable()

    def _verifiers(self, content: _Content) -> list[TokenVerifier]:
        # Without issuers, too: those that there were are let go.
        verifier = self._keys.use(content.callers, content.keys)
        return [verifier] if content.callers.issuers else []

    @property
    def refusals(self) -> Mapping[str, int]:
        """How many requests were over a rate of their caller, by the name of the rate, since the start."""
        return self._authenticator.refusals

    def paths(self) -> Iterable[str]:
        """The files that all that is read from."""
        return (os.fspath(self._path), *self._key_paths)

    def reload(self) -> Deferred[None]:
        """
        Read the file again; what was verified by what it said before is forgotten.

        It is read in a thread: ten thousand callers take more than half a second. Until then, what it said
        before counts.

        :return: fires with ``None`` when what it says now counts. Fails with
            `sampleapp.access.CallersFileError` if the file cannot be read, or there are mistakes in it; then
            nothing has changed, and neither has it after cancelling.
        """
        reading = deferToThreadPool(self._reactor, self._reactor.getThreadPool(), self._load_many)
        return reading.addCallback(self._use)

    def _use(self, content: _Content) -> None:
        self._authenticator.use(content.callers, *self._verifiers(content))

    def _forget(self) -> None:
        self._authenticator.forget()

    def start(self) -> None:
        """Begin to fetch what issuers of tokens publish."""
        self._keys.start()

    def stop(self) -> None:
        """Fetch nothing more."""
        self._keys.stop()
