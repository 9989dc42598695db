"""OpenAPI descriptions of the routes of REST Proxy's API v2."""

from __future__ import annotations

from typing import Final

from sampleapp.access import NotGranted
from sampleapp.errors import BrokerUnavailable, InvalidParameters, UnknownPartition, UnknownTopic
from sampleapp.web.descriptions import (
    CACHE_CONTROL,
    TOPIC,
    TRACEPARENT,
    TRACESTATE,
    VARY,
    Content,
    Description,
    Parameter,
    Success,
)
from sampleapp.web.error_objects import ErrorObject
from sampleapp.web.errors import NotAcceptable
from sampleapp.web.kafka_media_types import ANSWER
from sampleapp.web.openapi.produce_contents import (
    PRODUCE_BODIES,
    PRODUCE_ERRORS,
    PRODUCE_REFUSALS,
    PRODUCED,
)
from sampleapp.web.rest_proxy_documents import Partition, Topic

__all__ = [
    "DESCRIBE_PARTITION",
    "DESCRIBE_TOPIC",
    "LIST_PARTITIONS",
    "LIST_TOPICS",
    "PRODUCE_TO_PARTITION",
]

_EXAMPLE: Final = {
    "partition": 0,
    "leader": 1,
    "replicas": [
        {"broker": 1, "leader": True, "in_sync": True},
        {"broker": 2, "leader": False, "in_sync": True},
    ],
}
_PARTITION: Final = Parameter(
    name="partition", place="path", meaning="The number of the partition, from 0.", kind=int
)
_VISIBLE_TOPICS: Final = (
    "As in REST Proxy's API v2. A caller sees the topics that it may publish to; with the right to read, it "
    "sees all topics."
)


def _success(meaning: str, kind: object, example: object) -> Success:
    return Success(
        meaning=meaning,
        contents=(Content(media_type=ANSWER.decode("ascii"), kind=kind, example=example),),
        fields=(VARY, CACHE_CONTROL),
    )


LIST_TOPICS: Final = Description(
    tag="Topics",
    summary="The names of the topics",
    text=f"{_VISIBLE_TOPICS} The answer may be up to two seconds old.",
    successes=(_success("The names.", list[str], ["events", "readings"]),),
    refusals=(InvalidParameters, NotAcceptable, BrokerUnavailable),
    error_objects=(ErrorObject,),
)
DESCRIBE_TOPIC: Final = Description(
    tag="Topics",
    summary="One topic with its partitions and their replicas",
    text=_VISIBLE_TOPICS,
    parameters=(TOPIC,),
    successes=(_success("The topic.", Topic, {"name": "readings", "configs": {}, "partitions": [_EXAMPLE]}),),
    refusals=(InvalidParameters, NotAcceptable, NotGranted, UnknownTopic, BrokerUnavailable),
    error_objects=(ErrorObject,),
)
LIST_PARTITIONS: Final = Description(
    tag="Topics",
    summary="The partitions of a topic and their replicas",
    text=_VISIBLE_TOPICS,
    parameters=(TOPIC,),
    successes=(_success("The partitions.", list[Partition], [_EXAMPLE]),),
    refusals=(InvalidParameters, NotAcceptable, NotGranted, UnknownTopic, BrokerUnavailable),
    error_objects=(ErrorObject,),
)
DESCRIBE_PARTITION: Final = Description(
    tag="Topics",
    summary="One partition and its replicas",
    text=_VISIBLE_TOPICS,
    parameters=(TOPIC, _PARTITION),
    successes=(_success("The partition.", Partition, _EXAMPLE),),
    refusals=(
        InvalidParameters,
        NotAcceptable,
        NotGranted,
        UnknownTopic,
        UnknownPartition,
        BrokerUnavailable,
    ),
    error_objects=(ErrorObject,),
)
PRODUCE_TO_PARTITION: Final = Description(
    tag="Messages",
    summary="Publish records to a partition",
    text=(
        "As in REST Proxy's API v2. A record with a `partition` of its own goes to that one. All records are "
        "checked before any is published."
    ),
    parameters=(TOPIC, _PARTITION, TRACEPARENT, TRACESTATE),
    bodies=PRODUCE_BODIES,
    successes=(Success(meaning="All records are stored.", contents=(PRODUCED,)),),
    refusals=PRODUCE_REFUSALS,
    error_objects=PRODUCE_ERRORS,
)
