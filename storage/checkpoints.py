"""The small text files of a log directory in Kafka's formats: offsets, identity, clean marker.

A checkpoint file has a version line, a line with the number of entries, and one line per entry. All
are written with `Files.write_atomic`, so a reader sees the old or the new content. A damaged file
is treated as missing if that is safe (offsets are lower bounds). For `meta.properties` it is an
error.

Kafka's formats have no checksums. But one wrong digit of a log start would hide records, and one
wrong digit of a topic ID would make a partition look stray. So each file has one more line with the
CRC-32C of the other lines, at a place that Kafka ignores. In offset files the CRC also covers the
file name, because all offset files have the same format. Without the name, recovery points could
be read as log starts, and all records would be dropped. Files without a checksum (from Kafka) and
files whose checksum does not cover the name (from earlier versions) are accepted.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from kbroker.protocol.checksum import crc32c

from .errors import StorageError
from .files import Files
from .naming import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS

logger = logging.getLogger(__name__)

# Version of the directory layout; a directory with a newer version is rejected.
FORMAT_VERSION = 1

Partition = tuple[str, int]


def format_lines(version: int, entries: list[str]) -> bytes:
    """Return the content of a checkpoint file."""
    return "".join(f"{line}\n" for line in (version, len(entries), *entries)).encode()


def parse_lines(data: bytes, version: int) -> list[list[str]] | None:
    """Return the entries of a checkpoint file, split at blanks, or None if it is damaged.

    An empty file has no entries: Kafka creates its checkpoints empty.
    """
    if not data:
        return []
    try:
        text = data.decode().split("\n")
        if int(text[0]) != version or text[-1] != "" or int(text[1]) != len(text) - 3:
            return None
    except (ValueError, IndexError):
        return None
    return [line.split() for line in text[2:-1]]


_CHECKSUM_TOPIC = "__checksum"  # topic of the entry that holds the checksum


def offsets_to_bytes(offsets: Mapping[Partition, int], name: str) -> bytes:
    """Return a checkpoint of one offset per partition: `topic partition offset` on each line.

    Args:
        offsets: The offsets.
        name: Name of the file, which its checksum covers.
    """
    rows = [_offset_row(partition, at) for partition, at in sorted(offsets.items())]
    return _offset_rows_to_bytes(rows, name)


def _offset_row(partition: Partition, offset: int) -> str:
    topic, number = partition
    return f"{topic} {number} {offset}\n"


def _offset_rows_to_bytes(rows: Collection[str], name: str) -> bytes:
    if not rows:
        return format_lines(0, [])
    body = "".join(rows).encode()
    last = _offset_row((_CHECKSUM_TOPIC, 0), crc32c(body, crc32c(name.encode())))
    return b"0\n%d\n%s%s" % (len(rows) + 1, body, last.encode())


def _checksum(rows: Iterable[str]) -> int:
    return crc32c("".join(f"{row}\n" for row in rows).encode())


def offsets_from_bytes(data: bytes, name: str) -> dict[Partition, int] | None:
    """Parse the checkpoint file `name`; None if it is damaged or has another file's checksum."""
    entries = parse_lines(data, 0)
    if entries is None:
        return None
    try:
        offsets = {(topic, int(number)): int(at) for topic, number, at in entries}
    except ValueError:
        return None
    checksum = offsets.pop((_CHECKSUM_TOPIC, 0), None)
    if checksum is not None:
        rows = [" ".join(entry) for entry in entries if entry[0] != _CHECKSUM_TOPIC]
        body = "".join(f"{row}\n" for row in rows).encode()
        if checksum not in (crc32c(body, crc32c(name.encode())), crc32c(body)):
            return None
    return offsets


class Offsets(NamedTuple):
    """The checkpointed offsets of one partition.

    Attributes:
        log_start: Log start offset.
        recovery_point: Offset before which all records were synced.
        high_watermark: High watermark.
        first_dirty: Offset before which the log is compacted, -1 if it never was.
    """

    log_start: int = 0
    recovery_point: int = 0
    high_watermark: int = 0
    first_dirty: int = -1


class _OffsetFile:
    """One offset file, kept as its lines.

    A line is formatted once per change: a directory with 10,000 partitions is checkpointed every
    few seconds even if only one of them is in use. `absent` is the value of a missing line.
    """

    def __init__(self, files: Files, path: str, *, absent: int = 0) -> None:
        self._files = files
        self._path = path
        self.name = path.rpartition("/")[2]
        self._absent = absent
        self._rows: dict[Partition, str] = {}
        self._in_order = True
        self._is_written = True
        self._read()

    def _read(self) -> None:
        try:
            offsets = offsets_from_bytes(self._files.read_bytes(self._path), self.name)
        except FileNotFoundError:
            return
        if offsets is None:
            logger.warning("%s is damaged; its offsets are treated as unknown", self._path)
            self._is_written = False
            self._absent = 0  # assume that every partition had an entry
            return
        self._rows = {partition: _offset_row(partition, at) for partition, at in offsets.items()}

    def get(self, partition: Partition) -> int:
        row = self._rows.get(partition)
        return self._absent if row is None else int(row.rpartition(" ")[2])

    def put(self, partition: Partition, offset: int) -> None:
        row = _offset_row(partition, offset)
        known = self._rows.get(partition)
        if row != known:
            self._rows[partition] = row
            self._in_order = self._in_order and known is not None
            self._is_written = False

    def drop(self, partition: Partition) -> None:
        if self._rows.pop(partition, None) is not None:
            self._is_written = False

    def checksum(self) -> int:
        """Return the CRC-32C of the offsets, independent of their order."""
        return crc32c("".join(sorted(self._rows.values())).encode())

    def mark_changed(self) -> None:
        """Force the next `write` to write the file."""
        self._is_written = False

    def write(self) -> None:
        """Write the file if it changed. Raises StorageError."""
        if self._is_written:
            return
        if not self._in_order:
            self._rows = dict(sorted(self._rows.items()))
            self._in_order = True
        rows = self._rows.values()
        self._files.write_atomic(self._path, _offset_rows_to_bytes(rows, self.name))
        self._is_written = True


class OffsetCheckpoints:
    """The four offset files of a log directory.

    `guard` is held while the files are written, so that a worker thread and the owner can both
    write. Offsets are lower bounds, so a failed write leaves valid content.
    """

    def __init__(
        self,
        files: Files,
        data_dir: str,
        guard: AbstractContextManager[object] | None = None,
    ) -> None:
        self.guard = guard or nullcontext()
        self._log_starts = _OffsetFile(files, f"{data_dir}/{LOG_STARTS}")
        self._recovery_points = _OffsetFile(files, f"{data_dir}/{RECOVERY_POINTS}")
        self._high_watermarks = _OffsetFile(files, f"{data_dir}/{HIGH_WATERMARKS}")
        self._first_dirty = _OffsetFile(files, f"{data_dir}/{CLEANER_OFFSETS}", absent=-1)
        # Log starts come first: segments before them may be missing as soon as they are durable.
        self._all = (
            self._log_starts,
            self._recovery_points,
            self._high_watermarks,
            self._first_dirty,
        )

    def get(self, partition: Partition) -> Offsets:
        """Return the offsets of a partition, `Offsets()` if it is unknown."""
        return Offsets(*(each.get(partition) for each in self._all))

    def checksums(self) -> dict[str, int]:
        """Return a checksum of the content of each file, by file name."""
        return {each.name: each.checksum() for each in self._all}

    def changed_files(self, checksums: Mapping[str, int]) -> list[str]:
        """Return the names of the files that have changed since `checksums` were computed."""
        return [name for name, now in self.checksums().items() if checksums.get(name, now) != now]

    def update(
        self, changes: Iterable[tuple[Partition, Offsets]], *, always_write: bool = False
    ) -> None:
        """Set offsets, and write the files that change.

        Args:
            changes: Partitions and their offsets; iterated with the guard held.
            always_write: Write one file even if nothing changes, to check that the disk is
                writable.

        Raises:
            StorageError: A file cannot be written.
        """
        with self.guard:
            for partition, offsets in changes:
                # As in Kafka, a log start of 0 and a log that was never compacted have no line.
                if offsets.log_start:
                    self._log_starts.put(partition, offsets.log_start)
                else:
                    self._log_starts.drop(partition)
                self._recovery_points.put(partition, offsets.recovery_point)
                self._high_watermarks.put(partition, offsets.high_watermark)
                if offsets.first_dirty >= 0:
                    self._first_dirty.put(partition, offsets.first_dirty)
            if always_write:
                self._recovery_points.mark_changed()
            self._write()

    def forget(self, partitions: Iterable[Partition]) -> None:
        """Remove deleted partitions. Raises StorageError."""
        with self.guard:
            for partition in partitions:
                for each in self._all:
                    each.drop(partition)
            self._write()

    def _write(self) -> None:
        for each in self._all:
            each.write()


def encode_id(value: UUID) -> str:
    """Encode a Kafka ID: 16 bytes in unpadded URL-safe base64 (22 characters)."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_id(text: str) -> UUID:
    """Decode a Kafka ID. Raises ValueError."""
    try:
        return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except binascii.Error as error:
        raise ValueError(f"invalid ID {text!r}") from error


class PartitionMetadata(NamedTuple):
    """The identity of a partition directory, independent of its name.

    `partition` is None in a file from Apache Kafka, which has only the topic ID.
    """

    topic_id: UUID
    partition: int | None

    def belongs_to(self, topic_id: UUID, partition: int) -> bool:
        """Return False if the file names another partition."""
        return self.topic_id == topic_id and self.partition in (None, partition)

    def to_bytes(self) -> bytes:
        """Return the content of `partition.metadata`. Kafka reads its first two lines."""
        rows = ["version: 0", f"topic_id: {encode_id(self.topic_id)}"]
        if self.partition is not None:
            rows.append(f"partition: {self.partition}")
        return "\n".join([*rows, f"checksum: {_checksum(rows)}"]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> PartitionMetadata | None:
        """Parse `partition.metadata`; return None if it is damaged."""
        try:
            rows = [row for row in data.decode().split("\n") if row]
            fields = dict(row.split(": ") for row in rows)
            known = [row for row in rows if not row.startswith("checksum: ")]
            if "checksum" in fields and int(fields["checksum"]) != _checksum(known):
                return None
            if fields["version"] != "0":
                return None
            partition = fields.get("partition")
            return cls(decode_id(fields["topic_id"]), None if partition is None else int(partition))
        except (ValueError, KeyError):
            return None


def clean_marker(checksums: Mapping[str, int]) -> bytes:
    """Return the content of the clean-shutdown marker.

    Kafka reads version and broker epoch, and ignores the rest. The broker epoch is always -1.

    Args:
        checksums: Checksums of the checkpoint files at the shutdown, by file name.
    """
    marker = {"version": 0, "brokerEpoch": -1, "checkpoints": dict(checksums)}
    return json.dumps(marker, separators=(",", ":")).encode()


def checksums_in_marker(data: bytes) -> dict[str, int]:
    """Return the checksums in a clean-shutdown marker; Kafka's marker contains none."""
    try:
        found = json.loads(data)["checkpoints"]
        return {str(name): int(checksum) for name, checksum in found.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The identity of a log directory (meta.properties).

    `cluster_id` and `directory_id` are Kafka IDs (22 characters); `node_id` is the broker ID.
    """

    cluster_id: str
    node_id: int
    directory_id: str

    def _rows(self) -> list[str]:
        return [
            f"node.id={self.node_id}",
            f"directory.id={self.directory_id}",
            "version=1",
            f"cluster.id={self.cluster_id}",
            f"kbroker.format.version={FORMAT_VERSION}",
        ]

    def lines(self) -> str:
        """Return the lines of the file without the checksum, for messages."""
        return ", ".join(self._rows())

    def to_bytes(self) -> bytes:
        rows = self._rows()
        return "".join(f"{row}\n" for row in ("#", *rows, f"checksum={_checksum(rows)}")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> MetaProperties:
        """Parse the file at `path` (used in messages).

        Raises StorageError if it is damaged or has a newer format.
        """
        try:
            rows = [row for row in data.decode().splitlines() if row and not row.startswith("#")]
            fields = dict(row.split("=", 1) for row in rows)
            layout = int(fields.get("kbroker.format.version", "1"))
            meta = cls(fields["cluster.id"], int(fields["node.id"]), fields["directory.id"])
            known = fields["version"] == "1"
            if "checksum" in fields and int(fields["checksum"]) != _checksum(rows[:-1]):
                raise StorageError(
                    f"{path} is damaged (its checksum does not match); restore it from a backup"
                )
        except (ValueError, KeyError) as error:
            raise StorageError(
                f"{path} is damaged ({error!r}); restore it from a backup"
            ) from error
        if not known or layout > FORMAT_VERSION:
            raise StorageError(
                f"{path} is in a newer format; start the kbroker version that wrote it"
            )
        return meta
