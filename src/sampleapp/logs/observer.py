"""Where twistd's log goes, and in which form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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

from sampleapp.errors import StartUpError
from sampleapp.logs.json_lines import json_line
from sampleapp.logs.settings import STANDARD_OUTPUT, LogFormat, LogSettings

__all__ = ["log_observer", "require_possible"]


def require_possible(twistd_options: Mapping[str, Any], settings: LogSettings) -> None:
    """
    See whether twistd's options leave the log to be written as it is wanted.

    :param twistd_options: of twistd's own command line.
    :raise StartUpError: they do not.
    """
    is_changed = settings.format is not LogFormat.TEXT or settings.level != LogSettings().level
    if twistd_options.get("logger") and is_changed:
        raise StartUpError(
            "--log-format and --log-level do not go with twistd's --logger, which does as it likes. Leave "
            "out the one or the other."
        )
    if twistd_options.get("syslog") and settings.format is LogFormat.JSON:
        raise StartUpError(
            "--log-format json does not go with --syslog, which has a form of its own. Leave out one of them."
        )
    if settings.access_log == STANDARD_OUTPUT and not twistd_options.get("nodaemon"):
        raise StartUpError(
            "--access-log - is for standard output, which a daemon does not have. Give a file, or run twistd "
            "with --nodaemon."
        )


def log_observer(twistd_options: Mapping[str, Any], settings: LogSettings) -> ILogObserver | None:
    """
    Make what writes the log where twistd would have written it.

    :param twistd_options: those that are possible, see `require_possible`.
    :return: ``None`` if an observer was brought with ``--logger``.
    """
    if twistd_options.get("logger"):
        return None
    # Loaded only where there is a twistd.
    from twisted.scripts import twistd

    # Twisted has no public way to ask for it: a program may only bring a whole observer of its own.
    runner: Any = twistd._SomeApplicationRunner  # type: ignore[attr-defined]  # noqa: SLF001
    observer: Any = runner.loggerFactory(twistd_options)._getLogObserver()  # noqa: SLF001
    if settings.format is LogFormat.JSON:
        observer = FileLogObserver(observer._outFile, json_line)  # noqa: SLF001 -- as above
    elif not ILogObserver.providedBy(observer):
        # That of syslog is one from before there were levels.
        observer = LegacyLogObserverWrapper(observer)
    return FilteringLogObserver(observer, [_AtLeast(settings.level)])


@implementer(ILogFilterPredicate)
class _AtLeast:
    """
    Lets events of a level and above pass, and those without any.

    And what was printed to standard error, where Python says by what the process ends.
    """

    def __init__(self, level: str) -> None:
        self._lowest = LogLevel.levelWithName(level)

    def __call__(self, event: LogEvent) -> Any:
        level = event.get("log_level")
        if level is None or level >= self._lowest or event.get("log_namespace") == "stderr":
            return PredicateResult.maybe
        return PredicateResult.no
