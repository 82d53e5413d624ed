"""Values of Protobuf, which have a header with their schema's number and the place of their message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.spark.protobuf import Decoder, MessageType, Writer, spark_type, split_writer

from .commits import LakeError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


class ProtobufWriters:
    """See `Writers`."""

    def __init__(self, address: str | None) -> None:
        """`address` is that of a registry. Raises LakeError when it is none."""
        if address is None or not address.startswith(("http://", "https://")):
            raise LakeError("--format protobuf needs --schema: the address of a schema registry")
        self._decoder = Decoder(address)

    def writer(self, value: bytes) -> Writer:
        """See `Writers`."""
        return split_writer(value)[0]

    def schema(self, writer: Writer) -> MessageType:
        """See `Writers`."""
        return self._decoder.schema(writer)

    def type_of(self, schema: MessageType) -> DataType:
        """See `Writers`."""
        return spark_type(schema)

    def decode(self, value: bytes) -> dict[str, object]:
        """See `Writers`."""
        return self._decoder.decode(value)
