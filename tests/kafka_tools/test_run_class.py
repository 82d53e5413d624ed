"""kafka-run-class: tools by the names of their classes."""

from __future__ import annotations

from kbroker.broker import Broker

from ..commands import Cli


async def test_tools_run_by_script_and_class_name(cli: Cli, broker: Broker) -> None:
    """Old compose files use class names."""
    server = ("--bootstrap-server", broker.bootstrap_servers)
    await cli("compat", "kafka-topics", *server, "--create", "--topic", "t", "--partitions", "1")
    written = await cli(
        *("compat", "kafka-producer-perf-test", "--topic", "t", "--num-records", "2500"),
        *("--record-size", "20", "--throughput", "-1", "--producer-props"),
        f"bootstrap.servers={broker.bootstrap_servers}",
    )
    assert written.stdout.startswith("2500 records sent, ")
    for name in ("kafka.tools.GetOffsetShell", "org.apache.kafka.tools.GetOffsetShell"):
        ends = await cli(
            *("compat", "kafka-run-class.sh", name, "--broker-list", broker.bootstrap_servers),
            *("--topic", "t", "--time", "-1", "--offsets", "1"),
        )
        assert ends.stdout == "t:0:2500\n"
