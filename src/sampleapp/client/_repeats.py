"""Repeating a request that the service knows again by its idempotency key."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.web.http_headers import Headers

from sampleapp.client._errors import (
    ClientError,
    PartlyPublished,
    ProblemError,
    RequestCancelled,
    TooManyRequests,
)
from sampleapp.concurrency.backoff import Backoff

__all__ = ["Repeats", "idempotency_headers"]

BACKOFF = Backoff(first_s=0.25, max_s=5.0)
MAX_RETRY_S = 30.0
"""The maximum pause that Retry-After may ask for, in seconds."""

_KEY = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?")

_Result = TypeVar("_Result")


def idempotency_headers(key: str | None) -> Headers:
    """
    Return header fields with an idempotency key; none without a key.

    :raise ValueError: the key is not 1 to 255 visible ASCII characters; spaces may be inside.
    """
    headers = Headers()
    if key is not None:
        if not _KEY.fullmatch(key):
            raise ValueError(
                f"An idempotency key has 1 to 255 visible ASCII characters, which {key!r} has not."
            )
        # A string of RFC 9651: without quotation marks, a space would not be allowed.
        escaped = key.replace("\\", "\\\\").replace('"', '\\"')
        headers.setRawHeaders(b"Idempotency-Key", [f'"{escaped}"'.encode("ascii")])
    return headers


class Repeats:
    """Repeats requests until they succeed, fail for good, or a time is over."""

    def __init__(
        self,
        *,
        clock: IReactorTime,
        repeat_for_s: float,
        on_repeat: Callable[[ClientError], None] | None = None,
    ) -> None:
        """
        :param repeat_for_s: seconds after its first attempt in which a request is repeated.
        :param on_repeat: is called with an error before the pause after which the request is repeated.
        """
        self._clock = clock
        self._repeat_for_s = repeat_for_s
        self._on_repeat = on_repeat

    async def run(self, request: Callable[[], Awaitable[_Result]]) -> _Result:
        """
        Make a request, and make it again while it fails and may succeed later.

        Rejections for the caller's rate (429) are not repeated.

        :raise ClientError: the error of the last attempt. It is ``possibly_published`` if any attempt was.
        :raise RequestCancelled: ``possibly_published`` likewise.
        """
        until_s = self._clock.seconds() + self._repeat_for_s
        failures = 0
        possibly_published = False
        while True:
            try:
                return await request()
            except ClientError as error:
                failures += 1
                failure = error
                possibly_published |= error.possibly_published
                error.possibly_published = possibly_published
                pause_s = _pause_s(error, failures)
                if not _may_succeed(error) or self._clock.seconds() + pause_s > until_s:
                    raise
            except RequestCancelled as error:
                raise RequestCancelled(
                    possibly_published=possibly_published or error.possibly_published
                ) from error
            if self._on_repeat is not None:
                self._on_repeat(failure)
            try:
                await deferLater(self._clock, pause_s)
            except CancelledError as error:
                raise RequestCancelled(possibly_published=possibly_published) from error


def _may_succeed(error: ClientError) -> bool:
    if isinstance(error, PartlyPublished):
        return any(isinstance(result, ProblemError) and result.retriable for result in error.results)
    return error.retriable and not isinstance(error, TooManyRequests)


def _pause_s(error: ClientError, failures: int) -> float:
    retry_after_s = error.retry_after_s if isinstance(error, ProblemError) else None
    return max(BACKOFF.delay_s(failures), min(retry_after_s or 0.0, MAX_RETRY_S))
