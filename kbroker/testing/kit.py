"""What a test does with a broker and asks of it, over the real protocol.

The same calls work on a broker of this process and on one that runs elsewhere, Apache Kafka for
instance. The difference is in `Changes`: a broker of this process tells when something happened in
it, any other one is asked again after a pause.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import trio

from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import reading
from kbroker.client.errors import NoSuchGroup, NoSuchPartition, NoSuchTopic, check
from kbroker.client.groups import SHARE, Group, committed_offsets, describe_group
from kbroker.client.list_offsets import EARLIEST, LATEST, list_offsets, offsets_at
from kbroker.client.producer import ANY_PARTITION, Producer
from kbroker.client.share_groups import share_offsets
from kbroker.client.topics import (
    NewTopic,
    Partition,
    create_topics,
    delete_topics,
    wait_until_ready,
)
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import TIMESTAMP_MAX, TIMESTAMP_MIN, Record

from .availability import BrokerAvailability
from .given import AT_REST, Config, Partitions, check_number, group_state, partitions_of, properties

T = TypeVar("T")

CLIENT_ID = "kbroker-kit"
"""Whose requests no fault hits and no log shows."""
WAIT_SECONDS = 5.0
POLL_SECONDS = 0.03
CREATE_TRIES = 3

Value = bytes | str | None | dict[str, Any] | list[Any] | int | float | bool
"""What a test may produce: bytes as they are, text as UTF-8, everything else as JSON."""


Headers = Mapping[str, Value] | Iterable[tuple[str, Value]]
"""Names with their values; as pairs, a name may come more than once."""

SHOWN_MAX = 5
"""Records that a report shows."""


class Changes(Protocol):
    """Tells when to look again."""

    def next(self) -> Change:
        """What waits for the next change after this call."""
        ...


class Change(Protocol):
    """One change to come."""

    async def wait(self) -> None:
        """Return when it has happened."""
        ...


class Pauses:
    """Changes of a broker that tells nothing: there may be one every few milliseconds."""

    def next(self) -> Change:
        return self

    async def wait(self) -> None:
        await trio.sleep(POLL_SECONDS)


class WaitTimeout(AssertionError):
    """What was waited for did not happen; the message has the nearest state that was seen."""


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record as it lies in a topic. `timestamp` is in ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def text(self) -> str:
        """The value as text."""
        return (self.value or b"").decode()

    @property
    def json(self) -> Any:
        """The value as JSON."""
        return json.loads(self.value or b"null")


@dataclass(frozen=True, slots=True)
class Found:
    """What a wait for records has seen: those that match, and the others of the topic.

    `nearness` says how close one of the others comes.
    """

    matching: list[KafkaRecord]
    others: list[KafkaRecord]
    nearness: Callable[[KafkaRecord], int]

    def __str__(self) -> str:
        lines = [f"{len(self.matching)} of them", *map(str, self.matching[-SHOWN_MAX:])]
        if self.others:
            newest_first = self.others[::-1]
            nearest = sorted(newest_first, key=self.nearness, reverse=True)[:SHOWN_MAX]
            lines += [f"and {len(self.others)} others, the nearest:", *map(str, nearest)]
        return "\n  ".join(lines)


def to_bytes(value: Value) -> bytes | None:
    """A key or value as it is produced."""
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def headers_of(given: Headers) -> tuple[tuple[str, bytes | None], ...]:
    """Headers as they are produced. Raises ValueError."""
    found: list[tuple[str, bytes | None]] = []
    for pair in given.items() if isinstance(given, Mapping) else given:
        match pair:
            case [str(name), value]:
                found.append((name, to_bytes(value)))
            case _:
                raise ValueError(
                    f'headers are {{"name": "value"}} or [("name", "value"), ...], not {given!r}'
                )
    return tuple(found)


class Kit:
    """Operations on one cluster.

    Parameters: `cluster` is a client of it; `changes` tells when its state may have changed;
    `now_ms` is the time that new records get.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        changes: Changes,
        now_ms: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._changes = changes
        self._now_ms = now_ms
        self.availability = BrokerAvailability()
        self.created: list[str] = []
        """Topics that were created here and not deleted since."""

    # -- topics and records

    async def create_topic(
        self, name: str, partitions: int = 1, configs: Config | None = None
    ) -> None:
        """Create a topic; it is usable when this returns. Raises KafkaError."""
        new = NewTopic(name, partitions, configs=properties(configs or {}))
        ((code, message),) = (await create_topics(self._cluster, [new])).values()
        check(code, message)
        self.created.append(name)
        await wait_until_ready(self._cluster, {name: partitions})

    async def create_anew(self, name: str, partitions: int) -> None:
        """Create a topic that is empty, whatever there was of that name. Raises KafkaError.

        A client that asks for a topic while it is deleted may bring it back: then once more.
        """
        for _ in range(CREATE_TRIES):
            try:
                return await self.create_topic(name, partitions)
            except KafkaError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
            await self.delete_topic(name)
        await self.create_topic(name, partitions)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic; it is gone for every client when this returns. Raises KafkaError."""
        ((code, message),) = (await delete_topics(self._cluster, [name])).values()
        check(code, message)
        self.created = [each for each in self.created if each != name]
        await self._wait_until_gone({name})

    async def delete_created(self) -> None:
        """Delete the topics that were created here, as far as they are still there."""
        names, self.created = set(self.created), []
        if names:
            for code, message in (await delete_topics(self._cluster, names)).values():
                if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    check(code, message)
            await self._wait_until_gone(names)

    async def _wait_until_gone(self, names: set[str]) -> None:
        """A broker of a cluster may show a topic for a while that its controller has deleted."""

        async def look() -> tuple[bool, dict[str, int]]:
            topics = await self.topics()
            return not names & topics.keys(), topics

        what = f"topics {', '.join(sorted(names))} to be gone"
        await self.wait_until(look, what, WAIT_SECONDS)

    async def topics(self) -> dict[str, int]:
        """The topics of users, with the number of their partitions."""
        rows = (await self._cluster.metadata()).topics
        return {row.name or "": len(row.partitions) for row in rows if not row.is_internal}

    async def produce(
        self,
        topic: str,
        value: Value,
        *,
        key: Value = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> KafkaRecord:
        """Append one record, acknowledged by all replicas.

        Parameters: `partition` None places it by its key as Java's client does; `timestamp` is in
        ms, None stands for now. A topic that does not exist is created. Raises ValueError for a
        partition that does not exist.
        """
        if partition is not None:
            check_number("partition", partition, 0)
        if timestamp is not None:
            check_number("timestamp", timestamp, TIMESTAMP_MIN, TIMESTAMP_MAX)
        record = Record(
            to_bytes(key),
            to_bytes(value),
            self._now_ms() if timestamp is None else timestamp,
            headers_of(headers),
        )
        producer = Producer(self._cluster)
        wanted = ANY_PARTITION if partition is None else partition
        try:
            place = await producer.place(topic, record, wanted)
        except NoSuchTopic:
            await self.create_topic(topic, -1)
            place = await producer.place(topic, record, wanted)
        except NoSuchPartition as error:
            raise ValueError(f"{error.what}; None places the record by its key") from None
        (written,) = await producer.write({place: [record]})
        return _received(written.partition, written.placed[0])

    async def partitions(self, topic: str) -> list[Partition]:
        """The partitions of a topic; none when it does not exist."""
        return [(topic, index) for index in range((await self.topics()).get(topic, 0))]

    async def ends(self) -> dict[Partition, int]:
        """Where each partition ends, as far as it can be read: the offset of its next record."""
        topics = await self.topics()
        wanted = [(topic, index) for topic, count in topics.items() for index in range(count)]
        found = await list_offsets(self._cluster, dict.fromkeys(wanted, LATEST))
        return {partition: one.offset for partition, one in found.items() if not one.error}

    async def records(self, topic: str, *, committed: bool = True) -> list[KafkaRecord]:
        """All records of a topic in order of time, without those of aborted transactions.

        Raises NoSuchTopic.
        """
        await self._cluster.topics([topic])  # is it there?
        return await self._records(topic, committed=committed)

    async def _records(self, topic: str, *, committed: bool = True) -> list[KafkaRecord]:
        """The same; none of a topic that is still to come."""
        partitions = await self.partitions(topic)
        starts = await offsets_at(self._cluster, partitions, EARLIEST)
        ends = await offsets_at(self._cluster, partitions, LATEST, committed=committed)
        ranges = {
            each: (starts[each], ends[each]) for each in partitions if starts[each] < ends[each]
        }
        found: list[KafkaRecord] = []
        async with reading(self._cluster, ranges, committed=committed) as channel:
            async for chunk in channel:
                found += [_received(each.partition, each.record) for each in chunk]
        return sorted(found, key=lambda record: (record.timestamp, record.partition, record.offset))

    # -- groups

    async def group(self, name: str) -> Group | None:
        """A group as its coordinator describes it; None when there is none of that name."""
        try:
            return await describe_group(self._cluster, name)
        except NoSuchGroup:
            return None

    async def committed(self, group: str) -> dict[Partition, int]:
        """The offsets that a group has committed."""
        return await committed_offsets(self._cluster, group)

    async def lag(self, group: str) -> int:
        """Records that a group has still to read, in all partitions of the topics in which it has
        committed something; before its first commit, of those that its members are assigned.

        Stream processors are assigned topics in which they never commit. In a partition without a
        commit all records are to be read, whatever its members' reset policy is. Of a share group
        those that nobody has done with. Raises NoSuchGroup.
        """
        shared = await self._shared_lag(group)
        if shared is not None:
            return shared
        return await self._lag(group, await self.committed(group))

    async def _shared_lag(self, group: str) -> int | None:
        """The lag of a share group; None of any other one."""
        found = await self.group(group)
        if found is None or found.type != SHARE:
            return None
        known = await share_offsets(self._cluster, group)
        unknown = [place for place, offset in known.items() if offset.lag is None]
        starts = await offsets_at(self._cluster, unknown, EARLIEST)
        ends = await offsets_at(self._cluster, unknown, LATEST)
        left = sum(ends[place] - starts[place] for place in unknown)
        return left + sum(offset.lag or 0 for offset in known.values())

    async def _lag(self, group: str, offsets: Mapping[Partition, int]) -> int:
        """The same, of a group that has committed `offsets`."""
        read = {topic for topic, _ in offsets or await self._assigned(group)}
        topics = await self.topics()
        partitions = [(topic, index) for topic in read for index in range(topics.get(topic, 0))]
        starts = await offsets_at(self._cluster, partitions, EARLIEST)
        ends = await offsets_at(self._cluster, partitions, LATEST, committed=True)
        return sum(max(ends[each] - offsets.get(each, starts[each]), 0) for each in partitions)

    async def _assigned(self, group: str) -> list[Partition]:
        found = await describe_group(self._cluster, group)
        return [each for member in found.members for each in member.partitions]

    # -- waits

    async def wait_until_idle(
        self, group: str | None = None, timeout: float = WAIT_SECONDS
    ) -> None:
        """Wait until nothing is on its way any more, or in one group. Raises WaitTimeout."""
        raise NotImplementedError

    def why(self, *, group: str | None = None, topic: str | None = None) -> str:
        """What is known of why something about a group or topic did not happen."""
        return ""

    async def wait_until(
        self,
        look: Callable[[], Awaitable[tuple[bool, T]]],
        what: str,
        timeout: float,
        *,
        group: str | None = None,
        topic: str | None = None,
    ) -> T:
        """Look again after each change until `look` says yes; returns what it saw.

        Goes on when the broker was restarted meanwhile. Raises WaitTimeout after `timeout` seconds,
        with what was seen last and why `group` and `topic` are as they are; RuntimeError as soon as
        the broker is stopped.
        """
        deadline = trio.current_time() + timeout
        seen: T | None = None
        while await self.availability.wait_until_available(deadline):
            with self.availability.attempt():
                change = self._changes.next()
                done, found = await self._unless_it_goes(look)
                if done:
                    return found
                seen = found
                with trio.move_on_at(deadline):
                    await change.wait()
            if trio.current_time() >= deadline:
                break
        raise WaitTimeout(_report(what, timeout, seen, self.why(group=group, topic=topic)))

    async def _unless_it_goes(self, look: Callable[[], Awaitable[T]]) -> T:
        """What `look` returns. A broker whose power is off answers nonsense before it is gone, and one
        that has just gone has closed the connections of those who look."""
        try:
            return await look()
        except Exception:
            if self.availability.is_available and not self.has_crashed:
                raise
            self.availability.mark_unavailable()
            await trio.sleep_forever()  # and the look is given up

    @property
    def has_crashed(self) -> bool:
        """Whether the power of the broker is off."""
        return False

    async def wait_for(
        self,
        topic: str,
        count: int | None = None,
        match: Callable[[KafkaRecord], bool] | None = None,
        timeout: float = WAIT_SECONDS,
        *,
        what: str | None = None,
        nearness: Callable[[KafkaRecord], int] = lambda record: 0,
    ) -> list[KafkaRecord]:
        """Wait until a topic has `count` records (1) for which `match` is true; returns those.

        Parameters, for the message of a failure: `what` says in words what is waited for,
        `nearness` how close another record comes to it.
        """
        wanted = 1 if count is None else count

        async def look() -> tuple[bool, Found]:
            matching: list[KafkaRecord] = []
            others: list[KafkaRecord] = []
            for each in await self._records(topic):
                (matching if match is None or match(each) else others).append(each)
            return len(matching) >= wanted, Found(matching, others, nearness)

        what = what or f"{wanted} records in {topic!r}"
        return (await self.wait_until(look, what, timeout, topic=topic)).matching

    async def wait_for_group(
        self,
        group: str,
        members: int | None = None,
        state: str | None = "Stable",
        timeout: float = WAIT_SECONDS,
    ) -> Group:
        """Wait until a group is in a state (None: any) with so many members (None: any)."""
        state = group_state(state)

        async def look() -> tuple[bool, Group | None]:
            found = await self.group(group)
            return found is not None and (
                state in (None, found.state) and members in (None, len(found.members))
            ), found

        wanted = f"group {group!r} {state or 'in any state'}"
        if members is not None:
            wanted += f" with {members} members"
        found = await self.wait_until(look, wanted, timeout, group=group)
        assert found is not None
        return found

    async def wait_for_assignment(
        self, group: str, partitions: Partitions, timeout: float = WAIT_SECONDS
    ) -> Group:
        """Wait until the members of a group have exactly these partitions between them."""
        wanted = partitions_of(partitions)

        async def look() -> tuple[bool, Group | None]:
            found = await self.group(group)
            owned = (
                [each for member in found.members for each in member.partitions] if found else []
            )
            return sorted(set(owned)) == wanted, found  # those of share groups may have several

        what = f"group {group!r} assigned {_partitions(wanted)}"
        found = await self.wait_until(look, what, timeout, group=group)
        assert found is not None
        return found

    async def wait_for_commit(
        self, group: str, topic: str, partition: int, offset: int, timeout: float = WAIT_SECONDS
    ) -> int:
        """Wait until a group has committed `offset` or a later one; returns what it has."""

        async def look() -> tuple[bool, int | None]:
            found = (await self.committed(group)).get((topic, partition))
            return found is not None and found >= offset, found

        what = f"group {group!r} commits {offset} in {topic}-{partition}"
        return await self.wait_until(look, what, timeout, group=group) or 0

    async def wait_for_lag(
        self, group: str, lag: int = 0, timeout: float = WAIT_SECONDS
    ) -> dict[Partition, int]:
        """Wait until a group that has committed something lags by at most `lag` records, and does
        not rebalance; or until a share group has not done with `lag` records at most."""

        async def look() -> tuple[bool, dict[Partition, int]]:
            shared = await self._shared_lag(group)
            if shared is not None:
                return shared <= lag, {}
            offsets = await self.committed(group)
            if not offsets or await self._lag(group, offsets) > lag:
                return False, offsets
            found = await self.group(group)
            return found is not None and found.state in AT_REST, offsets

        what = f"group {group!r} with a lag of {lag}"
        return await self.wait_until(look, what, timeout, group=group)


def _received(partition: Partition, record: Record) -> KafkaRecord:
    return KafkaRecord(
        *partition,
        record.offset,
        record.timestamp,
        _bytes(record.key),
        _bytes(record.value),
        tuple(record.headers),
    )


def _bytes(data: bytes | memoryview | None) -> bytes | None:
    return None if data is None else bytes(data)


def _partitions(partitions: Iterable[Partition]) -> str:
    return ", ".join(f"{topic}-{index}" for topic, index in partitions) or "nothing"


def _report(what: str, timeout: float, seen: object, explanation: str) -> str:
    lines = [f"waited {timeout:g} s for {what}; seen last: {_shown(seen)}"]
    return "\n".join([*lines, explanation] if explanation else lines)


def _shown(seen: object) -> str:
    return "nothing" if seen is None else str(seen)
