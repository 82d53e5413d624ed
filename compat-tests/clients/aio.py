"""aiokafka adapter. Its event loop runs in another thread, which executes all calls."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Coroutine
from typing import Any

import aiokafka
import aiokafka.errors
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import (
    AIOKafkaAdminClient,
    NewPartitions,
    NewTopic,
    RecordsToDelete,
)
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from base import LOGIN, TRUSTED, Client, Consumer, OnChange, Row, Transactional, heartbeat_ms, token

CALL_SECONDS = 60.0
SECURITY: dict[str, Any] = (
    {"security_protocol": "SSL", "ssl_context": ssl.create_default_context(cafile=TRUSTED)}
    if TRUSTED
    else {}
)
if len(LOGIN) == 3:
    names = ("sasl_mechanism", "sasl_plain_username", "sasl_plain_password")
    SECURITY |= {"security_protocol": "SASL_SSL", **dict(zip(names, LOGIN, strict=True))}


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Token provider that reads the token from a file."""

    async def token(self) -> str:
        return token()


if LOGIN[0] == "OAUTHBEARER":
    SECURITY["sasl_oauth_token_provider"] = Tokens()


class Loop:
    """An event loop in a thread. `call` runs a coroutine there and waits for its result."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(CALL_SECONDS)


class Listener(aiokafka.ConsumerRebalanceListener):
    """Rebalance listener that reports events."""

    def __init__(self, on_change: OnChange) -> None:
        self.on_change = on_change

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.on_change("assigned", _pairs(assigned))

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.on_change("revoked", _pairs(revoked))


class AioConsumer(Consumer):
    def __init__(self, loop: Loop, **settings: Any) -> None:
        self.loop = loop
        self.consumer: AIOKafkaConsumer = loop.call(self._open(settings))

    async def _open(self, settings: dict[str, Any]) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(**settings)
        await consumer.start()
        return consumer

    def subscribe(self, topics: list[str] | None, pattern: str | None, on_change: OnChange) -> None:
        async def work() -> None:
            self.consumer.subscribe(
                topics=topics or (), pattern=pattern, listener=Listener(on_change)
            )

        self.loop.call(work())

    def assign(self, topic: str, positions: dict[int, int | str]) -> None:
        async def work() -> None:
            self.consumer.assign([TopicPartition(topic, number) for number in positions])
            for number, position in positions.items():
                partition = TopicPartition(topic, number)
                if position == "earliest":
                    await self.consumer.seek_to_beginning(partition)
                elif position == "latest":
                    await self.consumer.seek_to_end(partition)
                else:
                    self.consumer.seek(partition, int(position))

        self.loop.call(work())

    def poll(self, seconds: float) -> list[Row]:
        found = self.loop.call(self.consumer.getmany(timeout_ms=int(seconds * 1000)))
        return [
            Row(
                one.topic,
                one.partition,
                one.offset,
                one.timestamp,
                one.key,
                one.value,
                list(one.headers),
            )
            for records in found.values()
            for one in records
        ]

    def commit(self, topic: str | None, offsets: dict[int, int] | None) -> None:
        if offsets is None:
            self.loop.call(self.consumer.commit())
        else:
            wanted = {TopicPartition(topic, number): at for number, at in offsets.items()}
            self.loop.call(self.consumer.commit(wanted))

    def assignment(self) -> list[list[Any]]:
        return _pairs(self.consumer.assignment())

    def partitions(self, topic: str) -> list[int]:
        async def work() -> list[int]:
            await self.consumer._client.add_topic(topic)
            return sorted(self.consumer.partitions_for_topic(topic) or [])

        return list(self.loop.call(work()))

    def committed(self, topic: str) -> dict[int, int | None]:
        partitions = [TopicPartition(topic, number) for number in self.partitions(topic)]

        async def work() -> dict[int, int | None]:
            self.consumer.assign(partitions)
            return {one.partition: await self.consumer.committed(one) for one in partitions}

        return dict(self.loop.call(work()))

    def offsets(self, topic: str, at: str | int) -> dict[int, int | None]:
        partitions = [TopicPartition(topic, number) for number in self.partitions(topic)]
        if at == "earliest":
            found = self.loop.call(self.consumer.beginning_offsets(partitions))
        elif at == "latest":
            found = self.loop.call(self.consumer.end_offsets(partitions))
        else:
            times = self.loop.call(self.consumer.offsets_for_times({one: at for one in partitions}))
            found = {key: None if one is None else one.offset for key, one in times.items()}
        return {key.partition: offset for key, offset in found.items()}

    def close(self) -> None:
        self.loop.call(self.consumer.stop())


class AioTransactional(Transactional):
    def __init__(self, loop: Loop, **settings: Any) -> None:
        self.loop = loop
        self.producer: AIOKafkaProducer = loop.call(self._open(settings))

    async def _open(self, settings: dict[str, Any]) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(**settings)
        await producer.start()
        return producer

    def begin(self) -> None:
        self.loop.call(self.producer.begin_transaction())

    def send(self, topic: str, records: list[dict[str, Any]]) -> list[tuple[int, int] | Exception]:
        return list(self.loop.call(_send_all(self.producer, topic, records)))

    def send_offsets(
        self, consumer: Consumer, group: str, topic: str, offsets: dict[int, int]
    ) -> None:
        wanted = {TopicPartition(topic, number): at for number, at in offsets.items()}
        self.loop.call(self.producer.send_offsets_to_transaction(wanted, group))

    def end(self, commit: bool) -> None:
        ended = self.producer.commit_transaction if commit else self.producer.abort_transaction
        self.loop.call(ended())

    def close(self) -> None:
        self.loop.call(self.producer.stop())


class Aiokafka(Client):
    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.loop = Loop()

    def consumer(
        self,
        group: str | None = None,
        reset: str = "earliest",
        strategy: str = "range",
        instance: str | None = None,
        session_ms: int = 10_000,
        auto_commit: bool = False,
        max_rows: int | None = None,
        isolation: str = "read_uncommitted",
        fetch_wait_ms: int = 500,
        partition_bytes: int = 1 << 20,
    ) -> Consumer:
        assignor = RangePartitionAssignor if strategy == "range" else RoundRobinPartitionAssignor
        return AioConsumer(
            self.loop,
            bootstrap_servers=self.bootstrap,
            **SECURITY,
            group_id=group,
            group_instance_id=instance,
            auto_offset_reset=reset,
            partition_assignment_strategy=[assignor],
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=session_ms,
            heartbeat_interval_ms=heartbeat_ms(session_ms),
            enable_auto_commit=auto_commit,
            auto_commit_interval_ms=100,
            metadata_max_age_ms=1000,
            max_poll_records=max_rows,
            isolation_level=isolation,
            fetch_max_wait_ms=fetch_wait_ms,
            max_partition_fetch_bytes=partition_bytes,
        )

    def produce(
        self,
        topic: str,
        records: list[dict[str, Any]],
        codec: str | None = None,
        acks: int | str = "all",
        idempotent: bool = False,
        linger_ms: int = 50,
        retries: int | None = None,
        request_timeout_ms: int = 15_000,
    ) -> list[tuple[int, int] | Exception]:
        settings = {
            "bootstrap_servers": self.bootstrap,
            **SECURITY,
            "compression_type": codec,
            "acks": acks,
            "enable_idempotence": idempotent,
            "linger_ms": linger_ms,
            "max_request_size": 64 * 1024 * 1024,
            "request_timeout_ms": request_timeout_ms,
        }
        return list(self.loop.call(_produce(topic, records, settings)))

    def transactional(self, identity: str | None, timeout_ms: int) -> Transactional:
        return AioTransactional(
            self.loop,
            bootstrap_servers=self.bootstrap,
            **SECURITY,
            enable_idempotence=True,
            transactional_id=identity,
            transaction_timeout_ms=timeout_ms,
        )

    def error_code(self, error: Exception) -> int | None:
        for one in (error, *error.args, error.__cause__):
            if isinstance(one, aiokafka.errors.BrokerResponseError):
                return int(one.errno)
        return None

    def _admin(self, work: Any) -> Any:
        async def run() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap, **SECURITY)
            await admin.start()
            try:
                return await work(admin)
            finally:
                await admin.close()

        return self.loop.call(run())

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = 1,
        configs: dict[str, str] | None = None,
    ) -> None:
        topic = NewTopic(name, partitions, replication, topic_configs=configs or {})
        answer = self._admin(lambda admin: admin.create_topics([topic]))
        for row in answer.topic_errors:
            _raise(row[1], name)

    def delete_topic(self, name: str) -> None:
        answer = self._admin(lambda admin: admin.delete_topics([name]))
        for row in answer.topic_error_codes:
            _raise(row[1], name)

    def topics(self) -> list[str]:
        return sorted(self._admin(lambda admin: admin.list_topics()))

    def describe_topic(self, name: str) -> dict[str, Any]:
        (found,) = self._admin(lambda admin: admin.describe_topics([name]))
        _raise(found["error_code"], name)
        return {
            "internal": bool(found["is_internal"]),
            "partitions": sorted(
                (
                    {
                        "number": one["partition"],
                        "leader": one["leader"],
                        "replicas": one["replicas"],
                        "isr": one["isr"],
                    }
                    for one in found["partitions"]
                ),
                key=lambda one: one["number"],
            ),
        }

    def topic_configs(self, name: str) -> dict[str, str | None]:
        return self._configs(ConfigResourceType.TOPIC, name)

    def alter_topic_configs(self, name: str, configs: dict[str, str | None]) -> None:
        kept = {key: value for key, value in configs.items() if value is not None}
        resource = ConfigResource(ConfigResourceType.TOPIC, name, kept)
        (answer,) = self._admin(lambda admin: admin.alter_configs([resource]))
        for code, message, _, _ in answer.resources:
            _raise(code, message)

    def broker_configs(self, node: int) -> dict[str, str | None]:
        return self._configs(ConfigResourceType.BROKER, str(node))

    def _configs(self, kind: ConfigResourceType, name: str) -> dict[str, str | None]:
        resource = ConfigResource(kind, name)
        (answer,) = self._admin(lambda admin: admin.describe_configs([resource]))
        ((code, message, _, _, entries),) = answer.resources
        _raise(code, message)
        return {entry[0]: entry[1] for entry in entries}

    def add_partitions(self, name: str, total: int) -> None:
        wanted = {name: NewPartitions(total)}
        self._admin(lambda admin: admin.create_partitions(wanted))

    def describe_cluster(self) -> dict[str, Any]:
        found = self._admin(lambda admin: admin.describe_cluster())
        return {
            "nodes": sorted(one["node_id"] for one in found["brokers"]),
            "controller": found["controller_id"],
        }

    def groups(self) -> list[str]:
        found = self._admin(lambda admin: admin.list_consumer_groups())
        return sorted(row[0] for row in found)

    def describe_group(self, group: str) -> dict[str, Any]:
        (answer,) = self._admin(lambda admin: admin.describe_consumer_groups([group]))
        (row,) = answer.groups
        _raise(row[0], group)
        return {"state": row[2], "members": len(row[5]), "strategy": row[4]}

    def delete_group(self, group: str) -> None:
        raise NotImplementedError("aiokafka's admin client cannot delete groups")

    def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        found = self._admin(lambda admin: admin.list_consumer_group_offsets(group))
        return {key.partition: one.offset for key, one in found.items() if key.topic == topic}

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        key = TopicPartition(topic, partition)
        wanted = {key: RecordsToDelete(before_offset=before)}
        return int(self._admin(lambda admin: admin.delete_records(wanted))[key])


async def _produce(
    topic: str, records: list[dict[str, Any]], settings: dict[str, Any]
) -> list[tuple[int, int] | Exception]:
    producer = AIOKafkaProducer(**settings)
    await producer.start()
    try:
        return await _send_all(producer, topic, records)
    finally:
        await producer.stop()


async def _send_all(
    producer: AIOKafkaProducer, topic: str, records: list[dict[str, Any]]
) -> list[tuple[int, int] | Exception]:
    sent = [await _send(producer, topic, record) for record in records]
    return [await _result(one) for one in sent]


async def _send(producer: AIOKafkaProducer, topic: str, record: dict[str, Any]) -> Any:
    try:
        return await producer.send(
            topic,
            key=record["key"],
            value=record["value"],
            headers=record["headers"],
            partition=record["partition"],
            timestamp_ms=record["timestamp"],
        )
    except Exception as error:  # noqa: BLE001 (any exception is a result)
        return error


async def _result(sent: Any) -> tuple[int, int] | Exception:
    if isinstance(sent, Exception):
        return sent
    try:
        metadata = await sent
    except Exception as error:  # noqa: BLE001 (any exception is a result)
        return error
    if metadata is None:  # acks=0
        return -1, -1
    return metadata.partition, metadata.offset


def _raise(code: int, about: str | None) -> None:
    if code:
        raise aiokafka.errors.for_code(code)(about)


def _pairs(partitions: Any) -> list[list[Any]]:
    return [[one.topic, one.partition] for one in partitions]


def make(bootstrap: str) -> Client:
    """Return the client, for driver.py."""
    return Aiokafka(bootstrap)
