"""``sampleapp readings`` against a live service."""

from __future__ import annotations

from tests.support.command import Watched, publish, sampleapp
from tests.support.live_service import LiveService
from tests.support.process import wait_for_readings


def test_a_watch_prints_each_change_and_survives_the_service_being_away(tmp_path):
    with LiveService(directory=tmp_path) as service, Watched(service, "readings", "--watch") as watch:
        watch.wait_for("[]")
        publish(service, "readings", "1", key="kitchen")
        watch.wait_for("[1.0]")
        service.kill()
        watch.wait_for("Asking again until there is an answer.")
        port = service.url.rstrip("/").rpartition(":")[2]
        with LiveService(directory=tmp_path, listen=f"tcp:{port}:interface=127.0.0.1") as again:
            watch.wait_for("The service answers again.")
            publish(again, "readings", "2.5", key="cellar")
            watch.wait_for("[1.0,2.5]")
            code, lines = watch.interrupt()
    assert code == 0
    assert [line for line in lines if line.startswith("[")] == ["[]", "[1.0]", "[1.0,2.5]"]
    assert len([line for line in lines if "Asking again" in line]) == 1


def test_readings_are_printed_in_both_versions(service):
    # No other test publishes readings to this service.
    publish(service, "readings", "21.5", key="kitchen")
    wait_for_readings(service, b"[21.5]")
    assert sampleapp(service, "readings")[0] == "[21.5]\n"
    assert sampleapp(service, "readings", "--version", "2")[0] == '[{"id":"kitchen","value":21.5}]\n'
