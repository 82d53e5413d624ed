"""The APIs of administration and of transactions of kbroker and of Apache Kafka 4.3 side by side:
every field of every answer."""

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
}


@dataclass(slots=True)
class Outcome:
    """All calls were made."""

    ours: Side
    theirs: Side
    comparison: Comparison
    differences: list[Difference]


def all_calls() -> Iterator[Call]:
    yield from admin_calls()
    yield from transactions()


def side(broker: Broker) -> Side:
    return Side(broker.address, World(directories=[str(each) for each in broker.data_dirs]))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """One run of everything against both brokers."""
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


def test_answers_are_equal(outcome: Outcome) -> None:
    """Apart from what DIFFERENCES allows."""
    print(f"{len(outcome.comparison.asked)} versions of APIs, {outcome.comparison.values} values")
    assert not outcome.differences, "\n".join(map(str, outcome.differences))


def test_every_version_and_field_was_compared(outcome: Outcome) -> None:
    keys = [key for key in map(ApiKey, outcome.ours.served) if key not in NOT_ADMIN]
    missing = never_compared(outcome.comparison, outcome.ours, outcome.theirs, keys, NOT_COMPARED)
    assert not missing, "\n".join(missing)


def test_each_partition_is_in_one_directory(outcome: Outcome) -> None:
    """Which one it is may differ, so this is not compared row by row."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        ours, theirs = (
            partitions_in_directories(outcome.ours),
            partitions_in_directories(outcome.theirs),
        )
        # Kafka takes a moment to remove what was deleted.
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


def test_every_allowed_difference_is_there(outcome: Outcome) -> None:
    """A rule that is not needed any more would hide what comes later."""
    used = outcome.comparison.used
    unused = [rule for rule in DIFFERENCES if rule not in used and not rule.may_be_equal]
    assert not unused, "\n".join(map(str, unused))


def test_what_the_test_kit_knows_of_this_release(outcome: Outcome) -> None:
    """A broker that plays Kafka 4.3 admits to what Kafka 4.3 does, no more and no less."""
    known = {int(key): versions for key, versions in limits_of("4.3").items() if versions}
    assert known == outcome.theirs.served


def test_the_docs_show_the_table() -> None:
    """`docs/reference/kafka-differences.md` holds it between its marks."""
    text = (ROOT / "docs/reference/kafka-differences.md").read_text()
    _, _, rest = text.partition("<!-- answers -->\n")
    table, _, _ = rest.partition("<!-- /answers -->")
    assert table == to_markdown(), "copy the table that to_markdown() of harness.differences gives"


# --- the comparison itself


def planted(change: str) -> list[Difference]:
    """What a comparison says of two answers that differ in one thing."""
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
def test_a_planted_difference_is_reported(change: str, place: str | None) -> None:
    found = [difference.place for difference in planted(change)]
    assert found == ([] if place is None else [place])


def test_one_id_cannot_stand_for_two() -> None:
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
def test_batches_are_compared(
    ours: dict[str, Any], theirs: dict[str, Any], is_reported: bool
) -> None:
    """But for the ids that each broker gives to producers."""
    answers = [fetched(**ours), fetched(**theirs)]
    found = Comparison(DIFFERENCES).compare("planted", ApiKey.FETCH, 12, *answers)
    assert bool(found) is is_reported


def fetched(value: bytes = b"x", **settings: Any) -> Any:
    """An answer to Fetch with one batch."""
    cls = messages.response_class(ApiKey.FETCH)
    batch = encode_batch([Record(None, value, 0)], base_sequence=0, **settings)
    partition = cls.Partition(partition_index=0, records=memoryview(batch))
    return cls(responses=[cls.Topic(topic="t", partitions=[partition])])


def test_a_field_that_nobody_compared_is_reported() -> None:
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


def test_requests_name_what_they_ask() -> None:
    """Two calls of one name could not be told apart in a report."""
    names = [call.name for call in all_calls()]
    assert len(names) == len(set(names))
    assert request(ApiKey.METADATA, topics=None).topics is None
