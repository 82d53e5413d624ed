"""What can go wrong with stored bytes, as errors that a client's request can be answered with."""

from __future__ import annotations

import errno
from uuid import UUID

from kbroker.protocol.errors import ErrorCode, KafkaError


class StorageError(KafkaError):
    """The disk (or the memory limit) refused; a client is answered KAFKA_STORAGE_ERROR."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    message: str

    def __init__(self, message: str) -> None:
        super().__init__(self.code, message)


class WriteRefusedError(StorageError):
    """The system takes nothing more in a directory: no room, read-only, broken.

    What else is written there will meet it too; it may be over later.
    """


class SyncFailedError(StorageError):
    """A file or directory could not be made durable: what of it is on the disk is not known.

    Nobody tries again: the system may have dropped the bytes, and would report success. The data
    directory goes offline, whatever the file was for.
    """

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


class ForeignLogError(StorageError):
    """The directory of a partition holds another partition: nothing in it is opened or changed.

    Attributes:
        directory: Path of the directory.
        topic_id: Topic id that the directory holds.
        partition: Partition number that the directory holds; None if it says none.
    """

    def __init__(
        self, message: str, *, directory: str, topic_id: UUID, partition: int | None
    ) -> None:
        super().__init__(message)
        self.directory = directory
        self.topic_id = topic_id
        self.partition = partition


READ_FAILURES = frozenset(
    getattr(errno, name) for name in ("EIO", "EBADMSG", "EUCLEAN") if hasattr(errno, name)
)
"""Errors of the system that say that a disk cannot read what it holds."""


class LostBytesError(StorageError):
    """A file does not return the bytes that were written. The log that it belongs to goes offline.

    Attributes:
        cause: What is wrong with the file.
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
    """The disk cannot read a file."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"cannot read {path}: {reason}",
            "The partition or data directory that it belongs to is offline and its files are "
            "untouched; check the disk or restore the file from a copy, then restart the node. "
            "Other replicas can serve until then",
            path,
        )


class CorruptLogError(LostBytesError):
    """Bytes that were safely on disk are not what was written: the partition goes offline.

    Nothing is cut and nothing is served. The message names the file, the position in it and the
    command that keeps what is readable.
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        directory, _, name = path.rpartition("/")
        super().__init__(
            f"{path} is damaged at byte {position} ({reason})",
            "The partition is offline and its files are untouched; restore "
            f"{name} from a copy, or keep what is readable before the damage with: "
            f"kbroker log repair {directory}",
            path,
        )
        self.position = position
        self.reason = reason
