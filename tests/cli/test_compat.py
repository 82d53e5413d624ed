"""`kbroker compat`: Kafka's tools as scripts take them; compat-tests compares them with the real ones."""

from __future__ import annotations

import time

import pytest

from kbroker.broker import Broker, open_broker
from kbroker.cli.kafka_tools.api_versions import NEWEST
from kbroker.config import BrokerConfig
from kbroker.config.broker_table import STANDARD_AUTHORIZER
from kbroker.process.facts import NodeFacts, kafka_log_lines
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey

from ..brokers import LOOPBACK
from .conftest import Cli, invoke


async def test_topics_are_made_and_described(cli: Cli, broker: Broker) -> None:
    server = ("--bootstrap-server", broker.bootstrap_servers)
    topics = ("compat", "kafka-topics.sh", *server)
    made = await cli(
        *topics, "--create", "--topic", "orders", "--partitions=2", "--config", "retention.ms=7"
    )
    assert made.stdout == "Created topic orders.\n"
    again = await cli(*topics, "--create", "--topic", "orders", status=1)
    assert again.stdout == "Error while executing topic command : Topic 'orders' already exists.\n"
    await cli(*topics, "--create", "--if-not-exists", "--topic", "orders")
    assert (await cli(*topics, "--list")).stdout == "orders\n"
    lines = (await cli(*topics, "--describe", "--topic", "orders")).stdout.splitlines()
    assert lines[0].endswith("\tPartitionCount: 2\tReplicationFactor: 1\tConfigs: retention.ms=7")
    assert lines[1].startswith("\tTopic: orders\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1\t")
    await cli(*topics, "--delete", "--topic", "ord.*")
    assert (await cli(*topics, "--list")).stdout == ""


async def test_lines_come_back_with_keys_headers_and_nothing(cli: Cli, broker: Broker) -> None:
    server = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "lines")
    reader = ("parse.key=true", "parse.headers=true", "null.marker=NULL", "key.separator=:")
    words = [word for each in reader for word in ("--property", each)]
    await cli(
        "compat", "kafka-console-producer", *server, *words, stdin="h:1\ta:b\nNULL\tNULL:NULL\n"
    )
    shown = ("print.key=true", "print.headers=true", "print.offset=true")
    words = [word for each in shown for word in ("--formatter-property", each)]
    read = await cli(
        *("compat", "kafka-console-consumer", *server, *words),
        *("--from-beginning", "--max-messages", "2"),
    )
    assert read.stdout == "Offset:0\th:1\ta\tb\nOffset:1\tNO_HEADERS\tnull\tnull\n"
    assert read.stderr == "Processed a total of 2 messages\n"


async def test_a_consumer_that_nothing_comes_to_ends_in_time(cli: Cli, broker: Broker) -> None:
    server = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "silent")
    done = await cli("compat", "kafka-console-consumer", *server, "--timeout-ms", "200")
    assert done.stdout == ""
    assert "TimeoutException" in done.stderr


async def test_a_health_check_of_confluents_images(cli: Cli, broker: Broker) -> None:
    await cli("compat", "cub", "kafka-ready", "-b", broker.bootstrap_servers, "1", "20")
    late = await cli(
        "compat", "cub", "kafka-ready", "2", "0", "-b", broker.bootstrap_servers, status=1
    )
    assert "Expected 2 brokers within 0 s: there are 1" in late.stderr


async def test_a_group_is_moved(cli: Cli, broker: Broker) -> None:
    server = ("--bootstrap-server", broker.bootstrap_servers)
    await cli("topic", "create", "orders")
    await cli("topic", "produce", "orders", "a", "b", "c")
    groups = ("compat", "kafka-consumer-groups", *server, "--group", "g")
    moved = await cli(
        *groups, "--reset-offsets", "--to-offset", "2", "--topic", "orders", "--execute"
    )
    assert moved.stdout.split() == [
        "GROUP",
        "TOPIC",
        "PARTITION",
        "NEW-OFFSET",
        "g",
        "orders",
        "0",
        "2",
    ]
    described = await cli(*groups, "--describe")
    assert described.stdout.split()[9:15] == ["g", "orders", "0", "2", "3", "1"]
    assert "Consumer group 'g' has no active members." in described.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("kafka-topics", "--list", "--what"), "--what; `kbroker topic` may do it"),
        (("kafka-topics", "--list"), "--bootstrap-server HOST:PORT is missing"),
        (("kafka-topics", "--list", "--bootstrap-server", "localhost:1"), "refuses the connection"),
        (("kafka-log-dirs.sh", "--list"), "use `kbroker cluster logdirs`"),
        (("kafka-run-class", "kafka.Mine"), "'kafka.Mine' is not known here"),
        (("kafka-whatever",), "there is no tool 'kafka-whatever'"),
        (("kafka-configs", "--describe", "--user", "a", "--ip", "b"), "name a user, a client"),
    ],
)
def test_what_cannot_be_done_is_said(words: tuple[str, ...], said: str) -> None:
    assert said in invoke("compat", *words, status=1).output


def test_ids_and_names_of_tools() -> None:
    assert len(invoke("compat", "kafka-storage", "random-uuid").stdout.strip()) == 22
    assert "kafka-topics" in invoke("compat", "--list").stdout.splitlines()


def test_the_lines_of_kafkas_log_name_the_node() -> None:
    node = NodeFacts(7, "c", (), None, (), 0, 0, False, None, (7,))  # type: ignore[arg-type]
    lines = list(kafka_log_lines([node], 0.25))
    assert [line.split("] ", 1)[1] for line in lines] == [
        "INFO [KafkaRaftServer nodeId=7] Kafka Server started (kafka.server.KafkaRaftServer)",
        "INFO [BrokerServer id=7] Transitioning from RECOVERY to RUNNING (kafka.server.BrokerServer)",
        "INFO [KafkaServer id=7] started (kafka.server.KafkaServer)",
    ]
    assert ",250] INFO" in lines[0]


def test_the_tool_knows_the_newest_version_of_every_api() -> None:
    declared = {int(key): messages.request_class(key).VERSIONS[-1] for key in ApiKey}
    assert declared == NEWEST


async def test_scripts_of_compose_files_run(cli: Cli, broker: Broker) -> None:
    """Each tool by its script, and by the class that old compose files name."""
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


async def test_perf_test_keeps_to_its_throughput(cli: Cli, broker: Broker) -> None:
    began_at = time.monotonic()
    written = await cli(
        *("compat", "kafka-producer-perf-test", "--topic", "slow", "--num-records", "60"),
        *("--payload-monotonic", "--throughput", "100", "--reporting-interval", "200"),
        *("--bootstrap-server", broker.bootstrap_servers),
    )
    assert time.monotonic() - began_at >= 0.6
    *windows, last = written.stdout.splitlines()
    assert all(" max latency." in each for each in windows)
    assert last.startswith("60 records sent, ")
    counted = sum(int(each.split()[0]) for each in windows)
    assert 0 < counted <= 60


@pytest.mark.parametrize(("answer", "left"), [("y\n", 0), ("n\n", 1), ("", 1)])
async def test_removal_of_acls_is_confirmed(cli: Cli, answer: str, left: int) -> None:
    access = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    async with open_broker(
        BrokerConfig.load(options=access), data_dir=None, listeners=[LOOPBACK]
    ) as broker:
        acls = ("compat", "kafka-acls", "--bootstrap-server", broker.bootstrap_servers)
        await cli(
            *acls, "--add", "--allow-principal", "User:a", "--operation", "Read", "--topic", "t"
        )
        asked = await cli(*acls, "--remove", "--topic", "t", stdin=answer)
        assert asked.stdout == (
            "Are you sure you want to delete all ACLs for resource filter "
            "`ResourcePattern(resourceType=TOPIC, name=t, patternType=LITERAL)`? (y/n)\n"
        )
        listed = await cli(*acls, "--list", "--topic", "t")
        assert listed.stdout.count("principal=User:a") == left
