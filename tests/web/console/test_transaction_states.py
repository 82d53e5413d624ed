"""States of the transactions of records in the console."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.client.producer import Producer

from ...handlers.test_share_fetch import end_transaction, write_transaction
from ...wire import connected, create_topic
from .consoles import Console, console, record
from .test_live import LiveView


async def write(setup: Console) -> None:
    """Write an aborted, a committed and an open transaction, and records outside transactions."""
    now_ms = setup.broker.node.clock.log_ms()
    async with connected(setup.broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        for name in ("aborted", "committed"):
            producer = await write_transaction(wire, topic, name, now_ms)
            await end_transaction(wire, name, producer, commit=name == "committed")
            await Producer(setup.cluster).write({("t", 0): [record(b"plain")]})
        await write_transaction(wire, topic, "open", now_ms)
        await Producer(setup.cluster).write({("t", 0): [record(b"plain")]})


def states(found: Any) -> list[str]:
    """Return the states by offset; `plain` outside transactions."""
    rows = sorted(found["records"], key=lambda row: int(row["offset"]))
    return [row["transaction"] if "producer_id" in row else "plain" for row in rows]


ALL = [
    *["aborted"] * 4,
    "plain",
    *["committed"] * 4,
    "plain",
    *["open"] * 4,
    "plain",
]


@pytest.mark.parametrize("origin", ["newest", "oldest"])
@pytest.mark.parametrize("limit", [500, 3])
async def test_records_have_the_state_of_their_transaction(origin: str, limit: int) -> None:
    async with console() as setup:
        await write(setup)
        found, rows, cursor = None, [], ""
        while found is None or not found["done"]:
            found = await setup.get("/topics/t/messages", from_=origin, limit=limit, cursor=cursor)
            rows += found["records"]
            cursor = found["cursor"]
        assert states({"records": rows}) == ALL


async def test_committed_search_omits_aborted_and_open_records() -> None:
    async with console() as setup:
        await write(setup)
        found = await setup.get("/topics/t/messages", from_="oldest", committed=1)
        assert states(found) == ALL[4:10]


@pytest.mark.parametrize("origin", ["newest", "oldest"])
async def test_aborted_search_finds_only_records_of_aborted_transactions(origin: str) -> None:
    async with console() as setup:
        await write(setup)
        found = await setup.get("/topics/t/messages", from_=origin, aborted=1)
        assert states(found) == ["aborted"] * 4
        response = await setup.ask("/topics/t/messages", aborted=1, committed=1)
        assert response.status == 400


async def test_single_record_has_the_state_of_its_transaction() -> None:
    async with console() as setup:
        await write(setup)
        for offset, state in ((1, "aborted"), (7, "committed"), (14, "open")):
            found = await setup.get(f"/topics/t/records/0/{offset}")
            assert found["record"]["transaction"] == state, offset


async def test_live_view_marks_records_of_open_transactions() -> None:
    async with console() as setup:
        async with connected(setup.broker.endpoint) as wire:
            topic = await create_topic(wire, "t")
            view = LiveView(setup)
            await view.begin()
            now_ms = setup.broker.node.clock.log_ms()
            await write_transaction(wire, topic, "open", now_ms)
            found = await view.event()
            while not found["records"]:
                found = await view.event()
        assert states(found) == ["open"] * 4
