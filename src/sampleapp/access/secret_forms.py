"""
The forms of keys and other credentials that are not the secret of a webhook.

With a public key as the secret, everyone who knows the key could sign.
"""

from __future__ import annotations

import base64
import binascii
import re
from contextlib import suppress
from typing import Final

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_der_private_key, load_der_public_key
from cryptography.x509 import load_der_x509_certificate

from sampleapp.access.tokens import PREFIX

__all__ = ["other_kind"]

_KINDS: Final = {
    # Standard Webhooks 1.0.
    rb"whsk_": "the private key of a sender; write its public key (whpk_) there instead",
    rb".whpk_": "a public key (whpk_) with other text in front of it",
    rb"-----BEGIN ": "a key or a certificate in PEM",
    rb"(?:ssh-|ecdsa-sha2-|sk-ssh-|sk-ecdsa-)\S+ AAAA": "a key of SSH",
    # Its form on the wire in base64: the length and the name of the algorithm come first (RFC 4253).
    rb"\A\s*AAAA(?:[CE]3NzaC1|B3NzaC1)": "a key of SSH",
    rb"\A\s*eyJ[\w-]*\.[\w-]+\.[\w-]*\Z": "a JSON Web Token",
    re.escape(PREFIX).encode("ascii"): "the token of a caller",
    # Secrets in base64 may have slashes.
    rb"\A\s*(?:file:)?[~\w./-]*/[\w-]+\.(?:env|json|key|pem|secret|token|toml|txt|ya?ml)\Z": "a path",
    rb"\A\s*(?:file:|~)?/+(?:etc|home|run|var)/[\w./-]+\Z": "a path",
}
"""By regular expressions that are searched for."""
_FROM_BASE64URL: Final = bytes.maketrans(b"-_", b"+/")


def other_kind(text: bytes) -> str | None:
    """Return the kind of a text that is not the secret of a webhook; ``None`` if it can be one."""
    for pattern, kind in _KINDS.items():
        if re.search(pattern, text, re.DOTALL):
            return kind
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        if isinstance(msgspec.json.decode(text), dict | list):
            return "JSON, such as a JSON Web Key"
    plain = text.translate(_FROM_BASE64URL).rstrip(b"=")
    for decode, digits in ((base64.b64decode, plain + b"=" * (-len(plain) % 4)), (binascii.unhexlify, text)):
        with suppress(ValueError):
            if _is_der(decode(digits)):
                return "a key or a certificate in DER"
    return None


def _is_der(data: bytes) -> bool:
    for load in (load_der_public_key, load_der_x509_certificate):
        with suppress(ValueError, UnsupportedAlgorithm):
            load(data)
            return True
    with suppress(ValueError, UnsupportedAlgorithm):
        # TypeError: it needs a password.
        with suppress(TypeError):
            load_der_private_key(data, None)
        return True
    return False
