"""Offset commits and fetches of consumer groups, fenced by member epochs."""

from __future__ import annotations

from kbroker.protocol.errors import ErrorCode

from .groups import ALL, assignment_in, harness, members


def test_commits_are_fenced_by_member_epoch() -> None:
    h = harness()
    h.beat("a", 0)
    commit = {("orders", 0): 5}
    assert h.commit(commit, "a", 2) == [0]
    assert h.commit(commit, "a", 3) == [ErrorCode.STALE_MEMBER_EPOCH]
    assert h.commit(commit, "a", 1) == [ErrorCode.STALE_MEMBER_EPOCH]
    assert h.commit(commit, "x", 2) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert h.commit(commit) == [ErrorCode.UNKNOWN_MEMBER_ID], "the group is in use"
    assert h.commit(commit, "a", 2, version=8) == [ErrorCode.UNSUPPORTED_VERSION]
    assert h.commit(commit, "a", 2, version=10) == [0]


def test_commit_of_older_epoch_is_accepted_for_partitions_held_since() -> None:
    h = harness()
    h.beat("a", 0)
    h.beat("b", 0)
    h.beat("a", 2)
    h.beat("a", 2, owned={"orders": [0, 1]})
    h.beat("b", -1)
    assert assignment_in(h, h.beat("a", 3)) == ALL
    offsets = {("orders", index): 1 for index in range(4)}
    stale = ErrorCode.STALE_MEMBER_EPOCH
    assert h.commit(offsets, "a", 1) == [stale] * 4
    assert h.commit(offsets, "a", 3) == [stale] * 4  # one stale partition rejects all, as in Kafka
    assert h.commit({("orders", index): 1 for index in (0, 1)}, "a", 3) == [0, 0]
    assert h.commit(offsets, "a", 4) == [0, 0, 0, 0]
    restarted = h.restarted()
    assert restarted.commit(offsets, "a", 3) == [stale] * 4


def test_fetches_with_member_id_are_fenced_by_epoch() -> None:
    h = harness()
    h.beat("a", 0)
    h.commit({("orders", 0): 5}, "a", 2)
    assert h.fetch_error() == 0
    assert h.fetch_error("a", 2) == 0
    assert h.fetch_error("a", 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert h.fetch_error("x", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert h.fetch_error("x", 2, group="other") == 0


def test_transactional_commits_are_fenced_by_epoch() -> None:
    h = harness()
    h.beat("a", 0)
    commit = {("orders", 0): 5}
    for version, stale in ((5, ErrorCode.ILLEGAL_GENERATION), (6, ErrorCode.STALE_MEMBER_EPOCH)):

        def send(generation: int, member_id: str = "a", version: int = version) -> int:
            (code,) = h.commit_in_transaction(
                commit, member_id=member_id, generation=generation, version=version
            )
            return code

        assert send(2) == 0
        assert [send(epoch) for epoch in (1, 3, -1)] == [stale] * 3
        assert send(2, "x") == ErrorCode.UNKNOWN_MEMBER_ID
        assert send(-1, "") == 0, "the transaction fences its producer"
        assert send(-2, "") == ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_subscribed_topics_cannot_be_deleted() -> None:
    h = harness()
    h.beat("a", 0, subscribed_topic_regex="or.*")
    h.commit({("orders", 0): 1}, "a", 2)
    response = h.delete_offsets({"orders": [0], "audit": [0]})
    codes = {topic.name: [row.error_code for row in topic.partitions] for topic in response.topics}
    assert codes == {"orders": [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC], "audit": [0]}


def test_one_stale_offset_rejects_whole_commit() -> None:
    h = harness()
    h.create_topic("audit", 2)
    h.beat("a", 0, topics=["orders"])
    h.beat("a", 2, topics=["orders", "audit"], owned=ALL)
    assert members(h)["a"][0] == 3
    stale = ErrorCode.STALE_MEMBER_EPOCH
    assert h.commit({("orders", 0): 1, ("audit", 0): 1}, "a", 2) == [stale, stale]
    assert h.coordinator.committed("g") == {}
    assert h.commit({("orders", 0): 1}, "a", 2) == [0]
