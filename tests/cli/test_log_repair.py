"""`kbroker log repair`, and the errors of damaged partitions."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.broker import Broker, open_broker
from kbroker.cli import main
from kbroker.config import BrokerConfig
from kbroker.net.server import Listener
from kbroker.partitions.replica import Replica
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import (
    Record,
    encode_batch,
    iter_headers,
    read_header,
    read_records,
)

from ..brokers import started
from ..wire import EARLIEST, LATEST, Topic, batch, connected, fetch, list_offset, produce

LISTENERS = [Listener("PLAINTEXT", "127.0.0.1", 0)]
BATCHES = 10


def replica_of(broker: Broker) -> Replica:
    return broker.node.partitions.named_replica("t", 0)


async def write_batches(directory: Path) -> None:
    async with open_broker(BrokerConfig(), data_dir=str(directory), listeners=LISTENERS) as broker:
        await broker.create_topic("t", 1)
        for number in range(BATCHES):
            data = encode_batch([Record(b"k", b"%5000d" % number, 0)])
            replica_of(broker).append(memoryview(data), read_header(data), 0)


def damage_middle(segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)


def damage_batch(segment: Path, number: int) -> bytes:
    """Flip a bit in the value of a batch; return the new content of the file."""
    data = bytearray(segment.read_bytes())
    data[(number + 1) * len(data) // BATCHES - 2] ^= 1
    segment.write_bytes(data)
    return bytes(data)


async def test_repair_brings_damaged_partition_back_online(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await write_batches(tmp_path)
    segment = tmp_path / "t-0" / "00000000000000000000.log"
    damage_middle(segment)
    before = segment.read_bytes()

    async with open_broker(BrokerConfig(), data_dir=str(tmp_path), listeners=LISTENERS) as broker:
        with pytest.raises(KafkaError) as raised:
            replica_of(broker).log.read(0, 1 << 20, limit=BATCHES)
        assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        command = str(raised.value.message).partition("kbroker ")[2]
    assert segment.read_bytes() == before
    assert command == f"log repair {tmp_path}/t-0"

    done = CliRunner().invoke(main, [*command.split(), "--yes"])
    assert done.exit_code == 0, done.output
    assert "moved to" in done.output

    async with open_broker(BrokerConfig(), data_dir=str(tmp_path), listeners=LISTENERS) as broker:
        kept = replica_of(broker).log
        assert kept.log_end_offset == BATCHES // 2
        assert kept.high_watermark == BATCHES // 2


async def test_damage_found_by_scrubber_is_reported_to_clients_and_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await write_batches(tmp_path)
    damage_batch(tmp_path / "t-0" / "00000000000000000000.log", BATCHES // 2)
    topic = Topic("t")
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert (await list_offset(wire, topic, EARLIEST)).error_code == ErrorCode.NONE
        assert (await fetch(wire, topic, BATCHES - 1)).error_code == ErrorCode.NONE
        for _ in range(2):
            row = await fetch(wire, topic)
            assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        for timestamp in (EARLIEST, LATEST):
            row = await list_offset(wire, topic, timestamp)
            assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await produce(wire, topic, batch())).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    messages = [line.message for line in caplog.records if "log repair" in line.message]
    assert len(messages) == 1
    assert "partition t-0" in messages[0]


@pytest.mark.parametrize("number", [0, BATCHES // 2, BATCHES - 1])
async def test_repair_keeps_truncated_bytes_for_any_damaged_batch(
    tmp_path: Path, number: int
) -> None:
    """The last batch, which no intact batch follows, may be damaged too."""
    await write_batches(tmp_path)
    segment = tmp_path / "t-0" / "00000000000000000000.log"
    data = damage_batch(segment, number)
    position = number * len(data) // BATCHES

    done = CliRunner().invoke(main, ["log", "repair", "--yes", str(segment.parent)])
    assert done.exit_code == 0, done.output
    assert segment.read_bytes() == data[:position]
    (kept,) = segment.parent.glob("*.corrupt")
    assert kept.read_bytes() == data[position:]
    lost = BATCHES - number
    assert (
        f"lost: offsets {number} to {BATCHES - 1}, at most {lost} records; {lost - 1} of them are "
        "valid in the .corrupt files"
    ) in done.output
    assert ("t-0 holds no records" if number == 0 else f"offsets 0 to {number - 1};") in done.output
    done = CliRunner().invoke(main, ["log", "verify", str(tmp_path)])
    assert done.exit_code == 0, done.output


async def test_repair_of_intact_log_loses_nothing(tmp_path: Path) -> None:
    await write_batches(tmp_path)
    earlier = tmp_path / "t-0" / "00000000000000000000.log.5.corrupt"
    earlier.write_bytes(b"of an earlier repair")
    done = CliRunner().invoke(main, ["log", "repair", "--yes", str(tmp_path / "t-0")])
    assert done.exit_code == 0, done.output
    assert "t-0 holds offsets 0 to 9;" in done.output
    assert "lost: no known records; the next offset is 10" in done.output
    assert "moved to" not in done.output


async def test_repair_counts_records_moved_by_crash_recovery(tmp_path: Path) -> None:
    """The checkpoints list fewer records than the log had, but the moved batches show them."""
    await write_batches(tmp_path)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    for name in ("recovery-point-offset", "replication-offset"):
        (tmp_path / f"{name}-checkpoint").unlink()
    damage_batch(tmp_path / "t-0" / "00000000000000000000.log", 6)
    done = CliRunner().invoke(main, ["log", "repair", "--yes", str(tmp_path / "t-0")])
    assert "lost: offsets 6 to 9, at most 4 records; 3 of them are valid" in done.output


def test_repair_of_other_directory_is_rejected(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["log", "repair", "--yes", str(tmp_path)])
    assert done.exit_code == 2
    assert "not the directory of a partition" in done.output


async def test_repair_during_running_broker_is_rejected(tmp_path: Path) -> None:
    await write_batches(tmp_path)
    async with open_broker(BrokerConfig(), data_dir=str(tmp_path), listeners=LISTENERS):
        done = CliRunner().invoke(main, ["log", "repair", "--yes", str(tmp_path / "t-0")])
    assert done.exit_code == 1
    assert "another broker uses this data directory" in done.output


COMPACTED = {"cleanup.policy": "compact", "internal.segment.bytes": "2000"}


async def write_compacted(
    directory: Path,
) -> tuple[dict[str, bytes], dict[bytes | None, bytes | None]]:
    """Write and compact a topic; return the segments before compaction, and the latest values."""
    values: dict[bytes | None, bytes | None] = {}
    async with started(directory, log_cleaner_enable=False) as broker:
        await broker.create_topic("t", 1, configs=COMPACTED)
        replica = replica_of(broker)
        for number in range(100):
            record = Record(b"%d" % (number % 40), b"%100d" % number, 0)
            data = encode_batch([record])
            replica.append(memoryview(data), read_header(data), 0)
            values[record.key] = record.value
        await broker.node.partitions.flusher.sync_now()
        before = {path.name: path.read_bytes() for path in (directory / "t-0").glob("*.log")}
        assert await broker.node.maintenance.cleaner.clean_all() > 0
    return before, values


async def served(directory: Path) -> dict[bytes | None, bytes | None]:
    """Read all values by key as a consumer does, and check that the log accepts an append."""
    found: dict[bytes | None, bytes | None] = {}
    async with (
        started(directory, log_cleaner_enable=False) as broker,
        connected(broker.endpoint) as wire,
    ):
        offset = 0
        while (row := await fetch(wire, Topic("t"), offset)).high_watermark > offset:
            assert row.error_code == 0
            for _, header in iter_headers(row.records):
                offset = header.next_offset
            found |= {record.key: record.value for record in read_records(row.records)}
        row = await produce(wire, Topic("t"), batch([Record(b"new", b"1")]))
        assert row.error_code == 0
    return found


async def test_repair_keeps_all_records_when_replaced_segments_came_back(tmp_path: Path) -> None:
    before, values = await write_compacted(tmp_path)
    directory = tmp_path / "t-0"
    missing = sorted(name for name in before if not (directory / name).exists())
    for name in missing[:2]:
        (directory / name).write_bytes(before[name])
    done = CliRunner().invoke(main, ["log", "repair", "--yes", str(directory)])
    assert done.exit_code == 0, done.output
    assert "lost: no known records; the next offset is 100" in done.output
    assert sorted(path.name for path in directory.glob("*.corrupt")) == [
        f"{name}.corrupt" for name in missing[:2]
    ]
    assert await served(tmp_path) == values


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
async def test_repaired_compacted_topic_is_readable(tmp_path: Path, share: float) -> None:
    _, values = await write_compacted(tmp_path)
    segments = sorted((tmp_path / "t-0").glob("*.log"))
    filled = [path for path in segments if path.stat().st_size > 500]
    damage_middle(filled[int(share * len(filled))])
    done = CliRunner().invoke(main, ["log", "repair", "--yes", str(tmp_path / "t-0")])
    assert done.exit_code == 0, done.output
    found = await served(tmp_path)
    assert set(found) <= set(values)


async def test_repair_without_topic_id_keeps_clean_shutdown_marker(tmp_path: Path) -> None:
    await write_batches(tmp_path)
    (tmp_path / "t-0" / "partition.metadata").unlink()
    marker = (tmp_path / ".kafka_cleanshutdown").read_bytes()
    result = CliRunner().invoke(main, ["log", "repair", "--yes", str(tmp_path / "t-0")])
    assert result.exit_code == 1
    assert "restore partition.metadata from a backup" in result.stderr
    assert (tmp_path / ".kafka_cleanshutdown").read_bytes() == marker
