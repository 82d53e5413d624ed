"""Avro values in Confluent's wire format: a schema ID followed by the Avro body.

The first five bytes of such a value are a zero byte and the ID (big endian) of the writer schema.
Spark's own ``from_avro`` does not read this header. Schemas come from a mapping, a directory or a
schema registry; each schema is loaded once.

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

from kbroker.client.schema_registry import (
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

# An Avro schema as JSON: an object, a union (list), or a type name.
Schema = Mapping[str, object] | list[object] | str
# An Avro schema (or part of one) parsed by fastavro: an object, a union, or a type name.
Parsed: TypeAlias = Any
# Schemas by ID: a mapping, a directory of ``<ID>.avsc`` files, or the URL of a registry.
Source = Mapping[int, Schema] | Path | str

# Logical types that are not converted: their values stay strings or numbers.
_PLAIN = frozenset({"uuid", "time-millis", "time-micros"})


class Decoder:
    """Decoder for Avro values whose schema is a record.

    A decoder can be pickled and sent to Spark's workers. It is not thread-safe.

    Args:
        source: Where schemas are looked up by ID.
        read_as: Reader schema (Avro JSON, parsed or as a string). Every value is resolved to it by
            Avro's rules. Without it, a value has the fields of its writer schema.
    """

    def __init__(self, source: Source, read_as: Schema | None = None) -> None:
        self._source = source
        self._read_as = _with_defaults(read_as, {}) if read_as is not None else None
        self._writers: dict[int, Parsed] = {}

    def decode(self, value: bytes) -> dict[str, Any]:
        """Decode a value.

        Args:
            value: Record value including the schema ID header.

        Returns:
            The fields of the record by name.

        Raises:
            UndecodableError: The header or the body is invalid, or bytes are left over.
            SchemaError: The registry does not respond, or the schema is not valid Avro.
        """
        import fastavro

        schema_id, body = split_header(value)
        writer = self.schema(schema_id)
        stream = io.BytesIO(body)
        try:
            fields = fastavro.schemaless_reader(stream, writer, self._read_as)
        except Exception as error:  # fastavro has no common exception class
            raise UndecodableError(f"not a value of schema {schema_id}: {error!r}") from error
        if left := len(body) - stream.tell():
            raise UndecodableError(
                f"{left} bytes are left over after a value of schema {schema_id}"
            )
        if not isinstance(fields, dict):
            raise UndecodableError(f"schema {schema_id} is not a record")
        return fields

    def schema(self, schema_id: int) -> Parsed:
        """Return the parsed schema with an ID.

        Raises:
            UnknownSchemaError: The source has no schema with this ID.
            SchemaError: The registry does not respond, or the schema is not valid Avro.
        """
        if schema_id not in self._writers:
            self._writers[schema_id] = _load(self._source, schema_id)
        return self._writers[schema_id]


def from_confluent_avro(
    column: Column | str, source: Source, read_as: Schema, *, mode: str = "FAILFAST"
) -> Column:
    """Return a column of structs decoded from Avro values; null values stay null.

    Decoding runs in Python workers.

    Args:
        column: Binary column with values in Confluent's wire format.
        source: Where writer schemas are looked up by ID.
        read_as: Reader schema; it determines the fields of the structs.
        mode: As in Spark's ``from_avro``: "FAILFAST" fails the query at a value that cannot be
            decoded, "PERMISSIVE" returns null for it.

    Returns:
        The column of structs.

    Raises:
        SchemaError: `read_as` is not a record schema, or contains a type without a Spark
            equivalent.
        ValueError: The mode is unknown.
    """
    from .value_columns import decoded_column

    return decoded_column(column, Decoder(source, read_as).decode, spark_type(read_as), mode)


class Encoder:
    """Encoder for values of one registered record schema.

    An encoder can be pickled and sent to Spark's workers.

    Args:
        schema_id: ID that is written before each value.
        schema: Avro schema of a record.
        named: Types by name that the schema references but does not define.

    Attributes:
        named: All named types by name, including the record itself.
        schema: The schema as parsed by fastavro.
        schema_id: ID of the schema.

    Raises:
        SchemaError: The schema is invalid or not a record.
    """

    def __init__(
        self, schema_id: int, schema: Schema, named: Mapping[str, Parsed] | None = None
    ) -> None:
        self.named = dict(named or {})
        self.schema = _with_defaults(schema, self.named)
        if not isinstance(self.schema, dict) or self.schema["type"] != "record":
            raise SchemaError("the schema is not a record; use a schema of type 'record'")
        self.schema_id = schema_id
        self._header = header_of(schema_id)

    @classmethod
    def registered(cls, address: str, subject: str, schema: Schema) -> Encoder:
        """Register a schema and return an encoder for it.

        Registering a schema again returns its existing ID.

        Args:
            address: URL of the schema registry.
            subject: Subject to register under.
            schema: Avro schema of a record.

        Returns:
            The encoder.

        Raises:
            SchemaError: The registry does not respond or rejects the schema, or it is not a record
                schema.
        """
        cls(0, schema)  # raises for an invalid schema, before it is registered
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return cls(SchemaRegistry(address).register(subject, {"schema": text}), schema)

    @classmethod
    def latest(cls, address: str, subject: str) -> Encoder:
        """Return an encoder for the newest schema of a subject.

        Args:
            address: URL of the schema registry.
            subject: Subject to look up.

        Returns:
            The encoder.

        Raises:
            SchemaError: The registry does not respond, has no such subject, or its newest schema is
                not an Avro record.
        """
        registry = SchemaRegistry(address)
        answer = registry.latest(subject, "AVRO")
        return cls(answer["id"], answer["schema"], _types_referred(registry, answer))

    def encode(self, fields: Mapping[str, object]) -> bytes:
        """Encode a record; missing fields get their defaults.

        Args:
            fields: Field values by name.

        Returns:
            The value, with the schema ID header.

        Raises:
            UnencodableError: The fields do not match the schema.
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
                disable_tuple_notation=True,
            )
        except Exception as error:  # fastavro has no common exception class
            name = self.schema["name"]
            raise UnencodableError(f"the fields do not match {name}: {error!r}") from error
        return stream.getvalue()


def to_confluent_avro(column: Column | str, address: str, subject: str, schema: Schema) -> Column:
    """Return a column of Avro values encoded from structs; null structs stay null.

    The schema is registered when this function is called, not by the Python workers that encode the
    values. A struct that does not match the schema fails the query.

    Args:
        column: Column of structs that have the fields of `schema`.
        address: URL of the schema registry.
        subject: Subject to register under.
        schema: Avro schema of a record.

    Returns:
        The binary column, in Confluent's wire format.

    Raises:
        SchemaError: The registry does not respond or rejects the schema, or it is not a record
            schema.
    """
    from .value_columns import encoded_column

    return encoded_column(column, Encoder.registered(address, subject, schema).encode)


def spark_type(schema: Schema) -> DataType:
    """Return the Spark type of an Avro schema.

    A union with null makes a field nullable.

    Raises:
        SchemaError: The schema is invalid, or contains a type without a Spark equivalent (unions of
            several types, recursive types).
    """
    return _SparkTypes().of(_parsed(schema))


class _SparkTypes:
    """Converter of one parsed schema to Spark types; keeps the named types seen so far."""

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
            raise SchemaError(
                f"Avro type {name} is recursive or unknown; Spark has no equivalent type"
            )
        return found

    def _union(self, branches: list[Parsed]) -> DataType:
        some = [branch for branch in branches if branch != "null"]
        if len(some) != 1:
            raise SchemaError(
                f"Spark has no equivalent for the union {branches}; use a reader schema with a "
                "single type (or null and one type) in its place"
            )
        return self.of(some[0])


def _load(source: Source, schema_id: int) -> Parsed:
    """Return the parsed schema with an ID.

    Raises:
        UnknownSchemaError: The source has no schema with this ID.
        SchemaError: The source cannot be read, or the schema is not valid Avro.
    """
    if isinstance(source, Mapping):
        if schema_id not in source:
            raise UnknownSchemaError(f"no schema has the ID {schema_id}")
        return _parsed(source[schema_id])
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        return _registered(SchemaRegistry(source), schema_id)
    path = Path(source, f"{schema_id}.avsc")
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if path.parent.is_dir():
            raise UnknownSchemaError(f"schema file {path} does not exist") from None
        raise SchemaError(f"schema directory {path.parent} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"{path} cannot be read: {error}") from error


def _registered(registry: SchemaRegistry, schema_id: int) -> Parsed:
    """Return a schema of the registry, parsed with its references. Raises as `_load` does."""
    answer = registry.schema(schema_id, "AVRO")
    return _parsed(answer.get("schema"), _types_referred(registry, answer))


def _types_referred(registry: SchemaRegistry, answer: Mapping[str, object]) -> dict[str, Parsed]:
    """Return the parsed types that a schema references, by name. Raises SchemaError."""
    named: dict[str, Parsed] = {}
    for _, referred in registry.referred(answer):
        _parsed(referred.get("schema"), named)
    return named


def _parsed(schema: object, named: dict[str, Parsed] | None = None) -> Parsed:
    """Parse a schema (JSON or string) with fastavro, and add its named types to `named`."""
    import fastavro

    if isinstance(schema, str) and schema.lstrip()[:1] in ("{", "[", '"'):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise SchemaError(f"schema is not JSON: {error}") from error
    try:
        return fastavro.parse_schema(_with_plain_values(schema), named if named is not None else {})
    except Exception as error:  # fastavro has no common exception class
        raise SchemaError(f"not an Avro schema: {error!r}") from error


def _with_defaults(schema: Schema, named: dict[str, Parsed]) -> Parsed:
    """Parse a reader or writer schema, decode its defaults, and add its types to `named`.

    fastavro returns defaults in their JSON form, so they are decoded here.
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
            except Exception as error:  # fastavro has no common exception class
                raise SchemaError(
                    f"field {field['name']} has an invalid default: {error!r}"
                ) from error
    return parsed


def _with_plain_values(schema: object) -> object:
    """Return the schema without the logical types that are unknown to JSON and Spark."""
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
