"""Two brokers that get the same requests. Each has its own IDs of topics, producers and sessions.

Requests are built per broker. Responses are compared after each broker's own values were replaced
by common ones.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

from harness.admin_calls import of, request
from harness.brokers import Broker
from harness.compare import IDENTITIES, Comparison
from harness.raw import NoAnswer, RawConnection
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import iter_headers, read_records
from kbroker.protocol.schema import Struct, fields

SETTLE_SECONDS = 5.0
START_SECONDS = 60.0
# A time of a broker's clock in a response is this close to the current time.
RECENT_MS = 300_000
RECENT = "recent"
NO_ID = UUID(int=0)
# Number of earlier calls in the report of a difference.
REPORTED_CALLS = 25
RESPONSE_CHARACTERS = 600
# Errors of a broker that is not ready yet, or still completes the previous request.
NOT_YET = frozenset(
    (
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    )
)


class Differs(AssertionError):
    """The responses differ. The message contains the last calls."""


@dataclass
class Side:
    """One of the two brokers.

    Attributes:
        topics: Its topic IDs by name.
        producers: ID and epoch of its producers, by name.
        own: Other values of an area, by name.
    """

    address: str
    topics: dict[str, UUID] = field(default_factory=dict)
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    _topic_names: dict[UUID, str] = field(default_factory=dict)
    _producer_names: dict[int, str] = field(default_factory=dict)
    _connections: dict[str, RawConnection] = field(default_factory=dict)

    def ask(self, key: ApiKey, version: int, message: Any, connection: str = "") -> Any:
        """Return the response, or None if the broker closed the connection."""
        try:
            if connection not in self._connections:
                self._connections[connection] = RawConnection(self.address)
            return self._connections[connection].ask(key, version, message)
        except (NoAnswer, OSError):
            self.close(connection)
            return None

    def close(self, connection: str | None = None) -> None:
        """Close a connection, or all connections."""
        for name in [connection] if connection is not None else list(self._connections):
            if name in self._connections:
                self._connections.pop(name).close()

    def add_topic(self, name: str, topic_id: UUID) -> None:
        self.topics[name] = topic_id
        self._topic_names[topic_id] = name

    def add_producer(self, name: str, producer_id: int, epoch: int) -> None:
        self.producers[name] = producer_id, epoch
        count = len({each for each in self._producer_names.values() if each.startswith(name)})
        self._producer_names.setdefault(producer_id, f"{name} {count + 1}")

    def topic_name(self, topic_id: UUID) -> str:
        return "" if topic_id == NO_ID else self._topic_names.get(topic_id, "an unknown ID")

    def producer_name(self, producer_id: int) -> int | str:
        return self._producer_names.get(producer_id, producer_id)


Message: TypeAlias = Struct | Callable[[Side], Struct]


class Pair:
    """Both brokers and the comparison of their responses.

    Attributes:
        sides: kbroker and Apache Kafka.
        times: Times (ms) that the history wrote. Any other time close to now is a broker's clock.
        has_restarted: True if leader epochs are not compared, because both brokers have restarted.
    """

    def __init__(self, brokers: Sequence[Broker], comparison: Comparison) -> None:
        self.brokers = brokers
        self.comparison = comparison
        self.sides = [Side(broker.address) for broker in brokers]
        self.times: set[int] = set()
        self.has_restarted = False
        self.calls = 0
        self._report: deque[str] = deque(maxlen=REPORTED_CALLS)
        self.wait_until_ready()

    def begin(self) -> None:
        """Begin another history. The topics and groups of the previous one remain."""
        self._report.clear()
        self.times.clear()
        for side in self.sides:
            side.own.clear()

    def close(self) -> None:
        for side in self.sides:
            side.close()

    def ask(
        self,
        key: ApiKey,
        version: int,
        message: Message,
        *,
        again: bool = False,
        retried: Collection[int] = NOT_YET,
        connection: str = "",
        ignores: Collection[str] = (),
    ) -> list[Any]:
        """Send a request to both brokers, and return their responses.

        Args:
            key: API of the request.
            version: Version of the request.
            message: The request, or a function that builds it for a broker.
            again: Repeat a read-only request while the responses differ.
            retried: Error codes after which the request is repeated.
            connection: Name of the connection.
            ignores: Names of fields that are not compared.

        Raises:
            Differs: The responses differ.
        """
        self.calls += 1
        messages = [message(side) if callable(message) else message for side in self.sides]
        name = f"{self.calls}: {key.api_name} v{version}"
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            answers = [
                self._answer(side, key, version, each, retried, connection)
                for side, each in zip(self.sides, messages, strict=True)
            ]
            found, theirs = self._compare(name, key, version, answers, ignores)
            if not found or not again or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        shown = _as_text(self._common(self.sides[1], messages[1], version))
        self._report.append(f"{name} {shown}\n    -> {_as_text(theirs)[:RESPONSE_CHARACTERS]}")
        if found:
            raise Differs("\n".join([*self._report, *map(str, found)]))
        return answers

    def wait(
        self, key: ApiKey, version: int, message: Message, is_done: Callable[[Any], bool]
    ) -> None:
        """Repeat a request at each broker until its response satisfies a condition."""
        for side in self.sides:
            deadline = time.monotonic() + SETTLE_SECONDS * 3
            while not is_done(
                side.ask(key, version, message(side) if callable(message) else message)
            ):
                if time.monotonic() > deadline:
                    raise Differs("\n".join([*self._report, f"{side.address} does not finish"]))
                time.sleep(0.01)

    def _answer(
        self,
        side: Side,
        key: ApiKey,
        version: int,
        message: Any,
        retried: Collection[int],
        connection: str,
    ) -> Any:
        deadline = time.monotonic() + SETTLE_SECONDS * 3
        while True:
            answer = side.ask(key, version, message, connection)
            if answer is None or time.monotonic() > deadline:
                return answer
            if not any(code in retried for code in error_codes(answer)):
                return answer
            time.sleep(0.01)

    def _compare(
        self,
        name: str,
        key: ApiKey,
        version: int,
        answers: list[Any],
        ignores: Collection[str],
    ) -> tuple[list[Any], Any]:
        if key is ApiKey.FETCH:
            for answer in answers:
                _merge_topics(answer)
        if None in answers:
            found = self.comparison.compare_presence(name, key, version, *answers)
            return found, "connection closed" if answers[1] is None else answers[1]
        ours, theirs = (
            self._common(side, answer, version)
            for side, answer in zip(self.sides, answers, strict=True)
        )
        found = self.comparison.compare(name, key, version, ours, theirs)
        return [each for each in found if each.place.rpartition(".")[2] not in ignores], theirs

    # -- the values of one broker

    def _common(self, side: Side, value: Any, version: int) -> Any:
        """Replace the broker's own values, and sort rows independently of hash tables."""
        if isinstance(value, Struct):
            parts = {
                each.name: self._common_field(side, each.name, getattr(value, each.name), version)
                for each in fields(type(value))
            }
            _drop_later_aborts(parts)
            for name in ("name", "topic"):
                if parts.get(name) == "" and parts.get("topic_id"):
                    parts[name] = parts["topic_id"]
            return type(value)(**parts)
        if isinstance(value, list):
            return sorted((self._common(side, each, version) for each in value), key=_sort_key)
        if isinstance(value, UUID):
            return side.topic_name(value)
        return bytes(value) if isinstance(value, (bytearray, memoryview)) else value

    def _common_field(self, side: Side, name: str, value: Any, version: int) -> Any:
        if name in ("records", "raw_records") and value is not None and not isinstance(value, list):
            return self._batches(side, bytes(value))
        if name.endswith("producer_id"):
            return side.producer_name(value)
        if name in ("leader_epoch", "coordinator_epoch") and self.has_restarted:
            return None
        if "time" in name and type(value) is int:
            return self._time(value)
        return self._common(side, value, version)

    def _time(self, value: int) -> int | str:
        is_clock = value not in self.times and abs(value - time.time() * 1000) < RECENT_MS
        return RECENT if is_clock else value

    def _batches(self, side: Side, raw: bytes) -> list[tuple[Any, ...]]:
        """Return the comparable parts of the whole batches. Kafka may append a part of another."""
        found = []
        for position, header in iter_headers(raw):
            batch = raw[position : position + header.size]
            if len(batch) < header.size:
                break
            producer = side.producer_name(header.producer_id)
            # Compressed sizes depend on the library.
            kept = header._replace(
                crc=0, batch_length=0, producer_id=0, base_timestamp=0, max_timestamp=0
            )
            if self.has_restarted:
                kept = kept._replace(leader_epoch=0)
            if header.is_control:
                found.append((kept, producer))
                continue
            records = [
                each._replace(timestamp=self._time(each.timestamp))  # type: ignore[arg-type]
                for each in read_records(batch)
            ]
            times = self._time(header.base_timestamp), self._time(header.max_timestamp)
            found.append((kept, producer, times, records))
        return found

    # -- topics and restarts

    def create(self, name: str, partitions: int, **configs: object) -> None:
        """Create a topic on both brokers; underscores in the names of configs stand for dots."""
        key = ApiKey.CREATE_TOPICS
        rows = [
            of(key, "Config", name=each.replace("_", "."), value=str(value))
            for each, value in configs.items()
        ]
        topic = of(
            key, "Topic", name=name, num_partitions=partitions, replication_factor=1, configs=rows
        )
        self.ask(key, 4, request(key, topics=[topic], timeout_ms=30_000))
        self.learn(name)

    def learn(self, name: str) -> None:
        """Wait until a topic has leaders, and store its ID."""
        key = ApiKey.METADATA
        message = request(key, topics=[of(key, "Topic", name=name)])
        for side in self.sides:
            deadline = time.monotonic() + START_SECONDS
            while True:
                (topic,) = side.ask(key, 12, message).topics
                if topic.partitions and _leads_all(side, [topic]):
                    break
                if time.monotonic() > deadline:
                    raise Differs(f"{side.address} has no leaders of {name}")
                time.sleep(0.02)
            side.add_topic(name, topic.topic_id)

    def restart(self) -> None:
        """Kill both brokers without warning, and start them again."""
        self._report.append("(both brokers are killed and started again)")
        self.has_restarted = True
        # Kill both before locks expire, and before brokers see closed connections, which release locks.
        for broker in self.brokers:
            broker.kill()
        self.close()
        for broker in self.brokers:
            broker.launch()
        for broker, side in zip(self.brokers, self.sides, strict=True):
            broker.wait_until_ready()
            side.address = broker.address
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until both brokers lead all partitions and have all coordinators."""
        for side in self.sides:
            deadline = time.monotonic() + START_SECONDS
            while not _is_ready(side):
                if time.monotonic() > deadline:
                    raise Differs(f"{side.address} is not ready")
                time.sleep(0.1)


def _is_ready(side: Side) -> bool:
    metadata = side.ask(ApiKey.METADATA, 12, request(ApiKey.METADATA, topics=None))
    if metadata is None or not metadata.brokers:
        return False
    if not _leads_all(side, metadata.topics):
        return False
    key = ApiKey.FIND_COORDINATOR
    for kind, name in ((0, "a"), (1, "a"), (2, "a:AAAAAAAAAAAAAAAAAAAAAQ:0")):
        answer = side.ask(key, 6, request(key, key_type=kind, coordinator_keys=[name]))
        if answer is None or answer.coordinators[0].error_code:
            return False
    return True


def _leads_all(side: Side, topics: Sequence[Any]) -> bool:
    """Return True if the broker serves all partitions. Kafka shows leaders a little earlier."""
    key = ApiKey.LIST_OFFSETS
    rows = []
    for topic in topics:
        partitions = [
            of(key, "Partition", partition_index=each.partition_index, timestamp=-1)
            for each in topic.partitions
        ]
        rows.append(of(key, "Topic", name=topic.name, partitions=partitions))
    answer = side.ask(key, 5, request(key, replica_id=-1, topics=rows))
    return answer is not None and not any(error_codes(answer))


def error_codes(value: Any) -> Iterator[int]:
    """Yield all error codes in a response."""
    if isinstance(value, list):
        for each in value:
            yield from error_codes(each)
    elif isinstance(value, Struct):
        for each in fields(type(value)):
            part = getattr(value, each.name)
            if each.name.endswith("error_code"):
                yield part
            else:
                yield from error_codes(part)


def _merge_topics(answer: Any) -> None:
    """Merge rows of the same topic. Both brokers repeat it if it is not in one sequence."""
    rows: dict[Any, Any] = {}
    for row in answer.responses if answer is not None else ():
        first = rows.setdefault((row.topic, row.topic_id), row)
        if first is not row:
            first.partitions.extend(row.partitions)
    if answer is not None:
        answer.responses = list(rows.values())


def _drop_later_aborts(parts: dict[str, Any]) -> None:
    """Drop aborted transactions that begin after the returned records. Kafka may list them."""
    if "aborted_transactions" in parts:
        batches = parts["records"] or []
        end = max((batch[0].last_offset for batch in batches), default=-1)
        aborted = parts["aborted_transactions"] or []
        parts["aborted_transactions"] = [each for each in aborted if each.first_offset <= end]


def _sort_key(row: Any) -> str:
    if isinstance(row, int):
        return f"{row:020}"
    if not isinstance(row, Struct):
        return _as_text(row)
    names = ("topic_id", *IDENTITIES)
    return " ".join(_sort_key(getattr(row, name, "")) for name in names) + _as_text(row)


def _as_text(message: Any) -> str:
    """Return a message as text, without fields that have their default value."""
    if isinstance(message, Struct):
        parts = [
            f"{each.name}={_as_text(value)}"
            for each in fields(type(message))
            if (value := getattr(message, each.name))
            not in (
                *(None, "", [], NO_ID),
                type(message).DEFAULTS[each.name],
            )
        ]
        return f"({' '.join(parts)})"
    if isinstance(message, list):
        return f"[{', '.join(map(_as_text, message))}]"
    return repr(message)
