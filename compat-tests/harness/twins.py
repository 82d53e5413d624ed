"""Two brokers that are asked the same things in step, each by its own names.

What a broker makes up (ids of members and topics) has a name in the history, which is replaced by each
broker's own in requests, and the other way in answers. Answers may be held back, as those of JoinGroup
are: then both brokers hold them back, and they come from both or from neither.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.group_metadata import read_assignment, write_assignment
from kbroker.protocol.schema import Struct, fields

from .admin_calls import request
from .compare import Comparison, Difference
from .raw import NoAnswer, RawConnection

SETTLE_SECONDS = 10.0
ABOUT = ("group_id", "name", "topic_id", "member_id", "group_instance_id", "partition_index")
"""What tells one row of a list from the others."""
UUID_LENGTH = 36
MADE_UP = re.compile(r".+-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
UNKNOWN_SERVER_ERROR = -1
TOLD = 120
"""Calls before a difference that its report tells."""


class Differs(AssertionError):
    """The brokers have parted: what comes after says nothing."""


class KafkaFailed(Exception):
    """Kafka alone tripped over itself: its state need not be what it was."""


@dataclass
class Twin:
    """One of the two brokers; `names` and `ids` are its own for what the history calls otherwise."""

    address: str
    names: dict[str, str] = field(default_factory=dict)
    ids: dict[UUID, UUID] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    """How many ids a client, or a static member, was given."""
    lines: dict[str, RawConnection] = field(default_factory=dict)

    def line(self, name: str) -> RawConnection:
        """The connection of one client."""
        if name not in self.lines:
            self.lines[name] = RawConnection(self.address)
        return self.lines[name]

    def ask(self, key: ApiKey, version: int, message: Any, line: str = "admin") -> Any:
        """The answer with this broker's own names; None when it closed the connection."""
        try:
            return self.line(line).ask(key, version, message)
        except (NoAnswer, OSError):
            self.lines.pop(line).close()
            return None

    def own(self, message: Any) -> Any:
        """A request in this broker's names."""
        return _renamed(message, self.names, self.ids, keeps_order=True)

    def common(self, answer: Any) -> Any:
        """An answer in the names of the history, its rows in an order that does not depend on hashes."""
        for name in _made_up(answer):
            if name not in self.names.values():
                self.seen[name[:-UUID_LENGTH]] += 1
                self.names[f"{name[:-UUID_LENGTH]}{self.seen[name[:-UUID_LENGTH]]}"] = name
        names = {value: key for key, value in self.names.items()}
        ids = {value: key for key, value in self.ids.items()}
        return _renamed(answer, names, ids, keeps_order=False)

    def close(self) -> None:
        for line in self.lines.values():
            line.close()


@dataclass
class Parked:
    """A request whose answer both brokers hold back."""

    line: str
    key: ApiKey
    version: int
    told: str
    learn: Callable[[Any], None]


class Twins:
    """Both brokers, and how their answers compare."""

    def __init__(self, ours: str, theirs: str, comparison: Comparison) -> None:
        self.ours, self.theirs = Twin(ours), Twin(theirs)
        self.comparison = comparison
        self.scope = ""
        """How the groups that are listed begin: those of other histories have ended."""
        self.has_other_leader = False
        """In the last answer, the leader of a classic group is another one than Kafka's."""
        self.parked: dict[str, Parked] = {}
        self.calls = 0
        self._told: deque[str] = deque(maxlen=TOLD)
        self._made = 0
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
        """Ask both; the answer. What only reads may be asked again until nothing is on its way."""
        told = self._tell(key, version, message)
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            answers = [
                twin.ask(key, version, twin.own(message)) for twin in (self.ours, self.theirs)
            ]
            found, answer = self._compared(told, key, version, *answers)
            if not found or not again or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        self._must_not_differ(found)
        self.hear()
        return answer

    def ask_slow(self, key: ApiKey, version: int, message: Any, then: Callable[[Any], Any]) -> Any:
        """Ask what one broker does at once and the other one beside its clients; what both come to.

        Parameters: `then` makes of an answer what is asked until both answer the same, each in its own
        state. An error is compared at once.
        """
        told = self._tell(key, version, message)
        sides = (self.ours, self.theirs)
        answers = [twin.ask(key, version, twin.own(message)) for twin in sides]
        deadline = time.monotonic() + SETTLE_SECONDS
        pause = 0.04
        while not any(each is None or each.error_code for each in answers):
            time.sleep(pause)
            asked = [
                twin.own(then(twin.common(each))) for twin, each in zip(sides, answers, strict=True)
            ]
            answers = [
                twin.ask(key, version, each) for twin, each in zip(sides, asked, strict=True)
            ]
            pause = 0.01
            if not self._compared(told, key, version, *answers)[0] or time.monotonic() > deadline:
                break
        found, answer = self._compared(told, key, version, *answers)
        self._must_not_differ(found)
        self.hear()
        return answer

    def put(
        self,
        line: str,
        client_id: str,
        key: ApiKey,
        version: int,
        message: Any,
        learn: Callable[[Any], None],
        stands: Callable[[], Any],
    ) -> None:
        """Send what may be held back, and wait until both have answered or both have taken it.

        Parameters: `learn` takes the answer, now or later. `stands` asks where the group stands; raises
        Differs when that differs.
        """
        parked = Parked(line, key, version, self._tell(key, version, message), learn)
        self.parked[line] = parked
        for twin in (self.ours, self.theirs):
            twin.line(line).client_id = client_id
            twin.line(line).send(key, version, twin.own(message))
        if not self._heard(parked, 0.01):
            stands()
            self._heard(parked, 0.005)

    def hear(self) -> None:
        """Take what was held back and comes now."""
        for parked in list(self.parked.values()):
            self._heard(parked, 0.001)

    def hang_up(self) -> None:
        """Wait no longer for what both brokers hold back."""
        for name in self.parked:
            for twin in (self.ours, self.theirs):
                twin.lines.pop(name).close()
        self.parked.clear()

    def _heard(self, parked: Parked, seconds: float) -> bool:
        if self.parked.get(parked.line) is not parked:
            return True
        lines = [twin.line(parked.line) for twin in (self.ours, self.theirs)]
        if not any(line.is_answered(seconds) for line in lines):
            return False
        if not all(line.is_answered(SETTLE_SECONDS) for line in lines):
            who = [line.is_answered(0) for line in lines]
            if who == [False, True] and self._is_let_down(parked, lines[1]):
                raise KafkaFailed(parked.told)
            self._fail(f"one answers only (kbroker, Kafka: {who}): {parked.told}")
        answers = [line.answer(parked.key, parked.version) for line in lines]
        del self.parked[parked.line]
        found, answer = self._compared(parked.told, parked.key, parked.version, *answers)
        self._must_not_differ(found)
        parked.learn(answer)
        return True

    def _is_let_down(self, parked: Parked, line: RawConnection) -> bool:
        """Whether Kafka answers who joins, and waits for the others, with an error that is none."""
        if parked.key is not ApiKey.JOIN_GROUP:
            return False
        code = line.answer(parked.key, parked.version).error_code
        return _is_turned_away(parked.told, code) or self._is_sent_back(code)

    def _is_sent_back(self, code: int) -> bool:
        """Members of a classic group join again because of a heartbeat of the newer protocol, which would
        have made it a consumer group, but was refused."""
        last = self._told[-1]
        is_refused = "ConsumerGroupHeartbeat" in last and "error_code=0" not in last
        return is_refused and code == ErrorCode.REBALANCE_IN_PROGRESS

    # -- comparing

    def _compared(
        self, told: str, key: ApiKey, version: int, mine: Any, other: Any
    ) -> tuple[list[Difference], Any]:
        name = f"call {self.calls}"
        if mine is None or other is None:
            return self.comparison.compare_presence(name, key, version, mine, other), None
        self._pair(mine, other)
        if key is ApiKey.LIST_GROUPS:
            for answer in (mine, other):
                answer.groups = [
                    row for row in answer.groups if row.group_id.startswith(self.scope)
                ]
        mine, other = self.ours.common(mine), self.theirs.common(other)
        if key is ApiKey.JOIN_GROUP:
            self.has_other_leader = mine.leader != other.leader
            name += " with another leader" if self.has_other_leader else ""
        codes = [getattr(each, "error_code", 0) for each in (mine, other)]
        if codes[1] == UNKNOWN_SERVER_ERROR != codes[0] and key is not ApiKey.JOIN_GROUP:
            raise KafkaFailed(told)
        if key is ApiKey.JOIN_GROUP and codes[0] != codes[1] and _is_turned_away(told, codes[1]):
            raise KafkaFailed(told)
        found = self.comparison.compare(name, key, version, mine, other)
        self._told[-1] = f"{told}\n    -> {other}" if told == self._told[-1] else self._told[-1]
        return found, other

    def _pair(self, mine: Any, other: Any) -> None:
        """Name the ids of members that each broker has made up."""
        self._pair_ids(getattr(mine, "member_id", None), getattr(other, "member_id", None))
        for ours, theirs in zip(_static_ids(mine), _static_ids(other), strict=False):
            if ours[:2] == theirs[:2]:
                self._pair_ids(ours[2], theirs[2])

    def _pair_ids(self, one: str | None, two: str | None) -> None:
        if not one or not two or one == two or (MADE_UP.fullmatch(one) and MADE_UP.fullmatch(two)):
            return
        if one in self.ours.names.values() or two in self.theirs.names.values():
            return
        self._made += 1
        self.ours.names[f"made-{self._made}"] = one
        self.theirs.names[f"made-{self._made}"] = two

    def note(self, what: str) -> None:
        """What else takes place, for reports."""
        self._told.append(f"({what})")

    def _tell(self, key: ApiKey, version: int, message: Any) -> str:
        self.calls += 1
        told = f"{self.calls}: {key.api_name} v{version} {_shown(message)}"
        self._told.append(told)
        return told

    def _must_not_differ(self, found: list[Difference]) -> None:
        if found:
            self._fail("\n".join(map(str, found)))

    def _fail(self, what: str) -> None:
        raise Differs("\n".join([*self._told, what]))

    def renew(self) -> None:
        """Begin another history: nothing is left of the one before but its groups and topics."""
        self.close()
        for twin in (self.ours, self.theirs):
            twin.lines.clear()
        self.parked.clear()
        self._told.clear()

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


def _is_turned_away(told: str, code: int) -> bool:
    """Whether Kafka has no room for a static member that is in the group already.

    One that comes back without its id it takes for a new one, while members join again.
    """
    return "group_instance_id=" in told and code == ErrorCode.GROUP_MAX_SIZE_REACHED


def _renamed(
    value: Any, names: Mapping[str, str], ids: Mapping[UUID, UUID], *, keeps_order: bool
) -> Any:
    if isinstance(value, Struct):
        parts = {
            each.name: _renamed(getattr(value, each.name), names, ids, keeps_order=keeps_order)
            for each in fields(type(value))
        }
        for name in {"assignment", "member_assignment"} & parts.keys():
            if isinstance(parts[name], bytes) and not keeps_order:
                parts[name] = _in_order(parts[name])
        return type(value)(**parts)
    if isinstance(value, list):
        rows = [_renamed(each, names, ids, keeps_order=keeps_order) for each in value]
        return rows if keeps_order else sorted(rows, key=_place)
    if isinstance(value, UUID):
        return ids.get(value, value)
    if isinstance(value, memoryview):
        return bytes(value)
    return names.get(value, value) if isinstance(value, str) else value


def _in_order(assignment: bytes) -> bytes:
    """What a coordinator gives to a member of the classic protocol, topic by topic."""
    read = read_assignment(assignment)
    if read is None:
        return assignment
    rows = sorted(
        (row.topic, index) for row in read.assigned_partitions for index in row.partitions
    )
    return write_assignment(rows, assignment) + bytes(read.user_data or b"")


def _static_ids(answer: Any) -> list[tuple[str, str, str]]:
    """Group, instance id and member id of the static members that an answer describes."""
    return sorted(
        (group.group_id, member.group_instance_id, member.member_id)
        for group in getattr(answer, "groups", ())
        for member in getattr(group, "members", ())
        if getattr(member, "group_instance_id", None)
    )


def _made_up(value: Any) -> Iterator[str]:
    """The ids in an answer that a coordinator has made of a client id and a UUID."""
    if isinstance(value, Struct):
        for each in fields(type(value)):
            yield from _made_up(getattr(value, each.name))
    elif isinstance(value, list):
        for row in value:
            yield from _made_up(row)
    elif isinstance(value, str) and MADE_UP.fullmatch(value):
        yield value


def _place(row: Any) -> tuple[str, ...]:
    """Where a row comes in its list: by what it is about."""
    if isinstance(row, int):
        return (f"{row:09}",)
    if not isinstance(row, Struct):
        return (_shown(row),)
    return tuple(_place(getattr(row, name, ""))[0] for name in ABOUT)


def _shown(message: Any) -> str:
    """A message without what it does not say."""
    if isinstance(message, Struct):
        parts = [
            f"{each.name}={_shown(value)}"
            for each in fields(type(message))
            if (value := getattr(message, each.name)) is not None
        ]
        return f"({' '.join(parts)})"
    if isinstance(message, list):
        return f"[{', '.join(map(_shown, message))}]"
    if isinstance(message, UUID):
        return f"#{message.int}" if message.int < 1_000_000 else str(message)
    return repr(message)
