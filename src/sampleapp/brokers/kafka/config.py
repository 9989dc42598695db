"""The URL of a Kafka cluster: strict parsing, so that no spelling mistake is ignored."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from ipaddress import AddressValueError, IPv6Address
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote

from msgspec import Struct

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
DEFAULT_PORT: Final = 9092

_FORM: Final = "kafka://HOST:PORT[,HOST:PORT]…[?option=value&…], or kafka+tls://… for TLS"
_ENVIRONMENT: Final = "SAMPLEAPP_KAFKA_USERNAME and SAMPLEAPP_KAFKA_PASSWORD in the environment"
_MAX_BUFFER_BYTES: Final = 2**40
_MAX_DELIVERY_TIMEOUT_S: Final = 86_400.0
# Likely names of options for secrets, which must not be in a URL.
_CREDENTIALS: Final = frozenset({"user", "username", "password", "sasl_username", "sasl_password"})
_TOKENS: Final = frozenset({"token", "bearer", "access_token", "sasl_token"})
_FIXED: Final = {
    "acks": "a record is stored by all replicas that are in sync before it is acknowledged (acks=all)",
    "retries": "a record is sent again until delivery_timeout",
    "linger_ms": "records that wait for a broker become a batch, and none waits longer for others",
    "batch_size": "records that wait for a broker become a batch, and none waits longer for others",
    "bootstrap_servers": "the addresses are in front of the question mark",
    "security_protocol": "it is the scheme of the URL: kafka:// or kafka+tls://",
}
"""Settings of other clients that are no options here, and why."""


class KafkaConfig(Struct, frozen=True, kw_only=True):
    """How to reach and use a Kafka cluster. It holds no secret: credentials are named by their file."""

    addresses: tuple[tuple[str, int], ...]
    """Host and port of some brokers; they know the others."""
    tls: bool
    auto_create: bool = False
    """Ask the broker to create a topic that does not exist when it is published to."""
    buffer_bytes: int = 64 * 1024 * 1024
    """Maximum bytes of records that wait for the cluster."""
    delivery_timeout_s: float = 30.0
    """The time after which a record that is not acknowledged has failed, in seconds."""
    max_batch_bytes: int = 64 * 1024 * 1024
    """Maximum size of a batch that is read, after decompression; a larger one is skipped."""
    compression: str = "none"
    """One of `COMPRESSIONS`."""
    idempotence: bool = True
    client_id: str = "sampleapp"
    """The name of this service in the logs, metrics and quotas of the brokers."""
    ca: Path | None = None
    """PEM file of the authorities that are trusted to have signed the brokers' certificates."""
    certificate: Path | None = None
    """PEM file of the client certificate, followed by its intermediate certificates."""
    key: Path | None = None
    """PEM file of the client certificate's private key, not encrypted."""
    sasl: Mechanism | None = None
    credentials: Path | None = None
    """File with the user name and the password for SASL."""
    token_file: Path | None = None
    """File with the token for OAUTHBEARER."""
    extensions: tuple[tuple[str, str], ...] = ()
    """Names and values that OAUTHBEARER sends with the token (KIP-342)."""


def parse(url: str) -> KafkaConfig:
    """
    Read the URL of a cluster.

    :param url: ``kafka://HOST[:PORT][,HOST[:PORT]]…[?option=value&…]``, or the same with ``kafka+tls``. The
        port is 9092 if it is left out; an IPv6 address stands in brackets. Options are percent-encoded
        (RFC 3986, section 2.1); a plus sign is a plus sign.
    :raise ValueError: for anything else, with the correct form. It repeats only the names of options, since a
        password may be anywhere in the URL.
    """
    scheme, colon, rest = url.partition("://")
    scheme = scheme.lower()
    if not colon or scheme not in {"kafka", "kafka+tls"}:
        raise ValueError(f"The URL of a Kafka cluster has another form: use {_FORM}.")
    # Anywhere, not only before the first slash: a password that is put here may itself hold one.
    if "@" in rest:
        raise ValueError(
            "A user name and a password do not belong in the URL: use sasl= with credentials=FILE, or with "
            f"{_ENVIRONMENT}; an @ in the value of an option is written %40."
        )
    if "#" in rest:
        raise ValueError("The URL of a Kafka cluster has no fragment: write a # in a value as %23.")
    authority, question, query = rest.partition("?")
    if "/" in authority:
        raise ValueError(f"The URL of a Kafka cluster has no path, nor a / after the addresses: use {_FORM}.")
    options = _options(query) if question else {}
    config = KafkaConfig(addresses=_addresses(authority), tls=scheme == "kafka+tls", **options)
    _require_consistent(config)
    return config


def _addresses(authority: str) -> tuple[tuple[str, int], ...]:
    # A dict, so that an address that is given twice is used once.
    return tuple(
        dict.fromkeys(_address(text, which) for which, text in enumerate(authority.split(","), start=1))
    )


_ADDRESS = re.compile(
    r"(?: \[ (?P<ipv6> [0-9A-Fa-f:.]+ ) \] | (?P<name> [A-Za-z0-9._-]+ ) ) (?: : (?P<port> [0-9]{1,5} ) )?",
    re.VERBOSE,
)
_MAX_HOST = 253
_MAX_PORT = 65535


def _address(text: str, which: int) -> tuple[str, int]:
    match = _ADDRESS.fullmatch(text)
    wrong = f"Address {which} in the URL is not of the form HOST:PORT"
    if match is None:
        raise ValueError(f"{wrong}: the host is a name or an address (IPv6 in brackets), the port a number.")
    port = DEFAULT_PORT if match["port"] is None else int(match["port"])
    if not 1 <= port <= _MAX_PORT:
        raise ValueError(f"{wrong}: the port is a number from 1 to {_MAX_PORT}.")
    if match["ipv6"] is not None:
        try:
            return str(IPv6Address(match["ipv6"])), port
        except AddressValueError:
            # Not chained: that error repeats the text.
            raise ValueError(f"{wrong}: what is in brackets is not an IPv6 address.") from None
    host: str = match["name"]
    if len(host) > _MAX_HOST or not all(host.removesuffix(".").split(".")):
        raise ValueError(f"{wrong}: the host has an empty part, or more than {_MAX_HOST} characters.")
    return host, port


def _switch(value: str) -> bool | None:
    return {"true": True, "false": False}.get(value)


def _bytes(value: str) -> int | None:
    # The length first: Python refuses to read very long numbers, and says so in an error of its own.
    if re.fullmatch(r"[0-9]{1,13}", value) is None:
        return None
    return int(value) if 1 <= int(value) <= _MAX_BUFFER_BYTES else None


def _seconds(value: str) -> float | None:
    if re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,6})?", value) is None:
        return None
    return float(value) if 0 < float(value) <= _MAX_DELIVERY_TIMEOUT_S else None


def _client_id(value: str) -> str | None:
    # The characters that Kafka uses unchanged in the names of metrics.
    return value if re.fullmatch(r"[A-Za-z0-9._-]{1,249}", value) else None


def _path(value: str) -> Path | None:
    return Path(value) if value.isprintable() and value else None


def _token_path(value: str) -> Path | None:
    # A JSON Web Token instead of a path is rejected here: otherwise the error about the file would log it.
    return None if re.match(r"eyJ[A-Za-z0-9_-]*\.", value) else _path(value)


def _extensions(value: str) -> tuple[tuple[str, str], ...] | None:
    """Parse extensions by the grammar of RFC 7628, section 3.1; printable only, separated by commas."""
    found = {}
    for each in value.split(","):
        match = re.fullmatch(r"(?P<name>[A-Za-z]+)=(?P<value>[ -~]+)", each)
        # `auth` is the name of the token.
        if match is None or match["name"] == "auth" or match["name"] in found:
            return None
        found[match["name"]] = match["value"]
    return tuple(found.items())


def _one_of(*values: str) -> tuple[str, Callable[[str], str | None]]:
    return f"{', '.join(values[:-1])} or {values[-1]}", lambda value: value if value in values else None


class _Option(Struct, frozen=True):
    field: str
    allowed: str
    read: Callable[[str], Any]


_OPTIONS: Mapping[str, _Option] = {
    "auto_create": _Option("auto_create", "true or false", _switch),
    "buffer_bytes": _Option("buffer_bytes", f"a whole number from 1 to {_MAX_BUFFER_BYTES}", _bytes),
    "delivery_timeout": _Option(
        "delivery_timeout_s", f"seconds, more than 0 and at most {_MAX_DELIVERY_TIMEOUT_S:g}", _seconds
    ),
    "max_batch_bytes": _Option("max_batch_bytes", f"a whole number from 1 to {_MAX_BUFFER_BYTES}", _bytes),
    "compression": _Option("compression", *_one_of(*COMPRESSIONS)),
    "idempotence": _Option("idempotence", "true or false", _switch),
    "client_id": _Option("client_id", "1 to 249 letters, digits, dots, underscores and hyphens", _client_id),
    "ca": _Option("ca", "the path of a file", _path),
    "certificate": _Option("certificate", "the path of a file", _path),
    "key": _Option("key", "the path of a file", _path),
    "sasl": _Option("sasl", *_one_of(*MECHANISMS)),
    "credentials": _Option("credentials", "the path of a file", _path),
    "token_file": _Option("token_file", "the path of a file", _token_path),
    "extensions": _Option(
        "extensions", "NAME=VALUE[,NAME=VALUE]…, each name of letters only, once, and not auth", _extensions
    ),
}


def _options(query: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for which, pair in enumerate(query.split("&"), start=1):
        name, equals, encoded = pair.partition("=")
        option = _OPTIONS.get(name)
        if option is None:
            raise ValueError(_unknown(name, which))
        if option.field in values:
            raise ValueError(f"The option {name} is given more than once: give it once.")
        value = option.read(_decoded(encoded, name)) if equals else None
        if value is None:
            raise ValueError(f"The option {name} has a wrong value: use {name}= and {option.allowed}.")
        values[option.field] = value
    return values


def _unknown(name: str, which: int) -> str:
    if name.lower().replace(".", "_") in _CREDENTIALS:
        return (
            f"Credentials do not belong in the URL: use sasl= with credentials=FILE, or with {_ENVIRONMENT}."
        )
    if name.lower().replace(".", "_") in _TOKENS:
        return "A token does not belong in the URL: use sasl=OAUTHBEARER with token_file=FILE."
    fixed = name.lower().replace(".", "_")
    if fixed in _FIXED:
        return f"There is no option {fixed} in the URL: {_FIXED[fixed]}."
    # The name itself is not repeated: with an & in it, half of a password looks like one.
    near = get_close_matches(name.lower(), _OPTIONS, n=1)
    right = f"did you mean {near[0]}?" if near else f"the options are {', '.join(_OPTIONS)}."
    return f"Option {which} in the URL is not known: {right}"


def _decoded(encoded: str, name: str) -> str:
    if re.search("%(?![0-9A-Fa-f]{2})", encoded) is not None:
        raise ValueError(f"The value of the option {name} has a stray percent sign: write it as %25.")
    try:
        return unquote(encoded, errors="strict")
    except UnicodeDecodeError:
        # Not chained: that error holds the value.
        raise ValueError(f"The value of the option {name} is not percent-encoded UTF-8.") from None


def _require_consistent(config: KafkaConfig) -> None:
    for name in ("ca", "certificate", "key"):
        if getattr(config, name) is not None and not config.tls:
            raise ValueError(f"The option {name} is for TLS: use kafka+tls:// with it.")
    for one, other in (("certificate", "key"), ("key", "certificate")):
        if getattr(config, one) is not None and getattr(config, other) is None:
            raise ValueError(f"The option {one} needs the option {other}: give both, or neither.")
    _require_consistent_sasl(config)


def _require_consistent_sasl(config: KafkaConfig) -> None:
    if config.credentials is not None and config.sasl is None:
        raise ValueError(
            "The option credentials needs the option sasl: add sasl= and one of "
            f"{', '.join(each for each in MECHANISMS if each != 'OAUTHBEARER')}."
        )
    if config.sasl != "OAUTHBEARER":
        for name, given in (("token_file", config.token_file), ("extensions", config.extensions)):
            if given:
                raise ValueError(f"The option {name} is for OAUTHBEARER: use sasl=OAUTHBEARER with it.")
    elif config.token_file is None:
        raise ValueError("OAUTHBEARER takes a token from a file: add token_file= and its path.")
    elif config.credentials is not None:
        raise ValueError("OAUTHBEARER takes a token, not a password: give token_file=, not credentials=.")
