"""Offsets committed in transactions."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from kbroker.coordinator import GroupSettings
from kbroker.coordinator.common.offset_checks import FIRST_TXN_VERSION_OF_IDS
from kbroker.coordinator.common.pending import TopicPartition
from kbroker.coordinator.common.records import offset_record, offset_tombstone
from kbroker.coordinator.state import OFFSETS_AT_ONCE
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.group_metadata import OffsetCommitValue, decode_offset_commit

from ..harness import LOG_START_MS, TRANSACTIONAL_VERSIONS, FakeTopics, Harness

ORDERS = ("orders", 0)
AUDIT = ("audit", 0)
DAY_MS = 24 * 3_600_000
UNSTABLE = (-1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)
NOTHING = (-1, -1, "", 0)
WITH_MEMBER = [version for version in TRANSACTIONAL_VERSIONS if version >= 3]
WITHOUT_MEMBER = [version for version in TRANSACTIONAL_VERSIONS if version < 3]


def committed_offset(
    h: Harness, topic_partition: tuple[str, int] = ORDERS, group: str = "g"
) -> int:
    return h.fetch({topic_partition[0]: [topic_partition[1]]}, group=group)[topic_partition][0]


# -- end of a transaction


@pytest.mark.parametrize("version", TRANSACTIONAL_VERSIONS)
def test_committed_transaction_makes_offsets_visible(version: int) -> None:
    h = Harness()
    codes = h.commit_in_transaction({ORDERS: 42, AUDIT: 7}, version=version, leader_epoch=5)
    assert codes == [0, 0]
    assert h.fetch({"orders": [0], "audit": [0]}) == {ORDERS: NOTHING, AUDIT: NOTHING}
    assert h.coordinator.committed("g") == {}
    h.end(commit=True)
    epoch = 5 if version >= 2 else -1
    for shard in (h, h.restarted()):
        assert shard.fetch({"orders": [0], "audit": [0]}) == {
            ORDERS: (42, epoch, "m", 0),
            AUDIT: (7, epoch, "m", 0),
        }
        assert shard.coordinator.committed("g") == {ORDERS: 42, AUDIT: 7}


def pending_in_many(h: Harness, producer_id: int = 7, offset: int = 1) -> dict[TopicPartition, int]:
    """Replay more transactional offsets than one piece processes."""
    topic_partitions = {("orders", index): offset for index in range(3 * OFFSETS_AT_ONCE)}
    for topic, index in topic_partitions:
        value = OffsetCommitValue(offset=offset, metadata="", commit_timestamp=1)
        h.coordinator.replay(offset_record("g", topic, index, value), producer_id)
    return topic_partitions


@pytest.mark.parametrize("commit", [True, False])
def test_transaction_with_many_offsets_ends_in_pieces(commit: bool) -> None:
    h = Harness()
    topic_partitions = pending_in_many(h)
    assert [*h.coordinator.groups_in_transaction(7)] == ["g"]
    pieces = h.coordinator.end_transaction(7, commit=commit)
    assert [*h.coordinator.groups_in_transaction(7)] == []
    looked_at = 0
    for size in pieces:
        assert size <= OFFSETS_AT_ONCE
        looked_at += size
        assert len(h.coordinator.committed("g")) == (looked_at if commit else 0)
    assert looked_at == len(topic_partitions)
    assert h.coordinator.committed("g") == (topic_partitions if commit else {})


def test_offsets_deleted_while_transaction_ends_are_not_committed() -> None:
    h = Harness()
    topic_partitions = pending_in_many(h)
    pieces = h.coordinator.end_transaction(7, commit=True)
    next(pieces)
    for topic, index in topic_partitions:
        h.coordinator.replay(offset_tombstone("g", topic, index))
    assert sum(pieces) == 0
    assert h.coordinator.committed("g") == {}


@pytest.mark.parametrize("is_marker", [True, False])
def test_producer_may_continue_while_transaction_ends(is_marker: bool) -> None:
    """New offsets do not belong to the ending transaction, and the next end is processed."""
    h = Harness()
    topic_partitions = pending_in_many(h)
    pieces = h.coordinator.end_transaction(7, commit=True)
    next(pieces)
    if is_marker:
        assert sum(h.coordinator.end_transaction(7, commit=False)) == 0
    else:
        pending_in_many(h, offset=2)
    assert h.coordinator.committed("g") == topic_partitions
    assert sum(pieces) == 0
    assert h.coordinator.committed("g") == topic_partitions


def test_aborted_transaction_drops_offsets() -> None:
    h = Harness()
    h.commit({ORDERS: 1})
    h.commit_in_transaction({ORDERS: 42, AUDIT: 7})
    h.end(commit=False)
    for shard in (h, h.restarted()):
        assert shard.coordinator.committed("g") == {ORDERS: 1}
        assert shard.fetch(None, require_stable=True) == {ORDERS: (1, -1, "m", 0)}
    h.end(commit=True)  # no offset is pending any more
    assert h.coordinator.committed("g") == {ORDERS: 1}


@pytest.mark.parametrize("commit", [True, False])
def test_pending_offsets_survive_restart(commit: bool) -> None:
    h = Harness()
    h.commit({ORDERS: 1})
    h.commit_in_transaction({ORDERS: 42})
    h = h.restarted()
    assert h.fetch(None, require_stable=True) == {ORDERS: UNSTABLE}
    h.end(commit=commit)
    assert committed_offset(h) == (42 if commit else 1)


def test_producers_end_their_own_transactions() -> None:
    h = Harness()
    h.commit_in_transaction({ORDERS: 1}, 7, group="a")
    h.commit_in_transaction({ORDERS: 2}, 8, group="b")
    h.commit_in_transaction({AUDIT: 3}, 7, group="b")
    h.end(8, commit=True)
    assert h.coordinator.committed("a") == {}
    assert h.coordinator.committed("b") == {ORDERS: 2}
    h.end(7, commit=True)
    assert h.coordinator.committed("a") == {ORDERS: 1}
    assert h.coordinator.committed("b") == {ORDERS: 2, AUDIT: 3}


def test_last_offset_of_transaction_is_committed() -> None:
    h = Harness()
    for offset in (5, 9, 6):
        h.commit_in_transaction({ORDERS: offset})
    h.end(commit=True)
    assert committed_offset(h) == 6


def test_later_commit_is_not_replaced_by_ending_transaction() -> None:
    h = Harness()
    h.commit_in_transaction({ORDERS: 42, AUDIT: 42})
    h.commit({ORDERS: 50})
    for shard in (h, h.restarted()):
        assert shard.fetch({"orders": [0]}, require_stable=True)[ORDERS] == UNSTABLE
        shard.end(commit=True)
        assert shard.coordinator.committed("g") == {ORDERS: 50, AUDIT: 42}


def test_last_written_of_two_transactions_is_committed() -> None:
    for ends in ((7, 8), (8, 7)):
        h = Harness()
        h.commit_in_transaction({ORDERS: 1}, 7)
        h.commit_in_transaction({ORDERS: 2}, 8)
        for producer_id in ends:
            h.end(producer_id, commit=True)
        assert committed_offset(h) == 2
        assert committed_offset(h.restarted()) == 2


def test_aborted_transaction_supersedes_no_offset() -> None:
    h = Harness()
    h.commit_in_transaction({ORDERS: 1}, 7)
    h.commit_in_transaction({ORDERS: 2}, 8)
    h.end(8, commit=False)
    h.end(7, commit=True)
    assert committed_offset(h) == 1


# -- validation of commits


@pytest.mark.parametrize("version", TRANSACTIONAL_VERSIONS)
def test_transactional_commit_to_missing_group_is_accepted_without_generation(version: int) -> None:
    h = Harness()
    if version >= 3:
        refused = h.commit_in_transaction({ORDERS: 1}, version=version, generation=0)
        knows_group_errors = version >= FIRST_TXN_VERSION_OF_IDS
        code = ErrorCode.GROUP_ID_NOT_FOUND if knows_group_errors else ErrorCode.ILLEGAL_GENERATION
        assert refused == [code]
        assert h.log == []
        # Without a generation the member ID is not checked, because the group has no members.
        assert h.commit_in_transaction({ORDERS: 1}, version=version, member_id="m") == [0]
    else:
        assert h.commit_in_transaction({ORDERS: 1}, version=version) == [0]
    assert (h.describe().group_state, h.describe().protocol_type) == ("Empty", "")
    assert h.commit_in_transaction({ORDERS: 2}, version=version) == [0]


@pytest.mark.parametrize("version", WITHOUT_MEMBER)
def test_commit_of_old_client_without_member_id_is_accepted(version: int) -> None:
    """The group may be in any state."""
    h = Harness()
    leader, follower = h.make_stable(2)
    assert h.commit_in_transaction({ORDERS: 1}, version=version) == [0]
    h.join(leader)
    assert h.commit_in_transaction({ORDERS: 1}, version=version) == [0]
    h.join(follower)
    assert h.commit_in_transaction({ORDERS: 1}, version=version) == [0]


@pytest.mark.parametrize("version", WITH_MEMBER)
def test_transactional_commit_checks_member_and_generation(version: int) -> None:
    h = Harness()
    leader, follower = h.make_stable(2)

    def commit(member_id: str, generation: int, instance: str | None = None) -> int:
        (code,) = h.commit_in_transaction(
            {ORDERS: 1},
            version=version,
            member_id=member_id,
            generation=generation,
            instance=instance,
        )
        return code

    assert commit(follower, 2) == ErrorCode.NONE
    assert commit("", -1) == ErrorCode.NONE  # contains no member ID
    assert commit("nobody", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit("nobody", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit("", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(follower, 2, "i") == ErrorCode.UNKNOWN_MEMBER_ID
    for generation in (-1, 0, 1, 3):
        assert commit(follower, generation) == ErrorCode.ILLEGAL_GENERATION
    h.join(leader)
    assert commit(follower, 2) == ErrorCode.NONE
    h.join(follower)
    assert commit(follower, 3) == ErrorCode.NONE  # also before the assignment is stored
    assert commit(follower, 2) == ErrorCode.ILLEGAL_GENERATION
    assert len(h.coordinator.committed("g")) == 0


@pytest.mark.parametrize("version", WITH_MEMBER)
def test_replaced_static_member_is_fenced(version: int) -> None:
    h = Harness()
    first = h.join(instance="i").response.member_id
    h.sync(first, 1, {first: b"a"}, instance="i")
    second = h.join(instance="i").response.member_id
    generation = h.generation

    def commit(member_id: str, generation: int) -> list[int]:
        return h.commit_in_transaction(
            {ORDERS: 1},
            version=version,
            member_id=member_id,
            generation=generation,
            instance="i",
        )

    assert commit(second, generation) == [0]
    assert commit(first, generation) == [ErrorCode.FENCED_INSTANCE_ID]
    assert commit(first, generation + 9) == [ErrorCode.FENCED_INSTANCE_ID]
    assert commit(second, generation + 9) == [ErrorCode.ILLEGAL_GENERATION]


def test_commit_to_empty_group_does_not_check_member_id() -> None:
    h = Harness()
    (member,) = h.make_stable(1)
    h.leave((member, None))
    assert h.commit_in_transaction({ORDERS: 1}, member_id="who", generation=-1) == [0]
    code = h.commit_in_transaction({ORDERS: 1}, member_id=member, generation=2)
    assert code == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_transactional_commit_does_not_extend_session() -> None:
    h = Harness()
    (member,) = h.make_stable(1)
    for _ in range(3):
        h.sleep(4_000)
        h.commit_in_transaction({ORDERS: 1}, member_id=member, generation=1)
    assert h.describe().group_state == "Empty"


@pytest.mark.parametrize("version", TRANSACTIONAL_VERSIONS)
def test_transactional_commit_rejects_invalid_rows(version: int) -> None:
    h = Harness(GroupSettings(offset_metadata_length_max=3))
    offsets = {ORDERS: 1, ("orders", 9): 2, ("none", 0): 3}
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if version >= FIRST_TXN_VERSION_OF_IDS:
        unknown = ErrorCode.UNKNOWN_TOPIC_ID
    assert h.commit_in_transaction(offsets, version=version) == [0, 3, unknown]
    too_large = h.commit_in_transaction(offsets, version=version, metadata="long")
    assert too_large == [ErrorCode.OFFSET_METADATA_TOO_LARGE, 3, unknown]
    assert h.commit_in_transaction({ORDERS: 4}, version=version, metadata=None) == [0]
    h.end(commit=True)
    assert h.fetch(None) == {ORDERS: (4, -1, "", 0)}
    if version >= 3:  # if nothing can be stored, the group is not checked
        only = h.commit_in_transaction({("none", 0): 1}, version=version, generation=9)
        assert only == [unknown]


def test_transaction_error_rejects_commit() -> None:
    """Invalid rows keep their own error; the transaction error precedes group errors."""
    h = Harness()
    codes = h.commit_in_transaction(
        {ORDERS: 1, ("none", 0): 3}, refusal=ErrorCode.INVALID_TXN_STATE, generation=9
    )
    assert codes == [ErrorCode.INVALID_TXN_STATE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert h.log == []


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_append_error_is_returned(failure: ErrorCode, code: ErrorCode) -> None:
    h = Harness()
    h.append_fails = failure
    assert h.commit_in_transaction({ORDERS: 1, ("none", 0): 2}) == [code, 3]
    assert h.fetch({"orders": [0]}, require_stable=True)[ORDERS] == NOTHING


def test_transactional_commit_stores_timestamp_and_topic_id() -> None:
    h = Harness()
    h.commit_in_transaction({ORDERS: 1})
    ((_, value),) = h.log
    assert value is not None
    commit = decode_offset_commit(value)
    assert (commit.commit_timestamp, commit.expire_timestamp) == (LOG_START_MS, -1)
    assert commit.topic_id == h.topics.id_of("orders")
    assert h.entries[0].producer_id == 7


# -- fetch


@pytest.mark.parametrize("version", range(7, 11))
def test_require_stable_fetch_returns_unstable_offset_commit(version: int) -> None:
    h = Harness()
    h.commit({ORDERS: 1, ("orders", 1): 1})
    h.commit_in_transaction({ORDERS: 2, AUDIT: 2})
    before = h.fetch({"orders": [0, 1], "audit": [0]}, version=version, require_stable=True)
    assert before == {ORDERS: UNSTABLE, ("orders", 1): (1, -1, "m", 0), AUDIT: UNSTABLE}
    # A fetch of all partitions omits offsets that were never committed.
    response = h.fetch(None, version=version, require_stable=True)
    assert response == {ORDERS: UNSTABLE, ("orders", 1): (1, -1, "m", 0)}
    assert h.fetch({"orders": [0]}, version=version)[ORDERS] == (1, -1, "m", 0)
    h.end(commit=True)
    after = h.fetch({"orders": [0], "audit": [0]}, version=version, require_stable=True)
    assert after == {ORDERS: (2, -1, "m", 0), AUDIT: (2, -1, "m", 0)}


def test_pending_offsets_do_not_affect_other_groups() -> None:
    h = Harness()
    h.commit_in_transaction({ORDERS: 2})
    assert h.fetch({"orders": [0]}, group="h", require_stable=True) == {ORDERS: NOTHING}


def test_status_names_producers_of_pending_offsets() -> None:
    h = Harness()
    h.commit_in_transaction({ORDERS: 2}, 8)
    h.commit_in_transaction({AUDIT: 2}, 7)
    assert h.coordinator.describe_status("g", h.now) == (
        "group g is Empty after generation 0; "
        "offsets are pending in open transactions of producer 7, producer 8"
    )
    h.end(7, commit=True)
    h.end(8, commit=False)
    assert h.coordinator.describe_status("g", h.now) == "group g is Empty after generation 0"


# -- deletion and expiration


def test_deleting_group_deletes_pending_offsets() -> None:
    h = Harness()
    h.commit({ORDERS: 1})
    h.commit_in_transaction({ORDERS: 2, AUDIT: 2})
    assert h.delete_groups("g") == {"g": 0}
    for shard in (h, h.restarted()):
        shard.end(commit=True)
        assert shard.coordinator.committed("g") == {}
        assert shard.describe().group_state == "Dead"


def test_deleted_pending_offset_does_not_reappear() -> None:
    h = Harness()
    h.commit({("orders", 1): 1})
    h.commit_in_transaction({ORDERS: 2, AUDIT: 2}, 7)
    h.commit_in_transaction({ORDERS: 3}, 8)
    rows = h.delete_offsets({"orders": [0, 1]})
    assert [row.error_code for row in rows.topics[0].partitions] == [0, 0]
    h.commit_in_transaction({("orders", 1): 9}, 8)
    for shard in (h, h.restarted()):
        shard.end(7, commit=True)
        shard.end(8, commit=True)
        assert shard.coordinator.committed("g") == {AUDIT: 2, ("orders", 1): 9}


def test_pending_offsets_of_deleted_topic_do_not_reappear() -> None:
    topics = FakeTopics()
    h = Harness(topics=topics)
    h.commit_in_transaction({ORDERS: 2, AUDIT: 2}, group="a")
    h.commit({ORDERS: 1}, group="b")
    del topics.topics["orders"]
    h.forget(h.coordinator.forget_topics(["orders"]))
    topics.create("orders", 4)
    h.end(commit=True)
    assert h.coordinator.committed("a") == {AUDIT: 2}
    assert h.coordinator.committed("b") == {}


def expire(h: Harness) -> None:
    h.forget(h.coordinator.expire(h.now))


@pytest.mark.parametrize("commit", [True, False])
def test_pending_offsets_do_not_expire(commit: bool) -> None:
    h = Harness()
    h.commit({ORDERS: 1, AUDIT: 1})
    h.commit_in_transaction({ORDERS: 2})
    h.sleep(8 * DAY_MS)
    expire(h)
    assert h.coordinator.committed("g") == {ORDERS: 1}
    assert h.describe().group_state == "Empty"
    h.end(commit=commit)
    expire(h)
    assert h.describe().group_state == "Dead"


def test_group_with_pending_offsets_only_does_not_expire() -> None:
    h = Harness()
    h.commit_in_transaction({ORDERS: 2})
    h.sleep(8 * DAY_MS)
    expire(h)
    assert h.describe().group_state == "Empty"
    h.end(commit=False)
    expire(h)
    assert h.describe().group_state == "Dead"


# -- comparison with a model


class Written(NamedTuple):
    """An offset in the model with its log position."""

    position: int
    offset: int


class Model:
    """Expected offsets, derived from log positions."""

    def __init__(self) -> None:
        self.position = 0
        self.committed: dict[tuple[str, int], Written] = {}
        self.pending: dict[int, dict[tuple[str, int], Written]] = {7: {}, 8: {}, 9: {}}

    def write(self, topic_partition: tuple[str, int], offset: int, producer_id: int | None) -> None:
        self.position += 1
        into = self.committed if producer_id is None else self.pending[producer_id]
        into[topic_partition] = Written(self.position, offset)

    def delete(self, topic_partition: tuple[str, int]) -> None:
        for topic_partitions in (self.committed, *self.pending.values()):
            topic_partitions.pop(topic_partition, None)

    def end(self, producer_id: int, *, commit: bool) -> None:
        pending, self.pending[producer_id] = self.pending[producer_id], {}
        for topic_partition, written in pending.items():
            now = self.committed.get(topic_partition)
            if commit and (now is None or now.position < written.position):
                self.committed[topic_partition] = written

    def unstable(self) -> set[tuple[str, int]]:
        return {
            topic_partition
            for topic_partitions in self.pending.values()
            for topic_partition in topic_partitions
        }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_random_commits_match_model(seed: int) -> None:
    rng = random.Random(seed)
    h, model = Harness(), Model()
    topic_partitions = [ORDERS, ("orders", 1), AUDIT]
    for offset in range(80):
        topic_partition, producer_id = rng.choice(topic_partitions), rng.choice((7, 8, 9))
        chance = rng.random()
        if chance < 0.45:
            assert h.commit_in_transaction({topic_partition: offset}, producer_id) == [0]
            model.write(topic_partition, offset, producer_id)
        elif chance < 0.6:
            assert h.commit({topic_partition: offset}) == [0]
            model.write(topic_partition, offset, None)
        elif chance < 0.65:
            h.delete_offsets({topic_partition[0]: [topic_partition[1]]})
            model.delete(topic_partition)
        elif chance < 0.9:
            commit = rng.random() < 0.6
            h.end(producer_id, commit=commit)
            model.end(producer_id, commit=commit)
        else:
            h = h.restarted()
        expected = {each: written.offset for each, written in model.committed.items()}
        assert h.coordinator.committed("g") == expected
        rows = h.fetch({"orders": [0, 1], "audit": [0]}, require_stable=True)
        assert {each for each, row in rows.items() if row == UNSTABLE} == model.unstable()
