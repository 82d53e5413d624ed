"""Hanging and open transactions in the console, and their abort after a preview."""

from __future__ import annotations

import pytest

from kbroker.client.topics import NewTopic, create_topics
from kbroker.security.acls import AclOperation, AclResourceType
from kbroker.storage.log import Log
from kbroker.web.console import transaction_changes

from ...cli.test_transactions import begin
from ...wire import connected, create_topic
from .consoles import Console, console
from .secured_consoles import ALICE, secured_console


def _log(setup: Console) -> Log:
    return setup.broker.node.partitions.named_replica("t", 0).log


async def _begin(setup: Console, *, hangs: bool) -> int:
    """Begin a transaction in partition t-0 and return its producer ID."""
    async with connected(setup.broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        return await begin(wire, "payments", topic, added=not hangs)


async def test_hanging_transaction_is_found_and_aborted_after_the_preview() -> None:
    async with console(transaction_partition_verification_enable="false") as setup:
        producer_id = await _begin(setup, hangs=True)
        assert (await setup.get("/transactions/hanging"))["transactions"] == []
        found = await setup.get("/transactions/hanging", older_than_ms=0)
        assert (found["searched"] > 0, found["omitted_partitions"]) == (True, 0)
        assert found["may_abort"] is True
        (row,) = found["transactions"]
        assert (row["topic"], row["partition"], row["start_offset"]) == ("t", 0, 0)
        assert row["producer_id"] == producer_id
        body = {"topic": "t", "partition": 0, "start_offset": 0}
        shown = await setup.post("/transactions/abort", body)
        assert shown.json() == {"dry_run": True, "aborted": row}
        assert _log(setup).last_stable_offset == 0
        assert (await setup.post("/transactions/abort", body | {"dry_run": False})).status == 200
        assert _log(setup).last_stable_offset == 2
        response = await setup.post("/transactions/abort", body)
        assert response.status == 404
        assert "no open transaction starts at offset 0" in response.json()["error"]
        response = await setup.ask("/transactions/hanging", topic="missing")
        assert response.status == 404


async def test_open_transaction_is_aborted_after_the_preview() -> None:
    async with console() as setup:
        producer_id = await _begin(setup, hangs=False)
        (listed,) = (await setup.get("/transactions"))["transactions"]
        assert (listed["transactional_id"], listed["may_abort"]) == ("payments", True)
        body = {"topic": "t", "partition": 0, "start_offset": 0}
        response = await setup.post("/transactions/abort", body)
        assert response.status == 409
        assert "is not hanging" in response.json()["error"]
        (same,) = (await setup.get("/transactions", id="payments"))["transactions"]
        assert same == listed
        assert (await setup.get("/transactions", id="other"))["transactions"] == []
        shown = (await setup.post("/transactions/payments/abort", {})).json()
        assert shown["aborted"]["producer_id"] == producer_id
        assert [each["start_offset"] for each in shown["parts"]] == [0]
        assert _log(setup).last_stable_offset == 0
        response = await setup.post("/transactions/payments/abort", {"dry_run": False})
        assert response.status == 200, response.text
        assert _log(setup).last_stable_offset == 2
        (ended,) = (await setup.get("/transactions", id="payments"))["transactions"]
        assert ended["may_abort"] is False
        response = await setup.post("/transactions/payments/abort", {})
        assert response.status == 409
        assert "'payments' has no open transaction" in response.json()["error"]
        assert (await setup.post("/transactions/missing/abort", {})).status == 404


async def test_open_transaction_cannot_be_aborted_in_read_only_console() -> None:
    async with console(http_host="0.0.0.0") as setup:
        await _begin(setup, hangs=False)
        (listed,) = (await setup.get("/transactions", id="payments"))["transactions"]
        assert (listed["state"], listed["may_abort"]) == ("Ongoing", False)


async def test_search_for_hanging_transactions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_changes, "PARTITIONS_SEARCHED_MAX", 2)
    async with console() as setup:
        await create_topics(setup.cluster, [NewTopic("a", 1), NewTopic("b", 5)])
        found = await setup.get("/transactions/hanging")
        assert (found["searched"], found["omitted_partitions"]) == (2, 4)
        found = await setup.get("/transactions/hanging", topic="b")
        assert (found["searched"], found["omitted_partitions"]) == (2, 3)


async def test_search_for_hanging_transactions_reads_only_permitted_topics() -> None:
    async with secured_console() as setup:
        await create_topics(setup.cluster, [NewTopic("a", 1), NewTopic("b", 5)])
        await setup.allow(AclOperation.READ, kind=AclResourceType.TOPIC, name="a")
        found = await setup.get("/transactions/hanging", login=ALICE)
        assert (found["searched"], found["omitted_partitions"]) == (1, 0)
        assert found["may_abort"] is False
        path = "/transactions/payments/abort"
        assert (await setup.refusal(path, {"dry_run": False}, login=ALICE))[0] == 403
        assert (await setup.refusal(path, {"dry_run": False}, token="wrong"))[0] == 403
