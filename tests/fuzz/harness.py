"""A fuzzer that sends frames to a broker in this process and checks the responses."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.broker import Broker, open_broker
from kbroker.client.endpoint import Endpoint
from kbroker.cluster import Cluster
from kbroker.cluster.quota_changes import alter_quotas
from kbroker.config import BrokerConfig
from kbroker.config.broker_table import STANDARD_AUTHORIZER
from kbroker.handlers.context import Api, Context, Peer
from kbroker.handlers.registry import load_apis
from kbroker.net.connection import Connection
from kbroker.net.server import Listener
from kbroker.net.transport import PlainTransport
from kbroker.node.node import Node
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.headers import decode_response, encode_response
from kbroker.security.principals import ANONYMOUS, Principal

from ..wire import batch, connected, create_topic, fetch, frame, produce, request, values_of
from .mutate import Frame, mutated
from .world import World, make_world

# Number of frames after which a new broker is started, because frames may create data.
FRAMES_PER_BROKER = 1000

# Settings under which only the super user that fills the broker has permissions.
ACL_SETTINGS = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": str(ANONYMOUS)}
RSS_GROWTH_MAX = 200_000_000
FRAME_SECONDS_MAX = 2.0
# Maximum CPU time per frame: a constant plus a share per byte.
SECONDS_PER_BYTE_MAX = 1e-6
EXCHANGE_SECONDS = 30
SENTINEL = "sentinel"
FRAME_BYTES_MAX = 1_000_000


def release_memory() -> None:
    """Release memory that earlier tests freed, so that later growth is visible."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


class ErrorCollector(logging.Handler):
    """A log handler that collects all errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(self.format(record))


@dataclass(slots=True)
class Report:
    """The results of a run."""

    seed: int
    frames: int = 0
    reached: int = 0
    answered: int = 0
    closed: int = 0
    pending: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    rss_growth: int = 0

    def text(self) -> str:
        """Format the results for people and for the table of soak tests."""
        hits = [f"  {name:<26}{count:>8}" for name, count in sorted(self.hits.items())]
        how = ", ".join(f"{count} by {kind}" for kind, count in sorted(self.kinds.items()))
        seconds, slowest = self.slowest
        figures = (
            f"figures: seed {self.seed}, {self.frames} frames, {self.reached} of them reached a "
            f"handler, {len(self.hits)} APIs, memory grew by {self.rss_growth / 1e6:.0f} MB, "
            f"{len(self.failures)} failures"
        )
        return "\n".join(
            (
                "hits per API",
                *hits,
                f"seed {self.seed}: {self.frames} frames ({how})",
                f"{self.answered} answered, {self.closed} closed, {self.pending} pending",
                f"slowest frame {seconds * 1000:.0f} ms ({slowest})",
                figures,
            )
        )


class Fuzzer:
    """A fuzzing run.

    Args:
        seed: Random seed of the frames.
        apis: Replaces the APIs of the broker, in tests with planted bugs.
        denied: Principal without permissions that sends the frames, with ACLs enforced. The frames
            must not change anything.
    """

    def __init__(
        self,
        seed: int,
        apis: Mapping[int, Api] | None = None,
        denied: Principal | None = None,
    ) -> None:
        self.report = Report(seed)
        self._denied = denied
        self.alarm = ErrorCollector()
        self._reached_handler = False
        served = load_apis() if apis is None else apis
        self._apis = {key: self._counted(api) for key, api in served.items()}
        self._versions = {api.key: api.versions for api in served.values()}

    def _counted(self, api: Api) -> Api:
        def handler(ctx: Context, request: Any) -> Any:
            if ctx.client_id != SENTINEL:
                self._reached_handler = True
                self.report.hits[api.key.name] += 1
            return api.handler(ctx, request)

        return api._replace(handler=handler)

    async def run(self, frames: int) -> Report:
        """Send frames and return the report."""
        release_memory()
        before = resident_bytes()
        logger = logging.getLogger("kbroker")
        logger.addHandler(self.alarm)
        try:
            for first in range(0, frames, FRAMES_PER_BROKER):
                async with self._broker() as (broker, world):
                    for index in range(first, min(first + FRAMES_PER_BROKER, frames)):
                        await self._run_frame(broker.node, world, index)
                        if index % 50 == 0:
                            growth = resident_bytes() - before
                            self.report.rss_growth = max(self.report.rss_growth, growth)
        finally:
            logger.removeHandler(self.alarm)
        if self.report.rss_growth > RSS_GROWTH_MAX:
            self.report.failures.append(f"memory grew by {self.report.rss_growth} bytes")
        return self.report

    @contextlib.asynccontextmanager
    async def _broker(self) -> AsyncIterator[tuple[Broker, World]]:
        options = {"memory.limit.bytes": "100000000"} | (ACL_SETTINGS if self._denied else {})
        async with open_broker(
            BrokerConfig.load(options=options),
            data_dir=None,
            listeners=[Listener("PLAINTEXT", "127.0.0.1", 0)],
        ) as broker:
            async with connected(broker.endpoint) as wire:
                world = await make_world(wire)
            before = state_of(broker.node)
            yield broker, world
            if self._denied and state_of(broker.node) != before:
                self.report.failures.append(
                    "a client without permissions changed the state, up to frame "
                    f"{self.report.frames - 1}"
                )
            await self._check_serves(broker)

    async def _check_serves(self, broker: Broker) -> None:
        """Check that the broker still serves requests."""
        await clear_limits(broker.node.cluster)
        async with connected(broker.endpoint) as wire:
            topic = await create_topic(wire, "after.all")
            row = await produce(wire, topic, batch([b"still here"]))
            found = await fetch(wire, topic)
            if row.error_code or values_of(found) != [b"still here"]:
                self.report.failures.append(
                    f"after frame {self.report.frames - 1} of seed {self.report.seed} the broker "
                    f"no longer serves requests: produced {row}, fetched {found}"
                )

    async def _run_frame(self, node: Node, world: World, index: int) -> None:
        report = self.report
        rng = random.Random(f"{report.seed}/{index}")
        key = self._key(index)
        frame = mutated(world, key, self._versions[key], rng)
        report.frames += 1
        report.kinds[frame.how] += 1
        self._reached_handler = False
        errors = node.context.error_log.unhandled_errors
        began_at = time.process_time()
        try:
            sent, cut_off = await exchange(node, self._apis, frame.data, self._denied)
            took = time.process_time() - began_at
            problem = self._judge(frame, sent, cut_off) or self._too_slow(frame, took, index)
        except Exception as error:  # noqa: BLE001  # every exception is a finding
            problem = f"{type(error).__name__}: {error}"
        await clear_quotas(node.cluster)  # quotas would throttle all later frames
        if node.context.error_log.unhandled_errors > errors or self.alarm.messages:
            problem = "\n".join(["unhandled error", *self.alarm.messages])
            self.alarm.messages.clear()
        report.reached += self._reached_handler
        if problem:
            report.failures.append(
                f"frame {index} of seed {report.seed} ({frame.key.name} {frame.version}, "
                f"{frame.how} changed): {problem}\n{frame.data[:2000].hex()}"
            )

    def _key(self, index: int) -> ApiKey:
        """Return the API of a frame: each round has every API once, in random order."""
        round_number, position = divmod(index, len(self._versions))
        order = sorted(self._versions)
        random.Random(f"{self.report.seed}/round {round_number}").shuffle(order)
        return order[position]

    def _too_slow(self, frame: Frame, took: float, index: int) -> str:
        if took > self.report.slowest[0]:
            description = (
                f"{frame.key.name} {frame.version}, {len(frame.data)} bytes, frame {index}"
            )
            self.report.slowest = (took, description)
        limit = FRAME_SECONDS_MAX + SECONDS_PER_BYTE_MAX * len(frame.data)
        return f"took {took:.2f} s" if took > limit else ""

    def _judge(self, frame: Frame, sent: bytes, cut_off: bool) -> str:
        responses = split_frames(sent)
        if responses is None:
            return "truncated response"
        if responses and correlation(responses[-1]) == SENTINEL_ID:
            responses.pop()
            self.report.answered += 1
        elif cut_off:
            self.report.closed += 1
        else:
            self.report.pending += 1
        if len(responses) > 1:
            return f"{len(responses)} responses to one request"
        return check_answer(frame.data, responses[0]) if responses else ""


async def clear_limits(cluster: Cluster) -> None:
    """Remove configs and quotas that frames have set, for example message.max.bytes=1."""
    for resource in tuple(cluster.configs):
        await cluster.alter_configs(resource, {}, cause="frames gave it")
    await clear_quotas(cluster)


async def clear_quotas(cluster: Cluster) -> None:
    for quota in cluster.client_quotas.all:
        none = dict.fromkeys(quota.values)
        await alter_quotas(cluster, [(quota.entity, none)], cause="frames gave it")


def state_of(node: Node) -> object:
    """Return the metadata revision and the offsets of all logs."""
    ends = {
        (topic.name, index): node.partitions.hosted(topic, index).log.log_end_offset
        for topic in node.cluster.topics.values()
        for index in range(len(topic.partitions))
    }
    starts = {
        (topic.name, index): node.partitions.hosted(topic, index).log.log_start_offset
        for topic in node.cluster.topics.values()
        for index in range(len(topic.partitions))
    }
    return node.cluster.revision, ends, starts


async def exchange(
    node: Node, apis: Mapping[int, Api], data: bytes, principal: Principal | None = None
) -> tuple[bytes, bool]:
    """Send a frame (without its length) and a valid request.

    Returns the bytes of the responses, and True if the broker closed the connection.
    """
    ours, server = socket.socketpair()
    client = trio.socket.from_stdlib_socket(ours)
    peer = Peer("127.0.0.1", Endpoint("127.0.0.1", 9092), "PLAINTEXT", None)
    if principal is not None:
        peer.set_principal(principal)
    connection = Connection(
        node,
        apis,
        PlainTransport(server),
        peer,
        frame_bytes_max=FRAME_BYTES_MAX,
    )
    sent = bytearray()
    ended = trio.Event()

    async def serve() -> None:
        await connection.serve()
        ended.set()

    with trio.fail_after(EXCHANGE_SECONDS), client, server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            nursery.start_soon(_drain, client, sent)
            await _send_all(client, framed(data) + sentinel())
            await wait_all_tasks_blocked()
            cut_off = ended.is_set()
            client.shutdown(socket.SHUT_WR)
    return bytes(sent), cut_off


async def _send_all(client: trio.socket.SocketType, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the broker closed the connection before reading everything
        while data:
            data = data[await client.send(data) :]


async def _drain(client: trio.socket.SocketType, into: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := await client.recv(1 << 20):
            into += data


SENTINEL_ID = 0x5E471E1


def sentinel() -> bytes:
    """Encode a valid request whose response shows that the connection still works."""
    ask = request(ApiKey.API_VERSIONS)
    return frame(ApiKey.API_VERSIONS, 0, ask, SENTINEL, SENTINEL_ID)


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def split_frames(data: bytes) -> list[bytes] | None:
    """Split received bytes into frames; return None if the last one is incomplete."""
    frames = []
    while data:
        if len(data) < 4:
            return None
        (size,) = struct.unpack_from(">i", data)
        if size < 4 or len(data) < 4 + size:
            return None
        frames.append(data[4 : 4 + size])
        data = data[4 + size :]
    return frames


def correlation(frame: bytes) -> int:
    (number,) = struct.unpack_from(">i", frame)
    return int(number)


def check_answer(frame: bytes, answer: bytes) -> str:
    """Return the error in a response to `frame`, or an empty string."""
    key, version, expected = struct.unpack_from(">hhi", frame)
    if correlation(answer) != expected:
        return f"correlation ID {correlation(answer)} in the response to {expected}"
    cls = messages.response_class(key)
    if key == ApiKey.API_VERSIONS and version not in cls.VERSIONS:
        version = 0  # KIP-511
    try:
        _, response = decode_response(cls, answer, version)
    except ValueError as error:
        return f"response cannot be decoded: {error}"
    parts: list[Any] = list(encode_response(expected, key, version, response))
    if len(b"".join(parts)) - 4 != len(answer):
        return "response with trailing bytes"
    return ""
