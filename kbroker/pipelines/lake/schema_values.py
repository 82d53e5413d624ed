"""Values with a schema ID: one column for each field of any of their schemas.

Values are decoded in Python workers, and each worker looks up a schema ID once. Integers become
``long`` and floating-point numbers ``double``, so that a later schema may widen them. With any
other type change, the values of the later schema are unreadable.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kbroker.client.schema_registry import SchemaError, UndecodableError

from . import fields
from .fields import Struct, Type
from .layout import RECORD
from .values import BAD, NEW, VALUE, spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

_DECODED = "__kbroker_decoded"
_WIDER = {"byte": "long", "short": "long", "integer": "long", "float": "double"}


class ValueDecoder(Protocol):
    """Lookup of writer schemas and decoder of values; can be pickled."""

    def writer_schema_id(self, value: bytes) -> Hashable:
        """Return the ID of the schema that wrote a value. Raises UndecodableError."""
        ...

    def writer_schema(self, schema_id: Any) -> Any:
        """Return the writer schema with an ID.

        Raises:
            UndecodableError: The schema is unknown.
            SchemaError: The registry does not respond.
        """
        ...

    def type_of(self, schema: Any) -> DataType:
        """Return the Spark type of a schema. Raises SchemaError if there is none."""
        ...

    def decode(self, value: bytes) -> dict[str, object]:
        """Return the fields of a value. Raises as `writer_schema` does."""
        ...


class SchemaValues:
    """Values that identify their writer schema."""

    def __init__(self, schema: Struct, decoder: ValueDecoder) -> None:
        self.schema = schema
        self._decoder = decoder

    def shaped(self, rows: DataFrame, *, may_grow: bool) -> DataFrame:
        """Implement `Values`."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import BooleanType, StructField, StructType

        written = fields.without_void(self.schema) or fields.struct()
        payload = spark_type(written)
        assert isinstance(payload, StructType)
        flags = [StructField(BAD, BooleanType()), StructField(NEW, BooleanType())]
        read = partial(_decoded, _Reader(self._decoder, self.schema), may_grow)
        decode = F.udf(
            lambda value: read(value), StructType([*payload.fields, *flags]), useArrow=False
        ).asNondeterministic()  # so that it runs once per row
        names = [field["name"] for field in written["fields"]]
        return rows.withColumn(_DECODED, decode(VALUE)).select(
            *(F.col(_DECODED).getField(name).alias(name) for name in names),
            RECORD,
            VALUE,
            *(F.col(_DECODED).getField(flag).alias(flag) for flag in (BAD, NEW)),
        )

    def grow(self, values: list[bytes]) -> bool:
        """Implement `Values`."""
        before = self.schema
        reader = _Reader(self._decoder, before)
        for value in values:
            try:
                found = reader.fields_of(reader.writer_schema_id(value))
            except UndecodableError:
                continue
            self.schema = fields.with_fields(self.schema, found)
        return self.schema != before

    def rejection_reason(self, *, may_grow: bool) -> Callable[[bytes], str]:
        """Implement `Values`."""
        return _Reader(self._decoder, self.schema).rejection_reason


class _Reader:
    """Converter of values to rows of the lake's schema; can be pickled."""

    def __init__(self, decoder: ValueDecoder, schema: Struct) -> None:
        self._decoder, self._schema = decoder, schema
        self._fields: dict[Hashable, Struct] = {}
        self._mismatches: dict[Hashable, str] = {}

    def writer_schema_id(self, value: bytes) -> Hashable:
        """Return the ID of the schema that wrote a value. Raises UndecodableError."""
        return self._decoder.writer_schema_id(value)

    def fields_of(self, writer: Hashable) -> Struct:
        """Return the fields of a writer schema.

        Raises:
            UndecodableError: The schema is unknown, or a field has no column type.
            SchemaError: The registry does not respond.
        """
        if writer not in self._fields:
            schema = self._decoder.writer_schema(writer)
            try:
                self._fields[writer] = _fields(self._decoder.type_of(schema))
            except SchemaError as error:
                raise UndecodableError(f"schema {writer}: {error}") from error
        return self._fields[writer]

    def mismatch(self, writer: Hashable) -> str:
        """Return the first field that the lake's columns cannot hold; empty if all fit."""
        if writer not in self._mismatches:
            found = self.fields_of(writer)
            grown = fields.with_fields(self._schema, found)
            self._mismatches[writer] = next(_differences(grown, found), "")
        return self._mismatches[writer]

    def is_new(self, writer: Hashable) -> bool:
        """Return True if a writer schema has fields that the lake's schema lacks."""
        return fields.with_fields(self._schema, self.fields_of(writer)) != self._schema

    def row(self, value: bytes) -> dict[str, object]:
        """Return a value's fields by column. Raises as `fields_of` does."""
        decoded = self._decoder.decode(value)
        columns = self._schema["fields"]
        return {field["name"]: decoded.get(fields.field_name(field)) for field in columns}

    def rejection_reason(self, value: bytes) -> str:
        """Return why a value cannot be read."""
        try:
            writer = self.writer_schema_id(value)
            self.row(value)
            why = self.mismatch(writer)
        except UndecodableError as error:
            return str(error)
        return why or f"schema {writer} has fields that cannot be added"


def _decoded(reader: _Reader, may_grow: bool, value: bytes | None) -> dict[str, object]:
    """Return a row of payload columns with the flags."""
    if value is None:
        return {BAD: False, NEW: False}
    value = bytes(value)
    try:
        writer = reader.writer_schema_id(value)
        new = reader.is_new(writer)
        bad = bool(reader.mismatch(writer)) or (new and not may_grow)
        row = {} if bad or new else reader.row(value)
    except UndecodableError:
        return {BAD: True, NEW: False}
    return {**row, BAD: bad, NEW: new and not bad}


def _fields(kind: DataType) -> Struct:
    """Return the fields of a type, with widened number types. Raises SchemaError."""
    from pyspark.sql.types import StructType

    if not isinstance(kind, StructType):
        raise SchemaError("not a record")
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
    """Yield the fields whose type differs from the lake's, at any depth."""
    by_name = {fields.field_name(field): field["type"] for field in kept["fields"]}
    for field in found["fields"]:
        kind = by_name.get(field["name"])
        if not _holds(kind, field["type"]):
            yield f"{field['name']}: {_describe(field['type'])}, expected {_describe(kind)}"


def _describe(kind: Type) -> str:
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
