"""Records equal their decoded bytes, so that loading and running produce the same state."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from kbroker.coordinator import CoordinatorRecord, GroupCoordinator
from kbroker.coordinator.classic.group import ClassicGroup
from kbroker.coordinator.common.record import CoordinatorRecordSerde
from kbroker.coordinator.consumer.group import ResolvedRegularExpression
from kbroker.coordinator.consumer.records import resolved_record, topics_tombstone
from kbroker.coordinator.replay import end_transaction, replay
from kbroker.coordinator.state import ShardState
from kbroker.coordinator.streams.topology import StreamsTopology
from kbroker.protocol import (
    consumer_group_metadata,
    group_metadata,
    share_group_metadata,
    streams_group_metadata,
)
from kbroker.protocol.group_metadata import OffsetCommitKey, OffsetCommitValue
from kbroker.protocol.versioned import encode_versioned

from ..classic.simulation import Simulation
from ..consumer.mixed_simulation import MixedSimulation
from ..harness import Harness, unlimited
from ..share.simulation import ShareSimulation
from ..stored import store
from ..streams.simulation import StreamsSimulation

STEPS = 60
SEEDS = range(2)
MODULES = (
    group_metadata,
    consumer_group_metadata,
    share_group_metadata,
    streams_group_metadata,
)
# Record types that random histories may lack.
RARE = (
    topics_tombstone("g"),
    resolved_record(
        "g", "a.*", ResolvedRegularExpression(frozenset({"ab", "ac"}), version=0, at_ms=7)
    ),
)
# Attributes of groups that no record contains.
VOLATILE = {
    *(
        "_lacks_partitions",
        "configured",
        "confirmed",
        "described",
        "endpoint_epoch",
        "description_backoff",
        "endpoint_rows",
    ),
    *(
        "last_heartbeat_ms",
        "is_assigning",
        "is_resolving",
        "is_initialization_checked",
        "patterns_version",
    ),
    *("shutdown_member_id", "task_offsets", "tasks_sent_ms", "topics_version", "viewers"),
}


def stored_state(state: ShardState) -> dict[str, Any]:
    """Return the stored state of a shard, except classic groups, which rebalances change."""
    groups: dict[str, Any] = {
        name: group for name, group in state.groups.items() if not isinstance(group, ClassicGroup)
    }
    found: dict[str, Any] = {"offsets": state.offsets}
    for group_id, group in groups.items():
        names = set(group.__slots__) - VOLATILE
        values = {name: getattr(group, name) for name in names}
        found[group_id] = {
            name: value.value if isinstance(value, StreamsTopology) else value
            for name, value in values.items()
        }
    return found


def loaded(h: Harness) -> ShardState:
    """Return the state after a restart."""
    state = ShardState(unlimited())
    for entry in h.entries:
        entry.load(partial(replay, state), partial(end_transaction, state))
    return state


@pytest.fixture(scope="module")
def runs() -> list[Harness]:
    """Return random histories of groups of all types."""
    found = []
    for kind in (Simulation, MixedSimulation, ShareSimulation, StreamsSimulation):
        for seed in SEEDS:
            simulation: Any = kind(seed)
            simulation.run(STEPS)
            found.append(simulation.h)
    return found


def test_replayed_state_equals_state_loaded_from_log(runs: list[Harness]) -> None:
    compared = 0
    for h in runs:
        live = stored_state(h.coordinator._state)
        assert live == stored_state(loaded(h))
        compared += len(live) - 1
    assert compared >= 3


def test_random_histories_store_every_record_type(runs: list[Harness]) -> None:
    serde = GroupCoordinator.serde
    seen = {type(record.key) for record in RARE}
    for h in runs:
        for each in h.log:
            record = serde.decode(*each)
            if record is not None and record.value is not None:
                seen.add(type(record.key))
    assert seen == {cls for module in MODULES for cls in module.KINDS.keys.values()}


@pytest.mark.parametrize("record", RARE)
def test_rare_record_equals_its_decoded_bytes(record: CoordinatorRecord) -> None:
    store(GroupCoordinator.serde, record)


def test_record_with_field_of_other_version_is_reported() -> None:
    key = OffsetCommitKey(group="g", topic="orders", partition=0)
    value = OffsetCommitValue(
        offset=1, leader_epoch=5, metadata="", commit_timestamp=1, expire_timestamp=2
    )
    with pytest.raises(AssertionError, match="a restart would replay another record"):
        store(GroupCoordinator.serde, CoordinatorRecord(key, value))


def test_record_of_later_release_is_skipped() -> None:
    serde = CoordinatorRecordSerde(group_metadata.KINDS)
    key = encode_versioned(consumer_group_metadata.ConsumerGroupMetadataKey(group_id="g"), 3)
    assert serde.decode(key, None) is None
