"""`kbroker group seek`."""

from __future__ import annotations

import pytest

from kbroker.broker import Broker

from ..commands import Cli, ReadJson
from .records import offsets
from .test_group import member


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
        (("--to", "@2023-11-15"), 5),
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


async def test_seek_to_time_in_future_is_rejected(cli: Cli, topic: str) -> None:
    for text, hint in (("@1d", "did you mean @-1d?"), ("@2100-01-01", "use end")):
        failed = await cli("group", "seek", "g", "--to", text, "-t", topic, "--dry-run", status=2)
        assert f"'{text}' is in the future (" in failed.stderr
        assert hint in failed.stderr


async def test_seek_to_time_without_at_sign_is_rejected(cli: Cli, topic: str) -> None:
    failed = await cli("group", "seek", "g", "--to", "1700000000000", "-t", topic, status=1)
    assert failed.stderr == (
        "kbroker: offset 1700000000000 is after the end of the log (5), and looks like the time "
        "2023-11-14 22:13:20 UTC; write @1700000000000 for the first record at or after that time\n"
    )
    file = f"{topic},0,1700000000000\n"
    failed = await cli("group", "seek", "g", "--from-file", "-", stdin=file, status=1)
    assert "looks like the time" in failed.stderr


async def test_seek_preview_states_resolved_time(cli: Cli, topic: str) -> None:
    flags = ("--to", "@2023-11-14T22:13:22", "-t", topic)
    shown = await cli("group", "seek", "g", *flags, "--dry-run")
    text = "new offset: first record at or after 2023-11-14 22:13:22 UTC"
    assert text in shown.stdout.splitlines()


async def test_seek_of_group_with_members_names_clients_and_changes_nothing(
    cli: Cli, read_json: ReadJson, topic: str, broker: Broker
) -> None:
    await cli("group", "seek", "--yes", "g", "--to", "3", "-t", topic)
    await cli("group", "seek", "--yes", "idle", "--to", "3", "-t", topic)
    problem = "group g has 1 active member (client test): stop it first"
    async with member(broker, "g", topic, 0):
        shown = await cli("group", "seek", "g", "--to", "end", "--dry-run")
        assert shown.stderr.splitlines()[0] == problem
        assert "skip 2 records" in shown.stdout
        failed = await cli("group", "seek", "idle", "g", "--to", "end", "--yes", status=1)
        assert failed.stderr.splitlines()[0] == problem
        assert "group wait NAME --members 0" in failed.stderr
        assert failed.stdout == ""
    (row,) = await read_json("group", "describe", "idle")
    assert row["partitions"][0]["current_offset"] == 3


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
