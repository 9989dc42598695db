"""Reading of the files that the broker's URL names: PEM files, the token, and the user name and password."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from twisted.logger import Logger

from sampleapp.brokers.kafka.connections.sasl_mechanisms import Credentials, Token
from sampleapp.errors import StartUpError
from sampleapp.files import changeable_by_all, is_readable_by_all, shown_path

_MAX_BYTES: Final = 1024 * 1024

USERNAME_VARIABLE: Final = "SAMPLEAPP_KAFKA_USERNAME"
PASSWORD_VARIABLE: Final = "SAMPLEAPP_KAFKA_PASSWORD"  # noqa: S105 -- its name, not its value

_FORM: Final = "it needs the two lines username=NAME and password=PASSWORD"


# RFC 6750, section 2.1.
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")


class FileReader:
    """
    Reads the files that the options of the broker's URL name.

    It remembers the files that it has warned of, and a digest of each file's content, to detect a change.
    """

    _log = Logger()

    def __init__(self) -> None:
        self._warned: set[Path] = set()
        self._digests: dict[Path, bytes] = {}

    def read(self, path: Path, *, option: str, secret: bool) -> bytes:
        """
        Read one file.

        :param option: the option that names the file, for messages.
        :param secret: true to warn if every user of this machine may read the file.
        :raise StartUpError: it cannot be read, is too large or not a regular file, or every user may
            change it; the message names it and says why.
        """
        named = f"The file {shown_path(path)}, given with {option}="
        try:
            # Opening a pipe would block, and a device may never end.
            if not path.is_file():
                what = "is not a regular file" if path.exists() else "does not exist"
                raise StartUpError(f"{named}, {what}: give the path of one.")
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                content = file.read(_MAX_BYTES + 1)
            fault = changeable_by_all(path, mode)
        except OSError as error:
            raise StartUpError(f"{named}, cannot be read: {error.strerror}.") from error
        if fault is not None:
            raise StartUpError(f"{named}, is not safe to use: {fault}.")
        if len(content) > _MAX_BYTES:
            raise StartUpError(
                f"{named}, is larger than {_MAX_BYTES} bytes: give the path of the right file."
            )
        if secret:
            self._warn_if_open_to_all(path, option=option, mode=mode)
        self._digests[path] = hashlib.sha256(content).digest()
        return content

    def digests(self) -> Mapping[Path, bytes]:
        """Return a digest of each file's content when it was last read."""
        return dict(self._digests)

    def _warn_if_open_to_all(self, path: Path, *, option: str, mode: int) -> None:
        if not is_readable_by_all(mode):
            self._warned.discard(path)
        elif path not in self._warned:
            self._warned.add(path)
            self._log.warn(
                "The file {path}, given with {option}=, holds a secret, and every user of this machine may "
                "read it: remove that permission (chmod o= {path}).",
                path=str(path),
                option=option,
            )


def load_token(path: Path, *, files: FileReader) -> Token:
    """
    Read the token for OAUTHBEARER.

    :raise StartUpError: it is missing or invalid; the message has nothing of it.
    """
    content = files.read(path, option="token_file", secret=True).strip()
    if _TOKEN.fullmatch(content) is None:
        raise StartUpError(
            f"The file {path}, given with token_file=, {'has no token' if content else 'is empty'}: it "
            "must hold one token and nothing else, of letters, digits and the characters - . _ ~ + / =."
        )
    return Token(content.decode())


def load_credentials(path: Path | None, *, environ: Mapping[str, str], files: FileReader) -> Credentials:
    """
    Read the user name and the password.

    :param path: the file that holds them; ``None`` to take them from the environment.
    :raise StartUpError: they are missing or invalid; the message has nothing of them.
    """
    if path is not None:
        return _from_file(path, files)
    username, password = environ.get(USERNAME_VARIABLE), environ.get(PASSWORD_VARIABLE)
    if not username or not password:
        raise StartUpError(
            "The broker's URL has sasl=, but there are no credentials: give credentials=FILE with the two "
            f"lines username=NAME and password=PASSWORD, or set {USERNAME_VARIABLE} and {PASSWORD_VARIABLE}."
        )
    for name, value in ((USERNAME_VARIABLE, username), (PASSWORD_VARIABLE, password)):
        if not _encodable(value):
            raise StartUpError(f"The value of {name} is not UTF-8: set it again.")
    return Credentials(username=username, password=password)


def _from_file(path: Path, files: FileReader) -> Credentials:
    content = files.read(path, option="credentials", secret=True)
    named = f"The file {path}, given with credentials=,"
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        # Not chained: that error holds the content.
        raise StartUpError(f"{named} is not UTF-8: {_FORM}.") from None
    values: dict[str, str] = {}
    # Not splitlines(), which also splits at characters that a password may have.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, value = line.removesuffix("\r").partition("=")
        if name not in {"username", "password"} or not value or "\0" in value:
            raise StartUpError(f"{named} is wrong in line {number}: {_FORM}, without quotation marks.")
        if name in values:
            raise StartUpError(f"{named} has a second {name}= in line {number}: {_FORM}.")
        values[name] = value
    for name in ("username", "password"):
        if name not in values:
            raise StartUpError(f"{named} has no line {name}=: {_FORM}.")
    return Credentials(**values)


def _encodable(value: str) -> bool:
    """Return whether it has a UTF-8 form; bytes of the environment that are not UTF-8 have none (PEP 383)."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
