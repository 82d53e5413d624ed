"""Columns of structs, of and for values that Python decodes and encodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .schema_registry import UndecodableError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType


def decoded_column(
    column: Column | str, decode: Callable[[bytes], dict[str, object]], type_: DataType, mode: str
) -> Column:
    """A column of what `decode` makes of values, in Python workers; null where `column` is null.

    With the mode FAILFAST an UndecodableError fails the query, with PERMISSIVE the value is null.

    Raises:
        ValueError: an unknown mode.
    """
    from pyspark.sql.functions import udf

    if mode not in ("FAILFAST", "PERMISSIVE"):
        raise ValueError(f"mode={mode}: it is FAILFAST or PERMISSIVE")
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
    """A column of what `encode` makes of structs, in Python workers; null where `column` is null."""
    from pyspark.sql.functions import udf
    from pyspark.sql.types import BinaryType

    def encoded(value: object) -> bytes | None:
        return None if value is None else encode(_without_rows(value))

    return udf(encoded, BinaryType(), useArrow=False)(column)


def _without_rows(value: Any) -> Any:
    """What Spark hands to Python, as plain values."""
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, dict):
        return {name: _without_rows(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_rows(each) for each in value]
    return bytes(value) if isinstance(value, bytearray) else value
