"""Sink: writes the columns key, value, topic, partition and headers, as Spark's connector does.

Delivery is at-least-once, because Spark may run a task again. Within a task, the producer is
idempotent and keeps the order of each partition. A task succeeds only after the cluster has
acknowledged all its records.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType

from .client import Settings, create_client, settings
from .options import OptionError, SinkOptions
from .schema import HEADERS, spark_headers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row

    from .arrow import HeaderRow

# Timeout of one flush call, after which failures are checked.
FLUSH_SECONDS = 1
# Time to wait for space in a full producer queue before a retry.
FULL_SECONDS = 0.05
# Value with which librdkafka chooses the partition by key.
ANY_PARTITION = -1

_TYPES: dict[str, tuple[DataType, ...]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    HEADERS: (spark_headers(),),
    "partition": (IntegerType(),),
}

Header = tuple[str, bytes | None]
T = TypeVar("T")
_NO_HEADERS: dict[str, object] = {}


class DeliveryError(Exception):
    """The cluster did not accept a record."""


class OutgoingRecord(NamedTuple):
    """A row as a record to produce."""

    topic: str | None
    partition: int | None
    key: bytes | str | None
    value: bytes | str | None
    headers: list[Header] | None


@dataclass
class Written(WriterCommitMessage):
    """Commit message of a task whose records have all been acknowledged."""

    records: int


def check_columns(schema: StructType, topic: str | None) -> None:
    """Check the names and types of the columns; unknown columns are ignored.

    Args:
        schema: Columns to write.
        topic: Value of the option topic, if set.

    Raises:
        OptionError: A required column is missing, or a column has an unsupported type.
    """
    fields = {field.name: field.dataType for field in schema.fields}
    if topic is None and "topic" not in fields:
        raise OptionError(
            "topic option required when no 'topic' attribute is present. Use the topic option for "
            "setting a topic."
        )
    if "value" not in fields:
        raise OptionError("Required attribute 'value' not found; add a column named value")
    for name, allowed in _TYPES.items():
        if name == "topic" and topic is not None:
            continue
        if name in fields and not any(_are_equal_types(fields[name], kind) for kind in allowed):
            raise OptionError(
                f"{name} attribute unsupported type {fields[name].simpleString()}. {name} must be "
                f"a(n) {' or '.join(kind.simpleString() for kind in allowed)}"
            )


def _are_equal_types(given: DataType, wanted: DataType) -> bool:
    """Return True if the types are equal except for nullability."""
    return bool(given.simpleString() == wanted.simpleString())


def producer_settings(options: SinkOptions) -> Settings:
    """Return producer settings that match the Java producer; user settings override them."""
    return {
        "acks": "all",
        "partitioner": "murmur2_random",
        "message.max.bytes": 1024 * 1024,
        "queue.buffering.max.messages": 500_000,
        "queue.buffering.max.kbytes": 64 * 1024,
        "delivery.timeout.ms": 120_000,
        **({"enable.idempotence": True} if _may_be_idempotent(options) else {}),
        **settings(options.kafka),
        "delivery.report.only.error": True,
    }


def _may_be_idempotent(options: SinkOptions) -> bool:
    """Return False if other settings conflict with idempotence, which Java then disables."""
    chosen = options.kafka
    return (
        chosen.get("acks", "all") in ("all", "-1")
        and int(chosen.get("retries", 1)) > 0
        and int(chosen.get("max.in.flight.requests.per.connection", 5)) <= 5
    )


class TaskProducer:
    """Producer of one task.

    The first record that cannot be delivered raises DeliveryError, from `send` or at the latest
    from `finish`.
    """

    def __init__(self, options: SinkOptions) -> None:
        """Create the producer. Raises OptionError for invalid client options."""
        self.topic = options.topic
        self.sent = 0
        self._failure: DeliveryError | None = None
        self._producer = create_client(
            Producer, producer_settings(options) | {"on_delivery": self._on_delivery}
        )

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failure is None:
            self._failure = DeliveryError(
                f"a record for topic {message.topic()} partition {message.partition()} was not "
                f"delivered: {error.str()}"
            )

    def send(self, records: Iterable[OutgoingRecord]) -> None:
        """Pass records to the producer. Raises DeliveryError."""
        own, produce = self.topic, self._producer.produce
        for topic, partition, key, value, headers in records:
            where = topic if own is None else own
            if where is None or (partition is not None and partition < 0):
                raise _invalid_target(where, partition)
            to = ANY_PARTITION if partition is None else partition
            more = {"headers": headers} if headers else _NO_HEADERS
            try:
                produce(where, value, key, to, **more)
            except BufferError:
                self._produce_when_space(where, value, key, to, **more)
            except KafkaException as error:
                raise _rejected_error(where, error) from None
            self.sent += 1
        self._producer.poll(0)
        self._raise_failure()

    def _produce_when_space(self, topic: str, *arguments: object, **more: object) -> None:
        """Retry until the producer's queue has space."""
        while True:
            self._producer.poll(FULL_SECONDS)
            self._raise_failure()
            try:
                self._producer.produce(topic, *arguments, **more)
            except BufferError:
                continue
            except KafkaException as error:
                raise _rejected_error(topic, error) from None
            return

    def finish(self) -> Written:
        """Wait until the cluster has acknowledged all records. Raises DeliveryError."""
        while self._producer.flush(FLUSH_SECONDS):
            self._raise_failure()
        self._raise_failure()
        return Written(self.sent)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._producer.purge()
            raise self._failure


def _invalid_target(topic: str | None, partition: int | None) -> DeliveryError:
    if topic is None:
        return DeliveryError(
            "null topic present in the data. Use the topic option for setting a default topic."
        )
    return DeliveryError(
        f"Invalid partition: {partition}. Partition number should always be non-negative or null."
    )


def _rejected_error(topic: str, error: KafkaException) -> DeliveryError:
    return DeliveryError(f"a record for topic {topic} was rejected: {error.args[0].str()}")


def records_of_batch(batch: pa.RecordBatch) -> Iterator[OutgoingRecord]:
    """Return the rows of an Arrow batch as records."""
    columns = {
        name: batch.column(name).to_pylist()
        if name in batch.schema.names
        else itertools.repeat(None, batch.num_rows)
        for name in OutgoingRecord._fields
    }
    if HEADERS in batch.schema.names:
        columns[HEADERS] = map(_pairs, columns[HEADERS])
    return map(OutgoingRecord, *columns.values())


def _pairs(headers: list[HeaderRow] | None) -> list[Header] | None:
    return [(each["key"], each["value"]) for each in headers] if headers else None


def record_of_row(row: Row) -> OutgoingRecord:
    """Convert a Spark row to a record."""
    given = row.asDict()
    headers = [(each["key"], _bytes(each["value"])) for each in given.get(HEADERS) or ()]
    return OutgoingRecord(
        given.get("topic"),
        given.get("partition"),
        _bytes(given.get("key")),
        _bytes(given.get("value")),
        headers or None,
    )


def _bytes(value: T | bytearray) -> T | bytes:
    return bytes(value) if isinstance(value, bytearray) else value


def write_arrow(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Written:
    """Write the Arrow batches of one task."""
    sending = TaskProducer(options)
    for batch in batches:
        sending.send(records_of_batch(batch))
    return sending.finish()


class BatchWriter(DataSourceArrowWriter):
    """Writer for ``df.write``."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the records of one task."""
        return write_arrow(self.options, iterator)


class RowStreamWriter(DataSourceStreamWriter):
    """Writer for ``df.writeStream`` before PySpark 4.1, which passes rows."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[object]) -> Written:
        """Write the records of one task of a batch."""
        sending = TaskProducer(self.options)
        sending.send(map(record_of_row, iterator))
        return sending.finish()


def _arrow_stream_writer(options: SinkOptions) -> DataSourceStreamWriter:
    class ArrowStreamWriter(datasource.DataSourceStreamArrowWriter):
        """Writer for ``df.writeStream`` with PySpark 4.1 and newer, which passes Arrow batches."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
            """Write the records of one task of a batch."""
            return write_arrow(options, iterator)

    return ArrowStreamWriter()


def batch_writer(options: SinkOptions, schema: StructType) -> BatchWriter:
    """Return a batch writer.

    Raises:
        OptionError: An option or column is invalid.
    """
    _check(options, schema)
    return BatchWriter(options)


def stream_writer(options: SinkOptions, schema: StructType) -> DataSourceStreamWriter:
    """Return the stream writer for the installed PySpark.

    Raises:
        OptionError: An option or column is invalid.
    """
    _check(options, schema)
    if hasattr(datasource, "DataSourceStreamArrowWriter"):
        return _arrow_stream_writer(options)
    return RowStreamWriter(options)


def _check(options: SinkOptions, schema: StructType) -> None:
    check_columns(schema, options.topic)
    create_client(Producer, producer_settings(options))
