"""Kafka's command-line tools for scripts and health checks: `kbroker compat TOOL`.

The tools accept the options that such scripts use, and print output in the format that the scripts
parse. For other options, the error message names the kbroker command and Kafka's own tool, which
works with kbroker.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import MappingProxyType

# Module of each supported tool; its `main` takes the command-line arguments.
TOOLS = MappingProxyType(
    {
        "cub": "ready",
        "kafka-acls": "acls",
        "kafka-broker-api-versions": "api_versions",
        "kafka-cluster": "cluster_id",
        "kafka-configs": "configs",
        "kafka-console-consumer": "console_consumer",
        "kafka-console-producer": "console_producer",
        "kafka-consumer-groups": "consumer_groups",
        "kafka-delete-records": "delete_records",
        "kafka-get-offsets": "get_offsets",
        "kafka-leader-election": "leader_election",
        "kafka-metadata-quorum": "metadata_quorum",
        "kafka-producer-perf-test": "producer_perf_test",
        "kafka-run-class": "run_class",
        "kafka-server-start": "server_start",
        "kafka-storage": "storage",
        "kafka-topics": "topics",
    }
)
# Replacement of each tool that is not supported.
REPLACEMENTS = MappingProxyType(
    {
        "kafka-delegation-tokens": "kbroker security token",
        "kafka-dump-log": "kbroker log dump",
        "kafka-features": "kbroker cluster info",
        "kafka-groups": "kbroker group list",
        "kafka-log-dirs": "kbroker cluster logdirs",
        "kafka-reassign-partitions": "kbroker topic move",
        "kafka-server-stop": "kill -TERM, once, and wait for the process",
        "kafka-transactions": "kbroker cluster txn",
    }
)


def main(tool: str, arguments: Sequence[str]) -> None:
    """Run a tool by the name of its script, with or without `.sh`.

    Raises:
        SystemExit: The tool has failed, or is not supported.
    """
    from .base import exit_with_message

    name = tool.removesuffix(".sh")
    if name in TOOLS:
        module = importlib.import_module(f"{__name__}.{TOOLS[name]}")
        module.main(arguments)
        return
    if name in REPLACEMENTS:
        exit_with_message(
            f"{name} is not supported; use `{REPLACEMENTS[name]}`, or {name} of Apache Kafka, which "
            "works with kbroker"
        )
    exit_with_message(f"unknown tool {name!r} (valid: {', '.join(TOOLS)})")
