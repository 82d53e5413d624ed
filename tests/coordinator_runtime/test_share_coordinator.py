"""Share coordinators on in-memory partitions: responses while records are not committed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest

from kbroker.cluster import SHARE_STATE_TOPIC, Cluster, LocalStore, Topic
from kbroker.cluster.live_config import LiveConfig
from kbroker.cluster.node_context import NodeContext
from kbroker.config import BrokerConfig
from kbroker.coordinator import ShareCoordinator
from kbroker.coordinator_runtime import share_coordinator
from kbroker.coordinator_runtime.shards import ShardPending
from kbroker.coordinator_runtime.share_coordinator import ShareCoordinatorService
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.share_state import (
    InitializeShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
)
from kbroker.protocol.share_state_log import SharePartitionKey
from kbroker.runtime.batch_reads import BatchReads
from kbroker.runtime.changes import Changes
from kbroker.runtime.clock import SystemClock
from kbroker.runtime.disk_reads import DiskReads
from kbroker.runtime.error_log import ErrorLog
from kbroker.runtime.threads import run_in_thread
from kbroker.runtime.time_slices import FairQueue
from kbroker.storage.files import MemFiles

from .memory import PartitionsInMemory, ReplicaInMemory

PARTITIONS = 3


class World(NamedTuple):
    """Share coordinators, and the partition that stores their state."""

    context: NodeContext
    partitions: PartitionsInMemory
    service: ShareCoordinatorService
    topic: Topic

    @property
    def replica(self) -> ReplicaInMemory:
        return self.partitions.named_replica(SHARE_STATE_TOPIC, 0)

    async def loaded_again(self) -> World:
        """Return new coordinators of the same partitions, as after a restart."""
        service = ShareCoordinatorService(self.context, self.partitions)
        await service.load()
        return self._replace(service=service)

    def share(self, index: int = 0) -> SharePartitionKey:
        return SharePartitionKey("g", self.topic.id, index)

    def initialize(self, index: int = 0, start: int = 7, epoch: int = 1) -> PendingOperation:
        request = InitializeShareGroupStateRequest.Partition(
            partition=index, state_epoch=epoch, start_offset=start
        )
        operation = ShareCoordinator.initialize
        return PendingOperation(self.service.perform(operation, self.share(index), request))

    def start_offset(self, index: int = 0) -> int:
        request = ReadShareGroupStateSummaryRequest.Partition(partition=index)
        operation = ShareCoordinator.summary
        rows = self.service.perform(operation, self.share(index), request)
        assert isinstance(rows, list)
        return int(rows[0].start_offset)


class PendingOperation(NamedTuple):
    """An operation with its response row or pending response."""

    outcome: object

    @property
    def is_pending(self) -> bool:
        return isinstance(self.outcome, ShardPending) and not self.outcome.ready

    @property
    def code(self) -> int | None:
        """Error code, or None if the coordinator was lost before it could respond."""
        outcome = self.outcome
        if isinstance(outcome, ShardPending):
            assert outcome.ready
            outcome = outcome.response
        return int(outcome[0].error_code) if isinstance(outcome, list) else None


@pytest.fixture
async def world() -> World:
    files = MemFiles()
    files.mkdir("data")
    cluster = await Cluster.open(LocalStore(files, "data/journal"))
    await cluster.create_topic(SHARE_STATE_TOPIC, [[1, 2]], {}, cause="test")
    topic = await cluster.create_topic("t", [[1]] * PARTITIONS, {}, cause="test")
    context = NodeContext(
        node_id=1,
        live_config=LiveConfig(cluster, BrokerConfig.load(options={"node.id": "1"})),
        cluster=cluster,
        clock=SystemClock(),
        error_log=ErrorLog(),
        changes=Changes(),
        in_memory=True,
        in_thread=run_in_thread,
        disk_reads=DiskReads(),
        batch_reads=BatchReads(),
        fair_queue=FairQueue(),
    )
    partitions = PartitionsInMemory(cluster)
    return World(context, partitions, ShareCoordinatorService(context, partitions), topic)


def refuse(code: ErrorCode) -> Callable[[ReplicaInMemory], None]:
    def apply(replica: ReplicaInMemory) -> None:
        replica.refusal = KafkaError(code)

    return apply


@pytest.mark.parametrize(
    ("before", "code"),
    [
        (lambda replica: None, ErrorCode.NONE),
        (refuse(ErrorCode.NOT_ENOUGH_REPLICAS), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (refuse(ErrorCode.KAFKA_STORAGE_ERROR), ErrorCode.NOT_COORDINATOR),
        (refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER), ErrorCode.NOT_COORDINATOR),
        (refuse(ErrorCode.RECORD_LIST_TOO_LARGE), ErrorCode.UNKNOWN_SERVER_ERROR),
        (ReplicaInMemory.lose_leadership, ErrorCode.NOT_COORDINATOR),
    ],
    ids=["stored", "too few in sync", "storage error", "not leader", "too large", "resigned"],
)
async def test_append_error_is_mapped_to_coordinator_error(
    world: World, before: Callable[[ReplicaInMemory], None], code: ErrorCode
) -> None:
    assert world.initialize(index=1).code == ErrorCode.NONE
    before(world.replica)
    assert world.initialize(start=9).code == code
    known = world.service.shards()[0].coordinator.states
    assert (world.share() in known) is (code == ErrorCode.NONE)


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (ReplicaInMemory.commit, ErrorCode.NONE),
        (ReplicaInMemory.lose_leadership, None),
    ],
    ids=["committed", "leadership lost"],
)
async def test_response_waits_for_commit_or_loss_of_leadership(
    world: World, event: Callable[[ReplicaInMemory], None], code: ErrorCode | None
) -> None:
    world.service.shard(world.share().name)
    replica = world.replica
    replica.commits_at_once = False
    pending = world.initialize()
    assert pending.is_pending
    event(replica)
    assert pending.code == code
    is_served = code is not None
    assert bool(world.service.shards()) is is_served
    if not is_served:
        with pytest.raises(KafkaError) as refused:
            world.initialize()
        assert refused.value.code == ErrorCode.NOT_COORDINATOR


async def test_coordinator_loads_after_records_of_earlier_leader_are_committed(
    world: World,
) -> None:
    replica = world.partitions.named_replica(SHARE_STATE_TOPIC, 0)
    replica.commits_at_once = False
    world.initialize(start=5)
    reloaded = await world.loaded_again()
    with pytest.raises(KafkaError) as loading:
        reloaded.start_offset()
    assert loading.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    replica.commit()
    assert reloaded.start_offset() == 5


async def test_loaded_coordinator_has_every_stored_state(
    world: World, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random history of stored and failed operations, with rewrites and reloads in between."""
    monkeypatch.setattr(share_coordinator, "REWRITE_RECORDS_MIN", 1)
    rng = Random(pytestconfig.getoption("--seed"))
    stored: dict[int, int] = {}
    for epoch in range(1, 200):
        index, start = rng.randrange(PARTITIONS), rng.randrange(1000)
        replica = world.replica
        replica.refusal = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR) if rng.random() < 0.2 else None
        if world.initialize(index, start, epoch).code == ErrorCode.NONE:
            stored[index] = start
        if rng.random() < 0.2:
            await world.service.expire()
        if rng.random() < 0.1:
            world = await world.loaded_again()
        assert {each: world.start_offset(each) for each in stored} == stored
    assert len(stored) == PARTITIONS
