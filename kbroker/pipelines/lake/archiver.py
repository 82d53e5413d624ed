"""Archiver of one topic: its streaming query and the processing of each batch."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from . import fields
from .avro_values import AvroValueDecoder
from .brokers import Brokers
from .commits import Commits, Counts, LakeError, planned_offsets, write_durably
from .fields import PARTITION
from .layout import DATE, HOUR, POISON, PRIVATE, RECORD
from .locking import take_lock
from .merging import Merges
from .protobuf_values import ProtobufValueDecoder
from .schema_values import SchemaValues
from .settings import RecreatedTopicError, Settings
from .values import BAD, NEW, VALUE, JsonValues, RawValues, Values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

# Maximum number of values that are sampled to infer fields.
SAMPLE_ROWS = 5_000
# Minimum number of small files to merge.
MERGE_FILES_MIN = 8
# Matches a URL after ``Path`` has collapsed its slashes.
_URL = re.compile(r"\w{2,}:/")
# First and last date of an archived record.
_TIMES = ("0001-01-01", "9999-12-31")


@dataclass(frozen=True)
class Conf:
    """Configuration of an archiver."""

    lake: Path
    topic: str
    bootstrap: str = "localhost:9092"
    # raw, json, avro or protobuf.
    format: str = "json"
    # json: the fields as DDL, or a file with DDL or Spark's JSON form; by default they are inferred
    # from the values, whose schema ID header (5 bytes) is skipped. avro: a file with the only
    # schema, a directory of ``<ID>.avsc`` files, or the URL of a registry. protobuf: the URL of a
    # registry.
    schema: str | None = None
    # Stop when all records that exist now are archived.
    once: bool = False
    # Minimum interval between batches, in seconds.
    every_seconds: float = 10
    # Maximum number of records per batch.
    batch_rows: int = 1_000_000
    # kafka for Spark's connector, kbroker for the source that needs no jar.
    source: str = "kafka"
    isolation: str = "read_committed"
    # Continue if records were deleted before they were archived.
    allow_loss: bool = False
    # Merge small files after this number of batches; 0 disables merging.
    merge_every: int = 50
    # Additional source options, such as ``kafka.security.protocol``.
    options: Mapping[str, str] = field(default_factory=dict)


def build(spark: SparkSession, conf: Conf) -> StreamingQuery:
    """Start archiving a topic.

    The topic's part of the lake is locked until the query ends.

    Args:
        spark: Session with the source of the configuration.
        conf: Configuration.

    Returns:
        The running query.

    Raises:
        LakeError: The lake, the topic or the configuration conflict; the message names the next
            action.
        BrokerUnavailableError: No broker responds.
    """
    return Archiver(conf).start(spark)


class Archiver:
    """Archiver of one topic.

    Attributes:
        conf: Configuration.
        error: Exception of the archiver that ended the query, or None.
        counts: Records archived by this archiver.
        batches: Records archived by this archiver, by batch.
    """

    def __init__(self, conf: Conf) -> None:
        """Take the lock and complete unfinished work of an earlier process. See `build`."""
        if _URL.match(str(conf.lake)) or conf.topic in (PRIVATE, POISON):
            raise LakeError(
                f"{conf.lake}/{conf.topic} cannot be used for a topic: a lake must be on a local "
                f"file system, and its directories {PRIVATE} and {POISON} are reserved"
            )
        self.conf = conf
        self.error: Exception | None = None
        self.counts = Counts()
        self.batches: dict[int, Counts] = {}
        self._idle = threading.Lock()
        self._is_closed = False
        self._directory = conf.lake / PRIVATE / conf.topic
        self._brokers = Brokers(conf.bootstrap, conf.options)
        self._lock = take_lock(conf.lake, conf.topic)
        try:
            self._commits = Commits(conf.lake, conf.topic)
            self._merges = Merges(conf.lake, conf.topic)
            self._check_settings()
            self._values = self._find_values()
        except BaseException:
            self.close()
            raise

    @property
    def checkpoint(self) -> Path:
        """Directory of Spark's checkpoint."""
        return self._directory / "checkpoint"

    @property
    def totals(self) -> Counts:
        """Records of the topic in the lake."""
        return sum(self._commits.journal.totals.values(), Counts())

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the query; the lock is released when it ends."""
        conf = self.conf
        writer = (
            spark.readStream.format(conf.source)
            .options(**self._source_options())
            .load()
            .writeStream.queryName(f"lake {conf.topic}")
            .option("checkpointLocation", str(self.checkpoint))
            .foreachBatch(self._write_batch)
        )
        if conf.once:
            query = writer.trigger(availableNow=True).start()
        else:
            query = writer.trigger(processingTime=f"{conf.every_seconds} seconds").start()
        threading.Thread(target=self._release_after, args=(query,), daemon=True).start()
        return query

    def close(self) -> None:
        """Release the lock once no batch is being written; a started query does so when it ends."""
        with self._idle:
            self._is_closed = True
            self._brokers.close()
            self._lock.release()

    def wait(self) -> None:
        """Wait until no batch is being written; Spark does not wait when it stops a query."""
        with self._idle:
            pass

    def _release_after(self, query: StreamingQuery) -> None:
        try:
            query.awaitTermination()
        except Exception:  # noqa: BLE001, S110 - Spark reports it to the caller
            pass
        finally:
            self.close()

    def _source_options(self) -> dict[str, str]:
        conf = self.conf
        return {
            "kafka.bootstrap.servers": conf.bootstrap,
            "subscribe": conf.topic,
            "startingOffsets": "earliest",
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": str(conf.batch_rows),
            "failOnDataLoss": str(not conf.allow_loss).lower(),
            "kafka.isolation.level": conf.isolation,
            # Spark queries offsets after each poll: use fewer, larger polls.
            "kafka.max.poll.records": "20000",
            **conf.options,
        }

    def _check_settings(self) -> None:
        """Compare the lake with the configuration, and save the settings that must not change."""
        conf = self.conf
        topic = self._brokers.topic(conf.topic)
        if topic is None:
            raise LakeError(
                f"topic {conf.topic} does not exist on {conf.bootstrap}: create it first "
                f"(kbroker topic create {conf.topic})"
            )
        kept = Settings.read(conf.lake, conf.topic)
        if kept is None:
            kept = Settings(conf.format, topic.id)
            kept.write(conf.lake, conf.topic)
        if kept.format != conf.format:
            raise LakeError(
                f"{conf.lake} has {conf.topic} in format {kept.format}: continue with --format "
                f"{kept.format}, or archive to a new directory"
            )
        if self._commits.journal.batch >= 0 and not (self.checkpoint / "offsets").is_dir():
            raise LakeError(
                f"checkpoint {self.checkpoint} is missing, so the last archived offsets of "
                f"{conf.topic} are unknown: restore it, or archive to a new directory"
            )
        self._topic_id = kept.topic_id
        self._check_topic()

    def _check_topic(self) -> None:
        """Raise RecreatedTopicError if the topic ID differs from the lake's."""
        topic = self._brokers.topic(self.conf.topic)
        now = topic.id if topic else None
        if self._topic_id and now != self._topic_id:
            raise RecreatedTopicError(self.conf.lake, self.conf.topic, self._topic_id, now)

    def _find_values(self) -> Values:
        """Return the reader for the format, with the fields known so far."""
        path = self._directory / "schema.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else fields.struct()
        if self.conf.format == "raw":
            return RawValues()
        if self.conf.format == "json":
            try:
                return JsonValues(fields.with_fields(known, fields.parse_schema(self.conf.schema)))
            except ValueError as error:
                raise LakeError(f"--schema: {error}") from error
        if self.conf.format == "avro":
            return SchemaValues(known, AvroValueDecoder(self.conf.schema))
        if self.conf.format == "protobuf":
            return SchemaValues(known, ProtobufValueDecoder(self.conf.schema))
        raise LakeError(f"unknown format {self.conf.format!r} (valid: raw, json, avro, protobuf)")

    def _write_batch(self, rows: DataFrame, batch: int) -> None:
        """Process a batch; called by Spark."""
        with self._idle:
            if self._is_closed:  # Spark does not wait for the last batch of a query that it stops
                raise LakeError(
                    f"batch {batch} of {self.conf.topic} came after the query had ended"
                )
            try:
                self._write(_with_session_settings(rows), batch)
            except Exception as error:
                self.error = error
                raise

    def _write(self, rows: DataFrame, batch: int) -> None:
        checkpoint = json.loads((self.checkpoint / "metadata").read_text(encoding="utf-8"))["id"]
        offsets = planned_offsets(self.checkpoint, batch)
        if not self._commits.begin(batch, checkpoint, offsets):
            return
        self._stage(rows)
        self._check_topic()
        self.batches[batch] = self._commits.commit(batch, checkpoint, offsets)
        self.counts += self.batches[batch]
        if self.conf.merge_every and (batch + 1) % self.conf.merge_every == 0:
            self._merges.run(MERGE_FILES_MIN)

    def _stage(self, rows: DataFrame) -> None:
        """Write the files of a batch; repeat with a larger schema if there are new fields."""
        from pyspark.sql import functions as F

        records = _records(rows)
        if not self._values.schema["fields"]:  # infer fields from the first values
            self._grow(records.filter(F.col(VALUE).isNotNull()))
        may_grow = True
        while True:
            shaped = self._values.shaped(records, may_grow=may_grow)
            bad, new = self._write_data(shaped)
            if not new:
                break
            may_grow = self._grow(shaped.filter(NEW))
        if bad:
            self._write_poison(shaped, may_grow)

    def _grow(self, rows: DataFrame) -> bool:
        """Add new fields in rows to the schema and save it; return False if none could be added."""
        sample = [bytes(row[0]) for row in rows.select(VALUE).limit(SAMPLE_ROWS).collect()]
        grown = self._values.grow(sample)
        write_durably(self._directory / "schema.json", json.dumps(self._values.schema, indent=1))
        return grown

    def _write_data(self, shaped: DataFrame) -> tuple[int, int]:
        """Stage the readable rows; return the numbers of unreadable and of new ones."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen = Observation()
        bad = F.col(BAD) | ~_has_directory()
        rows = (
            shaped.withColumn(BAD, bad)
            .observe(seen, F.count_if(BAD).alias(BAD), F.count_if(NEW).alias(NEW))
            .filter(~F.col(BAD))
            .drop(BAD, NEW, VALUE)
            .withColumn(PARTITION, F.col(f"{RECORD}.partition"))
            .withColumn(DATE, F.to_date(f"{RECORD}.timestamp"))
            .withColumn(HOUR, F.hour(f"{RECORD}.timestamp"))
        )
        _write(rows, self._commits.data_directory, [PARTITION, DATE, HOUR])
        return seen.get[BAD], seen.get[NEW]

    def _write_poison(self, shaped: DataFrame, may_grow: bool) -> None:
        """Stage the unreadable rows with the reason."""
        from pyspark.sql import functions as F

        rejection_reason = self._values.rejection_reason(may_grow=may_grow)

        def reason_for(value: bytes | None) -> str:
            return rejection_reason(bytes(value)) if value is not None else ""

        reason = F.when(
            _has_directory(), F.udf(reason_for, "string", useArrow=False)(VALUE)
        ).otherwise(F.lit(f"timestamp is not between {_TIMES[0]} and {_TIMES[1]}"))
        rows = shaped.filter(F.col(BAD) | ~_has_directory()).select(
            RECORD,
            F.col(VALUE).alias("value"),
            reason.alias("reason"),
            F.col(f"{RECORD}.partition").alias(PARTITION),
        )
        _write(rows, self._commits.poison_directory, [PARTITION])


def _with_session_settings(rows: DataFrame) -> DataFrame:
    """Apply settings that affect the files to the batch's own session, and return the batch."""
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.sources.partitionOverwriteMode": "static",
        "spark.sql.caseSensitive": "false",
    }
    for name, value in settings.items():
        rows.sparkSession.conf.set(name, value)
    return rows


def _records(rows: DataFrame) -> DataFrame:
    """Return the source's columns as ``record`` and the value."""
    from pyspark.sql import functions as F

    names = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "headers")
    tombstone = F.col("value").isNull().alias("tombstone")
    return rows.select(F.struct(*names, tombstone).alias(RECORD), F.col("value").alias(VALUE))


def _has_directory() -> Column:
    """Return True if the date of the timestamp is supported by all readers."""
    from pyspark.sql import functions as F

    first, last = (F.lit(text).cast("date") for text in _TIMES)
    return F.to_date(f"{RECORD}.timestamp").between(first, last)


def _write(rows: DataFrame, directory: Path, columns: list[str]) -> None:
    """Write rows to directories by columns, in offset order."""
    ordered = rows.sortWithinPartitions(*columns, f"{RECORD}.offset")
    ordered.write.mode("overwrite").partitionBy(*columns).parquet(directory.absolute().as_uri())
