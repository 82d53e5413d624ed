"""How a batch gets into the lake so that a kill at any moment neither doubles nor tears anything.

    1  Spark writes the batch's files to staging/            a repeated batch begins with an empty one
    2  they are forced to disk
    3  journal.json says which staged file becomes which     from here on the batch is in the lake
    4  each is moved to its place (one rename each)
    5  the directories are forced to disk
    6  journal.json says that nothing is left to move

Killed before 3, the batch is written anew. Killed after it, the next start finishes the moves, and
when Spark then repeats the batch there is nothing to do: what it holds was decided once, so that it
does not matter whether the topic has been compacted in between. Every move can be done again.

The journal also counts what each partition has in the lake, which is what `check` compares.
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

JOURNAL = "journal.json"
_SYNCING_THREADS = 8


class LakeError(Exception):
    """The lake cannot be written or read as things are; the message says what helps."""


@dataclass(frozen=True)
class Counts:
    """What a partition has in the lake."""

    records: int = 0
    poison: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.records + other.records, self.poison + other.poison)


@dataclass(frozen=True)
class Journal:
    """The last batch that is in the lake."""

    batch: int = -1
    checkpoint: str = ""
    """The number of Spark's query, which its checkpoint keeps: batches of another one differ."""
    moves: list[tuple[str, str]] = field(default_factory=list)
    """What is still to be moved: from and to, below the lake."""
    totals: dict[int, Counts] = field(default_factory=dict)
    """By partition, this batch included."""

    @classmethod
    def read(cls, path: Path) -> Journal:
        """The journal of a file; an empty one when there is none."""
        try:
            saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        totals = {int(number): Counts(**counts) for number, counts in saved["totals"].items()}
        moves = [(source, target) for source, target in saved["moves"]]
        return cls(saved["batch"], saved["checkpoint"], moves, totals)

    def write(self, path: Path) -> None:
        """Replace the file, in one step."""
        write_durably(path, json.dumps(asdict(self)))


@dataclass(frozen=True)
class Staged:
    """A file that Spark has written, and where it belongs."""

    path: Path
    target: Path
    partition: int
    counts: Counts


class Commits:
    """The batches of one topic. One process at a time may have it."""

    def __init__(self, lake: Path, topic: str) -> None:
        """Finishes what an earlier process left half done."""
        self._lake, self._topic = lake, topic
        self.directory = lake / PRIVATE / topic
        self.journal = Journal.read(self.directory / JOURNAL)
        self._finish()

    def begin(self, batch: int, checkpoint: str) -> bool:
        """Make room for a batch; False when it is in the lake already.

        Raises:
            LakeError: the lake has later batches, or those of another checkpoint.
        """
        known = self.journal
        if known.batch >= 0 and (known.checkpoint != checkpoint or known.batch > batch):
            raise LakeError(
                f"{self._lake} has batch {known.batch} of {self._topic} from another checkpoint "
                f"than {self.directory / 'checkpoint'}, which is at batch {batch}: put the old "
                "checkpoint back, or archive to a new directory"
            )
        if known.batch == batch:
            return False
        shutil.rmtree(self.staging, ignore_errors=True)
        self.data_directory.mkdir(parents=True)
        return True

    @property
    def staging(self) -> Path:
        """Where a batch is written first."""
        return self.directory / "staging"

    @property
    def data_directory(self) -> Path:
        """The records of a batch, by partition, date and hour."""
        return self.staging / "data"

    @property
    def poison_directory(self) -> Path:
        """What of a batch could not be read, by partition."""
        return self.staging / "poison"

    def commit(self, batch: int, checkpoint: str) -> Counts:
        """Put the staged files into their places; returns what the batch has brought.

        Raises:
            LakeError: a staged file has no offsets in its footer.
        """
        staged = [*self._staged_data(), *self._staged_poison()]
        totals = dict(self.journal.totals)
        for one in staged:
            totals[one.partition] = totals.get(one.partition, Counts()) + one.counts
        _sync_all({path for one in staged for path in (one.path, *self._directories_of(one.path))})
        moves = [(self._below(one.path), self._below(one.target)) for one in staged]
        self._save(Journal(batch, checkpoint, moves, totals))
        self._finish()
        return sum((one.counts for one in staged), Counts())

    def _finish(self) -> None:
        """Do the moves of the journal, each of which may have been done before."""
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
                        f"{place} is gone before it was complete in the lake; {staged} is gone too"
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
        """The directories between the topic's own and a staged file."""
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


def path_in_lake(lake: Path, name: str, journal: Path) -> Path:
    """Return a path that a journal names.

    Raises:
        LakeError: the path leads out of the lake.
    """
    try:
        return below(lake, name)
    except ValueError as error:
        raise LakeError(
            f"{journal}: {error}; nothing was moved or removed: restore this file, or move it aside if "
            "nobody archives to this lake"
        ) from None


def offsets_of(path: Path) -> tuple[int, int, int]:
    """The first and the last offset of a file and how many rows it has, from its footer.

    Raises:
        LakeError: the footer does not say.
        OSError, pyarrow.ArrowException: the file is torn.
    """
    footer = pq.read_metadata(path)
    names = [footer.schema.column(index).path for index in range(footer.num_columns)]
    if f"{RECORD}.offset" not in names:
        raise LakeError(f"{path} has no column {RECORD}.offset: it is no file of a lake")
    column = names.index(f"{RECORD}.offset")
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    statistics = [group.column(column).statistics for group in groups if group.num_rows]
    if not statistics or not all(each is not None and each.has_min_max for each in statistics):
        raise LakeError(f"{path} does not say which offsets it holds")
    first, last = min(each.min for each in statistics), max(each.max for each in statistics)
    return first, last, footer.num_rows


def write_durably(path: Path, text: str) -> None:
    """Replace a file in one step: after a crash it is the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    sync(beside)
    os.replace(beside, path)
    sync(path.parent)


def make_durable_directory(directory: Path) -> None:
    """Make a directory and those above it, and force their names to disk."""
    if not directory.exists():
        make_durable_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync(directory.parent)


def sync(path: Path) -> None:
    """Force a file or directory to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_all(paths: Iterable[Path]) -> None:
    with ThreadPoolExecutor(_SYNCING_THREADS) as pool:
        for _ in pool.map(sync, paths):
            pass
