"""What a client can do to a broker over the wire. Each function is one round of an attack.

A round ends by itself; that the broker closes the connection is an end as well. Where a broker does
what it must not do, the round raises `Spoilt`.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, suppress
from functools import cache, partial
from http import HTTPStatus
from typing import Any, NamedTuple, TypeAlias

import trio
import trio.lowlevel
from crc32c import crc32c

from kbroker.cluster import INTERNAL_TOPICS
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import compress
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.configs import DescribeConfigsRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.groups import JoinGroupRequest
from kbroker.protocol.messages.metadata import DescribeTopicPartitionsRequest, MetadataRequest
from kbroker.protocol.messages.offsets import OffsetCommitRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.messages.topics import CreateTopicsRequest
from kbroker.protocol.messages.transactions import DescribeProducersRequest
from kbroker.protocol.primitives import write_varint
from kbroker.protocol.records import Record, encode_batch, read_header, with_payload
from kbroker.web.console.api import LIVE_MAX

from ..message_sets import message, wrapper
from ..wire import (
    NEVER,
    Topic,
    batch,
    connected,
    create_topic,
    fetch_request,
    produce_request,
    request,
)
from ..wire import frame as wire_frame
from . import compacted, planted, views

MANY = Topic("many")
PARTITIONS = 3000
SPOILT = Topic("spoilt")
"""The topic that garbage is sent to."""
FRAME_BYTES = 10 << 20
"""A large request, below `socket.request.max.bytes`."""
ROWS = 90_000
"""Below `request.max.elements`."""
TOO_MANY_ROWS = 200_000
LARGE_JOINS = 20
HANDSHAKES = 100
"""Of each who makes some."""
GROUP, PARTITION = 32, 2
GZIP = 1
CODECS = (1, 2, 3, 4)
BATCH_BYTES_MAX = 1_048_588
"""The largest batch that a topic takes by default."""
REFUSED_TOPIC = (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_CRC_AT, _ATTRIBUTES_AT, _LAST_DELTA_AT, _COUNT_AT, _RECORDS_AT = 17, 21, 23, 57, 61


class Spoilt(Exception):
    """The broker has done what it must not do."""


class Target(NamedTuple):
    """Where attacks go: the broker, and what it has of a port for orders, a listener with TLS and a
    schema registry."""

    bootstrap: tuple[str, int]
    hold_seconds: float
    """How long attacks keep what they hold."""
    control: tuple[str, int] | None = None
    secured: tuple[str, int] | None = None
    registry: tuple[str, int] | None = None
    http: tuple[str, int] | None = None
    """Its console, where batches are planted in its log (see `planted`)."""


Attack: TypeAlias = Callable[[Target], Awaitable[None]]


async def prepare(target: Target) -> None:
    """Make the topics that attacks ask for."""
    async with connected(target.bootstrap) as wire:
        known = await wire.ask(ApiKey.METADATA, 9, MetadataRequest(topics=None))
        names = {each.name for each in known.topics}
        if MANY.name not in names:
            await create_topic(wire, MANY.name, PARTITIONS)
        if SPOILT.name not in names:
            await create_topic(wire, SPOILT.name)


frame = partial(wire_frame, client_id="hostile")
"""The bytes of a request."""


async def send_and_hold(target: Target, data: bytes) -> None:
    """Send as far as the broker takes it, and leave the answers where they are."""
    async with connected(target.bootstrap) as wire:
        with trio.move_on_after(target.hold_seconds):
            await wire.send_bytes(data)
            await trio.sleep_forever()


async def ask_all(target: Target, frames: Iterable[bytes]) -> None:
    """Send requests one after the other, each on a connection of its own, and take the answers."""
    for data in frames:
        async with connected(target.bootstrap) as wire, trio.open_nursery() as nursery:
            nursery.start_soon(wire.send_bytes, data)
            await wire.stream.receive_some(4)
            nursery.cancel_scope.cancel()


# -- answers and turns


@cache
def all_metadata() -> bytes:
    return frame(ApiKey.METADATA, 9, MetadataRequest(topics=None))


async def answers_that_nobody_takes(target: Target) -> None:
    await send_and_hold(target, all_metadata() * 2000)


async def answers_behind_a_long_poll(target: Target) -> None:
    poll = frame(ApiKey.FETCH, 12, fetch_request(MANY, max_wait_ms=NEVER))
    await send_and_hold(target, poll + all_metadata() * 500)


@cache
def unknown_rows(count: int) -> bytes:
    """A Produce request to partitions that do not exist."""
    rows = [ProduceRequest.Partition(index=i + 10, records=b"") for i in range(count)]
    topic = ProduceRequest.Topic(name=SPOILT.name, partition_data=rows)
    return frame(ApiKey.PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]))


async def rows_behind_a_long_poll(target: Target) -> None:
    poll = frame(ApiKey.FETCH, 12, fetch_request(MANY, max_wait_ms=NEVER))
    await send_and_hold(target, poll + unknown_rows(4000) * 100)


@cache
def records_of_all_partitions() -> bytes:
    rows = [ProduceRequest.Partition(index=i, records=batch()) for i in range(PARTITIONS)]
    topic = ProduceRequest.Topic(name=MANY.name, partition_data=rows)
    return frame(ApiKey.PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]))


async def records_to_many_partitions(target: Target) -> None:
    await ask_all(target, [records_of_all_partitions()])


async def many_requests_that_cost_little(target: Target) -> None:
    asked = frame(ApiKey.API_VERSIONS, 0, request(ApiKey.API_VERSIONS))
    async with connected(target.bootstrap) as wire, trio.open_nursery() as nursery:
        nursery.start_soon(wire.send_bytes, asked * 5000)
        for _ in range(5000):
            await wire.receive_frame()


# -- memory of requests


def announced(size: int) -> bytes:
    """The beginning of a request of so many bytes."""
    return struct.pack(">ihhih", size, ApiKey.METADATA, 1, 1, -1) + bytes(4)


async def announced_and_not_sent(target: Target) -> None:
    async with connected(target.bootstrap) as wire:
        await wire.send_bytes(announced(FRAME_BYTES))
        for _ in range(8):
            await trio.sleep(target.hold_seconds / 8)
            await wire.send_bytes(b"\0")


async def all_but_one_byte(target: Target) -> None:
    data = announced(FRAME_BYTES)
    await send_and_hold(target, data + bytes(FRAME_BYTES + 3 - len(data)))


async def one_byte_at_a_time(target: Target) -> None:
    asked = frame(ApiKey.API_VERSIONS, 0, request(ApiKey.API_VERSIONS))
    async with connected(target.bootstrap) as wire:
        for i in range(len(asked)):
            await wire.send_bytes(asked[i : i + 1])
            await trio.lowlevel.checkpoint()
        await wire.receive_frame()


# -- one thing many times, and many things


@cache
def repetitions() -> tuple[bytes, ...]:
    """Requests that name one thing again and again."""
    producers = DescribeProducersRequest.Topic(name=MANY.name, partition_indexes=[0] * 20_000)
    keys = ["retention.ms"] * ROWS
    resource = DescribeConfigsRequest.Resource(
        resource_type=PARTITION, resource_name=MANY.name, configuration_keys=keys
    )
    return (
        frame(ApiKey.DESCRIBE_PRODUCERS, 0, DescribeProducersRequest(topics=[producers])),
        frame(
            ApiKey.DESCRIBE_GROUPS, 5, request(ApiKey.DESCRIBE_GROUPS, groups=["polite"] * 20_000)
        ),
        frame(
            ApiKey.DESCRIBE_TRANSACTIONS,
            0,
            request(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=["x"] * 20_000),
        ),
        frame(ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[resource])),
    )


async def one_name_many_times(target: Target) -> None:
    await ask_all(target, repetitions())


@cache
def settings_of_groups() -> bytes:
    rows = [
        DescribeConfigsRequest.Resource(resource_type=GROUP, resource_name=f"group-{i}")
        for i in range(5000)
    ]
    return frame(ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=rows))


async def settings_of_many_groups(target: Target) -> None:
    await ask_all(target, [settings_of_groups()])


def commit(count: int) -> bytes:
    row = OffsetCommitRequest.Partition(partition_index=0, committed_offset=1)
    topic = OffsetCommitRequest.Topic(name=MANY.name, partitions=[row] * count)
    return frame(ApiKey.OFFSET_COMMIT, 7, OffsetCommitRequest(group_id="hostile", topics=[topic]))


def poll_of(count: int) -> bytes:
    row = FetchRequest.Partition(partition=0, fetch_offset=0, partition_max_bytes=1)
    topic = FetchRequest.Topic(topic=MANY.name, partitions=[row] * count)
    return frame(ApiKey.FETCH, 12, FetchRequest(max_wait_ms=0, topics=[topic]))


def deletion(count: int) -> bytes:
    names = [f"{i:x}" for i in range(count)]
    return frame(ApiKey.DELETE_GROUPS, 2, request(ApiKey.DELETE_GROUPS, groups_names=names))


@cache
def long_requests(count: int) -> tuple[bytes, ...]:
    return commit(count), poll_of(count), deletion(count), unknown_rows(count)


async def many_rows(target: Target) -> None:
    await ask_all(target, long_requests(ROWS))


async def too_many_rows(target: Target) -> None:
    await ask_all(target, long_requests(TOO_MANY_ROWS))


@cache
def large_joins() -> list[bytes]:
    """Joins of new groups whose members bring metadata as large as a request may be."""
    protocols = [JoinGroupRequest.Protocol(name="range", metadata=bytes(FRAME_BYTES))]
    return [
        frame(
            ApiKey.JOIN_GROUP,
            1,
            JoinGroupRequest(
                group_id=f"large-{number}",
                session_timeout_ms=1_800_000,
                rebalance_timeout_ms=1_800_000,
                protocol_type="consumer",
                protocols=protocols,
            ),
        )
        for number in range(LARGE_JOINS)
    ]


async def joins_with_large_metadata(target: Target) -> None:
    await ask_all(target, large_joins())


@cache
def missing_names() -> bytes:
    """A request that would create a topic for each of its names."""
    rows = [MetadataRequest.Topic(name=f"missing-{number}") for number in range(ROWS)]
    ask = MetadataRequest(topics=rows, allow_auto_topic_creation=True)
    return frame(ApiKey.METADATA, 9, ask)


async def names_of_many_missing_topics(target: Target) -> None:
    await ask_all(target, [missing_names()])


@cache
def many_descriptions() -> tuple[bytes, ...]:
    """Requests for all partitions of a topic, and for many topics that do not exist."""
    key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    names = [MANY.name], [f"{MANY.name}-{number}" for number in range(ROWS)]
    rows = ([DescribeTopicPartitionsRequest.Topic(name=each) for each in some] for some in names)
    return tuple(frame(key, 0, request(key, topics=each)) for each in rows)


async def descriptions_of_many_topics(target: Target) -> None:
    await ask_all(target, many_descriptions())


@cache
def session() -> bytes:
    rows = [FetchRequest.Partition(partition=i) for i in range(40_000)]
    topic = FetchRequest.Topic(topic="unknown", partitions=rows)
    return frame(ApiKey.FETCH, 12, FetchRequest(max_wait_ms=0, session_epoch=0, topics=[topic]))


async def sessions_of_unknown_partitions(target: Target) -> None:
    await ask_all(target, [session()] * 5)


# -- clients that do not wait


def creation(names: Iterable[str], **fields: Any) -> bytes:
    rows = [
        CreateTopicsRequest.Topic(name=name, num_partitions=1, replication_factor=-1)
        for name in names
    ]
    return frame(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=rows, **fields))


async def asked_and_gone(target: Target) -> None:
    """50 topics and away; they are there, and go in the same way."""
    names = [f"gone-{i}" for i in range(50)]
    async with connected(target.bootstrap) as wire:
        await wire.send_bytes(creation(names))
    asked = request(ApiKey.DELETE_TOPICS, topic_names=names)
    async with connected(target.bootstrap) as wire:
        await wire.send_bytes(frame(ApiKey.DELETE_TOPICS, 5, asked))


# -- garbage


def rewritten(data: bytes, *changes: tuple[int, bytes], records: bytes | None = None) -> bytes:
    """A batch with other bytes at some places, and a good CRC."""
    batch = bytearray(data if records is None else data[:_RECORDS_AT] + records)
    for at, new in changes:
        batch[at : at + len(new)] = new
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, _CRC_AT, crc32c(bytes(batch[_ATTRIBUTES_AT:])))
    return bytes(batch)


@cache
def garbage() -> dict[str, bytes]:
    """Batches that are not what they say."""
    one = encode_batch([Record(None, b"x", 1)])
    gzip = (_ATTRIBUTES_AT, struct.pack(">h", GZIP))

    def claims(count: int) -> list[tuple[int, bytes]]:
        return [
            (_LAST_DELTA_AT, struct.pack(">i", count - 1)),
            (_COUNT_AT, struct.pack(">i", count)),
        ]

    return {
        "what is no gzip": rewritten(one, gzip, *claims(1000), records=b"this is no gzip"),
        "120 bytes of 9,000,000 records": rewritten(
            one, gzip, *claims(9_000_000), records=bytes(59)
        ),
    }


async def garbage_in_batches(target: Target) -> None:
    async with connected(target.bootstrap) as wire:
        for what, batch in garbage().items():
            answer = await wire.ask(ApiKey.PRODUCE, 9, produce_request(SPOILT, batch))
            row = answer.responses[0].partition_responses[0]
            if not row.error_code:
                raise Spoilt(f"{what} was acknowledged")


# -- batches that cost more than their bytes


def batch_of(content: bytes, count: int, codec: int = 0, max_timestamp: int = 0) -> bytes:
    """A batch with a right header and these records."""
    header = read_header(encode_batch([Record(None, b"x", 1)]))._replace(
        attributes=codec,
        record_count=count,
        last_offset_delta=count - 1,
        max_timestamp=max_timestamp,
    )
    return with_payload(header, compress(codec, content))[0]


def tiny_records(count: int) -> bytes:
    """Records of no key, value and headers."""
    deltas = (write_varint(index) for index in range(count))
    return b"".join(
        bytes([2 * (5 + len(delta)), 0, 0]) + delta + b"\x01\x01\x00" for delta in deltas
    )


def record_of(value_bytes: int, headers: int = 0) -> bytes:
    """One record of zeros, with headers of no key and value."""
    body = b"\0\0\0\1" + write_varint(value_bytes) + bytes(value_bytes)
    body += write_varint(headers) + b"\0\1" * headers
    return write_varint(len(body)) + body


def produced(*batches: bytes, version: int = 9) -> bytes:
    """A Produce request with a batch for each of some partitions."""
    rows = [
        ProduceRequest.Partition(index=index, records=memoryview(each))
        for index, each in enumerate(batches)
    ]
    topic = ProduceRequest.Topic(name=MANY.name, partition_data=rows)
    asked = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
    return frame(ApiKey.PRODUCE, version, asked)


@cache
def many_large_batches() -> bytes:
    """Batches of 1 MB whose header says that their records are older than the first."""
    content = tiny_records(115_000)
    batch = batch_of(content, 115_000, max_timestamp=-5)
    return produced(*[batch] * ((2 * FRAME_BYTES - 10_000) // len(batch)))


async def many_records_without_compression(target: Target) -> None:
    await ask_all(target, [many_large_batches()])


@cache
def record_bombs() -> tuple[bytes, ...]:
    """Small batches whose records are many, large, or have many headers."""
    bombs = []
    for codec in CODECS:
        bombs.append(batch_of(tiny_records(490_000), 490_000, codec))
        bombs.append(batch_of(bytes(7 * 490_000), 490_000, codec))
        bombs.append(batch_of(record_of(20 << 20), 1, codec))
        bombs.append(batch_of(record_of(0, 9_000), 1, codec))
        bombs.append(batch_of(record_of(0, 2_000_000), 1, codec))
    return tuple(each for each in bombs if len(each) < BATCH_BYTES_MAX)


async def bombs_of_records(target: Target) -> None:
    await ask_all(target, map(produced, record_bombs()))


async def bombs_for_internal_topics(target: Target) -> None:
    """Send records to the topics that coordinators load. No client may write to them."""
    async with connected(target.bootstrap) as wire:
        for name in INTERNAL_TOPICS:
            for bomb in record_bombs()[:2]:
                asked = produce_request(Topic(name), bomb)
                answer = await wire.ask(ApiKey.PRODUCE, 9, asked)
                code = answer.responses[0].partition_responses[0].error_code
                if code not in REFUSED_TOPIC:
                    raise Spoilt(f"records for {name}: error {code}")


@cache
def bombs_of_old_formats() -> tuple[bytes, ...]:
    """Message sets that are many messages, or one large one, when they are opened."""
    sets = (
        wrapper(message(b"") * 200_000, codec=GZIP),
        wrapper(message(bytes(7 << 20)), codec=GZIP),
        wrapper(message(bytes(40 << 20)), codec=GZIP),
    )
    return tuple(produced(each, version=2) for each in sets)


async def bombs_of_messages(target: Target) -> None:
    await ask_all(target, bombs_of_old_formats())


@cache
def bombs_of_metrics() -> tuple[tuple[int, bytes], ...]:
    """Metrics that are large when they are decompressed, each with its codec."""
    made = ((codec, compress(codec, bytes(20 << 20))) for codec in CODECS)
    return tuple((codec, metrics) for codec, metrics in made if len(metrics) < 1 << 20)


async def bombs_of_client_metrics(target: Target) -> None:
    for codec, metrics in bombs_of_metrics():
        async with connected(target.bootstrap) as wire:
            subscription = await wire.ask(
                ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
                0,
                request(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS),
            )
            push = request(
                ApiKey.PUSH_TELEMETRY,
                client_instance_id=subscription.client_instance_id,
                subscription_id=subscription.subscription_id,
                compression_type=codec,
                metrics=metrics,
            )
            answer = await wire.ask(ApiKey.PUSH_TELEMETRY, 0, push)
            if answer.error_code != ErrorCode.INVALID_RECORD:
                raise Spoilt(f"metrics in codec {codec}: error {answer.error_code}")


async def names_for_terminals(target: Target) -> None:
    """Escapes and ends of lines in every kind of name, and names that are too long for an error."""
    escape = "\x1b]0;owned\x07\x9b31m\r\nERROR all is lost"
    names = [escape, "\x1b" * 30_000, "é" * 16_000]
    async with connected(target.bootstrap) as wire:
        for name in names:
            await wire.send(
                ApiKey.FIND_COORDINATOR,
                4,
                request(ApiKey.FIND_COORDINATOR, coordinator_keys=[name]),
            )
            await wire.receive()
            for key, version, message in (
                (ApiKey.DESCRIBE_GROUPS, 5, request(ApiKey.DESCRIBE_GROUPS, groups=[name])),
                (
                    ApiKey.CREATE_TOPICS,
                    7,
                    CreateTopicsRequest(topics=[CreateTopicsRequest.Topic(name=name)]),
                ),
                (ApiKey.METADATA, 9, MetadataRequest(topics=[MetadataRequest.Topic(name=name)])),
                (
                    ApiKey.DESCRIBE_CONFIGS,
                    4,
                    DescribeConfigsRequest(
                        resources=[
                            DescribeConfigsRequest.Resource(resource_type=7, resource_name=name)
                        ]
                    ),
                ),
            ):
                await wire.send(key, version, message, client_id=name[:1000])
                await wire.receive()


async def web_pages(target: Target) -> None:
    """What a browser sends to a port of its own machine. Orders in it must not be obeyed."""
    assert target.control is not None
    order = b'{"order": "reset"}\r\n'
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(order)
    stream = await trio.open_tcp_stream(*target.control)
    async with stream:
        await stream.send_all(head + order)
        answer = b""
        while more := await stream.receive_some(4096):
            answer += more
        if b'"ok": true' in answer:
            raise Spoilt("the control port obeyed a web page")


# -- TLS


@cache
def client_hello() -> bytes:
    """With what a client begins to speak TLS."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    side = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        side.do_handshake()
    return outgoing.read()


async def handshakes_that_end_halfway(target: Target) -> None:
    """The broker has answered each of them, which costs it some milliseconds, and hears no more."""
    await _begin_handshakes(target, client_hello())


async def handshakes_that_hardly_begin(target: Target) -> None:
    await _begin_handshakes(target, client_hello()[:100])


async def _begin_handshakes(target: Target, data: bytes) -> None:
    assert target.secured is not None
    async with AsyncExitStack() as stack:
        for _ in range(HANDSHAKES):
            stream = await trio.open_tcp_stream(*target.secured)
            await stack.enter_async_context(stream)
            await stream.send_all(data)
        await trio.sleep(target.hold_seconds)


ATTACKS_ON_TLS: dict[Attack, int] = {
    handshakes_that_end_halfway: 10,
    handshakes_that_hardly_begin: 10,
}
"""As `ATTACKS`, where there is a listener with TLS."""


# -- stored batches


async def times_of_stored_batches(target: Target) -> None:
    await planted.times_of_planted_batches(target.bootstrap, target.hold_seconds)


async def stored_batches_for_old_consumers(target: Target) -> None:
    await planted.planted_batches_for_old_consumers(target.bootstrap, target.hold_seconds)


async def stored_batches_for_share_consumers(target: Target) -> None:
    codes = await planted.planted_batches_for_share_consumers(target.bootstrap, target.hold_seconds)
    if codes != {0}:
        raise Spoilt(f"a share fetch is answered with errors {sorted(codes)}")


async def share_groups_that_begin_by_time(target: Target) -> None:
    await planted.share_groups_that_begin_by_time(target.bootstrap, target.hold_seconds)


async def live_views_of_stored_batches(target: Target) -> None:
    assert target.http is not None
    statuses = await views.live_views(target.http, target.hold_seconds)
    if statuses[HTTPStatus.OK] > LIVE_MAX:
        raise Spoilt(f"{statuses[HTTPStatus.OK]} live views at once (maximum: {LIVE_MAX})")
    if others := statuses.keys() - {HTTPStatus.OK, HTTPStatus.TOO_MANY_REQUESTS}:
        raise Spoilt(f"live views are answered with {sorted(others)}")


async def client_metrics_that_take_long_to_read(target: Target) -> None:
    assert target.http is not None
    await views.read_pushed_metrics(target.bootstrap, target.http, target.hold_seconds)


async def compaction_of_stored_batches(target: Target) -> None:
    await compacted.compaction_of_large_batches(target.bootstrap)


async def stored_batches_in_the_console(target: Target) -> None:
    assert target.http is not None
    await planted.ask_console(target.http, target.hold_seconds, "seen")


async def stored_batches_searched_in_the_console(target: Target) -> None:
    assert target.http is not None
    await planted.ask_console(target.http, target.hold_seconds, "searched")


async def terms_over_stored_batches(target: Target) -> None:
    assert target.http is not None
    await planted.ask_console(target.http, target.hold_seconds, "terms")


async def single_records_of_stored_batches(target: Target) -> None:
    assert target.http is not None
    await planted.ask_console(target.http, target.hold_seconds, "single")


ATTACKS_ON_STORED_BATCHES: dict[Attack, int] = {
    times_of_stored_batches: 3,
    stored_batches_for_old_consumers: 3,
    stored_batches_for_share_consumers: 3,
    stored_batches_in_the_console: 2,
    stored_batches_searched_in_the_console: 2,
    terms_over_stored_batches: 2,
    single_records_of_stored_batches: 1,
    share_groups_that_begin_by_time: 3,
    live_views_of_stored_batches: 1,
    client_metrics_that_take_long_to_read: 2,
    compaction_of_stored_batches: 1,
}
"""As `ATTACKS`, where batches are planted."""
ATTACKS_ON_PRODUCE: dict[Attack, int] = {
    many_records_without_compression: 2,
    bombs_of_records: 10,
    bombs_of_messages: 10,
    bombs_for_internal_topics: 2,
    bombs_of_client_metrics: 10,
}
"""As `ATTACKS`, by batches that cost much to check."""
ATTACKS: dict[Attack, int] = {
    answers_that_nobody_takes: 3,
    answers_behind_a_long_poll: 3,
    rows_behind_a_long_poll: 3,
    records_to_many_partitions: 1,
    many_requests_that_cost_little: 2,
    announced_and_not_sent: 30,
    all_but_one_byte: 15,
    one_byte_at_a_time: 10,
    one_name_many_times: 2,
    settings_of_many_groups: 2,
    many_rows: 2,
    too_many_rows: 1,
    descriptions_of_many_topics: 2,
    joins_with_large_metadata: 2,
    names_of_many_missing_topics: 1,
    sessions_of_unknown_partitions: 2,
    asked_and_gone: 2,
    garbage_in_batches: 1,
    names_for_terminals: 2,
}
"""What is done, and on how many connections at the same time."""
