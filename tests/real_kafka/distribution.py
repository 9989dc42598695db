"""Apache Kafka itself, as Maven Central has it: which versions, what they need, and where their files are."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.real_kafka.versions import OLDEST, is_version, maven_properties, parsed

__all__ = ["ARE_NAMED", "VERSIONS", "KafkaNotAvailable", "get", "java", "why_not"]

_NAMED = tuple(os.environ.get("SAMPLEAPP_KAFKA_VERSIONS", "").split())
ARE_NAMED = bool(_NAMED)
VERSIONS = _NAMED or ("3.9.2", "4.4.0")
"""By default the last version before Kafka 4 removed old versions of requests, and the newest."""

_POM = Path(__file__).with_name("pom.xml")
_OLDEST_JAVA = 17
# 45 MB; a mirror far away may take its time.
_DOWNLOAD_DEADLINE_S = 600


class KafkaNotAvailable(Exception):
    """Kafka cannot be run here; the message is one sentence that says why, and what to do."""


def why_not() -> str | None:
    """
    Why Kafka cannot be run here: one sentence, or ``None`` where nothing seems to be in the way.

    Asks no network: whether Maven Central can be reached shows only in `get`.
    """
    try:
        _check_java()
        for version in VERSIONS:
            _check_version(version)
        if not all(_directory(version).is_dir() for version in VERSIONS):
            _maven()
    except KafkaNotAvailable as error:
        return str(error)
    return None


def java() -> str:
    """
    The program that runs Java.

    :raise KafkaNotAvailable: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home, "bin")) if home else None)
    if found is None:
        where = "in JAVA_HOME" if home else "here"
        raise KafkaNotAvailable(
            f"there is no java {where}; install Java {_OLDEST_JAVA} or newer (Debian: default-jdk-headless)"
        )
    return found


def get(version: str) -> Path:
    """
    The directory with the jars of one version, which are downloaded when they are not there yet.

    :raise KafkaNotAvailable: they cannot be had.
    """
    _check_java()
    _check_version(version)
    directory = _directory(version)
    if not directory.is_dir():
        _say(f"Getting Kafka {version} from Maven Central …")
        directory.parent.mkdir(parents=True, exist_ok=True)
        # Under its name there is only ever a whole one, also when two runs get it at the same time.
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}-") as temporary:
            partial = Path(temporary, "jars")
            _copy_dependencies(version, partial)
            try:
                partial.rename(directory)
            except OSError:
                if not directory.is_dir():
                    raise
    return directory


def _directory(version: str) -> Path:
    cache = os.environ.get("SAMPLEAPP_KAFKA_CACHE")
    if cache is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        cache = Path(home, "sampleapp-kafka")
    # What was got by another pom.xml, or with other properties, is not what these ask for.
    asked = _POM.read_bytes() + repr(maven_properties(version)).encode()
    digest = hashlib.sha256(asked).hexdigest()[:8]
    return Path(cache, f"{version}-{digest}")


def _check_version(version: str) -> None:
    if not is_version(version):
        raise KafkaNotAvailable(f"{version!r} is no version of Kafka; name one such as 3.9.2")
    if parsed(version) < parsed(OLDEST):
        raise KafkaNotAvailable(f"the service needs Kafka {OLDEST} or newer, and {version} is older")


def _check_java() -> None:
    answer = subprocess.run([java(), "-version"], capture_output=True, text=True, check=False)
    # "17.0.15", or "1.8.0_392" as it was written until Java 8.
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if answer.returncode != 0 or found is None:
        raise KafkaNotAvailable(f"{java()} does not run; install Java {_OLDEST_JAVA} or newer")
    if int(found[1]) < _OLDEST_JAVA:
        raise KafkaNotAvailable(
            f"java is of version {found[1]}, and Kafka needs {_OLDEST_JAVA}; install a newer one, and "
            "name it in JAVA_HOME"
        )


def _maven() -> str:
    found = shutil.which("mvn")
    if found is None:
        raise KafkaNotAvailable(
            "there is no mvn, which gets Kafka from Maven Central; install Maven (Debian: maven)"
        )
    return found


def _copy_dependencies(version: str, directory: Path) -> None:
    command = [
        *[_maven(), "--batch-mode", "--quiet", "--update-snapshots", "--file", str(_POM)],
        *(f"-D{name}={value}" for name, value in maven_properties(version).items()),
        "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies",
        *["-DincludeScope=runtime", f"-DoutputDirectory={directory}"],
    ]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_DOWNLOAD_DEADLINE_S
        )
    except subprocess.TimeoutExpired as error:
        raise KafkaNotAvailable(
            f"Kafka {version} did not come from Maven Central in {_DOWNLOAD_DEADLINE_S} seconds; try again"
        ) from error
    if answer.returncode != 0:
        said = re.search(r"\[ERROR\] (.+?)(?: -> \[Help|$)", answer.stdout, re.MULTILINE)
        # Maven says who failed because of whom; what has really happened comes last.
        reason = ": ".join(said[1].split(": ")[-2:]) if said else "mvn does not say why"
        raise KafkaNotAvailable(
            f"Kafka {version} cannot be had from Maven Central; see whether it can be reached from here "
            f"({reason})"
        )


def _say(sentence: str) -> None:
    # pytest takes what is printed to stdout away until a test fails; this is for whoever waits.
    stream = sys.__stderr__ or sys.stderr
    stream.write(f"{sentence}\n")
    stream.flush()
