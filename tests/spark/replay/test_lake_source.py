"""Replay of a lake into a topic. The tests write the files as the archiver would."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kbroker.client.errors import ClientError
from kbroker.client.offset_spec import END, Kind, OffsetSpec
from kbroker.client.offset_spec import START as BEGIN
from kbroker.pipelines.lake.layout import file_name
from kbroker.pipelines.lake.settings import Settings
from kbroker.pipelines.replay.lake_source import NOTHING, LakeSource
from kbroker.testing import LocalBroker
from kbroker.testing.kafka_record import KafkaRecord

START = datetime.datetime(2026, 3, 1, 10, tzinfo=datetime.UTC)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORD = pa.struct(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("timestampType", pa.int32()),
        ("key", pa.binary()),
        ("headers", HEADERS),
        ("tombstone", pa.bool_()),
    ]
)


def record_column(partition: int, offset: int, *, tombstone: bool = False) -> dict[str, Any]:
    """Return the record column of a row. Offsets are a minute apart, partitions ten seconds."""
    return {
        "topic": "orders",
        "partition": partition,
        "offset": offset,
        "timestamp": START + datetime.timedelta(minutes=offset, seconds=10 * partition),
        "timestampType": 0,
        "key": None if offset % 5 == 0 else f"k{offset}".encode(),
        "headers": [{"key": "h", "value": b"\xff"}, {"key": "n", "value": None}],
        "tombstone": tombstone,
    }


def write_file(lake: Path, rows: list[dict[str, Any]], columns: dict[str, pa.Array]) -> None:
    hour = rows[0]["timestamp"].hour
    directory = lake / "orders" / "record_date=2026-03-01" / f"record_hour={hour:02}"
    directory.mkdir(parents=True, exist_ok=True)
    name = file_name(rows[0]["partition"], rows[0]["offset"], rows[-1]["offset"])
    pq.write_table(pa.table({**columns, "record": pa.array(rows, RECORD)}), directory / name)


def write_raw_lake(lake: Path) -> None:
    """Write 100 records in two partitions, in hourly files. Offset 7 is a tombstone."""
    for partition in (0, 1):
        for begin in range(0, 50, 10):
            rows = [
                record_column(partition, offset, tombstone=offset == 7)
                for offset in range(begin, begin + 10)
            ]
            values = [None if row["tombstone"] else b"\x00%d" % row["offset"] for row in rows]
            write_file(lake, rows, {"value": pa.array(values, pa.binary())})


def replay(broker: LocalBroker, lake: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = ["replay", "orders", "--lake", str(lake), "-b", broker.bootstrap_servers, *options]
    return subprocess.run(
        [sys.executable, "-m", "kbroker", *words],
        check=True, capture_output=True, timeout=60, text=True,
    )  # fmt: skip


def records(broker: LocalBroker, topic: str, partition: int) -> list[KafkaRecord]:
    found = [each for each in broker.records(topic) if each.partition == partition]
    return sorted(found, key=lambda each: each.offset)


def test_raw_values_are_replayed_unchanged(broker: LocalBroker, tmp_path: Path) -> None:
    write_raw_lake(tmp_path)
    broker.create_topic("copy", 2)
    replay(broker, tmp_path, "--to-topic", "copy")
    for partition in (0, 1):
        found = records(broker, "copy", partition)
        expected = [record_column(partition, offset) for offset in range(50)]
        assert [each.key for each in found] == [row["key"] for row in expected]
        assert [each.value for each in found] == [
            None if offset == 7 else b"\x00%d" % offset for offset in range(50)
        ]
        assert [each.timestamp for each in found] == [
            round(row["timestamp"].timestamp() * 1000) for row in expected
        ]
        assert {tuple(each.headers) for each in found} == {(("h", b"\xff"), ("n", None))}


def test_range_is_replayed_in_timestamp_order_to_one_partition(
    broker: LocalBroker, tmp_path: Path
) -> None:
    write_raw_lake(tmp_path)
    broker.create_topic("one", 1)
    stderr = replay(
        broker, tmp_path, "--to-topic", "one", "--from", "@2026-03-01T10:03:00Z", "--to", "-42"
    ).stderr
    assert "has 2 partitions, one has 1: partitions are selected by the keys" in stderr
    found = records(broker, "one", 0)
    times = [each.timestamp for each in found]
    assert times == sorted(times)
    assert [each.value for each in found] == [
        None if offset == 7 else b"\x00%d" % offset for offset in range(3, 8) for _ in (0, 1)
    ]


def test_json_values_are_replayed_as_equal_objects(broker: LocalBroker, tmp_path: Path) -> None:
    broker.create_topic("copy", 1)
    rows = [record_column(0, offset) for offset in range(2)]
    write_file(tmp_path, rows, {"order": pa.array([1, 2]), "note": pa.array(["\u00e9", None])})
    replay(broker, tmp_path, "--to-topic", "copy", "--filter-field", "order=.")
    assert [json.loads(each.value or b"") for each in records(broker, "copy", 0)] == [
        {"order": 1, "note": "\u00e9"},
        {"order": 2},
    ]


def test_killed_replay_resumes_without_duplicates(broker: LocalBroker, tmp_path: Path) -> None:
    """The target contains the records that the killed run wrote."""
    write_raw_lake(tmp_path)
    broker.create_topic("copy", 2)
    progress = str(tmp_path / "progress")
    words = ["replay", "orders", "--lake", str(tmp_path), "-b", broker.bootstrap_servers]
    words += ["--to-topic", "copy", "--progress", progress]
    process = subprocess.Popen([sys.executable, "-m", "kbroker", *words, "--rate", "50"])
    while len(broker.records("copy")) < 10:
        assert process.poll() is None
    process.kill()
    process.wait()
    assert len(broker.records("copy")) < 100
    replay(broker, tmp_path, "--to-topic", "copy", "--progress", progress)
    assert len(broker.records("copy")) == 100
    assert [each.value for each in records(broker, "copy", 1)] == [
        None if offset == 7 else b"\x00%d" % offset for offset in range(50)
    ]


def source_of(lake: Path, remembered: Any = NOTHING, last: OffsetSpec = END) -> LakeSource:
    return LakeSource(lake, "orders", BEGIN, last, remembered=remembered)


async def read_all(source: LakeSource, *, in_order: bool) -> list[tuple[int | None, int]]:
    """Return partition and offset of each record, in the order in which the source returns them."""
    found: list[tuple[int | None, int]] = []
    async with source.reading({}, None, in_order=in_order) as chunks:
        async for chunk in chunks:
            offsets = [record.offset for record in chunk.records]
            found += zip(chunk.partitions, offsets, strict=True)
    return found


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("last", [END, OffsetSpec(Kind.TIME, 1 << 62), OffsetSpec(Kind.OFFSET, 70)])
async def test_resumed_replay_ignores_records_archived_since_first_run(
    in_order: bool, last: OffsetSpec, tmp_path: Path
) -> None:
    write_raw_lake(tmp_path)
    first = source_of(tmp_path, last=last)
    before = await read_all(first, in_order=in_order)
    for partition in range(3):
        rows = [record_column(partition, offset) for offset in range(50, 60)]
        write_file(tmp_path, rows, {"value": pa.array([b"v"] * 10, pa.binary())})
    second = source_of(tmp_path, first.remembered(), last)
    assert len(before) == 100
    assert await read_all(second, in_order=in_order) == before
    assert await read_all(first, in_order=in_order) == before
    assert second.partitions == 2


@pytest.mark.parametrize("lost", ["first", "last"])
def test_lake_that_has_lost_files_since_first_run_is_rejected(lost: str, tmp_path: Path) -> None:
    write_raw_lake(tmp_path)
    remembered = source_of(tmp_path).remembered()
    files = sorted(tmp_path.glob("orders/*/*/00001-*.parquet"), key=lambda path: path.name)
    files[0 if lost == "first" else -1].unlink()
    with pytest.raises(ClientError, match=r"partition 1 of .* the lake has lost records"):
        source_of(tmp_path, remembered)


def test_lake_of_topic_created_again_since_first_run_is_rejected(tmp_path: Path) -> None:
    write_raw_lake(tmp_path)
    Settings("raw", "a").write(tmp_path, "orders")
    remembered = source_of(tmp_path).remembered()
    Settings("raw", "b").write(tmp_path, "orders")
    with pytest.raises(ClientError, match="topic with ID b, but the earlier run has read those"):
        source_of(tmp_path, remembered)


def test_missing_topic_is_reported(broker: LocalBroker, tmp_path: Path) -> None:
    broker.create_topic("copy", 1)
    words = ["replay", "orders", "--lake", str(tmp_path), "--to-topic", "copy"]
    done = subprocess.run(
        [sys.executable, "-m", "kbroker", *words, "-b", broker.bootstrap_servers],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "has no records of orders" in done.stderr
