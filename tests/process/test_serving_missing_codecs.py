"""Tests of `kbroker serve` where the libraries of codecs and patterns are not installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import KafkaError, Message, Producer

from kbroker.client.endpoint import Endpoint
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.topics import CreateTopicsRequest

from ..blocking import BlockingWire
from ..waiting import wait_until
from ..wire import Topic, batch, produce_request, request

# An import of these modules fails in the broker.
BLOCKED = ("snappy", "lz4", "zstandard", "compression.zstd", "re2")
PACKAGES = {
    Codec.SNAPPY: "python-snappy",
    Codec.LZ4: "lz4",
    Codec.ZSTD: "zstandard" if sys.version_info < (3, 14) else "another build of Python",
}
SECONDS = 30


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The address of a broker in which the modules are missing."""
    port_file = tmp_path_factory.mktemp("broker") / "port"
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({BLOCKED})); "
        "from kbroker.cli import main; main()"
    )
    options = ["serve", "--memory", "--port", "0", "--port-file", str(port_file)]
    process = subprocess.Popen([sys.executable, "-c", program, *options], stdout=subprocess.DEVNULL)
    try:
        wait_until(port_file.exists, "the broker is ready", seconds=SECONDS)
        yield Endpoint.parse(port_file.read_text())
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def wire(address: Endpoint) -> Iterator[BlockingWire]:
    with closing(BlockingWire(address.host, address.port, "client")) as wire:
        yield wire


def produced(address: Endpoint, codec: str) -> KafkaError | None:
    """Return the error of a record that librdkafka produces."""
    errors: list[KafkaError | None] = []

    def note(error: KafkaError | None, _: Message) -> None:
        errors.append(error)

    producer = Producer({"bootstrap.servers": str(address), "compression.type": codec})
    producer.produce("values", bytes(1000), on_delivery=note)
    assert not producer.flush(SECONDS)
    (error,) = errors
    return error


@pytest.mark.slow
def test_client_gets_unsupported_compression_type_of_missing_codec(address: Endpoint) -> None:
    for codec in PACKAGES:
        error = produced(address, codec.name.lower())
        assert error is not None
        assert error.code() == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert produced(address, "none") is None
    assert produced(address, "gzip") is None


@pytest.mark.parametrize(("codec", "package"), PACKAGES.items())
def test_response_names_the_missing_package(wire: BlockingWire, codec: Codec, package: str) -> None:
    name = f"to-{codec.name.lower()}"
    row = CreateTopicsRequest.Topic(name=name, num_partitions=1, replication_factor=1)
    setting = CreateTopicsRequest.Config(name="compression.type", value=codec.name.lower())
    row.configs = [setting]
    wire.ask(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[row], timeout_ms=10_000))
    # The broker decompresses the one batch, and compresses the other.
    for records in (batch(codec=codec), batch()):
        response = wire.ask(ApiKey.PRODUCE, 9, produce_request(Topic(name), records))
        (partition,) = response.responses[0].partition_responses
        assert partition.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert package in partition.error_message


def test_heartbeat_with_pattern_names_the_missing_package(wire: BlockingWire) -> None:
    find = request(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=["g"])
    wire.ask(ApiKey.FIND_COORDINATOR, 4, find)
    heartbeat = request(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        topic_partitions=[],
        subscribed_topic_regex="t.*",
    )
    response = wire.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, heartbeat)
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "google-re2" in response.error_message
