"""Offsets that are committed in transactions."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from kbroker.coordinator import GroupSettings
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


def stored(h: Harness, topic_partition: tuple[str, int] = ORDERS, group: str = "g") -> int:
    return h.fetch({topic_partition[0]: [topic_partition[1]]}, group=group)[topic_partition][0]


# -- the end of a transaction


@pytest.mark.parametrize("version", TRANSACTIONAL_VERSIONS)
def test_offsets_of_a_committed_transaction_appear(version: int) -> None:
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
    """Replays what a transaction wrote to more partitions than are ended in one piece."""
    topic_partitions = {("orders", index): offset for index in range(3 * OFFSETS_AT_ONCE)}
    for topic, index in topic_partitions:
        value = OffsetCommitValue(offset=offset, metadata="", commit_timestamp=1)
        h.coordinator.replay(offset_record("g", topic, index, value), producer_id)
    return topic_partitions


@pytest.mark.parametrize("commit", [True, False])
def test_many_offsets_of_a_transaction_count_in_pieces(commit: bool) -> None:
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


def test_what_is_deleted_between_two_pieces_of_an_end_is_gone() -> None:
    h = Harness()
    topic_partitions = pending_in_many(h)
    pieces = h.coordinator.end_transaction(7, commit=True)
    next(pieces)
    for topic, index in topic_partitions:
        h.coordinator.replay(offset_tombstone("g", topic, index))
    assert sum(pieces) == 0
    assert h.coordinator.committed("g") == {}


@pytest.mark.parametrize("is_marker", [True, False])
def test_a_producer_that_goes_on_between_two_pieces_of_an_end(is_marker: bool) -> None:
    """What it writes then is not of the transaction that ends; nor is its next end lost."""
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


def test_offsets_of_an_aborted_transaction_vanish() -> None:
    h = Harness()
    h.commit({ORDERS: 1})
    h.commit_in_transaction({ORDERS: 42, AUDIT: 7})
    h.end(commit=False)
    for shard in (h, h.restarted()):
        assert shard.coordinator.committed("g") == {ORDERS: 1}
        assert shard.fetch(None, require_stable=True) == {ORDERS: (1, -1, "m", 0)}
    h.end(commit=True)  # nothing is left of it
    assert h.coordinator.committed("g") == {ORDERS: 1}


@pytest.mark.parametrize("commit", [True, False])
def test_a_restart_in_the_middle(commit: bool) -> None:
    h = Harness()
    h.commit({ORDERS: 1})
    h.commit_in_transaction({ORDERS: 42})
    h = h.restarted()
    assert h.fetch(None, require_stable=True) == {ORDERS: UNSTABLE}
    h.end(commit=commit)
    assert stored(h) == (42 if commit else 1)


def test_each_producer_ends_its_own() -> None:
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


def test_the_last_offset_of_a_transaction_counts() -> None:
    h = Harness()
    for offset in (5, 9, 6):
        h.commit_in_transaction({ORDERS: offset})
    h.end(commit=True)
    assert stored(h) == 6


def test_a_later_commit_is_not_replaced_by_a_transaction_that_ends_after_it() -> None:
    h = Harness()
    h.commit_in_transaction({ORDERS: 42, AUDIT: 42})
    h.commit({ORDERS: 50})
    for shard in (h, h.restarted()):
        assert shard.fetch({"orders": [0]}, require_stable=True)[ORDERS] == UNSTABLE
        shard.end(commit=True)
        assert shard.coordinator.committed("g") == {ORDERS: 50, AUDIT: 42}


def test_of_two_transactions_the_one_that_wrote_last_counts() -> None:
    for ends in ((7, 8), (8, 7)):
        h = Harness()
        h.commit_in_transaction({ORDERS: 1}, 7)
        h.commit_in_transaction({ORDERS: 2}, 8)
        for producer_id in ends:
            h.end(producer_id, commit=True)
        assert stored(h) == 2
        assert stored(h.restarted()) == 2


def test_an_aborted_transaction_overtakes_nobody() -> None:
    h = Harness()
    h.commit_in_transaction({ORDERS: 1}, 7)
    h.commit_in_transaction({ORDERS: 2}, 8)
    h.end(8, commit=False)
    h.end(7, commit=True)
    assert stored(h) == 1


# -- who may commit


@pytest.mark.parametrize("version", TRANSACTIONAL_VERSIONS)
def test_a_group_that_does_not_exist(version: int) -> None:
    h = Harness()
    if version >= 3:
        refused = h.commit_in_transaction({ORDERS: 1}, version=version, generation=0)
        assert refused == [ErrorCode.ILLEGAL_GENERATION]
        assert h.log == []
        # A member id does not matter without a generation: there is nobody who could be a member.
        assert h.commit_in_transaction({ORDERS: 1}, version=version, member_id="m") == [0]
    else:
        assert h.commit_in_transaction({ORDERS: 1}, version=version) == [0]
    assert (h.describe().group_state, h.describe().protocol_type) == ("Empty", "")
    assert h.commit_in_transaction({ORDERS: 2}, version=version) == [0]


@pytest.mark.parametrize("version", WITHOUT_MEMBER)
def test_old_clients_name_no_member_and_need_none(version: int) -> None:
    """In any state of the group."""
    h = Harness()
    leader, follower = h.stable(2)
    assert h.commit_in_transaction({ORDERS: 1}, version=version) == [0]
    h.join(leader)
    assert h.commit_in_transaction({ORDERS: 1}, version=version) == [0]
    h.join(follower)
    assert h.commit_in_transaction({ORDERS: 1}, version=version) == [0]


@pytest.mark.parametrize("version", WITH_MEMBER)
def test_members_are_fenced(version: int) -> None:
    h = Harness()
    leader, follower = h.stable(2)

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
    assert commit("", -1) == ErrorCode.NONE  # says nothing of a member
    assert commit("nobody", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit("nobody", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit("", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(follower, 2, "i") == ErrorCode.UNKNOWN_MEMBER_ID
    for generation in (-1, 0, 1, 3):
        assert commit(follower, generation) == ErrorCode.ILLEGAL_GENERATION
    h.join(leader)
    assert commit(follower, 2) == ErrorCode.NONE
    h.join(follower)
    assert commit(follower, 3) == ErrorCode.NONE  # also before the assignment is there
    assert commit(follower, 2) == ErrorCode.ILLEGAL_GENERATION
    assert len(h.coordinator.committed("g")) == 0


@pytest.mark.parametrize("version", WITH_MEMBER)
def test_a_static_member_that_was_replaced(version: int) -> None:
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


def test_an_empty_group_has_no_members_to_ask_for() -> None:
    h = Harness()
    (member,) = h.stable(1)
    h.leave((member, None))
    assert h.commit_in_transaction({ORDERS: 1}, member_id="who", generation=-1) == [0]
    code = h.commit_in_transaction({ORDERS: 1}, member_id=member, generation=2)
    assert code == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_commit_in_a_transaction_keeps_no_session() -> None:
    h = Harness()
    (member,) = h.stable(1)
    for _ in range(3):
        h.sleep(4_000)
        h.commit_in_transaction({ORDERS: 1}, member_id=member, generation=1)
    assert h.describe().group_state == "Empty"


@pytest.mark.parametrize("version", TRANSACTIONAL_VERSIONS)
def test_rows_that_cannot_be_stored(version: int) -> None:
    h = Harness(GroupSettings(offset_metadata_length_max=3))
    offsets = {ORDERS: 1, ("orders", 9): 2, ("none", 0): 3}
    assert h.commit_in_transaction(offsets, version=version) == [0, 3, 3]
    too_large = h.commit_in_transaction(offsets, version=version, metadata="long")
    assert too_large == [ErrorCode.OFFSET_METADATA_TOO_LARGE, 3, 3]
    assert h.commit_in_transaction({ORDERS: 4}, version=version, metadata=None) == [0]
    h.end(commit=True)
    assert h.fetch(None) == {ORDERS: (4, -1, "", 0)}
    if version >= 3:  # with nothing to store the group does not matter
        only = h.commit_in_transaction({("none", 0): 1}, version=version, generation=9)
        assert only == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_what_the_transaction_refuses() -> None:
    """It does not concern rows that could not be stored in any case, and comes before the group."""
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
def test_what_the_log_refuses_is_the_answer(failure: ErrorCode, code: ErrorCode) -> None:
    h = Harness()
    h.append_fails = failure
    assert h.commit_in_transaction({ORDERS: 1, ("none", 0): 2}) == [code, 3]
    assert h.fetch({"orders": [0]}, require_stable=True)[ORDERS] == NOTHING


def test_what_is_stored() -> None:
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
def test_stable_offsets_are_waited_for(version: int) -> None:
    h = Harness()
    h.commit({ORDERS: 1, ("orders", 1): 1})
    h.commit_in_transaction({ORDERS: 2, AUDIT: 2})
    before = h.fetch({"orders": [0, 1], "audit": [0]}, version=version, require_stable=True)
    assert before == {ORDERS: UNSTABLE, ("orders", 1): (1, -1, "m", 0), AUDIT: UNSTABLE}
    # Of those that were never committed nothing is said where all are asked for.
    everything = h.fetch(None, version=version, require_stable=True)
    assert everything == {ORDERS: UNSTABLE, ("orders", 1): (1, -1, "m", 0)}
    assert h.fetch({"orders": [0]}, version=version)[ORDERS] == (1, -1, "m", 0)
    h.end(commit=True)
    after = h.fetch({"orders": [0], "audit": [0]}, version=version, require_stable=True)
    assert after == {ORDERS: (2, -1, "m", 0), AUDIT: (2, -1, "m", 0)}


def test_other_groups_are_stable() -> None:
    h = Harness()
    h.commit_in_transaction({ORDERS: 2})
    assert h.fetch({"orders": [0]}, group="h", require_stable=True) == {ORDERS: NOTHING}


def test_how_the_group_stands() -> None:
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


# -- what takes offsets away


def test_a_deleted_group_takes_its_pending_offsets_along() -> None:
    h = Harness()
    h.commit({ORDERS: 1})
    h.commit_in_transaction({ORDERS: 2, AUDIT: 2})
    assert h.delete_groups("g") == {"g": 0}
    for shard in (h, h.restarted()):
        shard.end(commit=True)
        assert shard.coordinator.committed("g") == {}
        assert shard.describe().group_state == "Dead"


def test_a_deleted_offset_does_not_come_back() -> None:
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


def test_offsets_of_a_deleted_topic_do_not_come_back() -> None:
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
def test_nothing_expires_that_waits_for_a_transaction(commit: bool) -> None:
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


def test_a_group_of_pending_offsets_only_does_not_expire() -> None:
    h = Harness()
    h.commit_in_transaction({ORDERS: 2})
    h.sleep(8 * DAY_MS)
    expire(h)
    assert h.describe().group_state == "Empty"
    h.end(commit=False)
    expire(h)
    assert h.describe().group_state == "Dead"


# -- against a model


class Written(NamedTuple):
    """An offset in the model, and where in the log it was written."""

    position: int
    offset: int


class Model:
    """What offsets must be, by positions in the log."""

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


@pytest.mark.parametrize("seed", range(100))
def test_random_commits_in_any_order(seed: int) -> None:
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
