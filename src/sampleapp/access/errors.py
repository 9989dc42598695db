"""Errors of access control. Their messages never repeat credentials."""

from __future__ import annotations

from sampleapp.errors import SampleAppError


class AccessError(SampleAppError):
    """A request is rejected because of its caller or its credentials."""

    retry_after_s: float | None = None
    """Seconds after which a retry can succeed; ``None`` if waiting does not help."""


class NoCredentials(AccessError):
    """The request has no credentials, or none of a kind that the service knows (RFC 6750, section 3.1)."""


class InvalidCredentials(AccessError):
    """The credentials are malformed, unknown or not valid now (RFC 6750, section 3.1: invalid_token)."""


class InvalidSignature(AccessError):
    """
    The request of a hook does not have a valid signature, or there is no such hook.

    It does not say which, since the client has not proved who it is.
    """

    def __init__(self) -> None:
        super().__init__(
            "The name of the hook is unknown, or the signature of the request is missing, wrong, too old or "
            "from the future. Nothing was published."
        )


class AmbiguousCredentials(AccessError):
    """The request has several credentials (RFC 6750, section 3.1: invalid_request)."""


class IssuerKeysNotKnown(AccessError):
    """
    The key of a token is not known yet, and is being fetched from its issuer. Nothing was done.

    The token may be valid, so a 401 could make its owner discard it. Accepting it would accept any token that
    names a key that does not exist.
    """

    def __init__(self, *, retry_after_s: float) -> None:
        """:param retry_after_s: seconds after which the key may be known."""
        super().__init__(
            "The key of the token is not known yet, and is being fetched from its issuer. Nothing was done; "
            "send the request again after the seconds in Retry-After."
        )
        self.retry_after_s = retry_after_s


class NotGranted(AccessError):
    """The caller is authenticated, and lacks the right."""


class RateExceeded(AccessError):
    """The caller has exceeded one of its rates. Nothing of the request was done."""

    def __init__(self, what: str, *, retry_after_s: float) -> None:
        """
        :param what: the rate: ``requests`` or ``bytes``.
        :param retry_after_s: seconds until the rate allows the request.
        """
        super().__init__(
            f"This caller has sent more {what} than its rate allows. Nothing was done; send the request "
            "again after the seconds in Retry-After."
        )
        self.retry_after_s = retry_after_s


class TooManyStreamsOfCaller(AccessError):
    """The caller has its maximum of open streams, or of waiting pages (``--max-streams-per-caller``)."""

    def __init__(self, limit: int, *, what: str, retry_after_s: float) -> None:
        """
        :param limit: of this caller.
        :param what: ``streams`` or ``waiting pages``.
        :param retry_after_s: seconds after which one of them may have ended.
        """
        super().__init__(
            f"This caller has {limit} {what} open, its maximum. Close one of them, or send the request again "
            "later."
            if limit
            else f"This caller may not have {what}: its maximum is 0."
        )
        self.retry_after_s = retry_after_s
