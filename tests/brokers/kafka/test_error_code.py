"""Kafka's error codes, compared with those that kio generates from Kafka's own definitions."""

from __future__ import annotations

from kio.schema.errors import ErrorCode as KafkasErrorCode

from sampleapp.brokers.kafka.error_code import ErrorCode


def test_each_code_has_the_name_that_kafka_gives_it():
    assert {code.value: code.name for code in ErrorCode} == {
        code.value: KafkasErrorCode(code.value).name.upper() for code in ErrorCode
    }


def test_the_codes_that_kafka_calls_retriable_are_transient():
    assert [code for code in ErrorCode if code.is_retriable] == [
        code for code in ErrorCode if KafkasErrorCode(code.value).retriable
    ]


def test_stale_metadata_is_worth_another_attempt():
    assert all(code.is_retriable for code in ErrorCode if code.has_stale_metadata)


def test_a_code_of_a_newer_kafka_has_a_name_with_its_number_and_is_not_transient():
    assert ErrorCode.name_of(9999) == "Kafka's error 9999"
    assert not ErrorCode.is_transient(9999)
    assert not ErrorCode.says_stale_metadata(9999)
