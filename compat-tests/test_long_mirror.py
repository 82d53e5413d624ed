"""Soak tests of MirrorMaker 2: topics and groups are mirrored from Apache Kafka and back."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from harness.brokers import ApacheBroker, Broker
from harness.clients import eventually
from harness.connect import mirror_maker
from harness.secure import ServerInfo, secure_server
from harness.traffic import Feeder, Reader, Record, create_topics, topic_configs

CLIENT = "mirror"
PARTITIONS = 3
WAIT_SECONDS = 90.0
SETTINGS = {
    "clusters": "apache, here",
    "apache->here.enabled": "true",
    "apache->here.topics": "there",
    "here->apache.enabled": "true",
    "here->apache.topics": "back",
    "groups": "done, half",
    "apache.exactly.once.source.support": "enabled",
    "here.exactly.once.source.support": "enabled",
    "heartbeats.topic.replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "replication.factor": "1",
    "refresh.topics.interval.seconds": "2",
    "refresh.groups.interval.seconds": "2",
    "emit.checkpoints.interval.seconds": "1",
    "emit.heartbeats.interval.seconds": "1",
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
    "offset.lag.max": "0",
    "scheduled.rebalance.max.delay.ms": "0",
    "dedicated.mode.enable.internal.rest": "true",
    "listeners": "http://127.0.0.1:0",
    "offset.flush.interval.ms": "1000",
    "session.timeout.ms": "3000",
    "heartbeat.interval.ms": "500",
}
SECURE = {
    "clusters": "west, east",
    "west->east.enabled": "true",
    "west->east.topics": "orders",
    "sync.topic.acls.enabled": "true",
    "sync.topic.acls.interval.seconds": "2",
}
VALUES = [f"value {number}" for number in range(100)]
PASSWORD = "a long password"
GROUP = "readers"


def properties(apache: str, here: str) -> dict[str, str]:
    return {**SETTINGS, "apache.bootstrap.servers": apache, "here.bootstrap.servers": here}


def writer(topic: str) -> Callable[[int], list[Record]]:
    """Return a step function for a feeder: two keyed records per step."""

    def make(step: int) -> list[Record]:
        now = int(time.time() * 1000)
        return [Record(topic, f"k{step % 100}", f"{step}-{side}", now) for side in "ab"]

    return make


def by_key(records: list[Record]) -> dict[str | None, list[tuple[str, int]]]:
    """Return the values and timestamps of each key, in order."""
    found: dict[str | None, list[tuple[str, int]]] = defaultdict(list)
    for record in records:
        found[record.key].append((record.value, record.timestamp))
    return found


def read_as(address: str, group: str, topic: str, count: int | None = None) -> list[str]:
    """Read and commit as a member of a group: `count` records, or all."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    values: list[str] = []
    ended: set[int] = set()
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while len(ended) < PARTITIONS and (count is None or len(values) < count):
            assert time.monotonic() < deadline, f"{group} read {len(values)} of {topic}"
            for message in consumer.consume(500 if count is None else count - len(values), 0.2):
                if message.error() is None:
                    values.append(message.value().decode())
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    ended.add(message.partition())
        if values:
            consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return values


def committed(address: str, group: str, topic: str) -> dict[int, int]:
    """Return the offsets of a group from its coordinator."""
    wanted = ConsumerGroupTopicPartitions(
        group, [TopicPartition(topic, n) for n in range(PARTITIONS)]
    )
    admin = AdminClient({"bootstrap.servers": address})
    answer = admin.list_consumer_group_offsets([wanted])[group].result(30)
    return {each.partition: each.offset for each in answer.topic_partitions if each.offset >= 0}


class Direction:
    """One topic that is mirrored from one cluster to another while records are written."""

    def __init__(self, topic: str, alias: str, source: Broker, target: Broker) -> None:
        self.topic, self.copy = topic, f"{alias}.{topic}"
        self.source, self.target = source.address, target.address
        create_topics(self.source, PARTITIONS, topic, retention_ms="-1")
        self.feeder = Feeder(self.source, writer(topic))
        self.feeder.start()

    def copied(self) -> int:
        """Return the number of committed records in the copy (0 if there is no topic yet)."""
        reader = Reader(self.target)
        return len(reader.read(self.copy)) if reader.exists(self.copy) else 0

    def check_copy(self) -> None:
        """Check that the copy has the source's records, order per key, and configs."""
        sent = len(self.feeder.finish())
        eventually(self.copied, lambda n: n >= sent, f"{self.topic} is copied", WAIT_SECONDS)
        origin = Reader(self.source).read(self.topic)
        assert len(origin) == sent
        assert by_key(Reader(self.target).read(self.copy)) == by_key(origin)
        assert topic_configs(self.target, self.copy)["retention.ms"] == "-1"

    def check_groups(self) -> None:
        """Check the translated offsets of a group at the end and of a group in the middle."""
        values = {record.value for record in Reader(self.source).read(self.topic)}
        assert set(read_as(self.source, "done", self.topic)) == values
        seen = set(read_as(self.source, "half", self.topic, len(values) // 2))
        eventually(self._groups_are_there, bool, "the offsets of both groups", WAIT_SECONDS)
        assert read_as(self.target, "done", self.copy) == []
        rest = set(read_as(self.target, "half", self.copy))
        assert rest | seen == values
        assert len(rest) < len(values)

    def _groups_are_there(self) -> bool:
        """Return True if both groups have translated offsets (a transaction marker may follow)."""
        done, half = (committed(self.target, group, self.copy) for group in ("done", "half"))
        end = Reader(self.target).end(self.copy)
        return sum(done.values()) >= end - PARTITIONS and bool(half)


def test_topics_and_groups_are_mirrored_in_both_directions(
    own_broker: Broker, tmp_path: Path
) -> None:
    """MirrorMaker is killed while it mirrors in both directions between Kafka and kbroker."""
    apache = ApacheBroker(tmp_path / "apache")
    apache.start()
    mirror = mirror_maker(tmp_path, properties(apache.address, own_broker.address))
    directions: list[Direction] = []
    try:
        directions.append(Direction("there", "apache", apache, own_broker))
        directions.append(Direction("back", "here", own_broker, apache))
        mirror.start()
        for each in directions:
            eventually(each.copied, lambda n: n > 500, f"{each.topic} is copied", WAIT_SECONDS)
        mirror.kill()
        mirror.start()
        for each in directions:
            each.check_copy()
        for each in directions:
            each.check_groups()
        mirror.check()
    finally:
        for each in directions:
            each.feeder.stop()
        mirror.kill()
        apache.kill()
    counts = ", ".join(f"{each.topic} {len(each.feeder.sent)}" for each in directions)
    print(f"\nfigures: {counts} records copied through a kill, each once, and two groups each way")


def acl(
    name: str,
    user: str,
    operation: AclOperation,
    permission: AclPermissionType,
    kind: ResourceType = ResourceType.TOPIC,
) -> AclBinding:
    pattern = ResourcePatternType.LITERAL
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, permission)


def acls_of(admin: AdminClient, topic: str) -> set[AclBinding]:
    anything = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    return set(admin.describe_acls(anything).result(30))


def make_user(admin: AdminClient, name: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion(name, info, PASSWORD.encode())
    admin.alter_user_scram_credentials([change])[name].result(30)


def write_values(broker: ServerInfo, topic: str) -> None:
    admin = AdminClient(broker.librdkafka())  # must stay alive until the response arrives
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer(broker.librdkafka())
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def login(broker: ServerInfo, user: str) -> dict[str, Any]:
    return broker.librdkafka(sasl_username=user, sasl_password=PASSWORD, group_id=GROUP)


def read_values(broker: ServerInfo, user: str, topic: str) -> list[str]:
    """Return all values that a user reads. Raises KafkaException if the user is not permitted."""
    consumer = Consumer({**login(broker, user), "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[str] = []
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while len(values) < len(VALUES):
            assert time.monotonic() < deadline, f"{user} read {len(values)} of {topic}"
            message = consumer.poll(1)
            if message is not None and message.error():
                raise KafkaException(message.error())
            if message is not None:
                values.append(message.value().decode())
    finally:
        consumer.close()
    return values


def test_acls_are_copied_between_secure_brokers(tmp_path: Path) -> None:
    """Records and ACLs are mirrored over TLS and SASL."""
    allow, deny = AclPermissionType.ALLOW, AclPermissionType.DENY
    with secure_server(tmp_path / "west") as west, secure_server(tmp_path / "east") as east:
        write_values(west, "orders")
        permissions = [
            acl("orders", "bob", AclOperation.ALL, allow),
            acl("orders", "carol", AclOperation.WRITE, allow),
            acl("orders", "eve", AclOperation.READ, deny),
        ]
        origin, admin = AdminClient(west.librdkafka()), AdminClient(east.librdkafka())
        reading = acl(GROUP, "*", AclOperation.READ, allow, ResourceType.GROUP)
        for each, rules in ((origin, permissions), (admin, [reading])):
            for done in each.create_acls(rules).values():
                done.result(30)
        for user in ("bob", "eve"):
            make_user(admin, user)
        settings = {key: value for key, value in SETTINGS.items() if "apache" not in key}
        logins = {
            f"{alias}.{key}": value
            for alias, broker in (("west", west), ("east", east))
            for key, value in broker.java("producer.", "consumer.", "admin.").items()
        }
        mirror = mirror_maker(tmp_path, {**settings, **SECURE, **logins})
        mirror.start()
        try:
            copied = {
                acl("west.orders", "bob", AclOperation.READ, allow),
                acl("west.orders", "eve", AclOperation.READ, deny),
            }
            eventually(
                lambda: acls_of(admin, "west.orders"),
                lambda found: found == copied,
                "the ACLs",
                WAIT_SECONDS,
            )
            assert read_values(east, "bob", "west.orders") == VALUES
            eve = Consumer(login(east, "eve"))
            seen = eve.list_topics("west.orders", 30).topics["west.orders"]
            eve.close()
            assert seen.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            mirror.check()
        finally:
            mirror.kill()
