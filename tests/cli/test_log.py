"""`kbroker log verify`: detection of damage in files."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.storage.checkpoints import format_lines, offsets_to_bytes

from ..commands import invoke
from .log_directories import FIRST, flip, last_nonempty_file


def checked(directory: Path, status: int = 0) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the rows by partition, and the reasons of all problems."""
    found = json.loads(invoke("log", "verify", str(directory), "-o", "json", status=status).stdout)
    reasons = [f"{Path(each['path']).name}: {each['reason']}" for each in found["problems"]]
    return {row["partition"]: row for row in found["partitions"]}, reasons


def test_log_verify_accepts_intact_directory(data: Path) -> None:
    rows, reasons = checked(data)
    assert reasons == []
    row = rows["t-0"]
    assert (row["records"], row["start_offset"], row["end_offset"]) == (60, 0, 60)
    assert row["segments"] > 2
    assert len(list((data / "t-0").glob("*.snapshot"))) > 1
    text = invoke("log", "verify", str(data / "t-0")).stdout
    assert text.splitlines()[0].split()[:3] == ["PARTITION", "SEGMENTS", "BYTES"]


PLANTED: list[tuple[str, Callable[[Path], object], str]] = [
    ("crc", lambda f: flip(f / f"{FIRST}.log", 500), "does not match its CRC"),
    ("length", lambda f: flip(f / f"{FIRST}.log", 9), "ends within|no valid batch header"),
    ("offset", lambda f: flip(f / f"{FIRST}.log", 7), "expected offset|next segment starts"),
    ("index", lambda f: flip(f / f"{FIRST}.index", 7), "where no matching batch starts"),
    ("index rows", lambda f: (f / f"{FIRST}.index").write_bytes(b"x" * 8), "it is damaged"),
    ("time index", lambda f: flip(f / f"{FIRST}.timeindex", 7), "maximum so far|it is damaged"),
    ("snapshot", lambda f: flip(last_nonempty_file(f, ".snapshot"), 20), "it is damaged"),
    (
        "epochs",
        lambda f: (f / "leader-epoch-checkpoint").write_bytes(format_lines(0, ["7 0"])),
        "leader epoch 0, but leader-epoch-checkpoint says 7",
    ),
    ("epoch file", lambda f: (f / "leader-epoch-checkpoint").write_bytes(b"x"), "it is damaged"),
    ("topic id", lambda f: (f / "partition.metadata").write_bytes(b"x"), "it is damaged"),
]


@pytest.mark.parametrize(
    ("plant", "reason"), [row[1:] for row in PLANTED], ids=[r[0] for r in PLANTED]
)
def test_log_verify_reports_damage(
    data: Path, plant: Callable[[Path], object], reason: str
) -> None:
    plant(data / "t-0")
    rows, reasons = checked(data, status=1)
    assert any(word in each for each in reasons for word in reason.split("|")), reasons
    assert all(not row["problems"] for name, row in rows.items() if name != "t-0")


def test_log_verify_reports_impossible_checkpoints(data: Path) -> None:
    name = "recovery-point-offset-checkpoint"
    (data / name).write_bytes(offsets_to_bytes({("t", 0): 61}, name))
    assert checked(data, status=1)[1] == [f"{name}: offset 61 for t-0, but its records end at 60"]
    (data / name).write_bytes(b"0\n1\nx")
    (data / "meta.properties").write_bytes(b"x")
    _, reasons = checked(data, status=1)
    assert len(reasons) == 2
    assert all("is damaged" in each for each in reasons)


def test_log_verify_reports_snapshot_that_contradicts_batches(data: Path) -> None:
    """The file has the content of an intact snapshot of another offset."""
    first, *_, newest = sorted((data / "t-0").glob("*.snapshot"))
    newest.write_bytes(first.read_bytes())
    _, reasons = checked(data, status=1)
    assert any("expected epoch 0, sequence" in each for each in reasons)


def test_log_verify_reports_index_entries_after_last_batch(data: Path) -> None:
    index = data / "t-0" / f"{FIRST}.index"
    index.write_bytes(index.read_bytes() + struct.pack(">ii", 500, 1_000_000))
    _, reasons = checked(data, status=1)
    assert any("names byte 1000000" in each or "after the last" in each for each in reasons)
