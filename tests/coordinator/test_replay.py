"""Replay of records: a restarted coordinator continues where the log ends."""

from __future__ import annotations

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.group_metadata import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_group_metadata,
    encode_key,
    encode_value,
)
from kbroker.protocol.primitives import DecodeError

from .harness import LOG_START_MS, SESSION_MS, Harness
from .stored import StoredRecord, load


def test_members_continue_after_restart() -> None:
    h = Harness()
    leader, follower = h.make_stable(2)
    restarted = h.restarted()
    assert restarted.events[-1].cause == "loaded with 2 members"
    assert restarted.describe() == h.describe()
    assert restarted.heartbeat(leader, 2) == restarted.heartbeat(follower, 2) == ErrorCode.NONE
    assert restarted.commit({("orders", 0): 1}, follower, 2) == [0]
    assert restarted.sync(follower, 2).response.assignment == b"a1"
    assert restarted.join(follower).response.generation_id == 2
    assert restarted.describe().group_state == "Stable"


def test_members_that_do_not_return_after_restart_time_out() -> None:
    h = Harness()
    leader, follower = h.make_stable(2)
    restarted = h.restarted()
    restarted.sleep(SESSION_MS - 1)
    restarted.heartbeat(leader, 2)
    events = restarted.sleep(1)
    assert [event.cause for event in events] == [f"member {follower} missed heartbeats"]
    assert restarted.join(leader).response.generation_id == 3


def test_interrupted_rebalance_restarts_from_previous_generation() -> None:
    h = Harness()
    leader, follower = h.make_stable(2)
    h.join(leader)
    h.join(follower)
    assert h.generation == 3
    restarted = h.restarted()
    assert restarted.heartbeat(leader, 3) == ErrorCode.ILLEGAL_GENERATION
    assert restarted.join(leader).is_pending
    assert restarted.join(follower).response.generation_id == 3


def test_group_record_has_format_of_kafka() -> None:
    h = Harness()
    h.make_stable(1)
    (record,) = h.log
    assert record.key == encode_key(GroupMetadataKey(group="g"))
    assert record.value is not None
    assert record.value[:2] == b"\x00\x03"  # same version as Kafka 4.3
    value = decode_group_metadata(record.value)
    assert (value.protocol_type, value.protocol, value.generation) == ("consumer", "range", 1)
    assert value.current_state_timestamp == LOG_START_MS
    (member,) = value.members
    assert value.leader == member.member_id
    assert (member.client_id, member.client_host) == ("c", "/10.0.0.1")
    assert (member.session_timeout, member.rebalance_timeout) == (10_000, 30_000)
    assert member.assignment == b"a0"


def test_empty_group_record_has_no_members() -> None:
    h = Harness()
    (member,) = h.make_stable(1)
    h.sleep(1)
    h.leave((member, None))
    assert h.log[-1].value is not None
    assert decode_group_metadata(h.log[-1].value) == GroupMetadataValue(
        protocol_type="consumer",
        generation=2,
        protocol=None,
        leader=None,
        current_state_timestamp=LOG_START_MS + 1,
        members=[],
    )


@pytest.mark.parametrize("version", range(4))
def test_group_records_of_older_kafka_versions_are_read(version: int) -> None:
    member = GroupMetadataValue.Member(
        member_id="m",
        client_id="c",
        client_host="/h",
        session_timeout=10_000,
        subscription=b"",
        assignment=b"x",
    )
    value = GroupMetadataValue(
        protocol_type="consumer", generation=7, protocol="range", leader="m", members=[member]
    )
    key = encode_key(GroupMetadataKey(group="g"))
    h = Harness(log=[StoredRecord(key, encode_value(value, version))])
    assert h.heartbeat("m", 7) == ErrorCode.NONE
    assert h.sync("m", 7).response.assignment == b"x"
    rejoin = h.join("m", protocols=(("range", b""),))  # the leader rejoins
    assert rejoin.response.generation_id == 8


def test_member_metadata_is_read_from_last_record() -> None:
    h = Harness()
    protocols = (("sticky", b"s"),)
    (member,) = h.make_stable(1)
    h.leave((member, None))
    first = h.join(instance="i", protocols=(("range", b"1"),)).response.member_id
    h.sync(first, 3, {first: b"x"}, instance="i")
    h.join(first, instance="i", protocols=(("range", b"2"), ("sticky", b"s")))
    h.sync(first, 4, {first: b"y"}, instance="i")
    restarted = h.restarted()
    assert restarted.describe() == h.describe()
    assert restarted.describe().members[0].member_metadata == b"2"
    refused = restarted.join(first, instance="i", protocols=protocols).response
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # only range is stored


def test_running_member_keeps_all_supported_protocols() -> None:
    h = Harness()
    protocols = (("range", b"r"), ("sticky", b"s"))
    (member,) = h.make_stable(1, protocols=protocols)
    rejoin = h.join(member, protocols=(("sticky", b"s"),)).response
    assert (rejoin.error_code, rejoin.protocol_name) == (0, "sticky")


def test_dynamic_members_are_distinct_from_static_member_with_empty_instance_id() -> None:
    h = Harness()
    first = h.join(instance="").response.member_id
    newcomer = h.enter()
    h.join(first, instance="")
    second = newcomer.response.member_id
    h.sync(first, 2, {first: b"1", second: b"2"}, instance="")
    for shard in (h, h.restarted()):
        members = shard.describe().members
        assert [m.member_id for m in members] == [first, second]
        assert [m.member_assignment for m in members] == [b"1", b"2"]


def test_last_record_of_key_wins_and_tombstone_deletes() -> None:
    def offset(value: int | None) -> StoredRecord:
        key = encode_key(OffsetCommitKey(group="g", topic="orders", partition=0))
        if value is None:
            return StoredRecord(key, None)
        stored = OffsetCommitValue(offset=value, metadata="", commit_timestamp=0)
        return StoredRecord(key, encode_value(stored))

    group = StoredRecord(encode_key(GroupMetadataKey(group="g")), None)
    h = Harness(log=[offset(1), offset(2), offset(None), offset(None), offset(3)])
    assert h.fetch({"orders": [0]})[("orders", 0)][0] == 3
    h = Harness(log=[offset(1), offset(None), group, group])
    assert h.describe().group_state == "Dead"
    h = Harness(log=[offset(1), group, offset(2)])  # the offset's tombstone may be compacted away
    assert h.describe().group_state == "Empty"


def test_unknown_record_types_are_skipped() -> None:
    kind_of_a_later_release = b"\x00\x63\x00\x01g"
    h = Harness(log=[StoredRecord(kind_of_a_later_release, b"\x00\x00\x00")])
    assert list(h.coordinator.list_groups()) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"", b""), (b"\x00\x01\x00", b""), (encode_key(GroupMetadataKey(group="g")), b"\x00\x63")],
)
def test_invalid_record_raises_decode_error(key: bytes, value: bytes) -> None:
    h = Harness()
    with pytest.raises(DecodeError):
        load(h.coordinator, key, value)


def test_memoryview_records_may_be_replayed() -> None:
    h = Harness()
    _, follower = h.make_stable(2)
    restarted = Harness()
    for key, value in h.log:
        assert value is not None
        load(restarted.coordinator, memoryview(key), memoryview(value))
    assert restarted.sync(follower, 2).response.assignment == b"a1"
