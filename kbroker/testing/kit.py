"""Operations and waits of a test on a cluster, over the Kafka protocol.

The same operations work on a broker in this process and on an external cluster. A broker in this
process notifies waits of each change of its state. An external cluster is polled.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import trio

from kbroker.client.cluster import ClusterClient
from kbroker.client.configs import Operation, Resource, alter_configs, describe_configs
from kbroker.client.consumer import reading
from kbroker.client.dead_letters import dead_letter_queue, dead_letter_topic
from kbroker.client.errors import (
    CannotRead,
    ClientError,
    NoSuchGroup,
    NoSuchPartition,
    NoSuchTopic,
    check,
)
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

from .arguments import (
    IDLE_GROUP_STATES,
    Config,
    Partitions,
    check_number,
    parse_group_state,
    partitions_of,
    properties,
)
from .availability import BrokerAvailability
from .dead_letters import DeadLetter, FoundDeadLetters
from .kafka_record import KafkaRecord

T = TypeVar("T")

# Client ID of the test kit. No fault hits its requests, and no report lists them.
CLIENT_ID = "kbroker-kit"
# Default maximum seconds of a wait.
WAIT_SECONDS = 5.0
# Seconds between two polls of an external cluster.
POLL_SECONDS = 0.03
# Maximum number of tries of requests about topics that other tests may delete.
READ_TRIES = 10
# Maximum number of deletions of a topic that a client creates again.
CREATE_TRIES = 3

# Keys and values to produce: bytes as they are, strings as UTF-8, everything else as JSON.
Value = bytes | str | None | dict[str, Any] | list[Any] | int | float | bool


# Record headers by name, or as pairs if a name occurs more than once.
Headers = Mapping[str, Value] | Iterable[tuple[str, Value]]

# Maximum number of records of each kind in the message of a failed wait.
SHOWN_MAX = 5


class Changes(Protocol):
    """Source of notifications that the state of a cluster may have changed."""

    def next(self) -> Change:
        """Return the next change after this call."""
        ...


class Change(Protocol):
    """A change that has not happened yet."""

    async def wait(self) -> None:
        """Return when the change has happened."""
        ...


class Pauses:
    """Polling instead of notifications: each change is a pause of `POLL_SECONDS`."""

    def next(self) -> Change:
        return self

    async def wait(self) -> None:
        await trio.sleep(POLL_SECONDS)


class WaitTimeout(AssertionError):
    """A wait timed out; the message has the state that was observed last."""


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """Records of a topic that a wait has read.

    Attributes:
        matching: Records that match.
        others: All other records.
        nearness: Returns how similar another record is to a match; higher is more similar.
    """

    matching: list[KafkaRecord]
    others: list[KafkaRecord]
    nearness: Callable[[KafkaRecord], int]

    def __str__(self) -> str:
        lines = [f"{len(self.matching)} matching records", *map(str, self.matching[-SHOWN_MAX:])]
        if self.others:
            newest_first = self.others[::-1]
            nearest = sorted(newest_first, key=self.nearness, reverse=True)[:SHOWN_MAX]
            lines += [f"and {len(self.others)} others, the most similar:", *map(str, nearest)]
        return "\n  ".join(lines)


def to_bytes(value: Value) -> bytes | None:
    """Convert a key or value to the bytes that are produced."""
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def headers_of(given: Headers) -> tuple[tuple[str, bytes | None], ...]:
    """Convert headers to the pairs that are produced.

    Raises:
        ValueError: `given` is neither a mapping nor pairs of a string and a value.
    """
    found: list[tuple[str, bytes | None]] = []
    for pair in given.items() if isinstance(given, Mapping) else given:
        match pair:
            case [str(name), value]:
                found.append((name, to_bytes(value)))
            case _:
                raise ValueError(
                    f"invalid headers {given!r}: pass "
                    '{"name": "value"} or [("name", "value"), ...]'
                )
    return tuple(found)


class Kit:
    """Operations on one cluster.

    Args:
        cluster: Client of the cluster.
        changes: Notifies waits that the state of the cluster may have changed.
        now_ms: Returns the timestamp of new records, in ms since the Unix epoch.
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
        # Topics that this object has created and not deleted yet.
        self.created: list[str] = []

    # -- topics and records

    async def create_topic(
        self, name: str, partitions: int = 1, configs: Config | None = None
    ) -> None:
        """Create a topic, and wait until it is usable.

        Args:
            name: Topic name.
            partitions: Number of partitions; -1 for the broker's default.
            configs: Topic configs, for example `{"retention.ms": 1000}`.

        Raises:
            KafkaError: The broker rejected the topic.
        """
        new = NewTopic(name, partitions, configs=properties(configs or {}))
        ((code, message),) = (await create_topics(self._cluster, [new])).values()
        check(code, message)
        self.created.append(name)
        await wait_until_ready(self._cluster, {name: partitions})

    async def recreate_topic(self, name: str, partitions: int) -> None:
        """Create an empty topic, and delete an existing topic of that name first.

        A client that requests metadata during the deletion may create the topic again, so the
        deletion is tried several times.

        Raises:
            KafkaError: The broker rejected the creation or the deletion.
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
        """Delete a topic, and wait until no broker lists it any more.

        Raises:
            KafkaError: The broker rejected the deletion.
            WaitTimeout: A broker still lists the topic.
        """
        ((code, message),) = (await delete_topics(self._cluster, [name])).values()
        check(code, message)
        self.created = [each for each in self.created if each != name]
        await self._wait_until_gone({name})

    async def delete_created(self) -> None:
        """Delete the topics that this object has created, if they still exist."""
        names = set(self.created)
        if not names:
            return
        outcome = await delete_topics(self._cluster, names)
        failed = {
            name: outcome[name]
            for name in names
            if outcome[name][0] not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        }
        self.created = [each for each in self.created if each in failed]
        await self._wait_until_gone(names - failed.keys())
        for code, message in failed.values():
            check(code, message)

    async def _wait_until_gone(self, names: set[str]) -> None:
        """Wait until no broker lists topics that the controller has deleted."""

        async def observe() -> tuple[bool, dict[str, int]]:
            topics = await self.topics()
            return not names & topics.keys(), topics

        what = f"topics {', '.join(sorted(names))} to be deleted"
        await self.wait_until(observe, what, WAIT_SECONDS)

    async def topics(self) -> dict[str, int]:
        """Return the number of partitions of each topic, without internal topics."""
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
        """Append one record with acks=all, and create the topic if it does not exist.

        Args:
            topic: Topic name.
            value: Value: bytes as they are, a string as UTF-8, everything else as JSON.
            key: Key, converted like the value.
            partition: Partition number; None selects it by the key, as the default partitioner of
                Kafka's Java client does.
            headers: Headers by name, or pairs of name and value.
            timestamp: Timestamp in ms since the Unix epoch; None for now.

        Returns:
            The record with its partition and offset.

        Raises:
            ValueError: The partition does not exist, the timestamp is out of range, or the headers
                are invalid.
            KafkaError: The broker rejected the record.
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
            raise ValueError(
                f"{error}; use partition=None to select the partition by the key"
            ) from None
        (written,) = await producer.write({place: [record]})
        return _to_kafka_record(written.partition, written.placed[0])

    async def partitions(self, topic: str) -> list[Partition]:
        """Return the partitions of a topic; an empty list if the topic does not exist."""
        return [(topic, index) for index in range((await self.topics()).get(topic, 0))]

    async def log_end_offsets(self) -> dict[Partition, int]:
        """Return the log end offset of each partition, without partitions that cannot be read."""

        async def look_up() -> dict[Partition, int]:
            topics = await self.topics()
            wanted = [(topic, index) for topic, count in topics.items() for index in range(count)]
            found = await list_offsets(self._cluster, dict.fromkeys(wanted, LATEST))
            return {partition: one.offset for partition, one in found.items() if not one.error}

        return await self._repeat_if_outdated(look_up)

    async def _repeat_if_outdated(self, read: Callable[[], Awaitable[T]]) -> T:
        """Call a function again if a topic or a record was deleted between its requests.

        For example, another test that uses the same cluster has deleted its topic.
        """
        for _ in range(READ_TRIES - 1):
            try:
                return await read()
            except (ClientError, KafkaError) as error:
                if not _is_outdated(error):
                    raise
            await trio.sleep(POLL_SECONDS)
        return await read()

    async def records(self, topic: str, *, committed: bool = True) -> list[KafkaRecord]:
        """Return all records of a topic, ordered by timestamp, partition and offset.

        Args:
            topic: Topic name.
            committed: Read as read_committed consumers do. False also returns the records of open
                and aborted transactions.

        Raises:
            NoSuchTopic: The topic does not exist.
        """
        await self._cluster.topics([topic])  # raises NoSuchTopic
        return await self._records(topic, committed=committed)

    async def _records(self, topic: str, *, committed: bool = True) -> list[KafkaRecord]:
        """Return the records of a topic; an empty list if the topic does not exist."""
        return await self._repeat_if_outdated(
            partial(self._records_once, topic, committed=committed)
        )

    async def _records_once(self, topic: str, *, committed: bool) -> list[KafkaRecord]:
        partitions = await self.partitions(topic)
        starts = await offsets_at(self._cluster, partitions, EARLIEST)
        ends = await offsets_at(self._cluster, partitions, LATEST, committed=committed)
        ranges = {
            each: (starts[each], ends[each]) for each in partitions if starts[each] < ends[each]
        }
        found: list[KafkaRecord] = []
        async with reading(self._cluster, ranges, committed=committed) as channel:
            async for chunk in channel:
                found += [_to_kafka_record(each.partition, each.record) for each in chunk]
        return sorted(found, key=lambda record: (record.timestamp, record.partition, record.offset))

    # -- groups

    async def group(self, name: str) -> Group | None:
        """Return a group as its coordinator describes it, or None if the group does not exist."""
        try:
            return await describe_group(self._cluster, name)
        except NoSuchGroup:
            return None

    async def committed(self, group: str) -> dict[Partition, int]:
        """Return the committed offset of a group for each partition."""
        return await committed_offsets(self._cluster, group)

    async def lag(self, group: str) -> int:
        """Return the number of records that a group has yet to consume.

        The sum is over all partitions of the topics in which the group has committed an offset.
        Before the first commit it is over the topics that are assigned to the members. Stream
        processors never commit in some of their assigned topics. In a partition without a committed
        offset all records count, regardless of `auto.offset.reset`. For a share group, records
        count until they are acknowledged, rejected or archived.

        Raises:
            NoSuchGroup: The group does not exist.
        """
        shared = await self._shared_lag(group)
        if shared is not None:
            return shared
        return await self._lag(group, await self.committed(group))

    async def _shared_lag(self, group: str) -> int | None:
        """Return the lag of a share group, or None for a group of another type."""
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
        """Return the lag of a group that has committed `offsets`."""
        read = {topic for topic, _ in offsets or await self._assigned(group)}
        topics = await self.topics()
        partitions = [(topic, index) for topic in read for index in range(topics.get(topic, 0))]
        starts = await offsets_at(self._cluster, partitions, EARLIEST)
        ends = await offsets_at(self._cluster, partitions, LATEST, committed=True)
        return sum(max(ends[each] - offsets.get(each, starts[each]), 0) for each in partitions)

    async def _assigned(self, group: str) -> list[Partition]:
        found = await describe_group(self._cluster, group)
        return [each for member in found.members for each in member.partitions]

    async def configure_group(self, group: str, configs: Config) -> None:
        """Set configs of a group, which need not exist, and wait until they are in effect.

        Args:
            group: Group ID.
            configs: Group configs, for example `{"share.delivery.count.limit": 2}`.

        Raises:
            KafkaError: The broker rejected a config.
            WaitTimeout: The broker still describes other values.
        """
        wanted = properties(configs)
        changes = {name: (Operation.SET, value) for name, value in wanted.items()}
        await alter_configs(self._cluster, Resource.GROUP, group, changes)

        async def observe() -> tuple[bool, dict[str, str | None]]:
            described = await describe_configs(
                self._cluster, Resource.GROUP, [group], keys=list(wanted)
            )
            found = {each.name: each.value for each in described[group]}
            return all(
                _without_spaces(found.get(name)) == _without_spaces(value)
                for name, value in wanted.items()
            ), found

        await self.wait_until(observe, f"configs of group {group!r}", WAIT_SECONDS)

    async def dead_letters(self, group: str) -> list[DeadLetter]:
        """Return the records in the dead-letter queue of a share group, the oldest first.

        Args:
            group: Group ID. Records of other groups in the same topic are left out.

        Raises:
            ValueError: The group has no dead-letter queue.
        """
        topic = await dead_letter_topic(self._cluster, group)
        if topic is None:
            raise ValueError(
                f"group {group!r} has no dead-letter queue; set errors.deadletterqueue.topic.name "
                "for the group"
            )
        return await self._dead_letters(group, topic)

    async def _dead_letters(self, group: str, topic: str) -> list[DeadLetter]:
        found = [DeadLetter.from_record(group, each) for each in await self._records(topic)]
        return [each for each in found if each is not None]

    # -- waits

    async def wait_until_idle(
        self, group: str | None = None, timeout: float = WAIT_SECONDS
    ) -> None:
        """Wait until the cluster, or one group, is idle.

        Args:
            group: Group to check; None for the whole cluster.
            timeout: Maximum seconds to wait.

        Raises:
            WaitTimeout: Work is still in progress; the message describes it.
        """
        raise NotImplementedError

    def explain_state(self, *, group: str | None = None, topic: str | None = None) -> str:
        """Explain the state of a group or topic for the message of a failed wait."""
        return ""

    async def wait_until(
        self,
        observe: Callable[[], Awaitable[tuple[bool, T]]],
        what: str,
        timeout: float,
        *,
        group: str | None = None,
        topic: str | None = None,
    ) -> T:
        """Call `observe` after each change until it reports that the condition is met.

        A restart of the broker pauses the wait. The last call begins after the timeout, so that the wait
        sees all changes before it.

        Args:
            observe: Returns True if the condition is met, and the observed state.
            what: Description of the condition, for the message of a failure.
            timeout: Maximum seconds to wait.
            group: Group to explain in the message.
            topic: Topic to explain in the message.

        Returns:
            The observed state that meets the condition.

        Raises:
            WaitTimeout: The condition is not met in time; the message has the state that was observed
                last.
            RuntimeError: The broker was stopped.
        """
        deadline = trio.current_time() + timeout
        seen: T | None = None
        while await self.availability.wait_until_available(deadline):
            is_last = trio.current_time() >= deadline
            with self.availability.attempt():
                change = self._changes.next()
                done, found = await self._call_while_available(observe)
                if done:
                    return found
                seen = found
                if is_last:
                    break
                with trio.move_on_at(deadline):
                    await change.wait()
        raise WaitTimeout(
            _timeout_message(what, timeout, seen, self.explain_state(group=group, topic=topic))
        )

    async def _call_while_available(self, observe: Callable[[], Awaitable[T]]) -> T:
        """Call `observe`; if it fails because the broker is down, wait to be cancelled.

        After a power cut, the broker may respond with errors before it is marked unavailable. A
        stopped broker closes connections that are in use. In both cases, this error does not fail
        the wait.
        """
        try:
            return await observe()
        except Exception:
            if self.availability.is_available and not self.has_crashed:
                raise
            self.availability.mark_unavailable()
            await trio.sleep_forever()  # mark_unavailable() has cancelled the current attempt

    @property
    def has_crashed(self) -> bool:
        """True if the power of the broker's disk was cut."""
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
        """Wait until a topic has a number of matching records.

        Args:
            topic: Topic name.
            count: Minimum number of matching records; None for 1.
            match: Returns True for the records to count; None counts all.
            timeout: Maximum seconds to wait.
            what: Description of the records, for the message of a failure.
            nearness: Returns how similar another record is to a match, for the message of a failure;
                higher is more similar.

        Returns:
            All matching records.

        Raises:
            WaitTimeout: There are fewer matching records; the message lists the most similar ones.
        """
        wanted = 1 if count is None else count

        async def observe() -> tuple[bool, FoundRecords]:
            matching: list[KafkaRecord] = []
            others: list[KafkaRecord] = []
            for each in await self._records(topic):
                (matching if match is None or match(each) else others).append(each)
            return len(matching) >= wanted, FoundRecords(matching, others, nearness)

        what = what or f"{wanted} records in {topic!r}"
        return (await self.wait_until(observe, what, timeout, topic=topic)).matching

    async def wait_for_group(
        self,
        group: str,
        members: int | None = None,
        state: str | None = "Stable",
        timeout: float = WAIT_SECONDS,
    ) -> Group:
        """Wait until a group has a state and a number of members.

        Args:
            group: Group ID.
            members: Number of members; None for any.
            state: State as Kafka names it, in any case; None for any.
            timeout: Maximum seconds to wait.

        Returns:
            The group as its coordinator describes it.

        Raises:
            ValueError: The state does not exist.
            WaitTimeout: The group is not in that state; the message has its last state.
        """
        state = parse_group_state(state)

        async def observe() -> tuple[bool, Group | None]:
            found = await self.group(group)
            return found is not None and (
                state in (None, found.state) and members in (None, len(found.members))
            ), found

        wanted = f"group {group!r} {state or 'in any state'}"
        if members is not None:
            wanted += f" with {members} members"
        found = await self.wait_until(observe, wanted, timeout, group=group)
        assert found is not None
        return found

    async def wait_for_assignment(
        self, group: str, partitions: Partitions, timeout: float = WAIT_SECONDS
    ) -> Group:
        """Wait until exactly the given partitions are assigned to the members of a group.

        Args:
            group: Group ID.
            partitions: Pairs of topic and partition, or partition numbers by topic.
            timeout: Maximum seconds to wait.

        Returns:
            The group as its coordinator describes it.

        Raises:
            ValueError: `partitions` is neither pairs nor a mapping.
            WaitTimeout: The assignment differs; the message has the last one.
        """
        wanted = partitions_of(partitions)

        async def observe() -> tuple[bool, Group | None]:
            found = await self.group(group)
            owned = (
                [each for member in found.members for each in member.partitions] if found else []
            )
            # Share groups assign a partition to several members.
            return sorted(set(owned)) == wanted, found

        what = f"group {group!r} assigned {_partitions(wanted)}"
        found = await self.wait_until(observe, what, timeout, group=group)
        assert found is not None
        return found

    async def wait_for_commit(
        self, group: str, topic: str, partition: int, offset: int, timeout: float = WAIT_SECONDS
    ) -> int:
        """Wait until a group has committed at least an offset in a partition.

        Args:
            group: Group ID.
            topic: Topic name.
            partition: Partition number.
            offset: Minimum committed offset.
            timeout: Maximum seconds to wait.

        Returns:
            The committed offset.

        Raises:
            WaitTimeout: The committed offset is lower; the message has the last one.
        """

        async def observe() -> tuple[bool, int | None]:
            found = (await self.committed(group)).get((topic, partition))
            return found is not None and found >= offset, found

        what = f"group {group!r} commits {offset} in {topic}-{partition}"
        return await self.wait_until(observe, what, timeout, group=group) or 0

    async def wait_for_lag(
        self, group: str, lag: int = 0, timeout: float = WAIT_SECONDS
    ) -> dict[Partition, int]:
        """Wait until a group has committed offsets, does not rebalance and has a small lag.

        For a share group, wait only until the lag is small.

        Args:
            group: Group ID.
            lag: Maximum lag, in records.
            timeout: Maximum seconds to wait.

        Returns:
            The committed offsets; an empty dictionary for a share group.

        Raises:
            WaitTimeout: The lag is larger; the message has the committed offsets.
        """

        async def observe() -> tuple[bool, dict[Partition, int]]:
            shared = await self._shared_lag(group)
            if shared is not None:
                return shared <= lag, {}
            offsets = await self.committed(group)
            if not offsets or await self._lag(group, offsets) > lag:
                return False, offsets
            found = await self.group(group)
            return found is not None and found.state in IDLE_GROUP_STATES, offsets

        what = f"group {group!r} with a lag of {lag}"
        return await self.wait_until(observe, what, timeout, group=group)

    async def wait_for_dead_letters(
        self, group: str, count: int = 1, timeout: float = WAIT_SECONDS
    ) -> list[DeadLetter]:
        """Wait until the dead-letter queue of a share group has a number of records.

        Args:
            group: Group ID.
            count: Minimum number of dead letters.
            timeout: Maximum seconds to wait.

        Returns:
            All dead letters of the group, the oldest first.

        Raises:
            WaitTimeout: There are fewer dead letters; the message lists the newest ones. If the
                broker cannot write to the queue, the message has the reason.
        """

        async def observe() -> tuple[bool, FoundDeadLetters]:
            topic = await dead_letter_topic(self._cluster, group)
            found = await self._dead_letters(group, topic) if topic is not None else []
            return len(found) >= count, FoundDeadLetters(found)

        what = f"{count} dead letters of group {group!r}"
        try:
            return (await self.wait_until(observe, what, timeout, group=group)).letters
        except WaitTimeout as error:
            problem = await self._dead_letter_problem(group)
            raise WaitTimeout(f"{error}\n{problem}") if problem else error from None

    async def _dead_letter_problem(self, group: str) -> str | None:
        """Return the reason why the broker cannot write dead letters of a group."""
        queue = await dead_letter_queue(self._cluster, group)
        if queue is None:
            return (
                "the group has no dead-letter queue: errors.deadletterqueue.topic.name is not set"
            )
        return queue.problem and f"dead letters cannot be written: {queue.problem}"


def _is_outdated(error: ClientError | KafkaError) -> bool:
    """Return True if a topic or record of an earlier response no longer exists."""
    if isinstance(error, NoSuchTopic):
        return True
    if isinstance(error, CannotRead):
        return error.code == ErrorCode.OFFSET_OUT_OF_RANGE
    return isinstance(error, KafkaError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _to_kafka_record(partition: Partition, record: Record) -> KafkaRecord:
    return KafkaRecord(
        *partition,
        record.offset,
        record.timestamp,
        _bytes(record.key),
        _bytes(record.value),
        tuple(record.headers),
    )


def _without_spaces(value: str | None) -> str:
    """Return a config value without spaces, which brokers remove from lists."""
    return "".join((value or "").split())


def _bytes(data: bytes | memoryview | None) -> bytes | None:
    return None if data is None else bytes(data)


def _partitions(partitions: Iterable[Partition]) -> str:
    return ", ".join(f"{topic}-{index}" for topic, index in partitions) or "nothing"


def _timeout_message(what: str, timeout: float, seen: object, explanation: str) -> str:
    lines = [f"waited {timeout:g} s for {what}; seen last: {_format_observed(seen)}"]
    return "\n".join([*lines, explanation] if explanation else lines)


def _format_observed(seen: object) -> str:
    return "nothing" if seen is None else str(seen)
