"""The secrets of hooks: read from their files, each of which has one."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sampleapp.access.callers_file_tables import Mistake
from sampleapp.access.files import read_file
from sampleapp.access.hooks import Hook
from sampleapp.access.secret_forms import other_kind
from sampleapp.access.signatures import HookKey
from sampleapp.access.toml_lines import Path as TOMLPath

__all__ = ["HookKeys", "load_hook_keys", "secret_paths"]

_MOST_BYTES: Final = 4096
_MOST_PUBLIC_KEYS: Final = 2
"""The old one and the new one of a sender. Each takes 1.5 ms for 1 MiB and signature, also if it is false."""


class HookKeys(tuple[HookKey, ...]):
    """The keys of a hook, each of which is valid. They are not in its ``repr``."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return their number only."""
        return f"<{len(self)} keys>"


def secret_paths(hooks: Mapping[str, Hook], *, directory: Path) -> list[Path]:
    """
    Return the paths of the files with secrets.

    :param directory: for relative paths.
    """
    return [directory / file for hook in hooks.values() for file in hook.secret_files]


def load_hook_keys(hooks: Mapping[str, Hook], *, directory: Path) -> dict[str, HookKeys]:
    """
    Read the secrets of all hooks.

    :param directory: for relative paths.
    :return: by the names of the hooks.
    :raise Mistake: a file cannot be used. The message has nothing of its content, and not its path, which may
        be a secret that was written there by mistake.
    """
    return {name: _load_keys(hook, directory) for name, hook in hooks.items()}


def _load_keys(hook: Hook, directory: Path) -> HookKeys:
    member = ("hooks", hook.name, "secret_files")
    keys = HookKeys(
        _load(hook, directory / file, (*member, index)) for index, file in enumerate(hook.secret_files)
    )
    if sum(not isinstance(key, bytes) for key in keys) > _MOST_PUBLIC_KEYS:
        raise Mistake(member, f"names more than {_MOST_PUBLIC_KEYS} public keys (whpk_); remove old ones")
    return keys


def _load(hook: Hook, path: Path, member: TOMLPath) -> HookKey:
    try:
        secret = read_file(path).rstrip()
    except OSError as error:
        raise Mistake(member, f"names a file that cannot be read: {error.strerror}") from error
    try:
        _check_text(secret)
        return hook.scheme.key_of(secret)
    except ValueError as error:
        raise Mistake(member, f"names a file that {error}") from None


def _check_text(secret: bytes) -> None:
    """:raise ValueError: it is not the secret of any webhook."""
    if secret.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(
            "begins with a byte order mark, which is not a part of the secret; save it without one"
        )
    if not secret:
        raise ValueError("is empty")
    if len(secret) > _MOST_BYTES:
        raise ValueError(f"has more than {_MOST_BYTES} bytes, so it is not the secret of a webhook")
    kind = other_kind(secret)
    if kind is not None:
        raise ValueError(f"has {kind}, and not the secret of a webhook")
    if b"\n" in secret:
        raise ValueError("has several lines; give each secret a file of its own, in secret_files")
    if not secret.decode("utf-8", "surrogateescape").isprintable():
        raise ValueError("is not text in UTF-8, or has characters that cannot be seen")
