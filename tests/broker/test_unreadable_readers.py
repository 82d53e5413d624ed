"""Tests of all readers of stored records with a disk that cannot read one partition.

The partition goes offline, the log and `cluster health` name it, and everything else continues.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio

from kbroker.broker import Broker
from kbroker.client import consumer
from kbroker.client.cluster import open_cluster
from kbroker.client.cluster_details import cluster_problems
from kbroker.client.errors import CannotRead
from kbroker.cluster import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC, ResourceType
from kbroker.partitions.compactor import InlineCompactor
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.offsets import OffsetFetchRequest
from kbroker.protocol.messages.topics import CreateTopicsRequest, DeleteRecordsRequest
from kbroker.protocol.records import Record
from kbroker.storage.errors import UnreadableError
from kbroker.storage.log import Log
from kbroker.web.service import HttpService

from ..cold_disk import ColdDisk
from ..handlers.test_consumer_groups import set_config
from ..handlers.test_log_dirs import move
from ..handlers.test_share_state import READ as READ_SHARE_STATE
from ..handlers.test_share_state import request_state as ask_share_state
from ..net.test_server import commit
from ..sharing import GROUP, ShareMember, initialize
from ..web.client import HttpResponse, open_http_client, served
from ..wire import (
    Topic,
    Wire,
    batch,
    connected,
    fetch,
    fetch_request,
    list_offset,
    produce,
    request,
    until,
    values_of,
)

OLD_MESSAGES = 2
MAX_TIMESTAMP = -3
RECORDS = 20
FIRST_MS = 1000
VALUE_BYTES = 5000
STORAGE_ERROR, NOT_COORDINATOR = ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR
SETTINGS = {
    "log_cleaner_backoff_ms": 3_600_000,
    "log_retention_check_interval_ms": 3_600_000,
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
    "share_coordinator_state_topic_num_partitions": 1,
}
COMPACTED = {"cleanup.policy": "compact", "internal.segment.bytes": "20000"}


@dataclass
class World:
    """A broker with a topic `t` of two partitions, one of which becomes unreadable."""

    broker: Broker
    http: HttpService
    wire: Wire
    topic: Topic
    directories: list[Path]

    async def ask(self, path: str) -> HttpResponse:
        """Send a request to the console."""
        async with open_http_client(self.http.endpoint_of(1)) as client:
            return await client.ask(f"/api/v1/topics/t/{path}")


Step: TypeAlias = Callable[[World], Awaitable[None]]


async def do_nothing(_: World) -> None:
    pass


@dataclass(frozen=True)
class Reader:
    """A reader of stored records.

    Attributes:
        read: Reads, and checks what the client gets.
        prepare: Called before the disk breaks.
        broken: Topic whose partition 0 cannot be read.
        restarted: True if the broker starts again with the broken disk.
        configs: Settings of `t`.
        nodes: Number of brokers.
    """

    read: Step
    prepare: Step = do_nothing
    broken: str = "t"
    restarted: bool = False
    configs: dict[str, str] = field(default_factory=dict)
    nodes: int | None = None


# -- consumers


async def fetch_records(world: World, version: int = 12, **fields: Any) -> None:
    message = fetch_request(world.topic, partitions=(0, 1), **fields)
    response = await world.wire.ask(ApiKey.FETCH, version, message)
    rows = {row.partition_index: row for row in response.responses[0].partitions}
    assert {index: row.error_code for index, row in rows.items()} == {0: STORAGE_ERROR, 1: 0}
    assert rows[1].records


async def fetch_as_old_consumer(world: World) -> None:
    await fetch_records(world, OLD_MESSAGES)


async def fetch_committed_records(world: World) -> None:
    await fetch_records(world, isolation_level=1)


async def fetch_as_follower(world: World) -> None:
    follower = world.broker.nodes[1].node
    state = FetchRequest.ReplicaState(
        replica_id=follower.id, replica_epoch=follower.partitions.epoch
    )
    message = fetch_request(world.topic, replica_state=state)
    response = await world.wire.ask(ApiKey.FETCH, 15, message)
    ((row,),) = (each.partitions for each in response.responses)
    assert row.error_code == STORAGE_ERROR


async def fetch_at_log_end(world: World) -> None:
    """A pending fetch is answered when another reader takes the partition offline."""
    message = fetch_request(world.topic, RECORDS, max_wait_ms=600_000)
    async with connected(world.broker.endpoint) as other:
        await other.send(ApiKey.FETCH, 12, message)
        await trio.testing.wait_all_tasks_blocked()
        await fetch_records(world)
        response = await other.receive()
    assert response.responses[0].partitions[0].error_code == STORAGE_ERROR


async def list_offsets_by_timestamp(world: World) -> None:
    assert (await list_offset(world.wire, world.topic, FIRST_MS + 5)).error_code == STORAGE_ERROR
    assert (await list_offset(world.wire, world.topic, FIRST_MS + 5, partition=1)).offset == 5


async def list_offset_of_max_timestamp(world: World) -> None:
    assert (await list_offset(world.wire, world.topic, MAX_TIMESTAMP)).error_code == STORAGE_ERROR
    found = await list_offset(world.wire, world.topic, MAX_TIMESTAMP, partition=1)
    assert found.offset == RECORDS - 1


async def read_with_kbroker_client(world: World) -> None:
    """Read with the client that the command line and the schema registry use."""
    async with open_cluster([world.broker.endpoint]) as cluster:
        with pytest.raises(CannotRead, match=r"partition 0 of t: cannot be read"):
            await _read_all(cluster, 0)
        assert await _read_all(cluster, 1) == RECORDS


async def _read_all(cluster: Any, index: int) -> int:
    count = 0
    with trio.fail_after(20):
        async with consumer.reading(cluster, {("t", index): (0, RECORDS)}) as channel:
            async for some in channel:
                count += len(some)
    return count


# -- share groups


async def start_share_group_at_earliest(world: World) -> None:
    await initialize(world.broker.node, world.topic, 2)


async def start_share_group_by_duration(world: World) -> None:
    name = "share.auto.offset.reset"
    await set_config(world.wire, ResourceType.GROUP, GROUP, name, "by_duration:P30000D")
    await initialize(world.broker.node, world.topic, 2, start=-1)


async def fetch_as_share_consumer(world: World) -> None:
    member = ShareMember(world.wire, world.topic)
    codes: dict[int, int] = {}
    taken = 0
    with trio.fail_after(20):
        while not (codes.get(0) and taken):
            response = await member.fetch((0, 1), max_wait_ms=100)
            for row in response.responses[0].partitions if response.responses else ():
                codes[row.partition_index] = row.error_code
                taken += len(row.acquired_records)
    assert codes == {0: STORAGE_ERROR, 1: 0}


# -- coordinators


async def commit_offset(world: World) -> None:
    await commit(world.wire, "g", "t", 7)


async def fetch_committed_offset(world: World) -> None:
    assert await _committed_offset_code(world) == NOT_COORDINATOR


async def _committed_offset_code(world: World) -> int:
    rows = [OffsetFetchRequest.Topic(name="t", partition_indexes=[0])]
    message = OffsetFetchRequest(group_id="g", topics=rows)
    return int((await world.wire.ask(ApiKey.OFFSET_FETCH, 5, message)).error_code)


async def reload_groups(world: World) -> None:
    world.broker.node.groups.stop()
    await world.broker.node.groups.load()
    await fetch_committed_offset(world)


async def request_groups_again(world: World) -> None:
    world.broker.node.groups.stop()
    assert await _committed_offset_code(world) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await until(lambda: not world.broker.node.groups.is_loading)
    await fetch_committed_offset(world)


async def init_producer(world: World) -> None:
    assert await _init_producer(world) == 0


async def _init_producer(world: World) -> int:
    find = request(ApiKey.FIND_COORDINATOR, key="tx", key_type=1)
    await world.wire.ask(ApiKey.FIND_COORDINATOR, 3, find)
    message = request(ApiKey.INIT_PRODUCER_ID, transactional_id="tx", transaction_timeout_ms=60_000)
    return int((await world.wire.ask(ApiKey.INIT_PRODUCER_ID, 4, message)).error_code)


async def init_producer_without_coordinator(world: World) -> None:
    assert await _init_producer(world) == NOT_COORDINATOR


async def reload_transactions(world: World) -> None:
    world.broker.node.transactions.stop()
    await world.broker.node.transactions.load()
    await init_producer_without_coordinator(world)


async def read_share_state(world: World) -> None:
    (row,) = (await ask_share_state(world.wire, READ_SHARE_STATE, world.topic.id, 0)).values()
    assert row.error_code == NOT_COORDINATOR


async def reload_share_states(world: World) -> None:
    world.broker.node.share.states.stop()
    await world.broker.node.share.states.load()
    await read_share_state(world)


# -- work of the broker


async def compact(world: World) -> None:
    assert (
        await world.broker.node.maintenance.cleaner.clean_all() == 1
    )  # the other partition is compacted


async def compact_in_the_event_loop(world: World) -> None:
    """The simulated disk does not affect the process in which compactions run."""
    node = world.broker.node
    node.maintenance.cleaner._compactor = InlineCompactor(node.partitions.logs.files)
    await compact(world)


async def move_to_other_directory(world: World) -> None:
    logs = world.broker.node.partitions.logs
    log = logs.get("t", 0)
    assert log is not None
    (target,) = [
        each for each in world.directories if str(each) != log.directory.rpartition("/")[0]
    ]
    assert await move(world.wire, target, ("t", [0])) == [0]
    await until(lambda: logs.future("t", 0) is None)
    assert not list(target.glob("t-0*"))


async def apply_retention(world: World) -> None:
    await world.broker.node.maintenance.log_manager_tasks.apply_retention_now()


async def delete_records(world: World) -> None:
    cls = DeleteRecordsRequest
    rows = [cls.Partition(partition_index=index, offset=3) for index in (0, 1)]
    message = cls(topics=[cls.Topic(name="t", partitions=rows)], timeout_ms=10_000)
    response = await world.wire.ask(ApiKey.DELETE_RECORDS, 2, message)
    codes = {row.partition_index: row.error_code for row in response.topics[0].partitions}
    assert codes == {0: STORAGE_ERROR, 1: 0}


async def scrub(world: World) -> None:
    assert await world.broker.node.maintenance.scrubber.scrub_all() > 0


async def append_as_producer(world: World) -> None:
    assert (await produce(world.wire, world.topic, batch([b"x"]))).error_code == STORAGE_ERROR


# -- the console


async def list_messages(world: World) -> None:
    response = await world.ask("messages?from=oldest")
    assert response.status == 502
    assert "partition 0 of t: cannot be read (KAFKA_STORAGE_ERROR)" in response.text
    response = await world.ask("messages?partition=1&from=oldest")
    assert len(response.json()["records"]) == RECORDS


class LiveView:
    """A live view of `t`, as the console shows it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._text = b""
        self.places: dict[str, int] = {}
        self.values: list[str] = []
        self.problem = ""

    async def begin(self, places: dict[str, int]) -> None:
        last = f"Last-Event-ID: {json.dumps(places)}\r\n" if places else ""
        head = f"GET /api/v1/topics/t/live HTTP/1.1\r\nHost: localhost\r\n{last}\r\n"
        await self._stream.send_all(head.encode())

    async def watch_until(self, condition: Callable[[], object]) -> None:
        """Receive events until a condition holds."""
        with trio.fail_after(20):
            while not condition():
                while not (found := EVENT.search(self._text)):
                    self._text += bytes(await self._stream.receive_some(65_536))
                self._text = self._text[found.end() :]
                self.places = json.loads(found[1])
                event = json.loads(found[2])
                self.problem = event["problem"]
                self.values += [each["value"] for each in event["records"]]


EVENT = re.compile(rb"^id: (.*)\ndata: (.*)\n\n", re.MULTILINE)


async def watch_live(world: World) -> None:
    """A view that starts in partition 0 keeps its position there, and shows partition 1."""
    await _watch_live(world, {"0": 0, "1": RECORDS})
    await _watch_live(world, {})  # the end of partition 0 is not known at this point


async def _watch_live(world: World, places: dict[str, int]) -> None:
    async with await trio.open_tcp_stream(*world.http.endpoint_of(1)) as stream:
        view = LiveView(stream)
        await view.begin(places)
        await view.watch_until(lambda: view.problem and "1" in view.places)
        assert "partition 0 of t: cannot be read (KAFKA_STORAGE_ERROR)" in view.problem
        value = b"while %d" % len(places)
        await produce(world.wire, world.topic, batch([value]), partition=1)
        await view.watch_until(lambda: view.values)
        assert view.values == [value.decode()]
        assert view.places.get("0") == places.get("0")
        assert view.problem


READERS = {
    "fetch": Reader(fetch_records),
    "fetch for an old consumer": Reader(fetch_as_old_consumer),
    "read_committed fetch": Reader(fetch_committed_records),
    "follower fetch": Reader(fetch_as_follower, nodes=2),
    "pending fetch": Reader(fetch_at_log_end),
    "ListOffsets by time": Reader(list_offsets_by_timestamp),
    "ListOffsets of the latest record": Reader(list_offset_of_max_timestamp),
    "client": Reader(read_with_kbroker_client),
    "share fetch": Reader(fetch_as_share_consumer, start_share_group_at_earliest),
    "share fetch by duration": Reader(fetch_as_share_consumer, start_share_group_by_duration),
    "groups after a restart": Reader(
        fetch_committed_offset, commit_offset, OFFSETS_TOPIC, restarted=True
    ),
    "groups after an election": Reader(reload_groups, commit_offset, OFFSETS_TOPIC),
    "groups on request": Reader(request_groups_again, commit_offset, OFFSETS_TOPIC),
    "transactions after a restart": Reader(
        init_producer_without_coordinator, init_producer, TRANSACTIONS_TOPIC, restarted=True
    ),
    "transactions after an election": Reader(
        reload_transactions, init_producer, TRANSACTIONS_TOPIC
    ),
    "share states after a restart": Reader(
        read_share_state, start_share_group_at_earliest, SHARE_STATE_TOPIC, restarted=True
    ),
    "share states after an election": Reader(
        reload_share_states, start_share_group_at_earliest, SHARE_STATE_TOPIC
    ),
    "compaction": Reader(compact_in_the_event_loop, configs=COMPACTED),
    "compaction lag": Reader(
        compact_in_the_event_loop, configs=COMPACTED | {"max.compaction.lag.ms": "1000"}
    ),
    "move": Reader(move_to_other_directory),
    "retention after a restart": Reader(apply_retention, restarted=True),
    "DeleteRecords after a restart": Reader(delete_records, restarted=True),
    "Produce after a restart": Reader(append_as_producer, restarted=True),
    "scrub": Reader(scrub, configs={"internal.segment.bytes": "20000"}),
    "console messages": Reader(list_messages),
    "live view": Reader(watch_live),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
async def test_unreadable_partition_goes_offline_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader = READERS[name]
    monkeypatch.setattr(consumer, "STORAGE_ERROR_SECONDS", 0)
    async with world_of(reader, tmp_path) as world:
        topic = world.topic
        await fill(world)
        await reader.prepare(world)
        if not reader.restarted:
            broken = broken_disk(monkeypatch, tmp_path, reader)
            await reader.read(world)
            await check(world, broken, caplog)
            return
    broken = broken_disk(monkeypatch, tmp_path, reader)
    async with world_of(reader, tmp_path, topic) as world:
        await reader.read(world)
        await check(world, broken, caplog)


async def test_compaction_in_its_process_takes_unreadable_partition_offline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The simulated disk does not affect that process, but its memory address 0 is unreadable."""
    async with world_of(Reader(compact, configs=COMPACTED), tmp_path) as world:
        await fill(world)
        log = world.broker.node.partitions.logs.get("t", 0)
        assert log is not None
        path = log.segments[0].log_path
        os.unlink(path)
        os.symlink("/proc/self/mem", path)
        await compact(world)
        await check(world, "t-0", caplog)


async def test_retention_reports_storage_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Retention reads little, so the error comes from the log itself."""
    async with world_of(Reader(apply_retention), tmp_path) as world:
        await fill(world)
        apply: Callable[[Log, int], int] = Log.apply_retention

        def fail(log: Log, now_ms: int) -> int:
            if log.partition == 0 and log.topic == "t":
                raise UnreadableError(f"{log.directory}/0.timeindex", "Input/output error")
            return apply(log, now_ms)

        monkeypatch.setattr(Log, "apply_retention", fail)
        await apply_retention(world)
        await apply_retention(world)
        await check(world, "t-0", caplog)


async def fill(world: World) -> None:
    for partition in (0, 1):
        for number in range(RECORDS):
            record = Record(b"%d" % (number % 3), bytes(VALUE_BYTES), FIRST_MS + number)
            row = await produce(world.wire, world.topic, batch([record]), partition=partition)
            assert not row.error_code


@asynccontextmanager
async def world_of(
    reader: Reader, directory: Path, topic: Topic | None = None
) -> AsyncIterator[World]:
    directories = [directory / "one", directory / "two"]
    data_dir = directories if reader.nodes is None else directory
    async with (
        served(data_dir, nodes=reader.nodes, **SETTINGS) as (broker, http),
        connected(broker.nodes[0].endpoint) as wire,
    ):
        if topic is None:
            topic = await topic_of(reader, wire)
        yield World(broker, http, wire, topic, directories)


async def topic_of(reader: Reader, wire: Wire) -> Topic:
    """Create `t` with node 1 as leader."""
    cls = CreateTopicsRequest
    configs = [cls.Config(name=name, value=value) for name, value in reader.configs.items()]
    replicas = list(range(1, (reader.nodes or 1) + 1))
    assignments = [cls.Assignment(partition_index=index, broker_ids=replicas) for index in (0, 1)]
    topic = cls.Topic(
        name="t",
        num_partitions=-1,
        replication_factor=-1,
        assignments=assignments,
        configs=configs,
    )
    response = await wire.ask(ApiKey.CREATE_TOPICS, 7, cls(topics=[topic]))
    assert not response.topics[0].error_code, response
    return Topic("t", response.topics[0].topic_id)


def broken_disk(monkeypatch: pytest.MonkeyPatch, directory: Path, reader: Reader) -> str:
    """Make the records of a partition unreadable. Return the name of its directory."""
    disk, name = ColdDisk(monkeypatch, directory), f"{reader.broken}-0"
    for found in directory.rglob(name):
        disk.break_files(found, "*.log")
    assert disk.broken
    return name


async def check(world: World, broken: str, caplog: pytest.LogCaptureFixture) -> None:
    topic, _, index = broken.rpartition("-")
    reason = world.broker.node.partitions.offline_reason(topic, int(index))
    assert reason is not None
    assert "cannot read" in reason
    async with open_cluster([world.broker.endpoint]) as cluster:
        problems = await cluster_problems(cluster)
    assert broken in {each["where"] for each in problems}
    lines = [each for each in caplog.records if each.levelno >= logging.WARNING]
    messages = [each.getMessage() for each in lines if broken in each.getMessage()]
    # A follower on another node logs the error of its leader.
    messages = [
        text for text in messages if not text.startswith(f"{broken}: cannot fetch from node")
    ]
    assert len(messages) == 1, messages
    assert f"partition {broken}: cannot read" in messages[0]
    assert "check the disk" in messages[0]
    assert not [each for each in lines if each.exc_info]
    assert await world.wire.works()
    row = await produce(world.wire, world.topic, batch([Record(b"k", b"more", 1)]), partition=1)
    assert not row.error_code
    found = await fetch(world.wire, world.topic, row.base_offset, partitions=(1,))
    assert values_of(found) == [b"more"]
