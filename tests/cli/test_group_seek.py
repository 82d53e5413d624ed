"""`kbroker group seek`."""

from __future__ import annotations

import pytest

from ..commands import Cli, ReadJson
from .records import offsets


@pytest.mark.slow
async def test_seek_accepts_all_offset_forms(cli: Cli, read_json: ReadJson, topic: str) -> None:
    made = await read_json("group", "seek", "--yes", "g", "--to", "end", "-t", topic)
    assert offsets(made) == {0: (None, 5), 1: (None, 0)}
    for flags, wanted in [
        (("--to", "start"), 0),
        (("--to", "3"), 3),
        (("--shift", "-2"), 1),
        (("--shift", "99"), 5),
        (("--to", "-1"), 4),
        (("--to", "+1"), 1),
        (("--to", "@1700000002000"), 2),
        (("--to", "@2100-01-01"), 5),
        (("--to", "77"), 5),
    ]:
        shown = await read_json("group", "seek", "g", *flags, "--dry-run")
        rows = await read_json("group", "seek", "--yes", "g", *flags)
        assert {row.pop("dry_run") for row in shown} == {True}
        assert {row.pop("dry_run") for row in rows} == {False}
        assert rows == shown
        assert offsets(rows)[0][1] == wanted, flags
    one = await read_json("group", "seek", "--yes", "g", "--to", "start", "-t", f"{topic}:1")
    assert offsets(one) == {1: (0, 0)}


async def test_seek_dry_run_changes_nothing(cli: Cli, read_json: ReadJson, topic: str) -> None:
    await cli("group", "seek", "--yes", "g", "--to", "3", "-t", topic)
    await cli("group", "seek", "g", "--to", "end", "--dry-run")
    (row,) = await read_json("group", "describe", "g")
    assert row["partitions"][0]["current_offset"] == 3
    assert (row["total_lag"], row["topics"][0]["lag"]) == (2, 2)


async def test_seek_preview_counts_records_that_are_read_again_or_skipped(
    cli: Cli, topic: str
) -> None:
    await cli("group", "seek", "g", "--to", "3", "-t", topic)
    again = await cli("group", "seek", "g", "--to", "1", "--yes")
    assert again.stderr == "group g: 2 partitions, read 2 records again\n"
    skipped = await cli("group", "seek", "g", "--to", "end", "--dry-run")
    assert "group g: 2 partitions, skip 4 records" in skipped.stdout


async def test_seek_reads_offsets_from_file(cli: Cli, read_json: ReadJson, topic: str) -> None:
    await cli("group", "seek", "--yes", "g", "--to", "4", "-t", topic)
    described = (await cli("group", "describe", "g", "-o", "json")).stdout
    planned = (await cli("group", "seek", "g", "--to", "1", "--dry-run", "-o", "json")).stdout
    for text, wanted in ((planned, 1), (described, 4), (f"{topic},0,2\n", 2)):
        await cli("group", "seek", "--yes", "g", "--from-file", "-", stdin=text)
        (row,) = await read_json("group", "describe", "g")
        assert row["partitions"][0]["current_offset"] == wanted
    await cli("group", "seek", "--yes", "g", "--from-file", "-", stdin="nonsense", status=2)


async def test_seek_rejects_exclusive_options(cli: Cli, topic: str) -> None:
    await cli("group", "seek", "--yes", "g", status=2)
    await cli("group", "seek", "--yes", "g", "--to", "end", "--shift", "1", status=2)
    await cli("group", "seek", "--yes", "g", "--to", "nowhere", status=2)
    await cli("group", "seek", "--yes", "g", "--to", "end", "-t", "t:x", status=2)
    await cli("group", "describe", "g", "-s", "-c", status=2)
