"""The address of a service."""

from __future__ import annotations

import pytest
import pytest_twisted
import treq.testing
from twisted.internet.task import Clock

from sampleapp.client import (
    Client,
    parse_base_url,
)
from tests.support.callers import token_of
from tests.support.client_servers import (
    ContractResource,
)


@pytest_twisted.ensureDeferred
async def test_a_path_of_the_base_url_goes_before_the_paths_of_the_service():
    service = ContractResource()
    agent = treq.testing.RequestTraversalAgent(service)
    await Client(base_url="http://h/gate/way", reactor=Clock(), agent=agent).readings()
    assert service.requests == [(b"/gate/way/", None, None)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://h", "http://h/"),
        ("HTTPS://H:8443/a b", "https://h:8443/a%20b/"),
        ("http://[::1]:80//", "http://[::1]:80/"),
        ("http://ü.example/", "http://xn--tda.example/"),
    ],
)
def test_a_base_url_becomes_ascii_that_ends_with_a_slash(text, expected):
    assert parse_base_url(text) == expected


def test_a_password_in_a_base_url_is_rejected_with_the_way_to_give_a_token():
    token = token_of("full")
    with pytest.raises(ValueError, match="must end with its path") as caught:
        parse_base_url(f"https://u:{token}@h/")
    assert str(caught.value).endswith(". A token is given as token, --token-file or SAMPLEAPP_TOKEN")
    assert token not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h:8080",
        "//h",
        "ftp://h",
        "http://",
        "http://h:x",
        "http://h:99999",
        "http://[::1",
        "http://a b",
        "http://a..b",
        f"http://{'a' * 64}",
        "http://h/\ud800",
        "http://u@h",
        "http://h/?q",
        "http://h/#f",
    ],
)
def test_what_is_not_a_base_url_is_rejected_with_a_reason(text):
    with pytest.raises(ValueError, match=r"is not a URL such as http://127\.0\.0\.1:8080/|must end with"):
        Client(base_url=text, reactor=Clock())
