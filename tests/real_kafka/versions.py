"""What each version of Kafka has, and what it takes to run it under a Java that is newer than itself."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from msgspec import Struct

__all__ = [
    "ACLS",
    "CODECS",
    "ELECT_LEADERS",
    "FETCH_BY_ID",
    "KRAFT",
    "OLDEST",
    "OLD_FORMATS",
    "PEM",
    "REAUTHENTICATION",
    "SASL_WITH_CERTIFICATES",
    "SCRAM",
    "SCRAM_BY_REQUEST",
    "SHARE_GROUPS",
    "SKIPS_VALUES",
    "SOFTWARE_NAME",
    "TOPIC_IDS",
    "UNCLEAN_ELECTIONS",
    "Feature",
    "is_version",
    "maven_properties",
    "needs",
    "parsed",
]

OLDEST = "2.1"
"""The first version that is supported, as by Kafka's own clients (KIP-896)."""


def is_version(text: str) -> bool:
    """Whether it looks like a version of Kafka: ``2.8.2``, ``4.4``."""
    return re.fullmatch(r"\d+(\.\d+)+", text) is not None


def parsed(version: str) -> tuple[int, ...]:
    """A version as numbers, which can be compared."""
    return tuple(map(int, version.split(".")))


class Feature(Struct, frozen=True, kw_only=True):
    """Something that not every version has."""

    name: str
    since: str = OLDEST
    before: str | None = None
    """The first version without it."""
    not_in: tuple[str, str] | None = None
    """A range of versions, the second of which has it again."""

    def is_in(self, version: str) -> bool:
        """Whether a version has it."""
        number = parsed(version)
        return (
            number >= parsed(self.since)
            and (self.before is None or number < parsed(self.before))
            and not (self.not_in and parsed(self.not_in[0]) <= number < parsed(self.not_in[1]))
        )

    def why_not_in(self, version: str) -> str:
        """One sentence for whoever asks why a test was skipped."""
        gone = f", until {self.before}" if self.before else ""
        gap = f", and not from {self.not_in[0]} until {self.not_in[1]}" if self.not_in else ""
        return f"Kafka {version} has no {self.name} (there since {self.since}{gone}{gap})"


KRAFT = Feature(name="KRaft, and so no controller's listener", since="3.0")
TOPIC_IDS = Feature(name="topic ids (KIP-516)", since="2.8")
FETCH_BY_ID = Feature(name="Metadata 12 and Fetch 13 (KIP-516)", since="3.1")
SOFTWARE_NAME = Feature(name="log of requests with the names of clients (KIP-511)", since="2.7")
ELECT_LEADERS = Feature(name="ElectLeaders request (KIP-460)", since="2.4")
UNCLEAN_ELECTIONS = Feature(
    # With KRaft the setting of a topic has no effect before 4.0.
    name="unclean elections that a topic allows",
    not_in=("3.0", "3.9"),
)
OLD_FORMATS = Feature(name="message.format.version with an effect", before="3.0")
SKIPS_VALUES = Feature(
    # Older ones, with the memory that they have here, end with OutOfMemoryError.
    name="way to check large records without holding them (KAFKA-8106)",
    since="2.4",
)
PEM = Feature(name="key stores in PEM (KIP-651)", since="2.7")
SCRAM = Feature(name="SCRAM", not_in=("3.0", "3.5"))
SCRAM_BY_REQUEST = Feature(
    name="request that changes a password for SCRAM (KIP-554)", since="2.7", not_in=("3.0", "3.5")
)
SASL_WITH_CERTIFICATES = Feature(name="client certificates beside SASL (KIP-684)", since="2.8")
SHARE_GROUPS = Feature(name="share groups (KIP-932)", since="4.2")
REAUTHENTICATION = Feature(name="sessions that end (KIP-368)", since="2.2")
ACLS = Feature(name="authorizer for how it is run here", not_in=("3.0", "3.2"))


CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""The ways in which records may be compressed."""


def needs(*features: Feature) -> pytest.MarkDecorator:
    """Mark a test, or one of its parameters, as one for the versions that have all of these."""
    return pytest.mark.needs(*features)


def maven_properties(version: str) -> Mapping[str, str]:
    """What pom.xml leaves open."""
    number = parsed(version)
    properties = {"kafka.version": version, "scala.version": "2.12" if number < (2, 4) else "2.13"}
    # Those that came with these versions do not resolve addresses under Java 14 and newer (ZOOKEEPER-3779).
    if number < (2, 4):
        properties["zookeeper.version"] = "3.4.10"
    elif number < (3, 0):
        properties["zookeeper.version"] = "3.5.9"
    return properties
