"""How far a replay came, in a file: the same command goes on from it, and doubles nothing.

The file says where each stream of the source stood at a moment when everything before was written,
how many records each partition of the target had got by then (the producer's sequence numbers), and
where the target ended. It may be older than the truth. A run that goes on looks through the target
from there for batches of its producer id, whose sequence numbers tell how many records were written
since; those are the next ones of the source, in the same order, and are left out. It goes on under
the same producer id, so that even a request of the earlier run that arrives late is refused.
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
from kbroker.client.consumer import reading
from kbroker.client.errors import ClientError
from kbroker.client.list_offsets import EARLIEST, LATEST, offsets_at
from kbroker.client.producer import SEQUENCE_MASK, Identity, Written
from kbroker.client.topics import Partition
from kbroker.text.documents import read_json

VERSION = 1


@dataclass(slots=True)
class Journal:
    """The state of a replay.

    `asked` is what the command said, `source` what was found out about the source, `sequences` and
    `offsets` are by partition of the target. Partitions are texts, as keys are in JSON.
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

    def save(self, path: Path) -> None:
        """Put it in a file, whole or not at all. Raises OSError."""
        beside = path.with_name(path.name + ".new")
        with beside.open("w", encoding="utf-8") as file:
            json.dump(asdict(self), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)

    def note(self, written: list[Written]) -> None:
        """Take note of what the target has got."""
        for topic_partition, records, base_offset, header in written:
            index = str(topic_partition[1])
            self.sequences[index] = (header.last_sequence + 1) & SEQUENCE_MASK
            if base_offset >= 0:
                self.offsets[index] = base_offset + len(records)


@contextmanager
def locked(path: Path | None) -> Iterator[None]:
    """Keep other replays from a journal, if there is one. Raises ClientError when one is at it."""
    if path is None:
        yield
        return
    try:
        with FileLock(f"{path}.lock", timeout=0):
            yield
    except Timeout:
        raise ClientError(f"another replay is at work with {path}") from None


def load(path: Path, asked: dict[str, object]) -> Journal | None:
    """What an earlier run left; None where there is no file.

    Raises ClientError for a file of another replay, or of none.
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
            f"{path} is no progress of a replay ({error}); name another file with --progress"
        ) from None
    differs = sorted(name for name in asked if journal.asked.get(name) != asked[name])
    if differs:
        name = differs[0]
        raise ClientError(
            f"{path} is of another replay: {name} was {journal.asked.get(name)!r} there, not "
            f"{asked[name]!r}; name another file with --progress, or delete this one"
        )
    return journal


async def ends_of(cluster: ClusterClient, topic: str, count: int) -> dict[str, int]:
    """Where the partitions of the target end. Raises ClientError."""
    listed = [(topic, index) for index in range(count)]
    ends = await offsets_at(cluster, listed, LATEST)
    return {str(index): ends[topic, index] for index in range(count)}


async def go_on(
    cluster: ClusterClient, topic: str, journal: Journal
) -> tuple[Identity, dict[int, int]]:
    """The identity to go on with, and how many records each partition has got since the file.

    From here on the journal is of the target as it is now, and belongs to the source's positions when
    those records have come again. Raises ClientError when the target is not the one that was written.
    """
    listed = [(topic, int(index)) for index in journal.offsets]
    starts = await offsets_at(cluster, listed, EARLIEST)
    ends = await offsets_at(cluster, listed, LATEST)
    ranges: dict[Partition, tuple[int, int]] = {}
    for one in listed:
        seen = journal.offsets[str(one[1])]
        if seen > ends[one]:
            raise ClientError(
                f"partition {one[1]} of {topic} ends at {ends[one]}, before what was written to it: "
                "it was made anew or lost records; delete the --progress file to begin anew"
            )
        if max(seen, starts[one]) < ends[one]:
            ranges[one] = max(seen, starts[one]), ends[one]
    identity = Identity(journal.producer_id, journal.epoch)
    identity.sequences = {
        (topic, int(index)): next_one for index, next_one in journal.sequences.items()
    }
    there: dict[int, int] = {}
    async with reading(cluster, ranges) as channel:
        async for found in channel:
            for read in found:
                if read.batch.producer_id == identity.producer_id:
                    next_one = (read.batch.last_sequence + 1) & SEQUENCE_MASK
                    identity.sequences[read.partition] = next_one
    for (_, index), next_one in identity.sequences.items():
        there[index] = (next_one - journal.sequences.get(str(index), 0)) & SEQUENCE_MASK
        journal.sequences[str(index)] = next_one
    journal.offsets = {str(index): ends[topic, index] for _, index in listed}
    return identity, there
