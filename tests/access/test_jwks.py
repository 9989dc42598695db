"""Which keys of an issuer count."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from sampleapp.access.jwks import ALGORITHMS, JWKSError, parse_jwks
from tests.support.issuer import jwk, jwks, private_key
from tests.support.strategies import json_values


def test_every_algorithm_has_a_key():
    for algorithm in ALGORITHMS:
        (found,) = parse_jwks(jwks(jwk(algorithm))).find(f"{algorithm}-0", algorithm)
        assert found.algorithms == (algorithm,)


def test_a_key_is_found_by_what_a_token_names():
    keys = parse_jwks(jwks(jwk(), jwk(number=1), jwk("RS256", alg=None)))
    assert [key.kid for key in keys.find("ES256-1", "ES256")] == ["ES256-1"]
    assert keys.find("ES256-2", "ES256") is None
    assert keys.find("ES256-0", "RS256") == []
    assert [key.kid for key in keys.find(None, "PS512")] == ["RS256-0"]
    assert keys.find(None, "ES256") == []
    assert keys.find(None, "EdDSA") is None


WEAK = RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key(), as_dict=True)
OTHER_CURVE = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256K1()).public_key(), as_dict=True)
PRIVATE = ECAlgorithm.to_jwk(private_key("ES256", 7), as_dict=True)


@pytest.mark.parametrize(
    "other",
    [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "other"},
        {"kty": "AKP", "alg": "ML-DSA-44", "kid": "other"},
        jwk(number=1, kid="other", use="enc"),
        jwk(number=1, kid="other", key_ops=["encrypt"]),
        jwk(number=1, kid="other", alg="ES384"),
        jwk(number=1, kid=7),
        jwk(number=1, kid="other", x="AAAA"),
        jwk(number=1, kid="other", y=7),
        {**WEAK, "kid": "other"},
        {**OTHER_CURVE, "kid": "other"},
        {**PRIVATE, "kid": "other"},
        {"kid": "other"},
        "other",
        None,
    ],
)
def test_a_key_that_cannot_be_used_is_left_out(other):
    keys = parse_jwks(jwks(other, jwk()))
    assert len(keys) == 1
    assert keys.find("other", "ES256") is None
    with pytest.raises(JWKSError, match="has no public key for signatures among its 1"):
        parse_jwks(jwks(other))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "is no JSON Web Key Set"),
        (b'{"keys": {}}', "is no JSON Web Key Set"),
        (b'{"keys": []}', "has no public key"),
        (jwks(*[jwk()] * 101), "has 101 keys; there may be 100"),
        (b"<html>", "is not JSON"),
    ],
)
def test_what_is_no_set_of_keys_is_said_to_be_none(data, reason):
    with pytest.raises(JWKSError, match=reason):
        parse_jwks(data)


@given(st.dictionaries(st.sampled_from([*sorted(jwk("RS256")), "crv", "x", "y", "d"]), json_values))
def test_no_members_of_a_key_make_more_of_it_than_one_that_cannot_be_used(members):
    data = json.dumps({"keys": [jwk(), {**jwk("RS256"), **members}]}).encode()
    assert len(parse_jwks(data)) in {1, 2}


def test_keys_that_are_missing_in_another_set_are_noticed():
    one, both = parse_jwks(jwks(jwk())), parse_jwks(jwks(jwk(), jwk("EdDSA")))
    assert both.has_all_of(one)
    assert not one.has_all_of(both)
    # The same name for another key is another key.
    assert not one.has_all_of(parse_jwks(jwks(jwk(number=1, kid="ES256-0"))))
