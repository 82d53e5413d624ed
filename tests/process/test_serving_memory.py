"""Test of the memory of `kbroker serve` while a client sends large compressed values."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kbroker.client.endpoint import Endpoint
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.messages.metadata import MetadataRequest

from ..blocking import BlockingWire
from ..hostile.run import rss_of
from ..wire import Topic, batch, produce_request

TOPIC = "values"
VALUE_BYTES = 9_000_000
START_SECONDS = 30
# Requests until the codec is loaded and the allocator has its heaps.
FIRST_REQUESTS = 10
# Maximum growth during `--large-values` requests, far below the size of the values.
GROWTH_BYTES_MAX = 20 << 20


@contextmanager
def served(directory: Path, storage: str) -> Iterator[tuple[int, BlockingWire]]:
    """Run a server, connect to it, and yield its process ID and the connection."""
    port_file = directory / "port"
    storage_options = (
        ["--memory"] if storage == "memory" else ["--data-dir", str(directory / "data")]
    )
    options = [*storage_options, "--port", "0", "--port-file", str(port_file)]
    command = [sys.executable, "-m", "kbroker", "serve", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + START_SECONDS
        while not port_file.exists():
            assert time.monotonic() < give_up, f"{port_file} did not appear"
            time.sleep(0.02)
        address = Endpoint.parse(port_file.read_text())
        with closing(BlockingWire(address.host, address.port, "values")) as wire:
            yield process.pid, wire
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident memory from /proc")
@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_large_compressed_values_do_not_grow_resident_memory(
    tmp_path: Path, storage: str, request: pytest.FixtureRequest
) -> None:
    produce = produce_request(Topic(TOPIC), batch([bytes(VALUE_BYTES)], codec=Codec.ZSTD))
    with served(tmp_path, storage) as (pid, wire):
        row = MetadataRequest.Topic(name=TOPIC)
        metadata = MetadataRequest(topics=[row], allow_auto_topic_creation=True)
        wire.ask(ApiKey.METADATA, 9, metadata)

        def send(count: int) -> int:
            for _ in range(count):
                response = wire.ask(ApiKey.PRODUCE, 9, produce)
                assert not response.responses[0].partition_responses[0].error_code
            return rss_of(pid)

        before = send(FIRST_REQUESTS)
        growth = send(request.config.getoption("--large-values")) - before
    assert growth < GROWTH_BYTES_MAX, f"grew by {growth >> 20} MiB"
