"""Malformed request bodies for every served API and version."""

from __future__ import annotations

import logging
import random
import struct
import uuid
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.handlers.registry import load_apis
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages import request_class
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.produce import ProduceRequest

from ..brokers import started
from ..wire import (
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    fetch,
    fetch_request,
    list_offset,
    produce,
    produce_request,
    request,
    values_of,
)
from .harness import SENTINEL_ID, ErrorCollector, check_answer, correlation, exchange, split_frames
from .tokens import Token, tokens, uvarint
from .world import VALID, make_world

NUMBERS = (-(2**31), -2, -1, 0, 9999, 2**31 - 1)
VARINTS = (
    b"\x00",  # null
    b"\x01",  # empty
    b"\x80",  # continues in the next byte
    b"\xff\xff\xff\xff\x0f",  # 2^32 - 1
    b"\xff\xff\xff\xff\x7f",  # more than 32 bits
    b"\x80" * 10 + b"\x01",  # too long
    uvarint(9999),
)
TAGS = (
    b"\x01\x63\x00",  # an unknown tag
    b"\x01\x63\xff\xff\xff\xff\x0f",  # a tag longer than the frame
    b"\x80\x89\xc4\x09",  # a count of twenty million
    b"\x41" + b"\x63\x00" * 65,
)


def malformed(token: Token) -> list[bytes]:
    """Return the malformed replacements of a token."""
    if token.kind == "tags":
        return list(TAGS)
    if token.kind not in ("length", "count"):
        return [b"\xff" * len(token.data)] if token.kind == "text" and token.data else []
    if token.compact:
        return [data for data in VARINTS if data != token.data]
    bits = len(token.data) * 8
    numbers = {max(n, -(2 ** (bits - 1))) for n in NUMBERS} - {token.value}
    form = ">h" if bits == 16 else ">i"
    return [struct.pack(form, min(n, 2 ** (bits - 1) - 1)) for n in sorted(numbers)]


@pytest.mark.slow
@pytest.mark.parametrize("key", VALID, ids=lambda key: key.name)
async def test_every_malformed_length_count_and_tag_gets_valid_response_or_close(
    key: ApiKey,
) -> None:
    """Each length is once null, empty, negative, huge and overlong, and each text once invalid."""
    apis = load_apis()
    alarm = ErrorCollector()
    logging.getLogger("kbroker").addHandler(alarm)
    tried = 0
    try:
        async with started() as broker:
            async with connected(broker.endpoint) as wire:
                world = await make_world(wire)
            for version in apis[key].versions:
                parts = tokens(VALID[key](world, random.Random(version)), version)
                head = struct.pack(">hhih", key, version, 1, -1)
                if request_class(key).is_flexible(version):
                    head += b"\x00"
                for at, token in enumerate(parts):
                    for data in malformed(token):
                        changed = [*parts[:at], Token("", data), *parts[at + 1 :]]
                        frame = head + b"".join(each.data for each in changed)
                        sent, _ = await exchange(broker.node, apis, frame)
                        check_sent(frame, sent, f"version {version}, token {at} = {data.hex()}")
                        tried += 1
                assert broker.node.context.error_log.unhandled_errors == 0, alarm.messages
    finally:
        logging.getLogger("kbroker").removeHandler(alarm)
    assert alarm.messages == []
    print(key.name, tried)
    assert tried >= len(apis[key].versions)


def check_sent(frame: bytes, sent: bytes, description: str) -> None:
    """Check that the bytes are at most one valid response."""
    responses = split_frames(sent)
    assert responses is not None, description
    if responses and correlation(responses[-1]) == SENTINEL_ID:
        responses.pop()
    assert len(responses) <= 1, description
    for response in responses:
        assert check_answer(frame, response) == "", description


@pytest.mark.slow
@pytest.mark.parametrize("key", VALID, ids=lambda key: key.name)
async def test_bytes_after_body_are_ignored(broker: Broker, wire: Wire, key: ApiKey) -> None:
    """Apache Kafka ignores them as well."""
    world = await make_world(wire)
    apis = load_apis()
    for version in apis[key].versions:
        message = VALID[key](world, random.Random(1))
        if key == ApiKey.PRODUCE:
            message.acks = 1
        data = b"".join(token.data for token in tokens(message, version)) + b"\x00more"
        head = struct.pack(">hhih", key, version, 1, -1)
        if request_class(key).is_flexible(version):
            head += b"\x00"
        sent, cut_off = await exchange(broker.node, apis, head + data)
        assert not cut_off
        check_sent(head + data, sent, f"version {version}")


@pytest.mark.slow
@pytest.mark.parametrize("key", VALID, ids=lambda key: key.name)
async def test_request_with_empty_arrays_gets_response(
    broker: Broker, wire: Wire, key: ApiKey
) -> None:
    """CVE-2026-83525: a request with empty arrays gets a response."""
    find = request(ApiKey.FIND_COORDINATOR, key="g")
    await wire.ask(ApiKey.FIND_COORDINATOR, 0, find)
    for version in load_apis()[key].versions:
        fields: dict[str, Any] = {"acks": 1} if key == ApiKey.PRODUCE else {}
        if key == ApiKey.API_VERSIONS:
            fields = {"client_software_name": "a", "client_software_version": "1"}
        await wire.ask(key, version, request(key, **fields))
    assert broker.node.context.error_log.unhandled_errors == 0


# -- values


@pytest.fixture
async def topic(wire: Wire) -> Topic:
    """Return a topic with three records."""
    made = await create_topic(wire, "t")
    await produce(wire, made, batch([b"0", b"1", b"2"]))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("acks", [2, -2, 127, 32767, -32768])
@pytest.mark.parametrize("version", range(3, 14))
async def test_invalid_acks_are_rejected(wire: Wire, topic: Topic, version: int, acks: int) -> None:
    row = await produce(wire, topic, batch(), version, acks=acks)
    assert row.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert (row.base_offset, row.log_append_time_ms) == (-1, -1)
    assert (await fetch(wire, topic)).high_watermark == 3


@pytest.mark.parametrize("timeout_ms", [-1, -(2**31), 0])
async def test_expired_produce_timeout_does_not_prevent_append(
    wire: Wire, topic: Topic, timeout_ms: int
) -> None:
    """The records are appended; the response depends on how long that took."""
    row = await produce(wire, topic, batch([b"3"]), timeout_ms=timeout_ms)
    assert row.error_code in (0, ErrorCode.REQUEST_TIMED_OUT)
    assert values_of(await fetch(wire, topic))[3:] == [b"3"]


@pytest.mark.parametrize("partition", [-1, 1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS])
async def test_missing_partition_returns_unknown_topic_or_partition(
    wire: Wire, topic: Topic, key: ApiKey, partition: int
) -> None:
    if key == ApiKey.PRODUCE:
        row = await produce(wire, topic, batch(), partition=partition)
    elif key == ApiKey.FETCH:
        row = await fetch(wire, topic, partitions=[partition])
    else:
        row = await list_offset(wire, topic, -1, partition=partition)
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("offset", [-1, -(2**63), 4, 2**63 - 1])
async def test_offset_outside_log_returns_offset_out_of_range(
    wire: Wire, topic: Topic, offset: int
) -> None:
    row = await fetch(wire, topic, offset)
    assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (row.high_watermark, row.last_stable_offset, row.log_start_offset) == (-1, -1, -1)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_wait_ms": -1},
        {"max_wait_ms": -(2**31)},
        {"max_bytes": -1},
        {"max_bytes": 0},
        {"partition_max_bytes": -1},
        {"partition_max_bytes": 0},
        {"min_bytes": -1},
        {"min_bytes": 2**31 - 1, "max_bytes": 1},
        {"isolation_level": 2},
        {"isolation_level": -1},
    ],
    ids=str,
)
async def test_fetch_with_senseless_limits_returns_first_batch(
    wire: Wire, topic: Topic, settings: dict[str, Any]
) -> None:
    """The first batch is returned regardless (KIP-74)."""
    assert values_of(await fetch(wire, topic, **settings)) == [b"0", b"1", b"2"]


async def test_fetch_of_same_partition_twice_succeeds(wire: Wire, topic: Topic) -> None:
    ask = fetch_request(topic, partitions=[0, 0])
    response = await wire.ask(ApiKey.FETCH, 12, ask)
    assert {p.error_code for t in response.responses for p in t.partitions} == {0}


async def test_produce_to_same_partition_twice_stores_acknowledged_rows(
    wire: Wire, topic: Topic
) -> None:
    ask = produce_request(topic, batch([b"3"]))
    ask.topic_data *= 2
    response = await wire.ask(ApiKey.PRODUCE, 9, ask)
    offsets = [p.base_offset for t in response.responses for p in t.partition_responses]
    stored = values_of(await fetch(wire, topic))[3:]
    assert stored, "at least one of the rows must be accepted"
    # Exactly the acknowledged rows are stored.
    assert stored == [b"3"] * len([offset for offset in offsets if offset >= 0])


@pytest.mark.parametrize("topic_id", [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)], ids=str)
async def test_missing_topic_id_returns_unknown_topic_id(
    wire: Wire, topic: Topic, topic_id: uuid.UUID
) -> None:
    row = await produce(wire, Topic("t", topic_id), batch(), 13)
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    row = await fetch(wire, Topic("t", topic_id), version=13)
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("timestamp", [-7, -100, -(2**63), 2**63 - 1])
async def test_senseless_timestamps_find_no_offset(
    wire: Wire, topic: Topic, timestamp: int
) -> None:
    row = await list_offset(wire, topic, timestamp)
    code = ErrorCode.UNSUPPORTED_VERSION if timestamp < 0 else 0
    assert (row.error_code, row.offset, row.timestamp) == (code, -1, -1)


@pytest.mark.parametrize("replica_id", [0, 1, 5, 2**31 - 1])
@pytest.mark.parametrize("version", [4, 12, 15, 18])
async def test_fetch_of_client_as_follower_is_rejected(
    wire: Wire, topic: Topic, version: int, replica_id: int
) -> None:
    """CVE-2018-1288: the broker rejects the fetch and the high watermark stays."""
    fields: dict[str, Any] = {"replica_id": replica_id}
    if version >= 15:
        fields = {"replica_state": FetchRequest.ReplicaState(replica_id=replica_id)}
    row = await fetch(wire, topic, version=version, **fields)
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not row.records
    assert (await fetch(wire, topic)).high_watermark == 3


@pytest.mark.slow
async def test_produce_with_100000_missing_topics_creates_none(broker: Broker, wire: Wire) -> None:
    """Each topic gets an error in its row; the broker keeps nothing."""
    rows = [ProduceRequest.Topic(name="x", partition_data=[]) for _ in range(100_000)]
    response = await wire.ask(ApiKey.PRODUCE, 9, ProduceRequest(acks=1, topic_data=rows))
    assert len(response.responses) == 100_000
    assert not broker.node.cluster.topics


async def test_request_with_too_many_objects_closes_connection(wire: Wire) -> None:
    """CVE-2026-111108: two million empty arrays in a frame of 4 MB."""
    count = 2_000_000
    body = b"\x00" + struct.pack(">hi", 1, 1000) + uvarint(count + 1) + b"\x01\x01\x00" * count
    head = struct.pack(">hhih", ApiKey.PRODUCE, 9, 1, -1) + b"\x00"
    await wire.send_bytes(struct.pack(">i", len(head + body)) + head + body)
    assert await wire.wait_closed() == b""
