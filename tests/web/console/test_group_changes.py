"""Groups that the console creates, changes and deletes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

import pytest

from kbroker.client.cluster import ClusterClient
from kbroker.client.errors import TimedOut
from kbroker.client.groups import commit_offsets, delete_groups
from kbroker.client.member import Member
from kbroker.client.seek import Seek, SeekRow
from kbroker.client.share_groups import alter_share_offsets
from kbroker.web.console import group_changes

from .consoles import Console, console, record


async def offsets_of(client: Console, group: str) -> list[int]:
    """Return the committed offsets of a group, ordered by topic and partition."""
    found = await client.get(f"/groups/{group}/details")
    offsets = [row["current_offset"] for row in found["partitions"]]
    return [each for each in offsets if each is not None]


async def test_group_offsets_are_reset_and_group_is_deleted_after_preview() -> None:
    async with console() as client:
        await client.create_topic("t", *(record(b"v") for _ in range(9)))
        await commit_offsets(client.cluster, "g/with%odd", {("t", 0): 1})
        group = quote("g/with%odd", safe="")
        target = {"to": "end", "value": -2}
        plan = (await client.post(f"/groups/{group}/seek", target)).json()
        assert (plan["dry_run"], plan["problem"]) == (True, None)
        assert plan["partitions"][0]["new_offset"] == 7
        assert await offsets_of(client, group) == [1]
        done = await client.post(f"/groups/{group}/seek", target | {"dry_run": False})
        assert done.status == 200
        assert await offsets_of(client, group) == [7]
        preview = (await client.post(f"/groups/{group}/delete", {})).json()
        row = {"group": "g/with%odd", "type": "Classic", "state": "Empty", "problem": None}
        assert preview == {"dry_run": True, **row}
        deleted = await client.post(f"/groups/{group}/delete", {"dry_run": False})
        assert deleted.status == 200
        assert (await client.ask(f"/groups/{group}/details")).status == 404


async def test_several_groups_are_deleted_after_preview() -> None:
    async with console() as client:
        await client.create_topic("t", record(b"v"))
        await commit_offsets(client.cluster, "a", {("t", 0): 0})
        await alter_share_offsets(client.cluster, "b", {("t", 0): 0})
        await Member(client.cluster, "busy", ["t"]).join()
        body = {"groups": ["a", "b", "busy"]}
        preview = (await client.post("/groups/delete", body)).json()
        assert preview["dry_run"] is True
        assert [row["type"] for row in preview["groups"]] == ["Classic", "Share", "Classic"]
        assert [bool(row["problem"]) for row in preview["groups"]] == [False, False, True]
        listed = (await client.get("/groups"))["groups"]
        assert [(row["group"], row["may"]) for row in listed] == [
            (name, ["DELETE"]) for name in body["groups"]
        ]
        deleted = (await client.post("/groups/delete", body | {"dry_run": False})).json()
        errors = {row["group"]: row["error"] for row in deleted["groups"]}
        assert errors == {"a": None, "b": None, "busy": "NON_EMPTY_GROUP"}
        assert [row["group"] for row in (await client.get("/groups"))["groups"]] == ["busy"]
        assert (await client.post("/groups/delete", {"groups": ["a"]})).status == 404
        assert (await client.post("/groups/delete", {"groups": "busy"})).status == 400


async def test_group_offsets_are_shifted_and_set_by_partition_and_by_time() -> None:
    async with console() as client:
        records = [record(b"v", at_ms=1000 * n) for n in range(9)]
        await client.create_topic("t", *records, partitions=2)
        await commit_offsets(client.cluster, "g", {("t", 0): 4, ("t", 1): 0})
        path = "/groups/g/seek"
        for body, expected in (
            ({"to": "shift", "value": -3}, [1, 0]),
            ({"offsets": [{"topic": "t", "partition": 0, "offset": 6}]}, [6, 0]),
            ({"to": "time", "value": 2000, "topics": {"t": [0]}}, [2, 0]),
            ({"to": "offset", "value": 100, "topics": {"t": None}}, [9, 0]),
        ):
            assert (await client.post(path, body | {"dry_run": False})).status == 200
            assert await offsets_of(client, "g") == expected


async def test_share_group_is_created_reset_and_its_offsets_are_deleted() -> None:
    async with console() as client:
        assert (await client.get("/groups"))["may"] == ["CREATE"]
        await client.create_topic("t", *(record(b"v") for _ in range(9)))
        new = {"type": "share", "to": "start", "topics": {"t": None}}
        preview = (await client.post("/groups/s/create", new)).json()
        row = {"topic": "t", "partition": 0, "prior_offset": None, "new_offset": 0, "error": None}
        assert preview["partitions"] == [row]
        assert (await client.ask("/groups/s/details")).status == 404
        assert (await client.post("/groups/s/create", new | {"dry_run": False})).status == 200
        found = await client.get("/groups/s/details")
        assert (found["type"], found["may"]) == ("Share", ["READ", "DELETE", "ALTER_CONFIGS"])
        again = await client.post("/groups/s/create", new)
        assert (again.status, "exists already" in again.text) == (409, True)
        shift = {"to": "shift", "value": 5, "dry_run": False}
        assert (await client.post("/groups/s/seek", shift)).status == 200
        assert await offsets_of(client, "s") == [5]
        part = await client.post("/groups/s/delete-offsets", {"topics": {"t": [0]}})
        assert (part.status, "whole topics only" in part.text) == (400, True)
        body = {"topics": {"t": None}, "dry_run": False}
        deleted = (await client.post("/groups/s/delete-offsets", body)).json()
        assert deleted["partitions"] == [{"topic": "t", "partition": 0, "offset": 5, "error": None}]
        assert await offsets_of(client, "s") == []


async def test_consumer_group_is_created_from_offsets() -> None:
    async with console() as client:
        await client.create_topic("t", *(record(b"v") for _ in range(9)), partitions=2)
        new = {"type": "consumer", "to": "end", "topics": {"t": [0]}, "dry_run": False}
        assert (await client.post("/groups/g/create", new)).status == 200
        assert await offsets_of(client, "g") == [9]


async def test_offsets_of_topic_are_deleted_after_preview() -> None:
    async with console() as client:
        await client.create_topic("t", partitions=2)
        await client.create_topic("u")
        offsets = {("t", 0): 0, ("t", 1): 0, ("u", 0): 0}
        await commit_offsets(client.cluster, "g", offsets)
        path, body = "/groups/g/delete-offsets", {"topics": {"t": [1]}}
        row = {"topic": "t", "partition": 1, "offset": 0, "error": None}
        preview = (await client.post(path, body)).json()
        assert preview == {"dry_run": True, "group": "g", "problem": None, "partitions": [row]}
        assert len(await offsets_of(client, "g")) == 3
        assert (await client.post(path, body | {"dry_run": False})).status == 200
        assert len(await offsets_of(client, "g")) == 2
        assert (await client.post(path, body)).status == 404
        assert (await client.post("/groups/absent/delete-offsets", body)).status == 404


async def test_changes_of_group_with_members_are_explained_and_member_is_removed() -> None:
    async with console() as client:
        await client.create_topic("t", record(b"v"))
        member = Member(client.cluster, "g", ["t"])
        await member.join()
        await commit_offsets(client.cluster, "g", {("t", 0): 0})
        problem = "the group has 1 active member; stop them first"
        seek = {"to": "end", "topics": {"t": None}}
        assert (await client.post("/groups/g/seek", seek)).json()["problem"] == problem
        row = (await client.post("/groups/g/seek", seek | {"dry_run": False})).json()
        assert row["partitions"][0]["error"] is not None
        assert (await client.post("/groups/g/delete", {})).json()["problem"] == problem
        denied = await client.post("/groups/g/delete", {"dry_run": False})
        assert (denied.status, "NON_EMPTY_GROUP" in denied.text) == (409, True)
        (row,) = (await client.get("/groups/g/details"))["partitions"]
        path, body = "/groups/g/remove-members", {"members": [row["member_id"]]}
        preview = (await client.post(path, body)).json()
        assert preview["members"][0]["partitions"] == 1
        removed = (await client.post(path, body | {"dry_run": False})).json()
        assert removed["members"][0]["error"] is None
        assert (await client.get("/groups/g/details"))["members"] == 0
        assert (await client.post(path, body)).status == 404


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("seek", {"to": "nowhere"}, "invalid to 'nowhere' (valid: start, end, offset, time)"),
        ("seek", {"to": 1}, "to must be of type str"),
        (
            "seek",
            {"to": "time", "value": 4102444800000},
            "is in the future (2100-01-01 00:00:00 UTC)",
        ),
        (
            "create",
            {"type": "share", "to": "time", "value": 1 << 62, "topics": {"t": None}},
            "future",
        ),
        ("seek", {"to": "end", "value": "x"}, "value must be of type int"),
        ("seek", {"to": "shift", "value": 1 << 64}, "64-bit"),
        ("seek", {"to": "end", "topics": ["t"]}, "topics must be an object"),
        ("seek", {"to": "end", "topics": {"t": ["x"]}}, "must be a list of 1 to"),
        ("seek", {"offsets": []}, "offsets must be a list"),
        ("seek", {"offsets": [{"topic": "t", "partition": 0}]}, "offset must be integers"),
        ("seek", {"to": "end"}, "has no committed offsets; pass topics to reset"),
        ("seek", [], "expected a JSON object"),
        ("create", {"type": "x"}, "invalid type 'x' (valid: consumer, share)"),
        ("create", {"type": "share", "to": "end"}, "topics is missing"),
        ("delete-offsets", {}, "topics is missing"),
        ("remove-members", {"members": []}, "members must be a list"),
    ],
)
async def test_invalid_change_of_group_is_rejected(path: str, body: object, error: str) -> None:
    async with console() as client:
        await client.create_topic("t")
        response = await client.post(f"/groups/g/{path}", body)
        assert (response.status, error in response.text) == (400, True), response.text


async def test_changes_of_groups_are_absent_from_read_only_console() -> None:
    async with console(http_host="0.0.0.0") as client:
        await client.create_topic("t")
        await alter_share_offsets(client.cluster, "s", {("t", 0): 0})
        assert (await client.get("/groups"))["may"] == []
        assert (await client.get("/groups/s/details"))["may"] == []
        for path in ("create", "seek", "delete", "delete-offsets", "remove-members"):
            assert (await client.post(f"/groups/s/{path}", {})).status == 403


async def test_reset_changes_only_the_partitions_whose_topics_were_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with console() as client:
        for name in ("checked", "late"):
            await client.create_topic(name, *(record(b"v") for _ in range(3)))
        await commit_offsets(client.cluster, "g", {("checked", 0): 1})
        plan = Seek.plan

        async def plan_before_another_commit(job: Seek, cluster: ClusterClient) -> list[SeekRow]:
            rows = await plan(job, cluster)
            await commit_offsets(client.cluster, "g", {("late", 0): 1})
            return rows

        monkeypatch.setattr(Seek, "plan", plan_before_another_commit)
        response = await client.post("/groups/g/seek", {"to": "end", "dry_run": False})
        assert [row["topic"] for row in response.json()["partitions"]] == ["checked"]
        assert await offsets_of(client, "g") == [3, 1]


async def test_deletion_of_groups_continues_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail_for_b(cluster: ClusterClient, names: Iterable[str]) -> dict[str, Any]:
        if "b" in (chosen := [*names]):
            raise TimedOut("no response")
        return {**await delete_groups(cluster, chosen)}

    async with console() as client:
        await client.create_topic("t")
        for name in "abc":
            await commit_offsets(client.cluster, name, {("t", 0): 0})
        monkeypatch.setattr(group_changes, "delete_groups", fail_for_b)
        body = {"groups": ["a", "b", "c"], "dry_run": False}
        deleted = (await client.post("/groups/delete", body)).json()["groups"]
        assert [(row["group"], row["error"]) for row in deleted] == [
            ("a", None),
            ("b", "no response"),
            ("c", None),
        ]
        assert [row["group"] for row in (await client.get("/groups"))["groups"]] == ["b"]
