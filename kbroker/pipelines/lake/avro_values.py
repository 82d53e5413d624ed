"""Avro values, which have a header with their schema's number, or all the one schema of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.spark.avro import Decoder, Parsed, Schema, spark_type
from kbroker.spark.schema_registry import header_of, split_header

from .commits import LakeError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_ONLY = header_of(0)
"""The header that a value would have if its one schema had the number 0."""


class AvroWriters:
    """See `Writers`."""

    def __init__(self, source: str | None) -> None:
        """`source` is a schema file, a directory of ``<number>.avsc`` or a registry's address.

        Raises:
            LakeError: it is none of these.
        """
        if source is None:
            raise LakeError(
                "--format avro needs --schema: a schema file, a directory of <number>.avsc, or the "
                "address of a schema registry"
            )
        path = Path(source)
        self._header = _ONLY if path.is_file() else b""
        self._decoder = Decoder({0: path.read_text("utf-8")} if path.is_file() else source)

    def writer(self, value: bytes) -> int:
        """See `Writers`."""
        return split_header(self._header + value)[0]

    def schema(self, writer: int) -> Parsed:
        """See `Writers`."""
        return self._decoder.schema(writer)

    def type_of(self, schema: Schema) -> DataType:
        """See `Writers`."""
        return spark_type(schema)

    def decode(self, value: bytes) -> dict[str, object]:
        """See `Writers`."""
        return self._decoder.decode(self._header + value)
