"""Topics that the console creates, grows and deletes, and records that it deletes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kbroker.client.cluster import ClusterClient
from kbroker.client.errors import TimedOut
from kbroker.client.groups import commit_offsets
from kbroker.client.producer import Producer
from kbroker.client.topics import NewTopic, Partition, create_topics, delete_records
from kbroker.protocol.errors import ErrorCode
from kbroker.web.console import topic_changes

from .consoles import Console, console, record


async def names_of(client: Console) -> list[str]:
    return [each["name"] for each in (await client.get("/topics"))["topics"]]


async def test_topic_is_created_after_preview() -> None:
    async with console() as client:
        assert (await client.get("/topics"))["may"] == ["CREATE"]
        new = {"name": "t", "partitions": 3, "configs": {"retention.ms": "1s"}}
        preview = (await client.post("/topics", new)).json()
        row = {"name": "t", "partitions": 3, "replication_factor": 1, "assignments": {}}
        assert preview == {"dry_run": True, "topic": row | {"configs": {"retention.ms": "1000"}}}
        assert await names_of(client) == []
        assert (await client.post("/topics", new | {"dry_run": False})).status == 200
        found = await client.get("/topics/t")
        assert len(found["partitions"]) == 3
        assert found["configs"] == {"retention.ms": "1000"}
        assert found["may"] == ["WRITE", "ALTER", "ALTER_CONFIGS", "DELETE"]
        assert (await client.get("/topics/t/permissions"))["may"] == found["may"]


async def test_topic_is_created_with_default_counts_and_with_assigned_replicas() -> None:
    async with console(num_partitions=4) as client:
        preview = (await client.post("/topics", {"name": "t"})).json()
        assert (preview["topic"]["partitions"], preview["topic"]["replication_factor"]) == (4, 1)
        new = {"name": "t", "assignments": {"0": [1], "1": [1]}, "dry_run": False}
        created = (await client.post("/topics", new)).json()["topic"]
        assert (created["partitions"], created["replication_factor"]) == (2, 1)
        assert len((await client.get("/topics/t"))["partitions"]) == 2


async def test_replicas_of_several_nodes_are_assigned() -> None:
    async with console(nodes=3) as client:
        new = {"name": "t", "assignments": {"0": [3, 1], "1": [2, 3]}, "dry_run": False}
        assert (await client.post("/topics", new)).json()["topic"]["replication_factor"] == 2
        more = {"count": 3, "assignments": [[1, 2]], "dry_run": False}
        assert (await client.post("/topics/t/partitions", more)).status == 200
        found = (await client.get("/topics/t"))["partitions"]
        assert [row["replicas"] for row in found] == [[3, 1], [2, 3], [1, 2]]


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({}, 400, "name is missing"),
        ({"name": "x", "partitions": 0}, 400, "partitions must be at least 1"),
        ({"name": "x", "replication_factor": "1"}, 400, "must be of type int"),
        ({"name": "x", "replication_factor": 9}, 400, "INVALID_REPLICATION_FACTOR"),
        ({"name": "x", "configs": {"retention.ms": 5}}, 400, "configs must contain strings only"),
        ({"name": "x", "configs": {"retention.mss": "5"}}, 400, "INVALID_CONFIG"),
        ({"name": "x", "assignments": {"a": [1]}}, 400, "'a' is not a partition number"),
        ({"name": "x", "assignments": {"0": []}}, 400, "must be a list of 1 to"),
        ({"name": "x", "assignments": {"0": [9]}}, 400, "INVALID_REPLICA_ASSIGNMENT"),
        ({"name": "x", "partitions": 1, "assignments": {"0": [1]}}, 400, "not both"),
        ({"name": "a b"}, 400, "INVALID_TOPIC_EXCEPTION"),
        ({"name": "t"}, 409, "TOPIC_ALREADY_EXISTS"),
        ([], 400, "expected a JSON object"),
    ],
)
async def test_invalid_new_topic_is_rejected_by_preview(
    body: object, status: int, error: str
) -> None:
    async with console() as client:
        await client.create_topic("t")
        response = await client.post("/topics", body)
        assert (response.status, error in response.json()["error"]) == (status, True), response.text
        assert await names_of(client) == ["t"]


async def test_topics_are_deleted_after_preview() -> None:
    async with console() as client:
        await client.create_topic("t", *(record(b"v") for _ in range(9)))
        await client.create_topic("u", partitions=2)
        await client.create_topic("kept")
        await commit_offsets(client.cluster, "g", {("t", 0): 4})
        await client.sample()
        both = {"topics": ["t", "u", "t"]}
        preview = (await client.post("/topics/delete", both)).json()
        assert preview["dry_run"] is True
        assert [(row["name"], row["records"]) for row in preview["topics"]] == [("t", 9), ("u", 0)]
        assert preview["topics"][0]["bytes"] > 0
        assert preview["topics"][0]["internal"] is False
        assert preview["topics"][0]["groups"] == [{"group": "g", "lag": 5, "members": 0}]
        assert await names_of(client) == ["kept", "t", "u"]
        deleted = (await client.post("/topics/delete", both | {"dry_run": False})).json()
        rows = [{"name": "t", "error": None}, {"name": "u", "error": None}]
        assert deleted == {"dry_run": False, "topics": rows}
        assert await names_of(client) == ["kept"]


async def test_deletion_of_absent_topic_is_reported() -> None:
    async with console() as client:
        await client.create_topic("t")
        absent = {"topics": ["t", "absent"]}
        response = await client.post("/topics/delete", absent)
        assert (response.status, "'absent' does not exist" in response.text) == (404, True)
        deleted = (await client.post("/topics/delete", absent | {"dry_run": False})).json()
        errors = [row["error"] for row in deleted["topics"]]
        assert errors[0] is None
        assert errors[1].startswith("UNKNOWN_TOPIC_OR_PARTITION")
        wrongs: list[object] = [{}, {"topics": []}, {"topics": "t"}, {"topics": [""]}]
        for wrong in [*wrongs, {"topics": ["t"] * 201}]:
            assert (await client.post("/topics/delete", wrong)).status == 400


async def test_partitions_are_added_after_preview() -> None:
    async with console() as client:
        await client.create_topic("t", partitions=2)
        path = "/topics/t/partitions"
        numbers = {"topic": "t", "partitions": 2, "new_partitions": 3}
        assert (await client.post(path, {"count": 3})).json() == {"dry_run": True, **numbers}
        assert len((await client.get("/topics/t"))["partitions"]) == 2
        added = await client.post(path, {"count": 3, "assignments": [[1]], "dry_run": False})
        assert added.json() == {"dry_run": False, **numbers}
        assert len((await client.get("/topics/t"))["partitions"]) == 3
        fewer = await client.post(path, {"count": 2})
        assert (fewer.status, "INVALID_PARTITIONS" in fewer.text) == (400, True)
        wrongs: list[object] = [{}, {"count": "4"}, {"count": -1}, {"count": 4, "assignments": [1]}]
        for wrong in wrongs:
            assert (await client.post(path, wrong)).status == 400
        assert (await client.post("/topics/absent/partitions", {"count": 4})).status == 404


async def test_records_are_deleted_after_preview() -> None:
    async with console() as client:
        await client.create_topic("t", *(record(b"v", at_ms=n) for n in range(9)), partitions=2)
        await Producer(client.cluster).write({("t", 1): [record(b"v")] * 3})
        path = "/topics/t/delete-records"
        preview = (await client.post(path, {"to": "time", "value": 4})).json()
        row = {"partition": 0, "start_offset": 0, "end_offset": 9, "error": None}
        row |= {"new_start_offset": 4, "records": 4}
        assert preview["partitions"][0] == row
        assert (preview["dry_run"], preview["records"], preview["problem"]) == (True, 4, None)
        assert len((await client.get("/topics/t/messages"))["records"]) == 12
        chosen = {"to": "end", "value": -1, "partitions": [1], "dry_run": False}
        assert (await client.post(path, chosen)).json()["records"] == 2
        by_partition = {"offsets": {"0": 7}, "dry_run": False}
        assert (await client.post(path, by_partition)).json()["records"] == 7
        starts = [row["start_offset"] for row in (await client.get("/topics/t"))["partitions"]]
        assert starts == [7, 2]


async def test_deletion_of_records_continues_after_the_failure_of_a_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail_for_first(
        cluster: ClusterClient, offsets: Mapping[Partition, int]
    ) -> dict[Partition, tuple[ErrorCode, int]]:
        if ("t", 0) in offsets:
            raise TimedOut("no response")
        return await delete_records(cluster, offsets)

    async with console(nodes=2) as client:
        await create_topics(client.cluster, [NewTopic("t", assignments={0: [1], 1: [2]})])
        records = [record(b"v")] * 3
        await Producer(client.cluster).write({("t", 0): records, ("t", 1): records})
        monkeypatch.setattr(topic_changes, "delete_records", fail_for_first)
        body = {"to": "end", "dry_run": False}
        found = (await client.post("/topics/t/delete-records", body)).json()
        assert [each["error"] for each in found["partitions"]] == ["no response", None]
        assert found["records"] == 3
        only = await client.post("/topics/t/delete-records", {**body, "partitions": [0]})
        assert (only.status, only.json()["error"]) == (502, "no response")


async def test_invalid_deletion_of_records_is_rejected() -> None:
    async with console() as client:
        await client.create_topic("t", record(b"v"))
        path = "/topics/t/delete-records"
        wrongs = [
            ({}, "to is missing"),
            ({"to": "nowhere"}, "invalid to 'nowhere'"),
            ({"to": "offset", "value": 1 << 70}, "64-bit"),
            ({"to": "time", "value": 4102444800000}, "is in the future (2100-01-01 00:00:00 UTC)"),
            ({"to": "offset", "value": 1700000000000}, "looks like the time 2023-11-14 22:13:20"),
            ({"offsets": {"0": 2}}, "offset 2 of partition 0 is after its end offset 1"),
            ({"offsets": {"x": 2}}, "'x' is not a partition number"),
            ({"offsets": {"0": -1}}, "integers from 0"),
            ({"offsets": []}, "offsets must be an object"),
            ({"to": "end", "partitions": [-1]}, "partitions must be a list"),
        ]
        for body, error in wrongs:
            response = await client.post(path, body)
            assert (response.status, error in response.text) == (400, True), response.text
        assert (await client.post(path, {"to": "end", "partitions": [5]})).status == 404


async def test_preview_says_that_records_of_compacted_topic_are_not_deleted() -> None:
    async with console() as client:
        configs = {"cleanup.policy": "compact"}
        await create_topics(client.cluster, [NewTopic("t", 1, configs=configs)])
        await Producer(client.cluster).write({("t", 0): [record(b"v", b"k")]})
        path = "/topics/t/delete-records"
        preview = (await client.post(path, {"to": "end"})).json()
        assert "its cleanup.policy is compact" in preview["problem"]
        response = (await client.post(path, {"to": "end", "dry_run": False})).json()
        assert response["partitions"][0]["error"] == "POLICY_VIOLATION"
        assert response["records"] == 0


async def test_changes_of_topics_need_token_and_writable_console() -> None:
    changes = ("/topics", "/topics/delete", "/topics/t/partitions", "/topics/t/delete-records")
    async with console() as client:
        for path in changes:
            wrong = await client.post(path, {}, **{"X-Kbroker-Token": "wrong"})
            assert (wrong.status, "invalid x-kbroker-token" in wrong.text) == (403, True)
    async with console(http_host="0.0.0.0") as client:
        await client.create_topic("t")
        for path in changes:
            denied = await client.post(path, {})
            assert (denied.status, "read-only" in denied.text) == (403, True)
        listed = await client.get("/topics")
        assert (listed["may"], listed["topics"][0]["may"]) == ([], [])
        assert (await client.get("/topics/t"))["may"] == []
