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
from sampleapp.logs.settings import LogFormat, LogSettings

__all__ = ["log_observer"]


def log_observer(twistd_options: Mapping[str, Any], settings: LogSettings) -> ILogObserver | None:
    """
    Make what writes the log where twistd would have written it.

    :param twistd_options: of twistd's own command line, where ``--logfile`` and ``--syslog`` are.
    :return: ``None`` if an observer was brought with ``--logger``.
    :raise StartUpError: something else than a file is asked to take JSON.
    """
    if twistd_options.get("logger"):
        if settings != LogSettings():
            raise StartUpError(
                "--log-format and --log-level do not go with twistd's --logger, which does as it likes. "
                "Leave out the one or the other."
            )
        return None
    # Loaded only where there is a twistd.
    from twisted.scripts import twistd

    if settings.format is LogFormat.JSON and twistd_options.get("syslog"):
        raise StartUpError(
            "--log-format json does not go with --syslog, which has a form of its own. Leave out one of them."
        )
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
