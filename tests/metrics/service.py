"""The service in memory with its metrics, and what Prometheus' own parsers read of them."""

from __future__ import annotations

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from sampleapp.metrics import Families, MetricsPage, RequestCounts
from sampleapp.readings.follower import ReadingsFollower
from sampleapp.service.assembly import make_server
from sampleapp.web import MetricsApp
from tests.support.in_memory import InMemoryService, PromptBroker

OPENMETRICS = [(b"Accept", b"application/openmetrics-text; version=1.0.0")]


class MeasuredService(InMemoryService):
    """All of a service but its sockets."""

    def __init__(self, *, broker=None, starts=True, **limits):
        """:param starts: whether the broker is started; one that was not can be asked for its measures."""
        self.page = MetricsPage(clock=self.make_clock())
        super().__init__(
            broker=PromptBroker() if broker is None else broker,
            others=[MetricsApp(self.page.respond).app],
            on_response=self.responded,
            **limits,
        )
        if starts:
            self.broker.start()
        self.follower = ReadingsFollower(broker=self.broker, topic="readings", clock=self.clock)
        self.counts = RequestCounts(seconds=self.clock.seconds)
        self.admin = make_server(self.site.dispatch, reactor=self.clock, limits=self.site.limits)
        self.families = Families(
            requests=self.counts,
            server=self.site,
            admin=self.admin,
            broker=self.broker,
            follower=self.follower,
            streams=self.gateway.streams,
            reads=self.gateway.reads,
            idempotent_records=self.gateway.idempotent_records,
            work=self.gateway.work,
            rate_rejections=None if self.authenticator is None else self.authenticator.rejections,
        )
        self.page.show(self.families)

    def responded(self, exchange, answer):
        self.counts.responded(exchange, answer)

    def scrape(self, headers=()):
        """Return what a scrape reads: each sample's value by its name and labels."""
        response = self.request("GET", "/metrics", headers)
        assert response.status == 200
        return samples_in(response.body, headers)

    def counted(self):
        """Return the samples without asking for them, which would be counted, too."""
        return samples(self.families.collect())


def samples_in(body, headers=()):
    """Read an answer to a request with these headers."""
    parse = openmetrics_families if headers == OPENMETRICS else text_families
    return samples(parse(body.decode()))


def samples(families):
    found = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def of(samples, name):
    """Return the values of one metric, by its labels: the bare value of the label if there is only one."""
    return {
        labels[0][1] if len(labels) == 1 else tuple(value for _, value in labels): value
        for (its_name, labels), value in samples.items()
        if its_name == name
    }
