"""The most expensive batches that a log may contain, and requests that make a broker read them.

Produce rejects such batches, but older versions may have stored them. So the batches are appended
without the Produce API.
"""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlencode
from uuid import uuid4

import trio

from kbroker.client.endpoint import Endpoint
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec, compress
from kbroker.protocol.messages.configs import IncrementalAlterConfigsRequest
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.share_state import InitializeShareGroupStateRequest
from kbroker.protocol.primitives import write_varint
from kbroker.protocol.records import Record, encode_batch, read_header, with_payload

from ..sharing import ShareMember, initialize
from ..web.client import get
from ..wire import ANSWER_SECONDS, Topic, Wire, connected, create_topic, fetch_request
from . import compacted

if TYPE_CHECKING:
    from kbroker.broker import Broker

BOMBS = Topic("bombs")
NOW_MS = 1_700_000_000_000
# The max timestamp in the headers of the batches; no record has it.
LATER_MS = NOW_MS + 3_600_000
MAX_TIMESTAMP = -3
SHARE_GROUP = "bombs"
GROUP_RESOURCE = 32
# Start offset of a share partition that is not initialised.
UNINITIALIZED = -1
# Fetch versions with an older message format.
OLD_VERSIONS = (0, 1, 2, 3)
EXPANDED_BYTES = 64 * 1024 * 1024 - 64


def _batch(record: bytes, count: int, codec: Codec) -> bytes:
    header = read_header(encode_batch([Record(None, None, NOW_MS)]))._replace(
        attributes=int(codec),
        last_offset_delta=count - 1,
        record_count=count,
        max_timestamp=LATER_MS,
    )
    return with_payload(header, compress(codec, record * count))[0]


def _record(value: bytes, headers: bytes) -> bytes:
    body = b"\x00\x00\x00\x01" + write_varint(len(value)) + value + headers
    return write_varint(len(body)) + body


@cache
def bombs() -> list[tuple[str, bytes]]:
    """Return name and content of the batch of each partition."""
    many = EXPANDED_BYTES // 7
    count = EXPANDED_BYTES // 2 - 16
    headers = write_varint(count) + b"\x00\x01" * count
    return [
        ("9 million records in 6 kB", _batch(b"\x0c\x00\x00\x00\x01\x01\x00", many, Codec.ZSTD)),
        ("33 million headers in 6 kB", _batch(_record(b"", headers), 1, Codec.ZSTD)),
        (
            "a value of 64 MiB in 65 kB",
            _batch(_record(bytes(EXPANDED_BYTES - 32), b"\x00"), 1, Codec.GZIP),
        ),
        (
            "a million records in gzip",
            _batch(b"\x0c\x00\x00\x00\x01\x01\x00", 1_000_000, Codec.GZIP),
        ),
        (
            "a hundred thousand records",
            _batch(b"\x0c\x00\x00\x00\x01\x01\x00", 100_000, Codec.NONE),
        ),
        ("a value of 15 MB", _batch(_record(bytes(15_000_000), b"\x00"), 1, Codec.LZ4)),
        ("a value of 1 MB", _batch(_record(bytes(1_000_000), b"\x00"), 1, Codec.LZ4)),
    ]


async def plant(broker: Broker, port: int) -> None:
    """Append the batches to a topic of a broker in this process."""
    async with connected(("127.0.0.1", port)) as wire:
        topic = await create_topic(wire, BOMBS.name, len(bombs()))
        await compacted.plant(broker, wire)
    node = broker.node
    await initialize(node, topic, len(bombs()), group=SHARE_GROUP)
    for index, (_, batch) in enumerate(bombs()):
        replica = node.partitions.named_replica(BOMBS.name, index)
        for _ in range(3):
            replica.append(memoryview(batch), read_header(batch), node.clock.log_ms())
        with trio.fail_after(ANSWER_SECONDS):
            while replica.log.high_watermark < replica.log.log_end_offset:  # noqa: ASYNC110
                await trio.sleep(0.01)


async def _await_response(wire: Wire, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await wire.stream.receive_some(4)


# -- over the wire


async def times_of_planted_batches(bootstrap: tuple[str, int], hold_seconds: float) -> None:
    """List the offsets of a time that only batch headers contain, and of the latest record."""
    async with connected(bootstrap) as wire:
        for timestamp in (NOW_MS + 1, MAX_TIMESTAMP):
            rows = [
                ListOffsetsRequest.Partition(partition_index=index, timestamp=timestamp)
                for index in range(len(bombs()))
            ]
            topic = ListOffsetsRequest.Topic(name=BOMBS.name, partitions=rows)
            await wire.send(ApiKey.LIST_OFFSETS, 7, ListOffsetsRequest(topics=[topic]))
            await _await_response(wire, hold_seconds)


async def planted_batches_for_old_consumers(
    bootstrap: tuple[str, int], hold_seconds: float
) -> None:
    async with trio.open_nursery() as nursery:
        for version in OLD_VERSIONS:
            nursery.start_soon(_fetch_in_old_version, bootstrap, version, hold_seconds)


async def _fetch_in_old_version(
    bootstrap: tuple[str, int], version: int, hold_seconds: float
) -> None:
    async with connected(bootstrap) as wire:
        partitions = range(len(bombs()))
        await wire.send(ApiKey.FETCH, version, fetch_request(BOMBS, partitions=partitions))
        await _await_response(wire, hold_seconds)


async def planted_batches_for_share_consumers(
    bootstrap: tuple[str, int], hold_seconds: float
) -> set[int]:
    """Acquire records of planted batches, and return the error codes of all partitions."""
    partitions = tuple(range(len(bombs())))
    async with connected(bootstrap) as wire:
        member = ShareMember(wire, await _bombs_topic(wire), str(uuid4()), group=SHARE_GROUP)
        response = await member.fetch(partitions, max_wait_ms=int(1000 * hold_seconds))
        rows = [row.error_code for each in response.responses for row in each.partitions]
        return {response.error_code, *rows}


async def _bombs_topic(wire: Wire) -> Topic:
    request = MetadataRequest(topics=[MetadataRequest.Topic(name=BOMBS.name)])
    known = await wire.ask(ApiKey.METADATA, 12, request)
    return Topic(BOMBS.name, known.topics[0].topic_id)


async def share_groups_reset_by_time(bootstrap: tuple[str, int], hold_seconds: float) -> None:
    """Start share groups at a time that no record has, although the headers claim it.

    Each round uses new groups, so their start offsets are looked up. The broker may return an
    error, because no record is that recent.
    """
    ago_seconds = int(time.time() - (NOW_MS + LATER_MS) / 2000)
    async with connected(bootstrap) as wire:
        for period in (f"PT{ago_seconds}S", "P30000D"):
            group = f"bombs-{uuid4()}"
            topic = await _bombs_topic(wire)
            await _begin_group(wire, topic, group, period)
            member = ShareMember(wire, topic, str(uuid4()), group=group)
            with trio.move_on_after(hold_seconds):
                await member.fetch(tuple(range(len(bombs()))), max_wait_ms=int(1000 * hold_seconds))
                continue
            return  # the connection still waits for this response


async def _begin_group(wire: Wire, topic: Topic, group: str, period: str) -> None:
    """Configure and initialise a share group, as administrator and group coordinator."""
    cls = IncrementalAlterConfigsRequest
    config = cls.Config(name="share.auto.offset.reset", value=f"by_duration:{period}")
    resource = cls.Resource(resource_type=GROUP_RESOURCE, resource_name=group, configs=[config])
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    (altered,) = (await wire.ask(key, 1, cls(resources=[resource]))).responses
    state = InitializeShareGroupStateRequest
    rows = [
        state.Partition(partition=index, start_offset=UNINITIALIZED)
        for index in range(len(bombs()))
    ]
    request = state(group_id=group, topics=[state.Topic(topic_id=topic.id, partitions=rows)])
    response = await wire.ask(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, request)
    codes = {row.error_code for each in response.results for row in each.partitions}
    assert codes | {altered.error_code} == {0}, (codes, altered)


# -- console


def slow_expression(count: int) -> str:
    return " or ".join(f'value~"nope{n}"' for n in range(count))


async def _console(http: Endpoint, path: str, query: dict[str, object]) -> None:
    await get(http, f"/api/v1/topics/{BOMBS.name}/{path}?{urlencode(query)}")


QUERIES: dict[str, list[tuple[str, dict[str, object]]]] = {
    "seen": [
        ("messages", {"from": origin, "limit": 100, "ms": 500}) for origin in ("newest", "oldest")
    ],
    "searched": [
        ("messages", {"from": "oldest", "contains": "nope", "ms": 500}),
        ("messages", {"from": "newest", "header": "nope=1", "ms": 500}),
    ],
    "terms": [
        ("messages", {"from": "newest", "where": slow_expression(50), "ms": 500}),
        ("messages", {"from": "oldest", "where": 'headers.nope == "1" or value.a == 1', "ms": 500}),
    ],
    "single": [
        ("records/0/5000000/key", {}),
        ("records/1/0/key", {}),
        ("records/2/0/value", {}),
    ],
}


async def query_console(http: tuple[str, int], hold_seconds: float, name: str) -> None:
    """Send the queries of `QUERIES` with this name."""
    for path, query in QUERIES[name]:
        with trio.move_on_after(2 * hold_seconds):
            await _console(Endpoint(*http), path, query)
