"""Protobuf values with Confluent's header: schema ID and index path of the message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.spark.protobuf import Decoder, MessageType, Writer, spark_type, split_writer

from .commits import LakeError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


class ProtobufValueDecoder:
    """`ValueDecoder` for Protobuf values."""

    def __init__(self, address: str | None) -> None:
        """Use the registry at a URL. Raises LakeError for anything else."""
        if address is None or not address.startswith(("http://", "https://")):
            raise LakeError("--format protobuf needs --schema: the URL of a schema registry")
        self._decoder = Decoder(address)

    def writer_schema_id(self, value: bytes) -> Writer:
        """Return the schema ID and the index path in the header of a value."""
        return split_writer(value)[0]

    def writer_schema(self, schema_id: Writer) -> MessageType:
        """Return the message type with a schema ID and an index path."""
        return self._decoder.schema(schema_id)

    def type_of(self, schema: MessageType) -> DataType:
        """Return the Spark type of a message type."""
        return spark_type(schema)

    def decode(self, value: bytes) -> dict[str, object]:
        """Return the fields of a value by name."""
        return self._decoder.decode(value)
