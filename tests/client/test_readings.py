"""Fetching readings, from a service that answers as the contract says, and from others."""

from __future__ import annotations

import pytest
import pytest_twisted
from hypothesis import given

from sampleapp.client import (
    UnexpectedResponse,
)
from sampleapp.model import Reading
from tests.support import strategies
from tests.support.client_servers import (
    V1,
    V2,
    ContractResource,
    canned,
    in_memory,
)


@pytest_twisted.ensureDeferred
async def test_readings_of_version_1_are_the_values_in_their_order():
    assert await in_memory(ContractResource()).readings() == [21.5, -5.0]


@pytest_twisted.ensureDeferred
async def test_readings_of_version_2_are_values_with_their_ids():
    expected = [Reading("kitchen", 21.5), Reading("cellar", -5.0)]
    assert await in_memory(ContractResource()).readings(version=2) == expected


@pytest_twisted.ensureDeferred
async def test_version_1_is_asked_for_without_an_accept_and_version_2_by_its_name_alone():
    service = ContractResource()
    client = in_memory(service)
    await client.readings(version=1)
    await client.readings(version=2)
    assert service.requests == [(b"/", None, None), (b"/", V2, None)]


def test_there_is_no_version_3():
    with pytest.raises(ValueError, match="not 3"):
        in_memory(ContractResource()).readings(version=3)


@pytest_twisted.ensureDeferred
async def test_whole_numbers_are_readings_too():
    readings = await canned(200, V1, b"[21, -0.0, 1e300]").readings()
    assert readings == [21.0, 0.0, 1e300]
    assert {type(reading) for reading in readings} == {float}


@pytest.mark.parametrize("version", [1, 2])
@pytest_twisted.ensureDeferred
async def test_an_unchanged_collection_is_answered_by_the_very_snapshot_that_was_known(version):
    service = ContractResource()
    client = in_memory(service)
    first = await client.poll(version=version)
    again = await client.poll(version=version, after=first)
    assert again is first
    assert service.requests[1][2] == first.etag.decode()


@pytest_twisted.ensureDeferred
async def test_a_changed_collection_is_answered_by_a_new_snapshot():
    service = ContractResource()
    client = in_memory(service)
    first = await client.poll(version=1)
    service.readings.append(("attic", 30.0))
    again = await client.poll(version=1, after=first)
    assert again.readings == [21.5, -5.0, 30.0]
    assert again.etag != first.etag


@pytest_twisted.ensureDeferred
async def test_without_entity_tags_every_poll_fetches_the_collection():
    client = canned(200, V1, b"[1.0]")
    first = await client.poll(version=1)
    again = await client.poll(version=1, after=first)
    assert (first.etag, again.readings, again is first) == (None, [1.0], False)


@pytest_twisted.ensureDeferred
async def test_not_modified_without_a_question_is_unexpected():
    with pytest.raises(UnexpectedResponse):
        await canned(304, V1, b"").readings()


@given(collection=strategies.collections)
@pytest_twisted.ensureDeferred
async def test_any_collection_arrives_unchanged_in_both_representations(collection):
    service = ContractResource()
    service.readings = list(collection.items())
    client = in_memory(service)
    assert await client.readings(version=1) == list(collection.values())
    assert await client.readings(version=2) == [Reading(*item) for item in collection.items()]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{}",
        b"[1.0",
        b'["1.0"]',
        b"[true]",
        b"[null]",
        b"[NaN]",
        b"[1e999]",
        b"[1.0]]",
        b'[{"id": "kitchen", "value": 1.0}]',
    ],
)
@pytest_twisted.ensureDeferred
async def test_what_is_not_an_array_of_numbers_is_not_version_1(body):
    with pytest.raises(UnexpectedResponse):
        await canned(200, V1, body).readings(version=1)


@pytest.mark.parametrize(
    "body",
    [
        b"[1.0]",
        b'[{"id": "kitchen"}]',
        b'[{"value": 1.0}]',
        b'[{"id": 1, "value": 1.0}]',
        b'[{"id": "kitchen", "value": "1.0"}]',
        b'[{"id": "kitchen", "value": null}]',
    ],
)
@pytest_twisted.ensureDeferred
async def test_what_is_not_an_array_of_entries_is_not_version_2(body):
    with pytest.raises(UnexpectedResponse, match="does its version support this request"):
        await canned(200, V2, body).readings(version=2)


@pytest_twisted.ensureDeferred
async def test_readings_are_known_by_their_body_not_by_what_their_type_claims():
    assert await canned(200, "text/html; charset=utf-16", b"[1.0]").readings() == [1.0]
