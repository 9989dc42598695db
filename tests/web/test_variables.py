"""
Routes with variables, in an application of the test's own.

Each request is sent both ways: to the service's own connections, and to a resource in a site of twisted.web.
"""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.web.resource import Resource
from twisted.web.server import Site

from sampleapp.errors import TopicNotAuthorized, UnknownTopic
from sampleapp.web import HTTPServer, response_to_failure
from sampleapp.web.errors import problem_response
from sampleapp.web.responses import json_response
from sampleapp.web.routing import AccessPolicy, App, RouteTable
from tests.support.examples import examples
from tests.support.in_memory import Connection, request_bytes
from tests.web.http import assert_problem, same_answer


def admit_shelf(request, *, shelf):
    if shelf == "secret":
        raise TopicNotAuthorized("No.")


class Shelves:
    app = App()
    access = AccessPolicy()

    def __init__(self):
        self.waiting = []

    @app.route("/shelves/<shelf>", methods=["POST"], check_head=admit_shelf, takes_query=True)
    def publish(self, request, *, shelf):
        if shelf == "none":
            raise UnknownTopic("No.")
        if shelf == "later":
            self.waiting.append(Deferred())
            return self.waiting[-1]
        return json_response(["publish", shelf, request.query.decode(), request.body.decode()])

    @app.route("/shelves/<shelf>", methods=["DELETE"])
    def delete(self, request, *, shelf):
        return json_response(["delete", shelf])

    @app.route("/shelves/all", methods=["GET"])
    def all(self, request):
        return json_response(["all"])

    @app.route("/shelves/<shelf>/<int:partition>/<int:offset>", methods=["GET"])
    def record(self, request, *, shelf, partition, offset):
        return json_response(["record", shelf, partition, offset])

    @app.route("/files/<path:name>", methods=["GET"])
    def file(self, request, *, name):
        return json_response(["file", name])

    @app.route("/~a b%20ä", methods=["GET"])
    def odd(self, request):
        return json_response(["odd"])


class BothWays:
    def __init__(self):
        clock = Clock()
        self.shelves = [Shelves(), Shelves()]
        table = RouteTable(self.shelves[0].app)
        self.servers = [
            HTTPServer(
                table.dispatch, reject=problem_response, response_to=response_to_failure, reactor=clock
            ),
            Site(self.shelves[1].app.resource(), reactor=clock),
        ]

    def request(self, method, target, headers=(), body=None):
        """Send one request to both, and return its only answer, which is the same."""
        connections = [Connection(server) for server in self.servers]
        for connection in connections:
            connection.send(request_bytes(method, target, headers, body))
        return same_answer(connections, method)


@pytest.fixture(scope="module")
def both():
    return BothWays()


@pytest.mark.parametrize(
    ("method", "target", "handled"),
    [
        ("POST", "/shelves/t", ["publish", "t", "", "body"]),
        ("POST", "/shelves/t?key=%zz", ["publish", "t", "key=%zz", "body"]),
        ("POST", "/%73helves/%74", ["publish", "t", "", "body"]),
        ("POST", "/shelves/%C3%A4", ["publish", "ä", "", "body"]),
        # Once, and not as in a query.
        ("POST", "/shelves/%2541+", ["publish", "%41+", "", "body"]),
        ("POST", "/shelves/%00%0A%3F;x=1", ["publish", "\0\n?;x=1", "", "body"]),
        ("POST", "/shelves/..", ["publish", "..", "", "body"]),
        ("DELETE", "/shelves/t", ["delete", "t"]),
        # The most exact route of those with the method.
        ("GET", "/shelves/all", ["all"]),
        ("GET", "/shelves/al%6C", ["all"]),
        ("POST", "/shelves/all", ["publish", "all", "", "body"]),
        ("GET", "/shelves/t/0/12", ["record", "t", 0, 12]),
        ("GET", "/files/a/b.c", ["file", "a/b.c"]),
        ("GET", "/~a%20b%2520%C3%A4", ["odd"]),
        ("GET", "/%7Ea%20b%2520%C3%A4", ["odd"]),
    ],
)
def test_a_path_is_handled_with_its_variables(both, method, target, handled):
    for _ in range(2):
        answer = both.request(method, target, body=b"body" if method == "POST" else None)
        assert (answer.status, json.loads(answer.body)) == (200, handled)


def test_head_comes_with_get(both):
    answer = both.request("HEAD", "/shelves/t/0/12")
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize(
    "target",
    [
        *(
            "/shelves/",
            "/shelves",
            "/shelves//t",
            "//shelves/t",
            "/shelves/t/",
            "/shelves/t/0/x",
            "/shelves/t/0/-1",
        ),
        *("/shelves/a%2Fb", "/%2Fshelves/t", "/shelves%2Ft", "/files/a%2Fb", "/files/", "/files//a", "/~a"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "post"])
def test_what_fits_no_route_is_not_found(both, method, target):
    assert_problem(both.request(method, target), 404)


@pytest.mark.parametrize(
    "target", ["/shelves/%", "/shelves/%4", "/shelves/%zz", "/shelves/%ff", "/shelves/%ED%A0%80"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "post"])
def test_a_bad_escape_is_a_bad_request(both, method, target):
    assert_problem(both.request(method, target), 400)


@pytest.mark.parametrize(
    ("target", "allow"),
    [
        ("/shelves/t", b"DELETE, POST, OPTIONS"),
        ("/shelves/all", b"DELETE, GET, HEAD, POST, OPTIONS"),
        ("/shelves/t/0/12", b"GET, HEAD, OPTIONS"),
        ("/files/a/b", b"GET, HEAD, OPTIONS"),
    ],
)
def test_a_wrong_method_is_rejected_with_those_that_are_right(both, target, allow):
    for method in ("PUT", "post", "get", "Delete", "BREW", "-"):
        answer = both.request(method, target)
        assert_problem(answer, 405)
        assert answer.headers[b"allow"] == allow
    answer = both.request("OPTIONS", target)
    assert (answer.status, answer.headers[b"allow"], answer.body) == (204, allow, b"")


def test_what_a_handler_raises_is_answered(both):
    assert_problem(both.request("POST", "/shelves/none"), 404)


def test_a_handler_with_variables_may_answer_later(both):
    connections = [Connection(server) for server in both.servers]
    for connection, shelves in zip(connections, both.shelves, strict=True):
        connection.send(request_bytes("POST", "/shelves/later"))
        assert connection.sent == b""
        shelves.waiting.pop().callback(json_response("late"))
    assert json.loads(same_answer(connections, "POST").body) == "late"


def test_a_route_may_reject_by_its_variables_before_the_body_is_taken(both):
    assert_problem(both.request("POST", "/shelves/secret", body=b"body"), 403)
    assert_problem(both.request("POST", "/shelves/s%65cret", body=b"body"), 403)
    connection = Connection(both.servers[0])
    connection.send(
        request_bytes("POST", "/shelves/secret", [(b"Content-Length", b"4"), (b"Expect", b"100-continue")])
    )
    (answer,) = connection.responses(["POST"])
    assert_problem(answer, 403)
    assert b"100 Continue" not in connection.sent


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/part/shelves/all", 200),
        ("POST", "/part/shelves/%74", 200),
        ("post", "/part/shelves/t", 405),
        ("POST", "/part//shelves/t", 404),
        ("POST", "/part/shelves/a%2Fb", 404),
        ("POST", "/part/shelves/%zz", 400),
        ("GET", "/part", 404),
        ("get", "/part", 404),
    ],
)
def test_a_resource_may_be_a_part_of_a_site(method, target, status):
    root = Resource()
    root.putChild(b"part", Shelves().app.resource())
    connection = Connection(Site(root, reactor=Clock()))
    connection.send(request_bytes(method, target))
    (answer,) = connection.responses([method])
    assert answer.status == status


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1))
def test_any_text_is_the_variable_that_was_encoded(both, text):
    answer = both.request("DELETE", f"/shelves/{quote(text, safe='')}")
    assert (answer.status, json.loads(answer.body)) == (200, ["delete", text])


@examples(300)
@given(
    st.sampled_from(["GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "post"]),
    st.lists(
        st.sampled_from(
            [
                *("/", "shelves", "all", "files", "t", "0", "12", "%74", "%2F", "%", "%ff", "%C3"),
                *"%A4?;:.-~+",
            ]
        )
    ),
)
def test_any_path_is_answered_alike(both, method, pieces):
    both.request(method, "/" + "".join(pieces))


class More:
    app = App()
    access = AccessPolicy()

    @app.route("/more", methods=["GET"])
    def more(self, request):
        return json_response(["more"])

    @app.route("/more/<name>", methods=["PUT"])
    def put(self, request, *, name):
        return json_response(["put", name])


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/more", 200),
        ("GET", "/mor%65", 200),
        ("PUT", "/more/x", 200),
        ("GET", "/shelves/all", 200),
        ("POST", "/more", 405),
        ("GET", "/more/x", 405),
        ("PUT", "/shelves/t", 405),
        ("GET", "/less", 404),
        ("GET", "/more/%zz", 400),
    ],
)
def test_a_table_may_have_the_routes_of_several_applications(method, target, status):
    table = RouteTable(Shelves().app, More().app)
    connection = Connection(
        HTTPServer(table.dispatch, reject=problem_response, response_to=response_to_failure, reactor=Clock())
    )
    connection.send(request_bytes(method, target))
    (answer,) = connection.responses([method])
    assert answer.status == status
