"""
The client's side of SASL's PLAIN (RFC 4616), SCRAM (RFC 5802, RFC 7677) and OAUTHBEARER (RFC 7628).

Each mechanism is a generator, without I/O: it yields a message to send, is sent the server's response, and
returns when both sides are satisfied. It raises `SaslError` if they cannot be. If the server rejects outside
of the mechanism, the caller throws `SaslRejected` into the generator, which raises one that may have a
reason.

Names and passwords are encoded in UTF-8 without SASLprep (RFC 4013): Kafka's brokers and clients do the same
(``ScramFormatter.normalize``), and a prepared password would not match the one that the broker stored.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from sampleapp.brokers.kafka.config import Mechanism

SaslSteps: TypeAlias = Generator[bytes, bytes, None]

MIN_ITERATIONS: Final = 4096
"""As in Kafka's own client: with fewer, a false server could guess the password (RFC 7677, section 4)."""
MAX_ITERATIONS: Final = 100_000
"""
Kafka allows up to 16,384 (``ScramMechanism``). 100,000 block the reactor for about 50 ms, which is not worth
a thread; a server that asks for more only wants to block the service.
"""

_NONCE_BYTES: Final = 24
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_CACHED: Final = 8
# The server's messages (RFC 5802, section 7). What follows the iteration count are extensions, to be ignored.
_SERVER_FIRST = re.compile(
    r"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>[A-Za-z0-9/+]+={0,2}),i=(?P<iterations>[1-9][0-9]{0,9})(?:,.*)?"
)
# Standard values of the status in OAUTHBEARER's error answer (RFC 6750, section 3.1, to which RFC 7628,
# section 3.2.2, refers). No other value is shown: a server may repeat the token there.
_OAUTH_ERRORS: Final = frozenset({"invalid_request", "invalid_token", "insufficient_scope"})
_SERVER_FINAL = re.compile(r"(?:v=(?P<signature>[A-Za-z0-9/+]+={0,2})|e=(?P<error>[^,]*))(?:,.*)?")


class Credentials:
    """
    A user name and a password.

    Not a struct of msgspec, which shows its fields in several representations.
    """

    __slots__ = ("password", "username")

    def __init__(self, *, username: str, password: str) -> None:
        self.username = username
        self.password = password

    def __repr__(self) -> str:
        return "<Credentials>"


class Token:
    """A bearer token. Like `Credentials`, it is not a struct, so that no representation shows it."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        """:param text: the token, of the characters that RFC 6750, section 2.1, allows."""
        self.text = text

    def __repr__(self) -> str:
        return "<Token>"


class SaslError(Exception):
    """The server violates the mechanism. The message never holds a credential."""


class SaslRejected(SaslError):
    """The server rejects the credentials."""

    def __init__(self, message: str, *, status: str | None = None) -> None:
        """:param status: OAuth's name of the reason, if the server gave a standard one."""
        super().__init__(message)
        self.status = status


class ServerUnproven(SaslError):
    """The server does not know the password, so it is not the intended server."""


def mechanism_steps(mechanism: Mechanism, credentials: Credentials) -> Callable[[], SaslSteps]:
    """
    Return a function that begins a mechanism with a password, for one connection after another.

    SCRAM's salted passwords are cached, so that only the first connection computes them.
    """
    if mechanism == "PLAIN":
        return lambda: plain(credentials)
    hash_name = _HASHES[mechanism]

    @lru_cache(maxsize=_CACHED)
    def salted(salt: bytes, iterations: int) -> bytes:
        return hashlib.pbkdf2_hmac(hash_name, credentials.password.encode(), salt, iterations)

    return lambda: scram(credentials.username, salted, hash_name=hash_name)


def plain(credentials: Credentials) -> SaslSteps:
    """PLAIN: one message with the name and the password (RFC 4616, section 2). Only TLS keeps them secret."""
    yield b"\0".join((b"", credentials.username.encode(), credentials.password.encode()))


def oauthbearer(token: Token, extensions: Sequence[tuple[str, str]] = ()) -> SaslSteps:
    """
    OAUTHBEARER: one message with the token (RFC 7628, section 3.1), and one that acknowledges an error.

    :param extensions: names and values sent with the token (KIP-342).
    :raise SaslRejected: the server rejects the token.
    :raise SaslError: the server violates the RFC.
    """
    pairs = [("auth", f"Bearer {token.text}"), *extensions]
    response = yield "\x01".join(("n,,", *(f"{name}={value}" for name, value in pairs), "", "")).encode()
    if not response:
        return
    status = _oauth_error(response)
    # The server fails the authentication only after this message (section 3.2.3).
    try:
        yield b"\x01"
    except SaslRejected:
        raise SaslRejected("it rejected the token", status=status) from None
    raise SaslError("it continues after an error")


def _oauth_error(response: bytes) -> str | None:
    """
    Return the status of an error answer, if it is a standard one (RFC 7628, section 3.2.2).

    :raise SaslError: it is not an error answer of OAUTHBEARER.
    """
    try:
        said = json.loads(response)
    except (ValueError, RecursionError):
        # Not chained: that error holds the response.
        said = None
    if not isinstance(said, dict):
        raise SaslError("its answer is not an error of OAUTHBEARER")
    status = said.get("status")
    return status if isinstance(status, str) and status in _OAUTH_ERRORS else None


def scram(
    username: str, salted: Callable[[bytes, int], bytes], *, hash_name: str, nonce: str | None = None
) -> SaslSteps:
    """
    SCRAM without channel binding, which Kafka does not have.

    :param salted: returns the salted password for a salt and a number of iterations: PBKDF2 with the hash.
    :param hash_name: the name of the hash in `hashlib`.
    :param nonce: a fixed nonce, for tests.
    :raise SaslRejected: the server rejects the credentials.
    :raise ServerUnproven: the server does not know the password.
    :raise SaslError: the server violates the RFC, or asks for too few or too many iterations.
    """

    def mac(key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, hash_name)

    nonce = secrets.token_urlsafe(_NONCE_BYTES) if nonce is None else nonce
    name = username.replace("=", "=3D").replace(",", "=2C")
    client_first = f"n={name},r={nonce}"
    server_first = _text((yield f"n,,{client_first}".encode()))

    challenge = _SERVER_FIRST.fullmatch(server_first)
    if challenge is None:
        raise SaslError("its first message is not one of SCRAM")
    if not challenge["nonce"].startswith(nonce) or challenge["nonce"] == nonce:
        raise SaslError("it did not add to the nonce that it was sent")
    iterations = int(challenge["iterations"])
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise SaslError(f"it asks for {iterations} iterations, not {MIN_ITERATIONS} to {MAX_ITERATIONS}")

    salted_password = salted(_decoded(challenge["salt"]), iterations)
    client_final = f"c=biws,r={challenge['nonce']}"
    message = f"{client_first},{server_first},{client_final}".encode()
    client_key = mac(salted_password, b"Client Key")
    signature = mac(hashlib.new(hash_name, client_key).digest(), message)
    proof = b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    server_final = _text((yield f"{client_final},p={proof}".encode()))

    verdict = _SERVER_FINAL.fullmatch(server_final)
    if verdict is None:
        raise SaslError("its last message is not one of SCRAM")
    if verdict["error"] is not None:
        raise SaslRejected("it rejected the proof")
    expected = mac(mac(salted_password, b"Server Key"), message)
    if not hmac.compare_digest(_decoded(verdict["signature"]), expected):
        raise ServerUnproven("it does not know the password")


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise SaslError("its message is not UTF-8") from None


def _decoded(base64: str) -> bytes:
    try:
        return b64decode(base64, validate=True)
    except ValueError:
        raise SaslError("its message has invalid base64") from None
