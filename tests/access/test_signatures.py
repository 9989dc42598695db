"""
Signatures of webhooks, held against what the senders' own programs make.

GitHub's and Slack's vectors are those of their documentation:
https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries and
https://docs.slack.dev/authentication/verifying-requests-from-slack. The others were made with the packages
stripe 16.1.0 (https://github.com/stripe/stripe-python), slack_sdk 3.47.0
(https://github.com/slackapi/python-slack-sdk) and standardwebhooks 1.1.0
(https://github.com/standard-webhooks/standard-webhooks). No package verifies with a public key; its vector is
that of Svix's server, in the test of ``sign_msg`` (https://github.com/svix/svix-webhooks).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
from itertools import product

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.access.signatures import FIXED_SCHEMES, SCHEMES, HMACScheme, SignatureRejected
from sampleapp.web.server import Fields

NOW = 1_700_000_000
BODY = '{"id":"evt_1","object":"event","note":"caf\u00e9 \u2603"}'.encode()
SLASH_COMMAND = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
    b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
    b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554"
    b"%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)
PUBLIC_KEY = b"whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
VECTORS = {
    "github, documented": (
        "github",
        b"It's a Secret to Everybody",
        {"X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
        b"Hello, World!",
        NOW,
    ),
    "stripe": (
        "stripe",
        b"whsec_test_secret",
        {
            "Stripe-Signature": (
                "t=1700000000,v1=ebcba6ac8ea74a9f675e452bc24627a6a6f071f7485bbd93be7f4372d5219963"
            )
        },
        BODY,
        NOW,
    ),
    "slack, documented": (
        "slack",
        b"8f742231b10e8888abcd99yyyzzz85a5",
        {
            "X-Slack-Request-Timestamp": "1531420618",
            "X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
        },
        SLASH_COMMAND,
        1531420618,
    ),
    "slack": (
        "slack",
        b"slack-signing-secret",
        {
            "X-Slack-Request-Timestamp": "1700000000",
            "X-Slack-Signature": "v0=f0c3efeefa8d03674fd8c6d62fdd73da3a38be4f1c6cff56cff9db46d7ba3a79",
        },
        BODY,
        NOW,
    ),
    "standard": (
        "standard",
        b"whsec_" + base64.b64encode(b"standard secret of 24 by"),
        {
            "webhook-id": "msg_1",
            "webhook-timestamp": "1700000000",
            "webhook-signature": "v1,envynQg6JlWjiEH2QQiQkzgGsO5uhXo7eDWQciinapU=",
        },
        BODY,
        NOW,
    ),
    "standard, another secret": (
        "standard",
        b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        {
            "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "webhook-timestamp": "1614265330",
            "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        },
        b'{"test": 2432232314}',
        1614265330,
    ),
    "standard, svix": (
        "standard",
        b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        {
            "svix-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "svix-timestamp": "1614265330",
            "svix-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        },
        b'{"test": 2432232314}',
        1614265330,
    ),
    "standard, public key": (
        "standard",
        PUBLIC_KEY,
        {
            "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "webhook-timestamp": "1614265330",
            "webhook-signature": (
                "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
            ),
        },
        b'{"test": 2432232314}',
        1614265330,
    ),
}


def fields_of(headers):
    return Fields([(name.encode(), value.encode("latin-1")) for name, value in headers.items()])


def verdict(scheme, secrets, fields, body, *, now_s=NOW, tolerance_s=300):
    """The reason for which a request is rejected, or "" if it is not."""
    try:
        claim = scheme.claim(fields, now_s=now_s, tolerance_s=tolerance_s)
        claim.verify(body, [scheme.key_of(secret) for secret in secrets])
    except SignatureRejected as rejection:
        return rejection.reason
    return ""


def scheme_called(name):
    return HMACScheme("x-signature") if name == "hmac" else FIXED_SCHEMES[name]


@pytest.fixture(params=VECTORS)
def vector(request):
    name, secret, headers, body, now_s = VECTORS[request.param]
    return FIXED_SCHEMES[name], secret, headers, body, now_s


def test_what_the_sender_s_own_program_signs_is_right(vector):
    scheme, secret, headers, body, now_s = vector
    assert verdict(scheme, [secret], fields_of(headers), body, now_s=now_s + 0.5) == ""


@pytest.mark.parametrize(
    ("name", "field", "separator"),
    [
        ("github, documented", "X-Hub-Signature-256", ","),
        ("stripe", "Stripe-Signature", ","),
        ("standard", "webhook-signature", " "),
    ],
)
def test_a_header_with_a_hundred_signatures_of_unknown_kinds_is_malformed(name, field, separator):
    scheme, secret, headers, body, now_s = VECTORS[name]
    verdicts = [
        verdict(
            FIXED_SCHEMES[scheme],
            [secret],
            fields_of({**headers, field: headers[field] + count * f"{separator}x"}),
            body,
            now_s=now_s,
        )
        for count in (50, 100)
    ]
    assert verdicts == ["", "malformed"]


def test_any_one_of_several_secrets_is_enough_and_without_it_none(vector):
    scheme, secret, headers, body, now_s = vector
    fields = fields_of(headers)
    assert verdict(scheme, [b"older", secret, b"newer"], fields, body, now_s=now_s) == ""
    assert verdict(scheme, [b"older", b"newer"], fields, body, now_s=now_s) == "wrong"
    assert verdict(scheme, [], fields, body, now_s=now_s) == "wrong"


def test_any_change_of_the_body_is_noticed(vector):
    scheme, secret, headers, body, now_s = vector
    fields = fields_of(headers)
    for other in (body[:-1], body + b"\n", b"\xef\xbb\xbf" + body, body.replace(b"e", b"E", 1), b""):
        assert verdict(scheme, [secret], fields, other, now_s=now_s) == "wrong"


def test_a_header_that_is_cut_short_or_changed_anywhere_is_rejected(vector):
    scheme, secret, headers, body, now_s = vector
    for name, value in headers.items():
        for place in range(len(value)):
            for changed in (
                value[:place],
                value[:place] + value[place + 1 :],
                value[:place] + chr(ord(value[place]) ^ 1) + value[place + 1 :],
                value[:place] + "\xe9" + value[place:],
            ):
                assert verdict(
                    scheme, [secret], fields_of({**headers, name: changed}), body, now_s=now_s
                ) in {"wrong", "malformed", "old", "early"}


def test_each_header_of_a_scheme_is_required_once(vector):
    scheme, secret, headers, body, now_s = vector
    for name, value in headers.items():
        without = {other: text for other, text in headers.items() if other != name}
        assert verdict(scheme, [secret], fields_of(without), body, now_s=now_s) == "missing"
        twice = fields_of(headers)
        twice.add(name.encode(), value.encode())
        assert verdict(scheme, [secret], twice, body, now_s=now_s) == "malformed"
        assert verdict(scheme, [secret], fields_of({**headers, name: ""}), body, now_s=now_s) == "malformed"


@pytest.mark.parametrize("name", SCHEMES)
def test_no_header_of_another_scheme_helps(name):
    scheme = scheme_called(name)
    for other, secret, headers, body, now_s in VECTORS.values():
        if other != name:
            assert verdict(scheme, [secret], fields_of(headers), body, now_s=now_s) == "missing"


@pytest.mark.parametrize("vector", [each for each in VECTORS if "github" not in each], indirect=True)
def test_a_request_is_valid_for_the_tolerance_in_both_directions(vector):
    scheme, secret, headers, body, now_s = vector
    assert scheme.has_time
    assert [
        verdict(scheme, [secret], fields_of(headers), body, now_s=now_s + age, tolerance_s=10)
        for age in (-10.001, -10, 10, 10.001, math.inf)
    ] == ["early", "", "", "old", "old"]


def test_the_signature_of_a_body_alone_does_not_get_old():
    scheme, secret, headers, body, _ = VECTORS["github, documented"]
    assert not FIXED_SCHEMES["github"].has_time
    assert verdict(FIXED_SCHEMES[scheme], [secret], fields_of(headers), body, now_s=0) == ""


def hexdigest(secret, data):
    return hmac.new(secret, data, hashlib.sha256).hexdigest()


def test_of_several_signatures_by_stripe_one_must_be_right_whatever_its_place():
    right = hexdigest(b"s", b"%d.x" % NOW)
    scheme = FIXED_SCHEMES["stripe"]
    wrong = "0" * 64
    for value, expected in [
        (f"t={NOW},v1={wrong},v1={right}", ""),
        (f"t={NOW},v1={right},v1={wrong},v0={wrong}", ""),
        (f"v1={right},t={NOW}", ""),
        (f"t={NOW},v1=short,v1={right}", ""),
        (f"t={NOW},v1={right.upper()}", ""),
        (f"t={NOW},v0={right}", "malformed"),
        (f"t={NOW},v2={right},v1={wrong}", "wrong"),
        (f"t={NOW}, v1={right}", "malformed"),
        (f"t={NOW},t={NOW},v1={right}", "malformed"),
        (f"t={NOW - 1},v1={right}", "wrong"),
        (f"t=0{NOW},v1={right}", "wrong"),
        (f"t=+{NOW},v1={right}", "malformed"),
        (f"t={NOW}.0,v1={right}", "malformed"),
        (f"t={'9' * 4000},v1={right}", "malformed"),
        (f"t={NOW}" + f",v1={wrong}" * 7 + f",v1={right}", ""),
        (f"t={NOW}" + f",v1={wrong}" * 8 + f",v1={right}", "malformed"),
        ("t=,v1=", "malformed"),
        ("=", "malformed"),
    ]:
        assert verdict(scheme, [b"s"], fields_of({"Stripe-Signature": value}), b"x") == expected, value


def standard(signature, *, id_="msg_1", time=NOW):
    return fields_of({"webhook-id": id_, "webhook-timestamp": str(time), "webhook-signature": signature})


def test_of_several_standard_signatures_those_with_a_secret_count():
    key = b"k" * 32
    right = base64.b64encode(hmac.digest(key, b"msg_1.%d.x" % NOW, "sha256")).decode()
    wrong = base64.b64encode(b"0" * 32).decode()
    for value, expected in [
        (f"v1,{wrong} v1,{right}", ""),
        (f"v1a,{wrong} v1,{right}", ""),
        (f"v1a,{right}", "malformed"),
        (f"v1,{wrong} " * 7 + f"v1,{right}", ""),
        (f"v1,{wrong} " * 8 + f"v1,{right}", "malformed"),
        (f"v1,{right[:-1]}", "malformed"),
        (f"v1,{right.replace('+', '-').replace('/', '_')}=", "malformed"),
        (right, "malformed"),
        (f"v1,{wrong}", "wrong"),
        ("v1," + hexdigest(key, b"msg_1.%d.x" % NOW), "malformed"),
    ]:
        assert verdict(FIXED_SCHEMES["standard"], [key], standard(value), b"x") == expected, value


def ed25519(private_key, data):
    return "v1a," + base64.b64encode(private_key.sign(data)).decode()


def test_a_public_key_verifies_what_its_private_key_has_signed_and_is_no_secret():
    scheme, own, other = FIXED_SCHEMES["standard"], Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    public_key = b"whpk_" + base64.b64encode(own.public_key().public_bytes_raw())
    signed = b"msg_1.%d.x" % NOW
    right, wrong = ed25519(own, signed), ed25519(other, signed)
    raw = own.public_key().public_bytes_raw()
    forged = [
        "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
        for key in (public_key, public_key.removeprefix(b"whpk_"), raw)
    ]
    for value, expected in [
        (right, ""),
        (f"{wrong} {right}", ""),
        (f"{wrong} {wrong} {right}", ""),
        (f"{forged[0]} {right}", ""),
        (f"{wrong} {wrong} {wrong} {right}", "malformed"),
        (wrong, "wrong"),
        (right.replace("v1a,", "v1,"), "malformed"),
        (right.rstrip("="), "malformed"),
        *((each, "wrong") for each in forged),
    ]:
        assert verdict(scheme, [public_key], standard(value), b"x") == expected, value
    assert verdict(scheme, [public_key], standard(right), b"y") == "wrong"
    # While a sender changes from a secret to a pair of keys.
    assert verdict(scheme, [b"k" * 32, public_key], standard(right), b"x") == ""
    mac = base64.b64encode(hmac.digest(b"k" * 32, signed, "sha256")).decode()
    assert verdict(scheme, [b"k" * 32, public_key], standard(f"v1,{mac}"), b"x") == ""


def test_the_headers_of_the_two_brands_are_never_mixed():
    _, key, webhook, body, now_s = VECTORS["standard, another secret"]
    svix = {name.replace("webhook", "svix"): value for name, value in webhook.items()}
    for names in product((webhook, svix), repeat=3):
        headers = dict(list(each.items())[place] for place, each in enumerate(names))
        expected = "" if len({id(each) for each in names}) == 1 else "malformed"
        assert verdict(FIXED_SCHEMES["standard"], [key], fields_of(headers), body, now_s=now_s) == expected
    for own, others in ((webhook, svix), (svix, webhook)):
        for more in others.items():
            headers = fields_of({**own, more[0]: more[1]})
            assert verdict(FIXED_SCHEMES["standard"], [key], headers, body, now_s=now_s) == "malformed"


def test_only_the_scheme_standard_takes_a_public_key():
    for name in SCHEMES:
        if name != "standard":
            with pytest.raises(ValueError, match=r"has a public key \(whpk_\), with which only the scheme"):
                scheme_called(name).key_of(PUBLIC_KEY)
    for wrong in (b"whpk_", b"whpk_YWJj", PUBLIC_KEY + b"A", PUBLIC_KEY[:-5], b"whpk_" + b"!" * 44):
        with pytest.raises(ValueError, match='begins with "whpk_", and is not 32 bytes in base64 after it'):
            FIXED_SCHEMES["standard"].key_of(wrong)
    assert FIXED_SCHEMES["standard"].key_of(PUBLIC_KEY.rstrip(b"=")) is not None


def test_the_end_of_an_id_cannot_be_taken_for_a_time():
    key = b"k" * 32
    # Signed as the id "a", the time NOW - 9999 and the body "{NOW}.x".
    signed = base64.b64encode(hmac.digest(key, b"a.%d.%d.x" % (NOW - 9999, NOW), "sha256")).decode()
    forged = standard(f"v1,{signed}", id_=f"a.{NOW - 9999}", time=NOW)
    assert verdict(FIXED_SCHEMES["standard"], [key], forged, b"x") == "malformed"


def test_a_standard_secret_is_base64_only_after_its_prefix():
    key_of = FIXED_SCHEMES["standard"].key_of
    assert key_of(b"whsec_YWJj") == b"abc"
    assert key_of(b"whsec_YWJjZA") == key_of(b"whsec_YWJjZA==") == b"abcd"
    assert key_of(b"YWJj") == b"YWJj"
    for wrong in (b"whsec_", b"whsec_=", b"whsec_a", b"whsec_secret!", b"whsec_YW Jj", b"whsec_\xff\xff\xff"):
        with pytest.raises(ValueError, match="not base64") as caught:
            key_of(wrong)
        assert str(caught.value) == 'begins with "whsec_", and is not base64 after it'
    assert FIXED_SCHEMES["stripe"].key_of(b"whsec_YWJj") == b"whsec_YWJj"


def test_a_device_signs_in_hex_or_base64_with_or_without_a_prefix():
    digest = hmac.digest(b"s", b"21.5", "sha256")
    text = base64.b64encode(digest).decode()
    for scheme, value, expected in [
        (HMACScheme("x-sig"), digest.hex(), ""),
        (HMACScheme("x-sig"), digest.hex().upper(), ""),
        (HMACScheme("x-sig"), f"sha256={digest.hex()}", "malformed"),
        (HMACScheme("x-sig", prefix=b"sha256="), f"sha256={digest.hex()}", ""),
        (HMACScheme("x-sig", prefix=b"sha256="), digest.hex(), "malformed"),
        (HMACScheme("x-sig"), text, "malformed"),
        (HMACScheme("x-sig", "base64"), text, ""),
        (HMACScheme("x-sig", "base64"), text.rstrip("="), "malformed"),
        (HMACScheme("x-sig", "base64"), digest.hex(), "malformed"),
        (HMACScheme("x-sig"), " ".join([digest.hex()[:32], digest.hex()[32:]]), "malformed"),
        (HMACScheme("x-sig"), hmac.digest(b"s", b"21.5", "sha1").hex(), "malformed"),
    ]:
        assert verdict(scheme, [b"s"], fields_of({"X-Sig": value}), b"21.5") == expected, value


def timed(signed, time, body=b"21.5", *, form="{timestamp}:{body}", now_s=NOW, tolerance_s=300):
    """The verdict about what a sender has signed, with a time."""
    scheme = HMACScheme("x-sig", signed=form, timestamp_field="x-time")
    assert scheme.has_time
    headers = {"X-Sig": hmac.digest(b"s", signed, "sha256").hex(), "X-Time": time}
    return verdict(scheme, [b"s"], fields_of(headers), body, now_s=now_s, tolerance_s=tolerance_s)


DATE_TIME = "2023-11-14T22:13:20Z"


@pytest.mark.parametrize(
    ("form", "signed"),
    [
        ("{timestamp}:{body}", "%s:21.5"),
        ("{timestamp}.{body}", "%s.21.5"),
        ("v0:{timestamp}:{body}", "v0:%s:21.5"),
        ("{body}\n{timestamp}", "21.5\n%s"),
        ("a{body}b{timestamp}c", "a21.5b%sc"),
    ],
)
@pytest.mark.parametrize("time", [f"{NOW}", f"{NOW}000", DATE_TIME, DATE_TIME.replace("Z", ".000Z")])
def test_a_device_can_sign_a_time_in_seconds_or_milliseconds_or_as_rfc_3339_has_it(form, signed, time):
    right = (signed % time).encode()
    assert [
        timed(right, time, form=form, now_s=NOW + age, tolerance_s=10)
        for age in (-10.001, -10, 10, 10.001, math.inf)
    ] == ["early", "", "", "old", "old"]
    assert timed(right, time, b"21.6", form=form) == "wrong"
    assert timed(b"21.5", time, form=form) == "wrong"
    later = time.replace("20", "21").replace("700", "701") if "T" in time else str(int(time) + 1)
    assert timed(right, later, form=form) in {"wrong", "early"}


def test_what_is_not_a_time_is_malformed_whatever_is_signed():
    for time in (
        *("", "x", "-1", "+1", "1.5", f"{NOW}.0", f"0x{NOW:x}", "9" * 16, "\xb2"),
        *("2023-11-14", "2023-11-14T22:13:20", "2023-11-14T22:13:20+00:00", "2023-11-14 22:13:20Z"),
        *("2023-02-30T00:00:00Z", "0000-01-01T00:00:00Z", "2023-11-14T25:00:00Z", "2023-11-14T22:13:20z"),
    ):
        assert timed(f"{time}:21.5".encode("latin-1"), time) == "malformed", time
    assert timed(b"0:21.5", "0") == "old"
    assert timed(f"{'9' * 15}:21.5".encode(), "9" * 15) == "early"


@pytest.mark.parametrize(
    ("form", "signed"),
    [
        *[("{timestamp}{body}", "%s21.5"), ("{body}{timestamp}", "21.5%s")],
        *[("{timestamp}0{body}", "%s021.5"), ("x{body}-1{timestamp}", "x21.5-1%s")],
    ],
)
def test_digits_cannot_move_between_a_time_and_the_body(form, signed):
    # "1700000000" and "123{}" are signed like the milliseconds "1700000000123" and "{}".
    for time in (f"{NOW}", f"{NOW}123"):
        assert timed((signed % time).encode(), time, form=form) == "malformed"
    # The end of an RFC 3339 time is no digit, and its beginning has four.
    assert timed((signed % DATE_TIME).encode(), DATE_TIME, form=form) == ""


def test_what_zendesk_shows_in_its_documentation_is_right():
    """https://developer.zendesk.com/documentation/event-connectors/webhooks/verifying/"""
    scheme = HMACScheme("x-signature", "base64", signed="{body}{timestamp}", timestamp_field="x-time")
    key, body = b"HRkRd4BeOAoUkfZr-mhauJT64rvBASlJRoIyPsd3zeA=", b'{"say": "hello"}'
    shown = {"X-Signature": "tRDSF7URY8BLCDlaBcQ7FHu051Zk+aAB0NKMP53teMw=", "X-Time": "2021-07-25T10:00:00Z"}
    assert [verdict(scheme, [key], fields_of(shown), body, now_s=1627207200 + s) for s in (1, 301)] == [
        "",
        "old",
    ]


def test_the_header_with_the_time_is_required_once():
    scheme = HMACScheme("x-sig", signed="{timestamp}:{body}", timestamp_field="x-time")
    signature = hmac.digest(b"s", b"%d:x" % NOW, "sha256").hex()
    assert verdict(scheme, [b"s"], fields_of({"X-Sig": signature}), b"x") == "missing"
    assert verdict(scheme, [b"s"], fields_of({"X-Time": str(NOW)}), b"x") == "missing"
    fields = fields_of({"X-Sig": signature, "X-Time": str(NOW)})
    assert verdict(scheme, [b"s"], fields, b"x") == ""
    fields.add(b"x-time", str(NOW).encode())
    assert verdict(scheme, [b"s"], fields, b"x") == "malformed"


@pytest.mark.parametrize("prefix", ["", "v1="])
@pytest.mark.parametrize("encoding", ["hex", "base64"])
def test_of_several_signatures_of_a_device_one_must_be_right(prefix, encoding):
    scheme = HMACScheme("x-sig", encoding, prefix.encode())
    right, wrong = (
        prefix + (digest.hex() if encoding == "hex" else base64.b64encode(digest).decode())
        for digest in (hmac.digest(key, b"21.5", "sha256") for key in (b"s", b"t"))
    )
    for value, expected in [
        (f"{wrong},{right}", ""),
        (f"{right},{wrong}", ""),
        (f"{wrong}, \t{right}", ""),
        (f"{wrong},{wrong}", "wrong"),
        (f"v2=0,{right}", ""),
        (f"{right},", ""),
        (f"{wrong}," * 7 + right, ""),
        (f"{wrong}," * 8 + right, "malformed"),
        (f"{right};{right}", "malformed"),
        (",", "malformed"),
    ]:
        assert verdict(scheme, [b"s"], fields_of({"X-Sig": value}), b"21.5") == expected, value
    twice = fields_of({"X-Sig": right})
    twice.add(b"x-sig", right.encode())
    assert verdict(scheme, [b"s"], twice, b"21.5") == "malformed"


@given(st.dictionaries(st.sampled_from(sorted({h for v in VECTORS.values() for h in v[2]})), st.binary()))
def test_no_bytes_in_the_header_fail_and_none_pass(headers):
    fields = Fields([(name.encode(), value) for name, value in headers.items()])
    for name in SCHEMES:
        assert verdict(scheme_called(name), [b"s"], fields, b"x") != ""
