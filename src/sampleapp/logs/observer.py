"""The observer of the process log: twistd's destination, with our level, as text or as lines of JSON."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from string import Formatter
from typing import IO, Any, Final, NamedTuple, cast

import msgspec
from twisted.logger import (
    FileLogObserver,
    FilteringLogObserver,
    ILogFilterPredicate,
    ILogObserver,
    LegacyLogObserverWrapper,
    LogEvent,
    LogLevel,
    PredicateResult,
    formatEvent,
)
from zope.interface import implementer

from sampleapp.errors import InvalidOption, visible
from sampleapp.logs.background_writer import BackgroundWriter, write_to_standard_output
from sampleapp.logs.settings import STANDARD_OUTPUT, LogFormat, LogSettings

_RESERVED: Final = ("time", "level", "logger", "event", "message", "traceback")
"""The members of every event. Fields with these names get an underscore."""
_LONGEST_MESSAGE: Final = 2000
"""The longest text of ``message``, in characters. The fields have its values in full."""
_LEGACY_FIELDS: Final = frozenset(
    {
        # twisted.python.log adds these to each event, besides the new names that begin with "log_".
        *("format", "isError", "message", "system", "time", "failure", "why", "debugInfo", "printed"),
    }
)
_SURROGATE: Final = "\\ud"
_FORMATTER: Final = Formatter()


def json_line(event: LogEvent) -> str:
    """
    Format an event as one JSON object, in ASCII, with the end of the line.

    Its ``event`` is the constant text with the names of the fields in braces, so that lines of one kind can
    be found and counted. Its ``message`` is the text with the values. A value that JSON does not have is
    written as its text.

    :return: a line for every event; never raises.
    """
    try:
        return _line(_members(event))
    except Exception as error:  # noqa: BLE001 -- an event that cannot be formatted must be logged, too
        text, reason = "An event of the log cannot be formatted: {reason}", type(error).__name__
        return _line(
            [
                ("time", _time(None)),
                ("level", "error"),
                ("logger", __name__),
                ("event", text),
                ("message", text.format(reason=reason)),
                ("reason", reason),
                ("shown", _text(event)),
            ]
        )


def _members(event: LogEvent) -> Iterator[tuple[str, object]]:
    yield "time", _time(event.get("log_time"))
    yield "level", getattr(event.get("log_level"), "name", "info")
    yield "logger", _text(event.get("log_namespace") or "-")
    # From twisted.python.log, or meant for it: its own fields do not begin with "log_".
    is_legacy = event.get("log_namespace") == "log_legacy" or "log_legacy" in event
    log_format: object = event.get("log_format")
    failure = event.get("log_failure")
    if failure is None and is_legacy and event.get("isError"):
        failure = event.get("failure")
        log_format = event.get("why") or "Unhandled error"
    names = [name for name in _names_in(log_format) if not name.startswith("log_")]
    # Text that Twisted has formatted, such as printed output, has no constant part.
    has_constant_text = isinstance(log_format, str) and (bool(names) or "{" not in log_format)
    message = formatEvent({**event, "log_format": log_format})
    yield "event", log_format if has_constant_text else message
    is_long = len(message) > _LONGEST_MESSAGE
    yield "message", f"{message[: _LONGEST_MESSAGE - 1]}\u2026" if is_long else message
    fields: list[tuple[Any, object]] = [*event.items(), *_inner_fields(names, event)]
    for name, value in fields:
        if not isinstance(name, str) or name.startswith("log_") or (is_legacy and name in _LEGACY_FIELDS):
            continue
        yield (f"{name}_" if name in _RESERVED else name), value
    if failure is not None:
        yield "traceback", _traceback(failure)


def _inner_fields(names: list[str], event: LogEvent) -> Iterator[tuple[str, object]]:
    """Yield the parts of fields that a format names: ``{address.host}``, ``{count()}``."""
    for name in names:
        if name not in event:
            path = name.removesuffix("()")
            try:
                value, _ = _FORMATTER.get_field(path, (), event)
                yield path, value() if path != name else value
            except Exception as error:  # noqa: BLE001 -- it runs code of the field
                yield path, f"<cannot be shown: {type(error).__name__}>"


def _names_in(log_format: object) -> list[str]:
    if not isinstance(log_format, str):
        return []
    try:
        return [name for _, name, _, _ in _FORMATTER.parse(log_format) if name]
    except ValueError:
        return []


def _time(seconds: object) -> str:
    """Format a time as in RFC 3339, in UTC."""
    try:
        when = datetime.fromtimestamp(float(seconds), UTC)  # type: ignore[arg-type] # errors are caught
    except (TypeError, ValueError, OverflowError, OSError):
        when = datetime.fromtimestamp(time.time(), UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _traceback(failure: Any) -> str:
    try:
        text: str = failure.getTraceback()
    except Exception as error:  # noqa: BLE001 -- it runs code of the failed objects
        return f"{_text(failure)} (its traceback cannot be shown: {type(error).__name__})"
    return text


def _line(members: Iterator[tuple[str, object]] | list[tuple[str, object]]) -> str:
    encoded = {_encoded(name): _encoded(value) for name, value in members}
    return f"{{{', '.join(f'{name}: {value}' for name, value in encoded.items())}}}\n"


def _encoded(value: object) -> str:
    try:
        # ASCII, since the reader of a log may not accept UTF-8.
        encoded = json.dumps(value, allow_nan=False, default=_text)
        if _SURROGATE in encoded:
            # A single surrogate is not a character, and many parsers reject it (RFC 8259, section 8.2).
            msgspec.json.decode(encoded)
    except Exception:  # noqa: BLE001 -- cycles, infinite numbers, keys that are not text, code of the value
        return json.dumps(_text(value).encode("utf-8", "backslashreplace").decode("utf-8"))
    return encoded


def _text(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "backslashreplace")
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 -- it runs code of the value
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


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
        form = json_line if settings.format is LogFormat.JSON else _visible(observer.formatEvent)
        observer = FileLogObserver(cast("IO[str]", _TextFile(writer, file)), form)
    elif not ILogObserver.providedBy(observer):
        # The observer of syslog is an old one, without levels.
        observer = LegacyLogObserverWrapper(observer)
    return ProcessLog(FilteringLogObserver(observer, [_AtLeast(settings.level)]), writer)


def _visible(form: Callable[[LogEvent], str | None]) -> Callable[[LogEvent], str | None]:
    """Let no text that is logged control a terminal. Further lines of an event begin with a tab."""

    def line(event: LogEvent) -> str | None:
        text = form(event)
        return None if text is None else visible(text)

    return line


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
