"""An issuer of JSON Web Tokens: its keys, what it publishes of them, and what it signs."""

from __future__ import annotations

import json
from functools import cache

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.support.secrets import secret

NOW_S = 1_800_000_000.0
ISSUER = "https://login.example/"
AUDIENCE = "sampleapp"
CLAIMS = {"iss": ISSUER, "aud": AUDIENCE, "sub": "kitchen", "exp": NOW_S + 600}

_CURVES = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}


@cache
def private_key(algorithm, number=0):
    """A key for an algorithm; another one for each number."""
    if algorithm in _CURVES:
        return ec.generate_private_key(_CURVES[algorithm]())
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, 2048) if algorithm == "RS256" else private_key("RS256", number)


def jwk(algorithm="ES256", number=0, **members):
    """The public key, as its issuer publishes it."""
    kind = {"E": ECAlgorithm, "R": RSAAlgorithm, "P": RSAAlgorithm}[algorithm[0]]
    if algorithm == "EdDSA":
        kind = OKPAlgorithm
    public = kind.to_jwk(private_key(algorithm, number).public_key(), as_dict=True)
    found = {**public, "kid": f"{algorithm}-{number}", "use": "sig", "alg": algorithm, **members}
    return {name: value for name, value in found.items() if value is not None}


def jwks(*keys):
    return json.dumps({"keys": list(keys)}).encode()


def signed(claims=None, *, algorithm="ES256", number=0, header=None, **changes):
    """
    A token.

    :param changes: claims on top of `CLAIMS`; ``None`` leaves one out.
    """
    claims = {**(CLAIMS if claims is None else claims), **changes}
    headers = {"kid": f"{algorithm}-{number}", **(header or {})}
    token = jwt.encode(
        {name: value for name, value in claims.items() if value is not None},
        private_key(algorithm, number),
        algorithm=algorithm,
        headers={name: value for name, value in headers.items() if value is not None},
    )
    _, content, signature = token.split(".")
    secret(content, "the claims of a token")
    secret(signature, "the signature of a token")
    return token.encode()
