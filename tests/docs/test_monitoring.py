"""The metrics on the pages, the dashboard and in the alerts exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
from twisted.internet.task import Clock

from sampleapp.brokers import from_url
from tests.metrics.service import MeasuredService

BROKERS = ["memory:", "sqlite:sampleapp.sqlite3", "kafka://127.0.0.1:9092"]
# Of Prometheus itself.
NOT_OURS = {"up"}
SUFFIXES = {
    "histogram": ["_bucket", "_sum", "_count"],
    "counter": ["_total"],
    "info": ["_info"],
    "gauge": [""],
}


def families():
    """Every metric, of whichever broker."""
    found = {}
    for url in BROKERS:
        service = MeasuredService(broker=from_url(url, reactor=Clock()), starts=False)
        found.update({family.name: family for family in service.families.collect()})
    return found


def process_families():
    page = MeasuredService().page
    return {family.name: family for family in page._registry.collect()}  # noqa: SLF001


def series_names():
    """The names that an expression may use."""
    return {
        family.name + suffix
        for family in (*families().values(), *process_families().values())
        for suffix in SUFFIXES[family.type]
    }


def used_in(expression):
    """The names of metrics in an expression: all words except functions, keywords, labels and text."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", "", bare)
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]", " ", bare)
    names = re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*\b(?!\s*\()", bare)
    return {name for name in names if name not in {"or", "and", "unless", "by", "without"}}


@pytest.fixture
def monitoring(project):
    return project / "docs/monitoring"


@pytest.fixture
def page(project):
    return (project / "docs/reference/metrics.rst").read_text()


@pytest.fixture
def dashboard(monitoring):
    return json.loads((monitoring / "sampleapp-dashboard.json").read_text())


@pytest.fixture
def promtool():
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian has it in the package prometheus)")
    return found


def expressions_of(dashboard):
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def alerts_in(monitoring):
    return re.findall(
        r"- alert: (\w+)\n +expr: (\|\n(?: {10}.*\n)+|.*\n)",
        (monitoring / "sampleapp-alerts.yml").read_text(),
    )


def test_the_page_lists_exactly_the_metrics_that_there_are():
    from sampleapp.metrics.families import METRICS

    assert set(METRICS) == set(families())


def test_the_page_describes_each_label(page):
    described = set(re.findall(r"``(\w+)``(?=.*\n   \S)", page.split("\nLabels\n")[1]))
    labels = {label for family in families().values() for label in family._labelnames}  # noqa: SLF001
    assert len(labels) > 10
    assert labels - described == set()


def test_every_metric_of_the_dashboard_exists(dashboard):
    known = series_names()
    expressions = list(expressions_of(dashboard))
    assert len(expressions) > 30
    unknown = {(title, name) for title, expr in expressions for name in used_in(expr) - known}
    assert unknown == set()


def test_the_dashboard_shows_every_metric(dashboard):
    shown = {name for _, expr in expressions_of(dashboard) for name in used_in(expr)}
    missing = {
        family.name
        for family in families().values()
        if not any(family.name + suffix in shown for suffix in SUFFIXES[family.type])
    }
    assert missing == set()


def test_the_panels_of_the_dashboard_have_ids_of_their_own_and_do_not_overlap(dashboard):
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_every_metric_of_an_alert_exists(monitoring):
    known = series_names() | NOT_OURS
    alerts = alerts_in(monitoring)
    assert len(alerts) > 10
    assert {(name, used) for name, expr in alerts for used in used_in(expr) - known} == set()


def test_each_alert_leads_to_its_section_of_the_runbook(project, monitoring):
    runbook = (project / "docs/howto/alerts.rst").read_text(encoding="utf-8")
    names = [name for name, _ in alerts_in(monitoring)]
    assert re.findall(r"^(Sampleapp\w+)\n-+\n\n\S", runbook, re.MULTILINE) == names
    rules = (monitoring / "sampleapp-alerts.yml").read_text()
    described = re.findall(r'description: "[^"{]+"\n +runbook_url: "(.*)"', rules)
    assert described == [f"https://manual.example/howto/alerts.html#{name.lower()}" for name in names]


def test_every_alert_is_tried_by_the_tests_of_the_rules(monitoring):
    tests = (monitoring / "sampleapp-alerts.test.yml").read_text()
    assert set(re.findall(r"alertname: (\w+)", tests)) == {name for name, _ in alerts_in(monitoring)}


def test_the_values_of_labels_that_expressions_name_exist(dashboard, monitoring):
    service = MeasuredService()
    values = {
        "kind": set(service.counts.problems),
        "limit": {*service.site.rejections, *service.gateway.streams.rejections, "max-leases"},
        "route": {"/messages", "/"},
    }
    expressions = [expr for _, expr in (*expressions_of(dashboard), *alerts_in(monitoring))]
    for label, pattern in re.findall(r'\b(kind|limit|route)=~?"([^"]*)"', " ".join(expressions)):
        assert set(pattern.split("|")) <= values[label]


def test_promtool_finds_nothing_wrong_with_the_metrics(promtool):
    service = MeasuredService()
    service.post(b'{"topic":"t","content":"c"}')
    text = service.request("GET", "/metrics").body
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


@pytest.mark.parametrize("url", BROKERS)
def test_promtool_finds_nothing_wrong_with_the_metrics_of_any_broker(promtool, url):
    service = MeasuredService(broker=from_url(url, reactor=Clock()), starts=False)
    text = service.request("GET", "/metrics").body
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


@pytest.mark.parametrize(
    "command", ["check rules sampleapp-alerts.yml", "test rules sampleapp-alerts.test.yml"]
)
def test_promtool_finds_nothing_wrong_with_the_alerts(promtool, monitoring, command):
    done = subprocess.run(
        [promtool, *command.split()], cwd=monitoring, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_understands_every_expression_of_the_dashboard(promtool, dashboard, tmp_path):
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$__rate_interval", "1m", expr)}
        for number, (_, expr) in enumerate(expressions_of(dashboard))
    ]
    # JSON is YAML.
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
