"""Random histories of groups on kbroker and Apache Kafka 4.4, compared field by field."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest
from harness.brokers import Broker, FixedQuorumBroker, KbrokerBroker
from harness.compare import Comparison
from harness.differences import GROUP_DIFFERENCES, to_markdown
from harness.group_histories import PROPERTIES, History
from harness.places import ROOT
from harness.twins import Differs, KafkaFailed, Twins

from kbroker.protocol.api_keys import ApiKey

CLIENT = "differential"
IS_LONG = "KBROKER_COMPAT_GROUP_CALLS" in os.environ
CALLS = int(os.environ.get("KBROKER_COMPAT_GROUP_CALLS", "250"))
SEEDS = int(os.environ.get("KBROKER_COMPAT_GROUP_SEEDS", "8"))
FIRST = int(os.environ.get("KBROKER_COMPAT_GROUP_FIRST", "1"))
POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")


@pytest.fixture(params=POLICIES if IS_LONG else POLICIES[:1])
def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Twins, Sequence[Broker]]]:
    """Start both brokers with one `group.consumer.migration.policy`."""
    properties = PROPERTIES | {"group.consumer.migration.policy": request.param}
    brokers = [
        KbrokerBroker(tmp_path_factory.mktemp("kbroker"), properties),
        FixedQuorumBroker(tmp_path_factory.mktemp("apache"), properties),
    ]
    try:
        for broker in brokers:
            broker.start()
        twins = Twins(*(broker.address for broker in brokers), Comparison(GROUP_DIFFERENCES))
        yield twins, brokers
        twins.close()
    finally:
        for broker in brokers:
            broker.kill()


def test_group_histories_have_same_responses(
    started: tuple[Twins, Sequence[Broker]], request: pytest.FixtureRequest
) -> None:
    """A history ends early if Kafka fails with UNKNOWN_SERVER_ERROR."""
    policy = request.node.callspec.params["started"]
    twins, brokers = started
    failures: list[str] = []
    ended: list[str] = []
    for seed in range(FIRST, FIRST + SEEDS):
        twins.begin_history()
        try:
            # The last history of a long run kills both brokers several times.
            is_last = seed == FIRST + SEEDS - 1
            History(seed, twins, brokers if IS_LONG and is_last else ()).run(CALLS)
        except Differs as difference:
            failures.append(f"{policy}, seed {seed}: {difference}")
        except KafkaFailed as failure:
            ended.append(f"seed {seed}: {failure}")
    print(
        f"\nfigures: {policy}: {SEEDS} histories, {twins.calls} calls, {twins.comparison.values} "
        f"values compared, {len(failures)} differences, {len(ended)} ended by errors of Kafka's own"
    )
    assert not failures, "\n".join(failures)
    assert len(ended) <= SEEDS / 2, ended
    key, row = ApiKey.OFFSET_FETCH, "groups.topics.partitions."
    for name in ("committed_offset", "metadata"):
        assert (key, row + name) in twins.comparison.seen, (
            "no response contained a committed offset"
        )


def test_docs_contain_table_of_group_differences() -> None:
    text = (ROOT / "docs/reference/kafka-differences.md").read_text()
    _, _, rest = text.partition("<!-- groups -->\n")
    table, _, _ = rest.partition("<!-- /groups -->")
    assert table == to_markdown(GROUP_DIFFERENCES)
