"""
Kafka's protocol in bytes, as a broker has it: kio's classes, which are generated from Kafka's own schemas.

Neither the encoders nor the decoders of the service are used for it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import struct
from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Any
from uuid import UUID

from kio.index import load_entity_module, load_request_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from kio.schema.response_header.v1.header import ResponseHeader
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from sampleapp.brokers.kafka.protocol import (
    Acknowledgement,
    AcknowledgeType,
    DescribeConfigsRequest,
    DescribeShareGroupOffsetsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    ProduceRequest,
    Request,
    SessionFetched,
    SessionFetchRequest,
    SetGroupConfigsRequest,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareGroupHeartbeatRequest,
    TopicsRequest,
)
from sampleapp.model import with_epoch

__all__ = ["Exchange", "Frame", "Schema", "encode_response", "moment", "ms", "received"]

_TOPIC_IDS_SINCE = 13
"""A version of Fetch."""
_OF_GROUP = 32


def ms(milliseconds):
    return dt.timedelta(milliseconds=milliseconds)


_THROTTLE = ms(7)
"""A throttle time that the service does not read, other than that of Produce."""


def moment(timestamp_ms):
    if timestamp_ms == -1:
        return None
    return dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC)


class Schema:
    """kio's classes for one version of one request, made from those of the fields that they have."""

    def __init__(
        self, name: str, version: int, sides: Sequence[EntityType] = (EntityType.request, EntityType.response)
    ) -> None:
        """
        :param name: of the request, as in ``kio.schema``.
        :param sides: whose classes to use; the first one's where both have a class of that name.
        """
        self._modules = [load_entity_module(name, version, each) for each in sides]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        found = [getattr(module, name) for module in self._modules if hasattr(module, name)]
        if not found:
            raise AttributeError(f"This version has no {name}.")
        cls = found[0]
        known = {field.name for field in dataclasses.fields(cls)}

        def make(**fields):
            if fields.keys() <= known:
                return cls(**fields)
            return cls(**{key: value for key, value in fields.items() if key in known})

        setattr(self, name, make)
        return make

    def dump(self, entity) -> bytes:
        buffer = io.BytesIO()
        entity_writer(type(entity))(buffer, entity)
        return buffer.getvalue()

    def dump_answer(self, entity) -> bytes:
        """Encode a response as it follows the correlation id, with the tags of a flexible header."""
        return (b"\0" if entity.__header_schema__ is ResponseHeader else b"") + self.dump(entity)

    def error(self, code: int) -> ErrorCode:
        return ErrorCode(code)


@cache
def _schema(key, version):
    return Schema(api_key_map[key], version, [EntityType.response])


class Frame:
    """A request as it was received, without its length."""

    def __init__(self, data: bytes) -> None:
        self.key, self.version = struct.unpack_from(">hh", data)
        self._schema = load_request_schema(self.key, self.version)
        self._header, size = entity_reader(self._schema.__header_schema__)(data, 0)
        self._body = data[size:]

    @property
    def client_id(self) -> bytes:
        return self._header.client_id.encode()

    @property
    def entity(self) -> Any:
        """The body, as an object of kio's class."""
        return _decoded(self._schema, self._body)

    def response(self, response: Any, *, version: int | None = None) -> bytes:
        """Encode a value of the service as the response to this request, with its length."""
        kio = _schema(self.key, self.version if version is None else version)
        entity = _RESPONSES[api_key_map[self.key]](kio, None, response, None)
        header = entity.__header_schema__(correlation_id=self._header.correlation_id)
        body = kio.dump(header) + kio.dump(entity)
        return struct.pack(">i", len(body)) + body


def encode_response(request: Request, version: int, response: Any, *, text: str | None = None) -> bytes:
    """
    Encode a value of the service as the response to a request, without the correlation id.

    :param text: of each field with a message or a rack, which the service does not read.
    """
    kio = _schema(request.api.key, version)
    return kio.dump_answer(_RESPONSES[api_key_map[request.api.key]](kio, request, response, text))


def received(request: Request, version: int) -> Request:
    """Return a request as a broker decodes it from its bytes."""
    schema = load_request_schema(request.api.key, version)
    return _REQUESTS[type(request)](_decoded(schema, request.encode(version)), request)


def _decoded(schema, data):
    entity, size = entity_reader(schema)(data, 0)
    assert size == len(data), "bytes are left over"
    return entity


class Exchange:
    """A request and its response as they arrive, each of which was sent as bytes."""

    def __init__(self, request: Request) -> None:
        self._sent = request
        self._version = request.version_for({request.api.key: (0, request.api.highest)})
        self.request = received(request, self._version)

    def decoded(self, response: Any) -> Any:
        return self._sent.decode(self._version, encode_response(self._sent, self._version, response))


# Requests


def _by_topic(entity, name, part):
    return [(name(topic), [part(each) for each in topic.partitions]) for topic in entity.topics]


def _produce(entity, _):
    return ProduceRequest(
        topics=[
            (topic.name, [(each.index, bytes(each.records)) for each in topic.partition_data])
            for topic in entity.topic_data
        ],
        timeout_ms=_ms(entity.timeout),
        acks=entity.acks,
    )


def _fetch(entity, request):
    # Simulated brokers look logs up by names, and compare the ids.
    names = {topic_id: name for name, topic_id in request.topic_ids.items()}
    names |= {topic_id: name for name, topic_id, _ in getattr(request, "forgotten", ())}

    def name(topic):
        return topic.topic if hasattr(topic, "topic") else names[topic.topic_id]

    topics = _by_topic(entity, name, lambda each: (each.partition, _position(each)))
    fields = {
        "topics": topics,
        "max_wait_ms": _ms(entity.max_wait),
        "min_bytes": entity.min_bytes,
        "max_bytes": entity.max_bytes,
        "partition_max_bytes": min(
            [each.partition_max_bytes for topic in entity.topics for each in topic.partitions],
            default=request.partition_max_bytes,
        ),
        "read_committed": bool(entity.isolation_level),
        "topic_ids": {
            name(topic): topic.topic_id for topic in entity.topics if getattr(topic, "topic_id", None)
        },
        "leader_epochs": {
            (name(topic), each.partition): each.current_leader_epoch
            for topic in entity.topics
            for each in topic.partitions
            if each.current_leader_epoch >= 0
        },
    }
    if isinstance(request, FetchRequest):
        return FetchRequest(**fields)
    return SessionFetchRequest(
        **fields,
        session_id=entity.session_id,
        session_epoch=entity.session_epoch,
        forgotten=[
            (name(each), getattr(each, "topic_id", None), tuple(each.partitions))
            for each in entity.forgotten_topics_data
        ],
        uses_ids=entity.__version__ >= _TOPIC_IDS_SINCE,
    )


def _position(part):
    return with_epoch(part.fetch_offset, getattr(part, "last_fetched_epoch", -1))


def _list_offsets(entity, _):
    return ListOffsetsRequest(
        topics=_by_topic(entity, attrgetter("name"), attrgetter("partition_index", "timestamp")),
        read_committed=bool(entity.isolation_level),
        leader_epochs={
            (topic.name, each.partition_index): each.current_leader_epoch
            for topic in entity.topics
            for each in topic.partitions
            if each.current_leader_epoch >= 0
        },
    )


def _metadata(entity, request):
    return type(request)(
        topics=None if entity.topics is None else tuple(each.name for each in entity.topics),
        auto_create=entity.allow_auto_topic_creation,
    )


def _describe_configs(entity, _):
    return DescribeConfigsRequest(
        resources=[
            (each.resource_type, each.resource_name, list(each.configuration_keys))
            for each in entity.resources
        ]
    )


def _share_group_heartbeat(entity, _):
    topics = entity.subscribed_topic_names
    return ShareGroupHeartbeatRequest(
        group=entity.group_id,
        member_id=entity.member_id,
        member_epoch=entity.member_epoch,
        topic=None if topics is None else topics[0],
    )


def _share_fetch(entity, request):
    return ShareFetchRequest(
        group=entity.group_id,
        member_id=entity.member_id,
        session_epoch=entity.share_session_epoch,
        # Without partitions, the session says of which topic they are.
        topic_id=entity.topics[0].topic_id if entity.topics else request.topic_id,
        partitions=[each.partition_index for topic in entity.topics for each in topic.partitions],
        max_wait_ms=_ms(entity.max_wait),
        max_records=entity.max_records,
        max_bytes=entity.max_bytes,
    )


def _share_acknowledge(entity, request):
    return ShareAcknowledgeRequest(
        group=entity.group_id,
        member_id=entity.member_id,
        session_epoch=entity.share_session_epoch,
        topic_id=entity.topics[0].topic_id if entity.topics else request.topic_id,
        acknowledgements={
            part.partition_index: [
                Acknowledgement(each.first_offset, each.last_offset, AcknowledgeType(*each.acknowledge_types))
                for each in part.acknowledgement_batches
            ]
            for topic in entity.topics
            for part in topic.partitions
        },
    )


def _set_group_configs(entity, _):
    (resource,) = entity.resources
    assert resource.resource_type == _OF_GROUP
    return SetGroupConfigsRequest(
        group=resource.resource_name, values={each.name: each.value for each in resource.configs}
    )


def _ms(delta):
    return round(delta.total_seconds() * 1000)


_REQUESTS = {
    ProduceRequest: _produce,
    FetchRequest: _fetch,
    SessionFetchRequest: _fetch,
    ListOffsetsRequest: _list_offsets,
    MetadataRequest: _metadata,
    TopicsRequest: _metadata,
    DescribeConfigsRequest: _describe_configs,
    InitProducerIdRequest: lambda *_: InitProducerIdRequest(),
    FindCoordinatorRequest: lambda entity, _: FindCoordinatorRequest(group=entity.coordinator_keys[0]),
    ShareGroupHeartbeatRequest: _share_group_heartbeat,
    ShareFetchRequest: _share_fetch,
    ShareAcknowledgeRequest: _share_acknowledge,
    DescribeShareGroupOffsetsRequest: lambda entity, _: DescribeShareGroupOffsetsRequest(
        group=entity.groups[0].group_id
    ),
    SetGroupConfigsRequest: _set_group_configs,
}
"""By the class of the request: from kio's class, and the request as it was sent, to the service's class."""


# Responses


def _grouped(parts):
    """The parts by topic, in their order."""
    return [(topic, list(some)) for topic, some in groupby(parts, key=attrgetter("topic"))]


def _produced(kio, _, response, _text):
    def part(each):
        return kio.PartitionProduceResponse(
            index=each.partition,
            error_code=ErrorCode(each.error),
            base_offset=each.offset,
            log_append_time=moment(each.timestamp_ms),
            log_start_offset=each.log_start_offset,
            record_errors=tuple(
                kio.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                for index, message in each.record_errors
                if hasattr(kio, "BatchIndexAndErrorMessage")
            ),
            error_message=each.message,
        )

    return kio.ProduceResponse(
        responses=tuple(
            kio.TopicProduceResponse(name=topic, partition_responses=tuple(map(part, parts)))
            for topic, parts in _grouped(response.partitions)
        ),
        throttle_time=ms(response.throttle_ms),
    )


def _fetched(kio, request, response, _text):
    error, session_id, parts = 0, 0, response
    if isinstance(response, SessionFetched):
        error, session_id, parts = response.error, response.session_id, response.partitions

    def part(each):
        tagged = {}
        if each.diverging is not None and hasattr(kio, "EpochEndOffset"):
            end = each.diverging
            tagged = {
                "diverging_epoch": kio.EpochEndOffset(epoch=end.leader_epoch, end_offset=int(end)),
                "current_leader": kio.LeaderIdAndEpoch(leader_id=2, leader_epoch=5),
            }
        return kio.PartitionData(
            partition_index=each.partition,
            error_code=ErrorCode(each.error),
            high_watermark=each.high_watermark,
            last_stable_offset=each.last_stable_offset,
            log_start_offset=each.log_start_offset,
            aborted_transactions=tuple(
                kio.AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
                for one in each.aborted
            ),
            records=each.records,
            **tagged,
        )

    return kio.FetchResponse(
        throttle_time=_THROTTLE,
        error_code=ErrorCode(error),
        session_id=session_id,
        responses=tuple(
            kio.FetchableTopicResponse(
                topic=topic, topic_id=request.topic_ids.get(topic), partitions=tuple(map(part, some))
            )
            for topic, some in _grouped(parts)
        ),
    )


def _listed_offsets(kio, _, response, _text):
    def part(each):
        return kio.ListOffsetsPartitionResponse(
            partition_index=each.partition,
            error_code=ErrorCode(each.error),
            timestamp=each.timestamp_ms,
            offset=each.offset,
            leader_epoch=each.leader_epoch,
        )

    return kio.ListOffsetsResponse(
        throttle_time=_THROTTLE,
        topics=tuple(
            kio.ListOffsetsTopicResponse(name=topic, partitions=tuple(map(part, parts)))
            for topic, parts in _grouped(response)
        ),
    )


def _cluster(kio, _, response, text):
    def part(each):
        return kio.MetadataResponsePartition(
            error_code=ErrorCode(each.error),
            partition_index=each.partition,
            leader_id=each.leader,
            leader_epoch=each.leader_epoch,
            replica_nodes=each.replicas,
            isr_nodes=each.isr,
            offline_replicas=tuple(sorted(set(each.replicas) - set(each.isr))),
        )

    return kio.MetadataResponse(
        throttle_time=_THROTTLE,
        brokers=tuple(
            kio.MetadataResponseBroker(node_id=each.node_id, host=each.host, port=each.port, rack=text)
            for each in response.brokers
        ),
        cluster_id=response.cluster_id,
        controller_id=response.controller_id,
        topics=tuple(
            kio.MetadataResponseTopic(
                error_code=ErrorCode(each.error),
                name=each.topic,
                topic_id=each.topic_id,
                is_internal=each.is_internal,
                partitions=tuple(map(part, each.partitions)),
            )
            for each in response.topics
        ),
    )


def _api_versions(kio, _, response, _text):
    return kio.ApiVersionsResponse(
        error_code=ErrorCode(response.error),
        api_keys=tuple(
            kio.ApiVersion(api_key=key, min_version=lowest, max_version=highest)
            for key, (lowest, highest) in response.ranges.items()
        ),
        throttle_time=_THROTTLE,
        # Brokers of Kafka 3 and 4 name their features, in tagged fields.
        finalized_features_epoch=5,
    )


def _described_configs(kio, _, response, _text):
    def entry(name, value, *, is_own):
        return kio.DescribeConfigsResourceResult(
            name=name,
            value=value,
            read_only=False,
            config_source=(8 if value is None else 1) if is_own else 5,
            is_sensitive=value is None,
            synonyms=(kio.DescribeConfigsSynonym(name=f"log.{name}", value=None, source=5),),
        )

    return kio.DescribeConfigsResponse(
        throttle_time=_THROTTLE,
        results=tuple(
            kio.DescribeConfigsResult(
                error_code=ErrorCode(each.error),
                error_message="No." if each.error else None,
                resource_type=each.resource_type,
                resource_name=each.name,
                configs=tuple(
                    entry(name, value, is_own=name in each.own) for name, value in each.values.items()
                ),
            )
            for each in response
        ),
    )


def _identity(kio, _, response, _text):
    return kio.InitProducerIdResponse(
        throttle_time=_THROTTLE,
        error_code=ErrorCode(response.error),
        producer_id=response.producer_id,
        producer_epoch=response.epoch,
    )


def _quorum(kio, _, response, _text):
    states = [
        kio.ReplicaState(
            replica_id=node_id,
            log_end_offset=7,
            last_fetch_timestamp=response.time_ms,
            last_caught_up_timestamp=500,
        )
        for node_id in (1, 2)
    ]
    # One voter, which leads, and one observer.
    partition = kio.PartitionData(
        partition_index=0,
        error_code=ErrorCode(response.error),
        leader_id=1,
        leader_epoch=4,
        high_watermark=7,
        current_voters=tuple(states[:1]),
        observers=tuple(states[1:]),
    )
    topic = kio.TopicData(topic_name="__cluster_metadata", partitions=(partition,))
    return kio.DescribeQuorumResponse(error_code=ErrorCode(0), topics=(topic,))


def _mechanisms(kio, _, response, _text):
    return kio.SaslHandshakeResponse(error_code=ErrorCode(response.error), mechanisms=response.mechanisms)


def _authenticated(kio, _, response, _text):
    return kio.SaslAuthenticateResponse(
        error_code=ErrorCode(response.error),
        error_message=response.message,
        auth_bytes=response.token,
        session_lifetime=ms(response.session_lifetime_ms),
    )


def _coordinator(kio, request, response, text):
    found = kio.Coordinator(
        key=request.group,
        node_id=response.node_id,
        host="localhost",
        port=9092,
        error_code=ErrorCode(response.error),
        error_message=text,
    )
    return kio.FindCoordinatorResponse(throttle_time=_THROTTLE, coordinators=(found,))


def _heartbeat(kio, _, response, text):
    assignment = None
    if response.assignment is not None:
        assignment = kio.Assignment(
            topic_partitions=tuple(
                kio.TopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in response.assignment.items()
            )
        )
    return kio.ShareGroupHeartbeatResponse(
        throttle_time=_THROTTLE,
        error_code=ErrorCode(response.error),
        error_message=text,
        member_id=text,
        member_epoch=response.member_epoch,
        heartbeat_interval=ms(5000),
        assignment=assignment,
    )


def _share_endpoints(kio, text):
    node = kio.NodeEndpoint(node_id=7, host="localhost", port=9092, rack=text)
    return {
        "throttle_time": _THROTTLE,
        "error_message": text,
        # A tagged field.
        "node_endpoints": () if text is None else (node,),
    }


def _share_fetched(kio, request, response, text):
    def part(each):
        return kio.PartitionData(
            partition_index=each.partition,
            error_code=ErrorCode(each.error),
            error_message=text,
            acknowledge_error_code=ErrorCode(6 if text else 0),
            acknowledge_error_message=text,
            current_leader=kio.LeaderIdAndEpoch(leader_id=7, leader_epoch=5),
            records=each.records,
            acquired_records=tuple(
                kio.AcquiredRecords(
                    first_offset=one.first_offset,
                    last_offset=one.last_offset,
                    delivery_count=one.delivery_count,
                )
                for one in each.acquired
            ),
        )

    topic = kio.ShareFetchableTopicResponse(
        topic_id=request.topic_id, partitions=tuple(map(part, response.partitions))
    )
    return kio.ShareFetchResponse(
        error_code=ErrorCode(response.error),
        acquisition_lock_timeout=ms(response.lock_ms),
        responses=(topic,) if response.partitions else (),
        **_share_endpoints(kio, text),
    )


def _share_acknowledged(kio, request, response, text):
    parts = tuple(
        kio.PartitionData(
            partition_index=number,
            error_code=ErrorCode(error),
            error_message=text,
            current_leader=kio.LeaderIdAndEpoch(leader_id=7, leader_epoch=5),
        )
        for number, error in response.errors.items()
    )
    return kio.ShareAcknowledgeResponse(
        error_code=ErrorCode(response.error),
        acquisition_lock_timeout=ms(response.lock_ms),
        responses=(kio.ShareAcknowledgeTopicResponse(topic_id=request.topic_id, partitions=parts),),
        **_share_endpoints(kio, text),
    )


def _share_offsets(kio, request, response, text):
    def part(number, lag):
        return kio.DescribeShareGroupOffsetsResponsePartition(
            partition_index=number,
            start_offset=40 if lag >= 0 else -1,
            leader_epoch=5,
            lag=lag,
            error_code=ErrorCode(0 if lag >= 0 else 3),
            error_message=text,
        )

    group = kio.DescribeShareGroupOffsetsResponseGroup(
        group_id=request.group,
        topics=tuple(
            kio.DescribeShareGroupOffsetsResponseTopic(
                topic_name=topic,
                topic_id=UUID(int=1),
                partitions=tuple(part(*each) for each in lags.items()),
            )
            for topic, lags in response.lags.items()
        ),
        error_code=ErrorCode(response.error),
        error_message=text,
    )
    return kio.DescribeShareGroupOffsetsResponse(throttle_time=_THROTTLE, groups=(group,))


def _altered_configs(kio, request, response, text):
    result = kio.AlterConfigsResourceResponse(
        error_code=ErrorCode(response),
        error_message=text,
        resource_type=_OF_GROUP,
        resource_name=request.group,
    )
    return kio.IncrementalAlterConfigsResponse(throttle_time=_THROTTLE, responses=(result,))


_RESPONSES = {
    "produce": _produced,
    "fetch": _fetched,
    "list_offsets": _listed_offsets,
    "metadata": _cluster,
    "api_versions": _api_versions,
    "describe_configs": _described_configs,
    "init_producer_id": _identity,
    "describe_quorum": _quorum,
    "sasl_handshake": _mechanisms,
    "sasl_authenticate": _authenticated,
    "find_coordinator": _coordinator,
    "share_group_heartbeat": _heartbeat,
    "share_fetch": _share_fetched,
    "share_acknowledge": _share_acknowledged,
    "describe_share_group_offsets": _share_offsets,
    "incremental_alter_configs": _altered_configs,
}
"""By kio's name of the request: from a value of the service to kio's class."""
