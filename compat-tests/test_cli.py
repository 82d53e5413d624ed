"""The command line on Apache Kafka 4.4 and on kbroker, with equal output.

The last tests import Kafka's data directory into kbroker while clients reconnect to it.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner
from harness.brokers import ApacheBroker, Broker, KbrokerBroker
from harness.clients import LIBRARIES, ClientProcess, eventually
from harness.tools import Tools

from kbroker.cli import main
from kbroker.client import Connection, connect
from kbroker.client.cluster_details import WARNING
from kbroker.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kbroker.protocol.records import Record, encode_batch

CLIENT = "command line"
PROPERTIES = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "3",
    "group.min.session.timeout.ms": "1000",
    # Allows the tests to create hanging transactions.
    "transaction.partition.verification.enable": "false",
}
SEED = "".join(
    json.dumps({"key": f"k{i}", "value": f"v{i}", "timestamp": 1_700_000_000_000 + i * 1000}) + "\n"
    for i in range(20)
)
BINARY = (
    '{"key_base64": "/wA=", "value": null, "timestamp": 5, "partition": 1, '
    '"headers": [{"key": "h", "value_base64": "/w=="}, {"key": "h", "value": null}]}\n'
)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str


def ask(broker: Broker, *args: str, stdin: str | None = None) -> CommandResult:
    """Run a command against a broker."""
    environ = {"KBROKER_BOOTSTRAP": broker.address, "KBROKER_PROFILES": "/nonexistent"}
    done = CliRunner(env=environ).invoke(main, args, input=stdin, catch_exceptions=False)
    return CommandResult(done.exit_code, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def apache(directory: Path) -> Iterator[Broker]:
    broker = ApacheBroker(directory / "apache", PROPERTIES)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(scope="module")
def ours(directory: Path) -> Iterator[Broker]:
    broker = KbrokerBroker(directory / "kbroker", PROPERTIES)
    broker.start()
    yield broker
    broker.kill()


Start = Callable[[Broker, str], ClientProcess]


@pytest.fixture(scope="module")
def confluent(directory: Path) -> Iterator[Start]:
    """Return a function that starts confluent-kafka processes."""
    running: list[ClientProcess] = []

    def start(broker: Broker, name: str) -> ClientProcess:
        log = directory / f"{name}-{broker.name}.err"
        running.append(ClientProcess(LIBRARIES["confluent-kafka"], broker.address, log))
        return running[-1]

    yield start
    for one in running:
        one.kill()


# Fields that differ between any two clusters.
VOLATILE = {
    *("topic_id", "leader_epoch", "cluster_id", "port", "member_id", "directory", "bytes"),
    *("usable_bytes", "total_bytes"),
}
# Timestamps from this time on differ between the clusters.
STARTED_MS = time.time_ns() // 1_000_000

ADDRESS = re.compile(r"127\.0\.0\.1:\d+|timestamp \d+")
# The broker's own error message follows the error name.
BROKER_MESSAGE = re.compile(r"(kbroker: [A-Z_]+): .*")

# Size of a topic on disk, in the preview of its deletion.
SIZE = re.compile(r"[\d.]+ [kMG]?B\b")


def comparable(result: CommandResult) -> tuple[int, Any, str]:
    """Return a command's result without volatile values."""
    try:
        value: Any = [without_volatile(json.loads(result.out))]
    except ValueError:
        lines = result.out.splitlines()
        try:
            value = [without_volatile(json.loads(line)) for line in lines]
        except ValueError:
            value = ADDRESS.sub("...", result.out)
    errors = SIZE.sub("...", ADDRESS.sub("...", result.err))
    return result.status, value, BROKER_MESSAGE.sub(r"\1", errors)


def without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: without_volatile(each)
            for key, each in value.items()
            if key not in VOLATILE and (key != "timestamp" or each < STARTED_MS)
        }
    if isinstance(value, list):
        return [without_volatile(each) for each in value if not is_warning(each)]
    return value


def is_warning(value: Any) -> bool:
    """Return True for a warning, such as a nearly full disk, which depends on the machine."""
    return isinstance(value, dict) and value.get("severity") == WARNING


JSON = ("-o", "json")
SHA_512 = ("--mechanism", "SCRAM-SHA-512")

COMMANDS: list[tuple[int, tuple[str, ...], str | None]] = [
    (0, ("topic", "list", *JSON), None),
    (0, ("topic", "create", "orders", "-p", "3", "-c", "retention.ms=-1"), None),
    (0, ("topic", "create", "--file", "-"), '[{"name": "users", "partitions": 2}]'),
    (1, ("topic", "create", "orders"), None),
    (0, ("topic", "create", "orders", "--if-not-exists"), None),
    (0, ("security", "user", "list", *JSON), None),
    (0, ("security", "user", "add", "alice"), "pencil"),
    (0, ("security", "user", "add", "bob", *SHA_512, "--iterations", "8192"), "brush\n"),
    (0, ("topic", "create", "later", "--dry-run"), None),
    (0, ("topic", "list"), None),
    (0, ("topic", "list", *JSON), None),
    (0, ("topic", "describe", "orders", "users", *JSON), None),
    (1, ("topic", "describe", "ordres"), None),
    (0, ("topic", "alter-config", "orders", "--set", "segment.bytes=1048576"), None),
    (0, ("topic", "alter-config", "orders", "--append", "cleanup.policy=compact"), None),
    (0, ("topic", "alter-config", "--yes", "orders", "--delete", "retention.ms"), None),
    (1, ("topic", "alter-config", "--yes", "order", "--delete", "retention.ms"), None),
    (0, ("topic", "describe", "orders", *JSON), None),
    (0, ("topic", "add-partitions", "users", "2"), None),
    (0, ("topic", "produce", "users", "--json"), SEED),
    (0, ("topic", "produce", "users", "--json"), BINARY),
    (0, ("topic", "produce", "users", "-k", "key", "-z", "zstd", "hello"), None),
    (1, ("topic", "produce", "users", "-p", "9", "hello"), None),
    (1, ("topic", "produce", "nobody", "hello"), None),
    (1, ("topic", "produce", "orders", "no key in a compacted topic"), None),
    (0, ("topic", "consume", "users", "-o", ":end", "-p", "0"), None),
    (0, ("topic", "consume", "users", "-o", ":end", "-p", "1"), None),
    (0, ("topic", "consume", "users", "-o", "@1700000005000:end", "-p", "2"), None),
    (
        0,
        (
            "topic",
            "consume",
            "users",
            "-o",
            "-2:end",
            "-p",
            "3",
            "-f",
            "%o %k=%v %a{compression}\n",
        ),
        None,
    ),
    (1, ("topic", "consume", "users", "-o", "99", "-p", "0"), None),
    (4, ("topic", "consume", "users", "--timeout", "200ms"), None),
    (0, ("topic", "trim", "--yes", "users", "--before", "1", "-p", "2", *JSON), None),
    (0, ("topic", "trim", "users", "--before", "end", "-p", "0", "--dry-run", *JSON), None),
    (1, ("topic", "trim", "--yes", "users", "--before", "99", "-p", "1", *JSON), None),
    (0, ("security", "user", "list", *JSON), None),
    (0, ("security", "user", "list", "bob"), None),
    (1, ("security", "user", "list", "alice", "nobody"), None),
    (1, ("security", "user", "remove", "--yes", "alice", *SHA_512), None),
    (0, ("security", "user", "remove", "--yes", "alice", "bob"), None),
    (0, ("group", "seek", "--yes", "g", "--to", "start", "-t", "users", *JSON), None),
    (0, ("group", "seek", "g", "--to", "end", "--dry-run", *JSON), None),
    (0, ("group", "seek", "--yes", "g", "--shift", "2", *JSON), None),
    (0, ("group", "seek", "--yes", "g", "--to", "@1700000005000", "-t", "users:0,1", *JSON), None),
    (0, ("group", "seek", "--yes", "g", "--from-file", "-", *JSON), "users,3,1\n"),
    (0, ("group", "list", *JSON), None),
    (0, ("group", "describe", "g", *JSON), None),
    (0, ("group", "describe", "g", "-t"), None),
    (1, ("group", "describe", "gg"), None),
    (0, ("group", "wait", "g", "--state", "Empty", "--members", "0"), None),
    (4, ("group", "wait", "g", "--state", "Stable", "--timeout", "100ms"), None),
    (0, ("group", "offset-delete", "--yes", "g", "-t", "users:1"), None),
    (1, ("group", "offset-delete", "--yes", "g", "-t", "orders"), None),
    (0, ("group", "delete", "--yes", "g"), None),
    (1, ("group", "delete", "--yes", "g"), None),
    (0, ("topic", "consume", "users", "-g", "m", "-o", "start:end", "-f", ""), None),
    (0, ("topic", "consume", "users", "-g", "m", "-o", ":end"), None),
    (0, ("group", "describe", "m", *JSON), None),
    (0, ("group", "delete", "--yes", "m"), None),
    (
        0,
        ("config", "set", "log.retention.ms=700000", "log.segment.bytes=2000000", "--default"),
        None,
    ),
    (0, ("config", "set", "log.retention.ms=800000", "--node", "1"), None),
    (1, ("config", "set", "log.retention.ms=never", "--node", "1", "--dry-run"), None),
    (1, ("config", "set", "node.id=4", "--node", "1"), None),
    (1, ("config", "set", "log.retention.m=4", "--default"), None),
    (0, ("config", "unset", "--yes", "log.retention.ms", "--node", "1"), None),
    (0, ("config", "unset", "--yes", "log.retention.ms", "log.segment.bytes", "--default"), None),
    (1, ("security", "user", "remove", "--yes", "bob"), None),
    (0, ("security", "user", "list", *JSON), None),
    (0, ("cluster", "health", *JSON), None),
    (0, ("cluster", "info", *JSON), None),
    (0, ("topic", "delete", "--yes", "users"), None),
    (0, ("topic", "delete", "--yes", "users", "--if-exists"), None),
    (1, ("topic", "delete", "--yes", "users"), None),
]


@pytest.fixture(scope="module")
def answers(
    apache: Broker, ours: Broker
) -> list[tuple[tuple[str, ...], int, CommandResult, CommandResult]]:
    """Return every command with its expected status and its results on both brokers."""
    return [
        (args, status, ask(ours, *args, stdin=stdin), ask(apache, *args, stdin=stdin))
        for status, args, stdin in COMMANDS
    ]


def test_all_commands_have_same_output_on_both_brokers(
    answers: list[tuple[tuple[str, ...], int, CommandResult, CommandResult]],
) -> None:
    different = []
    for args, status, our, their in answers:
        if comparable(our) != comparable(their) or our.status != status:
            different.append(f"{' '.join(args)}\n  kbroker {our}\n  Apache  {their}")
    assert not different, "\n".join(different)


def test_logdirs_lists_directory_and_partitions(
    apache: Broker,
    ours: Broker,
    answers: list[tuple[tuple[str, ...], int, CommandResult, CommandResult]],
) -> None:
    """The brokers may store different numbers of bytes, but in the same directories."""
    for broker in (apache, ours):
        result = ask(broker, "cluster", "logdirs", *JSON)
        assert result.status == 0, result
        (row,) = json.loads(result.out)
        assert row["directory"] == str(broker.data_dir)
        assert row["error"] is None
        assert 0 < row["usable_bytes"] < row["total_bytes"]
        assert {each["partition"] for each in row["partitions"]} >= {"orders-0", "orders-1"}


def test_json_records_are_copied_unchanged_from_kafka_to_kbroker(
    apache: Broker, ours: Broker
) -> None:
    for_ever = ("-p", "2", "-c", "retention.ms=-1")
    for broker in (apache, ours):
        assert ask(broker, "topic", "create", "from", "to", *for_ever).status == 0
    ask(apache, "topic", "produce", "from", "--json", stdin=SEED + BINARY)
    read = ask(apache, "topic", "consume", "from", "-o", ":end", "-p", "1").out
    assert '"key_base64": "/wA="' in read
    assert ask(ours, "topic", "produce", "to", "--json", stdin=read).status == 0
    again = ask(ours, "topic", "consume", "to", "-o", ":end", "-p", "1").out
    assert again.replace('"to"', '"from"') == read


def test_group_with_member_is_described_and_not_changed(
    apache: Broker, ours: Broker, confluent: Start
) -> None:
    """A group with members cannot be moved or deleted."""
    for broker in (apache, ours):
        ask(broker, "topic", "create", "read", "-p", "2")
        member = confluent(broker, "member")
        member("join", member="me", topics=["read"], group="live", session_ms=30_000)
        wait = ("group", "wait", "live", "--state", "Stable", "--members", "1", "--timeout", "30s")
        assert ask(broker, *wait).status == 0
        (row,) = json.loads(ask(broker, "group", "describe", "live", *JSON).out)
        assert [each["partition"] for each in row["partitions"]] == [0, 1]
        assert all(each["client_id"] and each["host"] for each in row["partitions"])
        assert (
            ask(broker, "group", "seek", "--yes", "live", "--to", "end", "-t", "read").status == 1
        )
        assert "the group has members" in ask(broker, "group", "delete", "--yes", "live").err
        member("leave", member="me")


CHANGES = [
    (("set", "log.roll.ms=7000000", "--default"), ("7000000", "all brokers")),
    (("set", "log.roll.ms=8000000", "--node", "1"), ("8000000", "this broker")),
    (("unset", "log.roll.ms", "--node", "1", "--yes"), ("7000000", "all brokers")),
    (("unset", "log.roll.ms", "--default", "--yes"), (None, "default")),
]


def test_broker_config_changes_are_visible(apache: Broker, ours: Broker) -> None:
    """A value of one broker takes precedence over the cluster-wide default."""
    for broker in (apache, ours):
        for change, seen in CHANGES:
            assert ask(broker, "config", *change).status == 0
            eventually(partial(roll_of, broker), seen.__eq__, f"{change} on {broker.name}")


def roll_of(broker: Broker) -> tuple[str | None, str]:
    """Return the setting's value on a broker and its source."""
    shown = ask(broker, "config", "show", "--node", "1", "--json").out.splitlines()
    rows = {row["name"]: row for row in map(json.loads, shown)}
    return rows["log.roll.ms"]["value"], rows["log.roll.ms"]["source"]


def test_consume_with_group_shares_partitions_with_librdkafka_member(
    apache: Broker, ours: Broker, confluent: Start
) -> None:
    """`consume --group` joins, and its partitions return to the other member when it leaves."""
    for broker in (apache, ours):
        ask(broker, "topic", "create", "shared", "-p", "4")
        for index in range(4):
            ask(broker, "topic", "produce", "shared", "-p", str(index), f"of {index}")
        other = confluent(broker, "shares")
        other("join", member="other", topics=["shared"], group="sharing", session_ms=30_000)
        wait = ("group", "wait", "sharing", "--state", "Stable", "--members", "1")
        assert ask(broker, *wait, "--timeout", "30s").status == 0
        result = ask(
            broker, "topic", "consume", "shared", "-g", "sharing", "-o", "start", "-n", "2"
        )
        assert (result.status, result.err) == (0, "")
        mine = [json.loads(line)["partition"] for line in result.out.splitlines()]
        assert ask(broker, *wait, "--timeout", "30s").status == 0
        (row,) = json.loads(ask(broker, "group", "describe", "sharing", *JSON).out)
        committed = {each["partition"]: each["current_offset"] for each in row["partitions"]}
        assert len(committed) == 4, "the other member does not own all partitions again"
        assert [committed[index] for index in mine] == [1, 1]
        other("leave", member="other")


def test_consumer_protocol_group_is_described_and_listed(apache: Broker) -> None:
    """The test itself sends the heartbeats of the member (KIP-848)."""
    ask(apache, "topic", "create", "newer", "-p", "2")
    ask(apache, "group", "describe", "kip-848")  # creates the coordinator

    async def join() -> None:
        async with connect("127.0.0.1", apache.port) as connection:
            await connection.negotiate()
            member, epoch, assigned = str(uuid.uuid4()), 0, None
            while not assigned:  # The coordinator may learn of a new topic later.
                beat = ConsumerGroupHeartbeatRequest(
                    group_id="kip-848",
                    member_id=member,
                    member_epoch=epoch,
                    rebalance_timeout_ms=10_000,
                    subscribed_topic_names=["newer"],
                    topic_partitions=[],
                )
                answer = await connection.ask(beat)
                assert answer.error_code == 0, answer
                epoch = answer.member_epoch
                assigned = answer.assignment and answer.assignment.topic_partitions
                await trio.sleep(0.1)

    trio.run(join)
    wait = ("group", "wait", "kip-848", "--members", "1", "--timeout", "20s")
    assert ask(apache, *wait).status == 0
    (row,) = json.loads(ask(apache, "group", "describe", "kip-848", *JSON).out)
    assert (row["type"], row["assignor"], row["members"]) == ("Consumer", "uniform", 1)
    assert [each["partition"] for each in row["partitions"]] == [0, 1]
    (listed,) = [
        each
        for each in json.loads(ask(apache, "group", "list", *JSON).out)
        if each["group"] == "kip-848"
    ]
    assert listed["type"] == "consumer"


async def transaction(
    broker: Broker,
    topic: str,
    value: bytes,
    *,
    commit: bool | None,
    name: str = "cli",
    added: bool = True,
) -> None:
    """Write one record in a transaction, request by request.

    If `commit` is None, the transaction stays open. If `added` is false, it hangs.
    """
    async with connect("127.0.0.1", broker.port) as connection:
        await connection.negotiate()
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=[name])
        init = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        deadline = trio.current_time() + 20
        while True:  # The broker creates the transaction log on first use.
            await connection.ask(find)
            producer = await connection.ask(init, newest=4)
            if not producer.error_code or trio.current_time() > deadline:
                break
            await trio.sleep(0.1)
        if added:
            await add_partition(connection, name, producer, topic)
        batch = encode_batch(
            [Record(None, value, 0)],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        rows = [ProduceRequest.Partition(index=0, records=batch)]
        request = ProduceRequest(
            transactional_id=name,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[ProduceRequest.Topic(name=topic, partition_data=rows)],
        )
        written = await connection.ask(request, newest=11)
        assert not written.responses[0].partition_responses[0].error_code, written
        if commit is not None:
            end = EndTxnRequest(
                transactional_id=name,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                committed=commit,
            )
            assert not (await connection.ask(end, newest=3)).error_code


async def add_partition(
    connection: Connection, name: str, producer: InitProducerIdResponse, topic: str
) -> None:
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnRequest.Topic(name=topic, partitions=[0])],
    )
    added = await connection.ask(add, newest=3)
    assert not added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code


def test_open_and_hanging_transactions_are_listed_and_aborted(apache: Broker, ours: Broker) -> None:
    """Hanging transactions are aborted in a partition, others by their transactional ID."""
    for broker in (apache, ours):
        ask(broker, "topic", "create", "hangs")
        for name, added in (("open", True), ("hanging", False)):
            begin = partial(transaction, broker, "hangs", b"x", commit=None, name=name, added=added)
            trio.run(begin)
        txn = ("cluster", "txn")
        listed = json.loads(ask(broker, *txn, "list", *JSON).out)
        states = {row["transactional_id"]: row["state"] for row in listed}
        assert (states["open"], states["hanging"]) == ("Ongoing", "Empty")
        (row,) = json.loads(ask(broker, *txn, "describe", "open", *JSON).out)
        assert (row["state"], row["partitions"], row["timeout_ms"]) == (
            "Ongoing",
            ["hangs-0"],
            60_000,
        )
        assert ask(broker, *txn, "describe", "missing").status == 1
        ongoing = json.loads(ask(broker, *txn, "list", "--longer-than", "1h", *JSON).out)
        assert "open" not in {row["transactional_id"] for row in ongoing}
        find = (*txn, "find-hanging", "--topic", "hangs", "--older-than", "0s", *JSON)
        (row,) = json.loads(ask(broker, *find).out)
        assert (row["topic"], row["partition"], row["start_offset"]) == ("hangs", 0, 1)
        abort = (*txn, "abort-hanging", "--yes", "hangs", "0")
        assert ask(broker, *abort, "0").status == 1, (
            "a transaction known to its coordinator was aborted"
        )
        done = ask(broker, *abort, "1")
        assert done.status == 0, done
        assert json.loads(ask(broker, *find).out) == []
        done = ask(broker, *txn, "abort", "--yes", "open")
        assert done.status == 0, done
        read = ("topic", "consume", "hangs", "-o", ":end", "--read-committed")
        assert ask(broker, *read).out == ""


def test_kafka_transactions_finds_and_aborts_hanging_transaction(
    apache: Broker, ours: Broker, tools: Tools
) -> None:
    for broker in (apache, ours):
        ask(broker, "topic", "create", "hangs-too")
        for name, added in (("known", True), ("unknown", False)):
            write = partial(transaction, broker, "hangs-too", b"x", commit=None)
            trio.run(partial(write, name=name, added=added))
        address = ("--bootstrap-server", broker.address)
        where = ("--topic", "hangs-too", "--partition", "0")
        find = partial(tools.run, "kafka-transactions", *address, "find-hanging")
        # With a given topic, and with all partitions of a broker.
        for scope in (("--topic", "hangs-too"), ("--broker-id", "1")):
            rows = [line.split() for line in find(*scope).stdout.splitlines()[1:]]
            found = [row for row in rows if row[0] == "hangs-too"]
            assert [(row[1], row[5]) for row in found] == [("0", "1")], rows
        tools.run("kafka-transactions", *address, "abort", *where, "--start-offset", "1")
        assert "hangs-too" not in find("--broker-id", "1").stdout


def test_read_committed_omits_aborted_records(apache: Broker) -> None:
    ask(apache, "topic", "create", "transactions")
    for value, commit in ((b"a", True), (b"b", False), (b"c", True)):
        trio.run(
            lambda value=value, commit=commit: transaction(
                apache, "transactions", value, commit=commit
            )
        )
    read = ("topic", "consume", "transactions", "-f", "%o:%v ")
    assert ask(apache, *read, "-o", ":end").out == "0:a 2:b 4:c "
    follow = ("--from-beginning", "-n", "2", "--timeout", "10s", "--read-committed")
    assert ask(apache, *read, *follow).out == "0:a 4:c "
    with_marks = ask(apache, *read, "-o", ":end", "--print-control-records").out
    assert [each.partition(":")[0] for each in with_marks.split()] == list("012345")


def test_clients_continue_after_import(apache: Broker, directory: Path, confluent: Start) -> None:
    """A member, an idempotent producer and a new client see every record once, in place."""
    ask(apache, "topic", "create", "moved", "-p", "2", "-c", "retention.ms=-1")
    producer, member = confluent(apache, "producer"), confluent(apache, "reader")
    records = [{"value": str(i), "partition": i % 2} for i in range(100)]
    producer("produce", topic="moved", records=records, idempotent=True)
    member("join", member="me", topics=["moved"], group="goes-on", session_ms=30_000)
    eventually(lambda: member("state", member="me")["count"], lambda n: n == 100, "records", 30)
    member("commit", member="me")
    before = json.loads(ask(apache, "topic", "describe", "moved", *JSON).out)[0]
    offsets = ask(apache, "group", "describe", "goes-on", "-c", *JSON).out
    apache.stop()

    taken = KbrokerBroker(directory / "taken", PROPERTIES)
    result = ask(apache, "log", "import", str(apache.data_dir), "--data-dir", str(taken.data_dir))
    assert result.status == 0, result
    checked = ask(apache, "log", "verify", str(taken.data_dir))
    assert checked.status == 0, checked
    taken.port = apache.port
    taken.start()
    try:
        after = json.loads(ask(taken, "topic", "describe", "moved", *JSON).out)[0]
        for row in (before, after):
            for part in row["partitions"]:
                epoch = part.pop("leader_epoch")
                assert row is before or epoch > 0
        assert after == before
        producer("produce", topic="moved", records=records[:50], idempotent=True)
        # If the member has to rejoin, the group first waits for its old session to expire.
        eventually(lambda: member("state", member="me")["count"], lambda n: n >= 150, "records", 60)
        values = [row["value"] for row in member("rows", member="me")]
        assert sorted(values) == sorted([row["value"] for row in records + records[:50]])
        rows = {
            (each["topic"], each["partition"]): each["current_offset"]
            for each in json.loads(offsets)[0]["partitions"]
        }
        assert rows == {("moved", 0): 50, ("moved", 1): 50}
        newcomer = confluent(taken, "newcomer")
        read = newcomer("read", topic="moved", partitions=[0, 1], count=150)
        assert len(read) == 150
    finally:
        taken.kill()


AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
SECURITY_COMMANDS = (
    ("security", "user", "list"),
    ("security", "acl", "list"),
    ("cluster", "quotas", "list"),
)


def test_import_keeps_users_acls_and_quotas(directory: Path) -> None:
    """Compares the output of the same commands before and after the import."""
    apache = ApacheBroker(directory / "secured", AUTHORIZER)
    apache.start()
    try:
        password = directory / "password"
        password.write_text("a long password")
        ask(apache, "topic", "create", "guarded")
        for name, mechanism in (("bob", "256"), ("bob", "512"), ("carol", "256")):
            words = ("--mechanism", f"SCRAM-SHA-{mechanism}", "--password-file", str(password))
            assert ask(apache, "security", "user", "add", name, *words).status == 0
        ask(apache, "security", "user", "remove", "--yes", "carol")
        bob = ("security", "acl", "add", "--principal", "bob")
        assert ask(apache, *bob, "--consumer", "--topic", "guarded", "--group", "g").status == 0
        deny = ("--deny", "--operation", "write", "--topic", "private-", "--prefixed")
        assert ask(apache, *bob, *deny).status == 0
        limits = ("producer_byte_rate=1000000", "request_percentage=12.5")
        assert ask(apache, "cluster", "quotas", "set", *limits, "--user", "bob").status == 0
        rate = ("connection_creation_rate=7", "--ip", "<default>")
        assert ask(apache, "cluster", "quotas", "set", *rate).status == 0
        before = [json.loads(ask(apache, *words, *JSON).out) for words in SECURITY_COMMANDS]
    finally:
        apache.stop()
    taken = KbrokerBroker(directory / "taken-rights", AUTHORIZER)
    result = ask(apache, "log", "import", str(apache.data_dir), "--data-dir", str(taken.data_dir))
    assert result.status == 0, result
    taken.start()
    try:
        after = [json.loads(ask(taken, *words, *JSON).out) for words in SECURITY_COMMANDS]
    finally:
        taken.kill()
    assert all(before)
    assert after == before
