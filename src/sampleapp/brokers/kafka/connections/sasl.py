"""
The client's side of SASL's PLAIN (RFC 4616) and SCRAM (RFC 5802, RFC 7677), as pure steps.

Steps are a generator: it yields what to send, is sent what the server answered, and returns once the
server is satisfied, and the client with the server. It raises `SaslError` where that cannot be.

Names and passwords are their UTF-8 bytes, without SASLprep (RFC 4013): Kafka's brokers and clients do
the same (``ScramFormatter.normalize``), and a prepared password would not match what the broker stored.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import Final, TypeAlias

from sampleapp.brokers.kafka.config import Mechanism

__all__ = [
    "MAX_ITERATIONS",
    "MIN_ITERATIONS",
    "Credentials",
    "SaslError",
    "SaslRefused",
    "SaslSteps",
    "ServerUnproven",
    "mechanism_steps",
    "plain",
    "scram",
]

SaslSteps: TypeAlias = Generator[bytes, bytes, None]

MIN_ITERATIONS: Final = 4096
"""As in Kafka's own client: after fewer, a false server could guess the password (RFC 7677, section 4)."""
MAX_ITERATIONS: Final = 100_000
"""
Kafka allows 16,384 at most (``ScramMechanism``). These take some 50 ms, in which the reactor stands still:
too little to hand it to a thread, and a server that asks for more wants just that standstill.
"""

_NONCE_BYTES: Final = 24
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_CACHED: Final = 8
# The server's messages (RFC 5802, section 7). What follows the iteration count are extensions, to be ignored.
_SERVER_FIRST = re.compile(
    r"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>[A-Za-z0-9/+]+={0,2}),i=(?P<iterations>[1-9][0-9]{0,9})(?:,.*)?"
)
_SERVER_FINAL = re.compile(r"(?:v=(?P<signature>[A-Za-z0-9/+]+={0,2})|e=(?P<error>[^,]*))(?:,.*)?")


class Credentials:
    """
    A user name and a password.

    Not one of msgspec's structs, which show their fields in more representations than one.
    """

    __slots__ = ("password", "username")

    def __init__(self, *, username: str, password: str) -> None:
        self.username = username
        self.password = password

    def __repr__(self) -> str:
        return "<Credentials>"


class SaslError(Exception):
    """The server does not keep to the mechanism. The message never holds a credential."""


class SaslRefused(SaslError):
    """The server does not accept the credentials."""


class ServerUnproven(SaslError):
    """The server does not know the password, so it is not the one that was meant."""


def mechanism_steps(mechanism: Mechanism, credentials: Credentials) -> Callable[[], SaslSteps]:
    """
    What begins the steps of a mechanism, for one connection after another.

    What SCRAM computes for a salt is kept between them, so that only the first connection costs it.
    """
    if mechanism == "PLAIN":
        return lambda: plain(credentials)
    hash_name = _HASHES[mechanism]

    @lru_cache(maxsize=_CACHED)
    def salted(salt: bytes, iterations: int) -> bytes:
        return hashlib.pbkdf2_hmac(hash_name, credentials.password.encode(), salt, iterations)

    return lambda: scram(credentials.username, salted, hash_name=hash_name)


def plain(credentials: Credentials) -> SaslSteps:
    """PLAIN: one message with all of it (RFC 4616, section 2). Only TLS keeps it from being read."""
    yield b"\0".join((b"", credentials.username.encode(), credentials.password.encode()))


def scram(
    username: str, salted: Callable[[bytes, int], bytes], *, hash_name: str, nonce: str | None = None
) -> SaslSteps:
    """
    SCRAM without channel binding, which Kafka does not have.

    :param salted: the salted password for a salt and a number of iterations: PBKDF2 with the hash.
    :param hash_name: as `hashlib` calls it.
    :param nonce: for a test whose messages are known beforehand.
    :raise SaslRefused: the server refuses the credentials.
    :raise ServerUnproven: the server does not know the password.
    :raise SaslError: the server does not keep to the RFC, or asks for too few or too many iterations.
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
        raise SaslRefused("it refused the proof")
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
        raise SaslError("its message has wrong base64 in it") from None
