"""The URL of a Kafka cluster, the credentials, and the files for TLS: what is taken, and what is said."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import asdict
from twisted.logger import LogLevel, globalLogPublisher

from sampleapp.brokers.kafka.config import COMPRESSIONS, MECHANISMS, KafkaConfig, parse
from sampleapp.brokers.kafka.connections.files import load_credentials
from sampleapp.brokers.kafka.connections.sasl import Credentials
from sampleapp.brokers.kafka.connections.security import Security
from sampleapp.errors import StartUpError
from tests.support.certificates import Authority, key_pem

SECRET = "s3cr3t-Xyzzy"


def refusal(url):
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
        "delivery_timeout_s": 10.0,
        "compression": "none",
        "idempotence": True,
        "client_id": "sampleapp",
        "ca": None,
        "certificate": None,
        "key": None,
        "sasl": None,
        "credentials": None,
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
def test_another_address_is_refused_by_its_position_and_not_repeated(authority):
    message = refusal(f"kafka://fine,{authority}")
    assert re.match("Address [23] in the URL is not of the form HOST:PORT: ", message)
    assert authority in {"", ",", "."} or authority not in message


@pytest.mark.parametrize(
    "url", ["kafka:a:9092", "kafka:/a", "kafka+ssl://a", "http://a", "", "a:9092", "://"]
)
def test_another_scheme_is_refused_with_the_right_form(url):
    assert "use kafka://HOST:PORT" in refusal(url)


def test_the_scheme_may_be_in_capitals_and_says_whether_it_is_tls():
    assert not parse("KAFKA://a").tls
    assert parse("Kafka+TLS://a").tls


@pytest.mark.parametrize("url", ["kafka://a/", "kafka://a/b?sasl=PLAIN", "kafka://a:1/,b:2"])
def test_a_path_is_refused(url):
    assert "has no path" in refusal(url)


@pytest.mark.parametrize("url", ["kafka://a#b", "kafka://a?ca=#"])
def test_a_fragment_is_refused(url):
    assert "has no fragment" in refusal(url)


# --- options -------------------------------------------------------------------------------------------

PATHS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "auto_create": st.booleans(),
        "buffer_bytes": st.integers(1, 2**40),
        "delivery_timeout": st.integers(1, 86_400_000_000).map(lambda us: us / 1_000_000),
        "compression": st.sampled_from(COMPRESSIONS),
        "idempotence": st.booleans(),
        "client_id": st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True),
        "ca": PATHS,
        "certificate": PATHS,
        "sasl": st.sampled_from(MECHANISMS),
        "credentials": PATHS,
    },
)


@given(OPTIONS, st.randoms())
def test_what_is_written_into_a_url_is_read_out_of_it(options, order):
    if "certificate" in options:
        options["key"] = options["certificate"] + ".key"
    if "sasl" not in options:
        options.pop("credentials", None)
    pairs = [f"{name}={quote(_written(value), safe='/')}" for name, value in options.items()]
    order.shuffle(pairs)
    config = parse("kafka+tls://a?" + "&".join(pairs) if pairs else "kafka+tls://a")
    for name, value in options.items():
        expected = Path(value) if name in {"ca", "certificate", "key", "credentials"} else value
        assert getattr(config, {"delivery_timeout": "delivery_timeout_s"}.get(name, name)) == expected


def _written(value):
    if isinstance(value, bool):
        return str(value).lower()
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
        ("delivery_timeout=0", "delivery_timeout= and seconds, more than 0"),
        ("delivery_timeout=0.0000001", "delivery_timeout= and seconds, more than 0"),
        ("delivery_timeout=inf", "delivery_timeout= and seconds, more than 0"),
        ("delivery_timeout=nan", "delivery_timeout= and seconds, more than 0"),
        ("delivery_timeout=1e3", "delivery_timeout= and seconds, more than 0"),
        ("delivery_timeout=86401", "delivery_timeout= and seconds, more than 0"),
        ("compression=brotli", "compression= and none, gzip, snappy, lz4 or zstd"),
        ("client_id=a/b", "client_id= and 1 to 249 letters"),
        ("sasl=GSSAPI", "sasl= and PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"),
        ("sasl=plain", "sasl= and PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"),
        ("ca=", "ca= and the path of a file"),
        ("ca=a%00b", "ca= and the path of a file"),
        ("ca=a%0Ab", "ca= and the path of a file"),
        ("ca=100%", "stray percent sign"),
        ("ca=%ff", "not percent-encoded UTF-8"),
        ("ca=a&ca=b", "The option ca is given more than once"),
    ],
)
def test_a_wrong_value_is_refused_with_the_option_and_what_is_allowed(option, right):
    assert right in refusal(f"kafka+tls://a?{option}")


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("compresion=gzip", "did you mean compression?"),
        ("Buffer-Bytes=1", "did you mean buffer_bytes?"),
        ("delivery_timeout_s=1", "did you mean delivery_timeout?"),
        ("acks=1", "the options are auto_create, buffer_bytes,"),
        ("", "the options are auto_create,"),
        ("password=x", "Credentials do not belong in the URL"),
        ("sasl.username=x", "Credentials do not belong in the URL"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_one_or_all(option, hint):
    assert hint in refusal(f"kafka://a?{option}")


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("kafka://a?ca=x", "The option ca is for TLS: use kafka+tls://"),
        ("kafka://a?certificate=x&key=y", "The option certificate is for TLS"),
        ("kafka://a?key=y", "The option key is for TLS"),
        ("kafka+tls://a?certificate=x", "certificate needs the option key"),
        ("kafka+tls://a?key=x", "key needs the option certificate"),
        ("kafka://a?credentials=x", "credentials needs the option sasl"),
    ],
)
def test_options_that_need_one_another_are_refused_alone(url, what):
    assert what in refusal(url)


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
        "kafka+tls://a?sasl={}",
        "kafka+tls://a?client_id=/{}",
        "kafka+tls://a?ca={}%ff",
        "kafka+tls://a?ca={}%",
        "kafka+tls://a?ca={0}&ca={0}",
        "kafka+tls://a?key={}",
    ],
)
def test_nothing_that_may_be_a_secret_is_repeated_by_any_refusal(url):
    with pytest.raises(ValueError, match=r"\.$|\?$") as caught:
        parse(url.format(SECRET))
    error = caught.value
    while error is not None:
        assert SECRET not in str(error)
        assert SECRET not in repr(error)
        error = error.__cause__


@given(st.text(min_size=4).filter(lambda secret: not re.search("[a-z]{4}|^[ ,]+$", secret)), st.text())
@example("1,2,[3", "user")
def test_a_user_and_a_password_in_the_url_are_refused_and_not_repeated(secret, user):
    message = refusal(f"kafka://{user}:{secret}@host:9092")
    assert secret not in message


@given(st.text())
@example("//")
@example("//[")
@example("//a?ca=%")
@example("//a?buffer_bytes=" + "1" * 13)
def test_any_text_is_a_cluster_or_a_value_error(text):
    for url in (text, f"kafka:{text}", f"kafka+tls://{text}", f"kafka+tls://a?{text}"):
        with suppress(ValueError):
            assert parse(url).addresses


# --- credentials ---------------------------------------------------------------------------------------


@pytest.fixture
def warnings():
    events = []

    def observe(event):
        if event["log_level"] is LogLevel.warn:
            events.append(event["log_format"].format(**event))

    globalLogPublisher.addObserver(observe)
    yield events
    globalLogPublisher.removeObserver(observe)


def written(path, content, *, mode=0o600):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path


def loaded(path):
    found = load_credentials(path, environ={})
    return found.username, found.password


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("username=me\npassword=pw", ("me", "pw")),
        ("password=pw\nusername=me\n", ("me", "pw")),
        ("# for Kafka\n\nusername=me\r\n  # and\npassword=p=w#x\r\n", ("me", "p=w#x")),
        ("username=m\u00fc\npassword= p w \n", ("m\u00fc", " p w ")),
        ("\ufeffusername=me\npassword='pw'\u2028\n", ("me", "'pw'\u2028")),
    ],
)
def test_a_file_has_a_user_name_and_a_password_which_are_taken_as_they_are(tmp_path, content, expected):
    assert loaded(written(tmp_path / "c", content)) == expected


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "has no line username="),
        (f"username=me\n#password={SECRET}\n", "has no line password="),
        (f"username=me\npassword={SECRET}\npassword={SECRET}\n", "a second password= in line 3"),
        (f"username=me\npasword={SECRET}\n", "line 2"),
        (f"username = me\npassword={SECRET}\n", "line 1"),
        (f"me:{SECRET}\n", "line 1"),
        (f"=me\npassword={SECRET}\n", "line 1"),
        (f"username=\npassword={SECRET}\n", "line 1"),
        (f"username=me\npassword={SECRET}\0\n", "line 2"),
        (b"username=me\npassword=\xff" + SECRET.encode(), "is not UTF-8"),
        (f"username=me\npassword={SECRET}\n" + "#" * 1024 * 1024, "more than 1048576 bytes"),
    ],
)
def test_a_file_of_another_form_is_refused_by_its_line_and_nothing_of_it_is_repeated(tmp_path, content, what):
    path = written(tmp_path / "c", content)
    with pytest.raises(StartUpError) as caught:
        load_credentials(path, environ={})
    assert what in str(caught.value)
    assert str(path) in str(caught.value)
    assert SECRET not in repr(caught.value)
    assert caught.value.__cause__ is None


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path):
    with pytest.raises(StartUpError, match="does not exist"):
        load_credentials(tmp_path / "none", environ={})
    with pytest.raises(StartUpError, match="is not a regular file"):
        load_credentials(tmp_path, environ={})
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StartUpError, match="is not a regular file"):
        load_credentials(tmp_path / "pipe", environ={})
    with pytest.raises(StartUpError, match="File name too long"):
        load_credentials(tmp_path / ("x" * 300), environ={})


def test_a_file_that_everybody_may_read_is_worth_a_warning_without_the_secret(tmp_path, warnings):
    path = written(tmp_path / "c", f"username=me\npassword={SECRET}", mode=0o640)
    loaded(path)
    assert warnings == []
    path.chmod(0o644)
    loaded(path)
    assert [str(path) in warning and SECRET not in warning for warning in warnings] == [True]


def test_the_environment_has_the_credentials_unless_a_file_is_given(tmp_path):
    environ = {"SAMPLEAPP_KAFKA_USERNAME": "env", "SAMPLEAPP_KAFKA_PASSWORD": "pw"}
    found = load_credentials(None, environ=environ)
    assert (found.username, found.password) == ("env", "pw")
    path = written(tmp_path / "c", "username=file\npassword=other")
    assert load_credentials(path, environ=environ).username == "file"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SAMPLEAPP_KAFKA_USERNAME": SECRET},
        {"SAMPLEAPP_KAFKA_PASSWORD": SECRET},
        {"SAMPLEAPP_KAFKA_USERNAME": "", "SAMPLEAPP_KAFKA_PASSWORD": SECRET},
        {"SAMPLEAPP_KAFKA_USERNAME": "me", "SAMPLEAPP_KAFKA_PASSWORD": f"{SECRET}\udcff"},
    ],
)
def test_credentials_that_are_nowhere_are_missed_by_the_names_of_the_variables(environ):
    with pytest.raises(StartUpError, match="SAMPLEAPP_KAFKA_PASSWORD") as caught:
        load_credentials(None, environ=environ)
    assert SECRET not in repr(caught.value)


def test_credentials_show_in_no_representation(tmp_path):
    found = Credentials(username="somebody", password=SECRET)
    config = parse("kafka+tls://a?sasl=SCRAM-SHA-512")
    security = Security.load(
        config, environ={"SAMPLEAPP_KAFKA_USERNAME": "somebody", "SAMPLEAPP_KAFKA_PASSWORD": SECRET}
    )
    steps = security.sasl_steps()
    next(steps)
    for each in (found, config, security, steps, vars(security)):
        for shown in (repr(each), str(each), format(each)):
            assert SECRET not in shown
            assert "somebody" not in shown


def test_plain_without_tls_is_worth_a_warning(warnings):
    environ = {"SAMPLEAPP_KAFKA_USERNAME": "me", "SAMPLEAPP_KAFKA_PASSWORD": SECRET}
    for url in ("kafka://a", "kafka://a?sasl=SCRAM-SHA-256", "kafka+tls://a?sasl=PLAIN"):
        Security.load(parse(url), environ=environ)
    assert warnings == []
    Security.load(parse("kafka://a?sasl=PLAIN"), environ=environ)
    assert len(warnings) == 1
    assert SECRET not in warnings[0]


def test_without_sasl_there_is_no_mechanism_and_nothing_to_authenticate_with():
    security = Security.load(parse("kafka://a"), environ={})
    assert security.mechanism() is None
    assert security.tls_for("a") is None
    with pytest.raises(RuntimeError):
        security.sasl_steps()


# --- files for TLS -------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def load(**options):
    query = "&".join(f"{name}={quote(str(path))}" for name, path in options.items())
    return Security.load(parse(f"kafka+tls://a?{query}"), environ={})


def why_not(**options):
    with pytest.raises(StartUpError) as caught:
        load(**options)
    return str(caught.value)


def test_a_file_of_authorities_and_a_client_certificate_with_its_chain_are_loaded(tmp_path, authority):
    issued = Authority(tmp_path, "between", parent=authority).client()
    both = written(
        tmp_path / "two.pem",
        authority.certificate.read_bytes() + Authority(tmp_path, "x").certificate.read_bytes(),
    )
    assert load(ca=both, certificate=issued.certificate, key=issued.key).tls_for("a") is not None
    assert load(ca=both, certificate=issued.both, key=issued.both).tls_for("a") is not None


@pytest.mark.parametrize("option", ["ca", "certificate", "key"])
def test_a_missing_file_is_named_with_its_option(tmp_path, authority, option):
    issued = authority.client()
    options = {"ca": authority.certificate, "certificate": issued.certificate, "key": issued.key}
    missing = tmp_path / "missing"
    message = why_not(**options | {option: missing})
    assert f"The file {missing}, given with {option}=, does not exist" in message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\xff",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n",
    ],
)
@pytest.mark.parametrize("option", ["ca", "certificate"])
def test_a_file_without_certificates_is_refused(tmp_path, authority, option, content):
    bad = written(tmp_path / "bad.pem", content)
    options = {"ca": authority.certificate, "certificate": bad, "key": bad} | {option: bad}
    assert f"{bad}, given with {option}=, has no certificates in PEM, or a damaged one" in why_not(**options)


@pytest.mark.parametrize(
    ("pem", "what"),
    [
        (b"", "has no private key in PEM"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "has no private key in PEM"),
        (key_pem(ec.generate_private_key(ec.SECP256R1())), "does not belong to the first certificate"),
        (key_pem(ed25519.Ed25519PrivateKey.generate()), "does not belong to the first certificate"),
        (key_pem(x25519.X25519PrivateKey.generate()), "does not belong to the first certificate"),
        (key_pem(ec.generate_private_key(ec.SECP256R1()), password=b"x"), "is encrypted: decrypt it"),
        (
            key_pem(
                ec.generate_private_key(ec.SECP256R1()),
                form=serialization.PrivateFormat.TraditionalOpenSSL,
                password=b"x",
            ),
            "is encrypted: decrypt it",
        ),
    ],
)
def test_a_key_that_cannot_be_used_is_refused_with_the_reason(tmp_path, authority, pem, what):
    issued = authority.client()
    bad = written(tmp_path / "bad.key", pem)
    message = why_not(certificate=issued.certificate, key=bad)
    assert f"{bad}, given with key=, {what}" in message


def test_a_key_in_the_older_form_of_rsa_or_ec_is_taken(tmp_path, authority):
    issued = authority.client()
    key = serialization.load_pem_private_key(issued.key.read_bytes(), None)
    older = written(tmp_path / "older.key", key_pem(key, form=serialization.PrivateFormat.TraditionalOpenSSL))
    assert b"BEGIN EC PRIVATE KEY" in older.read_bytes()
    assert load(certificate=issued.certificate, key=older).tls_for("a") is not None


@pytest.mark.filterwarnings("ignore:.*key size:DeprecationWarning")
def test_a_key_that_is_too_weak_for_openssl_is_refused(authority):
    issued = authority.client(key=rsa.generate_private_key(65537, 1024))
    message = why_not(certificate=issued.certificate, key=issued.key)
    assert message.startswith("OpenSSL does not take the files given with ca=, certificate= and key=: ")


def test_paths_are_taken_that_are_not_utf_8(tmp_path, authority):
    strange = tmp_path / os.fsdecode(b"\xff.pem")
    strange.write_bytes(authority.certificate.read_bytes())
    config = KafkaConfig(addresses=(("a", 9092),), tls=True, ca=strange)
    assert Security.load(config, environ={}).tls_for("a") is not None


def test_a_key_that_everybody_may_read_is_worth_a_warning(authority, warnings):
    issued = authority.client()
    load(certificate=issued.certificate, key=issued.key)
    assert warnings == []
    issued.key.chmod(0o644)
    load(certificate=issued.certificate, key=issued.key)
    assert len(warnings) == 1
