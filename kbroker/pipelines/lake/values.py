"""From the bytes of values to columns: what each format does to the rows of a batch."""

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

BAD, NEW = "__kbroker_bad", "__kbroker_new"
"""Columns: whether a value cannot be read, and whether it has what the schema does not know."""
VALUE = "__kbroker_value"
_CORRUPT = "__kbroker_corrupt"
_END = 2**31 - 1
"""Bytes that nobody has so many of."""
_PARSED, _TEXT = "__kbroker_parsed", "__kbroker_text"
_STRICT = {
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}


class Values(Protocol):
    """How the values of one topic are read."""

    @property
    def schema(self) -> Struct:
        """What the payload's columns are."""

    def shaped(self, rows: DataFrame, *, may_grow: bool) -> DataFrame:
        """Payload columns, ``record``, `VALUE`, `BAD` and `NEW`.

        `rows` have ``record`` and `VALUE`. Unless the schema may grow, what is new is bad.
        """

    def grow(self, values: list[bytes]) -> bool:
        """Take what is new in values into the schema; False when nothing could be taken."""

    def why_not(self, *, may_grow: bool) -> Callable[[bytes], str]:
        """A function that says why a value is bad; it can be sent to workers."""


class RawValues:
    """Values stay the bytes that they are."""

    schema = fields.struct(
        [{"name": PAYLOAD_OF_RAW, "type": "binary", "nullable": True, "metadata": {}}]
    )

    def shaped(self, rows: DataFrame, *, may_grow: bool) -> DataFrame:
        """See `Values`."""
        from pyspark.sql import functions as F

        no = F.lit(False)
        return rows.select(
            F.col(VALUE).alias(PAYLOAD_OF_RAW), RECORD, VALUE, no.alias(BAD), no.alias(NEW)
        )

    def grow(self, values: list[bytes]) -> bool:
        """See `Values`."""
        return False

    def why_not(self, *, may_grow: bool) -> Callable[[bytes], str]:
        """See `Values`."""
        return _never_bad


class JsonValues:
    """Values are JSON objects; Spark parses them, once.

    Five bytes that begin with a zero, which no JSON does, are the number of a schema that a serializer of
    Confluent's has put before the object.
    """

    def __init__(self, schema: Struct) -> None:
        self.schema = schema

    def shaped(self, rows: DataFrame, *, may_grow: bool) -> DataFrame:
        """See `Values`."""
        from pyspark.sql import functions as F

        text = rows.withColumn(_TEXT, _without_number(F.col(VALUE)).cast("string"))
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
        """See `Values`."""
        before = self.schema
        self.schema = fields.grown(before, _objects(values))
        return self.schema != before

    def why_not(self, *, may_grow: bool) -> Callable[[bytes], str]:
        """See `Values`."""
        return partial(fields.why_not, schema=self.schema, may_grow=may_grow)

    def _parsed_as(self) -> StructType:
        """What from_json reads: void as text, so that what comes there first is seen."""
        from pyspark.sql.types import StringType, StructField, StructType

        each = [
            StructField(fields.field_name(field), spark_type(_void_as_text(field["type"])))
            for field in self.schema["fields"]
        ]
        return StructType([*each, StructField(_CORRUPT, StringType())])

    def _columns(self) -> list[Column]:
        """The payload's columns."""
        parsed, names = self._parsed_by_name()
        return [
            _without_void(parsed.getField(name), field["type"]).alias(field["name"])
            for name, field in zip(names, self.schema["fields"], strict=True)
            if fields.without_void(field["type"]) is not None
        ]

    def _parsed_by_name(self) -> tuple[Column, list[str]]:
        """What was parsed, and its fields' names: numbers where some differ in case only."""
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
        # Each name has a colon: as many colons as known fields with a value leave no other name.
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
    """The PySpark type for a type in Spark's JSON form."""
    from pyspark.sql.types import StructType

    one = fields.struct([{"name": "x", "type": kind, "nullable": True, "metadata": {}}])
    return StructType.fromJson(one).fields[0].dataType


def _never_bad(_: bytes) -> str:
    return "not readable"


def _without_number(value: Column) -> Column:
    """The same as `fields.without_number`."""
    from pyspark.sql import functions as F

    is_numbered = F.substring(value, 1, 1) == F.lit(fields.NUMBERED)
    return F.when(is_numbered, F.substring(value, fields.NUMBER_BYTES + 1, _END)).otherwise(value)


def _objects(values: list[bytes]) -> list[dict[str, object]]:
    """The JSON objects among values."""
    found = []
    for value in values:
        try:
            parsed = json.loads(fields.without_number(value))
        except (ValueError, RecursionError):
            continue
        if isinstance(parsed, dict):
            found.append(parsed)
    return found


def _is_one_value(text: Column) -> Column:
    """Whether nothing stands after the value: from_json would not say so.

    An object without an inner one ends at its only brace, which is cheap to see.
    """
    from pyspark.sql import functions as F

    until_second = F.octet_length(F.substring_index(text, "}", 2))
    only_brace = F.endswith(text, F.lit("}")) & (until_second == F.octet_length(text))
    alone = F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1
    return only_brace | F.coalesce(alone, F.lit(False))


def _has_more_colons(text: Column, count: Column) -> Column:
    """Whether a text has more than so many colons; without a copy of it where it has not."""
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
    """Whether the object of a text has a field that the struct has not, at any depth."""
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
    """The same for a field's own text, which is an object, an array or a map."""
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
    """Whether a value has come where the schema has only seen null."""
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
    """The column without its parts that have no type yet."""
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
