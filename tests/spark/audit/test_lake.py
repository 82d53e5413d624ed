"""Audit of a topic against its lake: each planted error is found, and no other."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from kbroker.client.errors import ClientError
from kbroker.pipelines.audit import AuditError, Kind, check_lake
from kbroker.pipelines.lake.layout import DATE, HOUR, POISON, RECORD, file_name
from kbroker.testing import KafkaRecord, LocalBroker

from ..lake.lakes import archive as archive_with_spark
from ..lake.lakes import conf_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

TOPIC = "orders"
TIME = 1_700_000_000_000  # 22:13:20
HOUR_MS = 3_600_000
COUNT = 60


@pytest.fixture(scope="module")
def topic() -> Iterator[LocalBroker]:
    """A broker whose topic has two partitions and timestamps that alternate between two hours."""
    with LocalBroker(topics={TOPIC: 2}) as broker:
        for number in range(COUNT):
            broker.produce(
                TOPIC,
                None if number % 10 == 3 else b'{"id": %d}' % number,
                key=None if number % 10 == 4 else b"k%d" % number,
                headers=[("n", b"%d" % number), ("n", None)] if number % 3 == 0 else [],
                partition=number % 2,
                timestamp=TIME + (number // 2) % 2 * HOUR_MS + number,
            )
        yield broker


def record_of(record: KafkaRecord, **replace_file: Any) -> dict[str, Any]:
    """Return the struct `record` of a lake."""
    when = datetime.datetime.fromtimestamp(record.timestamp / 1000, datetime.UTC)
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": when,
        "timestampType": 0,
        "key": record.key,
        "headers": [{"key": key, "value": value} for key, value in record.headers],
        "tombstone": record.value is None,
    } | replace_file


def record_type() -> pa.DataType:
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.struct(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("timestampType", pa.int32()),
            ("key", pa.binary()),
            ("headers", pa.list_(header)),
            ("tombstone", pa.bool_()),
        ]
    )


Row = dict[str, Any]


def row_of(record: KafkaRecord) -> Row:
    return {"value": record.value, RECORD: record_of(record)}


def write(directory: Path, rows: list[Row], *, reason: str | None = None) -> Path:
    """Write a file of a lake, with the name that matches its rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    first, last = rows[0][RECORD], rows[-1][RECORD]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / file_name(first["partition"], first["offset"], last["offset"])
    columns = {
        "value": pa.array([row["value"] for row in rows], pa.binary()),
        RECORD: pa.array([row[RECORD] for row in rows], record_type()),
    }
    if reason is not None:
        columns["reason"] = pa.array([reason] * len(rows))
    pq.write_table(pa.table(columns), path, row_group_size=4)
    return path


def archive(lake: Path, records: list[KafkaRecord], size: int = 7) -> None:
    """Create a raw lake of some records, with `size` records in each batch of the archiver."""
    for partition in (0, 1):
        mine = sorted(
            (one for one in records if one.partition == partition), key=lambda it: it.offset
        )
        for at in range(0, len(mine), size):
            hours: dict[str, list[Row]] = {}
            for record in mine[at : at + size]:
                row = row_of(record)
                hours.setdefault(f"{row[RECORD]['timestamp']:%Y-%m-%d %H}", []).append(row)
            for hour, rows in hours.items():
                date, clock = hour.split()
                write(lake / TOPIC / f"{DATE}={date}" / f"{HOUR}={clock}", rows)


@pytest.fixture
def lake(topic: LocalBroker, tmp_path: Path) -> Path:
    archive(tmp_path, topic.records(TOPIC))
    return tmp_path


def files(lake: Path) -> list[Path]:
    return sorted(lake.glob(f"{TOPIC}/*/*/*.parquet"))


def replace_file(lake: Path, change: Callable[[list[Row]], object]) -> None:
    """Replace a file in the middle by one with changed rows."""
    import pyarrow.parquet as pq

    path = files(lake)[2]
    rows = pq.read_table(path, partitioning=None).to_pylist()
    change(rows)
    path.unlink()
    write(path.parent, rows)


def found_in(topic: LocalBroker, lake: Path, **options: Any) -> dict[Kind, int]:
    with pytest.raises(AuditError) as found:
        check_lake(topic.bootstrap_servers, TOPIC, lake, **options)
    return dict(found.value.findings.counts)


def test_audit_of_intact_lake_passes(topic: LocalBroker, lake: Path) -> None:
    report = check_lake(topic.bootstrap_servers, TOPIC, lake)
    assert [one.equal for one in report.compared] == [COUNT // 2] * 2
    assert (report.files, report.poison) == (len(files(lake)), 0)


def set_record(**fields: Any) -> Callable[[list[Row]], object]:
    return lambda rows: rows[1][RECORD].update(fields)


DEFECTS: dict[str, tuple[Callable[[list[Row]], object], dict[Kind, int]]] = {
    "record missing": (lambda rows: rows.pop(1), {Kind.MISSING: 1}),
    "record doubled": (lambda rows: rows.insert(1, rows[1]), {Kind.DOUBLED: 1}),
    "value": (lambda rows: rows[1].update(value=b"!"), {Kind.DIFFERENT: 1}),
    "key": (set_record(key=b"!"), {Kind.DIFFERENT: 1}),
    "headers lost": (
        lambda rows: [row[RECORD].update(headers=[]) for row in rows],
        {Kind.DIFFERENT: 1},
    ),
    "time": (
        lambda rows: rows[1][RECORD].update(
            timestamp=rows[1][RECORD]["timestamp"] + datetime.timedelta(milliseconds=1)
        ),
        {Kind.DIFFERENT: 1},
    ),
    "other topic": (lambda rows: rows[1][RECORD].update(topic="zebras"), {Kind.MISPLACED: 1}),
    "other hour": (
        lambda rows: rows[1][RECORD].update(
            timestamp=rows[1][RECORD]["timestamp"] + datetime.timedelta(hours=2)
        ),
        {Kind.MISPLACED: 1, Kind.DIFFERENT: 1},
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_each_planted_error_in_file_is_found_and_no_other(
    name: str, topic: LocalBroker, lake: Path
) -> None:
    plant, expected = DEFECTS[name]
    replace_file(lake, plant)
    assert found_in(topic, lake) == expected


def test_missing_truncated_and_copied_files_are_found(topic: LocalBroker, lake: Path) -> None:
    import pyarrow.parquet as pq

    path = files(lake)[2]
    rows = pq.read_metadata(path).num_rows
    kept = path.read_bytes()
    path.unlink()
    assert found_in(topic, lake) == {Kind.MISSING: rows}
    path.write_bytes(kept[:-50])
    assert found_in(topic, lake) == {Kind.MISSING: rows, Kind.DAMAGED: 1}
    path.write_bytes(b"")
    assert found_in(topic, lake) == {Kind.MISSING: rows, Kind.DAMAGED: 1}
    path.write_bytes(kept)
    shutil.copy(path, path.with_name(file_name(0, 0, 999)))
    assert found_in(topic, lake) == {Kind.DOUBLED: rows, Kind.MISPLACED: 1}


def test_records_missing_in_topic_are_extra(topic: LocalBroker, lake: Path) -> None:
    record = topic.records(TOPIC)[0]
    beyond = {"value": b"", RECORD: record_of(record, offset=10_000)}
    path = write(files(lake)[0].parent, [beyond])
    assert found_in(topic, lake) == {Kind.EXTRA: 1}
    path.unlink()
    write(path.parent, [{"value": b"", RECORD: record_of(record, partition=7)}])
    assert found_in(topic, lake) == {Kind.EXTRA: 1}


def test_poison_counts_as_archived(topic: LocalBroker, tmp_path: Path) -> None:
    records = topic.records(TOPIC)
    poison = [one for one in records if one.partition == 1 and one.offset in (5, 20)]
    poison.sort(key=lambda one: one.offset)
    lake = tmp_path / "lake"
    archive(lake, [one for one in records if one not in poison])
    assert found_in(topic, lake) == {Kind.MISSING: 2}
    write(lake / POISON / TOPIC, [row_of(one) for one in poison], reason="not JSON")
    assert check_lake(topic.bootstrap_servers, TOPIC, lake).poison == 2
    archive(lake, poison)
    assert found_in(topic, lake) == {Kind.DOUBLED: 2}


def test_lagging_lake_is_accepted_on_request(topic: LocalBroker, tmp_path: Path) -> None:
    records = [one for one in topic.records(TOPIC) if one.offset < 20]
    archive(tmp_path, records)
    assert found_in(topic, tmp_path) == {Kind.MISSING: COUNT - 40}
    report = check_lake(topic.bootstrap_servers, TOPIC, tmp_path, allow_lag=True)
    assert [one.pending for one in report.compared] == [10, 10]


def test_missing_lake_error_names_archive_command(topic: LocalBroker, tmp_path: Path) -> None:
    with pytest.raises(ClientError, match=f"kbroker lake archive .* {TOPIC}"):
        check_lake(topic.bootstrap_servers, TOPIC, tmp_path)


@pytest.mark.parametrize("value_format", ["raw", "json"])
def test_output_of_archiver_passes_audit(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path, value_format: str
) -> None:
    """The topic has an aborted transaction, headers, tombstones and dead-letter records."""
    broker.create_topic("mixed", partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions()
    for round_ in range(3):
        producer.begin_transaction()
        for number in range(20):
            value = None if number == 19 else b"no JSON" if number == 18 else b'{"id": %d}' % number
            headers = [("h", b"%d" % number), ("h", None)] if number % 4 == 0 else None
            producer.produce(
                "mixed", value, b"k%d" % number, partition=number % 2, headers=headers,
                timestamp=TIME + number % 3 * HOUR_MS,
            )  # fmt: skip
        producer.flush()
        if round_ == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    archive_with_spark(spark, conf_of(broker, tmp_path, "mixed", format=value_format))

    report = check_lake(broker.bootstrap_servers, "mixed", tmp_path)
    assert sum(one.equal for one in report.compared) == 40
    assert report.poison == (2 if value_format == "json" else 0)
    with pytest.raises(AuditError, match="20 missing"):
        check_lake(broker.bootstrap_servers, "mixed", tmp_path, committed=False)
