"""Conversion of record values to payload columns, by format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from . import fields
from .fields import Struct, Type
from .layout import PAYLOAD_OF_RAW, RECORD

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

# Columns with flags: the value is unreadable; the value has fields that the schema lacks.
BAD, NEW = "__kbroker_bad", "__kbroker_new"
VALUE = "__kbroker_value"
_CORRUPT = "__kbroker_corrupt"
# Length for `substring` that exceeds any value.
_END = 2**31 - 1
_PARSED, _TEXT = "__kbroker_parsed", "__kbroker_text"
_STRICT = {
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}


class Values(Protocol):
    """Reader of the values of one topic."""

    @property
    def schema(self) -> Struct:
        """Schema of the payload columns."""

    def shaped(self, rows: DataFrame, *, may_grow: bool) -> DataFrame:
        """Return the payload columns, ``record``, `VALUE`, `BAD` and `NEW`.

        Args:
            rows: Rows with ``record`` and `VALUE`.
            may_grow: New fields may be added to the schema; otherwise values with new fields are
                bad.
        """

    def grow(self, values: list[bytes]) -> bool:
        """Add new fields in values to the schema; return False if none could be added."""

    def rejection_reason(self, *, may_grow: bool) -> Callable[[bytes], str]:
        """Return a picklable function that explains why a value is bad."""


class RawValues:
    """Values kept as bytes."""

    schema = fields.struct(
        [{"name": PAYLOAD_OF_RAW, "type": "binary", "nullable": True, "metadata": {}}]
    )

    def shaped(self, rows: DataFrame, *, may_grow: bool) -> DataFrame:
        """Implement `Values`."""
        from pyspark.sql import functions as F

        no = F.lit(False)
        return rows.select(
            F.col(VALUE).alias(PAYLOAD_OF_RAW), RECORD, VALUE, no.alias(BAD), no.alias(NEW)
        )

    def grow(self, values: list[bytes]) -> bool:
        """Implement `Values`."""
        return False

    def rejection_reason(self, *, may_grow: bool) -> Callable[[bytes], str]:
        """Implement `Values`."""
        return _never_bad


class JsonValues:
    """Values that are JSON objects, parsed by Spark.

    A header of five bytes that starts with a zero byte is a schema ID written by one of Confluent's
    serializers, and is skipped.
    """

    def __init__(self, schema: Struct) -> None:
        self.schema = schema

    def shaped(self, rows: DataFrame, *, may_grow: bool) -> DataFrame:
        """Implement `Values`."""
        from pyspark.sql import functions as F

        text = rows.withColumn(_TEXT, _without_schema_id(F.col(VALUE)).cast("string"))
        parsed = text.withColumn(_PARSED, F.from_json(_TEXT, self._parsed_as(), _STRICT))
        unread = F.col(_PARSED).isNull() | F.col(f"{_PARSED}.{_CORRUPT}").isNotNull()
        bad = F.col(VALUE).isNotNull() & (
            ~F.expr(f"is_valid_utf8({_TEXT})") | unread | ~_is_one_value(F.col(_TEXT))
        )
        flagged = parsed.withColumn(BAD, F.coalesce(bad, F.lit(True))).withColumn(
            NEW, ~F.col(BAD) & self._has_new()
        )
        if not may_grow:
            flagged = flagged.withColumn(BAD, F.col(BAD) | F.col(NEW)).withColumn(NEW, F.lit(False))
        return flagged.select(*self._columns(), RECORD, VALUE, BAD, NEW)

    def grow(self, values: list[bytes]) -> bool:
        """Implement `Values`."""
        before = self.schema
        self.schema = fields.grow_schema(before, _objects(values))
        return self.schema != before

    def rejection_reason(self, *, may_grow: bool) -> Callable[[bytes], str]:
        """Implement `Values`."""
        return partial(fields.rejection_reason, schema=self.schema, may_grow=may_grow)

    def _parsed_as(self) -> StructType:
        """Return the schema for from_json, with void fields as strings to detect first values."""
        from pyspark.sql.types import StringType, StructField, StructType

        each = [
            StructField(fields.field_name(field), spark_type(_void_as_text(field["type"])))
            for field in self.schema["fields"]
        ]
        return StructType([*each, StructField(_CORRUPT, StringType())])

    def _columns(self) -> list[Column]:
        """Return the payload columns."""
        parsed, names = self._parsed_by_name()
        return [
            _without_void(parsed.getField(name), field["type"]).alias(field["name"])
            for name, field in zip(names, self.schema["fields"], strict=True)
            if fields.without_void(field["type"]) is not None
        ]

    def _parsed_by_name(self) -> tuple[Column, list[str]]:
        """Return the parsed struct and its fields, numbered if names differ only in case."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType, StructField, StructType

        names = [fields.field_name(field) for field in self.schema["fields"]]
        if len({name.lower() for name in names}) == len(names):
            return F.col(_PARSED), names
        names = [f"f{index}" for index in range(len(names))]
        kinds = [_void_as_text(field["type"]) for field in self.schema["fields"]]
        each = [
            StructField(name, spark_type(kind)) for name, kind in zip(names, kinds, strict=True)
        ]
        return F.col(_PARSED).cast(StructType([*each, StructField(_CORRUPT, StringType())])), names

    def _has_new(self) -> Column:
        from pyspark.sql import functions as F

        kind = {**self.schema, "fields": [
            {**field, "name": fields.field_name(field)} for field in self.schema["fields"]
        ]}  # fmt: skip
        parsed, names = self._parsed_by_name()
        known = [F.when(parsed.getField(name).isNotNull(), 1).otherwise(0) for name in names]
        # Each name is followed by a colon: if there are no more colons than known fields with a
        # value, there are no other names.
        more = _has_more_colons(F.col(_TEXT), sum(known, F.lit(0)))
        found = more & _has_new_names(F.col(_TEXT), kind)
        if fields.has_void(kind):
            numbered = [
                {**field, "name": name}
                for name, field in zip(names, self.schema["fields"], strict=True)
            ]
            found = found | _has_value_in_void(parsed, fields.struct(numbered))
        return F.coalesce(found, F.lit(False))


def spark_type(kind: Type) -> DataType:
    """Return the PySpark type for a type in Spark's JSON form."""
    from pyspark.sql.types import StructType

    one = fields.struct([{"name": "x", "type": kind, "nullable": True, "metadata": {}}])
    return StructType.fromJson(one).fields[0].dataType


def _never_bad(_: bytes) -> str:
    return "not readable"


def _without_schema_id(value: Column) -> Column:
    """Return the value without its schema ID header, as `fields.without_schema_id` does."""
    from pyspark.sql import functions as F

    is_numbered = F.substring(value, 1, 1) == F.lit(fields.SCHEMA_ID_MAGIC)
    return F.when(
        is_numbered, F.substring(value, fields.SCHEMA_ID_HEADER_BYTES + 1, _END)
    ).otherwise(value)


def _objects(values: list[bytes]) -> list[dict[str, object]]:
    """Return the JSON objects among values."""
    found = []
    for value in values:
        try:
            parsed = json.loads(fields.without_schema_id(value))
        except (ValueError, RecursionError):
            continue
        if isinstance(parsed, dict):
            found.append(parsed)
    return found


def _is_one_value(text: Column) -> Column:
    """Return True if nothing follows the JSON value, which from_json does not check.

    The cheap test comes first: an object without nested objects ends at its only closing brace.
    """
    from pyspark.sql import functions as F

    until_second = F.octet_length(F.substring_index(text, "}", 2))
    only_brace = F.endswith(text, F.lit("}")) & (until_second == F.octet_length(text))
    alone = F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1
    return only_brace | F.coalesce(alone, F.lit(False))


def _has_more_colons(text: Column, count: Column) -> Column:
    """Return True if a text has more than `count` colons, without copying a text that has not."""
    from pyspark.sql import functions as F

    until = F.call_function("substring_index", text, F.lit(":"), count + 1)
    return F.octet_length(until) != F.octet_length(text)


def _void_as_text(kind: Type) -> Type:
    if isinstance(kind, str):
        return fields.TEXT if kind == fields.VOID else kind
    if kind["type"] == "struct":
        inner = [{**field, "type": _void_as_text(field["type"])} for field in kind["fields"]]
        return fields.struct(inner)
    key = "elementType" if kind["type"] == "array" else "valueType"
    return {**kind, key: _void_as_text(kind[key])}


def _has_new_names(text: Column, kind: Struct) -> Column:
    """Return True if the JSON object in a text has a field that the struct lacks, at any depth."""
    from pyspark.sql import functions as F

    known = F.array(*(F.lit(field["name"]) for field in kind["fields"])).cast("array<string>")
    found = F.size(F.array_except(F.json_object_keys(text), known)) > 0
    inner = [field for field in kind["fields"] if fields.has_struct(field["type"])]
    if inner:
        texts = F.from_json(text, _texts(field["name"] for field in inner))
        for field in inner:
            below = _has_new_below(texts.getField(field["name"]), field["type"])
            found = F.coalesce(found, F.lit(False)) | F.coalesce(below, F.lit(False))
    return found


def _has_new_below(text: Column, kind: Struct) -> Column:
    """Return True if the text of a field, an object, array or map, has new fields."""
    from pyspark.sql import functions as F

    if kind["type"] == "struct":
        return _has_new_names(text, kind)
    if kind["type"] == "array":
        elements = F.from_json(text, "array<string>")
        return F.exists(elements, lambda each: _has_new_below(each, kind["elementType"]))
    values = F.map_values(F.from_json(text, "map<string,string>"))
    return F.exists(values, lambda each: _has_new_below(each, kind["valueType"]))


def _texts(names: Iterable[str]) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField(name, StringType()) for name in names])


def _has_value_in_void(parsed: Column, kind: Type) -> Column:
    """Return True if a field has a value although the schema has seen only nulls."""
    from pyspark.sql import functions as F

    if isinstance(kind, str):
        return parsed.isNotNull() if kind == fields.VOID else F.lit(False)
    if kind["type"] == "struct":
        found = F.lit(False)
        for field in kind["fields"]:
            if fields.has_void(field["type"]):
                inner = _has_value_in_void(parsed.getField(field["name"]), field["type"])
                found = found | F.coalesce(inner, F.lit(False))
        return found
    if kind["type"] == "array":
        return F.exists(parsed, lambda each: _has_value_in_void(each, kind["elementType"]))
    return F.exists(F.map_values(parsed), lambda each: _has_value_in_void(each, kind["valueType"]))


def _without_void(column: Column, kind: Type) -> Column:
    """Return the column without its void parts."""
    from pyspark.sql import functions as F

    if not fields.has_void(kind):
        return column
    if kind["type"] == "struct":
        kept = [
            _without_void(column.getField(field["name"]), field["type"]).alias(field["name"])
            for field in kind["fields"]
            if fields.without_void(field["type"]) is not None
        ]
        return F.when(column.isNotNull(), F.struct(*kept))
    if kind["type"] == "array":
        return F.transform(column, lambda each: _without_void(each, kind["elementType"]))
    return F.transform_values(column, lambda _, each: _without_void(each, kind["valueType"]))
