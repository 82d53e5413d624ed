"""Tests of the lines that a server prints about itself."""

from __future__ import annotations

from kbroker.process.node_info import NodeInfo, kafka_log_lines


def test_kafka_log_lines_contain_the_node_id() -> None:
    node = NodeInfo(7, "c", (), None, (), 0, 0, False, None, (7,))  # type: ignore[arg-type]
    lines = list(kafka_log_lines([node], 0.25))
    assert [line.split("] ", 1)[1] for line in lines] == [
        "INFO [KafkaRaftServer nodeId=7] Kafka Server started (kafka.server.KafkaRaftServer)",
        "INFO [BrokerServer id=7] Transitioning from RECOVERY to RUNNING (kafka.server.BrokerServer)",
        "INFO [KafkaServer id=7] started (kafka.server.KafkaServer)",
    ]
    assert ",250] INFO" in lines[0]
