"""Avro records as Confluent's serializers write them: a schema's number before each value.

The first five bytes of such a value are a zero and the number (big endian) of the schema that wrote
the rest. Spark's own ``from_avro`` does not know them. Schemas come from a mapping, a directory or a
registry; each is looked up once.

    decoder = Decoder("http://registry:8081")
    decoder.decode(value)                                    # a dict

    rows.select(from_confluent_avro("value", "schemas/", reader_schema))     # a column of structs
    rows.select(to_confluent_avro("order", "http://registry:8081", "orders-value", schema))  # and back
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from .schema_registry import (
    SchemaError,
    SchemaRegistry,
    UndecodableError,
    UnencodableError,
    UnknownSchemaError,
    header_of,
    split_header,
)

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

Schema = Mapping[str, object] | list[object] | str
"""An Avro schema as JSON says it: an object, a union, or a name."""
Parsed: TypeAlias = Any
"""An Avro schema as fastavro has parsed it, at any depth: an object, a union, or a name."""
Source = Mapping[int, Schema] | Path | str
"""Where schemas come from: by number, a directory of ``<number>.avsc``, or a registry's address."""

_PLAIN = frozenset({"uuid", "time-millis", "time-micros"})
"""Logical types whose values stay what they are written as: text, or a number."""


class Decoder:
    """Decodes values whose schema is a record.

    Parameters: `read_as` is the schema (Avro JSON, as object or text) that every value is turned
    into by Avro's rules of resolution; without it a value has the fields that its writer gave it.

    A decoder can be sent to Spark's workers. It is not thread-safe.
    """

    def __init__(self, source: Source, read_as: Schema | None = None) -> None:
        self._source = source
        self._read_as = _with_defaults(read_as, {}) if read_as is not None else None
        self._writers: dict[int, Parsed] = {}

    def decode(self, value: bytes) -> dict[str, Any]:
        """The fields of a value.

        Raises:
            UndecodableError: the header or the rest is wrong, or bytes are left over.
            SchemaError: the registry does not answer, or what it has is no Avro schema.
        """
        import fastavro

        schema_id, body = split_header(value)
        writer = self.schema(schema_id)
        stream = io.BytesIO(body)
        try:
            fields = fastavro.schemaless_reader(stream, writer, self._read_as)
        except Exception as error:  # fastavro raises whatever wrong bytes lead to
            raise UndecodableError(f"not a value of schema {schema_id}: {error!r}") from error
        if left := len(body) - stream.tell():
            raise UndecodableError(f"{left} bytes are left after a value of schema {schema_id}")
        if not isinstance(fields, dict):
            raise UndecodableError(f"schema {schema_id} is no record")
        return fields

    def schema(self, schema_id: int) -> Parsed:
        """The parsed schema of a number.

        Raises:
            UnknownSchemaError: there is none of this number.
            SchemaError: the registry does not answer, or what it has is no Avro schema.
        """
        if schema_id not in self._writers:
            self._writers[schema_id] = _load(self._source, schema_id)
        return self._writers[schema_id]


def from_confluent_avro(
    column: Column | str, source: Source, read_as: Schema, *, mode: str = "FAILFAST"
) -> Column:
    """A column of structs with the fields of `read_as`; null where `column` is null.

    `mode` is as in Spark's ``from_avro``: FAILFAST lets the query fail at a value that cannot be
    decoded, PERMISSIVE makes it null. Decoding runs in Python workers.

    Raises:
        SchemaError: `read_as` is no schema of a record, or has a type that Spark has not.
        ValueError: an unknown mode.
    """
    from .value_columns import decoded_column

    return decoded_column(column, Decoder(source, read_as).decode, spark_type(read_as), mode)


class Encoder:
    """Encodes values of one schema, which is that of a record and has a number.

    Parameters: `named` are the types that the schema refers to and does not have in itself, by name.

    An encoder can be sent to Spark's workers.
    """

    def __init__(
        self, schema_id: int, schema: Schema, named: Mapping[str, Parsed] | None = None
    ) -> None:
        self.named = dict(named or {})
        """All types that have names, the record itself too."""
        self.schema = _with_defaults(schema, self.named)
        """As fastavro has it parsed."""
        if not isinstance(self.schema, dict) or self.schema["type"] != "record":
            raise SchemaError("values are records, and the schema is none of one")
        self.schema_id = schema_id
        self._header = header_of(schema_id)

    @classmethod
    def registered(cls, address: str, subject: str, schema: Schema) -> Encoder:
        """With the number that a registry gives the schema, or has given it before.

        Raises:
            SchemaError: the registry does not answer or refuses it, or it is no schema of a record.
        """
        cls(0, schema)  # what is none is not registered
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return cls(SchemaRegistry(address).register(subject, {"schema": text}), schema)

    @classmethod
    def latest(cls, address: str, subject: str) -> Encoder:
        """Of the newest schema that a registry has under a subject.

        Raises:
            SchemaError: the registry does not answer or has no such subject, or its newest schema is
                not Avro, or no record.
        """
        registry = SchemaRegistry(address)
        answer = registry.latest(subject, "AVRO")
        return cls(answer["id"], answer["schema"], _types_referred(registry, answer))

    def encode(self, fields: Mapping[str, object], *, branches_named: bool = False) -> bytes:
        """The value of these fields; those that are not there have their defaults.

        With `branches_named` what stands in a union may be a pair: the type's name, and the value.

        Raises:
            UnencodableError: they do not fit the schema.
        """
        import fastavro

        stream = io.BytesIO(self._header)
        stream.seek(0, io.SEEK_END)
        try:
            fastavro.schemaless_writer(
                stream,
                self.schema,
                fields,
                strict_allow_default=True,
                disable_tuple_notation=not branches_named,
            )
        except Exception as error:  # fastavro raises whatever wrong values lead to
            name = self.schema["name"]
            raise UnencodableError(f"these fields are no {name}: {error!r}") from error
        return stream.getvalue()


def to_confluent_avro(column: Column | str, address: str, subject: str, schema: Schema) -> Column:
    """A column of values for a topic, of structs that have the fields of `schema`; null where
    `column` is null.

    The schema is registered under `subject` once, when this is called, and not by Python's workers,
    in which values are encoded. A struct that does not fit it fails the query.

    Raises:
        SchemaError: the registry does not answer or refuses it, or it is no schema of a record.
    """
    from .value_columns import encoded_column

    return encoded_column(column, Encoder.registered(address, subject, schema).encode)


def spark_type(schema: Schema) -> DataType:
    """The Spark type for an Avro schema; null in a union makes a field nullable.

    Raises:
        SchemaError: it is no schema, or has a type that Spark has not (unions of several types).
    """
    return _SparkTypes().of(_parsed(schema))


class _SparkTypes:
    """Translates one parsed schema; remembers the records in it by name."""

    def __init__(self) -> None:
        from pyspark.sql import types

        self._types = types
        self._named: dict[str, DataType] = {}
        self._simple = {
            "boolean": types.BooleanType(), "int": types.IntegerType(), "long": types.LongType(),
            "float": types.FloatType(), "double": types.DoubleType(), "null": types.NullType(),
            "string": types.StringType(), "bytes": types.BinaryType(),
            "enum": types.StringType(), "fixed": types.BinaryType(),
            "date": types.DateType(), "timestamp-millis": types.TimestampType(),
            "timestamp-micros": types.TimestampType(),
            "local-timestamp-millis": types.TimestampNTZType(),
            "local-timestamp-micros": types.TimestampNTZType(),
        }  # fmt: skip

    def of(self, schema: Parsed) -> DataType:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return self._reference(schema)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema)
        if kind == "array":
            return self._types.ArrayType(self.of(schema["items"]))
        if kind == "map":
            return self._types.MapType(self._types.StringType(), self.of(schema["values"]))
        if kind in ("enum", "fixed"):
            self._named[schema["name"]] = self._simple[kind]
        if schema.get("logicalType") == "decimal":
            return self._types.DecimalType(schema["precision"], schema.get("scale", 0))
        return self._simple.get(schema.get("logicalType", ""), None) or self.of(kind)

    def _record(self, schema: Parsed) -> DataType:
        fields = [
            self._types.StructField(field["name"], self.of(field["type"]))
            for field in schema["fields"]
        ]
        self._named[schema["name"]] = self._types.StructType(fields)
        return self._named[schema["name"]]

    def _reference(self, name: str) -> DataType:
        found = self._simple.get(name) or self._named.get(name)
        if found is None:
            raise SchemaError(f"{name} is in itself, or no Avro type: Spark has no type for it")
        return found

    def _union(self, branches: list[Parsed]) -> DataType:
        some = [branch for branch in branches if branch != "null"]
        if len(some) != 1:
            raise SchemaError(
                f"Spark has no type for the union {branches}: read as a schema with one type there"
            )
        return self.of(some[0])


def _load(source: Source, schema_id: int) -> Parsed:
    """The parsed schema of a number.

    Raises:
        UnknownSchemaError: the source has none of this number.
        SchemaError: the source does not answer, or what it has is no Avro schema.
    """
    if isinstance(source, Mapping):
        if schema_id not in source:
            raise UnknownSchemaError(f"no schema has the number {schema_id}")
        return _parsed(source[schema_id])
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        return _registered(SchemaRegistry(source), schema_id)
    path = Path(source, f"{schema_id}.avsc")
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if path.parent.is_dir():
            raise UnknownSchemaError(f"there is no {path}") from None
        raise SchemaError(f"there is no directory {path.parent} with schemas") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"{path} cannot be read: {error}") from error


def _registered(registry: SchemaRegistry, schema_id: int) -> Parsed:
    """The parsed schema of a number, with what it refers to. Raises as `_load` does."""
    answer = registry.schema(schema_id, "AVRO")
    return _parsed(answer.get("schema"), _types_referred(registry, answer))


def _types_referred(registry: SchemaRegistry, answer: Mapping[str, object]) -> dict[str, Parsed]:
    """The parsed types that a schema refers to, by name. Raises SchemaError."""
    named: dict[str, Parsed] = {}
    for _, referred in registry.referred(answer):
        _parsed(referred.get("schema"), named)
    return named


def _parsed(schema: object, named: dict[str, Parsed] | None = None) -> Parsed:
    """A schema as fastavro wants it, from JSON or its text; `named` gets the types in it."""
    import fastavro

    if isinstance(schema, str) and schema.lstrip()[:1] in ("{", "[", '"'):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise SchemaError(f"a schema is not JSON: {error}") from error
    try:
        return fastavro.parse_schema(_with_plain_values(schema), named if named is not None else {})
    except Exception as error:  # fastavro raises whatever a wrong schema leads to
        raise SchemaError(f"not an Avro schema: {error!r}") from error


def _with_defaults(schema: Schema, named: dict[str, Parsed]) -> Parsed:
    """A parsed schema to read or write as; `named` gets the types in it.

    fastavro puts defaults in as JSON has them: they are decoded.
    """
    import fastavro

    parsed = _parsed(schema, named)
    records = [each for each in (parsed, *named.values()) if "fields" in each]
    fields = {id(field): field for record in records for field in record["fields"]}
    for field in fields.values():
        if "default" in field:
            kind = field["type"][0] if isinstance(field["type"], list) else field["type"]
            text = io.StringIO(json.dumps(field["default"]))
            try:
                field["default"] = next(fastavro.json_reader(text, named.get(str(kind), kind)))
            except Exception as error:  # fastavro raises whatever a wrong default leads to
                raise SchemaError(f"{field['name']} has a wrong default: {error!r}") from error
    return parsed


def _with_plain_values(schema: object) -> object:
    """The schema without the logical types that neither JSON nor Spark know."""
    if isinstance(schema, list):
        return [_with_plain_values(each) for each in schema]
    if isinstance(schema, Mapping):
        plain = schema.get("logicalType") in _PLAIN
        return {
            name: _with_plain_values(value)
            for name, value in schema.items()
            if not (plain and name == "logicalType")
        }
    return schema
