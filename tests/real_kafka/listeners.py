"""Every way in which the one node listens, and who may come in."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import NamedTuple

from tests.real_kafka.configuration import Listener
from tests.real_kafka.versions import (
    ACLS,
    KRAFT,
    PEM,
    SASL_WITH_CERTIFICATES,
    SCRAM,
    parsed,
)
from tests.support.certificates import Authority, Issued
from tests.support.secrets import secret

__all__ = [
    "PASSWORD",
    "PROXIED",
    "SESSION_LIFETIME_S",
    "USER",
    "Certificates",
    "authorizer",
    "listeners",
    "unsecured_token",
    "write_credentials",
]

USER = "gateway"
PASSWORD = secret("Xyzzy-42-do-not-show", "a password")

PROXIED = Listener(name="PROXIED", is_behind_proxy=True)
"""For a `DroppingProxy` on its other port."""

SESSION_LIFETIME_S = 6
"""After which a connection that came in with SCRAM-SHA-256, or with a token, is closed (KIP-368).

The service replaces it in the last fifth, which is longer than a process stands still on a busy machine.
"""


def authorizer(version: str) -> dict[str, str]:
    """Whoever comes over a plain listener is an administrator, and what no rule speaks of is open to all."""
    if not ACLS.is_in(version):
        return {}
    if KRAFT.is_in(version):
        name = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    elif parsed(version) >= (2, 4):
        name = "kafka.security.authorizer.AclAuthorizer"
    else:
        name = "kafka.security.auth.SimpleAclAuthorizer"
    return {
        "authorizer.class.name": name,
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
    }


_LOGIN = "org.apache.kafka.common.security"
_PLAIN = {
    "plain.sasl.jaas.config": f'{_LOGIN}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
}
_SCRAM = {
    f"scram-sha-{bits}.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;" for bits in (256, 512)
}

_TOKENS = {
    # The nodes need a token themselves, of which nothing is made.
    "oauthbearer.sasl.jaas.config": (
        f'{_LOGIN}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="node";'
    ),
    "oauthbearer.connections.max.reauth.ms": str(SESSION_LIFETIME_S * 1000),
}


def unsecured_token(*, until_s: float, user: str = USER) -> str:
    """
    A JSON Web Token without a signature (RFC 7515, appendix A.5), as Kafka takes it when told no better.

    :param until_s: when it expires, in seconds since 1970.
    """
    parts = {"alg": "none"}, {"sub": user, "iat": time.time(), "exp": until_s}
    encoded = (base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts)
    return secret(".".join((*encoded, "")), "a token for Kafka")


def write_credentials(directory: Path, *, user: str = USER, password: str = PASSWORD) -> Path:
    """The file that ``credentials=`` names."""
    path = directory / "credentials"
    path.write_text(f"username={user}\npassword={password}\n")
    path.chmod(0o600)
    return path


class Certificates(NamedTuple):
    """What the brokers have, and what clients may have."""

    authority: Authority
    """Has signed all but the last."""
    ca: Path
    other_ca: Path
    server: Issued
    other_name: Issued
    expired: Issued
    client: Issued
    stranger: Issued

    @classmethod
    def write(cls, directory: Path) -> Certificates:
        ours, other = Authority(directory), Authority(directory, "other-ca")
        return cls(
            authority=ours,
            ca=ours.certificate,
            other_ca=other.certificate,
            server=ours.server(),
            other_name=ours.server("other-name", dns=["kafka.example"], ip=[]),
            expired=ours.expired(),
            client=ours.client(),
            stranger=other.client("stranger"),
        )


def listeners(certificates: Certificates, version: str) -> list[Listener]:
    """Those that a version can have, beside the plain one."""

    def tls(issued: Issued) -> dict[str, str]:
        # Not as files: Kafka 2.7 and 2.8 take a key from a file only if it has a password.
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": issued.key.read_text(),
            "ssl.keystore.certificate.chain": issued.certificate.read_text(),
        }

    verifying = {
        "ssl.client.auth": "required",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.ca),
    }
    mechanisms = ["PLAIN", *(["SCRAM-SHA-256", "SCRAM-SHA-512"] if SCRAM.is_in(version) else [])]
    all_mechanisms = {
        "sasl.enabled.mechanisms": ",".join(mechanisms),
        "scram-sha-256.connections.max.reauth.ms": str(SESSION_LIFETIME_S * 1000),
    }
    one_mechanism = {"sasl.enabled.mechanisms": "SCRAM-SHA-512"}
    good = tls(certificates.server)
    found = [
        PROXIED,
        Listener(name="SASL", protocol="SASL_PLAINTEXT", settings={**all_mechanisms, **_PLAIN, **_SCRAM}),
        Listener(
            name="TOKEN",
            protocol="SASL_PLAINTEXT",
            settings={"sasl.enabled.mechanisms": "OAUTHBEARER", **_TOKENS},
        ),
    ]
    if PEM.is_in(version):
        found += [
            Listener(name="TLS", protocol="SSL", settings=good),
            Listener(name="MTLS", protocol="SSL", settings={**good, **verifying}),
            Listener(name="OTHERNAME", protocol="SSL", settings=tls(certificates.other_name)),
            Listener(name="EXPIRED", protocol="SSL", settings=tls(certificates.expired)),
        ]
    if SASL_WITH_CERTIFICATES.is_in(version) and SCRAM.is_in(version):
        sessions = {key: value for key, value in all_mechanisms.items() if key.startswith("scram")}
        found.append(
            Listener(
                name="MTLSSASL",
                protocol="SASL_SSL",
                settings={
                    **good,
                    **verifying,
                    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                    **sessions,
                    **_SCRAM,
                },
            )
        )
    if PEM.is_in(version) and SCRAM.is_in(version):
        found.append(
            Listener(name="SASLTLS", protocol="SASL_SSL", settings={**good, **one_mechanism, **_SCRAM})
        )
    return found
