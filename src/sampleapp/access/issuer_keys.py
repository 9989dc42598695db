"""
The keys of the issuers of JSON Web Tokens, read from files or fetched from the issuers.

Fetched keys stay in use until other keys were fetched. So while an issuer is down, or its response is not a
key set, tokens with known keys stay valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectError, ConnectionClosed, DNSLookupError
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.client import RequestTransmissionFailed, ResponseFailed
from twisted.web.http_headers import Headers
from twisted.web.iweb import IResponse

from sampleapp.access import Callers, CallersFileError
from sampleapp.access.callers_file_tables import Mistake
from sampleapp.access.errors import InvalidCredentials, IssuerKeysNotKnown
from sampleapp.access.issuers import Issuer
from sampleapp.access.json_web_tokens import JWTVerifier, KeySource
from sampleapp.access.jwks import JWKSError, KeySet, VerificationKey, parse_jwks
from sampleapp.concurrency.rates import Backoff
from sampleapp.errors import StartUpError
from sampleapp.files import read_file
from sampleapp.outgoing.https import BodyTooLong, make_agent, read_body
from sampleapp.outgoing.verified_tls import CertificateNotTrusted, openssl_reasons
from sampleapp.tls import require_callbacks

REFRESH_S: Final = 300.0
"""Seconds between two fetches. A withdrawn key stays in use for up to this time."""
ASK_AGAIN_S: Final = 60.0
"""Minimum seconds between two fetches that are caused by unknown keys."""
MOST_UNKNOWN: Final = 1000
"""Unknown keys that are remembered between two fetches. Any client can send tokens that name others."""
FIRST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 60.0
_BACKOFF: Final = Backoff(first_s=FIRST_RETRY_S, max_s=LONGEST_RETRY_S)
FETCH_TIMEOUT_S: Final = 10.0
CONNECT_TIMEOUT_S: Final = 5.0
MAX_BYTES: Final = 512 * 1024
OK: Final = 200
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_HEADERS: Final = {
    "Accept": ["application/jwk-set+json, application/json"],
    "Accept-Encoding": ["identity"],
}
_TRUST: Final = (
    "to trust another authority, name the file of its certificate in the environment variable SSL_CERT_FILE "
    "of the service"
)

Fetch: TypeAlias = Callable[[str], Deferred[bytes]]
"""Fetches the content of a URL; fails with `FetchFailed`."""


class FetchFailed(Exception):
    """A URL could not be fetched. The message is the end of a sentence that begins with the URL."""


class _FileKeys:
    """Keys from a file. They only change when the callers file is read again."""

    def __init__(self, keys: KeySet) -> None:
        self._keys = keys

    def find(self, kid: str | None, algorithm: str, *, now_s: float) -> list[VerificationKey]:  # noqa: ARG002 -- see KeySource
        """See `KeySource.find`."""
        found = self._keys.find(kid, algorithm)
        if found is None:
            raise _no_such_key()
        return found


class RemoteKeys:
    """
    The keys that an issuer publishes at a URL.

    They are fetched at the start, and then every `REFRESH_S`; after a failure sooner. A token with an unknown
    key causes a fetch as well, but at most once in `ASK_AGAIN_S`, since any client can send such tokens.

    Only a key that was looked for before the last fetch, and was not in its response, is known not to exist.
    Any other unknown key may be a new one, and its tokens may be valid.
    """

    _log = Logger()

    def __init__(
        self, url: str, *, fetch: Fetch, clock: IReactorTime, on_withdrawn: Callable[[], None]
    ) -> None:
        """
        :param on_withdrawn: is called when a key is no longer published, and tokens that were verified with
            it are no longer valid.
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
        # Hashes of the names of keys, since a name may be long.
        self._unknown: set[int] = set()
        self._asked_for: set[int] = set()
        self._absent: set[int] = set()

    def start(self) -> None:
        """Begin to fetch keys, unless it has begun."""
        if self._fetching is None and self._later is None:
            self._begin()

    def stop(self) -> None:
        """Stop fetching."""
        later, self._later = self._later, None
        if later is not None:
            later.cancel()
        fetching, self._fetching = self._fetching, None
        if fetching is not None:
            fetching.cancel()

    def find(self, kid: str | None, algorithm: str, *, now_s: float) -> list[VerificationKey]:
        """See `KeySource.find`."""
        found = self._look_up(kid, algorithm)
        if found is not None:
            return found
        name = hash((kid, algorithm))
        if len(self._unknown) < MOST_UNKNOWN:
            self._unknown.add(name)
        wait_s = self._until_next_ask_s(now_s)
        if wait_s <= 0:
            self._asked_s = now_s
            self._begin()
            found = self._look_up(kid, algorithm)
            if found is not None:
                return found
        if self._fetching is not None:
            raise IssuerKeysNotKnown(retry_after_s=FIRST_RETRY_S)
        if self._failures and self._later is not None:
            # The response that failed may have had the key.
            wait_s = self._later.getTime() - self._clock.seconds()
        elif name in self._absent:
            raise _no_such_key()
        raise IssuerKeysNotKnown(retry_after_s=max(FIRST_RETRY_S, wait_s))

    def _look_up(self, kid: str | None, algorithm: str) -> list[VerificationKey] | None:
        return None if self._keys is None else self._keys.find(kid, algorithm)

    def _until_next_ask_s(self, now_s: float) -> float:
        if self._fetching is not None or self._failures:
            return ASK_AGAIN_S
        # A clock may be set back.
        if self._asked_s is None or now_s < self._asked_s:
            return 0.0
        return self._asked_s + ASK_AGAIN_S - now_s

    def _begin(self) -> None:
        later, self._later = self._later, None
        if later is not None and later.active():
            later.cancel()
        # Keys that are looked for from now on may be newer than the response.
        self._asked_for, self._unknown = self._unknown, set()
        # It has no waiter, and does not fail.
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
        except Exception:  # noqa: BLE001 -- after any error, there must be another attempt
            self._log.failure("Fetching keys from {url} failed unexpectedly", url=_without_query(self._url))
            self._failed("could not be fetched because of an error in the service")
        else:
            self._succeeded(keys)

    def _failed(self, reason: str) -> None:
        self._failures += 1
        self._unknown = self._asked_for
        # Log each reason once, not every minute for days.
        if reason != self._reason:
            self._log.warn(
                "Cannot fetch the keys of an issuer; trying again: {url} {reason}. {consequence}",
                url=_without_query(self._url),
                reason=reason,
                consequence=(
                    "Its tokens get 503 until its keys are fetched."
                    if self._keys is None
                    else "The keys that were fetched before stay in use."
                ),
            )
        self._reason = reason
        self._fetch_after(_BACKOFF.delay_s(self._failures))

    def _succeeded(self, keys: KeySet) -> None:
        before, self._keys = self._keys, keys
        self._absent = self._asked_for
        if before is None or self._failures or not (keys.has_all_of(before) and before.has_all_of(keys)):
            self._log.info(
                "Fetched {count} key(s) of an issuer from {url}{left_out}.",
                url=_without_query(self._url),
                count=len(keys),
                left_out=f"; {keys.left_out} more cannot be used here" if keys.left_out else "",
            )
        self._failures, self._reason = 0, ""
        self._fetch_after(REFRESH_S)
        if before is not None and not keys.has_all_of(before):
            self._on_withdrawn()

    def _fetch_after(self, seconds: float) -> None:
        self._fetching = None
        self._later = self._clock.callLater(seconds, self._begin)


def key_paths(callers: Callers, *, directory: Path) -> dict[str, Path]:
    """
    Return the paths of key files, by the names of their issuers.

    :param directory: relative paths begin there.
    """
    return {name: directory / issuer.jwks for name, issuer in callers.issuers.items() if not issuer.has_url}


def load_keys(callers: Callers, *, directory: Path) -> dict[str, KeySet]:
    """
    Read the key files of all issuers.

    :raise Mistake: one of them cannot be used. The message does not have its path, which may be a secret that
        was written there by mistake.
    :raise CallersFileError: TLS to an issuer is not possible.
    """
    for name, issuer in callers.issuers.items():
        if issuer.jwks.startswith("https://"):
            _require_tls(name)
    paths = key_paths(callers, directory=directory)
    return {name: _load(path, callers.issuers[name]) for name, path in paths.items()}


class IssuerKeys:
    """The keys of all issuers in the callers file."""

    def __init__(self, *, fetch: Fetch, clock: IReactorTime, on_withdrawn: Callable[[], None]) -> None:
        """:param on_withdrawn: is called when an issuer has withdrawn a key."""
        self._fetch = fetch
        self._clock = clock
        self._on_withdrawn = on_withdrawn
        self._remote: dict[str, RemoteKeys] = {}
        self._is_running = False

    def use(self, callers: Callers, keys_in_files: Mapping[str, KeySet]) -> JWTVerifier:
        """
        Replace the issuers. Fetched keys of issuers with the same URL are kept.

        :param keys_in_files: the keys of the same issuers from files; see `load_keys`.
        :return: a verifier with the keys of these issuers.
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
        """Stop fetching."""
        self._is_running = False
        for source in self._remote.values():
            source.stop()

    def _remote_keys(self, url: str) -> RemoteKeys:
        known = self._remote.get(url)
        if known is not None:
            return known
        return RemoteKeys(url, fetch=self._fetch, clock=self._clock, on_withdrawn=self._on_withdrawn)


def _no_such_key() -> InvalidCredentials:
    return InvalidCredentials(
        "The issuer of the token does not have its key (kid), or has several and the token names none."
    )


def _require_tls(name: str) -> None:
    try:
        require_callbacks()
    except StartUpError as error:
        raise CallersFileError(f"--callers: the keys of issuers.{name}: {error}") from error


def _load(path: Path, issuer: Issuer) -> KeySet:
    member = ("issuers", issuer.name, "jwks")
    try:
        keys = parse_jwks(read_file(path))
    except OSError as error:
        raise Mistake(member, f"names a file that cannot be read: {error.strerror}") from error
    except JWKSError as error:
        raise Mistake(member, f"names a file that {error}") from error
    if keys.algorithms.isdisjoint(issuer.algorithms):
        raise Mistake(
            member,
            f"names a file with keys for {', '.join(sorted(keys.algorithms))} only, so every token would be "
            f"rejected: the issuer's algorithms are {', '.join(issuer.algorithms)}",
        )
    return keys


def _without_query(url: str) -> str:
    """Leave out the query, which may have a secret."""
    return url.partition("?")[0]


def fetch_with(reactor: Any) -> Fetch:
    """
    Return a function that fetches keys over HTTP, within `FETCH_TIMEOUT_S` and up to `MAX_BYTES`.

    It does not follow redirects, and sends no credentials. The authorities that this machine trusts are read
    again for each fetch.

    :param reactor: for connections and the time.
    """

    async def get(url: str) -> bytes:
        # Not treq, which decodes gzip of any size, even if it was not accepted.
        agent = make_agent(reactor, connect_timeout_s=CONNECT_TIMEOUT_S)
        try:
            response = await agent.request(b"GET", url.encode("ascii"), Headers(_HEADERS))
            # Read the body in any case: an unread one would keep the connection.
            body = await read_body(response, max_bytes=MAX_BYTES)
        except (ConnectError, DNSLookupError) as error:
            raise FetchFailed(f"cannot be reached ({_words(error)})") from error
        except (ResponseFailed, RequestTransmissionFailed) as error:
            raise FetchFailed(_why([reason.value for reason in error.reasons])) from error
        except BodyTooLong as error:
            raise FetchFailed(f"answers with more than {MAX_BYTES} bytes") from error
        except ConnectionClosed as error:
            raise FetchFailed("closes the connection before the end of its answer") from error
        _require_plain(response)
        return body

    def fetch(url: str) -> Deferred[bytes]:
        def timed_out(result: bytes | Failure, timeout_s: float) -> bytes | Failure:
            if isinstance(result, Failure):
                raise FetchFailed(f"does not answer within {timeout_s:g} seconds") from result.value
            return result

        getting = Deferred.fromCoroutine(get(url))
        return getting.addTimeout(FETCH_TIMEOUT_S, reactor, onTimeoutCancel=timed_out)

    return fetch


def _require_plain(response: IResponse) -> None:
    """
    Check that the response is a plain 200.

    :raise FetchFailed: it has another status, or a content coding, which was not accepted.
    """
    if response.code in _REDIRECTS:
        raise FetchFailed(
            f"answers with a redirect ({response.code}), which is not followed; write the URL of the keys "
            "into jwks"
        )
    if response.code != OK:
        raise FetchFailed(f"answers with the status {response.code}, not {OK}")
    if response.headers.hasHeader(b"Content-Encoding"):
        raise FetchFailed("answers with a Content-Encoding, although none is accepted")


def _why(causes: Sequence[BaseException | None]) -> str:
    """Describe the error that ended a connection."""
    for cause in causes:
        if isinstance(cause, CertificateNotTrusted):
            return f"cannot be trusted: {cause.reason(of='that it sends', authority=_TRUST)}"
    return f"does not answer in valid HTTP ({', '.join(map(_words, causes))})"


def _words(error: BaseException | None) -> str:
    # Twisted's messages are sentences.
    return ", ".join(openssl_reasons(error)) or str(error).rstrip(".") or type(error).__name__
