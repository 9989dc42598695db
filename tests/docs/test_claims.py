"""Pages claim what the repository shows: tested versions, limits of a promise, and no runs outside of it."""

from __future__ import annotations

import re

import pytest

from sampleapp import __version__

PROMISE = re.compile(r"published once[.,:;]|\bpublishes (?:the record|each line) once\b")
# A commit by its hash, a harness that is elsewhere, or a version of the service that is not this one.
ELSEWHERE = re.compile(
    rf"\bcommit [0-9a-f]{{7,}}|independent harness|\bsampleapp (?!{re.escape(__version__)})\d+\.\d+"
)


@pytest.fixture(scope="module")
def pages(request):
    root = request.config.rootpath
    paths = [*root.glob("*.md"), *root.glob("docs/**/*.rst")]
    return {str(path.relative_to(root)): " ".join(path.read_text().split()) for path in paths}


def versions(text):
    return set(re.findall(r"\b\d+(?:\.\d+){2,3}\b", text))


def test_the_tested_versions_of_kafka_are_those_that_each_commit_and_make_test_all_run(request, pages):
    root = request.config.rootpath
    (named,) = re.findall(
        r"VERSIONS = _NAMED or (\(.*\))", (root / "tests/real_kafka/distribution.py").read_text()
    )
    of_make = set(" ".join(re.findall(r"(?m)^\w+_KAFKA \?= (.*)", (root / "Makefile").read_text())).split())
    (in_readme,) = re.findall(r"It works with Kafka.*?older versions, too\.", pages["README.md"])
    (section,) = re.findall("With each commit, these run.*Not tested:", pages["docs/explanation/testing.rst"])
    assert versions(in_readme) == versions(named)
    assert versions(section.partition("In brackets")[0]) == versions(named)
    assert versions(section) == versions(named) | of_make


def test_a_page_that_promises_that_a_record_is_published_once_says_where_that_holds(pages):
    promising = {name: text for name, text in pages.items() if PROMISE.search(text)}
    assert len(promising) > 5
    limits = re.compile(
        r"idempotency-guarantees|--idempotency-window|\[is remembered\]\(docs/reference/http/idempotency\.rst"
    )
    assert [name for name, text in promising.items() if not limits.search(text)] == []


def test_no_page_rests_on_a_run_outside_the_repository(pages):
    # Other gateways are measured rarely. Their table says when, on which commit, and that it was elsewhere.
    comparison = pages["docs/explanation/when-to-use.rst"]
    (table,) = re.findall(
        r"The other gateways were measured once, .* That run is not in the repository\.", comparison
    )
    assert re.search(r"\d+ \w+ 20\d\d, with sampleapp at commit ``[0-9a-f]{7}``", table)
    others = {**pages, "docs/explanation/when-to-use.rst": comparison.replace(table, "")}
    assert {name: found for name, text in others.items() if (found := ELSEWHERE.findall(text))} == {}


def test_the_readme_takes_its_figures_from_the_comparison(pages):
    (sentence,) = re.findall(r"A `POST` takes .*? librdkafka", pages["README.md"])
    figures = re.findall(r"\d[\d.]*", sentence)
    assert len(figures) == 3
    assert all(f"- {figure} µs" in pages["docs/explanation/when-to-use.rst"] for figure in figures)
