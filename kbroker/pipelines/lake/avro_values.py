"""Decoding of Avro values that have Confluent's schema ID header or all use one schema file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.client.schema_registry import header_of, split_header
from kbroker.spark.avro import Decoder, Parsed, Schema, spark_type

from .commits import LakeError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

# Header that is prepended to values without one. With a schema file, the schema ID is always 0.
_FILE_SCHEMA_HEADER = header_of(0)


class AvroValueDecoder:
    """`ValueDecoder` for Avro values."""

    def __init__(self, source: str | None) -> None:
        """Select the schemas.

        Args:
            source: A schema file, a directory of ``<ID>.avsc`` files, or the URL of a registry.

        Raises:
            LakeError: `source` is missing.
        """
        if source is None:
            raise LakeError(
                "--format avro needs --schema: a schema file, a directory of <ID>.avsc files, or "
                "the URL of a schema registry"
            )
        path = Path(source)
        self._header = _FILE_SCHEMA_HEADER if path.is_file() else b""
        self._decoder = Decoder({0: path.read_text("utf-8")} if path.is_file() else source)

    def writer_schema_id(self, value: bytes) -> int:
        """Return the schema ID in the header of a value."""
        return split_header(self._header + value)[0]

    def writer_schema(self, schema_id: int) -> Parsed:
        """Return the schema with an ID."""
        return self._decoder.schema(schema_id)

    def type_of(self, schema: Schema) -> DataType:
        """Return the Spark type of a schema."""
        return spark_type(schema)

    def decode(self, value: bytes) -> dict[str, object]:
        """Return the fields of a value by name."""
        return self._decoder.decode(self._header + value)
