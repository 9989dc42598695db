"""Why a request is not let in. None of these says anything of what a caller has sent as its credentials."""

from __future__ import annotations

from sampleapp.errors import SampleAppError

__all__ = [
    "AccessError",
    "AmbiguousCredentials",
    "InvalidCredentials",
    "IssuerKeysNotKnown",
    "NoCredentials",
    "NotGranted",
    "RateExceeded",
]


class AccessError(SampleAppError):
    """A request is refused because of who makes it."""

    retry_after_s: float | None = None
    """In how many seconds it may be let in; ``None`` if time changes nothing."""


class NoCredentials(AccessError):
    """Nobody has said who calls, or not in a way that the service knows (RFC 6750, section 3.1)."""


class InvalidCredentials(AccessError):
    """The credentials are malformed, of nobody, or not valid now (RFC 6750, section 3.1: invalid_token)."""


class AmbiguousCredentials(AccessError):
    """There are several where one is allowed (RFC 6750, section 3.1: invalid_request)."""


class IssuerKeysNotKnown(AccessError):
    """
    The key of a token is not known yet, and its issuer is being asked for it. Nothing was done.

    To say that the token is not valid could be wrong, and would make its owner give it up; to take it would
    be to let in whoever names a key that does not exist.
    """

    def __init__(self, *, retry_after_s: float) -> None:
        """:param retry_after_s: in how many seconds that may have changed."""
        super().__init__(
            "The key of the token is not known yet; its issuer is being asked for it. Nothing was published; "
            "send the request again after the seconds that Retry-After says."
        )
        self.retry_after_s = retry_after_s


class NotGranted(AccessError):
    """The caller is known, and may not do this."""


class RateExceeded(AccessError):
    """The caller has asked for more than its rate allows. Nothing of the request was done."""

    def __init__(self, what: str, *, retry_after_s: float) -> None:
        """
        :param what: there was too much of: ``requests`` or ``bytes``.
        :param retry_after_s: in how many seconds there is room.
        """
        super().__init__(
            f"This caller has sent more {what} than its rate allows. Nothing was published; send the request "
            "again after the seconds that Retry-After says."
        )
        self.retry_after_s = retry_after_s
