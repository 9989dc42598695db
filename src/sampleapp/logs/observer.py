"""The observer of the process log: twistd's destination, with our format and level."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import IO, Any, NamedTuple, cast

from twisted.logger import (
    FileLogObserver,
    FilteringLogObserver,
    ILogFilterPredicate,
    ILogObserver,
    LegacyLogObserverWrapper,
    LogEvent,
    LogLevel,
    PredicateResult,
)
from zope.interface import implementer

from sampleapp.errors import InvalidOption
from sampleapp.logs.background_writer import BackgroundWriter, write_to_standard_output
from sampleapp.logs.json_lines import json_line
from sampleapp.logs.settings import STANDARD_OUTPUT, LogFormat, LogSettings


def require_possible(twistd_options: Mapping[str, Any], settings: LogSettings) -> None:
    """
    Check that twistd's options allow the log settings.

    :param twistd_options: the options of twistd's own command line.
    :raise InvalidOption: they contradict each other.
    """
    is_changed = settings.format is not LogFormat.TEXT or settings.level != LogSettings().level
    if twistd_options.get("logger") and is_changed:
        raise InvalidOption(
            "--log-format and --log-level have no effect with twistd's --logger, which brings its own log "
            "observer. Leave out one of them."
        )
    if twistd_options.get("syslog") and settings.format is LogFormat.JSON:
        raise InvalidOption(
            "--log-format json cannot be used with --syslog, which has its own format. Leave out one of them."
        )
    if settings.access_log == STANDARD_OUTPUT and not twistd_options.get("nodaemon"):
        raise InvalidOption(
            "--access-log - means standard output, which a daemon does not have. Give a file, or run twistd "
            "with --nodaemon."
        )


class ProcessLog(NamedTuple):
    """The log of the process."""

    observer: ILogObserver
    writer: BackgroundWriter | None
    """Its thread must be started once the reactor runs; ``None`` for syslog, which has no thread."""


def process_log(
    twistd_options: Mapping[str, Any], settings: LogSettings, *, lost_lines: Counter[str]
) -> ProcessLog | None:
    """
    Make the observer that writes the log to twistd's destination.

    :param twistd_options: twistd's options, checked by `require_possible`.
    :param lost_lines: counts lost lines under ``service``.
    :return: ``None`` if ``--logger`` brings an observer.
    """
    if twistd_options.get("logger"):
        return None
    # Loaded only where there is a twistd.
    from twisted.scripts import twistd

    # Twisted has no public way to get its observer: a program can only replace it.
    runner: Any = twistd._SomeApplicationRunner  # type: ignore[attr-defined]  # noqa: SLF001
    observer: Any = runner.loggerFactory(twistd_options)._getLogObserver()  # noqa: SLF001
    writer = None
    if isinstance(observer, FileLogObserver):
        file: Any = observer._outFile  # noqa: SLF001 -- as above
        writer = BackgroundWriter("The log", _write_to(file), lost=lost_lines, label="service")
        form = json_line if settings.format is LogFormat.JSON else observer.formatEvent
        observer = FileLogObserver(cast("IO[str]", _TextFile(writer, file)), form)
    elif not ILogObserver.providedBy(observer):
        # The observer of syslog is an old one, without levels.
        observer = LegacyLogObserverWrapper(observer)
    return ProcessLog(FilteringLogObserver(observer, [_AtLeast(settings.level)]), writer)


def _write_to(file: Any) -> Callable[[bytes], int]:
    if file is sys.stdout:
        file.flush()
        return write_to_standard_output

    # A file of twistd, which rotates it by size.
    def write(data: bytes) -> int:
        file.write(data)
        file.flush()
        return len(data)

    return write


class _TextFile:
    """A file as `FileLogObserver` writes to it."""

    def __init__(self, writer: BackgroundWriter, file: Any) -> None:
        self._writer = writer
        self._encoding = getattr(file, "encoding", None) or "utf-8"

    def write(self, text: str) -> None:
        self._writer.write(text.encode(self._encoding, "backslashreplace"))

    def flush(self) -> None:
        """Do nothing: nothing is buffered here."""


@implementer(ILogFilterPredicate)
class _AtLeast:
    """
    Passes events of a level and above, those without a level, and everything printed to standard error.

    Python prints the exception that ends the process to standard error.
    """

    def __init__(self, level: str) -> None:
        self._lowest = LogLevel.levelWithName(level)

    def __call__(self, event: LogEvent) -> Any:
        level = event.get("log_level")
        if level is None or level >= self._lowest or event.get("log_namespace") == "stderr":
            return PredicateResult.maybe
        return PredicateResult.no
