"""Logs written by Apache Kafka 4.3, compacted with the same result as by Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol.records import Record, encode_batch, iter_headers, read_header, read_records
from kbroker.storage.files import OsFiles
from kbroker.storage.index import aborted_from_bytes
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.manager import LogManager

from .helpers import NOW, commit, open_log, open_manager
from .test_compaction import compact

GOLDEN = Path(__file__).parents[1] / "data/kafka-4.3-compaction"
CONFIG = LogConfig(cleanup_policy=frozenset({"compact"}), delete_retention_ms=1000)


def summary(data: bytes) -> list[tuple[Any, ...]]:
    """Return the content that is equal for two compactions, without delete horizons and CRCs."""
    found = []
    for position, header in iter_headers(data):
        batch = data[position : position + header.size]
        has_horizon = header.delete_horizon is not None
        time = None if has_horizon else header.base_timestamp
        found.append(
            (
                *header[:1],
                *header[2:4],
                *header[5:7],
                time,
                *header[8:],
                list(read_records(batch)),
            )
        )
    return found


@pytest.fixture
def opened(tmp_path: Path) -> tuple[LogManager, Log]:
    """Return the golden log in a data directory, as after a crash of its broker."""
    data_dir = (tmp_path / "data").as_posix()
    directory = Path(data_dir) / "golden-0"
    directory.mkdir(parents=True)
    for suffix in ("log", "txnindex"):
        name = f"{0:020d}.{suffix}"
        (directory / name).write_bytes((GOLDEN / f"before.{suffix}").read_bytes())
    manager = open_manager(OsFiles(), data_dir)
    log = open_log(manager, "golden", CONFIG)
    assert log.log_end_offset == 176
    assert {producer_id for producer_id, _ in log.producers} == {0, 1, 2}
    log.advance_high_watermark(log.log_end_offset)
    return manager, log


def append_to_new_segment(log: Log) -> None:
    log.roll()
    data = encode_batch([Record(b"roll", b"1", NOW)])
    log.append(memoryview(data), read_header(data), leader_epoch=0, now_ms=NOW)
    commit(log)


def read_segment_files(log: Log) -> tuple[bytes, bytes]:
    path = Path(log.segments[0].log_path)
    index = path.with_suffix(".txnindex")
    return path.read_bytes(), index.read_bytes() if index.exists() else b""


def test_first_run_equals_that_of_kafka(opened: tuple[LogManager, Log]) -> None:
    manager, log = opened
    append_to_new_segment(log)
    compact(OsFiles(), manager, log, now_ms=NOW)
    data, index = read_segment_files(log)
    after_kafka = (GOLDEN / "first-run.log").read_bytes()
    assert len(after_kafka) * 4 < (GOLDEN / "before.log").stat().st_size
    ours = [batch for batch in summary(data) if batch[0] < 176]
    assert ours == summary(after_kafka)
    assert aborted_from_bytes(index) == aborted_from_bytes(
        (GOLDEN / "first-run.txnindex").read_bytes()
    )


def test_later_runs_equal_those_of_kafka(opened: tuple[LogManager, Log]) -> None:
    manager, log = opened
    for run in range(4):
        if run:
            append_to_new_segment(log)
        compact(OsFiles(), manager, log, now_ms=NOW + run * 2500)
    data, index = read_segment_files(log)
    after_kafka = summary((GOLDEN / "fourth-run.log").read_bytes())
    # The last record in Kafka's closed segment has another time and value here.
    assert [batch[:-1] for batch in summary(data) if batch[0] < 176] == [
        batch[:-1] for batch in after_kafka if batch[0] < 176
    ]
    assert [batch[0] for batch in summary(data)] == [batch[0] for batch in after_kafka]
    assert aborted_from_bytes(index) == aborted_from_bytes(
        (GOLDEN / "fourth-run.txnindex").read_bytes()
    )


def test_log_compacted_by_kafka_is_unchanged(opened: tuple[LogManager, Log]) -> None:
    """A second compaction of the file changes only markers without a transaction."""
    manager, log = opened
    path = Path(log.segments[0].log_path)
    before = summary((GOLDEN / "first-run.log").read_bytes())
    manager.close(now_ms=NOW)
    path.write_bytes((GOLDEN / "first-run.log").read_bytes())
    for suffix in (".index", ".timeindex"):
        path.with_suffix(suffix).unlink()
    manager = open_manager(OsFiles(), manager.data_dir)
    log = open_log(manager, "golden", CONFIG)
    assert log.log_end_offset == 176
    compact(OsFiles(), manager, log, now_ms=NOW)
    after = summary(read_segment_files(log)[0])
    changed = [a[0] for a, b in zip(after, before, strict=True) if a != b]
    assert {batch[0] for batch in before if batch[3] & 0x20} >= set(changed)
    assert [batch[0] for batch in after] == [batch[0] for batch in before]
