"""Kafka's dump tool reads every file that the broker wrote. This file runs last.

All files of the run are dumped, to include unusual batches of all clients.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.brokers import Broker
from harness.clients import LIBRARIES, ClientProcess, eventually
from harness.codecs import topic_of
from harness.tools import Tools

from kbroker.storage.producer_state import ProducerStates

CLIENT = "dump log"
FILES_AT_ONCE = 50  # limits the memory of the tool
TOOL = "kafka-dump-log"
ROLLED = "dump-rolled"
ROW = "dump-many-batches-of-one-producer"
TRANSACTIONAL = "dump-transactional"
VALUE = "x" * 10_000
BATCHES, PER_BATCH = 12, 25
LARGEST_BATCH = 1_000_000
COMPLAINTS = (
    "Found",
    "Mismatches",
    "out of order",
    "Exception",
    "isvalid: false",
    "non-consecutive",
)


@pytest.fixture(scope="module")
def data_dir(
    broker: Broker,
    workers: Callable[[str], ClientProcess],
    written: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Fill a topic until segments roll, with an idempotent producer.

    Returns:
        A copy of the data of the stopped broker, which other tests continue to use.
    """
    worker = workers("confluent-kafka")
    worker.admin("create_topic", name=ROLLED)
    for batch in range(BATCHES):
        records = [
            {"value": VALUE, "key": f"{batch}-{i}", "partition": 0} for i in range(PER_BATCH)
        ]
        answers = worker("produce", topic=ROLLED, records=records, idempotent=True)
        assert all("offset" in answer for answer in answers)
    worker.admin("create_topic", name=ROW)
    records = [{"value": VALUE, "partition": 0} for _ in range(3 * LARGEST_BATCH // len(VALUE))]
    worker("produce", topic=ROW, records=records, idempotent=True)
    worker("join", member="dump", topics=[ROLLED], group="dump-group")
    eventually(lambda: worker("state", member="dump")["count"], bool, "records")
    worker("commit", member="dump")
    worker("leave", member="dump")
    worker.admin("create_topic", name=TRANSACTIONAL)
    worker("transactional", producer="dump", identity="dump-id")
    for commit in (True, False):
        worker("begin", producer="dump")
        records = [{"value": "t", "partition": 0}]
        worker("send", producer="dump", topic=TRANSACTIONAL, records=records)
        worker("end", producer="dump", commit=commit)
    broker.stop()
    copy = shutil.copytree(broker.data_dir, tmp_path_factory.mktemp("dumped") / "data")
    broker.start()
    return copy


@pytest.fixture(scope="module")
def dumped(data_dir: Path, tools: Tools) -> dict[str, str]:
    """Return the tool's output for each file, keyed by "directory/file"."""
    files = [
        path
        for directory in sorted(data_dir.iterdir())
        if re.search(r"-\d+$", directory.name) and directory.name != "__cluster_metadata-0"
        for path in sorted(directory.iterdir())
        if path.suffix in (".log", ".index", ".timeindex", ".snapshot", ".txnindex")
        and path.stat().st_size
    ]
    output = ""
    for first in range(0, len(files), FILES_AT_ONCE):
        names = ",".join(map(str, files[first : first + FILES_AT_ONCE]))
        output += tools.run(TOOL, "--deep-iteration", "--files", names).stdout
    # Split by file: the tool prints "Dumping <path>" before each.
    parts = re.split(r"^Dumping (.+)$", output, flags=re.MULTILINE)[1:]
    dump = {Path(path): text for path, text in zip(parts[::2], parts[1::2], strict=True)}
    assert set(dump) == set(files), "the tool did not dump all files"
    return {f"{path.parent.name}/{path.name}": text for path, text in dump.items()}


def of_topic(dumped: dict[str, str], topic: str, suffix: str) -> dict[str, str]:
    """Return the dumps of partition 0's files with a suffix."""
    return {
        name: text
        for name, text in dumped.items()
        if name.startswith(f"{topic}-0/") and name.endswith(suffix)
    }


def test_dump_tool_reports_no_errors(dumped: dict[str, str]) -> None:
    assert len(dumped) > 50
    odd = {
        name: line
        for name, text in dumped.items()
        for line in text.splitlines()
        if any(word in line for word in COMPLAINTS)
    }
    assert odd == {}


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=lambda one: one.name)
def test_stored_batches_keep_codec_of_producer(dumped: dict[str, str], library: Any) -> None:
    for codec in library.codecs:
        (text,) = of_topic(dumped, topic_of(library, codec), ".log").values()
        codecs = set(re.findall(r"compresscodec: (\w+)", text))
        # kafka-python does not compress a batch that would become larger.
        assert {codec} <= codecs <= {codec, "none"}
        assert "isvalid: true" in text


def test_segments_roll_without_gaps(dumped: dict[str, str]) -> None:
    logs = of_topic(dumped, ROLLED, ".log")
    assert len(logs) >= 3
    offsets = [
        int(number)
        for name in sorted(logs)
        for number in re.findall(r"^\| offset: (\d+) ", logs[name], flags=re.MULTILINE)
    ]
    assert offsets == list(range(BATCHES * PER_BATCH))
    for name, text in logs.items():
        base = int(name.rpartition("/")[2].removesuffix(".log"))
        assert f"Log starting offset: {base}\n" in text


def test_index_entries_are_sorted(dumped: dict[str, str]) -> None:
    indexes = of_topic(dumped, ROLLED, ".index")
    entries = [
        (int(offset), int(position))
        for name in sorted(indexes)
        for offset, position in re.findall(r"offset: (\d+) position: (\d+)", indexes[name])
    ]
    assert len(entries) >= BATCHES // 2
    assert [offset for offset, _ in entries] == sorted(offset for offset, _ in entries)
    times = of_topic(dumped, ROLLED, ".timeindex")
    assert any(re.search(r"timestamp: \d{13} offset: \d+", text) for text in times.values())


def test_snapshot_lists_producers(dumped: dict[str, str]) -> None:
    snapshots = of_topic(dumped, ROLLED, ".snapshot")
    assert snapshots
    last = snapshots[max(snapshots)]
    rows = re.findall(
        r"producerId: \d+ producerEpoch: 0 .*lastSequence: 24 lastOffset: (\d+)", last
    )
    assert sorted(int(offset) for offset in rows) == [
        PER_BATCH * (batch + 1) - 1 for batch in range(BATCHES)
    ]


def test_kafka_ignores_earlier_batches_in_snapshot(
    data_dir: Path, dumped: dict[str, str], pytestconfig: pytest.Config
) -> None:
    """kbroker stores earlier batches after the fields that Kafka reads, within the checksum."""
    snapshots = of_topic(dumped, ROW, ".snapshot")
    name = max(snapshots)
    rows = re.findall(r"producerId: \d+ .* lastOffset: (\d+)", snapshots[name])
    states = ProducerStates.from_bytes((data_dir / name).read_bytes(), 0)
    assert states is not None
    ((_, producer),) = states
    by_kafka = pytestconfig.getoption("--broker") == "apache"
    assert (len(producer.batches) == 1) if by_kafka else (len(producer.batches) >= 3)
    assert rows == [str(producer.batches[-1].last_offset)]


@pytest.mark.parametrize("check", ["--index-sanity-check", "--verify-index-only"])
def test_indexes_pass_checks_of_tool(data_dir: Path, tools: Tools, check: str) -> None:
    indexes = [
        path
        for path in sorted((data_dir / f"{ROLLED}-0").iterdir())
        if path.suffix in (".index", ".timeindex") and path.stat().st_size
    ]
    output = tools.run(TOOL, check, "--files", ",".join(map(str, indexes)))
    assert output.status == 0
    assert not [word for word in COMPLAINTS if word in output.stdout + output.stderr]
    if check == "--index-sanity-check":
        assert output.stdout.count(" passed sanity check.") == len(indexes)


def test_records_are_printed(data_dir: Path, tools: Tools) -> None:
    first = str(data_dir / f"{ROLLED}-0" / "00000000000000000000.log")
    output = tools.run(TOOL, "--print-data-log", "--files", first).stdout
    assert re.search(rf"^\| offset: 0 .* key: 0-0 payload: {VALUE}$", output, flags=re.MULTILINE)
    brief = tools.run(TOOL, "--print-data-log", "--skip-record-metadata", "--files", first).stdout
    assert f"| payload: {VALUE}" in brief or f"| key: 0-0 payload: {VALUE}" in brief


def test_dump_tool_reports_planted_damage(data_dir: Path, tools: Tools, tmp_path: Path) -> None:
    """Guards the tests above: the tool must report a flipped bit."""
    source = data_dir / f"{ROLLED}-0" / "00000000000000000000.log"
    damaged = bytearray(source.read_bytes())
    damaged[5_000] ^= 1
    (tmp_path / source.name).write_bytes(damaged)
    output = tools.run(TOOL, "--deep-iteration", "--files", str(tmp_path / source.name))
    assert any(word in output.stdout + output.stderr for word in COMPLAINTS)


def test_group_records_are_decoded(data_dir: Path, tools: Tools) -> None:
    logs = [
        path for path in sorted(data_dir.glob("__consumer_offsets-*/*.log")) if path.stat().st_size
    ]
    names = ",".join(map(str, logs))
    output = tools.run(TOOL, "--offsets-decoder", "--files", names).stdout
    assert re.search(rf'"group":"dump-group","topic":"{ROLLED}","partition":0', output)
    states = [line for line in output.splitlines() if '{"group":"dump-group"}' in line]
    assert any('"protocolType":"consumer"' in line for line in states), states
    assert "Failed to decode" not in output


def test_transaction_records_are_decoded(data_dir: Path, tools: Tools) -> None:
    logs = [
        path for path in sorted(data_dir.glob("__transaction_state-*/*.log")) if path.stat().st_size
    ]
    names = ",".join(map(str, logs))
    output = tools.run(TOOL, "--transaction-log-decoder", "--files", names).stdout
    states = [line for line in output.splitlines() if '{"transactionalId":"dump-id"}' in line]
    assert any(f'"topic":"{TRANSACTIONAL}","partitionIds":[0]' in line for line in states), states
    assert '"transactionStatus":"CompleteAbort"' in states[-1]
    assert "Failed to decode" not in output
