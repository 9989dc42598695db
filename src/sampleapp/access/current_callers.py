"""The callers file while the service runs: read at the start, and again after each change."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from sampleapp.access import (
    Authenticator,
    Callers,
    HookVerifier,
    Right,
    TokenVerifier,
)
from sampleapp.access.caller import TopicPatterns
from sampleapp.access.callers_file import callers_document, callers_in, read_callers_file
from sampleapp.access.callers_file_tables import Mistake
from sampleapp.access.hook_verification import HookKeys, load_hook_keys, secret_paths
from sampleapp.access.hooks import Hook
from sampleapp.access.issuer_keys import IssuerKeys, fetch_with, key_paths, load_keys
from sampleapp.access.jwks import KeySet
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.files import is_readable_by_all

_SWITCH_INTERVAL_S: Final = 0.0005
"""How long a thread that parses keeps other threads waiting, in seconds; a tenth of Python's default."""


_RIGHTS: Final = frozenset(Right) - {Right.NONE, Right.ANY}
_MOST_NAMES: Final = 10
"""Callers that one line of the log names."""


class _Content(NamedTuple):
    """The content of the callers file and of the key files that it names."""

    callers: Callers
    keys: Mapping[str, KeySet]
    """The keys from files, by the names of their issuers."""
    hook_keys: Mapping[str, HookKeys]
    """The keys of hooks, by their names."""
    without_rights: tuple[str, ...]
    """The names of callers who can do nothing."""


class CurrentCallers:
    """The callers of the file as it is now, with the keys of their issuers, and hooks with their secrets."""

    _log = Logger()

    def __init__(
        self,
        path: Path,
        *,
        reactor: Any,
        recorded_names: AbstractSet[str] = frozenset(),
        idempotent_topics: TopicPatterns | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """
        Read the file.

        :param reactor: for rates, and for connections to issuers of tokens.
        :param recorded_names: the names of the header fields, in lower case, that become headers of records.
            None of them may have the signature of a hook.
        :param idempotent_topics: the topics whose records may have idempotency keys; ``None`` for all.
        :param now: the time of day, in seconds since the epoch.
        :raise CallersFileError: it cannot be read, or there is a mistake in it.
        """
        self._path = path
        self._recorded_names = recorded_names
        self._idempotent_topics = idempotent_topics
        self._readable: set[Path] = set()
        self._without_rights: tuple[str, ...] = ()
        self._reactor = reactor
        self._keys = IssuerKeys(fetch=fetch_with(reactor), clock=reactor, on_withdrawn=self._forget)
        self._key_paths: tuple[str, ...] = ()
        self._slices = TimeSlices(reactor)
        content = self._load()
        self._callers = content.callers
        self.authenticator = Authenticator(
            content.callers, *self._verifiers(content), seconds=reactor.seconds, now=now
        )
        """Authenticates the callers that are in the file now."""
        self.hooks = HookVerifier(
            content.callers.hooks,
            content.hook_keys,
            seconds=reactor.seconds,
            now=now,
            rate_rejections=self.authenticator.rejections,
        )
        """Verifies the requests of the hooks that are in the file now."""
        self._warn_of_readable_secrets(content)
        self._warn_of_callers_without_rights(content.without_rights)

    def _load(self) -> _Content:
        directory = self._path.parent
        with callers_document(read_callers_file(self._path), name=str(self._path)) as document:
            callers = callers_in(document)
            hooks = callers.hooks
            paths = [
                *key_paths(callers, directory=directory).values(),
                *secret_paths(hooks, directory=directory),
            ]
            # Set before loading: a key file that cannot be used is watched until it can.
            self._key_paths = tuple(map(os.fspath, paths))
            self._require_unrecorded_signatures(hooks)
            self._require_idempotent_topics(hooks)
            return _Content(
                callers,
                load_keys(callers, directory=directory),
                load_hook_keys(hooks, directory=directory),
                tuple(each.name for each in callers.by_name.values() if not any(map(each.has, _RIGHTS))),
            )

    def _require_unrecorded_signatures(self, hooks: Mapping[str, Hook]) -> None:
        for hook in hooks.values():
            for field in self._recorded_names & frozenset(hook.scheme.signature_fields):
                raise Mistake(
                    ("hooks", hook.name),
                    f"has its signature in the header {field}, and --record-header would keep that in each "
                    "record; give one of them another name",
                )

    def _require_idempotent_topics(self, hooks: Mapping[str, Hook]) -> None:
        for hook in hooks.values():
            if (
                hook.idempotency_header is not None
                and self._idempotent_topics is not None
                and hook.topic not in self._idempotent_topics
            ):
                raise Mistake(
                    ("hooks", hook.name, "idempotency_header"),
                    f"makes the service reject every delivery, since the topic {hook.topic} on Kafka takes "
                    f"no idempotency keys; start the service with --idempotent-topic {hook.topic}, or remove "
                    "idempotency_header",
                )

    def _warn_of_callers_without_rights(self, names: tuple[str, ...]) -> None:
        if names and names != self._without_rights:
            self._log.warn(
                "The callers file grants no right to {count} caller(s), who can do nothing: {names}.",
                count=len(names),
                names=", ".join(names[:_MOST_NAMES])
                + (", \N{HORIZONTAL ELLIPSIS}" if len(names) > _MOST_NAMES else ""),
            )
        self._without_rights = names

    def _warn_of_readable_secrets(self, content: _Content) -> None:
        """Warn of each file with a secret that every user of this machine may read, once."""
        readable = set()
        for path in secret_paths(content.callers.hooks, directory=self._path.parent):
            # It was there a moment ago.
            with suppress(OSError):
                if is_readable_by_all(path.stat().st_mode):
                    readable.add(path)
        for path in sorted(readable - self._readable):
            self._log.warn(
                "The file {path} holds the secret of a hook, and every user of this machine may read it: "
                "remove that permission (chmod o= {path}).",
                path=str(path),
            )
        self._readable = readable

    def _load_many(self) -> tuple[_Content, list[object]]:
        """Load the content in a thread; return also the parts of the previous one, to be freed gradually."""
        # For ten thousand callers, the parser makes a million objects. The garbage collector would run again
        # and again, and stop all threads for up to a tenth of a second. So it is disabled during the parsing.
        # The result is not frozen: that would freeze the objects of requests, too, and those in a cycle would
        # never be freed. Instead, callers have few objects that the collector traverses.
        was_enabled = gc.isenabled()
        gc.disable()
        # The reactor would wait for this interval each time that it has called the system.
        switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        try:
            content = self._load()
            # Freed, or listed, at once, those of ten thousand callers would stop all threads for 10 ms.
            before = chain(self._callers.by_name.values(), self._callers.tokens.items())
            return content, [each for each in before]  # noqa: C416 -- other threads run in between
        finally:
            sys.setswitchinterval(switch_interval_s)
            if was_enabled:
                gc.enable()

    def _verifiers(self, content: _Content) -> list[TokenVerifier]:
        # Also without issuers, so that the previous ones are dropped.
        verifier = self._keys.use(content.callers, content.keys)
        return [verifier] if content.callers.issuers else []

    @property
    def rejections(self) -> Mapping[str, int]:
        """Requests that were rejected since the start, by the name of the rate that they exceeded."""
        return self.authenticator.rejections

    def paths(self) -> Iterable[str]:
        """Return the paths of the callers file, and of the files with keys and secrets that it names."""
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
        return Deferred.fromCoroutine(self._reload())

    async def _reload(self) -> None:
        content, replaced = await deferToThreadPool(
            self._reactor, self._reactor.getThreadPool(), self._load_many
        )
        self._use(content)
        await self._slices.free_gradually(replaced)

    def _use(self, content: _Content) -> None:
        self._callers = content.callers
        self.authenticator.use(content.callers, *self._verifiers(content))
        self.hooks.use(content.callers.hooks, content.hook_keys)
        self._warn_of_readable_secrets(content)
        self._warn_of_callers_without_rights(content.without_rights)

    def _forget(self) -> None:
        self.authenticator.forget()

    def start(self) -> None:
        """Begin to fetch the keys of issuers."""
        self._keys.start()

    def stop(self) -> None:
        """Stop fetching keys."""
        self._keys.stop()
