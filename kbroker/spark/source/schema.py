"""Spark schema of Kafka records, the same as that of Spark's own connector."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

HEADERS = "headers"


def spark_schema(include_headers: bool) -> StructType:
    """Return the Spark schema of Kafka records."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if include_headers:
        fields.append(StructField(HEADERS, spark_headers()))
    return StructType(fields)


def spark_headers() -> ArrayType:
    """Return the type of the headers column."""
    return ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    )
