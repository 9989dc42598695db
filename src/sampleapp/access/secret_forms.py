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
    rb"(?:pk|rk|sk)_(?:live|test)_": "a key of an API",
    rb"\A\s*eyJ[\w-]*\.[\w-]+\.[\w-]*\Z": "a JSON Web Token",
    re.escape(PREFIX).encode("ascii"): "the token of a caller",
    # Neither base64 nor hexadecimal digits have a full stop.
    rb"\A\s*(?:(?:file:)?[~\w./-]*/[\w-]*\.[\w.-]+|(?:file:|~)?/+(?:etc|home|run|var)/[\w./-]+)\Z": "a path",
}
"""By regular expressions that are searched for."""


def other_kind(text: bytes) -> str | None:
    """Return the kind of a text that is not the secret of a webhook; ``None`` if it can be one."""
    for pattern, kind in _KINDS.items():
        if re.search(pattern, text, re.DOTALL):
            return kind
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        if isinstance(msgspec.json.decode(text), dict | list):
            return "JSON, such as a JSON Web Key"
    for decode in (base64.b64decode, binascii.unhexlify):
        with suppress(ValueError):
            if _is_der(decode(text)):
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
