"""Lake reader without Spark: records in offset order; needs only pyarrow."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .commits import LakeError
from .layout import PAYLOAD_OF_RAW, PRIVATE, RECORD, LakeFile
from .listing import LISTINGS_MAX, list_files

__all__ = ["LakeError", "LakeFile", "common_schema", "files", "merged", "payload", "records"]

BATCH_ROWS = 8192
# Metadata key with the field's own name, if the column has another name.
FIELD = b"field"


def files(lake: Path, topic: str) -> list[LakeFile]:
    """Return the files of a topic, sorted by partition and first offset. Raises as `list_files`."""
    return list_files(lake, topic).data


def records(
    lake: Path, topic: str, partition: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read a partition in offset order.

    Every batch has the same columns: `columns`, or those of all files of the topic. A column that a
    file lacks is null. Files with overlapping offset ranges are read side by side, one batch of
    each in memory. The records of batches that are committed at the first step are read, even if
    an archiver moves or merges their files during the read.

    Args:
        lake: Directory of the lake.
        topic: Name of the topic.
        partition: Partition to read.
        columns: Columns to read (``record`` has the origin of a row); by default all.

    Yields:
        Batches of records.

    Raises:
        pyarrow.ArrowException: A file is corrupt, or a column has two incompatible types.
        LakeError: The files cannot be listed.
    """
    schema: pa.Schema | None = None
    position = end = 0
    for left in reversed(range(LISTINGS_MAX)):
        found = files(lake, topic)
        ours = [file for file in found if file.partition == partition and file.last >= position]
        try:
            if schema is None:
                schema = _with_field_names(common_schema(found, columns), lake, topic)
                end = max((file.last + 1 for file in ours), default=0)
            for whole in merged([file for file in ours if file.first < end], schema):
                batch = _between(whole, position, end)
                position = max(position, int(_offsets(whole)[-1].as_py()) + 1)
                yield batch.select(list(columns)) if columns else batch
        except FileNotFoundError:  # an archiver has moved or merged the file: list the files again
            if not left:
                raise
        else:
            return


def merged(
    found: Sequence[LakeFile], schema: pa.Schema, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Read files of one partition in offset order, with the columns of a schema.

    Each file is sorted by offset. Raises as `records` does.
    """
    waiting = list(found)
    open_files: list[_OpenFile] = []
    while waiting or open_files:
        frontier = min((one.last_offset for one in open_files), default=-1)
        while waiting and (not open_files or waiting[0].first <= frontier):
            opened = _OpenFile(waiting.pop(0), schema, batch_rows)
            open_files += [opened] if opened.advance() else []
            frontier = min((one.last_offset for one in open_files), default=-1)
        if open_files:
            yield from _in_order([one.take_until(frontier) for one in open_files])
            open_files = [one for one in open_files if one.has_rows or one.advance()]


def payload(batch: pa.RecordBatch) -> list[bytes | None]:
    """Return the values of a batch's records as they were in the topic.

    Args:
        batch: Records with all their columns.

    Returns:
        For the format raw the original bytes. For other formats a JSON object of the fields that
            are not null: equal as JSON, not byte for byte. None for a tombstone.
    """
    names = [name for name in batch.schema.names if name != RECORD]
    if names == [PAYLOAD_OF_RAW] and pa.types.is_binary(batch.schema.field(names[0]).type):
        values: list[bytes | None] = batch.column(names[0]).to_pylist()
        return values
    tombstones = pc.struct_field(batch.column(RECORD), "tombstone").to_pylist()
    columns = batch.select(names)
    fields = [(field.metadata or {}).get(FIELD, field.name.encode()) for field in columns.schema]
    named = columns.rename_columns([name.decode() for name in fields])
    rows = named.to_pylist()
    for field in named.schema:
        if _has_map(field.type):
            for row in rows:
                row[field.name] = _with_maps(row[field.name], field.type)
    return [
        None if tombstone else _as_json(row)
        for row, tombstone in zip(rows, tombstones, strict=True)
    ]


class _OpenFile:
    """A file with one batch of its rows in memory."""

    def __init__(self, file: LakeFile, schema: pa.Schema, batch_rows: int) -> None:
        names = [name for name in schema.names if name in pq.read_schema(file.path).names]
        self._schema = schema
        self._batches = pq.ParquetFile(file.path).iter_batches(batch_rows, columns=names)
        self._rows: pa.RecordBatch | None = None

    @property
    def has_rows(self) -> bool:
        """True if the batch in memory has rows left."""
        return self._rows is not None and self._rows.num_rows > 0

    @property
    def last_offset(self) -> int:
        """Last offset of the batch in memory."""
        assert self._rows is not None
        return int(_offsets(self._rows)[-1].as_py())

    def advance(self) -> bool:
        """Load the next batch; return False at the end of the file."""
        self._rows = next((one for one in self._batches if one.num_rows), None)
        if self._rows is not None:
            self._rows = _conformed(self._rows, self._schema)
        return self._rows is not None

    def take_until(self, offset: int) -> pa.RecordBatch:
        """Remove and return the rows in memory up to an offset."""
        assert self._rows is not None
        count = pc.sum(pc.less_equal(_offsets(self._rows), offset)).as_py()
        taken, self._rows = self._rows.slice(0, count), self._rows.slice(count)
        return taken


def _in_order(parts: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all parts sorted by offset."""
    table = pa.Table.from_batches([part for part in parts if part.num_rows])
    order = pc.sort_indices(pc.struct_field(table.column(RECORD).combine_chunks(), "offset"))
    yield from (table.take(order) if len(parts) > 1 else table).to_batches()


def _between(batch: pa.RecordBatch, first: int, end: int) -> pa.RecordBatch:
    """Return the rows of a sorted batch with offsets from `first` to `end` (exclusive)."""
    offsets = _offsets(batch)
    start, stop = (pc.sum(pc.less(offsets, each)).as_py() or 0 for each in (first, end))
    return batch.slice(start, stop - start)


def _offsets(batch: pa.RecordBatch) -> pa.Array:
    return pc.struct_field(batch.column(RECORD), "offset")


def common_schema(found: Sequence[LakeFile], columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the schema of all files, or its selected columns; ``record`` comes last."""
    each = [pq.read_schema(file.path).remove_metadata() for file in found]
    fields = pa.unify_schemas([*each, pa.schema([])], promote_options="permissive")
    names = [name for name in fields.names if name != RECORD]
    wanted = [name for name in names if columns is None or name in columns]
    return pa.schema([fields.field(name) for name in (*wanted, RECORD) if name in fields.names])


def _with_field_names(schema: pa.Schema, lake: Path, topic: str) -> pa.Schema:
    """Add the fields' own names to the metadata of columns that have another name."""
    path = lake / PRIVATE / topic / "schema.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["fields"] if path.exists() else []
    metadata = {each["name"]: each["metadata"] for each in kept if each["metadata"]}
    return pa.schema([field.with_metadata(metadata.get(field.name)) for field in schema])


def _conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the columns of a schema; missing columns are null."""
    arrays = [
        _conformed_array(batch.column(field.name), field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _conformed_array(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert an array to a type that has its fields and possibly more."""
    if array.type == wanted:
        return array
    if pa.types.is_struct(wanted):
        have = {field.name: index for index, field in enumerate(array.type)}
        children = [
            _conformed_array(pc.struct_field(array, [have[field.name]]), field.type)
            if field.name in have
            else pa.nulls(len(array), field.type)
            for field in wanted
        ]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())
    if pa.types.is_list(wanted):
        values = _conformed_array(array.flatten(), wanted.value_type)
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
        return pa.ListArray.from_arrays(
            offsets.cast(pa.int32()), values, type=wanted, mask=array.is_null()
        )
    return array.cast(wanted)


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(field.type) for field in _inside(kind))


def _inside(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a nested type."""
    return [kind.field(index) for index in range(kind.num_fields)]


def _with_maps(value: Any, kind: pa.DataType) -> object:
    """Return a value with its maps as dicts; pyarrow returns pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {_key(key): _with_maps(each, kind.item_type) for key, each in value}
    if pa.types.is_struct(kind):
        return {field.name: _with_maps(value[field.name], field.type) for field in _inside(kind)}
    if pa.types.is_list(kind):
        return [_with_maps(each, kind.value_type) for each in value]
    return value


def _key(key: object) -> str:
    """Return a map key as in JSON, for example true instead of True."""
    return key if isinstance(key, str) else json.dumps(key, default=str).strip('"')


def _as_json(row: dict[str, object]) -> bytes:
    fields = {name: value for name, value in row.items() if value is not None}
    return json.dumps(_without_nulls(fields), ensure_ascii=False, default=_as_text).encode()


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _as_text(value: object) -> object:
    """Return the JSON form of types that JSON lacks; bytes as in Avro's JSON encoding."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
