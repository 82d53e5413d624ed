"""Kafka's own dump tool reads every file that the broker left behind. Comes last.

Everything that the run wrote is dumped, so that odd batches of odd clients are in it.
"""

from __future__ import annotations

import re
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
FILES_AT_ONCE = 50  # what the tool writes has to fit in its memory
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
    broker: Broker, workers: Callable[[str], ClientProcess], written: dict[str, Any]
) -> Path:
    """Fill a topic until segments roll, with an idempotent producer; then stop the broker."""
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
    return broker.data_dir


@pytest.fixture(scope="module")
def dumped(data_dir: Path, tools: Tools) -> dict[str, str]:
    """What the tool says of each file, keyed by "directory/file"."""
    files = [
        path
        for directory in sorted(data_dir.iterdir())
        if re.search(r"-\d+$", directory.name) and directory.name != "__cluster_metadata-0"
        for path in sorted(directory.iterdir())
        if path.suffix in (".log", ".index", ".timeindex", ".snapshot", ".txnindex")
        and path.stat().st_size
    ]
    said = ""
    for first in range(0, len(files), FILES_AT_ONCE):
        names = ",".join(map(str, files[first : first + FILES_AT_ONCE]))
        said += tools.run(TOOL, "--deep-iteration", "--files", names).stdout
    # By file: the tool prints "Dumping <path>" before each.
    parts = re.split(r"^Dumping (.+)$", said, flags=re.MULTILINE)[1:]
    dump = {Path(path): text for path, text in zip(parts[::2], parts[1::2], strict=True)}
    assert set(dump) == set(files), "the tool left files out"
    return {f"{path.parent.name}/{path.name}": text for path, text in dump.items()}


def of_topic(dumped: dict[str, str], topic: str, suffix: str) -> dict[str, str]:
    """The dumps of one kind of file of partition 0."""
    return {
        name: text
        for name, text in dumped.items()
        if name.startswith(f"{topic}-0/") and name.endswith(suffix)
    }


def test_nothing_is_complained_about(dumped: dict[str, str]) -> None:
    assert len(dumped) > 50
    odd = {
        name: line
        for name, text in dumped.items()
        for line in text.splitlines()
        if any(word in line for word in COMPLAINTS)
    }
    assert odd == {}


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=lambda one: one.name)
def test_batches_keep_their_codec(dumped: dict[str, str], library: Any) -> None:
    for codec in library.codecs:
        (text,) = of_topic(dumped, topic_of(library, codec), ".log").values()
        codecs = set(re.findall(r"compresscodec: (\w+)", text))
        # kafka-python leaves a batch alone that a codec would only make larger.
        assert {codec} <= codecs <= {codec, "none"}
        assert "isvalid: true" in text


def test_segments_rolled(dumped: dict[str, str]) -> None:
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


def test_indexes_point_into_their_segments(dumped: dict[str, str]) -> None:
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


def test_producers_are_in_the_snapshot(dumped: dict[str, str]) -> None:
    snapshots = of_topic(dumped, ROLLED, ".snapshot")
    assert snapshots
    last = snapshots[max(snapshots)]
    rows = re.findall(
        r"producerId: \d+ producerEpoch: 0 .*lastSequence: 24 lastOffset: (\d+)", last
    )
    assert sorted(int(offset) for offset in rows) == [
        PER_BATCH * (batch + 1) - 1 for batch in range(BATCHES)
    ]


def test_earlier_batches_in_the_snapshot_are_passed_over(
    data_dir: Path, dumped: dict[str, str], pytestconfig: pytest.Config
) -> None:
    """They stand behind what Kafka reads; its checksum covers them. Kafka writes none."""
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
def test_indexes_pass_the_checks_of_the_tool(data_dir: Path, tools: Tools, check: str) -> None:
    indexes = [
        path
        for path in sorted((data_dir / f"{ROLLED}-0").iterdir())
        if path.suffix in (".index", ".timeindex") and path.stat().st_size
    ]
    said = tools.run(TOOL, check, "--files", ",".join(map(str, indexes)))
    assert said.status == 0
    assert not [word for word in COMPLAINTS if word in said.stdout + said.stderr]
    if check == "--index-sanity-check":
        assert said.stdout.count(" passed sanity check.") == len(indexes)


def test_records_are_printed(data_dir: Path, tools: Tools) -> None:
    first = str(data_dir / f"{ROLLED}-0" / "00000000000000000000.log")
    said = tools.run(TOOL, "--print-data-log", "--files", first).stdout
    assert re.search(rf"^\| offset: 0 .* key: 0-0 payload: {VALUE}$", said, flags=re.MULTILINE)
    brief = tools.run(TOOL, "--print-data-log", "--skip-record-metadata", "--files", first).stdout
    assert f"| payload: {VALUE}" in brief or f"| key: 0-0 payload: {VALUE}" in brief


def test_the_tool_sees_planted_damage(data_dir: Path, tools: Tools, tmp_path: Path) -> None:
    """A flipped byte must show, or the tests above prove nothing."""
    source = data_dir / f"{ROLLED}-0" / "00000000000000000000.log"
    damaged = bytearray(source.read_bytes())
    damaged[5_000] ^= 1
    (tmp_path / source.name).write_bytes(damaged)
    said = tools.run(TOOL, "--deep-iteration", "--files", str(tmp_path / source.name))
    assert any(word in said.stdout + said.stderr for word in COMPLAINTS)


def test_group_records_are_decoded(data_dir: Path, tools: Tools) -> None:
    logs = [
        path for path in sorted(data_dir.glob("__consumer_offsets-*/*.log")) if path.stat().st_size
    ]
    names = ",".join(map(str, logs))
    said = tools.run(TOOL, "--offsets-decoder", "--files", names).stdout
    assert re.search(rf'"group":"dump-group","topic":"{ROLLED}","partition":0', said)
    states = [line for line in said.splitlines() if '{"group":"dump-group"}' in line]
    assert any('"protocolType":"consumer"' in line for line in states), states
    assert "Failed to decode" not in said


def test_transaction_records_are_decoded(data_dir: Path, tools: Tools) -> None:
    logs = [
        path for path in sorted(data_dir.glob("__transaction_state-*/*.log")) if path.stat().st_size
    ]
    names = ",".join(map(str, logs))
    said = tools.run(TOOL, "--transaction-log-decoder", "--files", names).stdout
    states = [line for line in said.splitlines() if '{"transactionalId":"dump-id"}' in line]
    assert any(f'"topic":"{TRANSACTIONAL}","partitionIds":[0]' in line for line in states), states
    assert '"transactionStatus":5' in states[-1], "CompleteAbort"
    assert "Failed to decode" not in said
