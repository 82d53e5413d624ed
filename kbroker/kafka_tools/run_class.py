"""kafka-run-class: run a tool by the name of its class."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from . import main as run_tool
from .base import refuse

CLASSES = MappingProxyType(
    {
        "AclCommand": "kafka-acls",
        "BrokerApiVersionsCommand": "kafka-broker-api-versions",
        "ClusterTool": "kafka-cluster",
        "ConfigCommand": "kafka-configs",
        "ConsoleConsumer": "kafka-console-consumer",
        "ConsoleProducer": "kafka-console-producer",
        "ConsumerGroupCommand": "kafka-consumer-groups",
        "DeleteRecordsCommand": "kafka-delete-records",
        "GetOffsetShell": "kafka-get-offsets",
        "Kafka": "kafka-server-start",
        "MetadataQuorumCommand": "kafka-metadata-quorum",
        "ProducerPerformance": "kafka-producer-perf-test",
        "StorageTool": "kafka-storage",
        "TopicCommand": "kafka-topics",
    }
)
"""The tools by their classes, whose packages have changed from one release of Kafka to the next."""


def main(words: Sequence[str]) -> None:
    """Run the tool of a class, with the words behind it; options of Java mean nothing."""
    rest = list(words)
    while rest and rest[0] in ("-daemon", "-name", "-loggc"):
        del rest[: 2 if rest[0] == "-name" else 1]
    name = rest[0].rpartition(".")[2] if rest else ""
    if name not in CLASSES:
        refuse(
            f"kafka-run-class: {rest[0] if rest else 'no class'!r} is not known here (valid: "
            f"{', '.join(CLASSES)}); it is a class of Apache Kafka, which works on kbroker too"
        )
    run_tool(CLASSES[name], rest[1:])
