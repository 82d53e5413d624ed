"""Streams groups of KIP-1071 on kbroker and on Apache Kafka 4.4, compared field by field.

The records in `__consumer_offsets` are compared too.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from harness.admin_calls import of, request
from harness.brokers import Broker, FixedQuorumBroker, KbrokerBroker
from harness.raw import RawConnection
from harness.tools import Tools, is_java

from kbroker.protocol import streams_group_metadata
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.group_metadata import GroupMetadataKey
from kbroker.protocol.group_metadata import decode_key as decode_classic_key
from kbroker.protocol.records import iter_headers, read_records
from kbroker.protocol.schema import Struct, fields

CLIENT = "streams groups"
OFFSETS_TOPIC = "__consumer_offsets"
PROPERTIES = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.session.timeout.ms": "45000",
    "group.streams.min.session.timeout.ms": "1000",
    "group.streams.max.size": "3",
}
BEAT, DESCRIBE = ApiKey.STREAMS_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_DESCRIBE
COMMIT, FETCH_OFFSETS = ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH
NOT_YET = {14, 15, 16}
SETTLE_SECONDS = 30.0
TIMES = {"assignment_timestamp", "metadata_hash", "throttle_time_ms"}
MISSING_SOURCES, MISSING_INTERNAL = 1, 3


@dataclass(slots=True)
class Side:
    """One of the two brokers, with its responses."""

    broker: Broker
    connection: RawConnection
    group: str = ""
    responses: list[Any] = field(default_factory=list)

    def topic(self, name: str, partitions: int) -> None:
        row = of(
            ApiKey.CREATE_TOPICS,
            "Topic",
            name=self.own_name(name),
            num_partitions=partitions,
            replication_factor=1,
        )
        message = request(ApiKey.CREATE_TOPICS, topics=[row], timeout_ms=10_000)
        (made,) = self.connection.ask(ApiKey.CREATE_TOPICS, 7, message).topics
        assert not made.error_code, made
        time.sleep(min(self.broker.settle_seconds, 0.5))

    def own_name(self, name: str) -> str:
        """Return the full name of a topic of this test."""
        return f"{self.group}-{name}"

    def ask(self, key: ApiKey, version: int, message: Any) -> Any:
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            answer = self.connection.ask(key, version, message)
            if getattr(answer, "error_code", 0) not in NOT_YET or time.monotonic() > deadline:
                return answer
            time.sleep(0.1)

    def beat(self, member: str, epoch: int, **fields: Any) -> Any:
        """Send a heartbeat and record its response for comparison."""
        answer = self.ask(BEAT, 0, self.heartbeat(member, epoch, **fields))
        self.responses.append(plain(answer))
        return answer

    def heartbeat(self, member: str, epoch: int, **fields: Any) -> Any:
        if epoch == 0:
            fields = {
                "rebalance_timeout_ms": 60_000,
                "active_tasks": [],
                "standby_tasks": [],
                "warmup_tasks": [],
                "process_id": f"process-{member}",
                "topology": self.topology(),
                "client_tags": [],
                **fields,
            }
        values = {"group_id": self.group, "member_id": member, "member_epoch": epoch}
        return request(BEAT, **{**values, **fields})

    def beat_until(
        self, accepts: Callable[[Any], bool], member: str, epoch: int, **fields: Any
    ) -> Any:
        """Send heartbeats until a response is accepted, and record only that one for comparison."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            answer = self.ask(BEAT, 0, self.heartbeat(member, epoch, **fields))
            # An error has no topics and tasks, so `accepts` could match it.
            assert not answer.error_code, answer
            if accepts(answer):
                self.responses.append(plain(answer))
                return answer
            assert time.monotonic() < deadline, answer
            time.sleep(0.1)

    def topology(self, *subtopologies: Any, epoch: int = 0) -> Any:
        rows = list(subtopologies) or [self.subtopology("0", sources=["in"])]
        return of(BEAT, "Topology", epoch=epoch, subtopologies=rows)

    def subtopology(
        self,
        name: str,
        sources: tuple[str, ...] | list[str] = (),
        sinks: tuple[str, ...] = (),
        repartition: tuple[tuple[str, int], ...] = (),
        changelogs: tuple[str, ...] = (),
        copartition: tuple[tuple[list[int], list[int]], ...] = (),
    ) -> Any:
        return of(
            BEAT,
            "Subtopology",
            subtopology_id=name,
            source_topics=list(map(self.own_name, sources)),
            repartition_sink_topics=list(map(self.own_name, sinks)),
            repartition_source_topics=[
                of(BEAT, "TopicInfo", name=self.own_name(each), partitions=count)
                for each, count in repartition
            ],
            state_changelog_topics=[
                of(
                    BEAT,
                    "TopicInfo",
                    name=self.own_name(each),
                    topic_configs=[of(BEAT, "KeyValue", key="cleanup.policy", value="compact")],
                )
                for each in changelogs
            ],
            copartition_groups=[
                of(
                    BEAT,
                    "CopartitionGroup",
                    source_topics=inputs,
                    repartition_source_topics=between,
                )
                for inputs, between in copartition
            ],
        )

    def describe(self, *groups: str) -> None:
        message = request(DESCRIBE, group_ids=list(groups or (self.group,)))
        answer = self.ask(DESCRIBE, 0, message)
        self.responses.append(plain(answer))

    def ask_and_record(self, key: ApiKey, version: int, **values: Any) -> Any:
        """Send any other request and record its response for comparison."""
        answer = self.ask(key, version, request(key, **values))
        self.responses.append(plain(answer))
        return answer

    def commit(self, member: str, epoch: int, topic: str, partition: int, version: int = 9) -> None:
        row = of(COMMIT, "Partition", partition_index=partition, committed_offset=5)
        rows = [of(COMMIT, "Topic", name=self.own_name(topic), partitions=[row])]
        values = {"group_id": self.group, "member_id": member}
        self.ask_and_record(
            COMMIT, version, generation_id_or_member_epoch=epoch, topics=rows, **values
        )

    def offsets(self, member: str | None, epoch: int, topic: str) -> None:
        row = of(
            FETCH_OFFSETS,
            "Group",
            group_id=self.group,
            member_id=member,
            member_epoch=epoch,
            topics=[
                of(FETCH_OFFSETS, "Topic", name=self.own_name(topic), partition_indexes=[0, 1])
            ],
        )
        self.ask_and_record(FETCH_OFFSETS, 9, groups=[row])

    def set_group(self, **settings: str) -> None:
        """Set configs of the group, with underscores for dots."""
        key = ApiKey.INCREMENTAL_ALTER_CONFIGS
        configs = [
            of(key, "Config", name=name.replace("_", "."), config_operation=0, value=value)
            for name, value in settings.items()
        ]
        row = of(key, "Resource", resource_type=32, resource_name=self.group, configs=configs)
        (answer,) = self.connection.ask(key, 1, request(key, resources=[row])).responses
        assert not answer.error_code, answer

    def records(self) -> list[Any]:
        """Return the group's decoded records in the offsets topic, in log order."""
        key = ApiKey.FETCH
        partition = of(key, "Partition", partition=0, partition_max_bytes=1 << 26)
        topic = of(key, "Topic", topic=OFFSETS_TOPIC, partitions=[partition])
        message = request(key, topics=[topic], max_wait_ms=100, max_bytes=1 << 26)
        answer = self.connection.ask(key, 12, message)
        data = memoryview(bytes(answer.responses[0].partitions[0].records))
        found = []
        for position, header in iter_headers(data):
            for record in read_records(data[position : position + header.size]):
                decoded = streams_group_metadata.decode_key(record.key)
                if decoded is not None and decoded.group_id == self.group:
                    value = record.value
                    shown = streams_group_metadata.decode_value(decoded, value) if value else None
                    found.append((type(decoded).__name__, plain(decoded), plain(shown)))
                classic = decode_classic_key(record.key)
                if isinstance(classic, GroupMetadataKey) and not record.value:
                    found += [("classic", None)] if classic.group == self.group else []
        return found


def plain(value: Any) -> Any:
    """Return a struct as sorted plain values, without times, hashes and ids."""
    if isinstance(value, Struct):
        row = {
            each.name: plain(getattr(value, each.name))
            for each in fields(type(value))
            if each.name not in TIMES
        }
        if "status_detail" in row:  # Kafka lists topics in hash order
            row["status_detail"] = sorted(re.split(r",? ", row["status_detail"]))
        return row
    if isinstance(value, list):
        return sorted(map(plain, value), key=str)
    return "id" if isinstance(value, UUID) else value


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    brokers = [
        KbrokerBroker(tmp_path_factory.mktemp("kbroker"), PROPERTIES),
        FixedQuorumBroker(tmp_path_factory.mktemp("apache"), PROPERTIES),
    ]
    try:
        for broker in brokers:
            broker.start()
        sides = list(map(connected_to, brokers))
        yield sides[0], sides[1]
        for side in sides:
            side.connection.close()
    finally:
        for broker in brokers:
            broker.kill()


def is_ready(answer: Any) -> bool:
    """Return True if the response has no status, so all topics are as required."""
    return not {1, 2, 3} & {each.status_code for each in answer.status or ()}


def has_tasks(answer: Any) -> bool:
    return is_ready(answer) and bool(answer.active_tasks)


def tasks(*partitions: int, name: str = "0") -> Any:
    return [of(BEAT, "TaskIds", subtopology_id=name, partitions=list(partitions))]


def no_tasks(**fields: Any) -> dict[str, Any]:
    """Return the heartbeat fields of a member without tasks, except those given."""
    return {"active_tasks": [], "standby_tasks": [], "warmup_tasks": [], **fields}


# --- scripts of members


def member_joins_and_leaves(side: Side) -> None:
    side.topic("in", 4)
    answer = side.beat_until(is_ready, "a", 0)
    side.beat("a", answer.member_epoch, **no_tasks(active_tasks=tasks(0, 1, 2, 3)))
    side.beat("a", answer.member_epoch)
    side.describe()
    side.ask_and_record(ApiKey.LIST_GROUPS, 5, types_filter=["streams"], states_filter=["stable"])
    side.beat("a", -1)
    side.describe()
    side.beat("a", -1)
    side.ask_and_record(ApiKey.DELETE_GROUPS, 2, groups_names=[side.group])
    side.describe()
    side.beat("a", 5)
    side.beat("a", -1)


def members_hand_over_tasks(side: Side) -> None:
    side.topic("in", 4)
    side.beat_until(is_ready, "a", 0)
    side.beat("b", 0)
    side.describe()
    side.beat("a", 2)
    side.beat("b", 3)
    side.beat("a", 2, **no_tasks(active_tasks=tasks(0, 1, 2, 3)))
    side.beat("a", 2, **no_tasks(active_tasks=tasks(0, 1)))
    side.beat("b", 3)
    side.describe()
    side.beat("a", 3)
    side.beat("b", 2, **no_tasks(active_tasks=tasks(2)))
    side.beat("b", 1)
    side.beat("b", 7)
    side.beat("nobody", 3)
    side.beat("c", 0)
    side.beat("d", 0)
    side.beat("a", 0)
    side.beat("b", -1)
    side.beat("a", 3, **no_tasks(active_tasks=tasks(0, 1)))
    side.beat("c", 4)
    side.beat("a", 0)
    side.describe()


def internal_topics_are_created(side: Side) -> None:
    topology = side.topology(
        side.subtopology("0", sources=["in"], sinks=("between",)),
        side.subtopology("1", repartition=(("between", 0),), changelogs=("counts",)),
    )
    epoch = side.beat("a", 0, topology=topology).member_epoch
    side.describe()
    for state in ("NotReady", "not_ready"):
        side.ask_and_record(ApiKey.LIST_GROUPS, 5, types_filter=["Streams"], states_filter=[state])
    side.topic("in", 3)
    side.beat_until(lambda answer: MISSING_SOURCES not in codes(answer), "a", epoch)
    epoch = side.beat_until(has_tasks, "a", 0, topology=topology).member_epoch
    side.describe()
    topics = [side.own_name(name) for name in ("between", "counts")]
    key = ApiKey.METADATA
    message = request(key, topics=[of(key, "Topic", name=name) for name in topics])
    found = side.connection.ask(key, 12, message).topics
    side.responses.append([(each.name, len(each.partitions)) for each in found])
    side.beat("a", epoch, **no_tasks(active_tasks=tasks(3)))
    side.beat("a", epoch, **no_tasks(active_tasks=tasks(0, name="7")))


def codes(answer: Any) -> set[int]:
    return {each.status_code for each in answer.status or ()}


def standbys(side: Side) -> None:
    side.set_group(streams_num_standby_replicas="1")
    side.topic("in", 2)
    side.topic("log", 2)
    topology = side.topology(side.subtopology("0", sources=["in"], changelogs=("log",)))
    first = side.beat_until(has_tasks, "a", 0, topology=topology)
    epoch = first.member_epoch
    side.beat("b", 0, topology=topology)
    side.describe()
    side.beat("a", epoch, **no_tasks(active_tasks=tasks(0, 1)))
    side.beat("a", epoch, **no_tasks(active_tasks=tasks(0)))
    side.beat("b", epoch + 1, **no_tasks(standby_tasks=tasks(0)))
    side.beat("b", epoch + 1)
    side.beat("a", epoch + 1)
    side.describe()
    side.set_group(streams_num_standby_replicas="0")
    side.beat_until(lambda answer: answer.member_epoch > epoch + 1, "a", epoch + 1, **no_tasks())
    side.describe()
    side.beat("b", -1)
    side.describe()


def static_members_return(side: Side) -> None:
    """Let static members leave temporarily and return, as themselves or with other data."""
    side.topic("in", 4)
    epoch = side.beat_until(has_tasks, "a", 0, instance_id="i").member_epoch
    side.beat("a", 0, instance_id="i")
    side.beat("b", 0, instance_id="i")
    side.beat("b", epoch, instance_id="i")
    side.beat("b", -1, instance_id="i")
    side.beat("b", -2, instance_id="i")
    side.beat("a", -2)
    side.beat("a", -2, instance_id="j")
    side.beat("a", epoch)
    side.beat("a", epoch, instance_id="i", **no_tasks(active_tasks=tasks(0, 1, 2, 3)))
    side.beat("a", -2, instance_id="i")
    side.describe()
    side.beat("a", epoch, instance_id="i")
    side.commit("a", epoch, "in", 0)
    side.commit("a", -2, "in", 0)
    side.offsets("a", epoch, "in")
    side.beat("b", 0, instance_id="i", process_id="process-a")
    side.describe()
    side.beat("a", epoch, instance_id="i")
    side.beat("a", epoch)
    side.beat("a", -1)
    side.beat("b", epoch, instance_id="i")
    side.commit("b", epoch, "in", 0)
    side.beat("b", -2, instance_id="i")
    side.beat("b", 0, instance_id="i", process_id="process-a")
    side.beat("b", epoch, instance_id="i", **no_tasks(active_tasks=tasks(0, 1, 2, 3)))
    side.beat("b", -2, instance_id="i")
    epoch = side.beat("c", 0, instance_id="i", process_id="other", rack_id="r").member_epoch
    side.beat("c", epoch, instance_id="i", **no_tasks(active_tasks=tasks(0, 1, 2, 3)))
    side.describe()
    side.beat("c", -1, instance_id="i")
    side.describe()


def static_members_share_tasks(side: Side) -> None:
    """Let static members join, leave and return while tasks move between them."""
    side.topic("in", 4)
    first = side.beat_until(has_tasks, "a", 0, instance_id="i").member_epoch
    second = side.beat("b", 0, instance_id="j").member_epoch
    side.beat("a", first, instance_id="i")
    side.beat("a", -2, instance_id="i")
    side.describe()
    side.beat("b", second, instance_id="j")
    side.beat("c", 0, instance_id="i", process_id="process-a")
    side.beat("c", second, instance_id="i", **no_tasks(active_tasks=tasks(0, 1)))
    side.beat("b", second, instance_id="j")
    side.describe()
    side.beat("d", 0)
    side.beat("b", -2, instance_id="j")
    side.beat("e", 0, instance_id="k")
    side.beat("f", 0, instance_id="j", process_id="process-b")
    side.describe()
    side.beat("c", 0, instance_id="l")
    side.beat("f", -2, instance_id="j")
    side.beat("d", 0, instance_id="j", process_id="process-b")
    side.describe()
    side.beat("c", -1)
    side.beat("d", -1)
    side.describe()


def static_members_expire(side: Side) -> None:
    """Let the session of a static member end that has left temporarily."""
    side.set_group(streams_session_timeout_ms="5500")
    side.topic("in", 4)
    side.beat_until(is_ready, "a", 0, instance_id="i")
    side.beat("b", 0)
    side.beat("a", 2, instance_id="i")
    side.beat("a", -2, instance_id="i")
    side.beat("b", 3)
    side.beat_until(lambda answer: answer.member_epoch > 3, "b", 3)
    side.describe()
    side.beat("c", 0, instance_id="i")
    side.describe()
    for member in "bc":  # otherwise their sessions end before the records are read
        side.beat(member, -1)


def task_offsets(side: Side) -> None:
    """Report offsets of tasks, which decide where standbys go."""

    def at(*offsets: tuple[str, int, int]) -> list[Any]:
        return [
            of(BEAT, "TaskOffset", subtopology_id=name, partition=partition, offset=offset)
            for name, partition, offset in offsets
        ]

    side.topic("in", 2)
    side.topic("log", 2)
    topology = side.topology(side.subtopology("0", sources=["in"], changelogs=("log",)))
    epoch = side.beat_until(has_tasks, "a", 0, topology=topology).member_epoch
    side.beat("a", epoch, task_offsets=at(("0", 0, 7), ("0", 0, 8)))
    side.beat("a", epoch, task_offsets=at(("0", 0, 7), ("x", 9, -5)))
    side.beat("a", epoch, task_end_offsets=at(("0", 1, 70)))
    side.beat("b", 0, topology=topology, task_offsets=at(("0", 0, 3), ("0", 1, 5)))
    side.describe()
    side.beat("a", epoch, task_offsets=[])
    side.beat("c", 0, topology=topology, task_offsets=at(("0", 0, 4), ("0", 1, 9)))
    side.beat("c", epoch + 2)
    side.set_group(streams_num_standby_replicas="1")
    side.beat_until(lambda answer: answer.member_epoch > epoch + 2, "c", epoch + 2)
    side.describe()


def topologies(side: Side) -> None:
    side.topic("in", 2)
    side.topic("other", 3)
    side.topic("wrong", 5)
    for each in (
        side.topology(side.subtopology("0", sources=["in"], changelogs=("wrong",))),
        side.topology(side.subtopology("0", sources=["in", "other"], copartition=(([0, 1], []),))),
        side.topology(
            side.subtopology("0", sources=["in"], sinks=("x",)),
            side.subtopology(
                "1", repartition=(("x", 3),), sources=["in"], copartition=(([0], [0]),)
            ),
        ),
        side.topology(
            side.subtopology("0", sources=["in"], sinks=("x", "y")),
            side.subtopology("1", repartition=(("x", 3), ("y", 4)), copartition=(([], [0, 1]),)),
        ),
        side.topology(
            side.subtopology("0", repartition=(("x", 0),), sinks=("y",)),
            side.subtopology("1", repartition=(("y", 0),), sinks=("x",)),
        ),
        side.topology(side.subtopology("0", repartition=(("x", 0),))),
        side.topology(side.subtopology("0", changelogs=("log",))),
        side.topology(side.subtopology("0", sources=["in", "nowhere", "nothing"])),
    ):
        side.beat("a", 0, topology=each)
        side.ask_and_record(ApiKey.DELETE_GROUPS, 2, groups_names=["none"])
        side.beat("a", -1)
        side.ask_and_record(ApiKey.DELETE_GROUPS, 2, groups_names=[side.group])


def wrong_requests(side: Side) -> None:
    side.topic("in", 1)
    topology = side.topology()
    side.beat_until(is_ready, "a", 0)
    for wrong in (
        {"instance_id": "i"},
        {"task_offsets": []},
        {"task_end_offsets": []},
        {"warmup_tasks": tasks(0)},
        {"rebalance_timeout_ms": -1},
        {"active_tasks": tasks(0)},
        {"standby_tasks": None},
        {"topology": None},
        {"rack_id": ""},
        {"member_id": ""},
        {"member_id": "  "},
        {"group_id": ""},
    ):
        side.beat("b", 0, **wrong)
    for wrong in (
        {"topology": topology},
        {"active_tasks": []},
        {"instance_id": "i"},
        {"instance_id": ""},
    ):
        side.beat("a", 2, **wrong)
    for epoch in (-2, -3, 99):
        side.beat("a", epoch)
    side.beat("b", -1)
    wrong = side.subtopology("0", sources=["in"], changelogs=("log",))
    wrong.state_changelog_topics[0].partitions = 3
    regex = side.subtopology("0", sources=["in"])
    regex.source_topic_regex = ["a.*"]
    internal = side.subtopology("0", sources=["in"])
    internal.source_topics = ["__consumer_offsets", "in"]
    invalid = side.subtopology("0", sources=["a/b"])
    for each in (wrong, regex, internal, invalid, side.subtopology("0", sources=["in", "in"])):
        side.beat("b", 0, topology=side.topology(each))
    side.beat("b", 0, topology=side.topology(epoch=1))
    side.describe()


def topology_epochs(side: Side) -> None:
    side.topic("in", 1)
    side.beat_until(is_ready, "a", 0, topology=side.topology(epoch=3))
    side.beat("b", 0, topology=side.topology(epoch=2))
    side.beat("b", 3)
    side.beat("c", 0, topology=side.topology(epoch=4))
    side.describe()


def endpoints(side: Side) -> None:
    side.topic("in", 2)
    side.topic("small", 1)
    topology = side.topology(side.subtopology("0", sources=["in", "small"]))
    one = of(BEAT, "Endpoint", host="one", port=50_000)
    two = of(BEAT, "Endpoint", host="two", port=2)
    tags = [of(BEAT, "KeyValue", key="zone", value="x"), of(BEAT, "KeyValue", key="a", value="b")]
    joins = {"topology": topology, "client_tags": tags, "rack_id": "r"}
    side.beat_until(is_ready, "a", 0, user_endpoint=one, **joins)
    side.beat("a", 2, endpoint_information_epoch=0)
    side.beat("b", 0, user_endpoint=two, process_id="p", **joins)
    side.beat("a", 2, endpoint_information_epoch=1, **no_tasks(active_tasks=tasks(0)))
    side.beat("b", 3, endpoint_information_epoch=1)
    side.beat("b", 3, endpoint_information_epoch=3)
    side.beat("a", 3, user_endpoint=two)
    side.describe()


def shutdown(side: Side) -> None:
    side.topic("in", 2)
    side.beat_until(is_ready, "a", 0)
    side.beat("b", 0)
    side.beat("a", 2, shutdown_application=True)
    side.beat("b", 3, shutdown_application=True)
    side.beat("b", 3)
    side.beat("a", -1)
    side.beat("b", -1)
    side.beat("b", 0)
    side.beat("b", -1, shutdown_application=True)


def a_new_group_waits(side: Side) -> None:
    side.set_group(streams_initial_rebalance_delay_ms="2000")
    side.topic("in", 4)
    side.beat_until(is_ready, "a", 0)
    side.beat("a", 1)
    side.describe()
    side.beat_until(lambda answer: bool(answer.active_tasks), "a", 1)
    side.describe()


def offsets(side: Side) -> None:
    side.topic("in", 2)
    side.topic("else", 1)
    side.commit("", -1, "in", 0)
    side.beat_until(is_ready, "a", 0)
    side.commit("", -1, "in", 0)
    side.commit("a", 2, "in", 0)
    side.commit("a", 2, "in", 0, version=8)
    side.commit("a", 2, "else", 0)
    side.beat("b", 0)
    side.beat("a", 2, **no_tasks(active_tasks=tasks(0)))
    side.commit("a", 2, "in", 0)
    side.commit("a", 2, "in", 1)
    side.commit("a", 2, "else", 0)
    side.commit("a", 1, "in", 0)
    side.commit("a", 9, "in", 0)
    side.commit("x", 2, "in", 0)
    side.offsets("a", 3, "in")
    side.offsets("a", 2, "in")
    side.offsets("x", 2, "in")
    side.offsets(None, -1, "in")
    key = ApiKey.OFFSET_DELETE
    for topic in ("in", "else"):
        rows = [of(key, "Partition", partition_index=0)]
        topics = [of(key, "Topic", name=side.own_name(topic), partitions=rows)]
        side.ask_and_record(key, 0, group_id=side.group, topics=topics)
    side.ask_and_record(ApiKey.DELETE_GROUPS, 2, groups_names=[side.group])
    side.beat("a", -1)
    side.beat("b", -1)
    side.ask_and_record(ApiKey.DELETE_GROUPS, 2, groups_names=[side.group])
    side.offsets(None, -1, "in")


def requests_to_other_group_types(side: Side) -> None:
    side.topic("in", 2)
    side.beat_until(is_ready, "a", 0)
    join = ApiKey.JOIN_GROUP
    values = {
        "group_id": side.group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [of(join, "Protocol", name="range", metadata=b"")],
    }
    member = {"group_id": side.group, "member_id": "a"}
    side.ask_and_record(join, 3, **values)
    side.ask_and_record(ApiKey.SYNC_GROUP, 3, generation_id=2, **member)
    side.ask_and_record(ApiKey.HEARTBEAT, 3, generation_id=2, **member)
    leaving = [of(ApiKey.LEAVE_GROUP, "Member", member_id="a")]
    side.ask_and_record(ApiKey.LEAVE_GROUP, 3, group_id=side.group, members=leaving)
    for version in (5, 6):
        side.ask_and_record(ApiKey.DESCRIBE_GROUPS, version, groups=[side.group])
    side.ask_and_record(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[side.group])
    consumer = {
        "member_id": "c",
        "rebalance_timeout_ms": 1000,
        "subscribed_topic_names": [side.own_name("in")],
        "topic_partitions": [],
    }
    beat = ApiKey.CONSUMER_GROUP_HEARTBEAT
    side.ask_and_record(beat, 1, group_id=side.group, member_epoch=0, **consumer)
    side.ask_and_record(beat, 1, group_id=side.group, member_epoch=3, member_id="c")
    side.ask_and_record(
        ApiKey.LIST_GROUPS, 5, types_filter=["Streams"], states_filter=["not_ready"]
    )
    other = f"{side.group}-consumer"
    side.ask_and_record(beat, 1, group_id=other, member_epoch=0, **consumer)
    side.beat("a", 0, group_id=other)
    side.beat("a", 3, group_id=other)
    side.beat("a", -1, group_id=other)
    side.describe(other, "nowhere", side.group)
    side.beat("a", -1)
    side.ask_and_record(beat, 1, group_id=side.group, member_epoch=0, **consumer)
    answer = side.connection.ask(join, 3, request(join, **values))
    side.responses.append(answer.error_code)
    side.describe()
    side.beat("a", 0)
    leaving = [of(ApiKey.LEAVE_GROUP, "Member", member_id=answer.member_id)]
    leave = request(ApiKey.LEAVE_GROUP, group_id=side.group, members=leaving)
    side.responses.append(side.connection.ask(ApiKey.LEAVE_GROUP, 3, leave).error_code)
    side.beat("a", 0)


SCRIPTS = (
    member_joins_and_leaves,
    members_hand_over_tasks,
    internal_topics_are_created,
    standbys,
    static_members_return,
    static_members_share_tasks,
    static_members_expire,
    task_offsets,
    topologies,
    wrong_requests,
    topology_epochs,
    endpoints,
    shutdown,
    a_new_group_waits,
    offsets,
    requests_to_other_group_types,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=[each.__name__ for each in SCRIPTS])
def test_scripts_have_same_responses_and_records(
    both: tuple[Side, Side], script: Callable[[Side], None]
) -> None:
    for side in both:
        side.group = script.__name__.replace("_", "-")
        side.responses = []
        script(side)
    ours, theirs = both
    for number, (mine, other) in enumerate(zip(ours.responses, theirs.responses, strict=True)):
        assert mine == other, f"answer {number}"
    records = ours.records()
    assert records, "no records of this group"
    assert records == theirs.records()


def contradictions(side: Side) -> None:
    """Send inconsistent topologies, and an endpoint in a group without topics."""
    part = side.subtopology("0", sources=["in"])
    beyond = side.subtopology("0", sources=["in"], copartition=(([3], []),))
    for topology in (
        side.topology(part, part),
        side.topology(beyond),
        side.topology(epoch=-1),
    ):
        side.beat("a", 0, topology=topology)
    side.beat("a", 0, client_tags=[of(BEAT, "KeyValue", key="a", value="b")] * 2)
    side.beat("a", 0, user_endpoint=of(BEAT, "Endpoint", host="here", port=1))


def test_inconsistent_topologies_are_rejected_where_kafka_fails(both: tuple[Side, Side]) -> None:
    """The last case is valid: kbroker accepts it although Kafka fails."""
    for side in both:
        side.group, side.responses = "contradictions", []
        contradictions(side)
        leave = request(BEAT, group_id=side.group, member_id="a", member_epoch=-1)
        side.ask(BEAT, 0, leave)
        delete = request(ApiKey.DELETE_GROUPS, groups_names=[side.group])
        side.ask(ApiKey.DELETE_GROUPS, 2, delete)
    ours, theirs = ([answer["error_code"] for answer in side.responses] for side in both)
    assert theirs == [-1, -1, -1, -1, -1]
    assert ours == [42, 42, 42, 42, 0]


# --- Kafka's streams tool

LIVE = (
    "--list",
    "--list --state",
    "--list --state Stable",
    "--describe --group {group}",
    "--describe --group {group} --verbose",
    "--describe --group {group} --members",
    "--describe --group {group} --members --verbose",
    "--describe --group {group} --state",
    "--describe --group {group} --state --verbose",
    "--describe --group {group} --offsets",
    "--describe --group {group} --offsets --verbose",
    "--describe --all-groups --state",
    "--describe --group missing",
    "--reset-offsets --group {group} --input-topic {group}-in --to-earliest --execute",
    "--delete-offsets --group {group} --input-topic {group}-in",
    "--delete --group {group}",
)
AT_REST = (
    "--list --state",
    "--describe --group {group}",
    "--describe --group {group} --members",
    "--describe --group {group} --state",
    "--reset-offsets --group {group} --input-topic {group}-in --to-offset 0 --dry-run",
    "--reset-offsets --group {group} --input-topic {group}-in --to-earliest --execute",
    "--reset-offsets --group {group} --all-input-topics --to-latest --execute",
    "--describe --group {group} --offsets",
    "--delete-offsets --group {group} --input-topic {group}-in",
    "--delete-offsets --group {group} --input-topic {group}-missing",
    "--describe --group {group} --offsets",
    "--delete --group {group}",
    "--delete --group {group}",
    "--list",
)


def transcript(side: Side, tools: Tools) -> list[list[str]]:
    """Return the tool's output for an active group and for an empty one."""
    side.group = "tool"
    side.topic("in", 2)
    topology = side.topology(side.subtopology("0", sources=["in"], changelogs=("log",)))
    side.beat_until(has_tasks, "a", 0, topology=topology)
    epoch = side.beat("a", 0, topology=topology).member_epoch
    side.commit("a", epoch, "in", 0)
    output = [run_streams_tool(side, tools, each) for each in LIVE]
    side.beat("a", -1)
    return output + [run_streams_tool(side, tools, each) for each in AT_REST]


def run_streams_tool(side: Side, tools: Tools, arguments: str) -> list[str]:
    words = arguments.format(group=side.group).split()
    done = tools.run("kafka-streams-groups", "--bootstrap-server", side.broker.address, *words)
    text = f"{done.status}\n{done.stdout}\n{done.stderr}".replace(side.broker.address, "BROKER")
    kept = (line for line in text.splitlines() if line.strip() and not is_java(line))
    lines = [re.sub(r" +", " ", line).strip() for line in kept]
    others = {script.__name__.replace("_", "-") for script in SCRIPTS}
    return sorted(line for line in lines if line.split()[0] not in others)


def test_streams_tool_output_is_same_on_both_brokers(both: tuple[Side, Side], tools: Tools) -> None:
    ours, theirs = (transcript(side, tools) for side in both)
    for arguments, mine, other in zip((*LIVE, *AT_REST), ours, theirs, strict=True):
        assert mine == other, arguments
    words = " ".join(line for each in ours for line in each)
    for expected in ("tool Stable", "tool Empty", "tool-in 0 5", "process-a", "0:[0,1]"):
        assert expected in words, words


# --- import of Kafka's data


def connected_to(broker: Broker) -> Side:
    """Connect to a broker and wait for its coordinator."""
    side = Side(broker, RawConnection(broker.address))
    find = request(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=["g"])
    deadline = time.monotonic() + SETTLE_SECONDS
    while side.connection.ask(ApiKey.FIND_COORDINATOR, 4, find).coordinators[0].error_code:
        assert time.monotonic() < deadline, "no coordinator"
        time.sleep(0.1)
    return side


def test_imported_group_continues_with_its_tasks(tmp_path: Path) -> None:
    """Members keep their tasks. The epoch is bumped, because kbroker hashes topics differently."""
    apache = FixedQuorumBroker(tmp_path / "apache", PROPERTIES)
    taken = KbrokerBroker(tmp_path / "taken", PROPERTIES)
    try:
        apache.start()
        before = connected_to(apache)
        before.group = "taken"
        before.topic("in", 2)
        epoch = before.beat_until(has_tasks, "a", 0).member_epoch
        before.commit("a", epoch, "in", 0)
        before.describe()
        before.connection.close()
        apache.stop()
        command = [sys.executable, "-m", "kbroker", "log", "import", str(apache.data_dir)]
        subprocess.run([*command, "--data-dir", str(taken.data_dir)], check=True)
        taken.start()
        after = connected_to(taken)
        after.group = "taken"
        after.describe()
        assert after.responses == before.responses[-1:]
        answer = after.beat("a", epoch, **no_tasks(active_tasks=tasks(0, 1)))
        after.connection.close()
        assert (answer.error_code, answer.member_epoch, answer.active_tasks) == (0, epoch + 1, None)
    finally:
        apache.kill()
        taken.kill()
