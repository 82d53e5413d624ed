"""Decoding of Avro values that have Confluent's schema ID header or all use one schema file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.spark.avro import Decoder, Parsed, Schema, spark_type
from kbroker.spark.schema_registry import header_of, split_header

from .commits import LakeError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

# Header that is prepended to values without one. With a schema file, the schema ID is always 0.
_FILE_SCHEMA_HEADER = header_of(0)


class AvroWriters:
    """`Writers` for Avro."""

    def __init__(self, source: str | None) -> None:
        """Create the decoder.

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

    def writer(self, value: bytes) -> int:
        """Implement `Writers`."""
        return split_header(self._header + value)[0]

    def schema(self, writer: int) -> Parsed:
        """Implement `Writers`."""
        return self._decoder.schema(writer)

    def type_of(self, schema: Schema) -> DataType:
        """Implement `Writers`."""
        return spark_type(schema)

    def decode(self, value: bytes) -> dict[str, object]:
        """Implement `Writers`."""
        return self._decoder.decode(self._header + value)
