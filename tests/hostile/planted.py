"""The worst batches that a stored log may have, and requests that make a broker open them.

Limits at the time of a Produce request refuse such batches today, but a log may have them from before.
So they are appended behind the back of the Produce API.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlencode
from uuid import uuid4

import trio

from kbroker.client.endpoint import Endpoint
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec, compress
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.primitives import write_varint
from kbroker.protocol.records import Record, encode_batch, read_header, with_payload

from ..sharing import ShareMember, initialize
from ..web.client import get
from ..wire import ANSWER_SECONDS, Topic, Wire, connected, create_topic, fetch_request

if TYPE_CHECKING:
    from kbroker.broker import Broker

BOMBS = Topic("bombs")
NOW_MS = 1_700_000_000_000
LATER_MS = NOW_MS + 3_600_000
"""What the header of a batch claims to be its greatest timestamp."""
MAX_TIMESTAMP = -3
SHARE_GROUP = "bombs"
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
    """What is in each partition, and how it is called."""
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
        ("a value of 1 MB", _batch(_record(bytes(1_000_000), b"\x00"), 1, Codec.LZ4)),
    ]


async def plant(broker: Broker, port: int) -> None:
    """Put the batches into a topic of a broker that runs in this process."""
    async with connected(("127.0.0.1", port)) as wire:
        topic = await create_topic(wire, BOMBS.name, len(bombs()))
    node = broker.node
    await initialize(node, topic, len(bombs()), group=SHARE_GROUP)
    for index, (_, batch) in enumerate(bombs()):
        replica = node.partitions.named_replica(BOMBS.name, index)
        for _ in range(3):
            replica.append(memoryview(batch), read_header(batch), node.clock.log_ms())
        with trio.fail_after(ANSWER_SECONDS):
            while replica.log.high_watermark < replica.log.log_end_offset:  # noqa: ASYNC110
                await trio.sleep(0.01)


async def _answer_or_time(wire: Wire, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await wire.stream.receive_some(4)


# -- over the wire


async def times_of_planted_batches(bootstrap: tuple[str, int], hold_seconds: float) -> None:
    """Look up a time that no record has, though a header claims it, and the latest record."""
    async with connected(bootstrap) as wire:
        for timestamp in (NOW_MS + 1, MAX_TIMESTAMP):
            rows = [
                ListOffsetsRequest.Partition(partition_index=index, timestamp=timestamp)
                for index in range(len(bombs()))
            ]
            topic = ListOffsetsRequest.Topic(name=BOMBS.name, partitions=rows)
            await wire.send(ApiKey.LIST_OFFSETS, 7, ListOffsetsRequest(topics=[topic]))
            await _answer_or_time(wire, hold_seconds)


async def planted_batches_for_old_consumers(
    bootstrap: tuple[str, int], hold_seconds: float
) -> None:
    async with connected(bootstrap) as wire:
        partitions = range(len(bombs()))
        await wire.send(ApiKey.FETCH, 2, fetch_request(BOMBS, partitions=partitions))
        await _answer_or_time(wire, hold_seconds)


async def planted_batches_for_share_consumers(
    bootstrap: tuple[str, int], hold_seconds: float
) -> set[int]:
    """Acquire records of planted batches. Returns the error codes of all partitions."""
    partitions = tuple(range(len(bombs())))
    async with connected(bootstrap) as wire:
        asked = MetadataRequest(topics=[MetadataRequest.Topic(name=BOMBS.name)])
        known = await wire.ask(ApiKey.METADATA, 12, asked)
        topic = Topic(BOMBS.name, known.topics[0].topic_id)
        member = ShareMember(wire, topic, str(uuid4()), group=SHARE_GROUP)
        answer = await member.fetch(partitions, max_wait_ms=int(1000 * hold_seconds))
        rows = [row.error_code for each in answer.responses for row in each.partitions]
        return {answer.error_code, *rows}


# -- in the console


def _where(count: int) -> str:
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
        ("messages", {"from": "newest", "where": _where(50), "ms": 500}),
        ("messages", {"from": "oldest", "where": 'headers.nope == "1" or value.a == 1', "ms": 500}),
    ],
    "single": [
        ("records/0/5000000/key", {}),
        ("records/1/0/key", {}),
        ("records/2/0/value", {}),
    ],
}


async def ask_console(http: tuple[str, int], hold_seconds: float, name: str) -> None:
    """Ask what `QUERIES` has under a name."""
    for path, query in QUERIES[name]:
        with trio.move_on_after(2 * hold_seconds):
            await _console(Endpoint(*http), path, query)
