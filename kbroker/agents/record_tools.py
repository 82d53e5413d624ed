"""Tools for records: read a bounded number of them, and write some."""

from __future__ import annotations

import base64
import codecs
import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from kbroker.client.consumer import FOREVER, Read, reading
from kbroker.client.errors import CannotRead
from kbroker.client.ndjson import BadLine, parse_line
from kbroker.client.offset_spec import END, START, Kind, OffsetSpec, check_offsets, find
from kbroker.client.producer import ANY_PARTITION, Producer
from kbroker.client.topic_details import choose_partitions
from kbroker.client.topics import Partition
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import Record

from .parameters import (
    PARTITIONS_MAX,
    Arguments,
    BadArguments,
    Parameter,
    choice,
    flag,
    integer,
    integers,
    now_ms,
    objects,
    offsets,
    parse_past_time_ms,
    text,
    topic,
)
from .results import RESULT_LENGTH_MAX, Result, json_length
from .schemas import DecodedRead, decode
from .tool import DRY_RUN, Effect, Session, Tool

# Maximum and default number of records in a result.
RECORDS_MAX, RECORDS_DEFAULT = 200, 10
# Maximum and default number of bytes of a value in a result; keys and headers have the default.
VALUE_BYTES_MAX, VALUE_BYTES_DEFAULT = 20_000, 2_000
# Maximum number of headers of a record in a result.
HEADERS_MAX = 20
# Maximum number of records and bytes that one call reads from brokers.
SCAN_RECORDS_MAX, SCAN_BYTES_MAX = 20_000, 16 * 1024 * 1024
# Number of newest records per partition that a call with a filter looks at.
NEWEST_SCANNED = 1_000
# Maximum bytes per partition and Fetch request.
FETCH_BYTES = 256 * 1024
# Time limit of reading, below the limit of a call; and of waiting for new records.
READ_SECONDS, WAIT_SECONDS_MAX = 20, 15
# Maximum number of messages, and of their bytes as JSON, that one call writes.
MESSAGES_MAX, MESSAGE_LENGTH_MAX = 100, 1_000_000

# Why a call stopped reading.
END_OF_TOPIC, COUNT, LENGTH, SCANNED, TIME = (
    "end of the partitions",
    "max_records",
    "size of the result",
    "limit of records or bytes read",
    "time limit",
)
POSITIONS = ("newest", "earliest", "upcoming")


@dataclass(slots=True)
class _Collector:
    """Takes records until a limit is reached; `newest` keeps the last ones instead of the first.

    Attributes:
        key: Bytes that the key of each record must contain.
        value: Bytes that its value must contain.
    """

    key: bytes
    value: bytes
    count_max: int
    value_bytes: int
    newest: bool
    scanned: int = 0
    scanned_bytes: int = 0
    stopped_by: str | None = None
    next_offsets: dict[str, int] = field(default_factory=dict)
    _rows: deque[dict[str, object]] = field(default_factory=deque)
    _length: int = 0

    def take(self, found: Iterable[DecodedRead]) -> bool:
        """Take records; return False if a limit is reached."""
        for read, fields in found:
            if self.scanned >= SCAN_RECORDS_MAX or self.scanned_bytes >= SCAN_BYTES_MAX:
                self.stopped_by = SCANNED
                return False
            if self.key in (read.record.key or b"") and self.value in (read.record.value or b""):
                row = record_row(read, self.value_bytes) | fields
                length = json_length(row)
                if not self.newest and self._rows and self._length + length > RESULT_LENGTH_MAX:
                    self.stopped_by = LENGTH
                    return False
                self._rows.append(row)
                self._length += length
            self.scanned += 1
            self.scanned_bytes += sum(len(part or b"") for part in read.record[:2])
            self.next_offsets[str(read.partition[1])] = read.record.offset + 1
            if not self.newest and len(self._rows) == self.count_max:
                self.stopped_by = COUNT
                return False
        if self.newest and len(self._rows) > 2 * self.count_max:
            self._rows = deque(self._newest())
        return True

    def rows(self) -> list[dict[str, object]]:
        """Return the collected records that fit into a result, oldest first."""
        if not self.newest:
            return list(self._rows)
        kept: deque[dict[str, object]] = deque()
        length = 0
        for row in reversed(self._newest()):
            length += json_length(row)
            if kept and length > RESULT_LENGTH_MAX:
                self.stopped_by = LENGTH
                break
            kept.appendleft(row)
        return list(kept)

    def _newest(self) -> list[dict[str, object]]:
        return sorted(self._rows, key=_timestamp)[-self.count_max :]


def _timestamp(row: Mapping[str, object]) -> tuple[int, int]:
    at, offset = row["timestamp"], row["offset"]
    assert isinstance(at, int)
    assert isinstance(offset, int)
    return at, offset


def record_row(read: Read, value_bytes: int) -> dict[str, object]:
    """Return a record as a JSON object of bounded size.

    Args:
        read: The record.
        value_bytes: Maximum number of bytes of its value.
    """
    record = read.record
    row: dict[str, object] = {
        "partition": read.partition[1],
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_bytes_fields("key", record.key, VALUE_BYTES_DEFAULT),
        **_bytes_fields("value", record.value, value_bytes),
    }
    if record.headers:
        row["headers"] = [
            _bytes_fields("key", key.encode(errors="surrogateescape"), VALUE_BYTES_DEFAULT)
            | _bytes_fields("value", value, VALUE_BYTES_DEFAULT)
            for key, value in record.headers[:HEADERS_MAX]
        ]
    if len(record.headers) > HEADERS_MAX:
        row["headers_count"] = len(record.headers)
    return row


def _bytes_fields(name: str, data: bytes | None, most: int) -> dict[str, object]:
    """Return bytes as text, or in base64 if they are not UTF-8; with their size if they are cut."""
    if data is None:
        return {name: None}
    short = data[:most]
    is_cut = len(short) < len(data)
    fields: dict[str, object]
    try:
        # The cut may be within a character, which an incremental decoder leaves out.
        fields = {name: codecs.getincrementaldecoder("utf-8")().decode(short, final=not is_cut)}
    except UnicodeDecodeError:
        fields = {f"{name}_base64": base64.b64encode(short).decode()}
    return fields | ({f"{name}_bytes": len(data), f"{name}_is_cut": True} if is_cut else {})


async def consume_messages(session: Session, arguments: Arguments) -> Result:
    """Return records of a topic; nothing is committed."""
    position, seconds = arguments.text("position"), arguments.number("wait_seconds")
    is_positioned = arguments.given("offsets", "since")
    if len(is_positioned) > 1 or (arguments.given("offsets") and arguments.given("partitions")):
        raise BadArguments(
            "give at most one of `offsets`, `since`, and `partitions` with `offsets`"
        )
    newest = position == "newest" and not is_positioned
    if newest and seconds:
        raise BadArguments(
            "`wait_seconds` needs position upcoming or earliest, `offsets` or `since`"
        )
    if position == "upcoming" and not is_positioned and not seconds:
        raise BadArguments("position upcoming needs `wait_seconds`")
    collector = _Collector(
        (arguments.optional_text("key_contains") or "").encode(),
        (arguments.optional_text("value_contains") or "").encode(),
        arguments.number("max_records"),
        arguments.number("max_value_bytes"),
        newest,
    )
    ranges = await _ranges(session, arguments, newest=newest, forever=seconds > 0)
    with trio.move_on_after(min(seconds or READ_SECONDS, READ_SECONDS)) as scope:
        await _collect(session, ranges, collector, committed=arguments.flag("read_committed"))
    if scope.cancelled_caught:
        collector.stopped_by = TIME
    rows = collector.rows()
    facts: dict[str, object] = {
        "returned": len(rows),
        "scanned": collector.scanned,
        "stopped_by": collector.stopped_by or END_OF_TOPIC,
    }
    if not newest:
        following = {str(one[1]): start for one, (start, _) in ranges.items()}
        facts["next_offsets"] = following | collector.next_offsets
    return Result(facts, {"messages": rows})


async def _collect(
    session: Session,
    ranges: Mapping[Partition, tuple[int, int]],
    collector: _Collector,
    *,
    committed: bool,
) -> None:
    left = {one: bounds for one, bounds in ranges.items() if bounds[0] < bounds[1]}
    if not left:
        return
    async with reading(
        session.cluster, left, committed=committed, bytes_max=FETCH_BYTES
    ) as channel:
        async for found in channel:
            if not collector.take(await decode(session.schemas, found)):
                return


async def _ranges(
    session: Session, arguments: Arguments, *, newest: bool, forever: bool
) -> dict[Partition, tuple[int, int]]:
    """Return the first offset and the end of each partition to read."""
    name, at = arguments.text("topic"), arguments.offsets("offsets")
    chosen = await choose_partitions(
        session.cluster, name, tuple(at or arguments.numbers("partitions"))
    )
    if len(chosen) > PARTITIONS_MAX:
        raise BadArguments(
            f"the topic has {len(chosen)} partitions; give at most {PARTITIONS_MAX} `partitions`"
        )
    since, cluster = arguments.optional_text("since"), session.cluster
    ends = await find(cluster, chosen, END, committed=arguments.flag("read_committed"))
    if at:
        starts = {one: at[one[1]] for one in chosen}
        check_offsets(starts, ends)
        await _check_ends(session, starts)
    elif since is not None:
        starts = await find(
            cluster, chosen, OffsetSpec(Kind.TIME, parse_past_time_ms(since, now_ms()))
        )
    elif newest:
        is_filtered = bool(arguments.given("key_contains", "value_contains"))
        most = max(NEWEST_SCANNED if is_filtered else 0, arguments.number("max_records"))
        each = max(1, min(most, SCAN_RECORDS_MAX // len(chosen)))
        starts = await find(cluster, chosen, OffsetSpec(Kind.END, -each))
    else:
        starts = (
            ends if arguments.text("position") == "upcoming" else await find(cluster, chosen, START)
        )
    return {one: (starts[one], FOREVER if forever else ends[one]) for one in chosen}


async def _check_ends(session: Session, starts: Mapping[Partition, int]) -> None:
    """Raise CannotRead for an offset after the end of its partition, as a broker does.

    The offset may be from a topic that was deleted and created again. Without the error, the agent
    would wait for records that are already there.
    """
    for one, end in (await find(session.cluster, starts, END)).items():
        if starts[one] > end:
            name, index = one
            raise CannotRead(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"partition {index} of {name} ends at offset {end}, before {starts[one]}",
            )


async def produce_messages(session: Session, arguments: Arguments) -> Result:
    """Write records to a topic."""
    name = arguments.text("topic")
    records = _records(arguments.objects("messages"))
    producer = Producer(session.cluster)
    batches: dict[Partition, list[Record]] = {}
    for record, partition in records:
        place = await producer.place(name, record, partition)
        batches.setdefault(place, []).append(record)
    if arguments.flag("dry_run"):
        return Result({"valid": True, "messages": len(records), "applied": False})
    try:
        written = await producer.write(batches)
    except KafkaError as error:
        if len(batches) == 1:
            raise
        raise KafkaError(
            error.code,
            f"{error.message or error.code.name}; messages to other partitions may have been written, "
            "consume_messages shows them",
        ) from None
    rows = [
        {"partition": each.partition[1], "offset": record.offset}
        for each in written
        for record in each.placed
    ]
    return Result({"messages": len(rows), "applied": True, "offsets": rows})


def _records(messages: Sequence[Mapping[str, object]]) -> list[tuple[Record, int]]:
    """Return the records of messages, with their partitions.

    Raises:
        BadArguments: A message is malformed, or the messages are too large.
    """
    written_at_ms = now_ms()
    lines = [json.dumps(each) for each in messages]
    if sum(map(len, lines)) > MESSAGE_LENGTH_MAX:
        raise BadArguments(
            f"messages: larger than {MESSAGE_LENGTH_MAX} characters of JSON; write fewer per call"
        )
    records = []
    for at, line in enumerate(lines):
        try:
            parsed = parse_line(line, written_at_ms)
        except BadLine as error:
            raise BadArguments(f"messages[{at}]: {error}") from None
        partition = ANY_PARTITION if parsed.partition is None else parsed.partition
        records.append((parsed.record, partition))
    return records


_MESSAGE: Final[Mapping[str, Parameter]] = {
    "key": Parameter({"type": ["string", "null"], "description": "Key as text."}),
    "key_base64": Parameter({"type": "string", "description": "Key in base64 instead."}),
    "value": Parameter(
        {
            "description": "Value as text; an object or a list is written as JSON; null is a tombstone."
        }
    ),
    "value_base64": Parameter({"type": "string", "description": "Value in base64 instead."}),
    "partition": integer("Partition. Default: by the key, or a random one.", 0),
    "timestamp": integer("Time in ms since the epoch. Default: now.", 0),
    "headers": Parameter(
        {
            "type": "array",
            "maxItems": HEADERS_MAX,
            "items": {"type": "object"},
            "description": "Headers, such as [{'key': 'source', 'value': 'test'}].",
        }
    ),
}

TOOLS: Final = (
    Tool(
        "consume_messages",
        "Read messages of a topic",
        "Return messages of a topic without joining a group or committing offsets. By default, the "
        "newest ones. To continue, pass `next_offsets` of the result as `offsets`. Bytes that are "
        "not UTF-8 are in base64, except data that a schema registry decodes.",
        Effect.READ,
        consume_messages,
        {
            "topic": topic(),
            "position": choice(
                "Where to read without `offsets` and `since`: the newest messages, from the oldest "
                "one on, or those that arrive within `wait_seconds`.",
                POSITIONS,
                default="newest",
            ),
            "partitions": integers("Only these partitions. Default: all."),
            "offsets": offsets("First offset by partition, such as {'0': 120}; reads only these."),
            "since": text("Read messages from this time on, in ISO 8601."),
            "key_contains": text("Only messages whose key contains this text."),
            "value_contains": text("Only messages whose value contains this text."),
            "max_records": integer(
                "Maximum number of messages.", 1, RECORDS_MAX, default=RECORDS_DEFAULT
            ),
            "max_value_bytes": integer(
                "Maximum bytes of each value; longer values are cut.",
                1,
                VALUE_BYTES_MAX,
                default=VALUE_BYTES_DEFAULT,
            ),
            "read_committed": flag("Skip messages of open and aborted transactions."),
            "wait_seconds": integer(
                "Wait up to this time for new messages.", 0, WAIT_SECONDS_MAX, default=0
            ),
        },
    ),
    Tool(
        "produce_messages",
        "Write messages to a topic",
        "Write messages to an existing topic and return their partitions and offsets. Messages "
        "cannot be taken back.",
        Effect.WRITE,
        produce_messages,
        {
            "topic": topic(),
            "messages": objects("Messages, in order.", _MESSAGE, most=MESSAGES_MAX),
            "dry_run": DRY_RUN,
        },
    ),
)
