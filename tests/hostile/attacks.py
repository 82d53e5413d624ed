"""Attacks of a client on a broker over the wire: each function is one round of an attack.

A round ends by itself, or when the broker closes the connection. If the broker responds wrongly,
the round raises `BrokerMisbehaved`.
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
# The topic that receives garbage.
GARBAGE_TOPIC = Topic("spoilt")
# Size of a large request, below `socket.request.max.bytes`.
FRAME_BYTES = 10 << 20
# Below the limit `request.max.elements`.
ROWS = 90_000
TOO_MANY_ROWS = 200_000
LARGE_JOINS = 20
# Handshakes per attacking client.
HANDSHAKES = 100
GROUP, PARTITION = 32, 2
GZIP = 1
CODECS = (1, 2, 3, 4)
# The default `message.max.bytes`.
BATCH_BYTES_MAX = 1_048_588
REJECTED_TOPIC = (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_CRC_AT, _ATTRIBUTES_AT, _LAST_DELTA_AT, _COUNT_AT, _RECORDS_AT = 17, 21, 23, 57, 61


class BrokerMisbehaved(Exception):
    """The broker responded in a way that it must not."""


class Target(NamedTuple):
    """The attacked broker and its optional endpoints.

    Attributes:
        bootstrap: Plaintext listener.
        hold_seconds: How long attacks keep connections and memory occupied.
        control: Control port.
        secured: TLS listener.
        registry: Schema registry.
        http: Console; its presence means that batches are planted in the log (see `planted`).
    """

    bootstrap: tuple[str, int]
    hold_seconds: float
    control: tuple[str, int] | None = None
    secured: tuple[str, int] | None = None
    registry: tuple[str, int] | None = None
    http: tuple[str, int] | None = None


Attack: TypeAlias = Callable[[Target], Awaitable[None]]


async def prepare(target: Target) -> None:
    """Create the topics that the attacks use."""
    async with connected(target.bootstrap) as wire:
        known = await wire.ask(ApiKey.METADATA, 9, MetadataRequest(topics=None))
        names = {each.name for each in known.topics}
        if MANY.name not in names:
            await create_topic(wire, MANY.name, PARTITIONS)
        if GARBAGE_TOPIC.name not in names:
            await create_topic(wire, GARBAGE_TOPIC.name)


# Encodes a request.
frame = partial(wire_frame, client_id="hostile")


async def send_and_hold(target: Target, data: bytes) -> None:
    """Send as much as the broker accepts, and never read the responses."""
    async with connected(target.bootstrap) as wire:
        with trio.move_on_after(target.hold_seconds):
            await wire.send_bytes(data)
            await trio.sleep_forever()


async def ask_all(target: Target, frames: Iterable[bytes]) -> None:
    """Send requests one after the other, each on a new connection, and wait for the responses."""
    for data in frames:
        async with connected(target.bootstrap) as wire, trio.open_nursery() as nursery:
            nursery.start_soon(wire.send_bytes, data)
            await wire.stream.receive_some(4)
            nursery.cancel_scope.cancel()


# -- responses and time slices


@cache
def all_metadata() -> bytes:
    return frame(ApiKey.METADATA, 9, MetadataRequest(topics=None))


async def responses_never_read(target: Target) -> None:
    await send_and_hold(target, all_metadata() * 2000)


async def responses_behind_a_long_poll(target: Target) -> None:
    poll = frame(ApiKey.FETCH, 12, fetch_request(MANY, max_wait_ms=NEVER))
    await send_and_hold(target, poll + all_metadata() * 500)


@cache
def unknown_rows(count: int) -> bytes:
    """Encode a Produce request for partitions that do not exist."""
    rows = [ProduceRequest.Partition(index=i + 10, records=b"") for i in range(count)]
    topic = ProduceRequest.Topic(name=GARBAGE_TOPIC.name, partition_data=rows)
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


async def many_cheap_requests(target: Target) -> None:
    frame_sent = frame(ApiKey.API_VERSIONS, 0, request(ApiKey.API_VERSIONS))
    async with connected(target.bootstrap) as wire, trio.open_nursery() as nursery:
        nursery.start_soon(wire.send_bytes, frame_sent * 5000)
        for _ in range(5000):
            await wire.receive_frame()


# -- memory of requests


def frame_start(size: int) -> bytes:
    """Encode the beginning of a request of this size in bytes."""
    return struct.pack(">ihhih", size, ApiKey.METADATA, 1, 1, -1) + bytes(4)


async def large_frame_never_sent(target: Target) -> None:
    async with connected(target.bootstrap) as wire:
        await wire.send_bytes(frame_start(FRAME_BYTES))
        for _ in range(8):
            await trio.sleep(target.hold_seconds / 8)
            await wire.send_bytes(b"\0")


async def large_frame_without_last_byte(target: Target) -> None:
    data = frame_start(FRAME_BYTES)
    await send_and_hold(target, data + bytes(FRAME_BYTES + 3 - len(data)))


async def one_byte_at_a_time(target: Target) -> None:
    frame_sent = frame(ApiKey.API_VERSIONS, 0, request(ApiKey.API_VERSIONS))
    async with connected(target.bootstrap) as wire:
        for i in range(len(frame_sent)):
            await wire.send_bytes(frame_sent[i : i + 1])
            await trio.lowlevel.checkpoint()
        await wire.receive_frame()


# -- repeated and numerous elements


@cache
def repetitions() -> tuple[bytes, ...]:
    """Encode requests that repeat one name many times."""
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
    """Encode joins of new groups with the largest possible member metadata."""
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
    """Encode a Metadata request that would create a topic for each of its names."""
    rows = [MetadataRequest.Topic(name=f"missing-{number}") for number in range(ROWS)]
    ask = MetadataRequest(topics=rows, allow_auto_topic_creation=True)
    return frame(ApiKey.METADATA, 9, ask)


async def names_of_many_missing_topics(target: Target) -> None:
    await ask_all(target, [missing_names()])


@cache
def many_descriptions() -> tuple[bytes, ...]:
    """Encode descriptions of all partitions of a topic, and of many missing topics."""
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


# -- clients that disconnect


def creation(names: Iterable[str], **fields: Any) -> bytes:
    rows = [
        CreateTopicsRequest.Topic(name=name, num_partitions=1, replication_factor=-1)
        for name in names
    ]
    return frame(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=rows, **fields))


async def requests_of_disconnected_clients(target: Target) -> None:
    """Create 50 topics without waiting, then delete them in the same way."""
    names = [f"gone-{i}" for i in range(50)]
    async with connected(target.bootstrap) as wire:
        await wire.send_bytes(creation(names))
    delete = request(ApiKey.DELETE_TOPICS, topic_names=names)
    async with connected(target.bootstrap) as wire:
        await wire.send_bytes(frame(ApiKey.DELETE_TOPICS, 5, delete))


# -- garbage


def rewritten(data: bytes, *changes: tuple[int, bytes], records: bytes | None = None) -> bytes:
    """Return a changed batch with a correct CRC."""
    batch = bytearray(data if records is None else data[:_RECORDS_AT] + records)
    for at, new in changes:
        batch[at : at + len(new)] = new
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, _CRC_AT, crc32c(bytes(batch[_ATTRIBUTES_AT:])))
    return bytes(batch)


@cache
def garbage() -> dict[str, bytes]:
    """Return batches whose headers do not match their content."""
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
        for name, batch in garbage().items():
            response = await wire.ask(ApiKey.PRODUCE, 9, produce_request(GARBAGE_TOPIC, batch))
            row = response.responses[0].partition_responses[0]
            if not row.error_code:
                raise BrokerMisbehaved(f"invalid batch was acknowledged: {name}")


# -- batches that expand


def batch_of(content: bytes, count: int, codec: int = 0, max_timestamp: int = 0) -> bytes:
    """Return a batch of these records with a correct header."""
    header = read_header(encode_batch([Record(None, b"x", 1)]))._replace(
        attributes=codec,
        record_count=count,
        last_offset_delta=count - 1,
        max_timestamp=max_timestamp,
    )
    return with_payload(header, compress(codec, content))[0]


def tiny_records(count: int) -> bytes:
    """Return records without key, value and headers."""
    deltas = (write_varint(index) for index in range(count))
    return b"".join(
        bytes([2 * (5 + len(delta)), 0, 0]) + delta + b"\x01\x01\x00" for delta in deltas
    )


def record_of(value_bytes: int, headers: int = 0) -> bytes:
    """Return one record of zeros, with headers of empty key and null value."""
    body = b"\0\0\0\1" + write_varint(value_bytes) + bytes(value_bytes)
    body += write_varint(headers) + b"\0\1" * headers
    return write_varint(len(body)) + body


def produced(*batches: bytes, version: int = 9) -> bytes:
    """Encode a Produce request with one batch per partition."""
    rows = [
        ProduceRequest.Partition(index=index, records=memoryview(each))
        for index, each in enumerate(batches)
    ]
    topic = ProduceRequest.Topic(name=MANY.name, partition_data=rows)
    produce = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
    return frame(ApiKey.PRODUCE, version, produce)


@cache
def many_large_batches() -> bytes:
    """Encode batches of 1 MB whose max timestamp is before their first record."""
    content = tiny_records(115_000)
    batch = batch_of(content, 115_000, max_timestamp=-5)
    return produced(*[batch] * ((2 * FRAME_BYTES - 10_000) // len(batch)))


async def many_records_without_compression(target: Target) -> None:
    await ask_all(target, [many_large_batches()])


@cache
def record_bombs() -> tuple[bytes, ...]:
    """Return small batches with many records, large records or many headers."""
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
    """Produce to internal topics, which no client may write."""
    async with connected(target.bootstrap) as wire:
        for name in INTERNAL_TOPICS:
            for bomb in record_bombs()[:2]:
                request = produce_request(Topic(name), bomb)
                response = await wire.ask(ApiKey.PRODUCE, 9, request)
                code = response.responses[0].partition_responses[0].error_code
                if code not in REJECTED_TOPIC:
                    raise BrokerMisbehaved(f"records for {name}: error {code}")


@cache
def bombs_of_old_formats() -> tuple[bytes, ...]:
    """Encode message sets that expand to many messages or a large one."""
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
    """Return client metrics that expand on decompression, with their codecs."""
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
            response = await wire.ask(ApiKey.PUSH_TELEMETRY, 0, push)
            if response.error_code != ErrorCode.INVALID_RECORD:
                raise BrokerMisbehaved(f"metrics in codec {codec}: error {response.error_code}")


async def names_for_terminals(target: Target) -> None:
    """Send escape sequences, line breaks and overlong text in all kinds of names."""
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
    """Send a browser's cross-site request to the control port, which must not execute it."""
    assert target.control is not None
    order = b'{"order": "reset"}\r\n'
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(order)
    stream = await trio.open_tcp_stream(*target.control)
    async with stream:
        await stream.send_all(head + order)
        response = b""
        while more := await stream.receive_some(4096):
            response += more
        if b'"ok": true' in response:
            raise BrokerMisbehaved("the control port executed a command from a web page")


# -- TLS


@cache
def client_hello() -> bytes:
    """Return the TLS ClientHello of a client."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    side = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        side.do_handshake()
    return outgoing.read()


async def half_finished_handshakes(target: Target) -> None:
    """Abandon handshakes after the broker's first response, which costs it some ms."""
    await _begin_handshakes(target, client_hello())


async def barely_started_handshakes(target: Target) -> None:
    await _begin_handshakes(target, client_hello()[:100])


async def _begin_handshakes(target: Target, data: bytes) -> None:
    assert target.secured is not None
    async with AsyncExitStack() as stack:
        for _ in range(HANDSHAKES):
            stream = await trio.open_tcp_stream(*target.secured)
            await stack.enter_async_context(stream)
            await stream.send_all(data)
        await trio.sleep(target.hold_seconds)


# Attacks on a TLS listener, with the number of concurrent clients.
ATTACKS_ON_TLS: dict[Attack, int] = {
    half_finished_handshakes: 10,
    barely_started_handshakes: 10,
}


# -- stored batches


async def times_of_stored_batches(target: Target) -> None:
    await planted.times_of_planted_batches(target.bootstrap, target.hold_seconds)


async def stored_batches_for_old_consumers(target: Target) -> None:
    await planted.planted_batches_for_old_consumers(target.bootstrap, target.hold_seconds)


async def stored_batches_for_share_consumers(target: Target) -> None:
    codes = await planted.planted_batches_for_share_consumers(target.bootstrap, target.hold_seconds)
    if codes != {0}:
        raise BrokerMisbehaved(f"ShareFetch returned errors {sorted(codes)}")


async def share_groups_reset_by_time(target: Target) -> None:
    await planted.share_groups_reset_by_time(target.bootstrap, target.hold_seconds)


async def live_views_of_stored_batches(target: Target) -> None:
    assert target.http is not None
    statuses = await views.live_views(target.http, target.hold_seconds)
    if statuses[HTTPStatus.OK] > LIVE_MAX:
        raise BrokerMisbehaved(
            f"{statuses[HTTPStatus.OK]} live views at once (maximum: {LIVE_MAX})"
        )
    if unexpected := statuses.keys() - {HTTPStatus.OK, HTTPStatus.TOO_MANY_REQUESTS}:
        raise BrokerMisbehaved(f"live views returned HTTP statuses {sorted(unexpected)}")


async def expensive_client_metrics(target: Target) -> None:
    assert target.http is not None
    await views.read_pushed_metrics(target.bootstrap, target.http, target.hold_seconds)


async def compaction_of_stored_batches(target: Target) -> None:
    await compacted.compaction_of_large_batches(target.bootstrap)


async def stored_batches_in_the_console(target: Target) -> None:
    assert target.http is not None
    await planted.query_console(target.http, target.hold_seconds, "seen")


async def stored_batches_searched_in_the_console(target: Target) -> None:
    assert target.http is not None
    await planted.query_console(target.http, target.hold_seconds, "searched")


async def terms_over_stored_batches(target: Target) -> None:
    assert target.http is not None
    await planted.query_console(target.http, target.hold_seconds, "terms")


async def single_records_of_stored_batches(target: Target) -> None:
    assert target.http is not None
    await planted.query_console(target.http, target.hold_seconds, "single")


# Attacks on planted batches, with the number of concurrent clients.
ATTACKS_ON_STORED_BATCHES: dict[Attack, int] = {
    times_of_stored_batches: 3,
    stored_batches_for_old_consumers: 3,
    stored_batches_for_share_consumers: 3,
    stored_batches_in_the_console: 2,
    stored_batches_searched_in_the_console: 2,
    terms_over_stored_batches: 2,
    single_records_of_stored_batches: 1,
    share_groups_reset_by_time: 3,
    live_views_of_stored_batches: 1,
    expensive_client_metrics: 2,
    compaction_of_stored_batches: 1,
}
# Attacks with batches that are expensive to validate, with the number of concurrent clients.
ATTACKS_ON_PRODUCE: dict[Attack, int] = {
    many_records_without_compression: 2,
    bombs_of_records: 10,
    bombs_of_messages: 10,
    bombs_for_internal_topics: 2,
    bombs_of_client_metrics: 10,
}
# All other attacks, with the number of concurrent clients.
ATTACKS: dict[Attack, int] = {
    responses_never_read: 3,
    responses_behind_a_long_poll: 3,
    rows_behind_a_long_poll: 3,
    records_to_many_partitions: 1,
    many_cheap_requests: 2,
    large_frame_never_sent: 30,
    large_frame_without_last_byte: 15,
    one_byte_at_a_time: 10,
    one_name_many_times: 2,
    settings_of_many_groups: 2,
    many_rows: 2,
    too_many_rows: 1,
    descriptions_of_many_topics: 2,
    joins_with_large_metadata: 2,
    names_of_many_missing_topics: 1,
    sessions_of_unknown_partitions: 2,
    requests_of_disconnected_clients: 2,
    garbage_in_batches: 1,
    names_for_terminals: 2,
}
