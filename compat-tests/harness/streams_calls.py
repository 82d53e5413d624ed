"""Streams group requests of the differential test: heartbeats, descriptions and topologies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from kbroker.protocol.api_keys import ApiKey

from .admin_calls import Call, World, of, request

BEAT, DESCRIBE, UPDATE = (
    ApiKey.STREAMS_GROUP_HEARTBEAT,
    ApiKey.STREAMS_GROUP_DESCRIBE,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
)
# Settings of both brokers: assignments are computed without delay.
PROPERTIES = {
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.num.standby.replicas": "1",
    "group.streams.rack.aware.assignment.tags": "zone,cluster",
}
TOPICS = ("streams-in", "streams-between", "streams-log", "streams-log-2")
# Time in which Kafka's coordinator learns of new topics.
SETTLE_SECONDS = 1.0


def streams_groups() -> Iterator[Call]:
    """Yield calls of two members of one group per version, one of them static."""
    yield from _topics()
    time.sleep(SETTLE_SECONDS)
    joins = {"rebalance_timeout_ms": 60_000, "topology": _topology(), **_tasks()}
    yield _beat("no topics", "a", 0, "x", **joins | {"topology": _topology("missing-")})
    yield _beat("join", "a", 0, instance_id="i", rack_id="r", **joins, **_metadata("a"))
    yield _beat("join of another", "b", 0, **joins, **_metadata("b"))
    yield _beat("revoke", "a", 2, instance_id="i")
    kept = _tasks(active_tasks=_ids(0), standby_tasks=_ids(1))
    offsets = [of(BEAT, "TaskOffset", subtopology_id="1", partition=1, offset=7)]
    reported = {"task_offsets": offsets, "task_end_offsets": offsets}
    yield _beat("revoked", "a", 2, instance_id="i", **kept, **reported)
    yield _beat("get", "b", 3, endpoint_information_epoch=-1)
    yield _describe("two members", include_authorized_operations=True)
    yield _beat("leave temporarily", "a", -2, instance_id="i")
    yield _describe("an absent member")
    yield _update("a member", "b", 1)
    yield _describe("topology", range(1, 99), include_topology_description=True)
    yield _beat("return", "c", 0, instance_id="i", **joins, **_metadata("a"))
    yield _beat("fenced", "a", 3, instance_id="i")
    yield _beat("unknown", "a", 3)
    yield _beat("shutdown", "c", 3, instance_id="i", shutdown_application=True)
    yield _beat("leave", "b", -1)
    yield _beat("leave as static member", "c", -1, instance_id="i")
    yield _describe("no members")
    yield _update("a stranger", "nobody", 1)


def _topics() -> Iterator[Call]:
    key = ApiKey.CREATE_TOPICS
    rows = [of(key, "Topic", name=name, num_partitions=2, replication_factor=1) for name in TOPICS]
    message = request(key, topics=rows, timeout_ms=10_000)
    yield Call("streams: topics", key, lambda world, version: message, versions=range(7, 8))


def _group(version: int, name: str = "") -> str:
    return f"streams{name}-{version}"


def _beat(what: str, member: str, epoch: int, group: str = "", **values: Any) -> Call:
    def build(world: World, version: int) -> Any:
        ids = {"group_id": _group(version, group), "member_id": member, "member_epoch": epoch}
        return request(BEAT, **ids, **values)

    return Call(f"streams: {what}", BEAT, build)


def _describe(what: str, versions: range | None = None, **values: Any) -> Call:
    def build(world: World, version: int) -> Any:
        return request(DESCRIBE, group_ids=[_group(version), "nowhere"], **values)

    return Call(f"describe streams: {what}", DESCRIBE, build, versions=versions)


def _update(what: str, member: str, epoch: int) -> Call:
    message = request(UPDATE, group_id=_group(1), member_id=member, topology_epoch=epoch)
    return Call(f"streams topology: {what}", UPDATE, lambda world, version: message)


def _tasks(**tasks: Any) -> dict[str, Any]:
    """Return the fields of a member without tasks, except those given."""
    return {"active_tasks": [], "standby_tasks": [], "warmup_tasks": [], **tasks}


def _ids(partition: int) -> list[Any]:
    return [of(BEAT, "TaskIds", subtopology_id=each, partitions=[partition]) for each in "01"]


def _metadata(process: str) -> dict[str, Any]:
    return {
        "process_id": process,
        "user_endpoint": of(BEAT, "Endpoint", host=process, port=9),
        "client_tags": [of(BEAT, "KeyValue", key="zone", value="z")],
    }


def _topology(prefix: str = "") -> Any:
    source, between, log, other_log = (prefix + name for name in TOPICS)
    configs = [of(BEAT, "KeyValue", key="cleanup.policy", value="compact")]

    def internal(name: str, partitions: int) -> list[Any]:
        values = {"partitions": partitions, "replication_factor": 1, "topic_configs": configs}
        return [of(BEAT, "TopicInfo", name=name, **values)]

    first = of(
        BEAT,
        "Subtopology",
        subtopology_id="0",
        source_topics=[source],
        repartition_sink_topics=[between],
        state_changelog_topics=internal(log, 0),
    )
    second = of(
        BEAT,
        "Subtopology",
        subtopology_id="1",
        repartition_source_topics=internal(between, 2),
        state_changelog_topics=internal(other_log, 0),
    )
    return of(BEAT, "Topology", epoch=1, subtopologies=[first, second])
