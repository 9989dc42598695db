"""What is said while the lines of a file are published, where there is no terminal."""

from __future__ import annotations

from twisted.internet.task import Clock

from sampleapp.cli._report import Report, progress_of


def test_only_a_service_that_is_waited_for_is_worth_a_line(tmp_path, capsys):
    clock, report = Clock(), Report()
    with (tmp_path / "file").open("wb+") as file, progress_of(file, clock=clock) as show:
        report.published = 7
        show(report)
        assert capsys.readouterr().err == ""
        report.waiting_because = "Nothing there."
        for _ in range(65):
            show(report)
            clock.advance(1)
        assert capsys.readouterr().err.splitlines() == [
            "Nothing there. Waiting; 7 lines are published so far.",
            "Still waiting after 30 seconds: Nothing there.",
            "Still waiting after 60 seconds: Nothing there.",
        ]
        report.waiting_because = None
        show(report)
        show(report)
        assert capsys.readouterr().err == "Sending lines again after 65 seconds.\n"
