"""Avro values: a column for each field that any of their schemas has.

Decoding runs in Python workers. A schema is known by its number, and looked up once in each worker.
Whole numbers become ``long`` and floating ones ``double``, so that a later schema may have the wider
of the two; other changes of a type make poison of the later schema's values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker.spark.avro import Decoder
from kbroker.spark.schema_registry import SchemaError, UndecodableError, header_of, split_header

from . import fields
from .commits import LakeError
from .fields import Struct, Type
from .layout import RECORD
from .values import BAD, NEW, VALUE, spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DECODED = "__kbroker_decoded"
_WIDER = {"byte": "long", "short": "long", "integer": "long", "float": "double"}
_ONLY = header_of(0)
"""The header that a value would have if its one schema had the number 0."""


class AvroValues:
    """Values have a header with their schema's number, or all have the one schema of a file."""

    def __init__(self, schema: Struct, source: str | None) -> None:
        """`source` is a schema file, a folder of ``<number>.avsc`` or a registry's address.

        Raises:
            LakeError: it is none of these.
        """
        if source is None:
            raise LakeError(
                "--format avro needs --schema: a schema file, a folder of <number>.avsc, or the "
                "address of a schema registry"
            )
        self.schema = schema
        path = Path(source)
        self._header = _ONLY if path.is_file() else b""
        self._decoder = Decoder({0: path.read_text("utf-8")} if path.is_file() else source)

    def shaped(self, rows: DataFrame, *, may_grow: bool) -> DataFrame:
        """See `Values`."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import BooleanType, StructField, StructType

        written = fields.without_void(self.schema) or fields.struct()
        payload = spark_type(written)
        assert isinstance(payload, StructType)
        flags = [StructField(BAD, BooleanType()), StructField(NEW, BooleanType())]
        read = partial(_decoded, _Reader(self._decoder, self._header, self.schema), may_grow)
        decode = F.udf(
            lambda value: read(value), StructType([*payload.fields, *flags]), useArrow=False
        ).asNondeterministic()  # so that it runs once for a row
        names = [field["name"] for field in written["fields"]]
        return rows.withColumn(_DECODED, decode(VALUE)).select(
            *(F.col(_DECODED).getField(name).alias(name) for name in names),
            RECORD,
            VALUE,
            *(F.col(_DECODED).getField(flag).alias(flag) for flag in (BAD, NEW)),
        )

    def grow(self, values: list[bytes]) -> bool:
        """See `Values`."""
        before = self.schema
        reader = _Reader(self._decoder, self._header, before)
        for value in values:
            try:
                found = reader.fields_of(reader.schema_id(value))
            except UndecodableError:
                continue
            self.schema = fields.with_fields(self.schema, found)
        return self.schema != before

    def why_not(self, *, may_grow: bool) -> Callable[[bytes], str]:
        """See `Values`."""
        return _Reader(self._decoder, self._header, self.schema).why_not


class _Reader:
    """Reads values as rows of a schema; can be sent to workers."""

    def __init__(self, decoder: Decoder, header: bytes, schema: Struct) -> None:
        self._decoder, self._header, self._schema = decoder, header, schema
        self._fields: dict[int, Struct] = {}
        self._misfits: dict[int, str] = {}

    def schema_id(self, value: bytes) -> int:
        """The number of a value's schema. Raises UndecodableError."""
        return split_header(self._header + value)[0]

    def fields_of(self, schema_id: int) -> Struct:
        """The fields of a schema.

        Raises:
            UndecodableError: there is none of this number, or no column can hold what it has.
            SchemaError: the registry does not answer.
        """
        if schema_id not in self._fields:
            writer = self._decoder.schema(schema_id)
            try:
                self._fields[schema_id] = _fields(writer)
            except SchemaError as error:
                raise UndecodableError(f"schema {schema_id}: {error}") from error
        return self._fields[schema_id]

    def misfit(self, schema_id: int) -> str:
        """What of a schema the lake's columns cannot hold; empty when they can, or may grow."""
        if schema_id not in self._misfits:
            found = self.fields_of(schema_id)
            grown = fields.with_fields(self._schema, found)
            self._misfits[schema_id] = next(_differences(grown, found), "")
        return self._misfits[schema_id]

    def is_new(self, schema_id: int) -> bool:
        """Whether a schema has fields that the lake's has not."""
        return fields.with_fields(self._schema, self.fields_of(schema_id)) != self._schema

    def row(self, value: bytes) -> dict[str, Any]:
        """A value's fields by column. Raises as `fields_of` does."""
        decoded = self._decoder.decode(self._header + value)
        columns = self._schema["fields"]
        return {field["name"]: decoded.get(fields.field_name(field)) for field in columns}

    def why_not(self, value: bytes) -> str:
        """Why a value cannot be read."""
        try:
            schema_id = self.schema_id(value)
            self.row(value)
        except UndecodableError as error:
            return str(error)
        return self.misfit(schema_id) or f"schema {schema_id} has fields that cannot be added"


def _decoded(reader: _Reader, may_grow: bool, value: bytes | None) -> dict[str, Any]:
    """A row of the payload's columns with the flags."""
    if value is None:
        return {BAD: False, NEW: False}
    value = bytes(value)
    try:
        schema_id = reader.schema_id(value)
        new = reader.is_new(schema_id)
        bad = bool(reader.misfit(schema_id)) or (new and not may_grow)
        row = {} if bad or new else reader.row(value)
    except UndecodableError:
        return {BAD: True, NEW: False}
    return {**row, BAD: bad, NEW: new and not bad}


def _fields(writer: Any) -> Struct:
    """The fields of an Avro schema, with the wider types."""
    from pyspark.sql.types import StructType

    from kbroker.spark.avro import spark_type as type_of_avro

    kind = type_of_avro(writer)
    if not isinstance(kind, StructType):
        raise SchemaError("it is no record")
    widened = _widened(kind.jsonValue())
    return fields.struct(widened["fields"])


def _widened(kind: Type) -> Type:
    if isinstance(kind, str):
        return _WIDER.get(kind, kind)
    if kind["type"] == "struct":
        return fields.struct(
            {**field, "type": _widened(field["type"]), "nullable": True} for field in kind["fields"]
        )
    key = "elementType" if kind["type"] == "array" else "valueType"
    nullable = "containsNull" if kind["type"] == "array" else "valueContainsNull"
    return {**kind, key: _widened(kind[key]), nullable: True}


def _differences(kept: Struct, found: Struct) -> Iterator[str]:
    """Fields whose type is not the one that is kept, at any depth."""
    by_name = {fields.field_name(field): field["type"] for field in kept["fields"]}
    for field in found["fields"]:
        kind = by_name.get(field["name"])
        if not _holds(kind, field["type"]):
            yield f"{field['name']}: {_said(field['type'])} where {_said(kind)} is kept"


def _said(kind: Type) -> str:
    if kind is None:
        return "nothing"
    names = {"struct": "a record", "array": "an array", "map": "a map"}
    return kind if isinstance(kind, str) else names[kind["type"]]


def _holds(kept: Type, found: Type) -> bool:
    if found == fields.VOID or kept == found:
        return True
    if not isinstance(kept, dict) or not isinstance(found, dict) or kept["type"] != found["type"]:
        return False
    if kept["type"] == "struct":
        return not any(True for _ in _differences(kept, found))
    key = "elementType" if kept["type"] == "array" else "valueType"
    return _holds(kept[key], found[key])
