"""Spark columns whose values are decoded or encoded by Python functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kbroker.client.schema_registry import UndecodableError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType


def decoded_column(
    column: Column | str, decode: Callable[[bytes], dict[str, object]], type_: DataType, mode: str
) -> Column:
    """Return a column of structs that `decode` returns for values; null values stay null.

    The function runs in Python workers.

    Args:
        column: Binary column.
        decode: Returns the fields of a value, or raises UndecodableError.
        type_: Spark type of the structs.
        mode: "FAILFAST" fails the query on UndecodableError, "PERMISSIVE" returns null.

    Returns:
        The column of structs.

    Raises:
        ValueError: The mode is unknown.
    """
    from pyspark.sql.functions import udf

    if mode not in ("FAILFAST", "PERMISSIVE"):
        raise ValueError(f"unknown mode {mode!r} (valid: FAILFAST, PERMISSIVE)")
    permissive = mode == "PERMISSIVE"

    def decoded(value: bytes | None) -> dict[str, object] | None:
        if value is None:
            return None
        try:
            return decode(bytes(value))
        except UndecodableError:
            if permissive:
                return None
            raise

    return udf(decoded, type_, useArrow=False)(column)


def encoded_column(column: Column | str, encode: Callable[[Mapping[str, object]], bytes]) -> Column:
    """Return a binary column that `encode` returns for structs; null structs stay null.

    The function runs in Python workers.

    Args:
        column: Column of structs.
        encode: Returns the bytes for the fields of a struct.

    Returns:
        The binary column.
    """
    from pyspark.sql.functions import udf
    from pyspark.sql.types import BinaryType

    def encoded(value: object) -> bytes | None:
        return None if value is None else encode(_without_rows(value))

    return udf(encoded, BinaryType(), useArrow=False)(column)


def _without_rows(value: Any) -> Any:
    """Convert the Row and bytearray objects that Spark passes to Python to dicts and bytes."""
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, dict):
        return {name: _without_rows(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_rows(each) for each in value]
    return bytes(value) if isinstance(value, bytearray) else value
