"""Coordinator discovery and the classic group protocol."""

from ..schema import Int8, Int16, Int32, message, struct, wire


@message(key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest:
    """Request for the coordinator of a group, transactional ID or share partition.

    Up to version 3 with one `key`; from version 4 with several `coordinator_keys` (KIP-699).
    """

    key: str = wire(until=3)
    key_type: Int8 = wire(since=1)
    """0: group, 1: transactional ID, 2: share partition "group:topicId:partition" (KIP-932)."""
    coordinator_keys: list[str] = wire(since=4)


@message(key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    """The coordinators: up to version 3 in top-level fields, from version 4 in `coordinators`."""

    @struct
    class Coordinator:
        key: str = ""
        node_id: Int32 = 0
        host: str = ""
        port: Int32 = 0
        error_code: Int16 = 0
        error_message: str | None = None

    throttle_time_ms: Int32 = wire(since=1)
    error_code: Int16 = wire(until=3)
    error_message: str | None = wire(since=1, until=3)
    node_id: Int32 = wire(until=3)
    host: str = wire(until=3)
    port: Int32 = wire(until=3)
    coordinators: list[Coordinator] = wire(since=4)


@message(key=11, versions="0-9", flexible="6+")
class JoinGroupRequest:
    """Request to join the next generation of a classic group."""

    @struct
    class Protocol:
        """An assignor that the member supports, with its subscription."""

        name: str = ""
        metadata: bytes = b""

    group_id: str = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Int32 = wire(since=1, default=-1)
    """-1 in version 0, which uses the session timeout instead."""
    member_id: str = ""
    group_instance_id: str | None = wire(since=5)
    """Static membership (KIP-345)."""
    protocol_type: str = ""
    protocols: list[Protocol] = wire()
    reason: str | None = wire(since=8)
    """Reason of the rejoin, for logs (KIP-800)."""


@message(key=11, versions="0-9", flexible="6+")
class JoinGroupResponse:
    """The generation that a member joined; the leader also gets the list of members."""

    @struct
    class Member:
        member_id: str = ""
        group_instance_id: str | None = wire(since=5)
        metadata: bytes = b""

    throttle_time_ms: Int32 = wire(since=2)
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: str | None = wire(since=7)
    """KIP-559."""
    protocol_name: str | None = wire(nullable_since=7)
    """Nullable from version 7 on; the empty string before."""
    leader: str = ""
    skip_assignment: bool = wire(since=9)
    """True if the leader need not compute an assignment, because nothing changed (KIP-814)."""
    member_id: str = ""
    members: list[Member] = wire()


@message(key=12, versions="0-4", flexible="4+")
class HeartbeatRequest:
    """Heartbeat of a member of a classic group."""

    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: str | None = wire(since=3)
    """Static membership (KIP-345)."""


@message(key=12, versions="0-4", flexible="4+")
class HeartbeatResponse:
    """Response that tells a member if it is still in its generation or must rejoin."""

    throttle_time_ms: Int32 = wire(since=1)
    error_code: Int16 = 0


@message(key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest:
    """Request to remove members from a classic group.

    Up to version 2 the sender, in `member_id`; from version 3 any `members` (KIP-345).
    """

    @struct
    class Member:
        member_id: str = ""
        group_instance_id: str | None = None
        reason: str | None = wire(since=5)

    group_id: str = ""
    member_id: str = wire(until=2)
    members: list[Member] = wire(since=3)


@message(key=13, versions="0-5", flexible="4+")
class LeaveGroupResponse:
    """Outcome of a `LeaveGroupRequest`, from version 3 on per member."""

    @struct
    class Member:
        member_id: str = ""
        group_instance_id: str | None = None
        error_code: Int16 = 0

    throttle_time_ms: Int32 = wire(since=1)
    error_code: Int16 = 0
    members: list[Member] = wire(since=3)


@message(key=14, versions="0-5", flexible="4+")
class SyncGroupRequest:
    """Request for a member's assignment; the leader sends the assignments of all members."""

    @struct
    class Assignment:
        member_id: str = ""
        assignment: bytes = b""

    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: str | None = wire(since=3)
    """Static membership (KIP-345)."""
    protocol_type: str | None = wire(since=5)
    """KIP-559."""
    protocol_name: str | None = wire(since=5)
    assignments: list[Assignment] = wire()


@message(key=14, versions="0-5", flexible="4+")
class SyncGroupResponse:
    """The assignment of one member."""

    throttle_time_ms: Int32 = wire(since=1)
    error_code: Int16 = 0
    protocol_type: str | None = wire(since=5)
    protocol_name: str | None = wire(since=5)
    assignment: bytes = b""


@message(key=15, versions="0-6", flexible="5+")
class DescribeGroupsRequest:
    """Request for the state and the members of classic groups."""

    groups: list[str] = wire()
    include_authorized_operations: bool = wire(since=3)


@message(key=15, versions="0-6", flexible="5+")
class DescribeGroupsResponse:
    """State and members of classic groups."""

    @struct
    class Member:
        member_id: str = ""
        group_instance_id: str | None = wire(since=4)
        client_id: str = ""
        client_host: str = ""
        member_metadata: bytes = b""
        member_assignment: bytes = b""

    @struct
    class Group:
        error_code: Int16 = 0
        error_message: str | None = wire(since=6)
        group_id: str = ""
        group_state: str = ""
        protocol_type: str = ""
        protocol_data: str = ""
        members: list["DescribeGroupsResponse.Member"] = wire()
        authorized_operations: Int32 = wire(since=3, default=-(2**31))

    throttle_time_ms: Int32 = wire(since=1)
    groups: list[Group] = wire()


@message(key=16, versions="0-5", flexible="3+")
class ListGroupsRequest:
    """Request for the groups that the broker coordinates."""

    states_filter: list[str] = wire(since=4)
    """KIP-518."""
    types_filter: list[str] = wire(since=5)
    """KIP-848."""


@message(key=16, versions="0-5", flexible="3+")
class ListGroupsResponse:
    """The groups that the responding broker coordinates."""

    @struct
    class Group:
        group_id: str = ""
        protocol_type: str = ""
        group_state: str = wire(since=4)
        group_type: str = wire(since=5)

    throttle_time_ms: Int32 = wire(since=1)
    error_code: Int16 = 0
    groups: list[Group] = wire()


@message(key=42, versions="0-3", flexible="2+")
class DeleteGroupsRequest:
    """Request to delete groups without members."""

    groups_names: list[str] = wire()


@message(key=42, versions="0-3", flexible="2+")
class DeleteGroupsResponse:
    """Outcome per group."""

    @struct
    class Group:
        group_id: str = ""
        error_code: Int16 = 0
        error_message: str | None = wire(since=3)

    throttle_time_ms: Int32 = 0
    results: list[Group] = wire()
