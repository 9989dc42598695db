"""``/hooks/{hook}``: records from senders that sign their requests."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from twisted.internet.defer import Deferred

from sampleapp.access import Hook, HookVerifier, InvalidSignature, SignedRequest, Slack, names_of_field
from sampleapp.errors import Fault, InvalidParameters
from sampleapp.messages.headers import RecordedFields
from sampleapp.messages.parsing import RecordHeaders
from sampleapp.messages.queries import read_headers
from sampleapp.web.access_control import TO_PUBLISH, authorize_topic
from sampleapp.web.errors import MethodNotAllowed
from sampleapp.web.publish.publisher import IDEMPOTENCY_KEY, Publisher, scope_of
from sampleapp.web.responses import Response
from sampleapp.web.routing import Variant
from sampleapp.web.server import Request

_URL_VERIFICATION: Final = "url_verification"
_PLAIN_TEXT: Final = (
    (b"Content-Type", b"text/plain; charset=utf-8"),
    (b"Cache-Control", b"no-store"),
)


class _SlackEvent(Struct):
    """The members of an event from Slack that belong to the verification of a URL."""

    type: str = ""
    challenge: str = ""


class _Verified(NamedTuple):
    """The hook of a request whose signature is right."""

    hook: Hook
    signature_fields: frozenset[bytes]
    """See `HookVerifier.signature_fields`."""


class Hooks:
    """Publishes what hooks send, once its signature is verified."""

    def __init__(self, publisher: Publisher, verifier: HookVerifier | None, recorded: RecordedFields) -> None:
        """
        :param verifier: verifies requests; ``None`` without a callers file.
        :param recorded: chooses the header fields and parameters of a request that become headers of its
            record.
        """
        self._publisher = publisher
        self.verifier = verifier
        """``None`` if every request is rejected."""
        self._recorded = recorded
        self.variant: Final = Variant(self._receive, check_head=self._check_head, takes_query=True)
        """Serves ``POST``."""
        self.url_check: Final = Variant(self._answer_check, check_head=self._check_url, takes_query=True)
        """Serves ``GET`` and ``HEAD``, with which senders check a URL."""

    def _check_head(self, request: Request, *, hook: str) -> None:
        if self.verifier is None:
            raise InvalidSignature
        signed = self.verifier.begin(hook, request.fields)
        # Without the request: a cycle would never be freed, since requests are not tracked.
        request.verify_body = partial(_verify, self.verifier, signed)

    def _receive(self, request: Request, *, hook: str) -> Response | Deferred[Response]:
        if request.verify_body is not None:
            request.verify_body(request, request.body)
        faults: list[Fault] = []
        of_query = read_headers(request.query, faults, self._recorded.parameters)
        verified: _Verified = request.checked
        if isinstance(verified.hook.scheme, Slack) and not faults:
            if _is_ssl_check(request.body):
                return Response(HTTPStatus.OK, _PLAIN_TEXT)
            challenge = _challenge_in(request.body)
            if challenge is not None:
                return Response(HTTPStatus.OK, _PLAIN_TEXT, challenge.encode("utf-8", "replace"))
            return self._publish(request, verified, of_query, faults).addCallback(_without_body)
        return self._publish(request, verified, of_query, faults)

    def _check_url(self, request: Request, *, hook: str) -> None:
        # Slack's way to check the certificate of a URL, unsigned. The answer is that of all names.
        if _is_ssl_check(request.query):
            return
        if self.verifier is None:
            raise InvalidSignature
        request.checked = partial(self.verifier.finish, self.verifier.begin(hook, request.fields))

    def _answer_check(self, request: Request, *, hook: str) -> Response:
        if request.checked is None:
            return Response(HTTPStatus.OK, _PLAIN_TEXT)
        # Until its signature is verified, a request is answered as POST with an empty body.
        request.checked(b"")
        raise MethodNotAllowed({"POST", "OPTIONS"})

    def _publish(
        self, request: Request, verified: _Verified, of_query: RecordHeaders, faults: list[Fault]
    ) -> Deferred[Response]:
        """
        Publish the body of a verified request.

        :param of_query: the headers that its query has.
        :param faults: of its query; those of its other parts are added.
        :raise InvalidParameters: the query has other parameters, or the request has several keys.
        :raise MalformedIdempotencyKey: its idempotency key is not valid.
        """
        fields, hook = request.fields, verified.hook
        keys = [value for name in _names(hook.key_header) for value in fields.all(name)]
        if len(keys) > 1:
            faults.append(
                Fault(
                    f"/{hook.key_header}".replace("~", "~0"),
                    f"The header {hook.key_header} is there {len(keys)} times; a record has one key.",
                )
            )
        if faults:
            raise InvalidParameters(faults)
        return self._publisher.publish_to(
            request,
            authorize_topic(request, hook.topic, TO_PUBLISH),
            key=keys[0] if keys else None,
            value=request.body,
            of_request=self._recorded.of(fields, without=verified.signature_fields)
            + of_query
            + self._publisher.headers_of(request),
            scope=scope_of(request, _names(hook.idempotency_header) or (IDEMPOTENCY_KEY,)),
        )


def _names(field: str | None) -> list[bytes]:
    """Return all names of a header field that a hook names; none if it names none."""
    return [] if field is None else [each.encode("ascii") for each in names_of_field(field)]


def _verify(verifier: HookVerifier, signed: SignedRequest, request: Request, body: bytes) -> None:
    hook, request.charge = verifier.finish(signed, body)
    request.checked = _Verified(hook, signed.signature_fields)
    request.caller = hook.caller
    request.exchange.caller = hook.caller.name
    if request.reservation is not None:
        request.reservation.transfer(hook.caller.name)


def _challenge_in(body: bytes) -> str | None:
    """Return the challenge of a request with which Slack verifies a URL; ``None`` for other requests."""
    if _URL_VERIFICATION.encode("ascii") not in body:
        return None
    try:
        event = msgspec.json.decode(body, type=_SlackEvent)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return event.challenge if event.type == _URL_VERIFICATION and event.challenge else None


def _is_ssl_check(form: bytes) -> bool:
    """Return whether Slack only checks the certificate of a URL; events are JSON objects."""
    return not form.startswith(b"{") and b"ssl_check=1" in form.split(b"&")


def _without_body(response: Response) -> Response:
    """Leave out the metadata of the record: Slack shows what answers a command."""
    if response.problem:
        return response
    headers = tuple([field for field in response.headers if field[0] != b"Content-Type"])
    return replace(response, headers=headers, body=b"")
