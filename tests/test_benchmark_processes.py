"""Benchmark rows against kbroker in several processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from benchmarks.__main__ import comparison_parser
from benchmarks.clusters import kbroker_with
from benchmarks.python_client import PythonClient
from benchmarks.wire_client import WAIT_SECONDS, FrameQueue, WireClient

SCALE = 0.01


def test_frame_queue_sends_number_of_frames_in_turn() -> None:
    queue = FrameQueue(("localhost", 9092), [b"a", b"b"])
    assert queue.next_frame() is None
    queue.refill(3)
    assert [queue.next_frame() for _ in range(4)] == [b"a", b"b", b"a", None]
    queue.refill(1)
    assert queue.next_frame() == b"b"


@pytest.mark.slow
def test_wire_rows_use_both_processes(tmp_path: Path) -> None:
    broker = kbroker_with(2)(tmp_path / "broker", durable=False)
    try:
        client = PythonClient(broker, SCALE, "test")
        client.connection_partitions = 2
        wire = WireClient(client)
        (sample,) = wire.connections(10)
        assert sample.row == "connections 10"
        addresses = set(client.leader_addresses("connections-10-test").values())
        assert addresses == {("127.0.0.1", port) for port in broker.ports}
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
        partitions = [TopicPartition("connections-10-test", each) for each in range(2)]
        ends = [consumer.get_watermark_offsets(each, WAIT_SECONDS)[1] for each in partitions]
        consumer.close()
        assert min(ends) > 80
        assert [each.row for each in wire.readers(2)] == ["readers 2"]
        assert [each.row for each in wire.groups(4)] == ["groups 4"]
        assert broker.cpu_seconds() > 0
    finally:
        broker.stop()


def test_comparisons_without_the_option_use_one_process() -> None:
    assert comparison_parser("benchmarks.secured", None, []).parse_args([]).processes is None
