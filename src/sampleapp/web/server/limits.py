"""What a client may cost."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

__all__ = ["Limits"]


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of a server's connections."""

    max_body: int = 1024 * 1024
    """The greatest length of a request's body, in bytes; that of one message."""
    max_batch_body: int = 16 * 1024 * 1024
    """The greatest length of a body with many messages, in bytes."""
    header_timeout_s: float = 10.0
    """How long a header may take from its first byte on, in seconds."""
    body_rate: int = 1024
    """How many bytes a second a body has to come with, on average."""
    body_grace_s: float = 10.0
    """From when on that holds: seconds since the end of the header."""
    idle_timeout_s: float = 75.0
    """How long a connection may have no request, in seconds."""
    send_timeout_s: float = 30.0
    """How long the client's system may acknowledge nothing of an answer, in seconds."""
    max_connections: int = 10_000
    """How many connections may be open at once."""
    kept_for_loopback: int = 32
    """So many connections more may be open for clients on this machine."""
    kept_for_admin: int = 0
    """So many connections more may be open to an endpoint for operators, if there is one."""
    max_turned_away: int = 256
    """So many clients at once are told that there is no room for them; the others are only closed."""
    max_waiting: int = 10_000
    """How many requests may wait for what answers them."""

    @property
    def descriptors(self) -> int:
        """How many files connections may have open at once."""
        return self.max_connections + self.kept_for_loopback + self.kept_for_admin + self.max_turned_away

    def within(self, descriptors: int) -> Limits:
        """
        Make limits under which no more files are open than there may be.

        :param descriptors: how many connections may have, all together.
        """
        if self.descriptors <= descriptors:
            return self
        share = max(1, descriptors // 8)
        kept = min(self.kept_for_loopback, share)
        kept_for_admin = min(self.kept_for_admin, share)
        turned_away = min(self.max_turned_away, share)
        left = descriptors - kept - kept_for_admin - turned_away
        return replace(
            self,
            max_connections=min(self.max_connections, max(1, left)),
            kept_for_loopback=kept,
            kept_for_admin=kept_for_admin,
            max_turned_away=turned_away,
        )

    def for_admin(self) -> Limits:
        """Make those of an endpoint for operators: what is kept for it, and the same times."""
        return replace(
            self,
            max_connections=self.kept_for_admin,
            kept_for_loopback=0,
            kept_for_admin=0,
            max_turned_away=0,
        )
