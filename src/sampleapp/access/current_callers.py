"""The callers file while the service runs: read at the start, and again after each change."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool

from sampleapp.access import Authenticator, Callers, TokenVerifier, load_callers
from sampleapp.access.issuer_keys import IssuerKeys, fetch_with, key_paths, load_keys
from sampleapp.access.jwks import KeySet

__all__ = ["CurrentCallers"]


class _Content(NamedTuple):
    """The content of the callers file and of the key files that it names."""

    callers: Callers
    keys: Mapping[str, KeySet]
    """The keys from files, by the names of their issuers."""


class CurrentCallers:
    """The callers of the file as it is now, with the keys of their issuers."""

    def __init__(self, path: Path, *, reactor: Any, now: Callable[[], float] = time.time) -> None:
        """
        Read the file.

        :param reactor: for rates, and for connections to issuers of tokens.
        :param now: the time of day, in seconds since the epoch.
        :raise CallersFileError: it cannot be read, or there is a mistake in it.
        """
        self._path = path
        self._reactor = reactor
        self._keys = IssuerKeys(fetch=fetch_with(reactor), clock=reactor, on_withdrawn=self._forget)
        self._key_paths: tuple[str, ...] = ()
        content = self._load()
        self.authenticator = Authenticator(
            content.callers, *self._verifiers(content), seconds=reactor.seconds, now=now
        )
        """Authenticates the callers that are in the file now."""

    def _load(self) -> _Content:
        callers = load_callers(self._path)
        directory = self._path.parent
        # Set before loading: a key file that cannot be used is watched until it can.
        self._key_paths = tuple(map(os.fspath, key_paths(callers, directory=directory).values()))
        return _Content(callers, load_keys(callers, directory=directory))

    def _load_many(self) -> _Content:
        # For ten thousand callers, the parser makes a million objects. The garbage collector would run again
        # and again, and stop all threads for up to a tenth of a second.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return self._load()
        finally:
            if was_enabled:
                gc.enable()

    def _verifiers(self, content: _Content) -> list[TokenVerifier]:
        # Also without issuers, so that the previous ones are dropped.
        verifier = self._keys.use(content.callers, content.keys)
        return [verifier] if content.callers.issuers else []

    @property
    def refusals(self) -> Mapping[str, int]:
        """Requests that were refused since the start, by the name of the rate that they exceeded."""
        return self.authenticator.refusals

    def paths(self) -> Iterable[str]:
        """Return the paths of the callers file and of its key files."""
        return (os.fspath(self._path), *self._key_paths)

    def reload(self) -> Deferred[None]:
        """
        Read the file again, and forget all cached credentials.

        The file is read in a thread: ten thousand callers take more than half a second. Until then, the
        previous content stays in use.

        :return: fires with ``None`` when the new content is in use. Fails with
            `sampleapp.access.CallersFileError` if the file cannot be read, or there is a mistake in it; then
            the previous content stays in use, as it does after cancelling.
        """
        reading = deferToThreadPool(self._reactor, self._reactor.getThreadPool(), self._load_many)
        return reading.addCallback(self._use)

    def _use(self, content: _Content) -> None:
        self.authenticator.use(content.callers, *self._verifiers(content))

    def _forget(self) -> None:
        self.authenticator.forget()

    def start(self) -> None:
        """Begin to fetch the keys of issuers."""
        self._keys.start()

    def stop(self) -> None:
        """Stop fetching keys."""
        self._keys.stop()
