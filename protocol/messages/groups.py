"""Coordinators, and the classic group protocol."""

from ..schema import Int8, Int16, Int32, message, struct, wire


@message(key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest:
    """Ask which broker coordinates a group, transactional id or share partition.

    Up to version 3 one `key`; from 4 on several in `coordinator_keys` (KIP-699).
    """

    key: str = wire(until=3)
    key_type: Int8 = wire(since=1)
    """0: group, 1: transactional id, 2: share partition "group:topicId:partition" (KIP-932)."""
    coordinator_keys: list[str] = wire(since=4)


@message(key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    """The coordinators: up to version 3 in the top-level fields, from 4 on in `coordinators`."""

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
    """Enter a classic group, or join its next generation."""

    @struct
    class Protocol:
        """An assignor that the member supports, with its subscription."""

        name: str = ""
        metadata: bytes = b""

    group_id: str = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Int32 = wire(since=1, default=-1)
    """-1 in version 0, which uses the session timeout for both."""
    member_id: str = ""
    group_instance_id: str | None = wire(since=5)
    """Static membership (KIP-345)."""
    protocol_type: str = ""
    protocols: list[Protocol] = wire()
    reason: str | None = wire(since=8)
    """For the log (KIP-800)."""


@message(key=11, versions="0-9", flexible="6+")
class JoinGroupResponse:
    """The generation that a member has joined; the leader gets the list of members."""

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
    """Null can travel from version 7 on; before it is the empty string."""
    leader: str = ""
    skip_assignment: bool = wire(since=9)
    """The leader need not assign: nothing changed (KIP-814)."""
    member_id: str = ""
    members: list[Member] = wire()


@message(key=12, versions="0-4", flexible="4+")
class HeartbeatRequest:
    """A member of a classic group says that it is alive."""

    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: str | None = wire(since=3)
    """Static membership (KIP-345)."""


@message(key=12, versions="0-4", flexible="4+")
class HeartbeatResponse:
    """Tells a member whether it is still in its generation or must rejoin."""

    throttle_time_ms: Int32 = wire(since=1)
    error_code: Int16 = 0


@message(key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest:
    """Take members out of a classic group.

    Up to version 2 the sender itself in `member_id`; from 3 on any number in `members` (KIP-345).
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
    """Fetch a member's assignment; the leader brings those of all members."""

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
    """Ask for the state and the members of classic groups."""

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
    """Ask which groups the broker coordinates."""

    states_filter: list[str] = wire(since=4)
    """KIP-518."""
    types_filter: list[str] = wire(since=5)
    """KIP-848."""


@message(key=16, versions="0-5", flexible="3+")
class ListGroupsResponse:
    """The groups that the answering broker coordinates."""

    @struct
    class Group:
        group_id: str = ""
        protocol_type: str = ""
        group_state: str = wire(since=4)
        group_type: str = wire(since=5)

    throttle_time_ms: Int32 = wire(since=1)
    error_code: Int16 = 0
    groups: list[Group] = wire()


@message(key=42, versions="0-2", flexible="2+")
class DeleteGroupsRequest:
    """Delete groups that have no members."""

    groups_names: list[str] = wire()


@message(key=42, versions="0-2", flexible="2+")
class DeleteGroupsResponse:
    """Outcome per group."""

    @struct
    class Group:
        group_id: str = ""
        error_code: Int16 = 0

    throttle_time_ms: Int32 = 0
    results: list[Group] = wire()
