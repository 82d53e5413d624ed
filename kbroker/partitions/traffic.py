"""Counters of client reads from a replica, and of appends while this node leads it."""

from __future__ import annotations

from kbroker.storage.log import Log


class ReplicaTraffic:
    """Traffic of one replica since the node started.

    LogAppendInfo records and bytes are derived from the log, so an append changes one number only.

    Attributes:
        reads: Number of reads by clients.
        read_bytes: Bytes that clients read.
        appends: Number of batches that were appended as the leader.
    """

    __slots__ = ("_bytes", "_from", "_log", "_records", "appends", "read_bytes", "reads")

    def __init__(self) -> None:
        self.reads = self.read_bytes = self.appends = 0
        self._records = self._bytes = 0
        self._log: Log | None = None
        # Log end offset and appended bytes of the log when counting started.
        self._from = (0, 0)

    @property
    def appended_records(self) -> int:
        """Number of records that were appended as the leader."""
        log = self._log
        return self._records + (0 if log is None else log.log_end_offset - self._from[0])

    @property
    def appended_bytes(self) -> int:
        """Number of bytes that were appended as the leader."""
        log = self._log
        return self._bytes + (0 if log is None else log.appended_bytes - self._from[1])

    def count(self, log: Log) -> None:
        """Count appends to `log` from now on, in addition to earlier ones."""
        self.stop()
        self._log, self._from = log, (log.log_end_offset, log.appended_bytes)

    def stop(self) -> None:
        """Stop counting appends, because this node no longer leads."""
        self._records, self._bytes = self.appended_records, self.appended_bytes
        self._log = None
