"""Committed offsets."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordinator import GroupSettings, Pieces
from kbroker.coordinator.state import OFFSETS_AT_ONCE
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.group_metadata import decode_key, decode_offset_commit
from kbroker.protocol.messages.offsets import OffsetFetchRequest

from .harness import (
    COMMIT_VERSIONS,
    FETCH_VERSIONS,
    LOG_START_MS,
    SESSION_MS,
    FakeTopics,
    Harness,
    done,
    subscription,
)

ORDERS = ("orders", 0)
WITH_GENERATION = [version for version in COMMIT_VERSIONS if version >= 1]
DAY_MS = 24 * 3_600_000


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_simple_commit_creates_group(version: int) -> None:
    h = Harness()
    assert h.commit({ORDERS: 42, ("audit", 0): 7}, version=version) == [0, 0]
    assert h.fetch({"orders": [0], "audit": [0]}) == {
        ORDERS: (42, -1, "m", 0),
        ("audit", 0): (7, -1, "m", 0),
    }
    assert h.describe().group_state == "Empty"
    assert h.describe().protocol_type == ""
    assert h.commit({ORDERS: 43}, version=version) == [0]
    assert h.fetch({"orders": [0]})[ORDERS][0] == 43


@pytest.mark.parametrize("version", WITH_GENERATION)
def test_commit_with_generation_to_missing_group_is_rejected(version: int) -> None:
    h = Harness()
    expected = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
    assert h.commit({ORDERS: 1, ("audit", 0): 1}, "m", 0, version=version) == [expected] * 2
    assert h.log == []


@pytest.mark.parametrize("version", WITH_GENERATION)
def test_commit_result_depends_on_sender_and_group_state(version: int) -> None:
    h = Harness()
    assert h.commit({ORDERS: 1}, version=version) == [0]
    assert h.commit({ORDERS: 1}, "m", 0, version=version) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert h.commit({ORDERS: 1}, "", 0, version=version) == [ErrorCode.UNKNOWN_MEMBER_ID]
    leader, follower = h.make_stable(2)
    assert h.commit({ORDERS: 2}, follower, 2, version=version) == [0]
    assert h.commit({ORDERS: 3}, version=version) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert h.commit({ORDERS: 3}, "nobody", 2, version=version) == [ErrorCode.UNKNOWN_MEMBER_ID]
    for generation in (0, 1, 3, -1):
        code = h.commit({ORDERS: 3}, follower, generation, version=version)
        assert code == [ErrorCode.ILLEGAL_GENERATION]
    h.join(leader)
    assert h.commit({ORDERS: 4}, follower, 2, version=version) == [0]
    h.join(follower)
    code = h.commit({ORDERS: 5}, follower, 3, version=version)
    assert code == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert h.fetch({"orders": [0]})[ORDERS][0] == 4


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_commit_to_unknown_topic_or_partition_is_rejected(version: int) -> None:
    h = Harness()
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    codes = h.commit({("orders", 3): 1, ("orders", 4): 1, ("none", 0): 1}, version=version)
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, unknown]
    assert h.commit({("orders", -1): 1}, version=version) == [3]
    # If nothing can be stored, the group is not checked.
    if version >= 1:
        assert h.commit({("none", 0): 1}, "nobody", 9, version=version) == [unknown]
    assert list(h.fetch(None)) == [("orders", 3)]


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_fetch_returns_commit_metadata(version: int) -> None:
    h = Harness()
    assert h.commit({ORDERS: 1}, version=version, metadata="x" * 4096) == [0]
    too_large = h.commit({ORDERS: 2}, version=version, metadata="x" * 4097)
    assert too_large == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert h.fetch({"orders": [0]})[ORDERS][:3] == (1, -1, "x" * 4096)
    assert h.commit({ORDERS: 3}, version=version, metadata=None) == [0]
    assert h.fetch({"orders": [0]})[ORDERS][2] == ""


def test_commit_with_too_large_metadata_creates_no_group() -> None:
    h = Harness(GroupSettings(offset_metadata_length_max=0))
    assert h.commit({ORDERS: 1}, metadata="x") == [12]
    assert list(h.coordinator.list_groups()) == []


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_leader_epoch_is_stored_from_version_6(version: int) -> None:
    h = Harness()
    h.commit({ORDERS: 1}, version=version, leader_epoch=5)
    assert h.fetch({"orders": [0]})[ORDERS][1] == (5 if version >= 6 else -1)


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_commit_and_expire_timestamps_depend_on_version(version: int) -> None:
    h = Harness()
    h.commit({ORDERS: 1}, version=version, retention_ms=60_000, commit_timestamp=123)
    ((key, stored),) = h.log
    assert stored is not None
    value = decode_offset_commit(stored)
    assert value.commit_timestamp == (123 if version == 1 else LOG_START_MS)
    assert value.expire_timestamp == (LOG_START_MS + 60_000 if 2 <= version <= 4 else -1)
    assert decode_key(key) is not None


def test_commit_extends_session() -> None:
    h = Harness()
    leader, follower = h.make_stable(2)
    for generation_of in (2, 2, 2):
        h.sleep(SESSION_MS - 1)
        h.heartbeat(leader, 2)
        assert h.commit({ORDERS: 1}, follower, generation_of) == [0]
    assert h.describe().group_state == "Stable"
    h.join(leader)
    h.sleep(SESSION_MS - 1)
    assert h.commit({ORDERS: 1}, follower, 2) == [0]  # also in PreparingRebalance
    h.sleep(SESSION_MS - 1)
    assert h.heartbeat(follower, 2) == ErrorCode.REBALANCE_IN_PROGRESS


def test_commit_response_waits_for_high_watermark() -> None:
    h = Harness()
    h.hold = True
    with pytest.raises(AssertionError, match="not answered yet"):
        h.commit({ORDERS: 1})
    h.commit_log()


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_commit_that_cannot_be_stored_fails_for_all_partitions(version: int) -> None:
    h = Harness()
    h.append_fails = ErrorCode.KAFKA_STORAGE_ERROR
    codes = h.commit({ORDERS: 1, ("orders", 1): 1}, version=version)
    assert codes == [ErrorCode.NOT_COORDINATOR] * 2
    assert h.fetch(None) == {}


# -- fetch


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_of_missing_offset_is_not_an_error(version: int) -> None:
    h = Harness()
    nothing = (-1, -1, "", 0)
    assert h.fetch({"orders": [0, 9]}, version=version) == {ORDERS: nothing, ("orders", 9): nothing}
    h.commit({("orders", 1): 5}, leader_epoch=3)
    assert h.fetch({"orders": [0, 1]}, version=version) == {
        ORDERS: nothing,
        ("orders", 1): (5, 3 if version >= 5 else -1, "m", 0),
    }
    unknown = (-1, -1, "", ErrorCode.UNKNOWN_TOPIC_ID) if version >= 10 else nothing
    assert list(h.fetch({"none": [0]}, version=version).values()) == [unknown]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_of_null_topics_returns_all_offsets(version: int) -> None:
    h = Harness()
    all_topics: dict[str, list[int]] | None = None if version >= 2 else {}
    assert h.fetch(all_topics, version=version) == {}
    h.commit({ORDERS: 1, ("audit", 0): 2, ("orders", 3): 3})
    assert h.fetch({}, version=version) == {}
    if version >= 2:
        fetched = h.fetch(None, version=version)
        assert {at: row[0] for at, row in fetched.items()} == {
            ORDERS: 1,
            ("orders", 3): 3,
            ("audit", 0): 2,
        }


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_response_has_structure_of_version(version: int) -> None:
    h = Harness()
    h.commit({ORDERS: 1})
    response = h.fetch_response({"orders": [0]}, version=version)
    if version >= 8:
        assert [group.group_id for group in response.groups] == ["g"]
        assert response.topics == []
    else:
        assert response.groups == []
        assert response.error_code == 0
        assert len(response.topics) == 1


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_empty_group_id_may_commit_offsets(version: int) -> None:
    h = Harness()
    assert h.commit({ORDERS: 9}, version=version, group="") == [0]
    assert h.fetch({"orders": [0]}, version=version, group="")[ORDERS][0] == 9
    assert h.describe("").group_state == "Empty"
    assert h.delete_groups("") == {"": 0}


def test_offsets_are_not_returned_for_recreated_topic() -> None:
    h = Harness()
    h.commit({ORDERS: 9, ("audit", 0): 1})
    h.topics.create("orders", 4)
    assert h.fetch({"orders": [0]})[ORDERS][0] == -1
    assert list(h.fetch(None)) == [("audit", 0)]
    assert list(h.fetch(None, version=10)) == [("audit", 0)]
    h.commit({ORDERS: 3}, version=10)
    assert h.fetch({"orders": [0]}, version=10)[ORDERS][0] == 3


def test_offsets_of_deleted_topic_are_returned_by_name_only() -> None:
    h = Harness()
    h.commit({ORDERS: 9})
    del h.topics.topics["orders"]
    assert h.fetch(None)[ORDERS][0] == 9
    assert h.fetch({"orders": [0]})[ORDERS][0] == 9
    assert h.fetch(None, version=10) == {}


# -- delete


def test_offset_delete_returns_row_per_partition() -> None:
    h = Harness()
    assert h.delete_offsets({"orders": [0]}).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert h.delete_offsets({"orders": [0]}, group="").error_code == ErrorCode.INVALID_GROUP_ID
    h.commit({ORDERS: 1, ("orders", 1): 1, ("audit", 0): 1})
    response = h.delete_offsets({"orders": [0, 2, 7], "none": [0], "audit": []})
    assert response.error_code == 0
    assert {
        topic.name: [row.error_code for row in topic.partitions] for topic in response.topics
    } == {"orders": [0, 0, 3], "none": [3]}
    assert list(h.fetch(None)) == [("orders", 1), ("audit", 0)]
    assert list(h.restarted().fetch(None)) == [("orders", 1), ("audit", 0)]


def test_offset_delete_keeps_offsets_of_subscribed_topics() -> None:
    h = Harness()
    (member,) = h.make_stable(1)  # reads orders
    h.commit({ORDERS: 1, ("audit", 0): 1}, member, 1)
    response = h.delete_offsets({"orders": [0], "audit": [0]})
    assert [topic.partitions[0].error_code for topic in response.topics] == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        0,
    ]
    h.leave((member, None))
    assert h.delete_offsets({"orders": [0]}).topics[0].partitions[0].error_code == 0
    assert h.fetch(None) == {}


def test_subscription_without_optional_fields_is_parsed() -> None:
    h = Harness()
    (member,) = h.make_stable(1, protocols=(("range", b"\0\1" + subscription("orders")[2:]),))
    h.commit({ORDERS: 1, ("audit", 0): 1}, member, 1)
    response = h.delete_offsets({"orders": [0], "audit": [0]})
    assert [topic.partitions[0].error_code for topic in response.topics] == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        0,
    ]


def test_invalid_subscription_counts_as_any_topic() -> None:
    h = Harness()
    (member,) = h.make_stable(1, protocols=(("range", b"\x00"),))
    assert h.commit({("audit", 0): 1}, member, 1) == [0]
    response = h.delete_offsets({"audit": [0]})
    assert response.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_members_of_other_protocol_type_prevent_offset_delete() -> None:
    h = Harness()
    member = h.enter(protocol_type="connect").response.member_id
    assert h.delete_offsets({"audit": [0]}).error_code == ErrorCode.NON_EMPTY_GROUP
    h.leave((member, None))
    assert h.delete_offsets({"audit": [0]}).error_code == 0


def test_offset_delete_that_cannot_be_stored_deletes_nothing() -> None:
    h = Harness()
    h.commit({ORDERS: 1})
    h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    refused = h.delete_offsets({"orders": [0]})
    assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert list(h.fetch(None)) == [ORDERS]


def test_offsets_of_deleted_topic_are_deleted() -> None:
    h = Harness()
    for group in ("a", "b"):
        h.commit({ORDERS: 1, ("audit", 0): 2}, group=group)
    h.commit({("audit", 0): 2}, group="c")
    del h.topics.topics["orders"]
    h.forget(h.coordinator.forget_topics({"orders"}))
    for shard in (h, h.restarted()):
        assert [list(shard.fetch(None, group=g)) for g in "abc"] == [[("audit", 0)]] * 3
    assert set(h.coordinator.forget_topics({"orders"})) == {None}


def recreate(h: Harness, name: str = "orders") -> None:
    del h.topics.topics[name]
    h.topics.create(name, 4)


@pytest.mark.parametrize("retention_ms", [-1, DAY_MS])
def test_commits_during_topic_offset_deletion_are_kept(retention_ms: int) -> None:
    """An offset with its own retention time contains no topic ID."""
    h = Harness()
    fields: dict[str, Any] = {"version": 4, "retention_ms": retention_ms}
    for group in "abc":
        h.commit({ORDERS: 1, ("orders", 1): 1}, group=group, **fields)
    recreate(h)
    pieces = h.coordinator.forget_topics(["orders"])
    assert h.fetch({"orders": [0]}, group="b")[ORDERS][0] == -1, (
        "the call hides the offsets immediately"
    )
    assert h.fetch(None, group="b") == {}
    h.commit({ORDERS: 2}, group="b", **fields)
    assert h.fetch(None, group="b")[ORDERS][0] == 2
    first = next(pieces)
    assert first is not None
    h.settle(first)
    h.commit({ORDERS: 2}, group="a", **fields)
    h.forget(pieces)
    for shard in (h, h.restarted()):
        assert shard.coordinator.committed("a") == shard.coordinator.committed("b") == {ORDERS: 2}
        assert shard.coordinator.committed("c") == {}


def test_topic_deleted_again_during_offset_deletion_is_processed() -> None:
    h = Harness()
    fields: dict[str, Any] = {"version": 4, "retention_ms": DAY_MS}
    for group in "abc":
        h.commit({ORDERS: 1, ("audit", 0): 1}, group=group, **fields)
    recreate(h)
    pieces = h.coordinator.forget_topics(["orders"])
    next(pieces)
    h.commit({ORDERS: 2}, group="a", **fields)
    recreate(h)
    recreate(h, "audit")
    assert list(h.coordinator.forget_topics(["orders", "audit"])) == [], (
        "the first call continues the work"
    )
    h.commit({ORDERS: 3}, group="c", **fields)
    h.forget(pieces)
    assert [h.coordinator.committed(group) for group in "abc"] == [{}, {}, {ORDERS: 3}]
    h.commit({ORDERS: 4}, group="a", **fields)
    recreate(h)
    h.forget(h.coordinator.forget_topics(["orders"]))
    assert [h.coordinator.committed(group) for group in "abc"] == [{}, {}, {}]


def test_pending_offset_of_recreated_topic_is_kept() -> None:
    h = Harness()
    h.commit({ORDERS: 1})
    recreate(h)
    pieces = h.coordinator.forget_topics(["orders"])
    h.commit_in_transaction({ORDERS: 2})
    h.forget(pieces)
    h.end(commit=True)
    for shard in (h, h.restarted()):
        assert shard.coordinator.committed("g") == {ORDERS: 2}


def test_stale_offsets_are_deleted_after_load() -> None:
    h = Harness()
    h.commit({ORDERS: 1, ("audit", 0): 1})
    h.commit({ORDERS: 1}, group="a")
    recreate(h)
    loaded = h.restarted()
    loaded.commit({ORDERS: 2}, group="a")
    del loaded.topics.topics["audit"]
    loaded.forget(loaded.coordinator.forget_missing_topics())
    assert loaded.coordinator.committed("g") == {}
    assert loaded.coordinator.committed("a") == {ORDERS: 2}


def wide_harness() -> Harness:
    """Return a harness with more offsets than one piece processes."""
    topics = FakeTopics()
    topics.create("wide", 3 * OFFSETS_AT_ONCE)
    h = Harness(topics=topics)
    offsets = {("wide", index): 7 for index in range(2 * OFFSETS_AT_ONCE + 1)}
    h.commit(offsets, version=4, retention_ms=DAY_MS)
    return h


@pytest.mark.parametrize("names_topics", [False, True])
@pytest.mark.parametrize("pauses", range(4))
def test_stable_fetch_returns_no_offset_that_a_transaction_has_replaced(
    names_topics: bool, pauses: int
) -> None:
    """End the transaction while the response is created in pieces."""
    h = wide_harness()
    count = 2 * OFFSETS_AT_ONCE + 1
    h.commit_in_transaction({("wide", index): 8 for index in range(count)})
    topics = [OffsetFetchRequest.Topic(name="wide", partition_indexes=list(range(count)))]
    row = OffsetFetchRequest.Group(group_id="g", topics=topics if names_topics else None)
    fetch = h.coordinator.offsets.fetch(row, 8, require_stable=True)
    for _ in range(pauses):
        next(fetch)
    for _ in h.coordinator.end_transaction(7, commit=True):
        pass
    (found,) = done(fetch).topics
    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert {(each.committed_offset, each.error_code) for each in found.partitions} <= {
        (8, ErrorCode.NONE),
        (-1, unstable),
    }


def sizes(h: Harness, pieces: Pieces) -> list[int]:
    """Return the number of records of each piece."""
    found = []
    for piece in pieces:
        found.append(0 if piece is None else len(piece.records))
        if piece is not None:
            h.settle(piece)
    return found


def test_many_offsets_of_group_are_deleted_in_pieces() -> None:
    h = wide_harness()
    some = OFFSETS_AT_ONCE
    assert sizes(h, h.coordinator.forget_topics(["audit"])) == [0, 0, 0]
    del h.topics.topics["wide"]
    assert sizes(h, h.coordinator.forget_topics(["wide"])) == [some, some, 1]
    assert h.fetch(None) == {}


def test_many_offsets_of_group_expire_in_pieces() -> None:
    h = wide_harness()
    some = OFFSETS_AT_ONCE
    assert sizes(h, h.coordinator.expire(h.now)) == [0, 0, 0]
    h.sleep(DAY_MS)
    pieces = h.coordinator.expire(h.now)
    first = next(pieces)
    assert first is not None
    h.settle(first)
    h.commit({("wide", 2 * some): 8})
    assert sizes(h, pieces) == [some, 0]
    assert h.coordinator.committed("g") == {("wide", 2 * some): 8}
    h.sleep(7 * DAY_MS)
    assert sizes(h, h.coordinator.expire(h.now)) == [2], "tombstones of the offset and the group"


def test_group_may_be_deleted_during_expiration() -> None:
    h = wide_harness()
    h.sleep(DAY_MS)
    pieces = h.coordinator.expire(h.now)
    next(pieces)
    assert h.delete_groups("g") == {"g": 0}
    assert sizes(h, pieces) == [0, 0]


# -- expiry


def expire(h: Harness) -> None:
    h.forget(h.coordinator.expire(h.now))


def test_offsets_of_simple_group_expire_by_commit_time() -> None:
    h = Harness()
    h.commit({ORDERS: 1})
    h.sleep(3 * DAY_MS)
    h.commit({("orders", 1): 1})
    h.sleep(4 * DAY_MS - 1)
    expire(h)
    assert len(h.fetch(None)) == 2
    h.sleep(1)
    expire(h)
    assert list(h.fetch(None)) == [("orders", 1)]
    assert h.describe().group_state == "Empty"
    h.sleep(3 * DAY_MS)
    expire(h)
    for shard in (h, h.restarted()):
        assert shard.fetch(None) == {}
        assert shard.describe().group_state == "Dead"


def test_offsets_of_group_expire_after_last_member_left() -> None:
    h = Harness()
    (member,) = h.make_stable(1)
    h.commit({ORDERS: 1}, member, 1)
    h.sleep(SESSION_MS)  # the session has expired
    h.sleep(7 * DAY_MS - 1)
    # After compaction, a load sees only the last record of the group, which has no members.
    last = {record.key: record for record in h.log}
    compacted = Harness(h.settings, h.topics, list(last.values()), log_ms=h.now.log_ms)
    for shard in (h, compacted):
        expire(shard)
        assert list(shard.fetch(None)) == [ORDERS]
    h.sleep(1)
    expire(h)
    assert h.describe().group_state == "Dead"


def test_offsets_of_active_group_expire_unless_topic_is_subscribed() -> None:
    h = Harness()
    (member,) = h.make_stable(1, session_ms=1_800_000)
    h.commit({ORDERS: 1, ("audit", 0): 1}, member, 1)
    for _ in range(7 * 96 + 1):
        h.sleep(DAY_MS // 96)
        h.heartbeat(member, 1)
    expire(h)
    assert list(h.fetch(None)) == [ORDERS]
    h.join(member, session_ms=1_800_000, protocols=(("range", b"\x00"),))
    expire(h)
    assert list(h.fetch(None)) == [ORDERS]


def test_own_retention_time_overrides_offsets_retention() -> None:
    h = Harness()
    h.commit({ORDERS: 1}, version=4, retention_ms=60_000)
    h.sleep(59_999)
    expire(h)
    assert list(h.fetch(None)) == [ORDERS]
    h.sleep(1)
    expire(h)
    assert h.fetch(None) == {}


def test_expiration_that_cannot_be_stored_is_retried() -> None:
    h = Harness()
    h.commit({ORDERS: 1}, version=4, retention_ms=1)
    h.sleep(1)
    h.append_fails = ErrorCode.KAFKA_STORAGE_ERROR
    expire(h)
    assert list(h.fetch(None)) == [ORDERS]
    expire(h)
    assert h.describe().group_state == "Dead"


def test_empty_group_without_offsets_expires_unless_member_is_pending() -> None:
    h = Harness()
    (member,) = h.make_stable(1)
    expire(h)
    assert h.describe().group_state == "Stable"
    h.leave((member, None))
    newcomer = h.new_id()
    expire(h)
    assert h.join(newcomer).response.error_code == 0
    h.leave((newcomer, None))
    expire(h)
    assert h.describe().group_state == "Dead"
