"""The credentials for SASL, from a file or the environment, and a token from a file."""

from __future__ import annotations

import os

import pytest

from sampleapp.brokers.kafka.config import parse
from sampleapp.brokers.kafka.connections.sasl_mechanisms import Credentials
from sampleapp.brokers.kafka.connections.security import FileReader, Security, load_credentials, load_token
from sampleapp.errors import StartUpError
from tests.support.files import written
from tests.support.secrets import secret

SECRET = secret("s3cr3t-Xyzzy", "a password")


def loaded(path):
    found = load_credentials(path, environ={}, files=FileReader())
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
        (f"username=me\npassword={SECRET}\n" + "#" * 1024 * 1024, "larger than 1048576 bytes"),
    ],
)
def test_a_file_of_another_form_is_rejected_by_its_line_and_nothing_of_it_is_repeated(
    tmp_path, content, what
):
    path = written(tmp_path / "c", content)
    with pytest.raises(StartUpError) as caught:
        load_credentials(path, environ={}, files=FileReader())
    assert what in str(caught.value)
    assert str(path) in str(caught.value)
    assert SECRET not in repr(caught.value)
    assert caught.value.__cause__ is None


def test_a_file_that_cannot_be_read_is_rejected_with_the_reason(tmp_path):
    with pytest.raises(StartUpError, match="does not exist"):
        load_credentials(tmp_path / "none", environ={}, files=FileReader())
    with pytest.raises(StartUpError, match="is not a regular file"):
        load_credentials(tmp_path, environ={}, files=FileReader())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StartUpError, match="is not a regular file"):
        load_credentials(tmp_path / "pipe", environ={}, files=FileReader())
    with pytest.raises(StartUpError, match="File name too long"):
        load_credentials(tmp_path / ("x" * 300), environ={}, files=FileReader())


def test_a_file_that_everybody_may_read_is_worth_a_warning_without_the_secret(tmp_path, warnings):
    path = written(tmp_path / "c", f"username=me\npassword={SECRET}", mode=0o640)
    loaded(path)
    assert warnings == []
    path.chmod(0o644)
    loaded(path)
    assert [str(path) in warning and SECRET not in warning for warning in warnings] == [True]


def test_a_file_that_every_user_may_write_to_is_rejected(tmp_path):
    path = written(tmp_path / "c", f"username=me\npassword={SECRET}", mode=0o602)
    with pytest.raises(StartUpError) as caught:
        loaded(path)
    assert str(caught.value) == (
        f"The file {path}, given with credentials=, is not safe to use: every user of this machine may write "
        "to it; remove that permission (chmod o-w)."
    )
    with pytest.raises(StartUpError, match="given with ca=, is not safe to use"):
        FileReader().read(path, option="ca", secret=False)
    path.chmod(0o600)
    tmp_path.chmod(0o777)
    with pytest.raises(StartUpError, match="is not safe to use: every user of this machine may replace it"):
        loaded(path)
    tmp_path.chmod(0o700)
    path.chmod(0o620)
    loaded(path)


def test_the_environment_has_the_credentials_unless_a_file_is_given(tmp_path):
    environ = {"SAMPLEAPP_KAFKA_USERNAME": "env", "SAMPLEAPP_KAFKA_PASSWORD": "pw"}
    found = load_credentials(None, environ=environ, files=FileReader())
    assert (found.username, found.password) == ("env", "pw")
    path = written(tmp_path / "c", "username=file\npassword=other")
    assert load_credentials(path, environ=environ, files=FileReader()).username == "file"


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
        load_credentials(None, environ=environ, files=FileReader())
    assert SECRET not in repr(caught.value)


def test_credentials_show_in_no_representation(tmp_path):
    found = Credentials(username="somebody", password=SECRET)
    config = parse("kafka+tls://a?sasl=SCRAM-SHA-512")
    security = Security.load(
        config,
        environ={"SAMPLEAPP_KAFKA_USERNAME": "somebody", "SAMPLEAPP_KAFKA_PASSWORD": SECRET},
        files=FileReader(),
    )
    steps = security.sasl_steps()
    next(steps)
    for each in (found, config, security, steps, vars(security)):
        for shown in (repr(each), str(each), format(each)):
            assert SECRET not in shown
            assert "somebody" not in shown


def token_in(path, content):
    return load_token(written(path / "token", content), files=FileReader())


@pytest.mark.parametrize("content", ["eyJhbGciOiJub25lIn0.e30.", " a-._~+/9==\n", "a\r\n"])
def test_a_token_is_what_is_in_its_file_but_for_the_white_space_around_it(tmp_path, content):
    assert token_in(tmp_path, content).text == content.strip()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "is empty: it must hold one token"),
        ("\n \n", "is empty"),
        (f"{SECRET}\n{SECRET}", "has no token: it must hold one token and nothing else"),
        (f"Bearer {SECRET}", "has no token"),
        (f'"{SECRET}"', "has no token"),
        (f"{SECRET}\x01", "has no token"),
        (f"{SECRET}\u00fc", "has no token"),
        (b"\xff" + SECRET.encode(), "has no token"),
    ],
)
def test_what_is_no_token_is_rejected_and_not_repeated(tmp_path, content, what):
    with pytest.raises(StartUpError, match=what) as caught:
        token_in(tmp_path, content)
    assert SECRET not in repr(caught.value)
    assert caught.value.__cause__ is None


def test_a_token_shows_in_no_representation(tmp_path):
    path = written(tmp_path / "token", SECRET)
    config = parse(f"kafka+tls://a?sasl=OAUTHBEARER&token_file={path}")
    security = Security.load(config, environ={}, files=FileReader())
    steps = security.sasl_steps()
    assert SECRET in next(steps).decode()
    for each in (load_token(path, files=FileReader()), config, security, steps, vars(security)):
        for shown in (repr(each), str(each), format(each)):
            assert SECRET not in shown


def test_a_file_is_warned_of_once_and_again_when_it_was_right_in_between(tmp_path, warnings):
    files = FileReader()
    path = written(tmp_path / "c", f"username=me\npassword={SECRET}", mode=0o644)
    for mode in (0o644, 0o644, 0o600, 0o644):
        path.chmod(mode)
        load_credentials(path, environ={}, files=files)
    assert len(warnings) == 2
