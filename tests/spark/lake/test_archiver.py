"""Contents of a lake after batches of every kind."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast
from unittest.mock import MagicMock

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from kbroker.cli import main
from kbroker.pipelines.audit import check_lake
from kbroker.pipelines.lake import layout, reading
from kbroker.pipelines.lake.archiver import Archiver
from kbroker.pipelines.lake.checking import check
from kbroker.pipelines.lake.commits import Counts, LakeError
from kbroker.testing import LocalBroker

from .lakes import HOUR_MS, START_MS, archive, conf_of, payloads, produce, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_raw_records_are_archived_unchanged(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    broker.create_topic("t", partitions=2)
    headers = [("h", b"1"), ("h", None)]
    produce(broker, "t", [b"\xff\x00", b"", None], key=b"k", headers=headers)
    produce(broker, "t", [b"late"], timestamp=START_MS - 30 * HOUR_MS)
    produce(broker, "t", [b"other"], partition=1, timestamp=START_MS + HOUR_MS)

    archiver = archive(spark, conf_of(broker, tmp_path, "t", format="raw"))

    names = [str(file.path.relative_to(tmp_path / "t")) for file in reading.files(tmp_path, "t")]
    assert names == [
        f"record_date=2026-03-01/record_hour=00/{layout.file_name(0, 0, 2)}",
        f"record_date=2026-02-27/record_hour=18/{layout.file_name(0, 3, 3)}",
        f"record_date=2026-03-01/record_hour=01/{layout.file_name(1, 0, 0)}",
    ]
    found = list(rows(tmp_path, "t"))
    assert [row["value"] for row in found] == [b"\xff\x00", b"", None, b"late"]
    assert found[2]["record"] == {
        "topic": "t",
        "partition": 0,
        "offset": 2,
        "timestamp": datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC),
        "timestampType": 0,
        "key": b"k",
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        "tombstone": True,
    }
    assert found[3]["record"]["headers"] is None
    assert archiver.totals.records == 5


def test_json_fields_become_columns_and_mismatches_are_dead_letters(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    broker.create_topic("t")
    good = [
        {"id": 1, "price": 1.5, "note": None, "tags": [], "Record": "x", "a": 1, "A": 2},
        {"id": 2, "price": 2, "inner": {"x": [{"deep": 1}]}},
        {"id": 3, "inner": {"x": [{"deep": 1, "new": "n"}], "y": 2}, "note": "first"},
        {"id": None, "tags": ["a"], "inner": {}},
    ]
    bad = [
        b'{"id": "text"}',
        b'{"id": 1} {"id": 2}',
        b"[1]",
        b"\xff",
        b"",
        b"{'id': 1}",
        b'{"price": NaN}',
        b'{"inner": {"x": 3}}',
    ]
    produce(broker, "t", [*good, None])
    archive(spark, conf_of(broker, tmp_path, "t"))
    produce(broker, "t", bad)
    archiver = archive(spark, conf_of(broker, tmp_path, "t"))

    assert payloads(tmp_path, "t") == [
        {"id": 1, "price": 1.5, "tags": [], "Record": "x", "a": 1, "A": 2},
        {"id": 2, "price": 2.0, "inner": {"x": [{"deep": 1}]}},
        {"id": 3, "inner": {"x": [{"deep": 1, "new": "n"}], "y": 2}, "note": "first"},
        {"tags": ["a"], "inner": {}},
        None,
    ]
    poison = pq.read_table(tmp_path / layout.POISON / "t").to_pylist()
    assert [(row["record"]["offset"], row["value"], row["reason"]) for row in poison] == [
        (5, bad[0], 'id: "text", expected long'),
        (6, bad[1], "not JSON: Extra data: line 1 column 11 (char 10)"),
        (7, bad[2], "an array, not an object"),
        (8, bad[3], "not UTF-8: byte 0"),
        (9, bad[4], "not JSON: the value is empty"),
        (10, bad[5], poison[5]["reason"]),
        (11, bad[6], "not JSON: NaN is not a JSON value"),
        (12, bad[7], "inner.x: 3, expected an array"),
    ]
    assert archiver.counts == Counts(0, 8)
    assert archiver.totals == Counts(5, 8)


def test_json_values_with_schema_id_header_are_archived(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    broker.create_topic("t")
    number = b"\0\0\0\0\7"
    produce(broker, "t", [number + b'{"a": 1}', b'{"a": 2, "b": {"x": "y"}}', number, number[:3]])
    archive(spark, conf_of(broker, tmp_path, "t"))
    produce(broker, "t", [number + b'{"a": 3, "b": {"z": 1}}', number + b'{"a": "text"}'])
    archiver = archive(spark, conf_of(broker, tmp_path, "t"))
    assert payloads(tmp_path, "t") == [
        {"a": 1},
        {"a": 2, "b": {"x": "y"}},
        {"a": 3, "b": {"z": 1}},
    ]
    assert archiver.totals == Counts(3, 3)


def test_new_fields_become_columns_in_later_batches(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    broker.create_topic("t")
    produce(broker, "t", [{"a": 1, "deep": {"x": 1}, "list": [{"p": 1}]}] * 3)
    archive(spark, conf_of(broker, tmp_path, "t"))
    later = [
        {"a": 2, "deep": {"x": 1, "y": True}},
        {"a": 3, "list": [{"p": 1}, {"q": "q"}]},
        {"a": 4, "b": "text"},
        {"a": 5, "c": None},
        {"a": 5, "c": 1.5},
        {"a": "six"},
    ]
    produce(broker, "t", later)

    archiver = archive(spark, conf_of(broker, tmp_path, "t", batch_rows=4))

    assert archiver.counts.poison == 1
    assert payloads(tmp_path, "t") == [
        *[{"a": 1, "deep": {"x": 1}, "list": [{"p": 1}]}] * 3,
        *later[:3],
        {"a": 5},
        {"a": 5, "c": 1.5},
    ]


YEAR_1, YEAR_10000 = -62_135_596_800_000, 253_402_300_800_000
# Spark's connector rejects times that do not fit into microseconds, and shifts times before 1582.
FAR = (-1, 0, YEAR_10000 - 1, YEAR_10000, 2**63 // 1000)
FARTHEST = (-(2**63), -(2**63 // 1000), YEAR_1 - 1, YEAR_1, *FAR, 2**63 - 1)


@pytest.mark.parametrize(("source", "times"), [("kafka", FAR), ("kbroker", FARTHEST)])
def test_records_outside_supported_years_are_dead_letters(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path, source: str, times: tuple[int, ...]
) -> None:
    """Audit, check and replay ignore the records of years that have no dates."""
    limits = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
    broker.create_topic("t", configs=limits)
    for each in times:
        broker.produce("t", {"n": each}, timestamp=each)
    archiver = archive(spark, conf_of(broker, tmp_path, "t", source=source))
    dated = [each for each in times if YEAR_1 <= each < YEAR_10000]
    assert archiver.counts.poison == len(times) - len(dated)
    assert [row["n"] for row in rows(tmp_path, "t")] == dated
    check_lake(broker.bootstrap_servers, "t", tmp_path)
    assert check(tmp_path, "t").problems == []
    table = pq.read_table(tmp_path / layout.POISON / "t").flatten()
    offsets = [at for at, each in enumerate(times) if each not in dated]
    assert sorted(table.column("record.offset").to_pylist()) == offsets
    result = CliRunner().invoke(
        main,
        [*("audit", "t", "-b", broker.bootstrap_servers), "--against-lake", str(tmp_path)],
        catch_exceptions=False,
    )
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "clean"), result.output
    words = ["replay", "t", "--lake", str(tmp_path), "--to-topic", "again"]
    broker.create_topic("again", configs=limits)
    replayed = CliRunner().invoke(
        main, [*words, "-b", broker.bootstrap_servers], catch_exceptions=False
    )
    assert replayed.exit_code == 0, replayed.output
    assert [record.timestamp for record in broker.records("again")] == dated


def test_ended_query_leaves_no_kafka_client(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    """A remaining client would connect to a port that another program may use by then."""
    produce(broker, "t", [{"a": 1}])
    before = clients()
    archiver = archive(spark, conf_of(broker, tmp_path, "t"))
    ends_at = time.monotonic() + 30
    while clients() > before:
        assert time.monotonic() < ends_at
        time.sleep(0.05)
    assert archiver.counts.records == 1


def clients() -> int:
    """Return the number of librdkafka clients in this process: each has one main thread.

    Return 0 if there is no /proc.
    """
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("rdk:main\n")


def test_batch_after_end_of_query_does_not_touch_files_of_next_archiver(
    broker: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may call an archiver after its query has ended and its lock is released."""
    broker.create_topic("t")
    conf = conf_of(broker, tmp_path, "t", format="raw")
    monkeypatch.setattr(Archiver, "_stage", lambda archiver, rows: None)
    batch = cast("DataFrame", MagicMock())
    ended = Archiver(conf)
    ended.close()
    running = Archiver(conf)
    try:
        offsets = running.checkpoint / "offsets"
        offsets.mkdir(parents=True)
        (offsets / "0").write_text('v1\n{}\n{"t":{"0":1}}')
        (running.checkpoint / "metadata").write_text(json.dumps({"id": "query"}))
        commits = running._commits
        assert commits.begin(0, "query")
        staged = commits.data_directory / "staged"
        staged.touch()
        with pytest.raises(LakeError, match="after the query had ended"):
            ended._write_batch(batch, 0)
        assert staged.exists()
        assert not (commits.directory / "journal.json").exists()
        running._write_batch(batch, 0)
        assert commits.journal.batch == 0
    finally:
        running.close()
