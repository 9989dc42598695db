"""Which senders of CloudEvents may deliver, by the protection of CloudEvents' web hooks against abuse."""

from __future__ import annotations

import pytest

from sampleapp.web.webhook_origins import NotAWebhookOrigin, check_webhook_origin
from tests.support.callers import caller
from tests.support.in_memory import InMemoryService, PromptBroker

NAME = b"eventgrid.azure.net"
PERMISSION = {b"webhook-allowed-origin", b"webhook-allowed-rate", b"webhook-allowed-callback"}


def service(**options):
    return InMemoryService(broker=PromptBroker(), allowed_webhook_origins=[NAME.decode()], **options)


def asking(name, *more):
    return [(b"WebHook-Request-Origin", name), *more]


@pytest.mark.parametrize("path", ["/topics/events", "/hooks/grid", "/messages", "/nothing"])
@pytest.mark.parametrize("is_guarded", [False, True])
def test_an_allowed_sender_may_deliver_on_every_path_before_it_has_credentials(path, is_guarded):
    options = {"callers": caller("grid", 'publish = ["t"]')} if is_guarded else {}
    rate = (b"WebHook-Request-Rate", b"120")
    callback = (b"WebHook-Request-Callback", b"https://eventgrid.azure.net/validate?id=1")
    for name in (NAME, b"EventGrid.Azure.net"):
        response = service(**options).request("OPTIONS", path, asking(name, rate, callback))
        assert (response.status, response.body) == (200, b"")
        assert response.headers[b"webhook-allowed-origin"] == name
        assert response.headers[b"webhook-allowed-rate"] == b"*"
        assert b"POST" in response.headers[b"allow"].split(b", ")


@pytest.mark.parametrize(
    "headers",
    [
        asking(b"other.example"),
        asking(b"x" + NAME),
        asking(NAME + b".evil.example"),
        asking(b"*"),
        asking(b""),
        asking(NAME, *asking(NAME)),
        [],
    ],
)
def test_no_other_sender_gets_a_permission(headers):
    for method, path in [("OPTIONS", "/topics/events"), ("OPTIONS", "/nothing"), ("GET", "/topics")]:
        usual = service().request(method, path, [(b"X-Request-Id", b"1")])
        response = service().request(method, path, [*headers, (b"X-Request-Id", b"1")])
        assert (response.status, response.headers) == (usual.status, usual.headers)
        assert PERMISSION.isdisjoint(response.headers)


def test_only_options_is_a_question():
    allowed = service()
    response = allowed.request("POST", "/topics/events", asking(NAME), b"x")
    assert (response.status, [each.value for each in allowed.broker.records]) == (200, [b"x"])
    assert PERMISSION.isdisjoint(response.headers)


def test_without_the_option_nobody_gets_a_permission():
    response = InMemoryService(broker=PromptBroker()).request("OPTIONS", "/topics/events", asking(NAME))
    assert PERMISSION.isdisjoint(response.headers)


@pytest.mark.parametrize("text", ["eventgrid.azure.net", "EventGrid.Azure.NET", "localhost", "a_b.c-d"])
def test_a_name_may_be_allowed_in_any_case(text):
    assert check_webhook_origin(text) == text.lower()


@pytest.mark.parametrize(
    "text",
    ["", "*", "https://a.example", "a.example:443", "a.example/", "a b", "a..b", ".a", "\xe9", "a" * 254],
)
def test_what_is_no_name_of_a_sender_is_rejected_with_what_would_be_right(text):
    with pytest.raises(NotAWebhookOrigin, match=r"such as eventgrid\.azure\.net"):
        check_webhook_origin(text)
