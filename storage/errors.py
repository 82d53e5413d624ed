"""Exceptions of the log store, with the Kafka error codes for responses."""

from __future__ import annotations

import errno
from uuid import UUID

from kbroker.protocol.errors import ErrorCode, KafkaError


class StorageError(KafkaError):
    """A failed disk operation or an exceeded memory limit; clients get KAFKA_STORAGE_ERROR."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    message: str

    def __init__(self, message: str) -> None:
        super().__init__(self.code, message)


class WriteRefusedError(StorageError):
    """A failed write: disk full, read-only or broken.

    Other writes to the directory will fail too. The condition may be temporary.
    """


class SyncFailedError(StorageError):
    """A failed sync: it is unknown which bytes of the file or directory are on the disk.

    A retry is useless: the kernel may have dropped the bytes and would report success. The log
    directory goes offline, regardless of the purpose of the file.
    """

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


class ForeignLogError(StorageError):
    """A partition directory that holds another partition: it is neither opened nor changed.

    Attributes:
        directory: Path of the directory.
        topic_id: Topic ID that the directory holds.
        partition: Partition number that the directory holds, or None if it is not recorded.
    """

    def __init__(
        self, message: str, *, directory: str, topic_id: UUID, partition: int | None
    ) -> None:
        super().__init__(message)
        self.directory = directory
        self.topic_id = topic_id
        self.partition = partition


# Error numbers of a disk that cannot read stored data.
READ_FAILURES = frozenset(
    getattr(errno, name) for name in ("EIO", "EBADMSG", "EUCLEAN") if hasattr(errno, name)
)


class LostBytesError(StorageError):
    """Lost data: a file does not return the bytes that were written. Its log goes offline.

    Attributes:
        cause: Problem with the file.
        path: Path of the file.
    """

    def __init__(self, cause: str, consequence: str, path: str) -> None:
        super().__init__(f"{cause}. {consequence}")
        self.cause = cause
        self.path = path

    def is_below(self, directory: str) -> bool:
        """Return True if the file is in a directory or in one of its subdirectories."""
        return self.path.startswith(f"{directory}/")


class UnreadableError(LostBytesError):
    """A file that the disk cannot read."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"cannot read {path}: {reason}",
            "The partition or log directory that it belongs to is offline and its files are "
            "unchanged; check the disk or restore the file from a backup, then restart the node. "
            "Other replicas can serve until then",
            path,
        )


class CorruptLogError(LostBytesError):
    """Corrupt data that was durable; the partition goes offline.

    Nothing is truncated or served. The message names the file, the position, and the command that
    keeps the readable records.
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        directory, _, name = path.rpartition("/")
        super().__init__(
            f"{path} is damaged at byte {position} ({reason})",
            "The partition is offline and its files are unchanged; restore "
            f"{name} from a backup, or keep the records before the damage with: "
            f"kbroker log repair {directory}",
            path,
        )
        self.position = position
        self.reason = reason
