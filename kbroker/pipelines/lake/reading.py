"""Read a lake without Spark, in the order of offsets; needs pyarrow and nothing else."""

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

from .layout import PAYLOAD_OF_RAW, PRIVATE, RECORD, LakeFile, data_files

__all__ = ["LakeFile", "common_schema", "files", "merged", "payload", "records"]

BATCH_ROWS = 8192
FIELD = b"field"
"""The key of a column's metadata under which its field's own name stands, where it is another."""


def files(lake: Path, topic: str) -> list[LakeFile]:
    """The files of a topic, by partition and first offset."""
    return data_files(lake, topic)


def records(
    lake: Path, topic: str, partition: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read a partition in the order of its offsets.

    Every batch has the same columns: those of all files of the topic, or those that `columns` names
    (``record`` says where a row comes from). A column that a file does not have is null there.
    Files whose offset ranges overlap are read side by side, a batch of each in memory.

    Raises:
        pyarrow.ArrowException: a file is torn, or one column has two types that do not go together.
    """
    found = files(lake, topic)
    schema = _with_field_names(common_schema(found, columns), lake, topic)
    for batch in merged([file for file in found if file.partition == partition], schema):
        yield batch.select(list(columns)) if columns else batch


def merged(
    found: Sequence[LakeFile], schema: pa.Schema, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Read files of one partition in the order of offsets, with the columns of a schema.

    The files are in order themselves. Raises as `records`.
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
    """The values of the records of a batch, as they were in the topic.

    The format raw gives the very bytes. The others give a JSON object of the fields that are not
    null: equal to what was written as JSON is, not byte for byte. None for a tombstone.
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
        """Whether rows of the batch in memory are left."""
        return self._rows is not None and self._rows.num_rows > 0

    @property
    def last_offset(self) -> int:
        """The last offset of the batch in memory."""
        assert self._rows is not None
        return int(_offsets(self._rows)[-1].as_py())

    def advance(self) -> bool:
        """Take the next batch into memory; False at the end of the file."""
        self._rows = next((one for one in self._batches if one.num_rows), None)
        if self._rows is not None:
            self._rows = _conformed(self._rows, self._schema)
        return self._rows is not None

    def take_until(self, offset: int) -> pa.RecordBatch:
        """The rows in memory up to an offset; they are gone from here."""
        assert self._rows is not None
        count = pc.sum(pc.less_equal(_offsets(self._rows), offset)).as_py()
        taken, self._rows = self._rows.slice(0, count), self._rows.slice(count)
        return taken


def _in_order(parts: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of all parts by offset."""
    table = pa.Table.from_batches([part for part in parts if part.num_rows])
    order = pc.sort_indices(pc.struct_field(table.column(RECORD).combine_chunks(), "offset"))
    yield from (table.take(order) if len(parts) > 1 else table).to_batches()


def _offsets(batch: pa.RecordBatch) -> pa.Array:
    return pc.struct_field(batch.column(RECORD), "offset")


def common_schema(found: Sequence[LakeFile], columns: Sequence[str] | None = None) -> pa.Schema:
    """The columns of all files, or of them those named; ``record`` always, as the last one."""
    each = [pq.read_schema(file.path).remove_metadata() for file in found]
    fields = pa.unify_schemas([*each, pa.schema([])], promote_options="permissive")
    names = [name for name in fields.names if name != RECORD]
    wanted = [name for name in names if columns is None or name in columns]
    return pa.schema([fields.field(name) for name in (*wanted, RECORD) if name in fields.names])


def _with_field_names(schema: pa.Schema, lake: Path, topic: str) -> pa.Schema:
    """The schema that says of each column what the field is called where that is another name."""
    path = lake / PRIVATE / topic / "schema.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["fields"] if path.exists() else []
    metadata = {each["name"]: each["metadata"] for each in kept if each["metadata"]}
    return pa.schema([field.with_metadata(metadata.get(field.name)) for field in schema])


def _conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns of a schema; those it lacks are null."""
    arrays = [
        _conformed_array(batch.column(field.name), field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _conformed_array(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The array as a type that has the fields of its own and maybe more."""
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
    """The fields of a type that has some."""
    return [kind.field(index) for index in range(kind.num_fields)]


def _with_maps(value: Any, kind: pa.DataType) -> object:
    """A value with its maps as objects of JSON have them: pyarrow has pairs there."""
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
    """A key of a map as JSON has it: true and not True."""
    return key if isinstance(key, str) else json.dumps(key, default=str).strip('"')


def _as_json(row: dict[str, object]) -> bytes:
    fields = {name: value for name, value in row.items() if value is not None}
    return json.dumps(_without_nulls(fields), ensure_ascii=False, default=_as_text).encode()


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _as_text(value: object) -> object:
    """What JSON has no word for; bytes as Avro's JSON has them."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
