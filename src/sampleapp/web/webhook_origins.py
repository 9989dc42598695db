"""
Abuse protection of CloudEvents' HTTP 1.1 Web Hooks, version 1.0.2, section 4.

A sender asks by ``OPTIONS`` whether it may deliver to an address, and does not deliver without permission:
https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/http-webhook.md#4-abuse-protection
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from sampleapp.web.responses import Response
from sampleapp.web.server import Dispatch, Handler, Request

# A DNS expression, in the words of the specification; each name is matched in one way only.
_NAME: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9_][a-z0-9_-]*(?:\.[a-z0-9_][a-z0-9_-]*)*")


class NotAWebhookOrigin(ValueError):
    """A text is not the name of a sending system; the message says what to write instead."""


def check_webhook_origin(text: str) -> str:
    """
    Check the name of a sending system.

    :return: in lower case.
    :raise NotAWebhookOrigin: it is not a name as in DNS.
    """
    name = text.lower()
    if _NAME.fullmatch(name) is None:
        raise NotAWebhookOrigin(
            "takes the name of a sender as in its header WebHook-Request-Origin, such as "
            "eventgrid.azure.net: without a scheme, a port or *"
        )
    return name


def answering_validations(dispatch: Dispatch, origins: Iterable[str]) -> Dispatch:
    """
    Wrap a dispatch, and answer the validation requests of some senders instead of it.

    Senders may send no credentials with it, so it must be answered before access control. The response is the
    same for every path, so that paths are not disclosed.

    :param origins: the names of the senders, each as `check_webhook_origin` returns it.
    """
    allowed = frozenset(origin.encode("ascii") for origin in origins)

    def answer_validation_or_dispatch(request: Request) -> Response | Handler:
        if request.method == b"OPTIONS":
            asking = request.fields.all(b"WebHook-Request-Origin")
            if len(asking) == 1 and asking[0].lower() in allowed:
                return Response(
                    # Not 204: Azure Event Grid documents 200, and does not accept each other success.
                    HTTPStatus.OK,
                    (
                        (b"Allow", b"POST, OPTIONS"),
                        (b"WebHook-Allowed-Origin", asking[0]),
                        # Requests over the rate of their caller get 429.
                        (b"WebHook-Allowed-Rate", b"*"),
                    ),
                )
        return dispatch(request)

    return answer_validation_or_dispatch
