"""Requests with far too long arrays, for a broker with much data."""

from __future__ import annotations

import random
import socket
import struct
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import trio

from kbroker.broker import Broker
from kbroker.client.endpoint import Endpoint
from kbroker.handlers.context import Api, Peer
from kbroker.net.connection import Connection
from kbroker.net.transport import PlainTransport
from kbroker.node.node import Node
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.offsets import OffsetCommitRequest
from kbroker.protocol.messages.transactions import AddPartitionsToTxnRequest
from kbroker.protocol.schema import MISSING, Field, Struct, fields

from ..fuzz.harness import SENTINEL_ID, correlation, sentinel
from ..fuzz.tokens import tokens, uvarint
from ..fuzz.world import TRANSACTIONAL_ID, VALID, World, make_world
from ..wire import (
    ConnectionClosed,
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    frame,
    produce,
    request,
    sequenced,
)

# Length of the arrays: many time slices of work for any API, and less than `request.max.elements`.
ITEMS = 4000
# Number of partitions of the topic `wide`.
PARTITIONS = 3000
# Number of other topics, groups, transactional IDs, and producers of a partition.
MANY = 300
# Seeds of the valid requests whose arrays are stretched.
SEEDS = range(2)
ANSWER_SECONDS = 25

TOPIC_FIELDS = ("name", "topic", "topic_name", "topic_names", "resource_name")
GROUP_FIELDS = ("group_id", "groups", "groups_names", "coordinator_keys")

# Path of field names from a request to one of its arrays.
Path = tuple[Field, ...]


# -- a broker with much data


@dataclass(slots=True)
class Crowd:
    """Objects of a broker with much data. `world` has the objects that valid requests name."""

    world: World
    wide: Topic
    topics: list[Topic]
    groups: list[str]
    transactional_ids: list[str]
    # Producer ID of the last transactional ID, whose transaction is open in all partitions of
    # `wide`.
    producer_id: int


async def make_crowd(broker: Broker, partitions: int = PARTITIONS, many: int = MANY) -> Crowd:
    """Fill a broker."""
    async with connected(broker.endpoint) as wire:
        world = await make_world(wire)
        wide = await create_topic(wire, "wide", partitions)
        topics = [await create_topic(wire, f"many-{index}") for index in range(many)]
        groups = [f"group-{index}" for index in range(many)]
        ids = [f"transactional-{index}" for index in range(many)]
        await _commit(wire, groups[0], wide, partitions)
        for group in groups[1:]:
            await _commit(wire, group, wide, 1)
        for each in ids:
            message = request(
                ApiKey.INIT_PRODUCER_ID, transactional_id=each, transaction_timeout_ms=600_000
            )
            response = await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, message)
        await _begin_wide_transaction(wire, ids[-1], response.producer_id, wide, partitions)
        for index in range(partitions):
            await produce(wire, wide, batch(), partition=index)
        for producer_id in range(many):
            mine = sequenced(10**6 + producer_id, 0)
            await produce(wire, wide, mine)
    return Crowd(world, wide, topics, groups, ids, response.producer_id)


async def _commit(wire: Wire, group: str, topic: Topic, partitions: int) -> None:
    """Commit an offset in each of the first partitions."""
    rows = [
        OffsetCommitRequest.Partition(partition_index=index, committed_offset=1)
        for index in range(partitions)
    ]
    message = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequest.Topic(name=topic.name, partitions=rows)],
    )
    response = await wire.ask(ApiKey.OFFSET_COMMIT, 7, message)
    assert not any(row.error_code for row in response.topics[0].partitions)


async def _begin_wide_transaction(
    wire: Wire, transactional_id: str, producer_id: int, topic: Topic, partitions: int
) -> None:
    """Begin a transaction in all partitions of a topic."""
    cls = AddPartitionsToTxnRequest
    message = cls(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[cls.Topic(name=topic.name, partitions=list(range(partitions)))],
    )
    response = await wire.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, message)
    rows = response.results_by_topic_v3_and_below[0].results_by_partition
    assert not any(row.partition_error_code for row in rows)


# -- arrays


def array_paths(cls: Any, before: Path = ()) -> Iterator[Path]:
    """Return the paths of all arrays of a message, including nested ones."""
    for field in fields(cls):
        path = (*before, field)
        if field.array:
            yield path
        if not isinstance(field.kind, str):
            yield from array_paths(field.kind, path)


def name_of(path: Path) -> str:
    """Return a path as a dotted name."""
    return ".".join(field.name for field in path)


class Array(NamedTuple):
    """An array of an API, and the newest version that has it."""

    api: Api
    path: Path
    version: int

    def __str__(self) -> str:
        return f"{self.api.key.name} {self.version} {name_of(self.path)}"


def arrays(apis: Mapping[int, Api]) -> list[Array]:
    """Return the arrays of all APIs: those of read-only APIs first, those of deleting APIs last."""
    found = []
    for api in apis.values():
        for path in array_paths(messages.request_class(api.key)):
            versions = (v for v in api.versions if all(field.present(v) for field in path))
            version = max(versions, default=None)
            if version is not None:
                found.append(Array(api, path, version))
    return sorted(found, key=lambda each: _rank_by_changes(each.api.key))


def _rank_by_changes(key: ApiKey) -> int:
    """Rank an API by how much it changes: 0 for read-only APIs."""
    if key.name.startswith(("LIST", "FIND", "FETCH", "DESCRIBE", "METADATA", "OFFSET_F")):
        return 0
    return 2 if key.name.startswith(("CREATE", "DELETE", "ALTER", "INCREMENTAL")) else 1


# -- requests


class Stretch(NamedTuple):
    """A way to fill an array.

    `item` creates an item from a valid one and its index. `is_one` is True if all items are
    equal.
    """

    name: str
    item: Callable[[Crowd, Field, Any, int], Any]
    is_one: bool = False


def _keep_valid(crowd: Crowd, field: Field, valid: Any, index: int) -> Any:
    return valid


def _use_unknown_values(crowd: Crowd, field: Field, valid: Any, index: int) -> Any:
    return _vary(field, valid, lambda each: _new_value(each, index))


def _use_known_values(crowd: Crowd, field: Field, valid: Any, index: int) -> Any:
    return _vary(field, valid, lambda each: _known_value(crowd, each, index))


STRETCHES = (
    Stretch("as valid", _keep_valid, is_one=True),
    Stretch("the same", _use_known_values, is_one=True),
    Stretch("unknown", _use_unknown_values),
    Stretch("known", _use_known_values),
)


def valid_requests(key: ApiKey, crowd: Crowd) -> list[Any]:
    """Return a few different valid requests."""
    found: list[Any] = []
    for seed in SEEDS:
        message = VALID[key](crowd.world, random.Random(seed))
        if message not in found:
            found.append(message)
    return found


def stretch_request(message: Any, crowd: Crowd, path: Path, stretch: Stretch, count: int) -> Any:
    """Return a copy of a request in which one array has `count` items."""
    message = row = _copy(message)
    for field in path[:-1]:
        row = _descend(row, field)
        if stretch.item is _use_known_values:
            _name_wide(crowd, row)
    field = path[-1]
    valid = next(iter(getattr(row, field.name) or ()), None)
    if valid is None:
        valid = _zero(field)
    if stretch.is_one:
        items = [stretch.item(crowd, field, valid, 0)] * count
    else:
        items = [stretch.item(crowd, field, valid, index) for index in range(count)]
    setattr(row, field.name, items)
    return message


def _copy(message: Any) -> Any:
    if isinstance(message, list):
        return [_copy(each) for each in message]
    if not isinstance(message, Struct):
        return message
    cls = type(message)
    return cls(**{each.name: _copy(getattr(message, each.name)) for each in fields(cls)})


def _descend(row: Any, field: Field) -> Any:
    """Return the first row of an array of rows with arrays."""
    assert not isinstance(field.kind, str)
    value = getattr(row, field.name)
    if not value:
        value = [field.kind()] if field.array else field.kind()
        setattr(row, field.name, value)
    return value[0] if field.array else value


def _zero(field: Field) -> Any:
    if not isinstance(field.kind, str):
        return field.kind()
    return field._replace(array=False, optional=False, default=MISSING).zero()


def _name_wide(crowd: Crowd, row: Struct) -> None:
    """Name the topic with many partitions, or the largest group, in a row with rows."""
    for field in fields(type(row)):
        if field.name in TOPIC_FIELDS and field.kind == "string":
            setattr(row, field.name, crowd.wide.name)
        elif field.name in GROUP_FIELDS and field.kind == "string":
            setattr(row, field.name, crowd.groups[0])
        elif field.name == "topic_id":
            setattr(row, field.name, crowd.wide.id)


def _vary(field: Field, valid: Any, value_of: Callable[[Field], Any]) -> Any:
    """Return another value, or a copy of a row with other identifying values."""
    if isinstance(field.kind, str):
        value = value_of(field)
        return valid if value is None else value
    row = copy(valid)
    is_varied = False
    for each in fields(field.kind):
        if each.array or not isinstance(each.kind, str) or (is_varied and each.kind != "uuid"):
            continue
        value = value_of(each)
        if value is not None:
            setattr(row, each.name, value)
            is_varied = True
    return row


def _new_value(field: Field, index: int) -> Any:
    if field.kind == "string":
        return f"new-{index}"
    if field.kind == "uuid":
        return uuid.UUID(int=1 + index)
    if field.kind in ("b", "h"):
        return index % 100
    return index if field.kind in ("i", "q") else None


def _known_value(crowd: Crowd, field: Field, index: int) -> Any:
    topic = (crowd.wide, *crowd.topics)[index % (len(crowd.topics) + 1)]
    if field.name in TOPIC_FIELDS:
        return topic.name
    if field.name in GROUP_FIELDS:
        return crowd.groups[index % len(crowd.groups)]
    if field.name.startswith("transactional_id"):
        ids = (TRANSACTIONAL_ID, *crowd.transactional_ids)
        return ids[index % len(ids)]
    return topic.id if field.kind == "uuid" else _new_value(field, index)


def repeat_shortest_item(array: Array, crowd: Crowd, count: int) -> bytes:
    """Return a request frame with `count` copies of the shortest item in one array.

    The frame is assembled from bytes, because encoding so many rows would take long.
    """
    api, path, version = array
    message = _copy(valid_requests(api.key, crowd)[0])
    row = message
    for field in path[:-1]:
        row = _descend(row, field)
    bodies = []
    for items in (2, 3):
        setattr(row, path[-1].name, [_zero(path[-1])] * items)
        bodies.append(b"".join(token.data for token in tokens(message, version)))
    two, three = bodies
    size = len(three) - len(two)
    at = next(i for i, (a, b) in enumerate(zip(two, three, strict=False)) if a != b)
    flexible = type(message).is_flexible(version)
    first = at + 1
    before = two[:at] if flexible else two[: at - 3]
    number = uvarint(count + 1) if flexible else struct.pack(">i", count)
    body = before + number + two[first : first + size] * count + two[first + 2 * size :]
    head = struct.pack(">hhih", api.key, version, 1, 4) + b"test" + (b"\0" if flexible else b"")
    return struct.pack(">i", len(head + body)) + head + body


# -- exchanges


@asynccontextmanager
async def serving(node: Node, apis: Mapping[int, Api]) -> AsyncIterator[Wire]:
    """Open a connection to a node that serves `apis`."""
    ours, server = socket.socketpair()
    client = trio.socket.from_stdlib_socket(ours)
    peer = Peer("127.0.0.1", Endpoint("127.0.0.1", 9092), "PLAINTEXT", None)
    limit = node.config.request_max_bytes
    connection = Connection(node, apis, PlainTransport(server), peer, frame_bytes_max=limit)
    async with trio.open_nursery() as nursery, trio.SocketStream(client) as stream:
        nursery.start_soon(connection.serve)
        yield Wire(stream)
        nursery.cancel_scope.cancel()


class Outcome(NamedTuple):
    """Outcome of a request, and the bytes of its response."""

    how: str
    size: int = 0


async def exchange(node: Node, apis: Mapping[int, Api], frame: bytes) -> Outcome:
    """Send one frame and a second request that checks the connection. Return the outcome."""
    size = 0
    async with serving(node, apis) as wire:
        with trio.move_on_after(ANSWER_SECONDS):
            await wire.send_bytes(frame + sentinel())
            try:
                while correlation(response := await wire.receive_frame()) != SENTINEL_ID:
                    size += len(response)
            except ConnectionClosed:
                return Outcome("closed")
            return Outcome(
                "answered", size
            )  # or the request has no response, like Produce with acks=0
    return Outcome("no response")


def frame_of(array: Array, message: Any) -> bytes:
    """Return a request as bytes with its length."""
    return frame(array.api.key, array.version, message)
