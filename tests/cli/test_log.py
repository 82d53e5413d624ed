"""`kbroker log` dump and verify: what is planted in files is found."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.offsets import OffsetCommitRequest
from kbroker.protocol.messages.transactions import AddPartitionsToTxnRequest
from kbroker.protocol.records import Record
from kbroker.storage.checkpoints import lines, offsets_to_bytes

from ..brokers import started
from ..commands import invoke
from ..wire import Wire, batch, connected, create_topic, produce, request

VALUE_BYTES = 60_000
FIRST = "00000000000000000000"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder that was closed: a topic in several segments, and a committed offset."""
    folder = tmp_path_factory.mktemp("written") / "data"
    trio.run(write, folder)
    return folder


@pytest.fixture
def data(written: Path, tmp_path: Path) -> Path:
    """A copy of that folder, to be damaged."""
    return Path(shutil.copytree(written, tmp_path / "data"))


async def begin_transaction(wire: Wire) -> None:
    """One that has written nothing yet."""
    find = request(ApiKey.FIND_COORDINATOR, key="tx", key_type=1)
    await wire.ask(ApiKey.FIND_COORDINATOR, 3, find)
    init = request(ApiKey.INIT_PRODUCER_ID, transactional_id="tx", transaction_timeout_ms=60_000)
    producer = await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, init)
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx",
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_topics=[AddPartitionsToTxnRequest.Topic(name="t", partitions=[0])],
    )
    await wire.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, add)


async def write(folder: Path) -> None:
    async with started(folder) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(
            wire, "t", 1, {"segment.bytes": "1048576", "index.interval.bytes": "1000"}
        )
        init = request(ApiKey.INIT_PRODUCER_ID, transactional_id=None, transaction_timeout_ms=1000)
        producer = await wire.ask(ApiKey.INIT_PRODUCER_ID, 1, init)
        for number in range(60):
            records = [Record(b"k", b"v" * VALUE_BYTES, 1_700_000_000_000 + number)]
            row = await produce(
                wire,
                topic,
                batch(
                    records,
                    producer_id=producer.producer_id,
                    producer_epoch=0,
                    base_sequence=number,
                ),
            )
            assert row.error_code == 0
        await wire.ask(ApiKey.FIND_COORDINATOR, 0, request(ApiKey.FIND_COORDINATOR, key="g"))
        part = OffsetCommitRequest.Partition(partition_index=0, committed_offset=7)
        rows = [OffsetCommitRequest.Topic(name="t", partitions=[part])]
        commit = OffsetCommitRequest(group_id="g", topics=rows)
        answer = await wire.ask(ApiKey.OFFSET_COMMIT, 5, commit)
        assert answer.topics[0].partitions[0].error_code == 0
        await begin_transaction(wire)


def checked(folder: Path, status: int = 0) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Rows by partition, and the reasons of all problems."""
    found = json.loads(invoke("log", "verify", str(folder), "-o", "json", status=status).stdout)
    reasons = [f"{Path(each['path']).name}: {each['reason']}" for each in found["problems"]]
    return {row["partition"]: row for row in found["partitions"]}, reasons


def test_a_sound_folder(data: Path) -> None:
    rows, reasons = checked(data)
    assert reasons == []
    row = rows["t-0"]
    assert (row["records"], row["start_offset"], row["end_offset"]) == (60, 0, 60)
    assert row["segments"] > 2
    assert len(list((data / "t-0").glob("*.snapshot"))) > 1
    text = invoke("log", "verify", str(data / "t-0")).stdout
    assert text.splitlines()[0].split()[:3] == ["PARTITION", "SEGMENTS", "BYTES"]


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def last(folder: Path, suffix: str) -> Path:
    return max(path for path in folder.glob(f"*{suffix}") if path.stat().st_size)


PLANTED: list[tuple[str, Callable[[Path], object], str]] = [
    ("crc", lambda f: flip(f / f"{FIRST}.log", 500), "does not match its CRC"),
    ("length", lambda f: flip(f / f"{FIRST}.log", 9), "ends within|no batch begins here"),
    ("offset", lambda f: flip(f / f"{FIRST}.log", 7), "is due|next segment begins"),
    ("index", lambda f: flip(f / f"{FIRST}.index", 7), "where no such batch begins"),
    ("index rows", lambda f: (f / f"{FIRST}.index").write_bytes(b"x" * 8), "it is damaged"),
    ("time index", lambda f: flip(f / f"{FIRST}.timeindex", 7), "latest so far|it is damaged"),
    ("snapshot", lambda f: flip(last(f, ".snapshot"), 20), "it is damaged"),
    (
        "epochs",
        lambda f: (f / "leader-epoch-checkpoint").write_bytes(lines(0, ["7 0"])),
        "leader epoch 0, but leader-epoch-checkpoint says 7",
    ),
    ("epoch file", lambda f: (f / "leader-epoch-checkpoint").write_bytes(b"x"), "it is damaged"),
    ("topic id", lambda f: (f / "partition.metadata").write_bytes(b"x"), "it is damaged"),
]


@pytest.mark.parametrize(
    ("plant", "reason"), [row[1:] for row in PLANTED], ids=[r[0] for r in PLANTED]
)
def test_damage_is_found(data: Path, plant: Callable[[Path], object], reason: str) -> None:
    plant(data / "t-0")
    rows, reasons = checked(data, status=1)
    assert any(word in each for each in reasons for word in reason.split("|")), reasons
    assert all(not row["problems"] for name, row in rows.items() if name != "t-0")


def test_checkpoints_that_cannot_be(data: Path) -> None:
    name = "recovery-point-offset-checkpoint"
    (data / name).write_bytes(offsets_to_bytes({("t", 0): 61}, name))
    assert checked(data, status=1)[1] == [f"{name}: 61 for t-0, whose records end at 60"]
    (data / name).write_bytes(b"0\n1\nx")
    (data / "meta.properties").write_bytes(b"x")
    _, reasons = checked(data, status=1)
    assert len(reasons) == 2
    assert all("is damaged" in each for each in reasons)


def test_a_snapshot_that_contradicts_the_batches(data: Path) -> None:
    """A sound snapshot of another offset, under this name."""
    first, *_, newest = sorted((data / "t-0").glob("*.snapshot"))
    newest.write_bytes(first.read_bytes())
    _, reasons = checked(data, status=1)
    assert any("the batches say epoch 0, sequence" in each for each in reasons)


def test_index_entries_behind_the_last_batch(data: Path) -> None:
    index = data / "t-0" / f"{FIRST}.index"
    index.write_bytes(index.read_bytes() + struct.pack(">ii", 500, 1_000_000))
    _, reasons = checked(data, status=1)
    assert any("names byte 1000000" in each or "behind the last" in each for each in reasons)


def test_dump(data: Path) -> None:
    partition = data / "t-0"
    printed = invoke("log", "dump", str(partition), "--json", "-r").stdout.splitlines()
    rows = [json.loads(line) for line in printed]
    batches = [row for row in rows if row["kind"] == "batch"]
    records = [row for row in rows if row["kind"] == "record"]
    assert [row["base_offset"] for row in batches] == list(range(60))
    assert all(row["valid"] and row["codec"] == "none" for row in batches)
    assert (records[3]["key"], len(records[3]["value"])) == ("k", VALUE_BYTES)
    for suffix, kind in (
        (".index", "index"),
        (".timeindex", "timeindex"),
        (".snapshot", "producer"),
    ):
        lines_of = invoke("log", "dump", str(last(partition, suffix)), "--json").stdout.splitlines()
        assert json.loads(lines_of[-1])["kind"] == kind
    epochs = invoke("log", "dump", str(partition / "leader-epoch-checkpoint")).stdout
    assert "epoch=0 start_offset=0" in epochs
    invoke("log", "dump", str(partition / "partition.metadata"), status=2)


def test_dump_reads_committed_offsets(data: Path) -> None:
    folders = sorted(map(str, data.glob("__consumer_offsets-*")))
    printed = invoke("log", "dump", "-r", "--json", *folders).stdout.splitlines()
    rows = [json.loads(line) for line in printed]
    (commit,) = [row for row in rows if "committed_offset" in row]
    assert (commit["group"], commit["topic"], commit["committed_offset"]) == ("g", "t", 7)


def test_dump_reads_the_state_of_transactions(data: Path, tmp_path: Path) -> None:
    folders = sorted(map(str, data.glob("__transaction_state-*")))
    printed = invoke("log", "dump", "-r", "--json", *folders).stdout.splitlines()
    rows = [json.loads(line) for line in printed]
    states = [row for row in rows if "transactional_id" in row]
    assert [(row["transactional_id"], row["state"]) for row in states] == [
        ("tx", "Empty"),
        ("tx", "Ongoing"),
    ]
    assert states[1]["partitions"] == {"t": [0]}
    assert states[1]["timeout_ms"] == 60_000
    other = tmp_path / "elsewhere-0"
    (written,) = [folder for folder in folders if list(Path(folder).glob("*.log"))]
    shutil.copytree(written, other)
    assert "transactional_id" not in invoke("log", "dump", "-r", str(other)).stdout
    asked = invoke("log", "dump", "-r", "--transaction-log-decoder", str(other)).stdout
    assert "transactional_id=tx" in asked


def test_dump_of_damage_is_status_1(data: Path) -> None:
    segment = data / "t-0" / f"{FIRST}.log"
    flip(segment, 500)
    assert "valid=False" in invoke("log", "dump", str(segment), status=1).stdout
    flip(segment, 9)
    assert "damage" in invoke("log", "dump", str(segment), "--json", status=1).stdout
