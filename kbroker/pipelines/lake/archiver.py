"""A topic into a lake: the query, and what it does with each batch."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from . import fields
from .avro_values import AvroWriters
from .brokers import Brokers
from .commits import Commits, Counts, LakeError, write_durably
from .fields import PARTITION
from .layout import DATE, HOUR, POISON, PRIVATE, RECORD
from .locking import take_lock
from .merging import Merges
from .protobuf_values import ProtobufWriters
from .schema_values import SchemaValues
from .settings import MadeAgainError, Settings
from .values import BAD, NEW, VALUE, JsonValues, RawValues, Values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

SAMPLE_ROWS = 5_000
"""So many values are looked at to find fields."""
MERGE_FILES_MIN = 8
_ADDRESS = re.compile(r"\w{2,}:/")
"""A URL, of which ``Path`` has made one slash of two."""
_TIMES = ("0001-01-01", "9999-12-31")


@dataclass(frozen=True)
class Conf:
    """What to archive, and how."""

    lake: Path
    topic: str
    bootstrap: str = "localhost:9092"
    format: str = "json"
    """raw, json, avro or protobuf."""
    schema: str | None = None
    """json: the fields as DDL or as the path of a file with DDL or Spark's JSON form; without it
    they are found in the values, which may have a schema's number (5 bytes) before them. avro: the
    path of the one schema that has written all values, a directory of ``<number>.avsc``, or a registry's
    address. protobuf: a registry's address."""
    once: bool = False
    """End when everything that is there now is in the lake."""
    every_seconds: float = 10
    """How often a batch begins, at most."""
    batch_rows: int = 1_000_000
    """The most records in one batch."""
    source: str = "kafka"
    """Spark's connector, or kbroker for the source that needs no jar."""
    isolation: str = "read_committed"
    allow_loss: bool = False
    """Go on when records were deleted before they could be read."""
    merge_every: int = 50
    """Merge small files after so many batches; 0 never does."""
    options: Mapping[str, str] = field(default_factory=dict)
    """More options for the source, such as ``kafka.security.protocol``."""


def build(spark: SparkSession, conf: Conf) -> StreamingQuery:
    """Start archiving a topic.

    Resource handling: the topic's part of the lake is locked until the query has ended.

    Raises:
        LakeError: the lake, the topic or the settings do not go together; says what helps.
        BrokerAwayError: no broker answers.
    """
    return Archiver(conf).start(spark)


class Archiver:
    """One topic's way into the lake."""

    def __init__(self, conf: Conf) -> None:
        """Take the lock and finish what was left half done. See `build`."""
        if _ADDRESS.match(str(conf.lake)) or conf.topic in (PRIVATE, POISON):
            raise LakeError(
                f"{conf.lake}/{conf.topic} is no directory for a topic: a lake lies on a file system "
                f"of this machine, and its directories {PRIVATE} and {POISON} are not for topics"
            )
        self.conf = conf
        self.error: Exception | None = None
        """What ended the query, when it was the archiver's own doing."""
        self.counts = Counts()
        """What this archiver has brought into the lake."""
        self.batches: dict[int, Counts] = {}
        """The same, by batch."""
        self._idle = threading.Lock()
        self._directory = conf.lake / PRIVATE / conf.topic
        self._brokers = Brokers(conf.bootstrap, conf.options)
        self._lock = take_lock(conf.lake, conf.topic)
        try:
            self._commits = Commits(conf.lake, conf.topic)
            self._merges = Merges(conf.lake, conf.topic)
            self._settle()
            self._values = self._find_values()
        except BaseException:
            self.close()
            raise

    @property
    def checkpoint(self) -> Path:
        """Where Spark keeps how far it is."""
        return self._directory / "checkpoint"

    @property
    def totals(self) -> Counts:
        """What the lake has of the topic."""
        return sum(self._commits.journal.totals.values(), Counts())

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the query; when it ends the lock is given back."""
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
        """Give the lock back; by itself when a query ends that was started."""
        self._brokers.close()
        self._lock.release()

    def wait(self) -> None:
        """Wait until no batch is being written: Spark stops a query without waiting for that."""
        with self._idle:
            pass

    def _release_after(self, query: StreamingQuery) -> None:
        try:
            query.awaitTermination()
        except Exception:  # noqa: BLE001, S110 - whoever started the query is told by Spark
            pass
        finally:
            self.wait()
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
            # Spark asks for offsets after each poll: fewer, larger polls.
            "kafka.max.poll.records": "20000",
            **conf.options,
        }

    def _settle(self) -> None:
        """Compare what is here with what is asked for, and keep what must not change."""
        conf = self.conf
        topic = self._brokers.topic(conf.topic)
        if topic is None:
            raise LakeError(
                f"there is no topic {conf.topic} on {conf.bootstrap}: create it first "
                f"(kbroker topic create {conf.topic})"
            )
        kept = Settings.read(conf.lake, conf.topic)
        if kept is None:
            kept = Settings(conf.format, topic.id)
            kept.write(conf.lake, conf.topic)
        if kept.format != conf.format:
            raise LakeError(
                f"{conf.lake} has {conf.topic} as {kept.format}: go on with --format "
                f"{kept.format}, or archive to a new directory"
            )
        if self._commits.journal.batch >= 0 and not (self.checkpoint / "offsets").is_dir():
            raise LakeError(
                f"{self.checkpoint} is gone, so nobody knows how far the files of {conf.topic} go: "
                "put it back, or archive to a new directory"
            )
        self._topic_id = kept.topic_id
        self._check_topic()

    def _check_topic(self) -> None:
        """Raise MadeAgainError when the topic is not the one that the lake has."""
        topic = self._brokers.topic(self.conf.topic)
        now = topic.id if topic else None
        if self._topic_id and now != self._topic_id:
            raise MadeAgainError(self.conf.lake, self.conf.topic, self._topic_id, now)

    def _find_values(self) -> Values:
        """The format's way to read values, with the fields known so far."""
        path = self._directory / "schema.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else fields.struct()
        if self.conf.format == "raw":
            return RawValues()
        if self.conf.format == "json":
            try:
                return JsonValues(fields.with_fields(known, fields.given(self.conf.schema)))
            except ValueError as error:
                raise LakeError(f"--schema: {error}") from error
        if self.conf.format == "avro":
            return SchemaValues(known, AvroWriters(self.conf.schema))
        if self.conf.format == "protobuf":
            return SchemaValues(known, ProtobufWriters(self.conf.schema))
        raise LakeError(f"there is no format {self.conf.format}: it is raw, json, avro or protobuf")

    def _write_batch(self, rows: DataFrame, batch: int) -> None:
        """What Spark calls for each batch."""
        with self._idle:
            try:
                self._write(_settled(rows), batch)
            except Exception as error:
                self.error = error
                raise

    def _write(self, rows: DataFrame, batch: int) -> None:
        checkpoint = json.loads((self.checkpoint / "metadata").read_text(encoding="utf-8"))["id"]
        if not self._commits.begin(batch, checkpoint):
            return
        self._stage(rows)
        self._check_topic()
        self.batches[batch] = self._commits.commit(batch, checkpoint)
        self.counts += self.batches[batch]
        if self.conf.merge_every and (batch + 1) % self.conf.merge_every == 0:
            self._merges.run(MERGE_FILES_MIN)

    def _stage(self, rows: DataFrame) -> None:
        """Write the files of a batch; again with a larger schema when there is something new."""
        from pyspark.sql import functions as F

        records = _records(rows)
        if not self._values.schema["fields"]:  # nothing is known: a look at the first values
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
        """Find new fields in rows and keep them; False when there is nothing that could be kept."""
        sample = [bytes(row[0]) for row in rows.select(VALUE).limit(SAMPLE_ROWS).collect()]
        grown = self._values.grow(sample)
        write_durably(self._directory / "schema.json", json.dumps(self._values.schema, indent=1))
        return grown

    def _write_data(self, shaped: DataFrame) -> tuple[int, int]:
        """Stage the rows that can be read; returns how many cannot and how many have new fields."""
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
        """Stage the rows that cannot be read, with the reason."""
        from pyspark.sql import functions as F

        why_not = self._values.why_not(may_grow=may_grow)

        def told(value: bytes | None) -> str:
            return why_not(bytes(value)) if value is not None else ""

        reason = F.when(_has_directory(), F.udf(told, "string", useArrow=False)(VALUE)).otherwise(
            F.lit(f"its timestamp is not between {_TIMES[0]} and {_TIMES[1]}")
        )
        rows = shaped.filter(F.col(BAD) | ~_has_directory()).select(
            RECORD,
            F.col(VALUE).alias("value"),
            reason.alias("reason"),
            F.col(f"{RECORD}.partition").alias(PARTITION),
        )
        _write(rows, self._commits.poison_directory, [PARTITION])


def _settled(rows: DataFrame) -> DataFrame:
    """The batch, in a session of its own whose settings make the same files everywhere."""
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
    """The source's columns as ``record`` and the value."""
    from pyspark.sql import functions as F

    names = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "headers")
    tombstone = F.col("value").isNull().alias("tombstone")
    return rows.select(F.struct(*names, tombstone).alias(RECORD), F.col("value").alias(VALUE))


def _has_directory() -> Column:
    """Whether the timestamp has a date that every reader knows."""
    from pyspark.sql import functions as F

    first, last = (F.lit(text).cast("date") for text in _TIMES)
    return F.to_date(f"{RECORD}.timestamp").between(first, last)


def _write(rows: DataFrame, directory: Path, columns: list[str]) -> None:
    """Write rows to directories by columns, in the order of their offsets."""
    ordered = rows.sortWithinPartitions(*columns, f"{RECORD}.offset")
    ordered.write.mode("overwrite").partitionBy(*columns).parquet(directory.absolute().as_uri())
