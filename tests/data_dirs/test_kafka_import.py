"""`kbroker log import`: import of a stopped Kafka's directory.

kbroker writes the directory in Kafka's format; compat-tests use a directory of a real Kafka.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest
import trio

from kbroker.cluster import ResourceType
from kbroker.data_dirs import kafka_import
from kbroker.data_dirs.kafka_import import KafkaImportError, KafkaMetadata, Transfer
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import encode_bytes
from kbroker.protocol.metadata_log import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
    decode_metadata_record,
)
from kbroker.protocol.primitives import DecodeError, write_uvarint
from kbroker.protocol.records import Record, encode_batch
from kbroker.security.scram import ScramMechanism
from kbroker.storage.checkpoints import PartitionMetadata
from kbroker.storage.files import OsFiles

from ..brokers import started
from ..commands import Cli, ReadJson, invoke
from ..limits import PROCESS_SECONDS
from ..wire import (
    Topic,
    Wire,
    batch,
    connected,
    fetch,
    metadata,
    produce,
    request,
    sequenced,
    values_of,
)

pytestmark = pytest.mark.usefixtures("no_settings_of_this_machine")


META = "#\nnode.id=5\ndirectory.id=G8FncGbyQjmlmoYM5EtsLQ\nversion=1\ncluster.id={cluster}\n"
CLUSTER = "kBrokerAdoptTests00001"
KINDS = {
    PartitionRecord: 3,
    ConfigRecord: 4,
    PartitionChangeRecord: 5,
    DelegationTokenRecord: 10,
    UserScramCredentialRecord: 11,
    ClientQuotaRecord: 14,
    ProducerIdsRecord: 15,
    AccessControlEntryRecord: 18,
    RemoveAccessControlEntryRecord: 19,
    RemoveUserScramCredentialRecord: 22,
    RemoveDelegationTokenRecord: 26,
}


def frame(record: object, version: int = 0) -> bytes:
    kind = KINDS[type(record)]
    head = b"".join(map(write_uvarint, (1, kind, version)))
    return head + encode_bytes(record, version)


def metadata_log(directory: Path, *records: object) -> None:
    """Write Kafka's metadata log with these records and one of an unknown type."""
    values = [b"\x01\x02\x00\x00", *map(frame, records)]
    batches = [
        encode_batch([Record(None, value, 0)], base_offset=i) for i, value in enumerate(values)
    ]
    log = directory / "__cluster_metadata-0"
    log.mkdir(exist_ok=True)
    (log / "00000000000000000000.log").write_bytes(b"".join(batches))


def topic_id(kafka: Path, topic: str) -> UUID:
    found = PartitionMetadata.from_bytes((kafka / f"{topic}-0" / "partition.metadata").read_bytes())
    assert found is not None
    return found.topic_id


async def write(directory: Path) -> None:
    """Create two topics, a group, and records of an idempotent producer."""
    async with started(directory, offsets_topic_num_partitions=1) as broker:
        await broker.create_topic("orders", 2, {"retention.ms": "-1"})
        await broker.create_topic("users", 1)
        async with connected(broker.endpoint) as wire:
            init = request(ApiKey.INIT_PRODUCER_ID, transaction_timeout_ms=1000)
            producer = await wire.ask(ApiKey.INIT_PRODUCER_ID, 1, init)
            for number in range(6):
                data = batch(
                    [b"%d" % number],
                    producer_id=producer.producer_id,
                    producer_epoch=0,
                    base_sequence=number // 2,
                )
                row = await produce(wire, Topic("orders"), data, partition=number % 2)
                assert row.error_code == 0
            await produce(wire, Topic("users"), batch([b"u"]))
        await trio.to_thread.run_sync(
            lambda: invoke(
                *("group", "seek", "--yes", "g", "--to", "2", "-t", "orders"),
                *("-b", broker.bootstrap_servers),
            )
        )


async def write_in_open_transaction(wire: Wire) -> None:
    """Write to "orders" in a transaction that stays open."""
    find = request(ApiKey.FIND_COORDINATOR, key_type=1, key="t")
    await wire.ask(ApiKey.FIND_COORDINATOR, 3, find)
    init = request(ApiKey.INIT_PRODUCER_ID, transactional_id="t", transaction_timeout_ms=60_000)
    producer = await wire.ask(ApiKey.INIT_PRODUCER_ID, 5, init)
    data = sequenced(producer.producer_id, 0, [b"v"], transactional=True)
    row = await produce(wire, Topic("orders"), data, 12, transactional_id="t")
    assert row.error_code == 0


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("original") / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "kbroker.storage.log.SHORT_LOG_BYTES", -1
        )  # Kafka writes all files for every log
        trio.run(write, directory)
    (directory / "cluster.journal").unlink()
    (directory / "meta.properties").write_text(META.format(cluster=CLUSTER))
    return directory


@pytest.fixture
def kafka(original: Path, tmp_path: Path) -> Path:
    """Return a directory in the state of a stopped Kafka."""
    directory = Path(shutil.copytree(original, tmp_path / "kafka"))
    metadata_log(
        directory,
        ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="5"),
        ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="-1"),
        ConfigRecord(resource_type=2, resource_name="orders", name="segment.ms", value="9"),
        ConfigRecord(resource_type=2, resource_name="orders", name="segment.ms", value=None),
        ConfigRecord(resource_type=2, resource_name="users", name="unheard.of", value="1"),
        ConfigRecord(resource_type=4, resource_name="5", name="num.io.threads", value="1"),
        PartitionRecord(partition_id=0, topic_id=topic_id(directory, "orders"), leader_epoch=7),
        PartitionChangeRecord(partition_id=0, topic_id=topic_id(directory, "orders"), leader=5),
        PartitionChangeRecord(partition_id=0, topic_id=topic_id(directory, "orders"), isr=[5]),
        ProducerIdsRecord(broker_id=5, next_producer_id=4000),
    )
    return directory


@pytest.mark.parametrize("flags", [(), ("--move",), ("--link",)], ids=["copy", "move", "link"])
async def test_imported_data_is_complete_and_usable(
    cli: Cli, read_json: ReadJson, kafka: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    target, orders = tmp_path / "new", topic_id(kafka, "orders")
    output = await cli("log", "import", str(kafka), "--data-dir", str(target), *flags)
    assert "unheard.of=1 of users" in output.stderr
    assert "server.properties (users)" in output.stderr
    assert f"kbroker serve --data-dir {target}" in output.stderr
    assert (kafka / "orders-0").exists() == ("--move" not in flags)
    async with started(target) as broker, connected(broker.endpoint) as wire:
        address = ("-b", broker.bootstrap_servers)
        assert broker.node.cluster.id == CLUSTER
        assert broker.node.partitions.logs.clean
        (row,) = await read_json("topic", "describe", "orders", *address)
        assert row["configs"] == {"retention.ms": "-1"}
        assert [part["end_offset"] for part in row["partitions"]] == [3, 3]
        found = (await metadata(wire, ["orders"], 12)).topics[0]
        assert found.topic_id == orders
        assert found.partitions[0].leader_epoch > 8
        (group,) = await read_json("group", "describe", "g", *address)
        assert [each["current_offset"] for each in group["partitions"]] == [2, 2]
        # The producer continues its sequence, and no other producer gets its ID.
        retry = sequenced(0, 2, [b"4"])
        assert (await produce(wire, Topic("orders"), retry)).base_offset == 2
        next_one = sequenced(0, 3, [b"6"])
        assert (await produce(wire, Topic("orders"), next_one)).base_offset == 3
        assert values_of(await fetch(wire, Topic("orders"))) == [b"0", b"2", b"4", b"6"]
        init = request(ApiKey.INIT_PRODUCER_ID, transaction_timeout_ms=1000)
        assert (await wire.ask(ApiKey.INIT_PRODUCER_ID, 1, init)).producer_id >= 4000
    if "--move" not in flags:
        rows = json.loads(invoke("log", "verify", str(kafka), "-o", "json").stdout)
        ends = {row["partition"]: row["end_offset"] for row in rows["partitions"]}
        assert ends["orders-0"] == 3


def test_only_closed_segments_are_linked(kafka: Path, tmp_path: Path) -> None:
    sealed = kafka / "users-0" / "00000000000000000000.log"
    active = kafka / "users-0" / "00000000000000000001.log"
    active.write_bytes(encode_batch([Record(None, b"v", 0)], base_offset=1))
    target = tmp_path / "new"
    invoke("log", "import", str(kafka), "--data-dir", str(target), "--link")
    assert (target / "users-0" / sealed.name).samefile(sealed)
    assert not (target / "users-0" / active.name).samefile(active)


async def test_settings_of_all_resources_are_imported(
    cli: Cli, kafka: Path, tmp_path: Path
) -> None:
    metadata_log(
        kafka,
        ConfigRecord(resource_type=4, resource_name="", name="message.max.bytes", value="7000"),
        ConfigRecord(resource_type=4, resource_name="5", name="num.io.threads", value="3"),
        ConfigRecord(resource_type=4, resource_name="6", name="num.io.threads", value="4"),
        ConfigRecord(resource_type=4, resource_name="5", name="my.password", value="hunter2"),
        ConfigRecord(resource_type=8, resource_name="5", name="kafka.Kafka", value="DEBUG"),
        ConfigRecord(resource_type=16, resource_name="sub", name="interval.ms", value="9000"),
        ConfigRecord(
            resource_type=32, resource_name="g", name="share.auto.offset.reset", value="earliest"
        ),
        ConfigRecord(
            resource_type=32, resource_name="g", name="consumer.session.timeout.ms", value="5"
        ),
        ConfigRecord(
            resource_type=32, resource_name="g", name="consumer.session.timeout.ms", value=None
        ),
        ConfigRecord(resource_type=32, resource_name="g", name="from.the.future", value="1"),
    )
    target = tmp_path / "new"
    output = await cli("log", "import", str(kafka), "--data-dir", str(target), "--node-id", "3")
    assert "not imported: my.password=(hidden) of broker 5: " in output.stderr
    assert "hunter2" not in output.stderr
    assert "not imported: from.the.future=1 of group g: " in output.stderr
    async with started(target, node_id=3) as broker:
        found = {tuple(key): each.values for key, each in broker.node.cluster.configs.items()}
        assert found == {
            (ResourceType.BROKER, ""): {"message.max.bytes": "7000"},
            (ResourceType.BROKER, "3"): {"num.io.threads": "3"},
            (ResourceType.CLIENT_METRICS, "sub"): {"interval.ms": "9000"},
            (ResourceType.GROUP, "g"): {"share.auto.offset.reset": "earliest"},
        }
        assert broker.node.config.message_max_bytes == 7000


def test_settings_of_several_brokers_are_not_imported(kafka: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "meta.properties").write_text(
        META.format(cluster=CLUSTER).replace("node.id=5", "node.id=6")
    )
    plan = kafka_import.plan([kafka, other], tmp_path / "new")
    assert any("settings of broker 5: " in each for each in plan.not_imported)
    assert not plan.configs.of(ResourceType.BROKER, "5")


async def test_open_transactions_are_reported_without_their_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.storage.log.SHORT_LOG_BYTES", -1)
    kafka = tmp_path / "kafka"
    async with started(kafka, transaction_state_log_num_partitions=1) as broker:
        await broker.create_topic("orders", 1)
        async with connected(broker.endpoint) as wire:
            await write_in_open_transaction(wire)
    (kafka / "cluster.journal").unlink()
    (kafka / "meta.properties").write_text(META.format(cluster=CLUSTER))
    for only, is_reported in (((), False), (("orders",), True)):
        plan = kafka_import.plan([kafka], tmp_path / "new", only=only)
        found = any("open transaction in orders-0" in each for each in plan.not_imported)
        assert found is is_reported


async def test_cluster_wide_retention_is_imported(kafka: Path, tmp_path: Path) -> None:
    metadata_log(
        kafka,
        ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="-1"),
    )
    plan = kafka_import.plan([kafka], tmp_path / "new")
    assert not any("server.properties" in each for each in plan.not_imported)


@pytest.mark.parametrize("has_epochs", [True, False])
async def test_log_start_is_first_remaining_segment(
    cli: Cli, kafka: Path, tmp_path: Path, has_epochs: bool
) -> None:
    """Kafka omits log starts that equal a segment's base offset from its checkpoint."""
    directory, target = kafka / "users-0", tmp_path / "new"
    for path in directory.glob("0*"):
        path.unlink()
    segment = encode_batch([Record(None, b"v", 0)], base_offset=1)
    (directory / f"{1:020}.log").write_bytes(segment)
    (directory / "leader-epoch-checkpoint").unlink()
    if has_epochs:
        (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 1\n")
    (kafka / "recovery-point-offset-checkpoint").write_text("0\n1\nusers 0 2\n")
    (kafka / ".kafka_cleanshutdown").unlink()
    await cli("log", "import", str(kafka), "--data-dir", str(target))
    async with started(target) as broker:
        log = broker.node.partitions.named_replica("users", 0).log
        assert (log.log_start_offset, log.log_end_offset) == (1, 2)


async def test_import_after_unclean_shutdown_copies_and_recovers(
    cli: Cli, kafka: Path, tmp_path: Path
) -> None:
    """The first start recovers all logs; with links it could truncate Kafka's own files."""
    (kafka / ".kafka_cleanshutdown").unlink()
    with (kafka / "orders-0" / "00000000000000000000.log").open("ab") as segment:
        segment.write(b"torn")
    target = tmp_path / "new"
    refused = await cli("log", "import", str(kafka), "--data-dir", str(target), "--link", status=1)
    assert "--link requires a clean shutdown of Kafka" in refused.stderr
    output = await cli("log", "import", str(kafka), "--data-dir", str(target))
    assert "was not shut down cleanly" in output.stderr
    async with started(target) as broker:
        assert not broker.node.partitions.logs.clean
        assert broker.node.partitions.named_replica("orders", 0).log.log_end_offset == 3


@pytest.mark.parametrize("transfer", Transfer)
async def test_interrupted_import_is_continued(
    kafka: Path, tmp_path: Path, transfer: Transfer
) -> None:
    target = tmp_path / "new"
    plan = kafka_import.plan([kafka], tmp_path / "new")
    calls = 0

    def fail_at_the_second(_: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        await kafka_import.import_logs(
            plan, target, node_id=1, transfer=transfer, progress=fail_at_the_second
        )
    with pytest.raises(ValueError, match="the metadata belongs to cluster"):
        async with started(target):
            pass
    await kafka_import.import_logs(
        kafka_import.plan([kafka], tmp_path / "new"), target, node_id=1, transfer=transfer
    )
    async with started(target) as broker:
        assert set(broker.node.cluster.topics) == {"orders", "users", "__consumer_offsets"}
        assert broker.node.partitions.named_replica("orders", 1).log.high_watermark == 3


async def import_up_to(kafka: Path, target: Path, partitions: int, transfer: Transfer) -> None:
    """Import partitions up to a number, and fail there."""
    left = partitions

    def fail(_: int) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise OSError("the disk is full")

    plan = kafka_import.plan([kafka], target, transfer=transfer)
    with pytest.raises(OSError, match="the disk is full"):
        await kafka_import.import_logs(plan, target, node_id=1, transfer=transfer, progress=fail)


async def test_move_to_another_file_system_that_is_interrupted_can_be_continued(
    kafka: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, rename, remove = tmp_path / "new", Path.rename, shutil.rmtree

    def rename_in_one_file_system(path: Path, new: Path) -> Path:
        if path.parent == new.parent:
            return rename(path, new)
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    def remove_partly(path: Path, ignore_errors: bool = False) -> None:
        if path.parent == kafka:
            (path / "partition.metadata").unlink()
            raise KeyboardInterrupt
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(Path, "rename", rename_in_one_file_system)
    move = Transfer.MOVE
    plan = kafka_import.plan([kafka], target, transfer=move)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", remove_partly)
        with pytest.raises(KeyboardInterrupt):
            await kafka_import.import_logs(plan, target, node_id=1, transfer=move)
    plan = kafka_import.plan([kafka], target, transfer=move)
    await kafka_import.import_logs(plan, target, node_id=1, transfer=move)
    async with started(target) as broker:
        assert set(broker.node.cluster.topics) == {"orders", "users", "__consumer_offsets"}
        assert broker.node.partitions.named_replica("orders", 1).log.high_watermark == 3


async def test_move_to_another_file_system_syncs_copy_before_removal(
    kafka: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, rename, events = tmp_path / "new", Path.rename, []

    def rename_in_one_file_system(path: Path, new: Path) -> Path:
        if path.parent != new.parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        if path.parent == kafka:
            events.append(f"remove {path.name}")
        return rename(path, new)

    def sync(_: OsFiles, path: str) -> None:
        if path.endswith(".log"):
            events.append(f"sync {Path(path).parent.name}")

    monkeypatch.setattr(Path, "rename", rename_in_one_file_system)
    monkeypatch.setattr(kafka_import, "sync_file", sync)
    plan = kafka_import.plan([kafka], target, transfer=Transfer.MOVE)
    await kafka_import.import_logs(plan, target, node_id=1, transfer=Transfer.MOVE)
    removed = [each for each in events if each.startswith("remove")]
    assert len(removed) == 4
    for each in removed:
        assert f"sync {each.split()[1]}" in events[: events.index(each)]


@pytest.mark.parametrize("transfer", [Transfer.COPY, Transfer.LINK])
async def test_continued_import_rejects_partition_that_changed_after_it_was_copied(
    kafka: Path, tmp_path: Path, transfer: Transfer
) -> None:
    target = tmp_path / "new"
    await import_up_to(kafka, target, 2, transfer)
    (copied,) = [path.name for path in target.glob("orders-0")] or ["__consumer_offsets-0"]
    with (kafka / copied / "00000000000000000000.log").open("ab") as log:
        log.write(b"written by Kafka in the meantime")
    with pytest.raises(KafkaImportError, match=f"{copied} has changed since an earlier import"):
        kafka_import.plan([kafka], target, transfer=transfer)


async def test_continued_import_of_fewer_topics_is_rejected(kafka: Path, tmp_path: Path) -> None:
    target = tmp_path / "new"
    await import_up_to(kafka, target, 1, Transfer.COPY)
    plan = kafka_import.plan([kafka], target, only=["users"])
    with pytest.raises(KafkaImportError, match="also has __consumer_offsets, orders; repeat it"):
        await kafka_import.import_logs(plan, target, node_id=1, transfer=Transfer.COPY)
    assert not (target / "meta.properties").exists()


async def test_topic_with_longest_name_is_copied(kafka: Path, tmp_path: Path) -> None:
    target, name = tmp_path / "new", "t" * 249
    (kafka / "users-0").rename(kafka / f"{name}-0")
    plan = kafka_import.plan([kafka], target)
    await kafka_import.import_logs(plan, target, node_id=1, transfer=Transfer.COPY)
    assert (target / f"{name}-0").is_dir()


async def test_kafka_cannot_start_during_import(kafka: Path, tmp_path: Path) -> None:
    target, script = tmp_path / "new", "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), 6)"
    (kafka / ".lock").touch()
    statuses = []

    def lock(_: int) -> None:
        command = [sys.executable, "-c", script, str(kafka / ".lock")]
        done = subprocess.run(command, check=False, capture_output=True, timeout=PROCESS_SECONDS)
        statuses.append(done.returncode)

    plan = kafka_import.plan([kafka], target)
    await kafka_import.import_logs(plan, target, node_id=1, transfer=Transfer.COPY, progress=lock)
    assert set(statuses) == {1}


def test_interrupted_import_says_how_to_continue(
    kafka: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kafka_import, "_make_durable", interrupt)
    target = str(tmp_path / "new")
    output = invoke("log", "import", str(kafka), "--data-dir", target, status=130)
    assert "is incomplete, and no broker starts on it; repeat the command" in output.stderr


def test_unusable_directories_are_rejected(kafka: Path, tmp_path: Path) -> None:
    def import_errors(*args: str) -> str:
        return invoke("log", "import", *args, "--data-dir", str(tmp_path / "x"), status=1).stderr

    assert "is not a directory of `log.dirs`" in import_errors(str(tmp_path))
    assert "no partitions" in import_errors(str(kafka), "--topic", "nothing")
    other = Path(shutil.copytree(kafka, tmp_path / "other"))
    (other / "meta.properties").write_text(META.format(cluster="another"))
    assert "different clusters" in import_errors(str(kafka), str(other))
    shutil.rmtree(other / "orders-0")
    assert "partition 0 of orders is in none" in import_errors(str(other))
    (other / "orders-1" / "partition.metadata").unlink()
    assert "missing or damaged" in import_errors(str(other))
    target = tmp_path / "new"
    invoke("log", "import", str(kafka), "--data-dir", str(target))
    assert "is a data directory of kbroker" in import_errors(str(target))
    second_output = invoke("log", "import", str(kafka), "--data-dir", str(target), status=1)
    assert "is already a data directory" in second_output.stderr
    invoke("log", "import", str(kafka), "--move", "--link", status=2)


def test_running_kafka_is_detected(kafka: Path, tmp_path: Path) -> None:
    """Java uses fcntl locks, which belong to a process, so another process holds the lock."""
    with (kafka / ".lock").open("r+b") as file:
        child = os.fork()
        if child == 0:  # pragma: no cover
            fcntl.lockf(file, fcntl.LOCK_EX)
            os.kill(os.getpid(), 19)  # stop
            os._exit(0)
        os.waitpid(child, os.WUNTRACED)
        try:
            with pytest.raises(KafkaImportError, match="a broker uses"):
                kafka_import.plan([kafka], tmp_path / "new")
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)


@pytest.mark.parametrize("snapshots", [True, False])
def test_import_without_metadata_log_estimates_producer_ids(
    kafka: Path, tmp_path: Path, snapshots: bool
) -> None:
    shutil.rmtree(kafka / "__cluster_metadata-0")
    for path in kafka.glob("orders-*/*.log" if snapshots else "*/*.snapshot"):
        path.write_bytes(b"") if snapshots else path.unlink()
    plan = kafka_import.plan([kafka], tmp_path / "new")
    assert (
        plan.not_imported[-1]
        == "settings, users, ACLs, quotas: no directory contains __cluster_metadata-0"
    )
    assert plan.next_producer_id == 2000
    configs = {topic.name: topic.configs for topic in plan.topics}
    assert configs.pop("__consumer_offsets") == {"cleanup.policy": "compact"}
    assert not any(configs.values())


def test_producers_after_last_snapshot_are_found(kafka: Path, tmp_path: Path) -> None:
    """Kafka was restarted after the snapshot, received more records, and was killed."""
    shutil.rmtree(kafka / "__cluster_metadata-0")
    path = kafka / "orders-0" / "00000000000000000000.log"
    record = Record(None, b"x", 0)
    more = encode_batch(
        [record], base_offset=3, producer_id=5000, producer_epoch=0, base_sequence=0
    )
    path.write_bytes(path.read_bytes() + more)
    assert kafka_import.plan([kafka], tmp_path / "new").next_producer_id > 5000


def user(name: str, mechanism: int) -> UserScramCredentialRecord:
    keys = {"salt": b"salt", "stored_key": b"stored", "server_key": b"server"}
    return UserScramCredentialRecord(name=name, mechanism=mechanism, iterations=4096, **keys)


def acl(number: int, name: str) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=UUID(int=number),
        resource_type=2,
        resource_name=name,
        pattern_type=4,
        principal="User:bob",
        host="*",
        operation=3,
        permission_type=3,
    )


def quota(
    value: float, *, key: str = "producer_byte_rate", remove: bool = False
) -> ClientQuotaRecord:
    entity = [ClientQuotaRecord.Entity(entity_type="user", entity_name=None)]
    return ClientQuotaRecord(entity=entity, key=key, value=value, remove=remove)


async def test_users_acls_and_quotas_are_imported(kafka: Path, tmp_path: Path) -> None:
    metadata_log(
        kafka,
        user("bob", 1),
        user("bob", 2),
        user("gone", 1),
        RemoveUserScramCredentialRecord(name="gone", mechanism=1),
        RemoveUserScramCredentialRecord(name="bob", mechanism=1),
        acl(1, "orders"),
        acl(2, "users"),
        RemoveAccessControlEntryRecord(id=UUID(int=2)),
        quota(5),
        quota(7),
        quota(1, key="consumer_byte_rate"),
        quota(0, key="consumer_byte_rate", remove=True),
        quota(3, key="of_a_later_kafka"),
        DelegationTokenRecord(token_id="t"),
        DelegationTokenRecord(token_id="over"),
        RemoveDelegationTokenRecord(token_id="over"),
    )
    target = tmp_path / "new"
    plan = kafka_import.plan([kafka], target)
    assert plan.not_imported[-2:] == [
        "quota of_a_later_kafka=3 of user=<default>: Invalid configuration key of_a_later_kafka",
        "1 delegation tokens: create new ones",
    ]
    await kafka_import.import_logs(plan, target, node_id=1, transfer=Transfer.COPY)
    async with started(target) as broker:
        cluster = broker.node.cluster
        assert {
            name: [*cluster.scram_users.credentials(name)] for name in cluster.scram_users.names
        } == {"bob": [ScramMechanism.SHA_512]}
        assert cluster.scram_users.find(ScramMechanism.SHA_512, "bob") == (
            b"salt",
            b"stored",
            b"server",
            4096,
        )
        (rule,) = cluster.acls
        assert (rule.pattern.name, rule.principal) == ("orders", "User:bob")
        assert cluster.client_quotas.all == [({"user": None}, {"producer_byte_rate": 7.0})]


def test_metadata_snapshot_is_replayed_before_log(kafka: Path, tmp_path: Path) -> None:
    log = kafka / "__cluster_metadata-0"
    ids = ProducerIdsRecord(next_producer_id=9000)
    config = ConfigRecord(resource_type=2, resource_name="users", name="segment.ms", value="77")
    snapshot = [Record(None, frame(each), 0) for each in (ids, config)]
    (log / "00000000000000000100-0000000003.checkpoint").write_bytes(encode_batch(snapshot))
    plan = kafka_import.plan([kafka], tmp_path / "new")
    assert plan.next_producer_id == 9000
    assert {topic.name: topic.configs for topic in plan.topics}["users"] == {"segment.ms": "77"}
    assert {topic.name: topic.configs for topic in plan.topics}["orders"] == {}


def test_malformed_metadata_records_are_rejected() -> None:
    for value in (b"", b"\x01", b"\x02\x04\x00", b"\x01\x04\x00"):
        with pytest.raises(DecodeError):
            decode_metadata_record(value)
    assert decode_metadata_record(b"\x01\x02\x00") is None
    KafkaMetadata().replay(None)


@pytest.mark.parametrize(
    "name",
    [
        *("orders-0", "orders-0/00000000000000000000.log", "orders-0/partition.metadata"),
        *("meta.properties", ".lock", "replication-offset-checkpoint"),
        *("__cluster_metadata-0", "__cluster_metadata-0/00000000000000000000.log"),
    ],
)
def test_symbolic_links_are_rejected(kafka: Path, tmp_path: Path, name: str) -> None:
    """The target of a link is outside the directory and may belong to another user."""
    elsewhere = tmp_path / "elsewhere"
    if not (kafka / name).exists():
        (kafka / name).touch()
    (kafka / name).rename(elsewhere)
    (kafka / name).symlink_to(elsewhere)
    output = invoke(
        "log", "import", str(kafka), "--data-dir", str(tmp_path / "new"), status=1
    ).stderr
    assert f"{kafka / name} is a symbolic link; replace it by its target" in output
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("orders-0/00000000000000000000.log", "orders-0/x", "users-0/partition.metadata"),
        *("meta.properties", ".kafka_cleanshutdown", "__cluster_metadata-0/1-1.checkpoint"),
        "users-0/00000000000000000001.snapshot",
    ],
)
def test_pipes_are_rejected_without_blocking(kafka: Path, tmp_path: Path, name: str) -> None:
    (kafka / name).unlink(missing_ok=True)
    os.mkfifo(kafka / name)
    command = ["log", "import", str(kafka), "--data-dir", str(tmp_path / "new")]
    done = subprocess.run(
        [sys.executable, "-m", "kbroker", *command],
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert f"{kafka / name} is neither a file nor a directory; remove it" in done.stderr


def test_directories_with_invalid_partition_names_are_reported(kafka: Path, tmp_path: Path) -> None:
    foreign = ["..-0", ".-1", "my holiday-2026", "orders-007", "orders-٣", f"t-{2**31}"]
    for name in foreign:
        (kafka / name).mkdir()
    output = invoke("log", "import", str(kafka), "--data-dir", str(tmp_path / "new")).stderr
    for name in foreign:
        assert f"not imported: {kafka / name}: not a valid partition name" in output
        assert not (tmp_path / "new" / name).exists()
