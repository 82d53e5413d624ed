"""Comparison of a topic with its lake; the only module of the package that needs pyarrow."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from operator import le
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kbroker.client.errors import ClientError
from kbroker.pipelines.lake.commits import LakeError
from kbroker.pipelines.lake.layout import (
    DATE,
    HOUR,
    PAYLOAD_OF_RAW,
    RECORD,
    LakeFile,
)
from kbroker.pipelines.lake.listing import list_files
from kbroker.pipelines.lake.reading import common_schema, merged
from kbroker.pipelines.lake.settings import Settings
from kbroker.spark.source.arrow import MILLISECONDS_MAX

from .compare import Compared, Comparison, Rules
from .findings import LISTED, Finding, Findings, Kind
from .pair import PairReport
from .reader import Source, open_topic
from .rows import FOREVER, Headers, Piece, Rows


@dataclass(slots=True)
class Archive:
    """Readable files of one topic."""

    files: list[LakeFile] = field(default_factory=list)
    # True if values are stored as the topic's original bytes.
    raw: bool = True
    # Number of rows in files of unreadable records.
    poison: int = 0

    def of(self, partition: int) -> list[LakeFile]:
        """Return the files of a partition, sorted by offset."""
        return sorted(one for one in self.files if one.partition == partition)


async def compare_lake(
    source: Source, lake: Path, *, allow_lag: bool = False, listed: int = LISTED
) -> PairReport:
    """Compare each record of a topic with the lake's record at its partition and offset.

    Records that the archiver could not read count as archived. Keys, headers and timestamps are
    compared. Values are compared byte for byte if the lake is raw, otherwise only for null. Files
    are listed before the topic's end is looked up. If an archiver is running, use `allow_lag`.

    Args:
        source: The topic.
        lake: Directory of the lake.
        allow_lag: Do not report records after a partition's last record in the lake.
        listed: Maximum number of findings to list per kind.

    Returns:
        The report.

    Raises:
        ClientError: The topic or the lake cannot be read.
        KafkaError: The broker returned an error.
    """
    findings = Findings(listed)
    archive = open_archive(lake, source.topic, findings)
    reader = await open_topic(source, findings)
    compared = []
    for facts in reader.facts:
        files = archive.of(facts.partition)
        end = max((one.last + 1 for one in files), default=0) if allow_lag else FOREVER
        rules = Rules(facts.begin, facts.end, end, values=archive.raw)
        one = Compared(source.topic, facts.partition, "the lake")
        async with reader.pieces(facts) as pieces:
            try:
                await Comparison(one, rules, findings).run(
                    _in_lake_times(pieces), _pieces(files, archive, findings)
                )
            except (OSError, pa.ArrowException) as error:
                raise _unreadable(error) from error
        compared.append(one)
    known = {facts.partition for facts in reader.facts}
    if not source.partitions:
        _check_partitions(source.topic, archive, known, findings)
    return PairReport(
        source.topic,
        str(lake),
        "offset",
        reader.facts,
        [],
        compared,
        findings,
        files=len(archive.files),
        poison=archive.poison,
    )


def _unreadable(error: Exception) -> ClientError:
    return ClientError(
        f"the lake cannot be read ({error}); if files were merged during the audit, repeat it"
    )


def _check_partitions(topic: str, archive: Archive, known: set[int], findings: Findings) -> None:
    for number in sorted({one.partition for one in archive.files} - known):
        what = "the lake has files of this partition, but the topic does not have it"
        findings.add(Finding(Kind.EXTRA, topic, what, number))


# -- files


def open_archive(lake: Path, topic: str, findings: Findings) -> Archive:
    """Read the footers of all files of a topic; unreadable files are reported and left out.

    Raises:
        ClientError: The lake has no files of the topic, or an archiver changes them.
    """
    try:
        data, poison = list_files(lake, topic)
    except LakeError as error:
        raise ClientError(str(error)) from error
    if not data and not poison:
        raise ClientError(
            f"{lake} has no files of topic {topic!r}; archive it with `kbroker lake archive {lake} "
            f"{topic}`"
        )
    archive = Archive()
    sound, _ = _check_files(data, topic, findings)
    unreadable, archive.poison = _check_files(poison, topic, findings)
    archive.raw = _is_raw(lake, topic, sound)
    archive.files = sound + unreadable
    return archive


def _check_files(
    found: list[LakeFile], topic: str, findings: Findings
) -> tuple[list[LakeFile], int]:
    """Return the readable files with their actual offsets, and their number of rows."""
    sound, rows = [], 0
    for file in found:
        try:
            footer = pq.read_metadata(file.path)
        except FileNotFoundError as error:
            raise _unreadable(error) from error
        except (OSError, pa.ArrowException) as error:
            what = f"{file.path} cannot be read ({error})"
            findings.add(Finding(Kind.DAMAGED, topic, what, file.partition, file.first))
            continue
        rows += footer.num_rows
        sound.append(_check_footer(file, topic, _Footer(footer), findings))
    return sound, rows


def _is_raw(lake: Path, topic: str, files: list[LakeFile]) -> bool:
    """Return True for format raw, according to the archiver's settings or else to the columns."""
    with contextlib.suppress(LakeError):  # files without settings
        if settings := Settings.read(lake, topic):
            return settings.format == "raw"
    if not files:
        return True
    schema = common_schema(files)
    names = [name for name in schema.names if name != RECORD]
    return names == [PAYLOAD_OF_RAW] and pa.types.is_binary(schema.field(PAYLOAD_OF_RAW).type)


class _Footer:
    """Column statistics of a file."""

    def __init__(self, footer: pq.FileMetaData) -> None:
        self._groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        self._at = {
            group.column(number).path_in_schema: number
            for group in self._groups[:1]
            for number in range(group.num_columns)
        }

    def range_of(self, column: str) -> tuple[Any, Any] | None:
        """Return the smallest and largest value, or None if the file has no statistics."""
        number = self._at.get(f"{RECORD}.{column}")
        if number is None:
            return None
        found = [group.column(number).statistics for group in self._groups]
        if not all(one is not None and one.has_min_max for one in found):
            return None
        try:
            return min(one.min for one in found), max(one.max for one in found)
        except (OverflowError, ValueError):
            return None  # timestamps outside Python's dates, possible in unreadable records


def _check_footer(file: LakeFile, topic: str, footer: _Footer, findings: Findings) -> LakeFile:
    """Return the file with its actual offsets, and report a wrong name or directory."""
    offsets = footer.range_of("offset")
    expected_ranges = {
        "topic": (topic, topic),
        "partition": (file.partition, file.partition),
        "offset": (file.first, file.last),
    }
    for column, expected in expected_ranges.items():
        actual = footer.range_of(column)
        if actual is not None and actual != expected:
            what = f"{file.path} has {column} {actual[0]} to {actual[1]}, unlike its name"
            findings.add(Finding(Kind.MISPLACED, topic, what, file.partition, file.first))
    times = footer.range_of("timestamp")
    if times is not None and not _is_in_hour(file.path, *times):
        what = f"{file.path} has timestamps from {times[0]} to {times[1]}, unlike its directory"
        findings.add(Finding(Kind.MISPLACED, topic, what, file.partition, file.first))
    if offsets is None:
        return file
    return LakeFile(file.partition, *offsets, file.path)


def _is_in_hour(path: Path, *times: datetime.datetime) -> bool:
    """Return True if times match the file's directories, or it has no such directories."""
    directories = dict(part.split("=", 1) for part in path.parts if "=" in part)
    if DATE not in directories or HOUR not in directories:
        return True
    named = directories[DATE], directories[HOUR].zfill(2)  # Spark does not pad staged hours
    # strftime does not zero-pad years before 1000.
    return all((time.date().isoformat(), f"{time.hour:02}") == named for time in times)


# -- records


async def _in_lake_times(pieces: AsyncIterator[Piece]) -> AsyncIterator[Piece]:
    """Yield the topic's records with timestamps limited to the lake's range in microseconds."""
    async for piece in pieces:
        times = piece.rows.timestamps
        if times and max(max(times), -min(times)) > MILLISECONDS_MAX:
            limited = [min(max(each, -MILLISECONDS_MAX), MILLISECONDS_MAX) for each in times]
            piece = replace(piece, rows=piece.rows._replace(timestamps=limited))
        yield piece


async def _pieces(
    files: list[LakeFile], archive: Archive, findings: Findings
) -> AsyncIterator[Piece]:
    """Yield the records of one partition."""
    if not files:
        return
    schema = common_schema(files, [PAYLOAD_OF_RAW] if archive.raw else [])
    for batch in merged(files, schema):
        rows = _rows(batch, archive.raw)
        if not all(map(le, rows.offsets, rows.offsets[1:])):
            what = f"a file has records that are not sorted by offset, near {rows.offsets[0]}"
            findings.add(Finding(Kind.MISPLACED, "", what, files[0].partition, rows.offsets[0]))
        if rows.size:
            yield Piece(rows, rows.offsets[-1] + 1)


def _rows(batch: pa.RecordBatch, raw: bool) -> Rows:
    """Return the records of a batch; unless the lake is raw, values only indicate null."""
    record = batch.column(RECORD)

    def column(name: str) -> pa.Array:
        return pc.struct_field(record, name)

    times = column("timestamp").cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    if raw:
        values = _objects(batch.column(PAYLOAD_OF_RAW))
    else:
        tombstones = pc.fill_null(column("tombstone"), False).to_pylist()
        values = [None if gone else b"" for gone in tombstones]
    return Rows(
        column("offset").to_numpy().tolist(),
        times.to_numpy().tolist(),
        _objects(column("key")),
        values,
        _headers(column("headers")),
    )


def _objects(array: pa.Array) -> list[bytes | None]:
    """Return the values of a binary column through NumPy; `to_pylist` is ten times slower."""
    found: list[bytes | None] = array.to_numpy(zero_copy_only=False).tolist()
    return found


def _headers(array: pa.ListArray) -> list[Headers]:
    """Return the headers of each record; records without headers have null or an empty list."""
    if not len(array.flatten()):
        return [()] * len(array)
    return [tuple((one["key"], one["value"]) for one in found or ()) for found in array.to_pylist()]
