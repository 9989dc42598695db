"""The file of callers while the service runs: read at the start, and again when it has changed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sampleapp.access import Authenticator, Callers, TokenVerifier, load_callers
from sampleapp.issuer_keys import IssuerKeys, fetch_with
from sampleapp.web import Gate

__all__ = ["CallersOfFile"]


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
        self._keys = IssuerKeys(fetch=fetch_with(reactor), clock=reactor, on_withdrawn=self._forget)
        callers, verifiers = self._load()
        self._authenticator = Authenticator(callers, *verifiers, seconds=reactor.seconds)
        self.gate = Gate(self._authenticator, seconds=reactor.seconds, max_body=max_body)
        """Lets in whom the file names."""

    def _load(self) -> tuple[Callers, list[TokenVerifier]]:
        callers = load_callers(self._path)
        # Without issuers, too: those that there were are let go.
        verifier = self._keys.use(callers, directory=self._path.parent)
        return callers, [verifier] if callers.issuers else []

    @property
    def refusals(self) -> Mapping[str, int]:
        """How many requests were over a rate of their caller, by the name of the rate, since the start."""
        return self._authenticator.refusals

    def paths(self) -> Iterable[str]:
        """The files that all that was read from."""
        return (os.fspath(self._path), *self._keys.paths)

    def reload(self) -> None:
        """
        Read the file again; what was verified by what it said before is forgotten.

        :raise CallersFileError: it cannot be read, or there are mistakes in it; nothing has changed.
        """
        callers, verifiers = self._load()
        self._authenticator.use(callers, *verifiers)

    def _forget(self) -> None:
        self._authenticator.forget()

    def start(self) -> None:
        """Begin to fetch what issuers of tokens publish."""
        self._keys.start()

    def stop(self) -> None:
        """Fetch nothing more."""
        self._keys.stop()
