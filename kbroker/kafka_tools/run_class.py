"""The kafka-run-class tool: runs a tool by its Java class name."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from . import main as run_tool
from .base import exit_with_message

# Tools by class name, without the package, which differs between releases of Kafka.
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
        "LeaderElectionCommand": "kafka-leader-election",
        "MetadataQuorumCommand": "kafka-metadata-quorum",
        "ProducerPerformance": "kafka-producer-perf-test",
        "StorageTool": "kafka-storage",
        "TopicCommand": "kafka-topics",
    }
)


def main(arguments: Sequence[str]) -> None:
    """Run the tool of a class with the following arguments; options of Java are ignored."""
    rest = list(arguments)
    while rest and rest[0] in ("-daemon", "-name", "-loggc"):
        del rest[: 2 if rest[0] == "-name" else 1]
    name = rest[0].rpartition(".")[2] if rest else ""
    if name not in CLASSES:
        exit_with_message(
            f"kafka-run-class: {rest[0] if rest else 'no class'!r} is not supported (valid: "
            f"{', '.join(CLASSES)}); use kafka-run-class of Apache Kafka, which works with kbroker"
        )
    run_tool(CLASSES[name], rest[1:])
