"""What clients of REST Proxy are told by the service as it runs."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from urllib.parse import urlsplit

from tests.support.live_service import LiveService


def test_whatever_rejects_a_request_of_theirs_answers_in_their_form(tmp_path):
    with LiveService(directory=tmp_path) as service:
        connection = http.client.HTTPConnection(urlsplit(service.url).netloc, timeout=30)
        with closing(connection):
            connection.request(
                "GET", "/topics/none/of/these", headers={"Accept": "application/vnd.kafka.v2+json"}
            )
            answer = connection.getresponse()
            document = json.loads(answer.read())
    assert answer.status == 404
    assert answer.headers["Content-Type"] == "application/vnd.kafka.v2+json"
    assert document["error_code"] == 404
