"""Random histories of streams groups on kbroker and Apache Kafka 4.4, compared field by field."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from harness.brokers import FixedQuorumBroker, KbrokerBroker
from harness.compare import Comparison
from harness.differences import STREAMS_HISTORY_DIFFERENCES
from harness.streams_histories import PROPERTIES, StreamsHistory
from harness.twins import Differs, KafkaFailed, Twins

from kbroker.protocol.api_keys import ApiKey

CLIENT = "differential"
# Fields that every run must have compared.
EXPECTED = (
    (ApiKey.STREAMS_GROUP_HEARTBEAT, "active_tasks.partitions"),
    (ApiKey.STREAMS_GROUP_HEARTBEAT, "standby_tasks.partitions"),
    (ApiKey.STREAMS_GROUP_DESCRIBE, "groups.members.instance_id"),
    (ApiKey.STREAMS_GROUP_DESCRIBE, "groups.members.task_offsets.offset"),
    (ApiKey.OFFSET_FETCH, "groups.topics.partitions.committed_offset"),
)
CALLS = int(os.environ.get("KBROKER_COMPAT_GROUP_CALLS", "250"))
SEEDS = int(os.environ.get("KBROKER_COMPAT_GROUP_SEEDS", "4"))
FIRST = int(os.environ.get("KBROKER_COMPAT_GROUP_FIRST", "1"))
# With warm-up replicas, which Kafka 4.4 does not assign yet, it caches the targets of a group. A
# rejected request of another member with the same instance ID then takes the target of a static
# member, which loses its tasks.
APACHE = {"group.streams.num.warmup.replicas": "0"}


@pytest.fixture
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    brokers = [
        KbrokerBroker(tmp_path_factory.mktemp("kbroker"), PROPERTIES),
        FixedQuorumBroker(tmp_path_factory.mktemp("apache"), PROPERTIES | APACHE),
    ]
    try:
        for broker in brokers:
            broker.start()
        addresses = [broker.address for broker in brokers]
        twins = Twins(*addresses, Comparison(STREAMS_HISTORY_DIFFERENCES))
        yield twins
        twins.close()
    finally:
        for broker in brokers:
            broker.kill()


def test_streams_group_histories_have_same_responses(twins: Twins) -> None:
    """A history ends early if Kafka fails with UNKNOWN_SERVER_ERROR."""
    failures: list[str] = []
    ended: list[str] = []
    for seed in range(FIRST, FIRST + SEEDS):
        twins.begin_history()
        try:
            StreamsHistory(seed, twins).run(CALLS)
        except Differs as difference:
            failures.append(f"seed {seed}: {difference}")
        except KafkaFailed as failure:
            ended.append(f"seed {seed}: {failure}")
    print(
        f"\nfigures: streams groups: {SEEDS} histories, {twins.calls} calls, "
        f"{twins.comparison.values} values compared, {len(failures)} differences, {len(ended)} "
        "ended by errors of Kafka's own"
    )
    assert not failures, "\n".join(failures)
    assert len(ended) <= SEEDS / 2, ended
    seen = twins.comparison.seen
    for key, place in EXPECTED:
        assert (key, place) in seen, f"no response contained {place}"
