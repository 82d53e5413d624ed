from __future__ import annotations

import copy
import pickle
from typing import Annotated, Any

import pytest

from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.groups import HeartbeatRequest, JoinGroupResponse
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.share_groups import ShareFetchResponse
from kbroker.protocol.schema import (
    ZERO_UUID,
    Int16,
    Int32,
    Message,
    Records,
    Uuid,
    fields,
    message,
    struct,
    wire,
)


@message(versions="0-3", flexible="2+")
class Example:
    """A message with one field of each type."""

    @struct
    class Part:
        name: str = ""
        codes: list[Int16] = wire()

    count: Int32 = 7
    size: Int16
    label: str | None
    note: str = "none"
    topic_id: Uuid
    data: bytes
    records: Records
    part: Part = wire()
    maybe: Part | None = wire(since=1, tag=3)
    parts: list[Part]
    names: list[str] | None


def test_every_field_has_a_default() -> None:
    made: Any = Example()  # type: ignore[call-arg]
    assert (made.count, made.size, made.label, made.note) == (7, 0, None, "none")
    assert (made.topic_id, made.data, made.records) == (ZERO_UUID, b"", None)
    assert (made.part, made.maybe, made.parts, made.names) == (Example.Part(), None, [], None)


def test_mutable_defaults_are_not_shared() -> None:
    one, two = FetchRequest(), FetchRequest()
    one.topics.append(FetchRequest.Topic())
    assert two.topics == []
    first, second = ShareFetchResponse.Partition(), ShareFetchResponse.Partition()
    first.current_leader.leader_id = 9
    assert second.current_leader.leader_id == 0


def test_objects_compare_by_value() -> None:
    one = HeartbeatRequest(group_id="g", generation_id=2)
    assert one == HeartbeatRequest(group_id="g", generation_id=2)
    assert one != HeartbeatRequest(group_id="g", generation_id=3)
    other: Any = FetchRequest.Partition()
    assert one != other
    assert one != "g"  # type: ignore[comparison-overlap]
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_repr_names_class_and_fields() -> None:
    shown = repr(FetchRequest.ReplicaState(replica_id=1))
    assert shown == "FetchRequest.ReplicaState(replica_id=1, replica_epoch=-1)"


def test_unknown_attributes_are_rejected() -> None:
    made = HeartbeatRequest()
    with pytest.raises(AttributeError):
        made.generation = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        HeartbeatRequest(generation=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        HeartbeatRequest("group")  # type: ignore[call-arg]
    assert not hasattr(made, "__dict__")


def test_objects_can_be_copied_and_pickled() -> None:
    made = FetchRequest(topics=[FetchRequest.Topic(topic="t")])
    copied = copy.deepcopy(made)
    assert copied == made
    assert copied.topics[0] is not made.topics[0]
    assert pickle.loads(pickle.dumps(made)) == made


def test_declaration_sets_class_constants() -> None:
    heartbeat: Any = HeartbeatRequest
    assert issubclass(heartbeat, Message)
    assert (12, range(5), 4) == (heartbeat.KEY, heartbeat.VERSIONS, heartbeat.FLEXIBLE)
    assert [heartbeat.is_flexible(version) for version in (3, 4)] == [False, True]
    assert heartbeat.__doc__ == "Heartbeat of a member of a classic group."
    example: Any = Example
    assert (None, range(4), 2) == (example.KEY, example.VERSIONS, example.FLEXIBLE)


def test_fields_are_resolved_in_wire_order() -> None:
    described: Any = FetchResponse.Partition
    by_name: dict[str, Any] = {field.name: field for field in fields(described)}
    assert list(by_name)[:3] == ["partition_index", "error_code", "high_watermark"]
    assert by_name["error_code"].kind == "h"
    assert by_name["aborted_transactions"].kind is FetchResponse.AbortedTransaction
    assert by_name["aborted_transactions"].array
    assert by_name["log_start_offset"].present(5)
    assert not by_name["log_start_offset"].present(4)
    assert by_name["snapshot_id"].tag == 2


def test_nullability_depends_on_the_version() -> None:
    response: Any = JoinGroupResponse
    name = {field.name: field for field in fields(response)}["protocol_name"]
    assert [name.nullable(version) for version in (6, 7)] == [False, True]
    request: Any = MetadataRequest
    topics = {field.name: field for field in fields(request)}["topics"]
    assert [topics.nullable(version) for version in (0, 1)] == [False, True]


def test_mutable_default_is_rejected() -> None:
    with pytest.raises(TypeError, match="codes"):

        @struct
        class Wrong:
            codes: list[Int16] = []  # noqa: RUF012


@pytest.mark.parametrize("hint", [int, dict, int | str, Annotated[int, "i"] | str | None])
def test_type_without_a_wire_format_is_rejected(hint: Any) -> None:
    wrong: Any = struct(type("Wrong", (), {"__annotations__": {"value": hint}}))
    with pytest.raises(TypeError, match="value"):
        wrong()
