"""Atomic commit of a batch to the lake: a killed process leaves no duplicate and no partial data.

    1  Spark writes the batch's files to staging/           emptied before a repeated batch

    2  the files are synced to disk
    3  journal.json maps staged files to their targets      from here on the batch is committed
    4  each file is moved to its target (one rename each)
    5  the directories are synced to disk
    6  journal.json records that no moves are left

If the process is killed before step 3, the batch is written again. After step 3, the next start
completes the moves. If Spark then repeats the batch, it is skipped, so a compaction of the topic in
between has no effect. Every move is idempotent.

The journal also counts the records of each partition in the lake; `check` compares these counts.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from kbroker.text.below import below

from .fields import PARTITION
from .layout import DATE, HOUR, POISON, PRIVATE, RECORD, file_name

# Names of the files with unfinished moves and with an unfinished merge.
JOURNAL, MERGE = "journal.json", "merge.json"
_SYNCING_THREADS = 8


class LakeError(Exception):
    """The lake cannot be written or read; the message names the next action."""


@dataclass(frozen=True)
class Counts:
    """Number of archived and of unreadable ("poison") records."""

    records: int = 0
    poison: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.records + other.records, self.poison + other.poison)


@dataclass(frozen=True)
class Journal:
    """The last committed batch."""

    batch: int = -1
    # ID of Spark's query, stored in its checkpoint. Another query has other batches.
    checkpoint: str = ""
    # Pending moves: source and target, relative to the lake.
    moves: list[tuple[str, str]] = field(default_factory=list)
    # By partition, including this batch.
    totals: dict[int, Counts] = field(default_factory=dict)
    # End offsets of the batch, see `planned_offsets`; empty if unknown.
    offsets: str = ""

    @classmethod
    def read(cls, path: Path) -> Journal:
        """Read a journal file; return an empty journal if it does not exist."""
        try:
            saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        totals = {int(number): Counts(**counts) for number, counts in saved["totals"].items()}
        moves = [(source, target) for source, target in saved["moves"]]
        return cls(saved["batch"], saved["checkpoint"], moves, totals, saved.get("offsets", ""))

    def write(self, path: Path) -> None:
        """Replace the journal file atomically."""
        write_durably(path, json.dumps(asdict(self)))


@dataclass(frozen=True)
class Staged:
    """A file written by Spark and its target."""

    path: Path
    target: Path
    partition: int
    counts: Counts


class Commits:
    """Committer of one topic's batches. Only one process at a time may use it."""

    def __init__(self, lake: Path, topic: str) -> None:
        """Complete a commit that an earlier process did not finish."""
        self._lake, self._topic = lake, topic
        self.directory = lake / PRIVATE / topic
        self.journal = Journal.read(self.directory / JOURNAL)
        self._finish()

    def begin(self, batch: int, checkpoint: str, offsets: str = "") -> bool:
        """Prepare staging for a batch; return False if the batch is already committed.

        Args:
            batch: Number of the batch.
            checkpoint: ID of Spark's query.
            offsets: End offsets of the batch, see `planned_offsets`; empty if unknown.

        Returns:
            False if the batch must be skipped.

        Raises:
            LakeError: The lake has later batches, or batches of another or an older checkpoint.
        """
        known = self.journal
        if known.batch >= 0 and (known.checkpoint != checkpoint or known.batch > batch):
            raise LakeError(
                f"{self._lake} has batch {known.batch} of {self._topic} from another checkpoint "
                f"than {self.directory / 'checkpoint'}, which is at batch {batch}: restore the old "
                "checkpoint, or archive to a new directory"
            )
        if known.batch == batch:
            if known.offsets and offsets and known.offsets != offsets:
                raise LakeError(
                    f"{self._lake} has batch {batch} of {self._topic} up to the offsets "
                    f"{known.offsets}, but {self.directory / 'checkpoint'} has {offsets}, so it is "
                    "older than the lake: restore the newer checkpoint, or archive to a new directory"
                )
            return False
        shutil.rmtree(self.staging, ignore_errors=True)
        self.data_directory.mkdir(parents=True)
        return True

    @property
    def staging(self) -> Path:
        """Directory to which a batch is written first."""
        return self.directory / "staging"

    @property
    def data_directory(self) -> Path:
        """Staged records, by partition, date and hour."""
        return self.staging / "data"

    @property
    def poison_directory(self) -> Path:
        """Staged unreadable records, by partition."""
        return self.staging / "poison"

    def commit(self, batch: int, checkpoint: str, offsets: str = "") -> Counts:
        """Move the staged files to their targets.

        Args:
            batch: Number of the batch.
            checkpoint: ID of Spark's query.
            offsets: End offsets of the batch, see `planned_offsets`; empty if unknown.

        Returns:
            The number of records in the batch.

        Raises:
            LakeError: A staged file has no offsets in its footer.
        """
        staged = [*self._staged_data(), *self._staged_poison()]
        totals = dict(self.journal.totals)
        for one in staged:
            totals[one.partition] = totals.get(one.partition, Counts()) + one.counts
        _sync_all({path for one in staged for path in (one.path, *self._directories_of(one.path))})
        moves = [(self._below(one.path), self._below(one.target)) for one in staged]
        self._save(Journal(batch, checkpoint, moves, totals, offsets))
        self._finish()
        return sum((one.counts for one in staged), Counts())

    def _finish(self) -> None:
        """Carry out the moves of the journal; each move is idempotent."""
        directories = set()
        moves = [
            tuple(path_in_lake(self._lake, each, self.directory / JOURNAL) for each in move)
            for move in self.journal.moves
        ]
        for staged, place in moves:
            make_durable_directory(place.parent)
            try:
                os.replace(staged, place)
            except FileNotFoundError:
                if not place.exists():
                    raise LakeError(
                        f"{place} was deleted before the commit was complete, and {staged} too"
                    ) from None
            directories.add(place.parent)
        _sync_all(directories)
        if self.journal.moves:
            self._save(replace(self.journal, moves=[]))
        shutil.rmtree(self.staging, ignore_errors=True)

    def _save(self, journal: Journal) -> None:
        journal.write(self.directory / JOURNAL)
        self.journal = journal

    def _directories_of(self, path: Path) -> Iterator[Path]:
        """Return the directories between the topic's own and a staged file."""
        return takewhile(lambda directory: directory != self.directory.parent, path.parents)

    def _below(self, path: Path) -> str:
        return str(path.relative_to(self._lake))

    def _staged_data(self) -> Iterator[Staged]:
        for path in self.data_directory.glob(f"{PARTITION}=*/{DATE}=*/{HOUR}=*/*.parquet"):
            partition, day, hour = (part.partition("=")[2] for part in path.parts[-4:-1])
            directory = self._lake / self._topic / f"{DATE}={day}" / f"{HOUR}={int(hour):02}"
            first, last, rows = offsets_of(path)
            target = directory / file_name(int(partition), first, last)
            yield Staged(path, target, int(partition), Counts(records=rows))

    def _staged_poison(self) -> Iterator[Staged]:
        for path in self.poison_directory.glob(f"{PARTITION}=*/*.parquet"):
            partition = int(path.parts[-2].partition("=")[2])
            first, last, rows = offsets_of(path)
            target = self._lake / POISON / self._topic / file_name(partition, first, last)
            yield Staged(path, target, partition, Counts(poison=rows))


def planned_offsets(checkpoint: Path, batch: int) -> str:
    """Return the end offsets of a batch in Spark's checkpoint, after syncing them to disk.

    Spark does not sync them. After a power failure, it could plan the batch again with other
    offsets, although the lake has the batch already.

    Args:
        checkpoint: Directory of Spark's checkpoint.
        batch: Number of the batch.

    Returns:
        The offsets as JSON, as Spark has written them.
    """
    path = checkpoint / "offsets" / str(batch)
    for each in (checkpoint / "metadata", path, path.parent, checkpoint):
        sync(each)
    # The first two lines are the version, and metadata that contains the time of planning.
    return "\n".join(path.read_text(encoding="utf-8").splitlines()[2:])


def path_in_lake(lake: Path, name: str, journal: Path) -> Path:
    """Return the path for a name in a journal.

    Raises:
        LakeError: The path is outside the lake.
    """
    try:
        return below(lake, name)
    except ValueError as error:
        raise LakeError(
            f"{journal}: {error}; nothing was moved or deleted: restore this file, or move it away "
            "if no archiver uses this lake"
        ) from None


def offsets_of(path: Path) -> tuple[int, int, int]:
    """Return first offset, last offset and row count of a file, from its footer.

    Raises:
        LakeError: The footer lacks the offsets.
        OSError, pyarrow.ArrowException: The file is corrupt.
    """
    footer = pq.read_metadata(path)
    names = [footer.schema.column(index).path for index in range(footer.num_columns)]
    if f"{RECORD}.offset" not in names:
        raise LakeError(f"{path} has no column {RECORD}.offset: it is not a file of a lake")
    column = names.index(f"{RECORD}.offset")
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    statistics = [group.column(column).statistics for group in groups if group.num_rows]
    if not statistics or not all(each is not None and each.has_min_max for each in statistics):
        raise LakeError(f"{path} has no offset statistics in its footer")

    first, last = min(each.min for each in statistics), max(each.max for each in statistics)
    return first, last, footer.num_rows


def write_durably(path: Path, text: str) -> None:
    """Replace a file atomically: after a crash, it has the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    sync(temporary)
    os.replace(temporary, path)
    sync(path.parent)


def make_durable_directory(directory: Path) -> None:
    """Create a directory and its parents, and sync their names to disk."""
    if not directory.exists():
        make_durable_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync(directory.parent)


def sync(path: Path) -> None:
    """Sync a file or directory to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_all(paths: Iterable[Path]) -> None:
    with ThreadPoolExecutor(_SYNCING_THREADS) as pool:
        for _ in pool.map(sync, paths):
            pass
