"""Reading the files that a configuration names, and credentials, with errors that say what to do."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from twisted.logger import Logger

from sampleapp.brokers.kafka.connections.sasl import Credentials, Token
from sampleapp.errors import StartUpError

__all__ = ["PASSWORD_VARIABLE", "USERNAME_VARIABLE", "FileReader", "load_credentials", "load_token"]

_MAX_BYTES: Final = 1024 * 1024

USERNAME_VARIABLE: Final = "SAMPLEAPP_KAFKA_USERNAME"
PASSWORD_VARIABLE: Final = "SAMPLEAPP_KAFKA_PASSWORD"  # noqa: S105 -- its name, not its value

_FORM: Final = "it has the two lines username=NAME and password=PASSWORD"


# RFC 6750, section 2.1.
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")


class FileReader:
    """
    Reads the files that the options of the broker's URL name, and remembers what it needs of the last time.

    That is what there is to say about a file only once, and how to tell whether its content is another one.
    """

    _log = Logger()

    def __init__(self) -> None:
        self._warned: set[Path] = set()
        self._digests: dict[Path, bytes] = {}

    def read(self, path: Path, *, option: str, secret: bool) -> bytes:
        """
        Read one file.

        :param secret: whether it holds a secret; a file that everybody may read is then worth a warning.
        :raise StartUpError: it cannot be read, or cannot be such a file; the message names it and says why.
        """
        named = f"The file {path}, given with {option}="
        try:
            # Not a device or a pipe, which could be read for ever, and opening would wait for.
            if not path.is_file():
                what = "is not a regular file" if path.exists() else "does not exist"
                raise StartUpError(f"{named}, {what}: give the path of one.")
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                content = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise StartUpError(f"{named}, cannot be read: {error.strerror}.") from error
        if len(content) > _MAX_BYTES:
            raise StartUpError(f"{named}, has more than {_MAX_BYTES} bytes: it cannot be the right one.")
        if secret:
            self._warn_if_open_to_all(path, option=option, mode=mode)
        self._digests[path] = hashlib.sha256(content).digest()
        return content

    def contents(self) -> Mapping[Path, bytes]:
        """Return a digest of what each file had in it when it was last read."""
        return dict(self._digests)

    def _warn_if_open_to_all(self, path: Path, *, option: str, mode: int) -> None:
        if not mode & stat.S_IROTH:
            self._warned.discard(path)
        elif path not in self._warned:
            self._warned.add(path)
            self._log.warn(
                "The file {path}, given with {option}=, holds a secret, and every user of this machine may "
                "read it: take that right away (chmod o= {path}).",
                path=str(path),
                option=option,
            )


def load_token(path: Path, *, files: FileReader) -> Token:
    """
    Read the token for OAUTHBEARER.

    :raise StartUpError: it is not there, or cannot be one; nothing of it is repeated.
    """
    content = files.read(path, option="token_file", secret=True).strip()
    if _TOKEN.fullmatch(content) is None:
        raise StartUpError(
            f"The file {path}, given with token_file=, {'has no token' if content else 'is empty'}: it has "
            "one token and nothing else, of letters, digits and the characters - . _ ~ + / =."
        )
    return Token(content.decode())


def load_credentials(path: Path | None, *, environ: Mapping[str, str], files: FileReader) -> Credentials:
    """
    Read the credentials.

    :param path: the file that holds them; with ``None`` the environment does.
    :raise StartUpError: they are not there, or not in the right form; nothing of them is repeated.
    """
    if path is not None:
        return _from_file(path, files)
    username, password = environ.get(USERNAME_VARIABLE), environ.get(PASSWORD_VARIABLE)
    if not username or not password:
        raise StartUpError(
            "The broker's URL has sasl=, but there are no credentials: give credentials=FILE, where "
            f"{_FORM}, or set {USERNAME_VARIABLE} and {PASSWORD_VARIABLE}."
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
    # Not splitlines, which also splits at what may be a part of a password.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, value = line.removesuffix("\r").partition("=")
        if name not in {"username", "password"} or not value or "\0" in value:
            raise StartUpError(f"{named} is of another form in line {number}: {_FORM}, without any quotes.")
        if name in values:
            raise StartUpError(f"{named} has a second {name}= in line {number}: {_FORM}.")
        values[name] = value
    for name in ("username", "password"):
        if name not in values:
            raise StartUpError(f"{named} has no line {name}=: {_FORM}.")
    return Credentials(**values)


def _encodable(value: str) -> bool:
    """Whether it has a UTF-8 form; what is not UTF-8 in the environment has none (PEP 383)."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
