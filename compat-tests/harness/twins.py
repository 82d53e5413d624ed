"""Two brokers that get the same requests in the same order, each with its own generated names.

A generated name or ID (of members and topics) has a common name in the history. It is replaced by
the name of the broker in requests, and by the common name in responses. If one broker holds back a
response, as for JoinGroup, the other one must do so as well until both send it.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.group_metadata import read_assignment, write_assignment
from kbroker.protocol.schema import Struct, fields

from .admin_calls import request
from .brokers import Broker
from .compare import Comparison, Difference
from .raw import NoAnswer, RawConnection

SETTLE_SECONDS = 10.0
RESTART_SECONDS = 60.0
# Errors of a coordinator that has not loaded its groups yet.
NOT_YET = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
# Fields that identify a row of a list.
IDENTIFYING_FIELDS = (
    "group_id",
    "name",
    "topic_id",
    "member_id",
    "group_instance_id",
    "partition_index",
)
UUID_LENGTH = 36
GENERATED_ID = re.compile(r".+-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
UNKNOWN_SERVER_ERROR = -1
# Number of earlier calls in the report of a difference.
REPORTED_CALLS = 120


class Differs(AssertionError):
    """The brokers differ. Later responses cannot be compared any more."""


class KafkaFailed(Exception):
    """Only Kafka failed, so its state may differ from now on."""


@dataclass
class Twin:
    """One of the two brokers.

    Attributes:
        names: Its names by the common names of the history.
        ids: Its topic IDs by common IDs.
        producers: Its producer IDs by common IDs.
        seen: Number of member IDs that it generated, by client or instance ID.
        connections: Connections by name.
    """

    address: str
    names: dict[str, str] = field(default_factory=dict)
    ids: dict[UUID, UUID] = field(default_factory=dict)
    producers: dict[int, int] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    connections: dict[str, RawConnection] = field(default_factory=dict)

    def connection(self, name: str) -> RawConnection:
        """Return the connection of one client."""
        if name not in self.connections:
            self.connections[name] = RawConnection(self.address)
        return self.connections[name]

    def ask(self, key: ApiKey, version: int, message: Any, connection: str = "admin") -> Any:
        """Return the response with the broker's own names, or None if it closed the connection."""
        try:
            return self.connection(connection).ask(key, version, message)
        except (NoAnswer, OSError):
            self.connections.pop(connection).close()
            return None

    def own(self, message: Any) -> Any:
        """Replace the common names in a request by those of this broker."""
        return _renamed(message, {**self.names, **self.ids}, self.producers, keeps_order=True)

    def common(self, answer: Any) -> Any:
        """Replace this broker's names in a response, and sort rows independently of hashes."""
        for name in _generated_ids(answer):
            if name not in self.names.values():
                self.seen[name[:-UUID_LENGTH]] += 1
                self.names[f"{name[:-UUID_LENGTH]}{self.seen[name[:-UUID_LENGTH]]}"] = name
        names = {value: key for key, value in {**self.names, **self.ids}.items()}
        producers = {value: key for key, value in self.producers.items()}
        return _renamed(answer, names, producers, keeps_order=False)

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()


@dataclass
class PendingRequest:
    """A request whose response both brokers hold back."""

    connection: str
    key: ApiKey
    version: int
    description: str
    learn: Callable[[Any], None]


class Twins:
    """Both brokers and the comparison of their responses.

    Attributes:
        group_prefix: Prefix of the groups to compare in listings, without those of other histories.
        has_other_leader: True if the leader in the last JoinGroup response differs between brokers.
        pending: Held back requests by connection name.
        versions: Versions that both brokers support.
    """

    def __init__(self, ours: str, theirs: str, comparison: Comparison) -> None:
        self.ours, self.theirs = Twin(ours), Twin(theirs)
        self.comparison = comparison
        self.group_prefix = ""
        self.has_other_leader = False
        self.pending: dict[str, PendingRequest] = {}
        self.calls = 0
        self._report: deque[str] = deque(maxlen=REPORTED_CALLS)
        self._paired = 0
        hello = request(
            ApiKey.API_VERSIONS, client_software_name="twins", client_software_version="1"
        )
        served = [self._served(twin, hello) for twin in (self.ours, self.theirs)]
        self.versions: Mapping[ApiKey, list[int]] = {
            key: sorted(served[0][key] & served[1][key]) for key in served[0].keys() & served[1]
        }

    def _served(self, twin: Twin, hello: Any) -> dict[ApiKey, set[int]]:
        answer = twin.ask(ApiKey.API_VERSIONS, 3, hello)
        known = {int(key) for key in ApiKey}
        return {
            ApiKey(row.api_key): set(range(row.min_version, row.max_version + 1))
            for row in answer.api_keys
            if row.api_key in known
        }

    # -- calls

    def ask(self, key: ApiKey, version: int, message: Any, *, again: bool = False) -> Any:
        """Send a request to both brokers and return the response.

        A read-only request (`again`) is repeated while the responses differ, up to SETTLE_SECONDS.
        """
        description = self._describe(key, version, message)
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            answers = [
                twin.ask(key, version, twin.own(message)) for twin in (self.ours, self.theirs)
            ]
            found, answer = self._compared(description, key, version, *answers)
            if not found or not again or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        self._must_not_differ(found)
        self.receive_pending()
        return answer

    def ask_slow(self, key: ApiKey, version: int, message: Any, then: Callable[[Any], Any]) -> Any:
        """Send a request that one of the brokers executes asynchronously.

        Errors are compared at once.

        Args:
            key: API of the request.
            version: Version of the request.
            message: The request.
            then: Builds the next request from a response, until the responses are equal.

        Returns:
            The final response.
        """
        description = self._describe(key, version, message)
        sides = (self.ours, self.theirs)
        answers = [twin.ask(key, version, twin.own(message)) for twin in sides]
        deadline = time.monotonic() + SETTLE_SECONDS
        pause = 0.04
        while not any(each is None or each.error_code for each in answers):
            time.sleep(pause)
            messages = [
                twin.own(then(twin.common(each))) for twin, each in zip(sides, answers, strict=True)
            ]
            answers = [
                twin.ask(key, version, each) for twin, each in zip(sides, messages, strict=True)
            ]
            pause = 0.01
            if (
                not self._compared(description, key, version, *answers)[0]
                or time.monotonic() > deadline
            ):
                break
        found, answer = self._compared(description, key, version, *answers)
        self._must_not_differ(found)
        self.receive_pending()
        return answer

    def send_pending(
        self,
        connection: str,
        client_id: str,
        key: ApiKey,
        version: int,
        message: Any,
        learn: Callable[[Any], None],
        describe_group: Callable[[], Any],
    ) -> None:
        """Send a request that may be held back, and wait for both responses or until both hold it.

        Args:
            connection: Name of the connection.
            client_id: Client ID of the request.
            key: API of the request.
            version: Version of the request.
            message: The request.
            learn: Receives the response, now or later.
            describe_group: Describes the group if there is no response yet.

        Raises:
            Differs: The brokers differ.
        """
        pending = PendingRequest(
            connection, key, version, self._describe(key, version, message), learn
        )
        self.pending[connection] = pending
        for twin in (self.ours, self.theirs):
            twin.connection(connection).client_id = client_id
            twin.connection(connection).send(key, version, twin.own(message))
        if not self._receive(pending, 0.01):
            describe_group()
            self._receive(pending, 0.005)

    def receive_pending(self) -> None:
        """Process responses that were held back and have arrived."""
        for pending in list(self.pending.values()):
            self._receive(pending, 0.001)

    def drop_pending(self) -> None:
        """Close the connections of all requests that are still held back."""
        for name in self.pending:
            for twin in (self.ours, self.theirs):
                twin.connections.pop(name).close()
        self.pending.clear()

    def _receive(self, pending: PendingRequest, seconds: float) -> bool:
        if self.pending.get(pending.connection) is not pending:
            return True
        connections = [twin.connection(pending.connection) for twin in (self.ours, self.theirs)]
        if not any(connection.is_answered(seconds) for connection in connections):
            return False
        if not all(connection.is_answered(SETTLE_SECONDS) for connection in connections):
            who = [connection.is_answered(0) for connection in connections]
            if who == [False, True] and self._is_spurious_error(pending, connections[1]):
                raise KafkaFailed(pending.description)
            self._fail(f"only one broker responded (kbroker, Kafka: {who}): {pending.description}")
        answers = [connection.answer(pending.key, pending.version) for connection in connections]
        del self.pending[pending.connection]
        found, answer = self._compared(pending.description, pending.key, pending.version, *answers)
        self._must_not_differ(found)
        pending.learn(answer)
        return True

    def _is_spurious_error(self, pending: PendingRequest, connection: RawConnection) -> bool:
        """Return True if Kafka responded to a pending JoinGroup with a spurious error."""
        if pending.key is not ApiKey.JOIN_GROUP:
            return False
        code = connection.answer(pending.key, pending.version).error_code
        return _is_full_for_static_member(pending.description, code) or self._is_needless_rejoin(
            code
        )

    def _is_needless_rejoin(self, code: int) -> bool:
        """Return True if Kafka made the members of a classic group rejoin without need.

        The cause is a rejected heartbeat of the consumer protocol that would have upgraded the
        group.
        """
        last = self._report[-1]
        is_refused = "ConsumerGroupHeartbeat" in last and "error_code=0" not in last
        return is_refused and code == ErrorCode.REBALANCE_IN_PROGRESS

    # -- comparing

    def _compared(
        self, description: str, key: ApiKey, version: int, mine: Any, other: Any
    ) -> tuple[list[Difference], Any]:
        name = f"call {self.calls}"
        if mine is None or other is None:
            return self.comparison.compare_presence(name, key, version, mine, other), None
        self._pair(mine, other)
        if key is ApiKey.LIST_GROUPS:
            for answer in (mine, other):
                answer.groups = [
                    row for row in answer.groups if row.group_id.startswith(self.group_prefix)
                ]
        mine, other = self.ours.common(mine), self.theirs.common(other)
        if key is ApiKey.JOIN_GROUP:
            self.has_other_leader = mine.leader != other.leader
            name += " with another leader" if self.has_other_leader else ""
        codes = [getattr(each, "error_code", 0) for each in (mine, other)]
        if codes[1] == UNKNOWN_SERVER_ERROR != codes[0] and key is not ApiKey.JOIN_GROUP:
            raise KafkaFailed(description)
        if (
            key is ApiKey.JOIN_GROUP
            and codes[0] != codes[1]
            and _is_full_for_static_member(description, codes[1])
        ):
            raise KafkaFailed(description)
        found = self.comparison.compare(name, key, version, mine, other)
        self._report[-1] = (
            f"{description}\n    -> {other}"
            if description == self._report[-1]
            else self._report[-1]
        )
        return found, other

    def _pair(self, mine: Any, other: Any) -> None:
        """Assign common names to member IDs that each broker generated."""
        self._pair_ids(getattr(mine, "member_id", None), getattr(other, "member_id", None))
        for ours, theirs in zip(_static_ids(mine), _static_ids(other), strict=False):
            if ours[:2] == theirs[:2]:
                self._pair_ids(ours[2], theirs[2])

    def _pair_ids(self, one: str | None, two: str | None) -> None:
        if (
            not one
            or not two
            or one == two
            or (GENERATED_ID.fullmatch(one) and GENERATED_ID.fullmatch(two))
        ):
            return
        if one in self.ours.names.values() or two in self.theirs.names.values():
            return
        self._paired += 1
        self.ours.names[f"made-{self._paired}"] = one
        self.theirs.names[f"made-{self._paired}"] = two

    def add_event(self, what: str) -> None:
        """Add another event to the report."""
        self._report.append(f"({what})")

    def _describe(self, key: ApiKey, version: int, message: Any) -> str:
        self.calls += 1
        description = f"{self.calls}: {key.api_name} v{version} {_as_text(message)}"
        self._report.append(description)
        return description

    def _must_not_differ(self, found: list[Difference]) -> None:
        if found:
            self._fail("\n".join(map(str, found)))

    def _fail(self, what: str) -> None:
        raise Differs("\n".join([*self._report, what]))

    def restart(self, brokers: Sequence[Broker]) -> None:
        """Kill both brokers without warning, start them again, and wait for the group coordinator.

        Requests that are held back get no response.
        """
        self.add_event("both brokers are killed and started again")
        self.close()
        for twin in (self.ours, self.theirs):
            twin.connections.clear()
        self.pending.clear()
        for broker in brokers:
            broker.kill()
            broker.launch()
        for broker in brokers:
            broker.wait_until_ready()
        key = ApiKey.DESCRIBE_GROUPS
        for twin in (self.ours, self.theirs):
            deadline = time.monotonic() + RESTART_SECONDS
            while True:
                answer = twin.ask(key, 5, request(key, groups=["unheard-of"]))
                if answer is not None and answer.groups[0].error_code not in NOT_YET:
                    break
                if time.monotonic() > deadline:
                    raise Differs(f"{twin.address} has no group coordinator after a restart")
                time.sleep(0.05)

    def begin_history(self) -> None:
        """Begin another history. Only groups and topics of the previous one remain."""
        self.close()
        for twin in (self.ours, self.theirs):
            twin.connections.clear()
        self.pending.clear()
        self._report.clear()

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


def _is_full_for_static_member(description: str, code: int) -> bool:
    """Return True if Kafka rejected an existing static member because the group is full.

    During a rebalance, Kafka counts a static member that rejoins without its ID as a new member.
    """
    return "group_instance_id=" in description and code == ErrorCode.GROUP_MAX_SIZE_REACHED


def _renamed(
    value: Any, names: Mapping[Any, Any], producers: Mapping[int, int], *, keeps_order: bool
) -> Any:
    if isinstance(value, Struct):
        parts = {
            each.name: _renamed(
                getattr(value, each.name), names, producers, keeps_order=keeps_order
            )
            for each in fields(type(value))
        }
        if "producer_id" in parts:
            parts["producer_id"] = producers.get(parts["producer_id"], parts["producer_id"])
        for name in {"assignment", "member_assignment"} & parts.keys():
            if isinstance(parts[name], bytes) and not keeps_order:
                parts[name] = _in_order(parts[name])
        return type(value)(**parts)
    if isinstance(value, list):
        rows = [_renamed(each, names, producers, keeps_order=keeps_order) for each in value]
        return rows if keeps_order else sorted(rows, key=_sort_key)
    if isinstance(value, memoryview):
        return bytes(value)
    return names.get(value, value) if isinstance(value, (str, UUID)) else value


def _in_order(assignment: bytes) -> bytes:
    """Sort the assignment of a classic member by topic and partition."""
    read = read_assignment(assignment)
    if read is None:
        return assignment
    rows = sorted(
        (row.topic, index) for row in read.assigned_partitions for index in row.partitions
    )
    return write_assignment(rows, assignment) + bytes(read.user_data or b"")


def _static_ids(answer: Any) -> list[tuple[str, str, str]]:
    """Return group, instance ID and member ID of the static members in a response."""
    return sorted(
        (group.group_id, member.group_instance_id, member.member_id)
        for group in getattr(answer, "groups", ())
        for member in getattr(group, "members", ())
        if getattr(member, "group_instance_id", None)
    )


def _generated_ids(value: Any) -> Iterator[str]:
    """Yield the generated IDs in a response, which consist of a client ID and a UUID."""
    if isinstance(value, Struct):
        for each in fields(type(value)):
            yield from _generated_ids(getattr(value, each.name))
    elif isinstance(value, list):
        for row in value:
            yield from _generated_ids(row)
    elif isinstance(value, str) and GENERATED_ID.fullmatch(value):
        yield value


def _sort_key(row: Any) -> tuple[str, ...]:
    """Return the sort key of a row: the fields that identify it."""
    if isinstance(row, int):
        return (f"{row:09}",)
    if not isinstance(row, Struct):
        return (_as_text(row),)
    return tuple(_sort_key(getattr(row, name, ""))[0] for name in IDENTIFYING_FIELDS)


def _as_text(message: Any) -> str:
    """Return a message as text, without null fields."""
    if isinstance(message, Struct):
        parts = [
            f"{each.name}={_as_text(value)}"
            for each in fields(type(message))
            if (value := getattr(message, each.name)) is not None
        ]
        return f"({' '.join(parts)})"
    if isinstance(message, list):
        return f"[{', '.join(map(_as_text, message))}]"
    if isinstance(message, UUID):
        return f"#{message.int}" if message.int < 1_000_000 else str(message)
    return repr(message)
