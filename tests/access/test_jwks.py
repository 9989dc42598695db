"""Which keys of an issuer count."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from jwt.utils import to_base64url_uint

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


def rsa_key(*, bits=2048, exponent=65537, **members):
    """A public key of any size: not the product of two primes, which only its owner could tell."""
    numbers = {"n": (1 << bits) - 1, "e": exponent, **members}
    return {"kty": "RSA", **{name: to_base64url_uint(value).decode() for name, value in numbers.items()}}


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
        {**rsa_key(bits=2047), "kid": "other"},
        {**rsa_key(bits=8193), "kid": "other"},
        {**rsa_key(bits=1_000_000), "kid": "other"},
        {**rsa_key(exponent=2**32 + 1), "kid": "other"},
        {**rsa_key(d=2**2047 + 1), "kid": "other"},
        "other",
        None,
    ],
)
def test_a_key_that_cannot_be_used_is_left_out(other):
    keys = parse_jwks(jwks(other, jwk()))
    assert (len(keys), keys.left_out) == (1, 1)
    assert keys.find("other", "ES256") is None
    with pytest.raises(JWKSError, match="has no public key for signatures among its 1"):
        parse_jwks(jwks(other))


def test_rsa_keys_have_2048_to_8192_bits_and_an_exponent_of_up_to_32():
    for key in (rsa_key(), rsa_key(bits=8192, exponent=2**32 - 1), rsa_key(exponent=3)):
        assert len(parse_jwks(jwks(key))) == 1
    with pytest.raises(
        JWKSError, match=r"that is RSA of 2048 to 8192 bits, .* each without its private part$"
    ):
        parse_jwks(jwks(rsa_key(bits=8193)))


def test_private_keys_are_left_out_unread():
    """To find the factors of one of these, and to see that they are none, takes more than eight seconds."""
    with pytest.raises(JWKSError, match="without its private part"):
        parse_jwks(jwks(*[rsa_key(bits=16_384, d=2**16_383 + 1)] * 100))


def test_a_name_may_be_that_of_a_few_keys_for_one_algorithm():
    same = [jwk(number=number, kid="same") for number in range(5)]
    others = [jwk(algorithm, kid="same") for algorithm in ("ES384", "ES512", "RS256", "EdDSA")]
    keys = parse_jwks(jwks(*same[:4], *others, *same[:4]))
    assert (len(keys), keys.left_out) == (8, 0)
    assert len(keys.find("same", "ES256")) == 4
    with pytest.raises(
        JWKSError, match=r"^has 5 different keys for ES256 with the kid 'same'; at most 4 are allowed$"
    ):
        parse_jwks(jwks(*same))
    # Without a name, a key is only used if it is the only one.
    assert len(parse_jwks(jwks(*[{**each, "kid": None} for each in same]))) == 5


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "is not a JSON Web Key Set"),
        (b'{"keys": {}}', "is not a JSON Web Key Set"),
        (b'{"keys": []}', "has no public key"),
        (jwks(*[jwk()] * 101), "has 101 keys; at most 100 are allowed"),
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
