"""Hooks in the callers file, and the files with their secrets."""

from __future__ import annotations

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.access import CallersFileError, parse_callers
from sampleapp.access.caller import PREFIX
from sampleapp.access.callers_file_tables import Mistake
from sampleapp.access.hook_verification import load_hook_keys, other_kind, secret_paths
from sampleapp.access.signatures import SCHEMES, HMACScheme
from sampleapp.concurrency.rates import Rate
from tests.support.secrets import secret

HOOK = {"topic": '"t"', "scheme": '"github"', "secret_files": '["a", "b"]'}
HMAC = {**HOOK, "scheme": '"hmac"', "header": '"X-Signature"'}
SECRET = secret("the-secret-of-a-hook", "the secret of a hook")


def file_of(members, *, name="h"):
    lines = [f"{member} = {value}" for member, value in members.items() if value is not None]
    return "\n".join([f"[hooks.{name}]", *lines, ""])


def hook_of(members, **options):
    (hook,) = parse_callers(file_of(members, **options).encode(), name="f").hooks.values()
    return hook


def mistake_in(members, **options):
    with pytest.raises(CallersFileError) as caught:
        hook_of(members, **options)
    return str(caught.value).removeprefix("--callers: f, ")


def test_a_file_may_have_hooks_only_and_they_have_defaults():
    hook = hook_of(HOOK)
    assert (hook.name, hook.topic, hook.secret_files) == ("h", "t", ("a", "b"))
    assert (hook.key_header, hook.idempotency_header, hook.tolerance_s) == (None, None, 300)
    assert (hook.caller.name, list(hook.caller.publish), hook.caller.requests) == ("hook:h", ["t"], None)
    assert not any((hook.caller.read, hook.caller.metrics, hook.caller.consume))


def test_a_signature_of_hmac_is_in_hexadecimal_and_has_no_prefix_by_default():
    assert hook_of(HMAC).scheme == HMACScheme("x-signature", "hex", b"")


@pytest.mark.parametrize(
    "name", ["webhook-timestamp", "X-Slack-Request-Timestamp", "User-Agent", "Content-Type", "X-GitHub-Event"]
)
def test_a_header_that_is_no_id_of_a_delivery_is_not_a_key_of_idempotency(name):
    assert mistake_in({**HOOK, "idempotency_header": f'"{name}"'}) == (
        f"line 5: hooks.h.idempotency_header must be the header with the id of a delivery; {name} is the "
        "same for different deliveries, or changes with each attempt."
    )
    assert hook_of({**HOOK, "key_header": f'"{name}"'}).key_header == name


def test_everything_about_a_hook_can_be_chosen():
    hook = hook_of(
        {
            **HMAC,
            "encoding": '"base64"',
            "prefix": '"v1="',
            "key_header": '"X-Device"',
            "idempotency_header": '"X-Id"',
            "requests_per_second": "5",
            "bytes_per_second": "100",
            "bytes_burst": "1000",
        }
    )
    assert (hook.scheme.field, hook.scheme.encoding, hook.scheme.prefix) == ("x-signature", "base64", b"v1=")
    assert (hook.key_header, hook.idempotency_header) == ("X-Device", "X-Id")
    assert (hook.caller.requests, hook.caller.bytes) == (Rate(5, 5), Rate(100, 1000))
    assert hook_of({**HOOK, "scheme": '"stripe"', "tolerance": "0.5"}).tolerance_s == 0.5


TIMED = {**HMAC, "timestamp_header": '"X-Time"', "signed": '"{timestamp}:{body}"'}


def test_the_time_of_a_signature_can_be_in_a_header_of_its_own():
    hook = hook_of({**TIMED, "tolerance": "60"})
    assert (hook.scheme.signed, hook.scheme.timestamp_field) == ("{timestamp}:{body}", "x-time")
    assert hook.tolerance_s == 60
    assert hook_of(TIMED).tolerance_s == 300


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({**HOOK, "topic": None}, 'line 1: hooks.h has no topic; add one, such as topic = "github".'),
        (
            {**HOOK, "secret_files": None},
            'line 1: hooks.h has no secret_files; add one, such as secret_files = ["github.secret"].',
        ),
        ({**HOOK, "scheme": '"GitHub"'}, "line 3: hooks.h.scheme is not known; did you mean github?"),
        (
            {**HOOK, "scheme": '"basic"'},
            "line 3: hooks.h.scheme is not known; use one of github, stripe, slack, standard, hmac.",
        ),
        ({**HOOK, "secret_file": '"a"'}, "line 5: hooks.h.secret_file is not known here; did you mean"),
        ({**HOOK, "publish": '["t"]'}, "line 5: hooks.h.publish is not known here; "),
        ({**HOOK, "topic": '"a b"'}, "line 2: hooks.h.topic must be the name of a topic: "),
        ({**HOOK, "topic": '"*"'}, "line 2: hooks.h.topic must be the name of a topic: "),
        ({**HOOK, "secret_files": '"a"'}, "line 4: hooks.h.secret_files must be an array, not a string; for"),
        ({**HOOK, "secret_files": "[]"}, "line 4: hooks.h.secret_files must have 1 to 10 paths of files, "),
        ({**HOOK, "secret_files": str(["a"] * 11)}, "line 4: hooks.h.secret_files must have 1 to 10 paths "),
        (
            {**HOOK, "secret_files": '["a", ""]'},
            "line 4: hooks.h.secret_files[2] must be the path of a file.",
        ),
        *(
            (
                {**HOOK, "secret_files": f'["a", "{itself}"]'},
                "line 4: hooks.h.secret_files[2] seems to be a secret itself; write it to a file, and ",
            )
            for itself in ("whsec_" + "A" * 40, "0123456789abcdef" * 2, "c2VjcmV0IG9mIGEgd2ViaG9vaw==")
        ),
        (
            {**HOOK, "tolerance": "300"},
            "line 5: hooks.h.tolerance has no effect, since requests of the scheme github have no signed ",
        ),
        ({**HMAC, "tolerance": "300"}, "line 6: hooks.h.tolerance has no effect, "),
        *(
            (
                {**HOOK, "scheme": '"slack"', "tolerance": tolerance},
                "line 5: hooks.h.tolerance must be a number of seconds above zero, and at most 86400.",
            )
            for tolerance in ("0", "-1", "86401", "inf", "nan")
        ),
        (
            {**HOOK, "header": '"X-Signature"'},
            "line 5: hooks.h.header is for the scheme hmac only, and this one is github.",
        ),
        (
            {**HMAC, "header": None},
            "line 1: hooks.h has no header, which has the signature; add one, such as ",
        ),
        ({**HMAC, "header": '"X Y"'}, "line 5: hooks.h.header must be the name of the header with "),
        ({**HMAC, "header": '"Authorization"'}, "line 5: hooks.h.header must be the name of the header "),
        ({**HMAC, "encoding": '"base32"'}, "line 6: hooks.h.encoding must be hex or base64."),
        (
            {**HMAC, "prefix": '"\u00e4"'},
            "line 6: hooks.h.prefix must be 1 to 100 visible ASCII characters without a comma, such as ",
        ),
        ({**HMAC, "prefix": '"a,b="'}, "line 6: hooks.h.prefix must be 1 to 100 visible ASCII characters "),
        *(
            (
                {**HMAC, "timestamp_header": '"X-Time"', "signed": f'"{signed}"'},
                "line 7: hooks.h.signed must have {timestamp} and {body} once each, and no other braces, in ",
            )
            for signed in (
                *(
                    "",
                    "{body}",
                    "{timestamp}",
                    "{body}{body}",
                    "{timestamp}.{timestamp}.{body}",
                    "{Timestamp}{body}",
                ),
                *(
                    "{id}.{timestamp}.{body}",
                    "{timestamp}:{body}}",
                    "{{timestamp}}{body}",
                    "\u00e4{timestamp}{body}",
                ),
                *("{timestamp}.{body}\\t", "{timestamp}" + "." * 184 + "{body}", "{{timestamp}body}"),
            )
        ),
        (
            {**HMAC, "signed": '"{timestamp}:{body}"'},
            "line 6: hooks.h.signed needs timestamp_header, too: the header with the time, such as ",
        ),
        (
            {**HMAC, "timestamp_header": '"X-Time"'},
            "line 6: hooks.h.timestamp_header needs signed, too: the form of the signed text, such as ",
        ),
        *(
            (
                {**HMAC, "timestamp_header": f'"{name}"', "signed": '"{timestamp}:{body}"'},
                "line 6: hooks.h.timestamp_header must be the name of the header with the time, and of ",
            )
            for name in ("", "X Y", "Content-Type", "x-SIGNATURE")
        ),
        *(
            (
                {**HOOK, "scheme": f'"{scheme}"', member: '"X"'},
                f"line 5: hooks.h.{member} is for the scheme hmac only, and this one is {scheme}.",
            )
            for scheme in ("github", "stripe", "slack", "standard")
            for member in ("signed", "timestamp_header")
        ),
        (
            {**TIMED, "idempotency_header": '"x-time"'},
            "line 8: hooks.h.idempotency_header must be the header with the id of a delivery; x-time is ",
        ),
        ({**HOOK, "key_header": '"a:"'}, "line 5: hooks.h.key_header must be the name of a header."),
        (
            {**HMAC, "idempotency_header": '"x-SIGNATURE"'},
            "line 6: hooks.h.idempotency_header may not be a header with credentials, or with the signature.",
        ),
        (
            {**HOOK, "key_header": '"Cookie"'},
            "line 5: hooks.h.key_header may not be a header with credentials, or with the signature.",
        ),
        ({**HOOK, "requests_burst": "5"}, "line 5: hooks.h.requests_burst is the most that may come at once"),
    ],
)
def test_what_is_wrong_with_a_hook_is_said_with_its_line(members, said):
    assert mistake_in(members).startswith(said)


def test_the_name_of_a_hook_is_that_of_a_caller():
    assert mistake_in(HOOK, name='"a/b"').startswith('line 1: hooks."a/b" is not a name for a hook: ')


@pytest.fixture
def hooks():
    return parse_callers(file_of(HOOK).encode(), name="f").hooks


def write(directory, *contents):
    for name, content in zip("ab", contents, strict=True):
        (directory / name).write_bytes(content)
        (directory / name).chmod(0o600)


def test_secrets_are_read_without_the_white_space_at_their_end(hooks, tmp_path):
    write(tmp_path, b"one\r\n", b" t w o \t\n\n")
    assert load_hook_keys(hooks, directory=tmp_path) == {"h": (b"one", b" t w o")}
    assert secret_paths(hooks, directory=tmp_path) == [tmp_path / "a", tmp_path / "b"]


def test_a_secret_may_have_4096_bytes(hooks, tmp_path):
    write(tmp_path, b"x" * 4096 + b"\n", b"two")
    assert load_hook_keys(hooks, directory=tmp_path) == {"h": (b"x" * 4096, b"two")}
    assert rejection_of(hooks, tmp_path, b"one", b"x" * 4097).startswith("has more than 4096 bytes")


def test_a_secret_is_not_in_what_python_prints_of_it(hooks, tmp_path):
    write(tmp_path, SECRET.encode(), b"two")
    assert repr(load_hook_keys(hooks, directory=tmp_path)) == "{'h': <2 keys>}"


def rejection_of(hooks, directory, *contents):
    """The sentence about the last of these contents of files."""
    write(directory, *contents)
    with pytest.raises(Mistake) as caught:
        load_hook_keys(hooks, directory=directory)
    assert caught.value.path == ("hooks", "h", "secret_files", 1)
    return str(caught.value).removeprefix("hooks.h.secret_files[2] names a file that ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty."),
        (b" \r\n\t", "is empty."),
        (SECRET.encode() + b"\nsecond", "has several lines; give each secret a file of its own, in "),
        (b"\xef\xbb\xbf" + SECRET.encode(), "begins with a byte order mark, which is not a part of the "),
        (SECRET.encode("utf-16"), "begins with a byte order mark, which is not a part of the "),
        (SECRET.encode("utf-16-le"), "is not text in UTF-8, or has characters that cannot be seen."),
        (SECRET.encode() + b"\rsecond", "is not text in UTF-8, or has characters that cannot be seen."),
        (b"\xff" + SECRET.encode(), "is not text in UTF-8, or has characters that cannot be seen."),
        (f"\u200b{SECRET}".encode(), "is not text in UTF-8, or has characters that cannot be seen."),
        (SECRET.encode() * 300, "has more than 4096 bytes, so it is not the secret of a webhook."),
    ],
)
def test_a_file_that_has_no_secret_is_rejected_and_nothing_of_it_said(hooks, tmp_path, content, said):
    sentence = rejection_of(hooks, tmp_path, b"one", content)
    assert sentence.startswith(said)
    assert SECRET not in sentence


PRIVATE_KEY = Ed25519PrivateKey.generate()


PUBLIC_DER = PRIVATE_KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
PRIVATE_DER = PRIVATE_KEY.private_bytes(Encoding.DER, PrivateFormat.PKCS8, BestAvailableEncryption(b"p"))
RAW = base64.b64encode(PRIVATE_KEY.public_key().public_bytes_raw())
OTHER_KINDS = {
    "whsk": (b"whsk_" + RAW, "the private key of a sender; write its public key (whpk_) there instead"),
    "quoted whpk": (b'"whpk_%b"' % RAW, "a public key (whpk_) with other text in front of it"),
    "indented whpk": (b" whpk_%b" % RAW, "a public key (whpk_) with other text in front of it"),
    "assigned whpk": (b"KEY=whpk_%b" % RAW, "a public key (whpk_) with other text in front of it"),
    **{
        f"PEM, {kind}": (
            f"-----BEGIN {kind}-----\nMCow\n-----END {kind}-----\n".encode(),
            "a key or a certificate in PEM",
        )
        for kind in ("PUBLIC KEY", "PRIVATE KEY", "OPENSSH PRIVATE KEY", "CERTIFICATE")
    },
    "DER in base64": (base64.b64encode(PUBLIC_DER), "a key or a certificate in DER"),
    "DER in hex": (PUBLIC_DER.hex().encode(), "a key or a certificate in DER"),
    "DER in base64url": (
        base64.urlsafe_b64encode(PUBLIC_DER).rstrip(b"="),
        "a key or a certificate in DER",
    ),
    "SSH without its name": (
        PRIVATE_KEY.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1],
        "a key of SSH",
    ),
    "locked DER": (base64.b64encode(PRIVATE_DER), "a key or a certificate in DER"),
    "SSH": (
        PRIVATE_KEY.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b" me@example",
        "a key of SSH",
    ),
    "JWK": (b'{"kty": "OKP", "crv": "Ed25519", "x": "%b"}' % RAW, "JSON, such as a JSON Web Key"),
    "JWKS": (b'{\n "keys": []\n}\n', "JSON, such as a JSON Web Key"),
    "JWT": (b"eyJhbGciOiJFZERTQSJ9.eyJpc3MiOiJ4In0.c2ln", "a JSON Web Token"),
    "token": (f"{PREFIX}abcdefgh".encode(), "the token of a caller"),
    **{
        path: (path.encode(), "a path")
        for path in ("/run/secrets/github", "./github.secret", "file:///etc/x", "secrets/a.txt", "~/k.pem")
    },
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_key_of_another_kind_is_not_used_as_a_secret(scheme, kind, tmp_path):
    members = {**(HMAC if scheme == "hmac" else HOOK), "scheme": f'"{scheme}"'}
    hooks = parse_callers(file_of(members).encode(), name="f").hooks
    content, said = OTHER_KINDS[kind]
    assert rejection_of(hooks, tmp_path, b"one", content) == f"has {said}, and not the secret of a webhook."


@given(st.binary(min_size=16, max_size=64))
def test_random_secrets_in_the_usual_encodings_are_taken(data):
    for text in (base64.b64encode(data), base64.urlsafe_b64encode(data), data.hex().encode()):
        assert other_kind(text) is None
        assert other_kind(b"whsec_" + text) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"whsec_" + SECRET.encode() + b"!", 'begins with "whsec_", and is not base64 after it.'),
        (b"whsec_", 'begins with "whsec_", and is not base64 after it.'),
        (b"whpk_" + RAW[4:], 'begins with "whpk_", and is not 32 bytes in base64 after it.'),
    ],
    ids=["not base64", "empty", "public key of 28 bytes"],
)
def test_a_standard_key_that_is_not_base64_is_rejected(tmp_path, content, said):
    hooks = parse_callers(file_of({**HOOK, "scheme": '"standard"'}).encode(), name="f").hooks
    assert rejection_of(hooks, tmp_path, b"one", content) == said


def test_a_file_that_is_missing_or_that_everybody_may_write_to_is_rejected(hooks, tmp_path):
    write(tmp_path, b"one", b"two")
    (tmp_path / "b").chmod(0o602)
    with pytest.raises(Mistake, match="cannot be read: Every user of this machine may write to it"):
        load_hook_keys(hooks, directory=tmp_path)
    (tmp_path / "b").unlink()
    with pytest.raises(Mistake, match="cannot be read: No such file or directory"):
        load_hook_keys(hooks, directory=tmp_path)
    (tmp_path / "b").mkdir()
    with pytest.raises(Mistake, match="cannot be read: Is a directory"):
        load_hook_keys(hooks, directory=tmp_path)


def test_a_file_in_a_directory_that_everybody_may_write_to_is_rejected(hooks, tmp_path):
    write(tmp_path, b"one", b"two")
    tmp_path.chmod(0o777)
    with pytest.raises(
        Mistake, match="cannot be read: Every user of this machine may replace it, since they"
    ):
        load_hook_keys(hooks, directory=tmp_path)


def test_a_hook_has_two_public_keys_at_most(tmp_path):
    members = {**HOOK, "scheme": '"standard"', "secret_files": '["a", "b", "c"]'}
    hooks = parse_callers(file_of(members).encode(), name="f").hooks
    for name in "abc":
        (tmp_path / name).write_bytes(b"whpk_" + RAW)
        (tmp_path / name).chmod(0o600)
    with pytest.raises(Mistake, match="names more than 2 public keys") as caught:
        load_hook_keys(hooks, directory=tmp_path)
    assert caught.value.path == ("hooks", "h", "secret_files")
    (tmp_path / "c").write_bytes(b"whsec_" + base64.b64encode(b"a secret"))
    assert len(load_hook_keys(hooks, directory=tmp_path)["h"]) == 3
