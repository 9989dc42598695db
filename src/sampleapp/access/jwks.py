"""
JSON Web Key Sets (RFC 7517): the public keys that verify an issuer's tokens.

Other keys of a set are left out: keys of unknown kinds, keys for encryption, symmetric and private keys, and
RSA keys of another size. They may be meant for other services.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import Algorithm, ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from msgspec import Struct

PublicKey: TypeAlias = "RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey"

_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
# One for each curve (RFC 7518, section 3.4), by the names that cryptography has for them.
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_EDWARDS: Final = "EdDSA"

ALGORITHMS: Final = (*_RSA, *_CURVES.values(), _EDWARDS)
"""
The supported signature algorithms (RFC 7518, section 3.1; RFC 8037).

Only asymmetric ones: with a symmetric one, every verifier of tokens could also make them.
"""

_KINDS: Final[Mapping[str, type[Algorithm]]] = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}
_MOST_KEYS: Final = 100
_FEWEST_RSA_BITS: Final = 2048
"""RFC 7518, section 3.3."""
_MOST_RSA_BITS: Final = 8192
_MOST_EXPONENT_BITS: Final = 32
"""
Verifying one signature takes up to 0.7 ms within these two limits, and up to 4 ms beyond them.

Any client can have signatures verified, since the names of keys are public.
"""
_MOST_OF_ONE_NAME: Final = 4
"""Keys with one name and algorithm. A token with that name is verified with each of them."""


class JWKSError(ValueError):
    """The data is not a key set, or has no usable key. The message is the end of a sentence."""


class VerificationKey(Struct, frozen=True):
    """A key, and the algorithms that it may verify."""

    kid: str | None
    """The key's name in tokens."""
    key: PublicKey
    algorithms: tuple[str, ...]


class KeySet:
    """The keys of one issuer."""

    def __init__(self, keys: Iterable[VerificationKey] = (), *, left_out: int = 0) -> None:
        """:param left_out: the number of further keys of the issuer, which cannot be used here."""
        self.left_out = left_out
        self._keys = tuple(keys)
        self._by_kid: dict[str, list[VerificationKey]] = {}
        for key in self._keys:
            if key.kid is not None:
                self._by_kid.setdefault(key.kid, []).append(key)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def algorithms(self) -> frozenset[str]:
        """The algorithms that its keys may verify."""
        return frozenset(name for key in self._keys for name in key.algorithms)

    def find(self, kid: str | None, algorithm: str) -> list[VerificationKey] | None:
        """
        Find the keys that may verify a token.

        :param kid: the key that the token names. If it names none, the only key for the algorithm is used:
            if several were tried, a client could choose how much the verification costs.
        :return: ``None`` if this set does not have the key, but the issuer may have it by now. An empty list
            if the key is there and is not for this algorithm, or is one of several.
        """
        if kid is not None:
            named = self._by_kid.get(kid)
            return None if named is None else [key for key in named if algorithm in key.algorithms]
        fitting = [key for key in self._keys if algorithm in key.algorithms]
        if not fitting:
            return None
        return fitting if len(fitting) == 1 else []

    def has_all_of(self, other: KeySet) -> bool:
        """Return whether this set has all keys of another set."""
        return {_identity(key) for key in other._keys} <= {_identity(key) for key in self._keys}


def _identity(key: VerificationKey) -> tuple[Any, ...]:
    public = key.key
    if isinstance(public, Ed25519PublicKey):
        return key.kid, key.algorithms, public.public_bytes_raw()
    return key.kid, key.algorithms, public.public_numbers()


def parse_jwks(data: bytes) -> KeySet:
    """
    Parse a key set.

    :param data: JSON, in UTF-8.
    :raise JWKSError: it is not a key set, or has no usable key.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise JWKSError("is not JSON") from None
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list):
        raise JWKSError('is not a JSON Web Key Set: an object with an array "keys" (RFC 7517, section 5)')
    if len(keys) > _MOST_KEYS:
        raise JWKSError(f"has {len(keys)} keys; at most {_MOST_KEYS} are allowed")
    found = [key for key in map(_usable, keys) if key is not None]
    if not found:
        raise JWKSError(
            f"has no public key for signatures among its {len(keys)}: that is RSA of {_FEWEST_RSA_BITS} to "
            f"{_MOST_RSA_BITS} bits, EC on P-256, P-384 or P-521, or OKP with Ed25519, each without its "
            "private part"
        )
    usable = {_identity(key): key for key in found}.values()
    names = Counter((key.kid, name) for key in usable for name in key.algorithms if key.kid is not None)
    for (kid, algorithm), count in names.items():
        if count > _MOST_OF_ONE_NAME:
            raise JWKSError(
                f"has {count} different keys for {algorithm} with the kid {ascii(kid)[:100]}; at most "
                f"{_MOST_OF_ONE_NAME} are allowed"
            )
    return KeySet(usable, left_out=len(keys) - len(found))


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
        # Loading a private key takes seconds, since the library checks that its factors are primes.
        or "d" in jwk
        or (operations is not None and not (isinstance(operations, list) and "verify" in operations))
    ):
        return None
    try:
        key = _KINDS[kind].from_jwk(jwk)
    except Exception:  # noqa: BLE001 -- the library does not document its errors for hostile members
        return None
    algorithms = _algorithms(key)
    if "alg" in jwk:
        algorithms = tuple(name for name in algorithms if name == jwk["alg"])
    return VerificationKey(kid, key, algorithms) if algorithms else None


def _algorithms(key: object) -> tuple[str, ...]:
    """Return the algorithms of a key."""
    if isinstance(key, RSAPublicKey):
        is_usable = (
            _FEWEST_RSA_BITS <= key.key_size <= _MOST_RSA_BITS
            and key.public_numbers().e.bit_length() <= _MOST_EXPONENT_BITS
        )
        return _RSA if is_usable else ()
    if isinstance(key, EllipticCurvePublicKey):
        name = _CURVES.get(key.curve.name)
        return () if name is None else (name,)
    return (_EDWARDS,) if isinstance(key, Ed25519PublicKey) else ()
