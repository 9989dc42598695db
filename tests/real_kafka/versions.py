"""What each version of Kafka has, and what it takes to run it under a Java that is newer than itself."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from msgspec import Struct

__all__ = [
    "ACLS",
    "ADD_PARTITIONS",
    "CODECS",
    "ELECT_LEADERS",
    "FETCH_BY_ID",
    "KRAFT",
    "OLDEST",
    "OLD_CODECS",
    "OLD_FORMATS",
    "PEM",
    "REAUTHENTICATION",
    "SASL",
    "SASL_WITH_CERTIFICATES",
    "SCRAM",
    "SCRAM_BY_REQUEST",
    "SHARE_GROUPS",
    "SKIPS_VALUES",
    "SOFTWARE_NAME",
    "TOKENS",
    "TOPIC_IDS",
    "UNCLEAN_ELECTIONS",
    "ZSTD",
    "Feature",
    "codecs_of",
    "is_version",
    "jvm_options",
    "maven_properties",
    "needs",
    "parsed",
]

OLDEST = "0.11"
"""The first version that the service works with."""


def is_version(text: str) -> bool:
    """Whether it looks like a version of Kafka: ``2.8.2``, ``0.11.0.3``."""
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
ZSTD = Feature(name="zstd (KIP-110)", since="2.1")
TOPIC_IDS = Feature(name="topic ids (KIP-516)", since="2.8")
FETCH_BY_ID = Feature(name="Metadata 12 and Fetch 13 (KIP-516)", since="3.1")
SOFTWARE_NAME = Feature(name="log of requests with the names of clients (KIP-511)", since="2.7")
ADD_PARTITIONS = Feature(name="CreatePartitions request (KIP-195)", since="1.0")
ELECT_LEADERS = Feature(name="ElectLeaders request (KIP-460)", since="2.4")
UNCLEAN_ELECTIONS = Feature(
    # With KRaft the setting of a topic has no effect before 4.0.
    name="unclean elections that a topic allows",
    not_in=("3.0", "3.9"),
)
OLD_FORMATS = Feature(name="message.format.version with an effect", before="3.0")
OLD_CODECS = Feature(name="rejection of zstd", before="2.1")
SKIPS_VALUES = Feature(
    # Older ones, with the memory that they have here, end with OutOfMemoryError.
    name="way to check large records without holding them (KAFKA-8106)",
    since="2.4",
)
PEM = Feature(name="key stores in PEM (KIP-651)", since="2.7")
SASL = Feature(name="SASL settings of one listener (KIP-226)", since="1.1")
SCRAM = Feature(name="SCRAM", since="1.1", not_in=("3.0", "3.5"))
SCRAM_BY_REQUEST = Feature(
    name="request that changes a password for SCRAM (KIP-554)", since="2.7", not_in=("3.0", "3.5")
)
TOKENS = Feature(name="OAUTHBEARER (KIP-255)", since="2.0")
SASL_WITH_CERTIFICATES = Feature(name="client certificates beside SASL (KIP-684)", since="2.8")
SHARE_GROUPS = Feature(name="share groups (KIP-932)", since="4.2")
REAUTHENTICATION = Feature(name="sessions that end (KIP-368)", since="2.2")
ACLS = Feature(name="authorizer for how it is run here", not_in=("3.0", "3.2"))


_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def codecs_of(version: str) -> list[str]:
    """The ways in which records may be compressed."""
    return [each for each in _CODECS if each != "zstd" or ZSTD.is_in(version)]


def needs(*features: Feature) -> pytest.MarkDecorator:
    """Mark a test, or one of its parameters, as one for the versions that have all of these."""
    return pytest.mark.needs(*features)


CODECS = [pytest.param(each, marks=needs(ZSTD) if each == "zstd" else ()) for each in _CODECS]
"""All of them, for ``parametrize``; those that a version does not have are skipped."""


def maven_properties(version: str) -> Mapping[str, str]:
    """What pom.xml leaves open."""
    number = parsed(version)
    properties = {"kafka.version": version, "scala.version": "2.12" if number < (2, 4) else "2.13"}
    if number < (1, 1):
        properties["jaxb.version"] = "2.3.1"
    # Those that came with these versions do not resolve addresses under Java 14 and newer (ZOOKEEPER-3779).
    if number < (2, 4):
        properties["zookeeper.version"] = "3.4.10"
    elif number < (3, 0):
        properties["zookeeper.version"] = "3.5.9"
    return properties


def jvm_options(version: str) -> list[str]:
    """What Java has closed since."""
    if parsed(version) >= (1, 1):
        return []
    packages = ("java.lang", "java.nio", "java.util", "sun.nio.ch", "jdk.internal.ref")
    return [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in packages]
