"""A site of your own, with the HTTP interface of sampleapp below /gateway/."""

import sys
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.task import react
from twisted.web.resource import Resource
from twisted.web.server import Site

from sampleapp.brokers import from_url
from sampleapp.readings.follower import ReadingsFollower
from sampleapp.web import SampleApp


class OwnPage(Resource):
    """A page of this site."""

    def render_GET(self, _request: Any) -> bytes:  # noqa: N802 -- Twisted's name
        """Return the page."""
        return b"My own page.\n"


async def main(reactor: Any, endpoint: str = "tcp:8081:interface=127.0.0.1") -> None:
    """Serve until the reactor stops."""
    broker = from_url("sqlite:embedded.sqlite3", reactor=reactor)
    broker.check()
    follower = ReadingsFollower(broker=broker, topic="readings", clock=reactor)
    gateway = SampleApp(
        broker=broker,
        get_representation=follower.representation,
        changes=follower.changes,
        clock=reactor,
    )

    async def stop() -> None:
        gateway.end_waits()
        gateway.feeds.stop()
        await follower.stop()
        await broker.stop(deadline_s=reactor.seconds() + 10)

    root = Resource()
    root.putChild(b"", OwnPage())
    root.putChild(b"gateway", gateway.app.resource())
    broker.start()
    follower.start()
    reactor.addSystemEventTrigger(
        "before",
        "shutdown",
        lambda: Deferred.fromCoroutine(stop()),
    )
    port = await serverFromString(reactor, endpoint).listen(Site(root, reactor=reactor))
    print(f"http://127.0.0.1:{port.getHost().port}/gateway/", flush=True)
    await Deferred()


if __name__ == "__main__":
    react(main, sys.argv[1:])
