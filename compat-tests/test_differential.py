"""Admin and transaction APIs of kbroker and Apache Kafka 4.4, compared field by field."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from harness.admin_calls import Call, World, admin_calls, request
from harness.brokers import Broker, FixedQuorumBroker, KbrokerBroker
from harness.compare import Comparison, Difference
from harness.differences import DIFFERENCES, NOT_ADMIN, NOT_COMPARED, to_markdown
from harness.differential import SETTLE_SECONDS, Side, never_compared, run
from harness.places import ROOT
from harness.streams_calls import PROPERTIES as STREAMS_PROPERTIES
from harness.streams_calls import streams_groups
from harness.transaction_calls import transactions

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.records import Record, encode_batch
from kbroker.testing.releases import limits_of

pytestmark = pytest.mark.sample
CLIENT = "differential"
PROPERTIES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "group.min.session.timeout.ms": "1000",
    "auto.create.topics.enable": "false",
    "broker.rack": "a rack",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    **STREAMS_PROPERTIES,
}


@dataclass(slots=True)
class Outcome:
    """Results of all calls."""

    ours: Side
    theirs: Side
    comparison: Comparison
    differences: list[Difference]


def all_calls() -> Iterator[Call]:
    yield from admin_calls()
    yield from transactions()
    yield from streams_groups()


def side(broker: Broker) -> Side:
    return Side(broker.address, World(directories=[str(each) for each in broker.data_dirs]))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """Send all calls to both brokers."""
    brokers = [
        KbrokerBroker(tmp_path_factory.mktemp("kbroker"), PROPERTIES, data_dirs=2),
        FixedQuorumBroker(tmp_path_factory.mktemp("apache"), PROPERTIES, data_dirs=2),
    ]
    try:
        for broker in brokers:
            broker.start()
        ours, theirs = map(side, brokers)
        comparison = Comparison(DIFFERENCES)
        differences = list(run(all_calls(), ours, theirs, comparison))
        yield Outcome(ours, theirs, comparison, differences)
        ours.close()
        theirs.close()
    finally:
        for broker in brokers:
            broker.kill()


def test_responses_are_equal(outcome: Outcome) -> None:
    """Differences that DIFFERENCES allows are ignored."""
    print(
        f"{len(outcome.comparison.requested)} versions of APIs, {outcome.comparison.values} values"
    )
    assert not outcome.differences, "\n".join(map(str, outcome.differences))


def test_every_version_and_field_is_compared(outcome: Outcome) -> None:
    keys = [key for key in map(ApiKey, outcome.ours.served) if key not in NOT_ADMIN]
    missing = never_compared(outcome.comparison, outcome.ours, outcome.theirs, keys, NOT_COMPARED)
    assert not missing, "\n".join(missing)


def test_each_partition_is_in_exactly_one_directory(outcome: Outcome) -> None:
    """The directory itself may differ, so the rows cannot be compared directly."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        ours, theirs = (
            partitions_in_directories(outcome.ours),
            partitions_in_directories(outcome.theirs),
        )
        # Kafka removes deleted partitions asynchronously.
        if ours == theirs or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert ours == theirs
    assert len(ours) > 20


def partitions_in_directories(broker: Side) -> list[tuple[str, int]]:
    everything = request(ApiKey.DESCRIBE_LOG_DIRS, topics=None)
    answer = broker.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, everything)
    return sorted(
        (topic.name, row.partition_index)
        for directory in answer.results
        for topic in directory.topics
        for row in topic.partitions
    )


def test_every_allowed_difference_occurs(outcome: Outcome) -> None:
    """An unused rule would hide later differences."""
    used = outcome.comparison.used
    unused = [rule for rule in DIFFERENCES if rule not in used and not rule.may_be_equal]
    assert not unused, "\n".join(map(str, unused))


def test_kit_versions_of_release_are_those_of_kafka(outcome: Outcome) -> None:
    """A kbroker that emulates Kafka 4.4 advertises exactly the versions of Kafka 4.4."""
    known = {int(key): versions for key, versions in limits_of("4.4").items() if versions}
    assert known == outcome.theirs.served


def test_docs_contain_table_of_differences() -> None:
    """`docs/reference/kafka-differences.md` has the table between its markers."""
    text = (ROOT / "docs/reference/kafka-differences.md").read_text()
    _, _, rest = text.partition("<!-- answers -->\n")
    table, _, _ = rest.partition("<!-- /answers -->")
    assert table == to_markdown(), "copy the output of harness.differences.to_markdown()"


# --- the comparison itself


def planted(change: str) -> list[Difference]:
    """Compare two responses that differ in one field and return the differences."""
    cls = messages.response_class(ApiKey.METADATA)
    partition = cls.Partition(partition_index=0, leader_id=1)
    theirs = cls(
        cluster_id="a", controller_id=1, topics=[cls.Topic(name="t", partitions=[partition])]
    )
    ours = copy.deepcopy(theirs)
    if change == "value":
        ours.topics[0].partitions[0].leader_epoch = 7
    elif change == "row":
        ours.topics[0].partitions.append(cls.Partition(partition_index=1))
    elif change == "null":
        ours.topics[0].name = ""
    comparison = Comparison(DIFFERENCES)
    return comparison.compare("planted", ApiKey.METADATA, 12, ours, theirs)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ("nothing", None),
        ("value", "topics[t].partitions[0].leader_epoch"),
        ("row", "topics[t].partitions.order"),
        ("null", "topics.order"),
    ],
)
def test_comparison_reports_planted_difference(change: str, place: str | None) -> None:
    found = [difference.place for difference in planted(change)]
    assert found == ([] if place is None else [place])


def test_comparison_reports_id_that_maps_to_two_ids() -> None:
    cls = messages.response_class(ApiKey.METADATA)
    comparison = Comparison(DIFFERENCES)
    for theirs, expected in (("x", 0), ("x", 0), ("y", 1)):
        answers = (cls(cluster_id="ours"), cls(cluster_id=theirs))
        assert len(comparison.compare("planted", ApiKey.METADATA, 9, *answers)) == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "is_reported"),
    [
        ({"producer_id": 7}, {"producer_id": 9}, False),
        ({"producer_id": 7, "producer_epoch": 1}, {"producer_id": 9, "producer_epoch": 2}, True),
        ({"value": b"a"}, {"value": b"b"}, True),
        ({"transactional": True}, {}, True),
    ],
)
def test_comparison_includes_record_batches(
    ours: dict[str, Any], theirs: dict[str, Any], is_reported: bool
) -> None:
    """Producer ids, which each broker assigns, are not compared."""
    answers = [fetched(**ours), fetched(**theirs)]
    found = Comparison(DIFFERENCES).compare("planted", ApiKey.FETCH, 12, *answers)
    assert bool(found) is is_reported


def fetched(value: bytes = b"x", **settings: Any) -> Any:
    """Return a Fetch response with one batch."""
    cls = messages.response_class(ApiKey.FETCH)
    batch = encode_batch([Record(None, value, 0)], base_sequence=0, **settings)
    partition = cls.Partition(partition_index=0, records=memoryview(batch))
    return cls(responses=[cls.Topic(topic="t", partitions=[partition])])


def test_comparison_reports_fields_never_compared() -> None:
    comparison = Comparison(DIFFERENCES)
    key = ApiKey.DELETE_GROUPS
    response = messages.response_class(key)
    empty = response(results=[])
    assert not comparison.compare("planted", key, 2, empty, empty)
    missing = comparison.never_compared(key, response, range(3))
    everything = ["results.group_id", "results.error_code"]
    assert missing == ["results.order", *everything]
    refused = response(results=[response.Group(group_id="g", error_code=69)])
    assert not comparison.compare("planted", key, 2, refused, refused)
    assert not comparison.never_compared(key, response, range(3))


def test_call_names_are_unique() -> None:
    """Reports identify calls by name."""
    names = [call.name for call in all_calls()]
    assert len(names) == len(set(names))
    assert request(ApiKey.METADATA, topics=None).topics is None
