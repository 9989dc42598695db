"""
The keys of the issuers of JSON Web Tokens: out of files, or fetched from where the issuers publish them.

What has been fetched counts until something better has come. So an issuer that is down, or answers with
something else, locks nobody out whose key is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from OpenSSL.SSL import Error as SSLError
from treq.client import HTTPClient
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectError, ConnectionClosed, DNSLookupError
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.client import Agent, RequestTransmissionFailed, ResponseFailed
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent

from sampleapp.access import Callers, CallersFileError
from sampleapp.access.errors import InvalidCredentials, IssuerKeysNotKnown
from sampleapp.access.files import read_file
from sampleapp.access.issuers import Issuer
from sampleapp.access.json_web_tokens import JWTVerifier, KeySource
from sampleapp.access.jwks import JWKSError, KeySet, VerificationKey, parse_jwks
from sampleapp.response_bodies import BodyTooLong, read_body

__all__ = ["Fetch", "FetchFailed", "IssuerKeys", "RemoteKeys", "fetch_with", "key_paths", "load_keys"]

REFRESH_S: Final = 300.0
"""After how many seconds keys are fetched again; one that is withdrawn counts for so long."""
ASK_AGAIN_S: Final = 60.0
"""How many seconds have to pass before a key that is not known makes the service ask once more."""
FIRST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 60.0
FETCH_TIMEOUT_S: Final = 10.0
CONNECT_TIMEOUT_S: Final = 5.0
MAX_BYTES: Final = 512 * 1024
OK: Final = 200

Fetch: TypeAlias = Callable[[str], Deferred[bytes]]
"""Gets what is at a URL; fails with `FetchFailed`."""


class FetchFailed(Exception):
    """What is at a URL could not be had. The message is the end of a sentence."""


class _FileKeys:
    """Keys out of a file, which is all there is to ask."""

    def __init__(self, keys: KeySet) -> None:
        self._keys = keys

    def find(self, kid: str | None, algorithm: str, *, now_s: float) -> list[VerificationKey]:  # noqa: ARG002 -- see KeySource
        """See `KeySource.find`."""
        found = self._keys.find(kid, algorithm)
        if found is None:
            raise _not_there()
        return found


class RemoteKeys:
    """
    The keys that an issuer publishes at a URL.

    They are fetched at the start, and then every `REFRESH_S`; after a failure sooner. A token with a key that
    is not among them makes the service ask again, but only once in `ASK_AGAIN_S`: whoever sends tokens could
    else make it ask all the time.
    """

    _log = Logger()

    def __init__(
        self, url: str, *, fetch: Fetch, clock: IReactorTime, on_withdrawn: Callable[[], None]
    ) -> None:
        """
        :param on_withdrawn: is called when a key is not there any more, so that no token that was verified
            with it counts any more.
        """
        self._url = url
        self._fetch = fetch
        self._clock = clock
        self._on_withdrawn = on_withdrawn
        self._keys: KeySet | None = None
        self._fetching: Deferred[None] | None = None
        self._later: IDelayedCall | None = None
        self._failures = 0
        self._reason = ""
        self._asked_s: float | None = None

    def start(self) -> None:
        """Begin to fetch keys, unless that has begun."""
        if self._fetching is None and self._later is None:
            self._begin()

    def stop(self) -> None:
        """Fetch nothing more."""
        later, self._later = self._later, None
        if later is not None:
            later.cancel()
        fetching, self._fetching = self._fetching, None
        if fetching is not None:
            fetching.cancel()

    def find(self, kid: str | None, algorithm: str, *, now_s: float) -> list[VerificationKey]:
        """See `KeySource.find`."""
        found = self._look_up(kid, algorithm)
        if found is None and self._may_ask(now_s):
            self._asked_s = now_s
            self._begin()
            found = self._look_up(kid, algorithm)
        if found is not None:
            return found
        if self._fetching is not None:
            raise IssuerKeysNotKnown(retry_after_s=FIRST_RETRY_S)
        if self._failures and self._later is not None:
            # The answer of which nobody knows may have the key.
            due_s = self._later.getTime() - self._clock.seconds()
            raise IssuerKeysNotKnown(retry_after_s=max(FIRST_RETRY_S, due_s))
        raise _not_there()

    def _look_up(self, kid: str | None, algorithm: str) -> list[VerificationKey] | None:
        return None if self._keys is None else self._keys.find(kid, algorithm)

    def _may_ask(self, now_s: float) -> bool:
        if self._fetching is not None or self._failures:
            return False
        # A clock may be set back.
        return self._asked_s is None or not 0 <= now_s - self._asked_s < ASK_AGAIN_S

    def _begin(self) -> None:
        later, self._later = self._later, None
        if later is not None and later.active():
            later.cancel()
        # Nobody waits for it, and it does not fail.
        fetching = self._fetching = Deferred.fromCoroutine(self._update())
        if fetching.called:
            self._fetching = None

    async def _update(self) -> None:
        try:
            keys = parse_jwks(await self._fetch(self._url))
        except CancelledError:
            return
        except (FetchFailed, JWKSError) as error:
            self._failed(str(error))
        except Exception:  # noqa: BLE001 -- whatever it is, there has to be another try
            self._log.failure("Fetching the keys of an issuer met a fault of the service.")
            self._failed("could not be asked")
        else:
            self._succeeded(keys)

    def _failed(self, reason: str) -> None:
        pause_s = min(FIRST_RETRY_S * 2 ** min(self._failures, 10), LONGEST_RETRY_S)
        self._failures += 1
        # Once, not each minute for days.
        if reason != self._reason:
            self._log.warn(
                "The keys of an issuer could not be fetched: {url} {reason}. {consequence}",
                url=_shown(self._url),
                reason=reason,
                consequence=(
                    "Its tokens cannot be verified until they are."
                    if self._keys is None
                    else "Those that are known go on to count."
                ),
            )
        self._reason = reason
        self._wait(pause_s)

    def _succeeded(self, keys: KeySet) -> None:
        before, self._keys = self._keys, keys
        if before is None or self._failures or not (keys.has_all_of(before) and before.has_all_of(keys)):
            self._log.info("{url} has {count} key(s) of an issuer.", url=_shown(self._url), count=len(keys))
        self._failures, self._reason = 0, ""
        self._wait(REFRESH_S)
        if before is not None and not keys.has_all_of(before):
            self._on_withdrawn()

    def _wait(self, seconds: float) -> None:
        self._fetching = None
        self._later = self._clock.callLater(seconds, self._begin)


def key_paths(callers: Callers, *, directory: Path) -> dict[str, Path]:
    """
    Return where those issuers that have their keys in a file have them, by their names.

    :param directory: in which the paths of files begin.
    """
    return {name: directory / issuer.jwks for name, issuer in callers.issuers.items() if not issuer.has_url}


def load_keys(callers: Callers, *, directory: Path) -> dict[str, KeySet]:
    """
    Read those files.

    :raise CallersFileError: one of them cannot be used.
    """
    paths = key_paths(callers, directory=directory)
    return {name: _load(path, callers.issuers[name]) for name, path in paths.items()}


class IssuerKeys:
    """The keys of all issuers in the file of callers."""

    def __init__(self, *, fetch: Fetch, clock: IReactorTime, on_withdrawn: Callable[[], None]) -> None:
        """:param on_withdrawn: is called when an issuer has withdrawn a key."""
        self._fetch = fetch
        self._clock = clock
        self._on_withdrawn = on_withdrawn
        self._remote: dict[str, RemoteKeys] = {}
        self._is_running = False

    def use(self, callers: Callers, keys_in_files: Mapping[str, KeySet]) -> JWTVerifier:
        """
        Have the keys of these issuers, and of no others, from now on. Those that were fetched are kept.

        :param keys_in_files: of the same callers, see `load_keys`.
        :return: verifies tokens with them.
        """
        issuers = callers.issuers
        remote = {
            issuer.jwks: self._remote_keys(issuer.jwks) for issuer in issuers.values() if issuer.has_url
        }
        for url, source in self._remote.items():
            if url not in remote:
                source.stop()
        self._remote = remote
        if self._is_running:
            self.start()
        keys: dict[str, KeySource] = {name: _FileKeys(known) for name, known in keys_in_files.items()}
        keys |= {name: remote[issuer.jwks] for name, issuer in issuers.items() if issuer.has_url}
        return JWTVerifier(issuers, keys, callers=callers.by_name, subjects=callers.subjects)

    def start(self) -> None:
        """Begin to fetch keys, in the background."""
        self._is_running = True
        for source in self._remote.values():
            source.start()

    def stop(self) -> None:
        """Fetch nothing more."""
        self._is_running = False
        for source in self._remote.values():
            source.stop()

    def _remote_keys(self, url: str) -> RemoteKeys:
        known = self._remote.get(url)
        if known is not None:
            return known
        return RemoteKeys(url, fetch=self._fetch, clock=self._clock, on_withdrawn=self._on_withdrawn)


def _not_there() -> InvalidCredentials:
    return InvalidCredentials(
        "The token names a key (kid) that its issuer does not have, or none of several."
    )


def _load(path: Path, issuer: Issuer) -> KeySet:
    try:
        return parse_jwks(read_file(path))
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        raise CallersFileError(f"--callers: the keys of issuers.{issuer.name}: {path} {reason}.") from error
    except JWKSError as error:
        raise CallersFileError(f"--callers: the keys of issuers.{issuer.name}: {path} {error}.") from error


def _shown(url: str) -> str:
    """Leave the query out, in which a secret may be."""
    return url.partition("?")[0]


def fetch_with(reactor: Any, *, agent: IAgent | None = None) -> Fetch:
    """
    Return what fetches keys over HTTP: within `FETCH_TIMEOUT_S`, and not more than `MAX_BYTES`.

    It follows no redirect, trusts the authorities that this machine trusts, and sends no credentials.

    :param reactor: for connections and the time.
    :param agent: makes the requests in place of one of its own.
    """
    # Its default for bodies would be driven by the global reactor; there are none here.
    http = HTTPClient(agent or Agent(reactor, connectTimeout=CONNECT_TIMEOUT_S))

    async def get(url: str) -> bytes:
        try:
            response = await http.get(
                url,
                headers=Headers({"Accept": ["application/jwk-set+json, application/json"]}),
                allow_redirects=False,
                unbuffered=True,
                # Given no reactor, treq imports the global one, although it has no use for it here.
                reactor=cast("Any", reactor),
            )
            # It is read in any case: what is left unread would keep the connection.
            body = await read_body(response, max_bytes=MAX_BYTES)
        except (ConnectError, DNSLookupError) as error:
            raise FetchFailed(f"cannot be reached ({_words(error)})") from error
        except (ResponseFailed, RequestTransmissionFailed) as error:
            words = ", ".join(_words(reason.value) for reason in error.reasons)
            raise FetchFailed(f"does not answer over HTTP as it should ({words})") from error
        except BodyTooLong as error:
            raise FetchFailed(f"answers with more than {MAX_BYTES} bytes") from error
        except ConnectionClosed as error:
            raise FetchFailed("closes the connection before the end of its answer") from error
        if response.code != OK:
            raise FetchFailed(f"answers with the status {response.code}, not {OK}")
        return body

    def fetch(url: str) -> Deferred[bytes]:
        def timed_out(result: bytes | Failure, timeout_s: float) -> bytes | Failure:
            if isinstance(result, Failure):
                raise FetchFailed(f"does not answer within {timeout_s:g} seconds") from result.value
            return result

        getting = Deferred.fromCoroutine(get(url))
        return getting.addTimeout(FETCH_TIMEOUT_S, reactor, onTimeoutCancel=timed_out)

    return fetch


def _words(error: BaseException | None) -> str:
    """Say what an exception says; OpenSSL's has a list of (library, function, reason)."""
    if isinstance(error, SSLError) and error.args and isinstance(error.args[0], list):
        return ", ".join(str(reason) for _, _, reason in error.args[0])
    # OpenSSL's and service_identity's are no sentences.
    return str(error).rstrip(".") or type(error).__name__
