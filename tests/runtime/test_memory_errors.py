"""Behaviour of a broker when memory is exhausted."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from kbroker.broker import Broker
from kbroker.client.endpoint import Endpoint
from kbroker.protocol.api_keys import ApiKey
from kbroker.runtime.memory_errors import ERRORS_MAX, WINDOW_SECONDS, MemoryErrors, OutOfMemory

from ..brokers import started
from ..cli.test_serve import SECONDS, serving
from ..wire import (
    ConnectionClosed,
    Topic,
    batch,
    connected,
    create_topic,
    fetch_request,
    produce,
)

VALUE_BYTES = 10_000_000
ROOM_BYTES = 100_000_000
TRIES = 100


async def test_few_memory_errors_do_not_end_process(autojump_clock: trio.testing.MockClock) -> None:
    errors = MemoryErrors()
    for _ in range(3 * ERRORS_MAX):
        errors.record()
        await trio.sleep(WINDOW_SECONDS / ERRORS_MAX + 1)
    await trio.sleep(WINDOW_SECONDS)
    for _ in range(ERRORS_MAX - 1):
        errors.record()
    with pytest.raises(OutOfMemory, match=r"10 times in 0 s: .*memory\.limit\.bytes.*ulimit"):
        errors.record()


def raise_memory_error(*_: object, **__: object) -> None:
    raise MemoryError


async def send_request(broker: Broker) -> None:
    """Send a request that closes its connection."""
    async with connected(broker.endpoint) as wire:
        await wire.send(ApiKey.FETCH, 12, fetch_request(Topic("t")))
        assert await wire.wait_closed() == b""


async def test_one_memory_error_closes_only_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with started() as broker, connected(broker.endpoint) as other:
        monkeypatch.setattr(broker.node.fetch_sessions, "plan", raise_memory_error)
        await send_request(broker)
        assert await other.works()


async def run_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async with started() as broker:
        monkeypatch.setattr(broker.node.fetch_sessions, "plan", raise_memory_error)
        for _ in range(ERRORS_MAX):
            await send_request(broker)
        await trio.sleep_forever()


async def test_many_memory_errors_end_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await run_out_of_memory(monkeypatch)
    assert raised.value.split(OutOfMemory)[1] is None


def limit_memory(process_id: int) -> None:
    """Limit the memory of a process to slightly more than it uses."""
    pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM_BYTES
    resource.prlimit(process_id, resource.RLIMIT_AS, (limit, limit))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of another process")
async def test_process_without_memory_logs_error_and_exits() -> None:
    flags = ("memory.limit.bytes=10000000000", f"message.max.bytes={2 * VALUE_BYTES}")
    options = [word for flag in flags for word in ("-o", flag)]
    with serving("--memory", "--port", "0", "--json", *options) as process:
        assert process.stdout is not None
        ready = [json.loads(process.stdout.readline()) for _ in range(2)][1]
        host, _, port = ready["bootstrap_servers"].partition(":")
        endpoint = Endpoint(host, int(port))
        async with connected(endpoint) as wire:
            topic = await create_topic(wire, "t")
        limit_memory(process.pid)
        large = batch([os.urandom(VALUE_BYTES)])
        for _ in range(TRIES):
            if process.poll() is not None:
                break
            try:
                async with connected(endpoint) as wire:
                    while True:
                        await produce(wire, topic, large)
            except (ConnectionClosed, OSError, trio.BrokenResourceError):
                await trio.lowlevel.checkpoint()
        output, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 3
    assert "memory ran out" in json.loads(output.splitlines()[-1])["message"]
    assert "ulimit -v" in errors.splitlines()[-1]
    assert "Traceback" not in errors
