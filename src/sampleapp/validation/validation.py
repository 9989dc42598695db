"""
Checks of contents by the schemas of their topics.

Short contents of schemas whose checks take linear time are checked at once. All others are checked one after
the other by a process of its own, which is ended if it takes too long, and started again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from sampleapp.concurrency.rates import Backoff
from sampleapp.errors import (
    BrokerStopped,
    Fault,
    SampleAppError,
    SchemaChecksUnavailable,
    SchemaMismatch,
    SchemaTooExpensive,
    visible,
)
from sampleapp.messages.lines import UncheckedContent
from sampleapp.messages.schemas import MOST_FAULTS, Schema
from sampleapp.validation.frames import DEADLINE_S, Check, Found, Load, Reply
from sampleapp.validation.line import CheckInLine, Client, Line
from sampleapp.validation.process import WorkerProcess
from sampleapp.validation.schema_version import SchemaVersion

_START_S: Final = 30.0
"""The longest time to start the process and compile the schemas, which the service has compiled already."""
_BYTES_AT_ONCE: Final = 64 * 1024
_CONTENTS_AT_ONCE: Final = 500
"""The most contents of a batch, and the most bytes of several, that are checked together."""
_MOST_VERSIONS: Final = 2
"""The versions of the schemas that the process keeps: requests from before a reload need another one."""
_MOST_ATTEMPTS: Final = 2
"""The process may have been killed for other reasons than the content; twice is too often."""
_MOST_FAILURES: Final = 3
"""After this many ends in a row, checks do not wait for the next start."""
_RESTARTS: Final = Backoff(first_s=0.1, max_s=10.0)
_NOBODY: Final = Client("", "")

_FAILED: Final = (
    "The process that checks contents by schemas has ended; starting it again in {delay_s:g} s. {reason}"
)
_STOPPING: Final = "The service is stopping. Nothing was published."
_UNAVAILABLE: Final = (
    "The process that checks contents by schemas does not run now. Nothing was published. Send the request "
    "again later."
)


class Validation:
    """
    Checks contents by the schemas of their topics.

    One check runs at a time. What may happen to it:

    ==================================  ===================================================================
    the process answers                 the faults are its result
    it takes more than a second         the process is replaced; the result is the first fault, if that is
                                        known, or `SchemaTooExpensive`
    the process ends by itself          it runs again; `SchemaTooExpensive` after the second time
    no process can be started           `SchemaChecksUnavailable`, for all checks in the line
    the service stops                   `BrokerStopped`, for all checks in the line
    ==================================  ===================================================================
    """

    _log = Logger()

    def __init__(self, reactor: Any, *, limit: int) -> None:
        """
        :param reactor: provides time, and starts the process (`IReactorTime`, `IReactorProcess`).
        :param limit: for the contents that wait, in bytes; one caller may have half.
        """
        self._reactor = reactor
        self._line = Line(limit)
        self._numbers = count(1)
        self.current = SchemaVersion(0, {}, {})
        """The schemas that are in use."""
        self._process: WorkerProcess | None = None
        self._processes: set[WorkerProcess] = set()
        """Those that have not ended, also if they were killed."""
        self._stopped: Deferred[None] | None = None
        self._loaded: list[int] = []
        """The numbers of the versions that the process has, or is compiling."""
        self._running: CheckInLine | None = None
        self._is_loading = False
        self._deadline: IDelayedCall | None = None
        self._pause: IDelayedCall | None = None
        self._failures = 0
        self._is_started = self._is_stopped = False

    def start(self) -> None:
        """Start the process, so that the first check need not wait for it."""
        self._is_started = True
        self._warm_up()

    def use(self, files: Mapping[str, bytes], by_topic: Mapping[str, Schema]) -> None:
        """
        Replace the schemas, for the requests that come from now on.

        :param files: from which they were compiled.
        """
        self.current = SchemaVersion(next(self._numbers), files, by_topic)
        if self._is_started:
            self._warm_up()

    def stop(self) -> Deferred[None]:
        """
        Fail what waits, and end the process.

        :return: fires with ``None`` when it has ended.
        """
        self._is_stopped = True
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._kill()
        self._fail_all(partial(BrokerStopped, _STOPPING))
        stopped: Deferred[None] = Deferred()
        self._stopped = stopped
        self._tell_stopped()
        return stopped

    def check(self, topic: str, content: bytes | None, *, at: str, client: Client) -> Deferred[None] | None:
        """
        Check the content of a message by the current schemas.

        :param content: the value of its record; ``None`` for a tombstone, which always matches.
        :param at: the pointer to the content in its request.
        :return: ``None`` if it matches, or the topic has no schema; or fires with ``None`` later. Fails with
            `SchemaMismatch`, and the errors of `check_many`.
        """
        schema = self.current.by_topic.get(topic)
        if schema is None or content is None or schema.matches_at_once(content):
            return None
        return self.check_many(self.current, [topic], [content], client=client).addCallback(_require_none, at)

    def check_many(
        self, schemas: SchemaVersion, topics: list[str], contents: list[bytes], *, client: Client
    ) -> Deferred[dict[int, list[Fault]]]:
        """
        Check contents together, within a second.

        :param schemas: those that were the current ones when the request began.
        :param topics: of the contents; each has a schema.
        :param contents: values of records.
        :return: fires with the faults by the index of the content: none of those that match. After 100
            faults, further contents are not checked. Fails with `SchemaTooExpensive`, `SchemaChecksFull`,
            `SchemaChecksOfCallerFull`, `SchemaChecksUnavailable` or `BrokerStopped`.
        """
        check = CheckInLine(schemas, topics, contents, client, Deferred(), {})
        try:
            if self._is_stopped:
                raise BrokerStopped(_STOPPING)
            if self._failures >= _MOST_FAILURES and client is not _NOBODY:
                raise SchemaChecksUnavailable(_UNAVAILABLE)
            self._line.add(check)
        except SampleAppError as error:
            check.result.errback(error)
        else:
            self._next()
        return check.result

    async def mismatches(
        self, schemas: SchemaVersion, contents: Sequence[UncheckedContent], *, client: Client
    ) -> list[tuple[UncheckedContent, SchemaMismatch]]:
        """
        Check the contents of a batch, some at a time; other checks may run in between.

        :return: those that do not match, in order; up to 100 faults, perhaps more in the last one.
        :raise SampleAppError: as `check_many` fails.
        """
        found: list[tuple[UncheckedContent, SchemaMismatch]] = []
        faults = 0
        for some in _parts(contents):
            of_some = await self.check_many(
                schemas, [each.topic for each in some], [each.content for each in some], client=client
            )
            for index, its_faults in of_some.items():
                found.append((some[index], _mismatch(its_faults, at=some[index].at)))
                faults += len(its_faults)
            if faults >= MOST_FAULTS:
                break
        return found

    def _warm_up(self) -> None:
        # Without contents, the process only compiles the schemas. A failure is logged by `_failed`.
        self.check_many(self.current, [], [], client=_NOBODY).addErrback(
            lambda failure: failure.trap(SampleAppError)
        )

    def _next(self) -> None:
        """Begin the next check, if none runs."""
        if self._running is not None or self._pause is not None or self._is_stopped:
            return
        check = self._line.take()
        if check is None:
            return
        self._running = check
        process = self._process
        if process is None:
            self._is_loading = True
            try:
                process = WorkerProcess.start(self._reactor, self._received, self._ended)
            except OSError as error:
                self._failed(error.strerror or str(error))
                return
            self._process = process
            self._processes.add(process)
        if check.schemas.number in self._loaded:
            self._send(process, check)
        else:
            self._load(process, check.schemas)

    def _load(self, process: WorkerProcess, schemas: SchemaVersion) -> None:
        self._loaded.append(schemas.number)
        forgotten, self._loaded = self._loaded[:-_MOST_VERSIONS], self._loaded[-_MOST_VERSIONS:]
        self._is_loading = True
        self._deadline = self._reactor.callLater(_START_S, self._too_long)
        process.send(Load(schemas.number, dict(schemas.files), forgotten))

    def _send(self, process: WorkerProcess, check: CheckInLine) -> None:
        self._is_loading = False
        self._deadline = self._reactor.callLater(DEADLINE_S, self._too_long)
        process.send(Check(check.schemas.number, check.topics, check.contents))

    def _received(self, reply: Reply) -> None:
        check, process, deadline = self._running, self._process, self._deadline
        # The process answers requests only, and each with one `Done`.
        assert check is not None and process is not None and deadline is not None  # noqa: PT018, S101
        if isinstance(reply, Found):
            check.found[reply.number] = reply.faults
            return
        deadline.cancel()
        self._deadline = None
        if self._is_loading:
            self._send(process, check)
            return
        self._failures = 0
        self._running = None
        self._settle(check, check.found)
        self._next()

    def _too_long(self) -> None:
        self._deadline = None
        self._kill()
        if self._is_loading:
            self._failed("It did not start in time.")
            return
        check, self._running = self._running, None
        if check is not None:
            self._settle(check, check.found or _too_expensive(check))
        self._next()

    def _ended(self, process: WorkerProcess, reason: str | None) -> None:
        self._processes.discard(process)
        self._tell_stopped()
        if reason is not None:
            self._failed(reason)

    def _failed(self, reason: str) -> None:
        """Have the process started again after a while."""
        self._kill()
        self._failures += 1
        delay_s = _RESTARTS.delay_s(self._failures)
        self._log.error(_FAILED, delay_s=delay_s, reason=visible(reason, keeping=""))
        check, self._running = self._running, None
        if check is not None:
            check.found.clear()
            check.attempts += 0 if self._is_loading else 1
            if check.attempts < _MOST_ATTEMPTS:
                self._line.put_back(check)
            else:
                self._settle(check, _too_expensive(check))
        if self._failures >= _MOST_FAILURES:
            self._fail_all(partial(SchemaChecksUnavailable, _UNAVAILABLE))
        self._pause = self._reactor.callLater(delay_s, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._warm_up()
        # The line may have had no room for that.
        self._next()

    def _kill(self) -> None:
        process, self._process = self._process, None
        self._loaded = []
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if process is not None:
            process.kill()

    def _tell_stopped(self) -> None:
        if self._stopped is not None and not self._processes:
            stopped, self._stopped = self._stopped, None
            stopped.callback(None)

    def _fail_all(self, new_error: Callable[[], SampleAppError]) -> None:
        check, self._running = self._running, None
        while check is not None or (check := self._line.take()) is not None:
            self._settle(check, new_error())
            check = None

    def _settle(self, check: CheckInLine, outcome: dict[int, list[Fault]] | SampleAppError) -> None:
        self._line.leave(check)
        if isinstance(outcome, SampleAppError):
            check.result.errback(outcome)
        else:
            check.result.callback(outcome)


def _parts(contents: Sequence[UncheckedContent]) -> Iterator[list[UncheckedContent]]:
    some: list[UncheckedContent] = []
    size = 0
    for each in contents:
        if some and (len(some) >= _CONTENTS_AT_ONCE or size + len(each.content) > _BYTES_AT_ONCE):
            yield some
            some, size = [], 0
        some.append(each)
        size += len(each.content)
    if some:
        yield some


def _too_expensive(check: CheckInLine) -> SchemaTooExpensive:
    number = len(check.contents)
    which = "the content by the schema of its topic" if number == 1 else f"{number} contents by their schemas"
    return SchemaTooExpensive(
        f"To check {which} takes more than {DEADLINE_S:g} s, or too much memory. Nothing was published. Send "
        "less content in one message, or fewer messages in one request."
    )


def _require_none(found: Mapping[int, list[Fault]], at: str) -> None:
    if found:
        raise _mismatch(found[0], at=at)


def _mismatch(faults: Iterable[Fault], *, at: str) -> SchemaMismatch:
    """
    Make the error for the faults of a content.

    :param at: the pointer to the content.
    """
    return SchemaMismatch([Fault(f"{at}{each.pointer}", each.detail) for each in faults])
