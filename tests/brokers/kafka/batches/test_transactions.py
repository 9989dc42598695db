"""Records of transactions: markers and aborted records are hidden."""

from __future__ import annotations

import pytest

from sampleapp.brokers.kafka.batches import (
    FetchedPage,
    UnreadableBatch,
)
from sampleapp.brokers.kafka.protocol import AbortedTransaction
from tests.brokers.kafka.batches.encoders import (
    CONTROL,
    TRANSACTIONAL,
    abort,
    commit,
    decode,
    in_transaction,
    marker,
    plain_batch,
    record,
    values,
)


def test_markers_of_transactions_are_not_shown():
    data = in_transaction(b"a", producer_id=7, offset=0) + commit(producer_id=7, offset=1)
    assert values(decode(data)) == [b"a"]
    assert decode(data).next_offset == 2
    assert decode(data[-len(commit(producer_id=7, offset=1)) :], position=1) == FetchedPage([], 2)


def test_markers_of_a_kind_that_is_not_known_are_not_shown():
    assert decode(marker(5, producer_id=7, offset=0, version=3)) == FetchedPage([], 1)


def test_records_of_an_aborted_transaction_are_not_shown():
    data = (
        in_transaction(b"committed", producer_id=7, offset=0)
        + commit(producer_id=7, offset=1)
        + in_transaction(b"x", b"y", producer_id=7, offset=2)
        + in_transaction(b"z", producer_id=7, offset=4)
        + abort(producer_id=7, offset=5)
        + in_transaction(b"later", producer_id=7, offset=6)
        + commit(producer_id=7, offset=7)
    )
    page = decode(data, aborted=[AbortedTransaction(7, 2)])
    assert values(page) == [b"committed", b"later"]
    assert page.next_offset == 8


def test_a_producer_may_abort_again():
    data = (
        in_transaction(b"x", producer_id=7, offset=0)
        + abort(producer_id=7, offset=1)
        + in_transaction(b"kept", producer_id=7, offset=2)
        + commit(producer_id=7, offset=3)
        + in_transaction(b"y", producer_id=7, offset=4)
        + abort(producer_id=7, offset=5)
    )
    # In the order of offsets, whatever the order in the answer.
    for aborted in ([(7, 0), (7, 4)], [(7, 4), (7, 0)]):
        page = decode(data, aborted=[AbortedTransaction(*each) for each in aborted])
        assert values(page) == [b"kept"]


def test_transactions_of_other_producers_run_through_one_another():
    data = (
        in_transaction(b"x1", producer_id=7, offset=0)
        + in_transaction(b"good1", producer_id=8, offset=1)
        + plain_batch([record(b"plain")], base_offset=2)
        + plain_batch([record(b"idempotent")], base_offset=3, producer_id=7, epoch=0, base_sequence=5)
        + in_transaction(b"x2", producer_id=7, offset=4)
        + commit(producer_id=8, offset=5)
        + abort(producer_id=7, offset=6)
        + in_transaction(b"good2", producer_id=7, offset=7)
    )
    page = decode(data, aborted=[AbortedTransaction(7, 0)])
    assert values(page) == [b"good1", b"plain", b"idempotent", b"good2"]


def test_a_transaction_that_was_aborted_may_have_begun_earlier_or_end_later():
    data = in_transaction(b"x", producer_id=7, offset=10) + in_transaction(b"y", producer_id=8, offset=11)
    aborted = [AbortedTransaction(7, 2), AbortedTransaction(8, 11), AbortedTransaction(9, 500)]
    assert decode(data, position=10, aborted=aborted) == FetchedPage([], 12)


def test_records_of_transactions_are_shown_where_nobody_asked_for_committed_ones():
    data = in_transaction(b"x", producer_id=7, offset=0) + abort(producer_id=7, offset=1)
    assert values(decode(data)) == [b"x"]


def test_what_is_hidden_need_not_be_readable():
    data = plain_batch([record()], attributes=TRANSACTIONAL | 7, producer_id=7)
    assert decode(data, aborted=[AbortedTransaction(7, 0)]) == FetchedPage([], 1)


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_a_marker_without_a_type_is_rejected(key):
    data = plain_batch([record(key=key)], attributes=TRANSACTIONAL | CONTROL, producer_id=7)
    with pytest.raises(UnreadableBatch, match="marker"):
        decode(data, aborted=[AbortedTransaction(7, 0)])
