"""Protobuf values with Confluent's header: schema ID and index path of the message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.spark.protobuf import Decoder, MessageType, Writer, spark_type, split_writer

from .commits import LakeError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


class ProtobufWriters:
    """`Writers` for Protobuf."""

    def __init__(self, address: str | None) -> None:
        """Create the decoder for a registry's URL. Raises LakeError for anything else."""
        if address is None or not address.startswith(("http://", "https://")):
            raise LakeError("--format protobuf needs --schema: the URL of a schema registry")
        self._decoder = Decoder(address)

    def writer(self, value: bytes) -> Writer:
        """Implement `Writers`."""
        return split_writer(value)[0]

    def schema(self, writer: Writer) -> MessageType:
        """Implement `Writers`."""
        return self._decoder.schema(writer)

    def type_of(self, schema: MessageType) -> DataType:
        """Implement `Writers`."""
        return spark_type(schema)

    def decode(self, value: bytes) -> dict[str, object]:
        """Implement `Writers`."""
        return self._decoder.decode(value)
