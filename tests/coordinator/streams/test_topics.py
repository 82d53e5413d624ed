"""Topics that a streams topology needs."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordinator.streams.topics import (
    INCORRECTLY_PARTITIONED_TOPICS,
    MISSING_INTERNAL_TOPICS,
    MISSING_SOURCE_TOPICS,
    ConfiguredTopology,
    configure,
)
from kbroker.coordinator.streams.topology import check_topology, topology_of
from kbroker.protocol.errors import ErrorCode, KafkaError

from ..harness import subtopology, topology

THERE = {"orders": 4, "audit": 1, "events": 4}


def configured(*subtopologies: Any, **partition_counts: int) -> ConfiguredTopology:
    sent_topology = topology(*subtopologies)
    check_topology(sent_topology)
    return configure(topology_of(sent_topology), {**THERE, **partition_counts}.get)


def problem(*subtopologies: Any, **partition_counts: int) -> tuple[int, str]:
    found = configured(*subtopologies, **partition_counts).problem
    assert found is not None
    return found.status, found.detail


def missing(*subtopologies: Any, **partition_counts: int) -> dict[str, int]:
    found = configured(*subtopologies, **partition_counts).missing
    return {each.name: each.partitions for each in found.values()}


def refusal(*subtopologies: Any) -> tuple[ErrorCode, str | None]:
    with pytest.raises(KafkaError) as raised:
        configured(*subtopologies)
    return ErrorCode(raised.value.code), raised.value.message


def test_subtopology_has_as_many_tasks_as_its_largest_source_topic() -> None:
    found = configured(subtopology("1", "orders", "audit"), subtopology("0", "audit"))
    assert found.is_ready
    assert found.subtopologies is not None
    assert {name: each.tasks for name, each in found.subtopologies.items()} == {"0": 1, "1": 4}
    assert list(found.subtopologies) == ["0", "1"]


def test_missing_source_topics_are_reported() -> None:
    wanted = ("x", "orders", "y", "z", "w", "v")
    status, detail = problem(subtopology("0", *wanted))
    assert status == MISSING_SOURCE_TOPICS
    assert detail == "Source topics v, w, x and 2 additional topics are missing."
    assert configured(subtopology("0", *wanted)).missing == {}


def test_internal_topics_get_partition_count_of_upstream_topics() -> None:
    parts = (
        subtopology("0", "orders", "audit", sinks=["a"], changelogs=["a-log"]),
        subtopology("1", repartition={"a": 0}, sinks=["b"]),
        subtopology("2", repartition={"b": 0}, changelogs=["b-log"]),
    )
    for order in (parts, parts[::-1]):
        assert missing(*order) == {"a": 4, "a-log": 4, "b": 4, "b-log": 4}
        status, detail = problem(*order)
        assert status == MISSING_INTERNAL_TOPICS
        assert detail == "Internal topics are missing: a, a-log, b and 1 additional topics"
    partition_counts = {"a": 4, "a-log": 4, "b": 4, "b-log": 4}
    assert configured(*parts, **partition_counts).is_ready


def test_repartition_topic_with_fixed_count_keeps_count() -> None:
    parts = (
        subtopology("0", "orders", sinks=["a"]),
        subtopology("1", repartition={"a": 7}, changelogs=["log"]),
    )
    assert missing(*parts) == {"a": 7, "log": 7}


def test_internal_topics_with_wrong_count_are_reported() -> None:
    part = subtopology("0", "orders", changelogs=["log"])
    status, detail = problem(part, log=3)
    assert status == INCORRECTLY_PARTITIONED_TOPICS
    assert detail == "Existing topic log has different number of partitions: expected 4, found 3"


@pytest.mark.parametrize(
    ("parts", "detail"),
    [
        (
            [subtopology("0", "orders", "audit", copartition=[([0, 1], [])])],
            "Following topics do not have the same number of partitions: [{audit=1, orders=4}]",
        ),
        (
            [
                subtopology("0", "orders", sinks=["a"]),
                subtopology("1", "orders", repartition={"a": 3}, copartition=[([0], [0])]),
            ],
            (
                "Number of partitions [3] of repartition topic [a] doesn't match number of partitions [4] "
                "of the source topic."
            ),
        ),
        (
            [
                subtopology("0", "orders", sinks=["a", "b"]),
                subtopology("1", repartition={"a": 3, "b": 2}, copartition=[([], [0, 1])]),
            ],
            "Following topics do not have the same number of partitions: [{a=3, b=2}]",
        ),
    ],
)
def test_copartitioned_topics_with_different_counts_are_reported(
    parts: list[Any], detail: str
) -> None:
    assert problem(*parts) == (INCORRECTLY_PARTITIONED_TOPICS, detail)


def test_copartitioned_topics_get_same_count() -> None:
    with_source = (
        subtopology("0", "audit", sinks=["a"]),
        subtopology("1", "orders", repartition={"a": 0}, copartition=[([0], [0])]),
    )
    assert missing(*with_source) == {"a": 4}
    among_themselves = (
        subtopology("0", "audit", sinks=["a"]),
        subtopology("1", "orders", sinks=["b"]),
        subtopology("2", repartition={"a": 0, "b": 0}, copartition=[([], [0, 1])]),
    )
    assert missing(*among_themselves) == {"a": 4, "b": 4}
    with_a_number = (
        subtopology("0", "audit", sinks=["a"]),
        subtopology("1", "orders", sinks=["b"]),
        subtopology("2", repartition={"a": 0, "b": 6}, copartition=[([], [0, 1])]),
    )
    assert missing(*with_a_number) == {"a": 6, "b": 6}


def test_invalid_topologies_are_rejected() -> None:
    code = ErrorCode.STREAMS_INVALID_TOPOLOGY
    loop = refusal(
        subtopology("0", repartition={"a": 0}, sinks=["b"]),
        subtopology("1", repartition={"b": 0}, sinks=["a"]),
    )
    assert loop[0] == code
    assert "loops" in str(loop[1])
    assert refusal(subtopology("0", repartition={"a": 0}))[0] == code
    assert refusal(subtopology("0", changelogs=["log"]))[0] == code
    assert refusal(subtopology("0", "orders"), subtopology("0", "audit"))[0] == (
        ErrorCode.INVALID_REQUEST
    )
    beyond = subtopology("0", "orders", copartition=[([1], [])])
    assert refusal(beyond)[0] == ErrorCode.INVALID_REQUEST
    assert refusal(subtopology("0", *map(str, range(2_001))))[0] == ErrorCode.INVALID_REQUEST


def test_long_chain_is_processed_once() -> None:
    """The order of the subtopologies does not matter."""
    parts = [subtopology("0", "orders", sinks=["t1"])]
    parts += [
        subtopology(str(n), repartition={f"t{n}": 0}, sinks=[f"t{n + 1}"]) for n in range(1, 400)
    ]
    parts.append(subtopology("400", repartition={"t400": 0}))
    assert set(missing(*parts[::-1]).values()) == {4}
