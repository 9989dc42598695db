"""Verification of JSON Web Tokens."""

from __future__ import annotations

import base64
import json

import jwt
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from sampleapp.access import Caller
from sampleapp.access.caller import TopicPatterns
from sampleapp.access.errors import InvalidCredentials
from sampleapp.access.issuers import Issuer, Subject
from sampleapp.access.json_web_tokens import LEEWAY_S, MOST_PATTERNS, JWTVerifier
from sampleapp.access.jwks import ALGORITHMS, parse_jwks
from sampleapp.concurrency.rates import Rate
from tests.support.issuer import AUDIENCE, CLAIMS, ISSUER, NOW_S, jwk, jwks, private_key, signed

KITCHEN = Caller(name="kitchen", publish=TopicPatterns(["readings"]))


class Keys:
    """Keys that are known; `asked` has those that were not."""

    def __init__(self, *keys):
        self._keys = parse_jwks(jwks(*keys))
        self.asked = []

    def find(self, kid, algorithm, *, now_s):
        found = self._keys.find(kid, algorithm)
        if found is None:
            self.asked.append(kid)
            raise InvalidCredentials("no such key")
        return found


def verifier(*keys, **changes):
    named = {"caller_claim": "sub", "names_callers": True}
    settings = {} if {"publish_claim", "consume_claim", "work_claim"} & changes.keys() else named
    issuer = Issuer(
        name="example", issuer=ISSUER, audience=AUDIENCE, jwks="unused", **{**settings, **changes}
    )
    keys = Keys(*(keys or [jwk()]))
    return JWTVerifier(
        {"example": issuer},
        {"example": keys},
        callers={"kitchen": KITCHEN},
        subjects={Subject("example", "auth0|123"): KITCHEN, Subject("other", "auth0|456"): KITCHEN},
    )


def verify(token, *keys, now_s=NOW_S, **changes):
    return verifier(*keys, **changes).verify(token, now_s=now_s)


def rejection(token, *keys, **changes):
    with pytest.raises(InvalidCredentials) as caught:
        verify(token, *keys, **changes)
    return str(caught.value)


def rejection_of_any(token):
    """Return the message for an invalid token that has the form of one."""
    try:
        verified = verify(token)
    except InvalidCredentials as error:
        return str(error)
    assert verified is None
    return ""


def part(value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_that_its_issuer_has_signed_names_a_caller(algorithm):
    assert verify(signed(algorithm=algorithm), jwk(algorithm)) == (KITCHEN, NOW_S + 600 + LEEWAY_S)


@pytest.mark.parametrize("algorithm", ["PS384", "RS512"])
def test_a_key_without_an_algorithm_is_for_all_of_its_kind(algorithm):
    assert verify(signed(algorithm=algorithm), jwk(algorithm, alg=None, use=None))


@pytest.mark.parametrize(
    "token", [b"sampleapp_abc", b"a.b", b"a.b.c.d", b"a..c", b"a.b.", b"a.b.c=", b"a b.c.d"]
)
def test_what_has_not_the_form_of_one_is_left_to_others(token):
    assert verify(token) is None


TOKEN = signed()
POSITIONS = st.integers(0, len(TOKEN) - 1)
# The characters of tokens.
LETTERS = st.sampled_from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.").map(
    lambda number: bytes([number])
)


@given(
    st.tuples(POSITIONS, POSITIONS, st.lists(LETTERS, max_size=3).map(b"".join)).map(
        lambda change: TOKEN[: min(change[:2])] + change[2] + TOKEN[max(change[:2]) :]
    )
    | st.tuples(POSITIONS, LETTERS).map(
        lambda change: TOKEN[: change[0]] + change[1] + TOKEN[change[0] + 1 :]
    )
    | st.lists(LETTERS, min_size=1, max_size=3).map(lambda more: TOKEN + b"".join(more))
    | st.permutations(TOKEN.split(b".")).map(b".".join)
)
def test_no_change_to_a_valid_token_passes(changed):
    assume(changed != TOKEN)
    said = rejection_of_any(changed)
    assert changed.decode() not in said


@pytest.mark.parametrize("position", range(-1, -5, -1))
def test_a_signature_has_one_spelling_only(position):
    # Base64 leaves bits of a last letter unused.
    for letter in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_":
        changed = bytearray(TOKEN)
        changed[position] = letter
        if changed != TOKEN:
            rejection(bytes(changed))


@given(st.binary(), st.binary(), st.binary())
def test_no_bytes_in_any_part_fail_or_pass(header, claims, signature):
    rejection_of_any(b".".join([part(header), part(claims), part(signature)]))


HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "alg": st.sampled_from([*ALGORITHMS, "none", "None", "HS256", "ES256K", "", 1, None]),
        "kid": st.sampled_from(["ES256-0", "RS256-0", "ES256-1", "", 1, None, ["ES256-0"]]),
        "typ": st.sampled_from(["JWT", "at+jwt", "logout+jwt", "", 1, None]),
        "crit": st.sampled_from([[], ["exp"], ["b64"], None, "exp"]),
        "b64": st.booleans(),
        "jwk": st.just(jwk("ES256", 1)),
        "jku": st.just("https://evil.example/jwks.json"),
        "x5u": st.just("https://evil.example/x5u"),
        "x5c": st.just(["MII"]),
    },
)


@given(HEADERS, st.sampled_from(["ES256", "RS256"]), st.integers(0, 1))
def test_no_header_makes_a_signature_of_another_key_count(header, algorithm, number):
    signing_input = part(header) + b"." + part(CLAIMS)
    signer = jwt.get_algorithm_by_name(algorithm)
    signature = signer.sign(signing_input, private_key(algorithm, 1 + number))
    rejection(signing_input + b"." + part(signature), jwk("ES256"), jwk("RS256"))


def test_a_token_without_a_signature_is_none():
    for name in ["none", "None", "NONE"]:
        header = part({"alg": name, "typ": "JWT", "kid": "ES256-0"})
        assert verify(header + b"." + part(CLAIMS) + b".") is None
        rejection(header + b"." + part(CLAIMS) + b".AA")


def test_a_public_key_is_no_secret_to_sign_with():
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = private_key("RS256").public_key()
    hmac = jwt.get_algorithm_by_name("HS256")
    for form in (PublicFormat.SubjectPublicKeyInfo, PublicFormat.PKCS1):
        for encoding in (Encoding.PEM, Encoding.DER):
            signing_input = part({"alg": "HS256", "kid": "RS256-0"}) + b"." + part(CLAIMS)
            signature = hmac.sign(signing_input, public.public_bytes(encoding, form))
            said = rejection(signing_input + b"." + part(signature), jwk("RS256"), jwk("RS256", alg=None))
            assert said == "The token is signed with an algorithm (alg) that is not allowed here."


def test_keys_that_a_token_brings_along_are_not_looked_at():
    header = {"jwk": jwk(number=1), "jku": "http://127.0.0.1:1/", "x5u": "http://127.0.0.1:1/"}
    rejection(signed(number=1, header={"kid": "ES256-0", **header}))
    assert verify(signed(header=header))


@pytest.mark.parametrize("crit", [["exp"], ["b64"], [], None])
def test_a_critical_extension_is_rejected(crit):
    signing_input = part({"alg": "ES256", "kid": "ES256-0", "crit": crit, "exp": 1}) + b"." + part(CLAIMS)
    signature = jwt.get_algorithm_by_name("ES256").sign(signing_input, private_key("ES256"))
    assert "critical extensions" in rejection(signing_input + b"." + part(signature))


def test_only_algorithms_of_the_file_are_taken_whatever_the_keys_are_for():
    said = "The token is signed with an algorithm (alg) that is not allowed here."
    assert rejection(signed(), algorithms=("RS256",)) == said
    assert verify(signed(), algorithms=("RS256", "ES256"))
    # The algorithm of a key comes from the key itself.
    assert "is not by a key of its issuer" in rejection(
        signed(algorithm="PS256", header={"kid": "RS256-0"}), jwk("RS256")
    )


def test_a_token_that_names_no_key_takes_the_only_one_there_is():
    token = signed(header={"kid": None})
    assert verify(token)
    assert verify(token, jwk(), jwk("RS256"))
    assert "is not by a key of its issuer" in rejection(token, jwk(), jwk(number=1))


def test_a_token_of_another_issuer_or_for_another_audience_is_rejected():
    assert (
        rejection(signed(iss="https://login.example")) == "The issuer (iss) of the token is not known here."
    )
    assert "known here" in rejection(signed(iss=None))
    assert "another audience" in rejection(signed(aud="other"))
    assert "another audience" in rejection(signed(aud=None))
    assert "another audience" in rejection(signed(aud=[]))
    assert verify(signed(aud=["other", AUDIENCE]))


def test_two_issuers_have_keys_of_their_own():
    settings = {"audience": AUDIENCE, "jwks": "unused", "caller_claim": "sub"}
    issuers = {
        "one": Issuer(name="one", issuer=ISSUER, **settings),
        "two": Issuer(name="two", issuer="https://two.example", **settings),
    }
    keys = {"one": Keys(jwk()), "two": Keys(jwk("RS256"))}
    subjects = {Subject(name, "kitchen"): KITCHEN for name in issuers}
    both = JWTVerifier(issuers, keys, callers={}, subjects=subjects)
    assert both.verify(signed(), now_s=NOW_S)
    assert both.verify(signed(algorithm="RS256", iss="https://two.example"), now_s=NOW_S)
    with pytest.raises(InvalidCredentials):
        both.verify(signed(iss="https://two.example"), now_s=NOW_S)


EDGES_S = [-1000 - LEEWAY_S, -1000, -1000 + LEEWAY_S, -600, -LEEWAY_S, 0, LEEWAY_S, 1000]
"""Offsets at which a wrong sign or a missing leeway makes a difference."""


@given(
    st.sampled_from(EDGES_S).flatmap(
        lambda edge: st.sampled_from([edge - 0.001, edge, edge + 0.001]) | st.floats(edge - 1, edge + 1)
    )
    | st.floats(-1e6, 1e6)
)
@example(-1000 - LEEWAY_S)
@example(-1000 - LEEWAY_S - 0.001)
@example(LEEWAY_S)
@example(LEEWAY_S - 0.001)
def test_a_token_is_valid_until_its_end_and_from_its_beginning_on_but_for_a_leeway(offset_s):
    now_s = NOW_S + offset_s
    token = signed(exp=NOW_S, nbf=NOW_S - 1000)
    if NOW_S - 1000 - LEEWAY_S <= now_s < NOW_S + LEEWAY_S:
        assert verify(token, now_s=now_s) == (KITCHEN, NOW_S + LEEWAY_S)
    else:
        said = rejection(token, now_s=now_s)
        assert ("any more (exp)" if offset_s > 0 else "yet (nbf)") in said


@pytest.mark.parametrize("iat", [NOW_S - 1e9, NOW_S + 1e9, "yesterday"])
def test_the_time_at_which_a_token_was_made_means_nothing(iat):
    assert verify(signed(exp=NOW_S + 1, iat=iat)) == (KITCHEN, NOW_S + 1 + LEEWAY_S)


@pytest.mark.parametrize("value", ["1800000600", True, float("nan"), float("inf"), [], 10**400, {}])
@pytest.mark.parametrize("claim", ["exp", "nbf"])
def test_times_have_to_be_numbers(claim, value):
    claims = {**CLAIMS, claim: value}
    signing_input = part({"alg": "ES256", "kid": "ES256-0"}) + b"." + part(claims)
    signature = jwt.get_algorithm_by_name("ES256").sign(signing_input, private_key("ES256"))
    rejection(signing_input + b"." + part(signature))


def test_a_token_without_an_end_is_rejected():
    assert "lacks one of the claims" in rejection(signed(exp=None))


@pytest.mark.parametrize("claims", [b"[]", b"1", b"\xff", b"{", b'{"iss":', b"[" * 100_000, b'"' + b"x" * 10])
def test_claims_that_are_no_object_are_rejected(claims):
    signing_input = part({"alg": "ES256", "kid": "ES256-0"}) + b"." + part(claims)
    signature = jwt.get_algorithm_by_name("ES256").sign(signing_input, private_key("ES256"))
    rejection(signing_input + b"." + part(signature))


@pytest.mark.parametrize("typ", ["JWT", "jwt", "at+jwt", "application/at+jwt", None])
def test_a_token_may_say_that_it_is_one(typ):
    assert verify(signed(header={"typ": typ}))


def test_a_token_for_something_else_is_rejected():
    assert "another purpose" in rejection(signed(header={"typ": "logout+jwt"}))


def test_a_token_is_not_the_caller_whose_name_it_has_unless_its_issuer_may_name_callers():
    # Many issuers let their users choose their names.
    admin = Caller(name="admin", publish=TopicPatterns(["*"]))
    settings = {"audience": AUDIENCE, "jwks": "unused", "caller_claim": "preferred_username"}
    issuers = {
        "corp": Issuer(name="corp", issuer=ISSUER, names_callers=True, **settings),
        "partner": Issuer(name="partner", issuer="https://partner.example", **settings),
    }
    both = JWTVerifier(
        issuers,
        dict.fromkeys(issuers, Keys(jwk())),
        callers={"admin": admin, "kitchen": KITCHEN},
        subjects={Subject("partner", "Joe"): KITCHEN, Subject("corp", "kitchen"): admin},
    )

    def who(name, **changes):
        return both.verify(signed(preferred_username=name, **changes), now_s=NOW_S)[0]

    assert who("admin") == admin
    assert who("kitchen") == admin
    assert who("Joe", iss="https://partner.example") == KITCHEN
    for name in ("admin", "kitchen"):
        with pytest.raises(InvalidCredentials, match="names no caller in its claim preferred_username"):
            who(name, iss="https://partner.example")
    with pytest.raises(InvalidCredentials):
        who("Joe")


def test_a_token_may_call_somebody_in_its_own_way():
    assert verify(signed(sub="auth0|123"))[0] == KITCHEN
    assert "names no caller" in rejection(signed(sub="auth0|456"))


@pytest.mark.parametrize("name", ["Kitchen", "", 1, ["kitchen"], None])
def test_a_name_of_no_caller_is_rejected(name):
    assert rejection(signed(who=name), caller_claim="who") == "The token names no caller in its claim who."


def test_rights_may_come_from_a_claim():
    token = signed(topics=["readings", "sensors.*", "no topic", ""])
    caller, _ = verify(token, publish_claim="topics", read=True)
    expected = TopicPatterns(["readings", "sensors.*"])
    assert caller == Caller(name="example:kitchen", publish=expected, read=True)
    caller, _ = verify(signed(topics="readings sensors.* write:no-topic"), publish_claim="topics")
    assert (caller.publish, caller.read, caller.metrics) == (expected, False, False)
    assert not verify(signed(), publish_claim="topics")[0].publish


def test_the_topics_to_read_come_from_a_claim_of_their_own():
    token = signed(write=["readings"], read="sensors.* alarms")
    caller, _ = verify(token, publish_claim="write", consume_claim="read")
    assert (list(caller.publish), list(caller.consume)) == (["readings"], ["sensors.*", "alarms"])
    caller, _ = verify(token, consume_claim="read")
    assert (list(caller.publish), list(caller.consume)) == ([], ["sensors.*", "alarms"])
    assert "in its claim read;" in rejection(signed(read=[f"t{n}" for n in range(101)]), consume_claim="read")
    assert "The claim read of the token must be" in rejection(signed(read=1), consume_claim="read")


def test_the_groups_to_work_in_come_from_a_claim_of_their_own():
    token = signed(groups="orders/billing invoices/* orders ../x", topics=["orders/billing"])
    caller, _ = verify(token, publish_claim="topics", work_claim="groups")
    assert (list(caller.publish), list(caller.work)) == ([], ["orders/billing", "invoices/*"])
    assert list(verify(signed(groups="*"), work_claim="groups")[0].work) == ["*"]
    assert "The claim groups of the token must be" in rejection(signed(groups=1), work_claim="groups")


def test_a_token_brings_along_at_most_a_hundred_topics():
    names = [f"topic-{number}" for number in range(MOST_PATTERNS + 1)]
    # One that is twice there, and what can be no topic, takes no room.
    most = signed(topics=[*names[1:], names[1], "no topic"])
    assert list(verify(most, publish_claim="topics")[0].publish) == names[1:]
    for too_many in (names, " ".join(names)):
        said = rejection(signed(topics=too_many), publish_claim="topics")
        assert said.startswith("The token has more than 100 names and patterns in its claim topics")


def test_a_caller_that_a_token_makes_has_the_rates_of_its_issuer():
    rates = {"requests": Rate(5, 9), "bytes": Rate(1000, 2000)}
    caller, _ = verify(signed(topics=["t"]), publish_claim="topics", **rates)
    assert (caller.requests, caller.bytes) == (rates["requests"], rates["bytes"])


@pytest.mark.parametrize("value", [1, True, {"readings": 1}, ["readings", 1]])
def test_rights_of_another_shape_are_rejected(value):
    assert "an array of strings" in rejection(signed(topics=value), publish_claim="topics")


@pytest.mark.parametrize("subject", ["", 1, None, "x" * 201])
def test_rights_need_somebody_who_has_them(subject):
    rejection(signed(sub=subject), publish_claim="topics")


def test_a_name_that_a_token_makes_is_that_of_nobody_else_and_can_stand_in_a_line():
    names = ["kitchen", "ä", "a b", "a%20b", 'a"b', "a\nb", "auth0|12", "system:serviceaccount:a:b"]
    made = [verify(signed(sub=name), publish_claim="topics")[0].name for name in names]
    assert len(set(made)) == len(names)
    assert all(name.isascii() and name.isprintable() and '"' not in name and " " not in name for name in made)
    assert made[-1] == "example:system:serviceaccount:a:b"
