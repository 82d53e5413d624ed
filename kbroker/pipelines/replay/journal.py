"""Progress file of a replay, with which the same command resumes without duplicates.

For each source stream, the file has the position up to which all records are written. For each
target partition, it has the next sequence number of the producer and the end offset.

The file may be out of date. A resumed run therefore scans the target from these end offsets for
batches of its producer ID. Their sequence numbers show how many of the source's next records are
already written; the run skips those records. It keeps the producer ID, so that the broker rejects
late requests of the earlier run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import reading_batches
from kbroker.client.errors import ClientError
from kbroker.client.list_offsets import EARLIEST, LATEST, offsets_at
from kbroker.client.producer import SEQUENCE_MASK, Identity, Written
from kbroker.client.topics import Partition
from kbroker.pipelines.topic_ids import check_topic_id
from kbroker.protocol.records import iter_headers
from kbroker.text.documents import read_json

VERSION = 1


@dataclass(slots=True)
class Journal:
    """State of a replay.

    Partitions are strings, as JSON keys are.

    Attributes:
        asked: Options of the command.
        source: Properties of the source determined by the first run.
        producer_id: Producer ID of all runs.
        epoch: Producer epoch.
        offsets: End offset of each target partition.
        sequences: Next sequence number of each target partition.
        positions: Position of each source stream up to which everything is written.
        shift_ms: Milliseconds added to timestamps.
        finished: True if all records are written.
        version: Format version.
        target_id: Topic ID of the target; empty if unknown.
    """

    asked: dict[str, object]
    source: dict[str, object]
    producer_id: int
    epoch: int
    offsets: dict[str, int]
    sequences: dict[str, int] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    shift_ms: int | None = None
    finished: bool = False
    version: int = VERSION
    target_id: str = ""

    def save(self, path: Path) -> None:
        """Write the journal to a file atomically. Raises OSError."""
        temporary = path.with_name(path.name + ".new")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(asdict(self), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def record_write(self, written: list[Written]) -> None:
        """Update sequences and offsets after a write."""
        for topic_partition, records, base_offset, header in written:
            index = str(topic_partition[1])
            self.sequences[index] = (header.last_sequence + 1) & SEQUENCE_MASK
            if base_offset >= 0:
                self.offsets[index] = base_offset + len(records)


@contextmanager
def locked(path: Path | None) -> Iterator[None]:
    """Lock a journal file, if given. Raises ClientError if another replay holds the lock."""
    if path is None:
        yield
        return
    try:
        with FileLock(f"{path}.lock", timeout=0):
            yield
    except Timeout:
        raise ClientError(f"another replay is using {path}") from None


def load(path: Path, asked: dict[str, object]) -> Journal | None:
    """Return the journal of an earlier run, or None if the file does not exist.

    Raises:
        ClientError: The file is not a journal, or belongs to a replay with other options.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        fields: Any = read_json(text)
        if fields["version"] != VERSION:
            raise ValueError(f"version {fields['version']}")
        journal = Journal(**fields)
    except (ValueError, TypeError, KeyError) as error:
        raise ClientError(
            f"{path} is not a progress file of a replay ({error}); name another file with "
            "--progress"
        ) from None
    differs = sorted(name for name in asked if journal.asked.get(name) != asked[name])
    if differs:
        name = differs[0]
        raise ClientError(
            f"{path} belongs to another replay: its {name} is {journal.asked.get(name)!r}, not "
            f"{asked[name]!r}; name another file with --progress, or delete this one"
        )
    return journal


async def ends_of(cluster: ClusterClient, topic: str, count: int) -> dict[str, int]:
    """Return the end offsets of the target's partitions. Raises ClientError."""
    listed = [(topic, index) for index in range(count)]
    ends = await offsets_at(cluster, listed, LATEST)
    return {str(index): ends[topic, index] for index in range(count)}


async def resume(
    cluster: ClusterClient, topic: str, journal: Journal
) -> tuple[Identity, dict[int, int]]:
    """Return the producer identity, and the records per partition written since the save.

    The journal then describes the current target. It matches the source's positions again once
    these records have been read.

    Raises:
        ClientError: The target is not the topic that the earlier run wrote.
    """
    await check_topic_id(cluster, topic, journal.target_id)
    listed = [(topic, int(index)) for index in journal.offsets]
    starts = await offsets_at(cluster, listed, EARLIEST)
    ends = await offsets_at(cluster, listed, LATEST)
    ranges: dict[Partition, tuple[int, int]] = {}
    for one in listed:
        seen = journal.offsets[str(one[1])]
        if seen > ends[one]:
            raise ClientError(
                f"partition {one[1]} of {topic} ends at {ends[one]}, before the records written to "
                "it: the topic was created again or lost records; to start over, delete the "
                "--progress file"
            )
        if max(seen, starts[one]) < ends[one]:
            ranges[one] = max(seen, starts[one]), ends[one]
    identity = Identity(journal.producer_id, journal.epoch)
    identity.sequences = {
        (topic, int(index)): next_one for index, next_one in journal.sequences.items()
    }
    already_written: dict[int, int] = {}
    # Read headers: compaction keeps a producer's last batch, but possibly none of its records.
    async with reading_batches(cluster, ranges) as channel:
        async for fetched in channel:
            for _, header in iter_headers(fetched.batches):
                is_new = header.base_offset >= ranges[fetched.partition][0]
                if is_new and header.producer_id == identity.producer_id:
                    next_one = (header.last_sequence + 1) & SEQUENCE_MASK
                    identity.sequences[fetched.partition] = next_one
    for (_, index), next_one in identity.sequences.items():
        already_written[index] = (next_one - journal.sequences.get(str(index), 0)) & SEQUENCE_MASK
        journal.sequences[str(index)] = next_one
    journal.offsets = {str(index): ends[topic, index] for _, index in listed}
    return identity, already_written
