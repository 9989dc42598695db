"""
What sampleapp is compared with: the same two endpoints as Klein and Twisted serve them by themselves.

The answers are made beforehand and nothing is kept or checked, so this is the least that such a service
can cost without doing anything about it.

    python benchmarks/stock_klein.py PORT
"""

from __future__ import annotations

import sys

from klein import Klein
from twisted.internet import reactor
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.web.iweb import IRequest
from twisted.web.server import Site

from readings import readings_body

app = Klein()
BODY = readings_body()


@app.route("/", methods=["GET"])
def readings(request: IRequest) -> bytes:
    request.setHeader(b"Content-Type", b"application/json")
    request.setHeader(b"Content-Length", b"%d" % len(BODY))
    return BODY


if __name__ == "__main__":
    TCP4ServerEndpoint(reactor, int(sys.argv[1]), interface="127.0.0.1").listen(Site(app.resource()))
    reactor.run()
