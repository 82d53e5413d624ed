"""Kafka's command-line tools, as far as scripts and health checks use them: `kbroker compat TOOL`.

They take the options that such scripts give and print what those read. What is not here is an error
that names the command of kbroker which does it, or Kafka's own tool, which works on kbroker too.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import MappingProxyType

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
        "kafka-metadata-quorum": "metadata_quorum",
        "kafka-producer-perf-test": "producer_perf_test",
        "kafka-run-class": "run_class",
        "kafka-server-start": "server_start",
        "kafka-storage": "storage",
        "kafka-topics": "topics",
    }
)
"""The modules of the tools that are here; each has a `main` that takes the words of the command line."""
ELSEWHERE = MappingProxyType(
    {
        "kafka-delegation-tokens": "kbroker security token",
        "kafka-dump-log": "kbroker log dump",
        "kafka-features": "kbroker cluster info",
        "kafka-groups": "kbroker group list",
        "kafka-leader-election": "kbroker cluster rebalance",
        "kafka-log-dirs": "kbroker cluster logdirs",
        "kafka-reassign-partitions": "kbroker cluster drain",
        "kafka-server-stop": "kill -TERM, once, and wait for the process",
        "kafka-transactions": "kbroker cluster txn",
    }
)
"""What to take instead of those that are not."""


def main(tool: str, words: Sequence[str]) -> None:
    """Run a tool by the name of its script, with or without `.sh`. Raises SystemExit at the end."""
    from .base import refuse

    name = tool.removesuffix(".sh")
    if name in TOOLS:
        module = importlib.import_module(f"{__name__}.{TOOLS[name]}")
        module.main(words)
        return
    if name in ELSEWHERE:
        refuse(
            f"kbroker has no {name} of its own: use `{ELSEWHERE[name]}`, or {name} of Apache Kafka, "
            "which works on kbroker too"
        )
    refuse(f"there is no tool {name!r}; there are {', '.join(TOOLS)}")
