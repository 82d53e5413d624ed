"""Avro records as Confluent's serializers write them: a schema's number before each value.

The first five bytes of such a value are a zero and the number (big endian) of the schema that wrote
the rest. Spark's own ``from_avro`` does not know them. Schemas come from a mapping, a folder or a
registry; each is looked up once.

    decoder = Decoder("http://registry:8081")
    decoder.decode(value)                                    # a dict

    rows.select(from_confluent_avro("value", "schemas/", reader_schema))     # a column of structs
    rows.select(to_confluent_avro("order", "http://registry:8081", "orders-value", schema))  # and back
"""

from __future__ import annotations

import base64
import io
import json
import struct
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

Schema = Mapping[str, Any] | list[Any] | str
"""An Avro schema as JSON says it: an object, a union, or a name."""
Source = Mapping[int, Schema] | Path | str
"""Where schemas come from: by number, a folder of ``<number>.avsc``, or a registry's address."""

HEADER = struct.Struct(">BI")
_MAGIC = 0
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_PLAIN = frozenset({"uuid", "time-millis", "time-micros"})
"""Logical types whose values stay what they are written as: text, or a number."""
_SCHEMA_BYTES_MAX = 4 * 1024 * 1024
_REFERENCES_MAX = 100
_TIMEOUT_S = 10.0


class SchemaError(Exception):
    """Schemas cannot be had or used: no record can be judged until that has changed."""


class UndecodableError(ValueError):
    """These bytes are no Avro value of a known schema; the message says why."""


class UnencodableError(ValueError):
    """These fields are no value of the schema; the message says why."""


class UnknownSchemaError(UndecodableError):
    """The header names a schema that the source does not have."""


class Decoder:
    """Decodes values whose schema is a record.

    Parameters: `read_as` is the schema (Avro JSON, as object or text) that every value is turned
    into by Avro's rules of resolution; without it a value has the fields that its writer gave it.

    A decoder can be sent to Spark's workers. It is not thread-safe.
    """

    def __init__(self, source: Source, read_as: Schema | None = None) -> None:
        self._source = source
        self._read_as = _reader(read_as) if read_as is not None else None
        self._writers: dict[int, Any] = {}

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

    def schema(self, schema_id: int) -> Any:
        """The parsed schema of a number.

        Raises:
            UnknownSchemaError: there is none of this number.
            SchemaError: the registry does not answer, or what it has is no Avro schema.
        """
        if schema_id not in self._writers:
            self._writers[schema_id] = _load(self._source, schema_id)
        return self._writers[schema_id]


def split_header(value: bytes) -> tuple[int, memoryview]:
    """The number of the schema, and the bytes that it wrote.

    Raises:
        UndecodableError: the value has no such header.
    """
    if len(value) < HEADER.size:
        raise UndecodableError(f"{len(value)} bytes are too few for a schema's number")
    magic, schema_id = HEADER.unpack_from(value)
    if magic != _MAGIC:
        raise UndecodableError(f"the first byte is {magic:#04x}, not the 0x00 of Avro")
    return schema_id, memoryview(value)[HEADER.size :]


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
    from pyspark.sql.functions import udf

    if mode not in ("FAILFAST", "PERMISSIVE"):
        raise ValueError(f"mode={mode}: it is FAILFAST or PERMISSIVE")
    decoder, permissive = Decoder(source, read_as), mode == "PERMISSIVE"

    def decoded(value: bytes | None) -> dict[str, Any] | None:
        if value is None:
            return None
        try:
            return decoder.decode(bytes(value))
        except UndecodableError:
            if permissive:
                return None
            raise

    return udf(decoded, spark_type(read_as), useArrow=False)(column)


class Encoder:
    """Encodes values of one schema, which is that of a record and has a number.

    An encoder can be sent to Spark's workers.
    """

    def __init__(self, schema_id: int, schema: Schema) -> None:
        parsed = _parsed(schema)
        if not isinstance(parsed, dict) or parsed["type"] != "record":
            raise SchemaError("values are records, and the schema is none of one")
        self._header = HEADER.pack(_MAGIC, schema_id)
        self._schema = parsed

    @classmethod
    def registered(cls, address: str, subject: str, schema: Schema) -> Encoder:
        """With the number that a registry gives the schema, or has given it before.

        Raises:
            SchemaError: the registry does not answer or refuses it, or it is no schema of a record.
        """
        cls(0, schema)  # what is none is not registered
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return cls(_Registry(address).register(subject, text), schema)

    def encode(self, fields: Mapping[str, Any]) -> bytes:
        """The value of these fields; those that are not there have their defaults.

        Raises:
            UnencodableError: they do not fit the schema.
        """
        import fastavro

        stream = io.BytesIO(self._header)
        stream.seek(0, io.SEEK_END)
        try:
            fastavro.schemaless_writer(
                stream,
                self._schema,
                fields,
                strict_allow_default=True,
                disable_tuple_notation=True,
            )
        except Exception as error:  # fastavro raises whatever wrong values lead to
            name = self._schema["name"]
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
    from pyspark.sql.functions import udf
    from pyspark.sql.types import BinaryType

    encoder = Encoder.registered(address, subject, schema)

    def encoded(value: Any) -> bytes | None:
        return None if value is None else encoder.encode(_without_rows(value))

    return udf(encoded, BinaryType(), useArrow=False)(column)


def _without_rows(value: Any) -> Any:
    """What Spark hands to Python as fastavro takes it."""
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, dict):
        return {name: _without_rows(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_rows(each) for each in value]
    return bytes(value) if isinstance(value, bytearray) else value


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

    def of(self, schema: Any) -> DataType:
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

    def _record(self, schema: Any) -> DataType:
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

    def _union(self, branches: list[Any]) -> DataType:
        some = [branch for branch in branches if branch != "null"]
        if len(some) != 1:
            raise SchemaError(
                f"Spark has no type for the union {branches}: read as a schema with one type there"
            )
        return self.of(some[0])


def _load(source: Source, schema_id: int) -> Any:
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
        return _Registry(source).schema(schema_id)
    path = Path(source, f"{schema_id}.avsc")
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if path.parent.is_dir():
            raise UnknownSchemaError(f"there is no {path}") from None
        raise SchemaError(f"there is no folder {path.parent} with schemas") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"{path} cannot be read: {error}") from error


class _Registry:
    """Asks a schema registry over HTTP; user and password may stand in its address."""

    def __init__(self, address: str) -> None:
        parts = urllib.parse.urlsplit(address)
        host = parts.netloc.rpartition("@")[2]
        self._base = f"{parts.scheme}://{host}{parts.path}".rstrip("/")
        self._headers = dict.fromkeys(("Accept", "Content-Type"), _CONTENT_TYPE)
        if parts.username is not None:
            user = f"{urllib.parse.unquote(parts.username)}:"
            user += urllib.parse.unquote(parts.password or "")
            self._headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()

    def schema(self, schema_id: int) -> Any:
        answer = self._ask(f"schemas/ids/{schema_id}")
        if answer is None:
            raise UnknownSchemaError(f"{self._base} has no schema {schema_id}")
        if (kind := answer.get("schemaType", "AVRO")) != "AVRO":
            raise UndecodableError(f"schema {schema_id} is {kind}, not Avro")
        named: dict[str, Any] = {}
        self._add_references(answer, named, set())
        return _parsed(answer.get("schema"), named)

    def register(self, subject: str, text: str) -> int:
        """The number of a schema. Raises SchemaError."""
        path = f"subjects/{urllib.parse.quote(subject, safe='')}/versions"
        answer = self._ask(path, {"schema": text})
        schema_id = (answer or {}).get("id")
        if not isinstance(schema_id, int):
            raise SchemaError(f"{self._base} gives the schema of {subject} no number")
        return schema_id

    def _add_references(
        self, answer: dict[str, Any], named: dict[str, Any], seen: set[tuple[str, int]]
    ) -> None:
        """Parse what a schema refers to, before itself."""
        for reference in answer.get("references") or ():
            key = (str(reference["subject"]), int(reference["version"]))
            if key in seen:
                continue
            seen.add(key)
            if len(seen) > _REFERENCES_MAX:
                raise SchemaError(f"a schema refers to more than {_REFERENCES_MAX} others")
            found = self._ask(f"subjects/{urllib.parse.quote(key[0], safe='')}/versions/{key[1]}")
            if found is None:
                raise SchemaError(f"{self._base} has no version {key[1]} of {key[0]}")
            self._add_references(found, named, seen)
            _parsed(found.get("schema"), named)

    def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """The registry's answer; None when it does not know the thing."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._base}/{path}", data, self._headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                answer = json.loads(response.read(_SCHEMA_BYTES_MAX))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
                why = _message_of(error) or error.reason
            raise SchemaError(f"{self._base}/{path} answers {error.code} {why}") from error
        except (OSError, ValueError) as error:
            raise SchemaError(
                f"the schema registry {self._base} does not answer as one: {error}"
            ) from error
        if not isinstance(answer, dict):
            raise SchemaError(f"{self._base} is no schema registry")
        return answer


def _message_of(error: urllib.error.HTTPError) -> str:
    """What a registry says of its refusal, if it is one that does."""
    try:
        return str(json.loads(error.read(_SCHEMA_BYTES_MAX))["message"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def _parsed(schema: Any, named: dict[str, Any] | None = None) -> Any:
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


def _reader(schema: Schema) -> Any:
    """A parsed schema to read as. fastavro puts defaults in as JSON has them: they are decoded."""
    import fastavro

    named: dict[str, Any] = {}
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


def _with_plain_values(schema: Any) -> Any:
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
