"""
JSON Web Key Sets (RFC 7517): the public keys with which an issuer's tokens are verified.

What a set has besides is left out: keys of kinds that are not known here, keys for encryption, symmetric
keys, and keys that are too weak. An issuer may have them for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import Algorithm, ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from msgspec import Struct

__all__ = ["ALGORITHMS", "JWKSError", "KeySet", "PublicKey", "VerificationKey", "parse_jwks"]

PublicKey: TypeAlias = "RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey"

_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
# One for each curve (RFC 7518, section 3.4), by the names that cryptography has for them.
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_EDWARDS: Final = "EdDSA"

ALGORITHMS: Final = (*_RSA, *_CURVES.values(), _EDWARDS)
"""
Those with which a token may be signed (RFC 7518, section 3.1; RFC 8037).

Only asymmetric ones: with a symmetric one, whoever can verify a token can make one.
"""

_KINDS: Final[Mapping[str, type[Algorithm]]] = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}
_MOST_KEYS: Final = 100
_FEWEST_RSA_BITS: Final = 2048
"""RFC 7518, section 3.3."""


class JWKSError(ValueError):
    """This is not a set of keys, or no key in it can be used. The message is the end of a sentence."""


class VerificationKey(Struct, frozen=True):
    """A key, and what it may verify."""

    kid: str | None
    """By which tokens name it."""
    key: PublicKey
    algorithms: tuple[str, ...]


class KeySet:
    """The keys of one issuer."""

    def __init__(self, keys: Iterable[VerificationKey] = ()) -> None:
        self._keys = tuple(keys)
        self._by_kid: dict[str, list[VerificationKey]] = {}
        for key in self._keys:
            if key.kid is not None:
                self._by_kid.setdefault(key.kid, []).append(key)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, kid: str | None, algorithm: str) -> list[VerificationKey] | None:
        """
        Find the keys that may verify a token.

        :param kid: the key that the token names. If it names none, it takes the only key that there is for
            the algorithm: to try several would let whoever sends a token choose how much that costs.
        :return: ``None`` if the issuer may have such a key now, and this set does not. No key, if it has the
            key, which is for something else.
        """
        if kid is not None:
            named = self._by_kid.get(kid)
            return None if named is None else [key for key in named if algorithm in key.algorithms]
        fitting = [key for key in self._keys if algorithm in key.algorithms]
        if not fitting:
            return None
        return fitting if len(fitting) == 1 else []

    def has_all_of(self, other: KeySet) -> bool:
        """Whether no key of another set is missing here."""
        return {_identity(key) for key in other._keys} <= {_identity(key) for key in self._keys}


def _identity(key: VerificationKey) -> tuple[Any, ...]:
    public = key.key
    if isinstance(public, Ed25519PublicKey):
        return key.kid, key.algorithms, public.public_bytes_raw()
    return key.kid, key.algorithms, public.public_numbers()


def parse_jwks(data: bytes) -> KeySet:
    """
    Read a set of keys.

    :param data: JSON, in UTF-8.
    :raise JWKSError: it is none, or has no key that can be used.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise JWKSError("is not JSON") from None
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list):
        raise JWKSError('is no JSON Web Key Set: an object with an array "keys" (RFC 7517, section 5)')
    if len(keys) > _MOST_KEYS:
        raise JWKSError(f"has {len(keys)} keys; there may be {_MOST_KEYS}")
    usable = [key for key in map(_usable, keys) if key is not None]
    if not usable:
        raise JWKSError(
            f"has no public key for signatures among its {len(keys)}: that is RSA of at least "
            f"{_FEWEST_RSA_BITS} bits, EC on P-256, P-384 or P-521, or OKP with Ed25519"
        )
    return KeySet(usable)


def _usable(jwk: Any) -> VerificationKey | None:
    """Return a key, or ``None`` if tokens cannot be verified with it."""
    if not isinstance(jwk, dict):
        return None
    kind, kid, operations = jwk.get("kty"), jwk.get("kid"), jwk.get("key_ops")
    if (
        not isinstance(kind, str)
        or kind not in _KINDS
        or not isinstance(kid, str | None)
        or jwk.get("use", "sig") != "sig"
        or (operations is not None and not (isinstance(operations, list) and "verify" in operations))
    ):
        return None
    try:
        key = _KINDS[kind].from_jwk(jwk)
    except Exception:  # noqa: BLE001 -- the library has no list of what hostile members can make it raise
        return None
    algorithms = _algorithms(key)
    if "alg" in jwk:
        algorithms = tuple(name for name in algorithms if name == jwk["alg"])
    return VerificationKey(kid, key, algorithms) if algorithms else None


def _algorithms(key: object) -> tuple[str, ...]:
    """Return what a key may be used for. A private key is no key to verify with, and does not belong here."""
    if isinstance(key, RSAPublicKey):
        return _RSA if key.key_size >= _FEWEST_RSA_BITS else ()
    if isinstance(key, EllipticCurvePublicKey):
        name = _CURVES.get(key.curve.name)
        return () if name is None else (name,)
    return (_EDWARDS,) if isinstance(key, Ed25519PublicKey) else ()
