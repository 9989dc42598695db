"""The URL of a Kafka cluster: accepted values, and error messages."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import asdict

from sampleapp.brokers.kafka.config import COMPRESSIONS, MECHANISMS, KafkaConfig, parse
from tests.support.secrets import secret

SECRET = secret("s3cr3t-Xyzzy", "a password")


def rejection(url):
    with pytest.raises(ValueError, match=r"\.$|\?$") as caught:
        parse(url)
    return str(caught.value)


# --- addresses -----------------------------------------------------------------------------------------


def test_an_address_alone_is_enough_and_everything_else_has_a_default():
    assert parse("kafka://broker") == KafkaConfig(addresses=(("broker", 9092),), tls=False)
    assert asdict(parse("kafka://broker")) == {
        "addresses": (("broker", 9092),),
        "tls": False,
        "auto_create": False,
        "buffer_bytes": 64 * 1024 * 1024,
        "delivery_timeout_s": 30.0,
        "max_batch_bytes": 64 * 1024 * 1024,
        "compression": "none",
        "idempotence": True,
        "client_id": "sampleapp",
        "ca": None,
        "certificate": None,
        "key": None,
        "sasl": None,
        "credentials": None,
        "token_file": None,
        "extensions": (),
    }


@pytest.mark.parametrize(
    ("authority", "addresses"),
    [
        ("a:1,b,c.example:65535", (("a", 1), ("b", 9092), ("c.example", 65535))),
        ("127.0.0.1:9093", (("127.0.0.1", 9093),)),
        ("[::1]:9093,[2001:DB8::0:1]", (("::1", 9093), ("2001:db8::1", 9092))),
        ("kafka_1:9092,kafka_1:9092", (("kafka_1", 9092),)),
        ("kafka.example.", (("kafka.example.", 9092),)),
    ],
)
def test_addresses_are_names_ipv4_or_ipv6_each_with_its_own_port(authority, addresses):
    assert parse(f"kafka://{authority}").addresses == addresses


@pytest.mark.parametrize(
    "authority",
    [
        *("", ",", "a,", ":9092", "a:", "a:0", "a:65536", "a:999999", "a:+1", "a:1_0", "a:\u0661"),
        *(
            "a b",
            "a..b",
            ".",
            "::1",
            "[::1",
            "[::1]x",
            "[1.2.3.4]",
            "[fe80::1%25eth0]",
            "b\u00fccher",
            "a%41",
        ),
        *("a;b", "a:1:2", "x" * 254, "a\n", "a\0"),
    ],
)
def test_another_address_is_rejected_by_its_position_and_not_repeated(authority):
    message = rejection(f"kafka://fine,{authority}")
    assert re.match("Address [23] in the URL is not of the form HOST:PORT: ", message)
    assert authority in {"", ",", "."} or authority not in message


@pytest.mark.parametrize(
    "url", ["kafka:a:9092", "kafka:/a", "kafka+ssl://a", "http://a", "", "a:9092", "://"]
)
def test_another_scheme_is_rejected_with_the_right_form(url):
    assert "use kafka://HOST:PORT" in rejection(url)


def test_the_scheme_may_be_in_capitals_and_says_whether_it_is_tls():
    assert not parse("KAFKA://a").tls
    assert parse("Kafka+TLS://a").tls


@pytest.mark.parametrize("url", ["kafka://a/", "kafka://a/b?sasl=PLAIN", "kafka://a:1/,b:2"])
def test_a_path_is_rejected(url):
    assert "has no path" in rejection(url)


@pytest.mark.parametrize("url", ["kafka://a#b", "kafka://a?ca=#"])
def test_a_fragment_is_rejected(url):
    assert "has no fragment" in rejection(url)


# --- options -------------------------------------------------------------------------------------------

PATHS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "auto_create": st.booleans(),
        "buffer_bytes": st.integers(1, 2**40),
        "max_batch_bytes": st.integers(1, 2**40),
        "delivery_timeout": st.integers(1, 86_400_000_000).map(lambda us: us / 1_000_000),
        "compression": st.sampled_from(COMPRESSIONS),
        "idempotence": st.booleans(),
        "client_id": st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True),
        "ca": PATHS,
        "certificate": PATHS,
        "sasl": st.sampled_from(MECHANISMS),
        "credentials": PATHS,
        "token_file": PATHS,
        "extensions": st.dictionaries(
            st.from_regex("[A-Za-z]{1,9}", fullmatch=True).filter(lambda name: name != "auth"),
            st.text(
                st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters=","), min_size=1
            ),
            min_size=1,
        ),
    },
)


@given(OPTIONS, st.randoms())
def test_what_is_written_into_a_url_is_read_out_of_it(options, order):
    if "certificate" in options:
        options["key"] = options["certificate"] + ".key"
    if options.get("sasl") == "OAUTHBEARER":
        options.pop("credentials", None)
        options.setdefault("token_file", "token")
    else:
        options.pop("token_file", None)
        options.pop("extensions", None)
    if "sasl" not in options:
        options.pop("credentials", None)
    pairs = [f"{name}={quote(_written(value), safe='/')}" for name, value in options.items()]
    order.shuffle(pairs)
    config = parse("kafka+tls://a?" + "&".join(pairs) if pairs else "kafka+tls://a")
    for name, value in options.items():
        files = {"ca", "certificate", "key", "credentials", "token_file"}
        expected = Path(value) if name in files else value
        if name == "extensions":
            expected = tuple(value.items())
        assert getattr(config, {"delivery_timeout": "delivery_timeout_s"}.get(name, name)) == expected


def _written(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ",".join(f"{name}={text}" for name, text in value.items())
    return f"{value:f}" if isinstance(value, float) else str(value)


def test_a_plus_sign_in_a_path_is_a_plus_sign():
    assert parse("kafka+tls://a?ca=/c++/ca%20b.pem").ca == Path("/c++/ca b.pem")


@pytest.mark.parametrize(
    ("option", "right"),
    [
        ("auto_create=yes", "auto_create= and true or false"),
        ("auto_create", "auto_create= and true or false"),
        ("idempotence=", "idempotence= and true or false"),
        ("buffer_bytes=64MiB", "buffer_bytes= and a whole number from 1"),
        ("buffer_bytes=0", "buffer_bytes= and a whole number from 1"),
        ("buffer_bytes=" + "9" * 5000, "buffer_bytes= and a whole number from 1"),
        ("buffer_bytes=-1", "buffer_bytes= and a whole number from 1"),
        ("max_batch_bytes=0", "max_batch_bytes= and a whole number from 1"),
        ("delivery_timeout=0", "delivery_timeout= and seconds, more than 0"),
        ("delivery_timeout=0.0000001", "delivery_timeout= and seconds, more than 0"),
        ("delivery_timeout=inf", "delivery_timeout= and seconds, more than 0"),
        ("delivery_timeout=nan", "delivery_timeout= and seconds, more than 0"),
        ("delivery_timeout=1e3", "delivery_timeout= and seconds, more than 0"),
        ("delivery_timeout=86401", "delivery_timeout= and seconds, more than 0"),
        ("compression=brotli", "compression= and none, gzip, snappy, lz4 or zstd"),
        ("client_id=a/b", "client_id= and 1 to 249 letters"),
        ("sasl=GSSAPI", "sasl= and PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"),
        ("sasl=plain", "sasl= and PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"),
        ("token_file=", "token_file= and the path of a file"),
        ("token_file=eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.", "token_file= and the path of a file"),
        ("extensions=", "extensions= and NAME=VALUE[,NAME=VALUE]"),
        ("extensions=a", "extensions= and NAME=VALUE"),
        ("extensions=a=", "extensions= and NAME=VALUE"),
        ("extensions=a=1,", "extensions= and NAME=VALUE"),
        ("extensions=a=1,a=2", "each name of letters only, once"),
        ("extensions=a1=x", "each name of letters only"),
        ("extensions=auth=Bearer", "and not auth"),
        ("extensions=a=%01", "extensions= and NAME=VALUE"),
        ("ca=", "ca= and the path of a file"),
        ("ca=a%00b", "ca= and the path of a file"),
        ("ca=a%0Ab", "ca= and the path of a file"),
        ("ca=100%", "stray percent sign"),
        ("ca=%ff", "not percent-encoded UTF-8"),
        ("ca=a&ca=b", "The option ca is given more than once"),
    ],
)
def test_a_wrong_value_is_rejected_with_the_option_and_what_is_allowed(option, right):
    assert right in rejection(f"kafka+tls://a?{option}")


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("acks=1", "There is no option acks in the URL: a record is stored by all replicas that are in sync"),
        (
            "linger.ms=5",
            "records that wait for a broker become a batch, and none waits longer for others.",
        ),
        ("security.protocol=SSL", "it is the scheme of the URL: kafka:// or kafka+tls://."),
    ],
)
def test_a_setting_of_other_clients_is_rejected_by_its_name_with_what_holds_here(option, why):
    assert why in rejection(f"kafka://broker?{option}")


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("compresion=gzip", "did you mean compression?"),
        ("Buffer-Bytes=1", "did you mean buffer_bytes?"),
        ("delivery_timeout_s=1", "did you mean delivery_timeout?"),
        ("size=1", "the options are auto_create, buffer_bytes,"),
        ("", "the options are auto_create,"),
        ("password=x", "Credentials do not belong in the URL"),
        ("sasl.username=x", "Credentials do not belong in the URL"),
        ("token=x", "A token does not belong in the URL: use sasl=OAUTHBEARER with token_file=FILE."),
        ("token-file=x", "did you mean token_file?"),
    ],
)
def test_an_unknown_option_is_rejected_with_the_nearest_one_or_all(option, hint):
    assert hint in rejection(f"kafka://a?{option}")


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("kafka://a?ca=x", "The option ca is for TLS: use kafka+tls://"),
        ("kafka://a?certificate=x&key=y", "The option certificate is for TLS"),
        ("kafka://a?key=y", "The option key is for TLS"),
        ("kafka+tls://a?certificate=x", "certificate needs the option key"),
        ("kafka+tls://a?key=x", "key needs the option certificate"),
        ("kafka://a?credentials=x", "credentials needs the option sasl"),
        ("kafka://a?token_file=x", "The option token_file is for OAUTHBEARER: use sasl=OAUTHBEARER with it."),
        ("kafka://a?sasl=PLAIN&extensions=a=b", "The option extensions is for OAUTHBEARER"),
        ("kafka://a?sasl=OAUTHBEARER", "OAUTHBEARER takes a token from a file: add token_file="),
        (
            "kafka://a?sasl=OAUTHBEARER&token_file=x&credentials=y",
            "OAUTHBEARER takes a token, not a password: give token_file=, not credentials=.",
        ),
    ],
)
def test_options_that_need_one_another_are_rejected_alone(url, what):
    assert what in rejection(url)


# --- secrets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "kafka://user:{}@a",
        "kafka://{}@a",
        "kafka://user:{}/x@a",
        "kafka://user:{}?x=y@a",
        "kafka://user:{}#@a",
        "kafka://user:x/{}@a:9092?sasl=PLAIN",
        "kafka://user:{}%40a",
        "kafka://user:{}",
        "kafka://a,{}:x",
        "kafka://a/{}",
        "kafka://a#{}",
        "kafka:{}",
        "kafka+tls://a?{}",
        "kafka+tls://a?{}=x",
        "kafka+tls://a?password={}",
        "kafka+tls://a?sasl_password={}",
        "kafka+tls://a?sasl=PLAIN&{}&x",
        "kafka+tls://a?sasl=OAUTHBEARER&token={}",
        "kafka+tls://a?sasl=OAUTHBEARER&token_file=eyJx.{}.",
        "kafka+tls://a?sasl=OAUTHBEARER&extensions={}",
        "kafka+tls://a?sasl={}",
        "kafka+tls://a?client_id=/{}",
        "kafka+tls://a?ca={}%ff",
        "kafka+tls://a?ca={}%",
        "kafka+tls://a?ca={0}&ca={0}",
        "kafka+tls://a?key={}",
    ],
)
def test_nothing_that_may_be_a_secret_is_repeated_by_any_rejection(url):
    with pytest.raises(ValueError, match=r"\.$|\?$") as caught:
        parse(url.format(SECRET))
    error = caught.value
    while error is not None:
        assert SECRET not in str(error)
        assert SECRET not in repr(error)
        error = error.__cause__


@given(st.text(min_size=4).filter(lambda secret: not re.search("[a-z]{4}|^[ ,]+$", secret)), st.text())
@example("1,2,[3", "user")
@example("FILE", "user")
def test_a_user_and_a_password_in_the_url_are_rejected_and_not_repeated(secret, user):
    message = rejection(f"kafka://{user}:{secret}@host:9092")
    # The usual message has some texts of four characters, too, whatever the secret is.
    assert message == rejection("kafka://user:password@host:9092") or secret not in message


@given(st.text())
@example("//")
@example("//[")
@example("//a?ca=%")
@example("//a?buffer_bytes=" + "1" * 13)
def test_any_text_is_a_cluster_or_a_value_error(text):
    for url in (text, f"kafka:{text}", f"kafka+tls://{text}", f"kafka+tls://a?{text}"):
        with suppress(ValueError):
            assert parse(url).addresses
