"""The credentials for SASL, from a file or the environment."""

from __future__ import annotations

import os

import pytest

from sampleapp.brokers.kafka.config import parse
from sampleapp.brokers.kafka.connections.files import load_credentials
from sampleapp.brokers.kafka.connections.sasl import Credentials
from sampleapp.brokers.kafka.connections.security import Security
from sampleapp.errors import StartUpError
from tests.support.files import written

SECRET = "s3cr3t-Xyzzy"


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
