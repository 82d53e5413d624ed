"""Previews of what a change of a topic's retention deletes."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.web.console import retention

from .consoles import Console, console, record

DAY_MS = 86_400_000


async def previewed(client: Console, **body: object) -> Any:
    response = await client.post("/topics/t/config", body)
    assert response.status == 200, response.text
    return response.json()["deletions"]


async def fill(client: Console) -> int:
    """Write three records of one, two and three days' age, oldest first. Return the time now."""
    now_ms = client.broker.node.clock.log_ms()
    records = (record(b"v", at_ms=now_ms - days * DAY_MS - 60_000) for days in (3, 2, 1))
    await client.create_topic("t", *records)
    return now_ms


@pytest.mark.parametrize(("days", "records"), [(4, 0), (2, 2), (0, 3)])
async def test_records_older_than_new_retention_are_counted(days: int, records: int) -> None:
    async with console() as client:
        now_ms = await fill(client)
        (row,) = await previewed(client, set={"retention.ms": str(days * DAY_MS)})
        assert (row["setting"], row["records"], row["total_records"]) == (
            "retention.ms",
            records,
            3,
        )
        assert 0 <= row["before_ms"] - (now_ms - days * DAY_MS) < 60_000


async def test_reset_of_retention_counts_records_beyond_the_fallback() -> None:
    async with console(log_retention_ms=2 * DAY_MS) as client:
        await fill(client)
        await client.post("/topics/t/config", {"set": {"retention.ms": "-1"}, "dry_run": False})
        (row,) = await previewed(client, unset=["retention.ms"])
        assert row["records"] == 2


async def test_bytes_beyond_new_size_of_each_partition_are_summed() -> None:
    async with console() as client:
        await fill(client)
        (row,) = await previewed(client, set={"retention.bytes": "10"})
        assert row["setting"] == "retention.bytes"
        assert row["bytes"] == row["total_bytes"] - 10 > 0
        (row,) = await previewed(client, set={"retention.bytes": "1GiB"})
        assert row["bytes"] == 0


@pytest.mark.parametrize("policy", ["compact", ""])
async def test_topic_without_delete_policy_names_its_policy(policy: str) -> None:
    async with console() as client:
        await fill(client)
        values = {"cleanup.policy": policy, "retention.ms": "1", "retention.bytes": "1"}
        assert await previewed(client, set=values) == [
            {"setting": "retention.ms", "policy": policy},
            {"setting": "retention.bytes", "policy": policy},
        ]


@pytest.mark.parametrize(
    "values", [{"retention.ms": "-1"}, {"retention.bytes": "-1"}, {"segment.bytes": "1GiB"}]
)
async def test_change_without_limit_deletes_nothing(values: dict[str, str]) -> None:
    async with console() as client:
        await fill(client)
        assert await previewed(client, set=values) == []


async def test_large_topic_has_no_preview_of_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ITEMS_MAX", 0)
    async with console() as client:
        await fill(client)
        assert await previewed(client, set={"retention.ms": "1"}) == []
