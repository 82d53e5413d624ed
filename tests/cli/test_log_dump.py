"""`kbroker log dump`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ..commands import invoke
from .log_directories import FIRST, VALUE_BYTES, flip, last_nonempty_file


def test_log_dump_prints_all_file_types(data: Path) -> None:
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
        lines_of = invoke(
            "log", "dump", str(last_nonempty_file(partition, suffix)), "--json"
        ).stdout.splitlines()
        assert json.loads(lines_of[-1])["kind"] == kind
    epochs = invoke("log", "dump", str(partition / "leader-epoch-checkpoint")).stdout
    assert "epoch=0 start_offset=0" in epochs
    invoke("log", "dump", str(partition / "partition.metadata"), status=2)


def test_log_dump_decodes_committed_offsets(data: Path) -> None:
    directories = sorted(map(str, data.glob("__consumer_offsets-*")))
    printed = invoke("log", "dump", "-r", "--json", *directories).stdout.splitlines()
    rows = [json.loads(line) for line in printed]
    (commit,) = [row for row in rows if "committed_offset" in row]
    assert (commit["group"], commit["topic"], commit["committed_offset"]) == ("g", "t", 7)


def test_log_dump_decodes_transaction_states(data: Path, tmp_path: Path) -> None:
    directories = sorted(map(str, data.glob("__transaction_state-*")))
    printed = invoke("log", "dump", "-r", "--json", *directories).stdout.splitlines()
    rows = [json.loads(line) for line in printed]
    states = [row for row in rows if "transactional_id" in row]
    assert [(row["transactional_id"], row["state"]) for row in states] == [
        ("tx", "Empty"),
        ("tx", "Ongoing"),
    ]
    assert states[1]["partitions"] == {"t": [0]}
    assert states[1]["timeout_ms"] == 60_000
    other = tmp_path / "elsewhere-0"
    (written,) = [directory for directory in directories if list(Path(directory).glob("*.log"))]
    shutil.copytree(written, other)
    assert "transactional_id" not in invoke("log", "dump", "-r", str(other)).stdout
    output = invoke("log", "dump", "-r", "--transaction-log-decoder", str(other)).stdout
    assert "transactional_id=tx" in output


def test_log_dump_of_damaged_segment_exits_with_status_1(data: Path) -> None:
    segment = data / "t-0" / f"{FIRST}.log"
    flip(segment, 500)
    assert "valid=False" in invoke("log", "dump", str(segment), status=1).stdout
    flip(segment, 9)
    assert "damage" in invoke("log", "dump", str(segment), "--json", status=1).stdout
