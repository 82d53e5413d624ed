"""A producer with transaction protocol 2 (KIP-890), which librdkafka does not support.

It has the methods of confluent-kafka's transactional Producer that the bank uses. It sends one
request at a time: a record is acknowledged when `produce` returns.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from kbroker.client.endpoint import Endpoint
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.headers import decode_response
from kbroker.protocol.messages.transactions import TxnOffsetCommitRequest

from ..wire import Topic, batch, frame, produce_request, request

INIT_VERSION, PRODUCE_VERSION, OFFSETS_VERSION, END_VERSION = 5, 12, 5, 5
# Coordinator types of FindCoordinator.
GROUP, TRANSACTION = 0, 1
ANSWER_SECONDS = 20
RETRY_BACKOFF_SECONDS = 0.02
_MEMBER_MARK = b"CGMDv2:"

FENCED = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
    }
)
# These abort the transaction; all other errors are retried. INVALID_PRODUCER_EPOCH may result from
# a transaction timeout, and the end of the transaction tells whether the producer is fenced.
ABORTABLE = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)


class Delivered(NamedTuple):
    """The position of a delivered record."""

    at: int

    def offset(self) -> int:
        return self.at


class SecondProtocolProducer:
    """A producer whose methods raise KafkaException like confluent-kafka's.

    It looks up leaders and coordinators again after each failed request.
    """

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._bootstrap = itertools.cycle(map(Endpoint.parse, bootstrap.split(",")))
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        # Coordinators by type and key, leaders by topic and partition.
        self._known: dict[tuple[object, ...], Endpoint] = {}
        self._streams: dict[Endpoint, Stream] = {}
        self._producer: tuple[int, int] = (-1, -1)
        self._sequences: defaultdict[tuple[str, int], int] = defaultdict(int)

    def init_transactions(self) -> None:
        ask = request(
            ApiKey.INIT_PRODUCER_ID,
            transactional_id=self._transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        self._adopt_producer(
            self._retry_until_done(ApiKey.INIT_PRODUCER_ID, INIT_VERSION, ask, _own_code)
        )

    def begin_transaction(self) -> None:
        """Do nothing: the first record begins the transaction."""

    def produce(
        self, topic: str, value: bytes, *, partition: int, on_delivery: Callable[..., None]
    ) -> None:
        producer_id, epoch = self._producer
        records = batch(
            [value],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self._sequences[topic, partition],
            transactional=True,
        )
        ask = produce_request(
            Topic(topic), records, partition=partition, transactional_id=self._transactional_id
        )
        response = self._retry_until_done(ApiKey.PRODUCE, PRODUCE_VERSION, ask, _produce_code)
        self._sequences[topic, partition] += 1
        on_delivery(None, Delivered(response.responses[0].partition_responses[0].base_offset))

    def poll(self, _: float) -> None:
        """Do nothing: `produce` returns after delivery."""

    def send_offsets_to_transaction(self, offsets: list[Any], member: bytes, _: float) -> None:
        producer_id, epoch = self._producer
        generation, group, member_id = _parse_member(member)
        rows: defaultdict[str, list[TxnOffsetCommitRequest.Partition]] = defaultdict(list)
        for each in offsets:
            row = TxnOffsetCommitRequest.Partition(
                partition_index=each.partition, committed_offset=each.offset
            )
            rows[each.topic].append(row)
        ask = TxnOffsetCommitRequest(
            transactional_id=self._transactional_id,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[
                TxnOffsetCommitRequest.Topic(name=name, partitions=each)
                for name, each in rows.items()
            ],
        )
        self._retry_until_done(ApiKey.TXN_OFFSET_COMMIT, OFFSETS_VERSION, ask, _worst_code)

    def commit_transaction(self, _: float) -> None:
        self._end(commit=True)

    def abort_transaction(self, _: float) -> None:
        self._end(commit=False)

    def _end(self, *, commit: bool) -> None:
        producer_id, epoch = self._producer
        ask = request(
            ApiKey.END_TXN,
            transactional_id=self._transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=commit,
        )
        self._adopt_producer(self._retry_until_done(ApiKey.END_TXN, END_VERSION, ask, _own_code))

    def _adopt_producer(self, response: Any) -> None:
        """Adopt the producer ID and epoch of a response and reset all sequences."""
        self._producer = (response.producer_id, response.producer_epoch)
        self._sequences.clear()

    # -- requests

    def _retry_until_done(
        self, key: ApiKey, version: int, ask: Any, code_of: Callable[[Any], int]
    ) -> Any:
        """Send a request until it succeeds. Raises KafkaException for non-retriable errors."""
        while True:
            try:
                response = self._stream(self._endpoint(key, ask)).ask(key, version, ask)
            except (OSError, NodeUnknown):
                self._disconnect()
                time.sleep(RETRY_BACKOFF_SECONDS)
                continue
            code = code_of(response)
            if code == ErrorCode.NONE:
                return response
            if code in FENCED or code in ABORTABLE:
                reason = f"{key.name} failed with {ErrorCode(code).name}"
                is_fatal = code in FENCED
                raise KafkaException(KafkaError(code, reason, is_fatal, False, not is_fatal))
            self._known.clear()
            time.sleep(RETRY_BACKOFF_SECONDS)

    # -- leaders and coordinators

    def _endpoint(self, key: ApiKey, ask: Any) -> Endpoint:
        """Return the node to send a request to. Raises OSError, or NodeUnknown."""
        if key == ApiKey.PRODUCE:
            topic = ask.topic_data[0]
            place = (topic.name, topic.partition_data[0].index)
            return self._cached(place, lambda: self._leader(*place))
        if key == ApiKey.TXN_OFFSET_COMMIT:
            return self._coordinator(GROUP, ask.group_id)
        return self._coordinator(TRANSACTION, self._transactional_id)

    def _cached(self, key: tuple[object, ...], find: Callable[[], Endpoint]) -> Endpoint:
        if key not in self._known:
            self._known[key] = find()
        return self._known[key]

    def _coordinator(self, kind: int, name: str) -> Endpoint:
        return self._cached((kind, name, "coordinator"), lambda: self._find(kind, name))

    def _find(self, kind: int, name: str) -> Endpoint:
        ask = request(ApiKey.FIND_COORDINATOR, key=name, key_type=kind)
        response = self._stream(next(self._bootstrap)).ask(ApiKey.FIND_COORDINATOR, 3, ask)
        if response.error_code:
            raise NodeUnknown
        return Endpoint(response.host, response.port)

    def _leader(self, topic: str, partition: int) -> Endpoint:
        ask = request(ApiKey.METADATA)
        ask.topics = [type(ask).Topic(name=topic)]
        response = self._stream(next(self._bootstrap)).ask(ApiKey.METADATA, 9, ask)
        leaders = {row.partition_index: row.leader_id for row in response.topics[0].partitions}
        for broker in response.brokers:
            if broker.node_id == leaders.get(partition):
                return Endpoint(broker.host, broker.port)
        raise NodeUnknown

    def _stream(self, endpoint: Endpoint) -> Stream:
        """Return the connection to a node. Raises OSError."""
        if endpoint not in self._streams:
            self._streams[endpoint] = Stream(endpoint, self._transactional_id)
        return self._streams[endpoint]

    def _disconnect(self) -> None:
        self._known.clear()
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()


class NodeUnknown(Exception):
    """No leader or coordinator is known at the moment."""


class Stream:
    """A connection to one node. Raises OSError if it cannot be opened or breaks."""

    def __init__(self, endpoint: Endpoint, client_id: str) -> None:
        self._socket = socket.create_connection(endpoint, ANSWER_SECONDS)
        self._client_id = client_id
        self._asked = 0

    def ask(self, key: ApiKey, version: int, ask: Any) -> Any:
        """Send a request and return the response."""
        self._asked += 1
        self._socket.sendall(frame(key, version, ask, self._client_id, self._asked))
        (size,) = struct.unpack(">i", self._receive(4))
        _, response = decode_response(messages.response_class(key), self._receive(size), version)
        return response

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionResetError("the broker closed the connection")
            data += more
        return bytes(data)

    def close(self) -> None:
        self._socket.close()


def _parse_member(data: bytes) -> tuple[int, str, str]:
    """Parse confluent-kafka's group metadata into generation, group and member ID."""
    assert data.startswith(_MEMBER_MARK), data
    (generation,) = struct.unpack_from("=i", data, len(_MEMBER_MARK))
    group, member_id, _ = data[len(_MEMBER_MARK) + 4 :].split(b"\0", 2)
    return generation, group.decode(), member_id.decode()


def _own_code(response: Any) -> int:
    return int(response.error_code)


def _produce_code(response: Any) -> int:
    return int(response.responses[0].partition_responses[0].error_code)


def _worst_code(response: Any) -> int:
    codes = (row.error_code for topic in response.topics for row in topic.partitions)
    return next((int(code) for code in codes if code), 0)
