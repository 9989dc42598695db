"""What the Containerfile makes starts, serves and ends as it should, and writes to its volume only."""

from __future__ import annotations

import json

PUBLISH = """
import sys, urllib.request
request = urllib.request.Request(
    "http://127.0.0.1:8080/messages", sys.argv[1].encode(), {"Content-Type": "application/json"}
)
print(urllib.request.urlopen(request, timeout=20).read().decode())
"""
MESSAGE = '{"topic": "readings", "key": "kitchen", "content": "21.5"}'


def publish(container):
    published = container.run(["python", "-c", PUBLISH, MESSAGE])
    assert published.returncode == 0, published.stderr
    return json.loads(published.stdout)


def test_it_rejects_to_serve_everybody_unless_it_is_told_to(start):
    code, printed = start().wait()
    assert code != 0
    assert "--open-to-everybody" in printed


def test_it_serves_as_a_user_without_rights_and_ends_in_order(start):
    container = start(SAMPLEAPP_OPEN_TO_EVERYBODY="yes")
    container.wait_until_healthy()
    assert container.run(["id", "-u"]).stdout == "10001\n"
    assert container.run(["touch", "/opt/sampleapp/x"]).returncode != 0
    assert publish(container) == {"topic": "readings", "partition": 0, "offset": 0}
    container.terminate()
    code, printed = container.wait()
    assert code in {0, -15, 143}, printed
    assert "Received SIGTERM" in printed
    assert "Traceback" not in printed


def test_its_volume_keeps_the_records(start):
    for offset in (0, 1):
        container = start(SAMPLEAPP_OPEN_TO_EVERYBODY="yes")
        container.wait_until_healthy()
        assert publish(container)["offset"] == offset
        container.kill()


def test_it_holds_the_service_and_what_that_needs_and_nothing_that_installs(image):
    packages = {
        path.name.partition("-")[0] for path in image.files.glob("opt/sampleapp/lib/*/site-packages/*")
    }
    assert "sampleapp" in packages
    assert not packages & {"pip", "setuptools", "wheel", "pytest", "hypothesis", "sphinx"}
    assert not (image.files / "src").exists()
