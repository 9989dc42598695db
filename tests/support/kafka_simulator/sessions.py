"""The fetch sessions of one broker (KIP-227)."""

from __future__ import annotations

from sampleapp.brokers.kafka.error_code import ErrorCode

__all__ = ["Sessions"]


class Sessions:
    """The sessions of a broker, and its errors for requests that do not fit."""

    def __init__(self):
        self._open = {}
        self._begun = 0
        self.errors = []
        """The errors for the next requests within a session."""

    def begin(self, request, *, has_sessions):
        """:return: the session as it is with this request, or Kafka's error code."""
        if request.session_epoch == 0:
            self._open.pop(request.session_id, None)
            session = Session(0)
            if has_sessions:
                self._begun += 1
                session = self._open[100 + self._begun] = Session(100 + self._begun)
        else:
            session = self._open.get(request.session_id)
            if self.errors:
                return self.errors.pop(0)
            if session is None:
                return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            if request.session_epoch != session.next_epoch:
                return ErrorCode.INVALID_FETCH_SESSION_EPOCH
            if request.uses_ids is not session.uses_ids:
                return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.apply(request)
        return session

    def forget(self):
        """As when a broker has started, or needs the room for others."""
        self._open.clear()


class Session:
    def __init__(self, number):
        self.id = number
        self.next_epoch = 0
        self.uses_ids = True
        self.offsets = {}
        """By topic, its id and the number of the partition."""
        self.leader_epochs = {}
        """Those that the requests have named, by topic and number."""
        self._told = {}

    def apply(self, request):
        self.next_epoch += 1
        self.uses_ids = request.uses_ids
        self.leader_epochs |= request.leader_epochs
        for topic, partitions in request.topics:
            topic_id = request.topic_ids.get(topic) if request.uses_ids else None
            for number, offset in partitions:
                key = topic, topic_id, number
                if key not in self.offsets:
                    self._told.pop(key, None)
                self.offsets[key] = offset
        for topic, topic_id, numbers in request.forgotten:
            for number in numbers:
                self.offsets.pop((topic, topic_id if self.uses_ids else None, number), None)

    def news(self, answer):
        """Return the partitions with records, errors, or other ends than before."""
        found = []
        for key, each in zip(list(self.offsets), answer, strict=True):
            state = each.high_watermark, each.last_stable_offset, each.log_start_offset
            if each.error or each.records or each.diverging is not None or self._told.get(key) != state:
                found.append(each)
            self._told[key] = None if each.error else state
            if each.records and self.id:
                # So that others come first next time.
                self.offsets[key] = self.offsets.pop(key)
        # Without a session, everything is told.
        return found if self.id else list(answer)
