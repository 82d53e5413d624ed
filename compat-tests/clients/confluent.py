"""confluent-kafka (librdkafka) adapter."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from functools import cached_property
from typing import Any

from base import LOGIN, TRUSTED, Client, Consumer, OnChange, Row, Transactional, heartbeat_ms, token
from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka import Consumer as LibConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

CALL_SECONDS = 30.0
SECURITY: dict[str, Any] = (
    {"security.protocol": "SSL", "ssl.ca.location": TRUSTED} if TRUSTED else {}
)
if len(LOGIN) == 3:
    names = ("sasl.mechanism", "sasl.username", "sasl.password")
    SECURITY |= {"security.protocol": "SASL_SSL", **dict(zip(names, LOGIN, strict=True))}
if LOGIN[0] == "OAUTHBEARER":
    SECURITY["oauth_cb"] = lambda _: _token()
EARLIEST, LATEST = -2, -1


def _token() -> tuple[str, float]:
    """Return the token and its expiry time in seconds since 1970."""
    text = token()
    claims = text.split(".")[1]
    return text, json.loads(base64.urlsafe_b64decode(claims + "=="))["exp"]


class ConfluentConsumer(Consumer):
    def __init__(self, settings: dict[str, Any]) -> None:
        self.consumer = LibConsumer(settings)

    def subscribe(self, topics: list[str] | None, pattern: str | None, on_change: OnChange) -> None:
        def assigned(consumer: LibConsumer, partitions: list[TopicPartition]) -> None:
            on_change("assigned", _pairs(partitions))

        def revoked(consumer: LibConsumer, partitions: list[TopicPartition]) -> None:
            on_change("revoked", _pairs(partitions))

        wanted = topics or [f"^{(pattern or '').removeprefix('^')}"]
        self.consumer.subscribe(wanted, on_assign=assigned, on_revoke=revoked, on_lost=revoked)

    def assign(self, topic: str, positions: dict[int, int | str]) -> None:
        named = {"earliest": EARLIEST, "latest": LATEST}
        self.consumer.assign(
            [
                TopicPartition(topic, number, named.get(position, position))
                for number, position in positions.items()
            ]
        )

    def poll(self, seconds: float) -> list[Row]:
        rows = []
        for message in self.consumer.consume(500, seconds):
            if message.error() is not None:
                raise KafkaException(message.error())
            kind, timestamp = message.timestamp()
            rows.append(
                Row(
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
                    message.key(),
                    message.value(),
                    message.headers() or [],
                )
            )
        return rows

    def commit(self, topic: str | None, offsets: dict[int, int] | None) -> None:
        if offsets is None:
            answer = self.consumer.commit(asynchronous=False)
        else:
            wanted = [TopicPartition(topic, number, at) for number, at in offsets.items()]
            answer = self.consumer.commit(offsets=wanted, asynchronous=False)
        for one in answer or []:
            if one.error is not None:
                raise KafkaException(one.error)

    def assignment(self) -> list[list[Any]]:
        return _pairs(self.consumer.assignment())

    def partitions(self, topic: str) -> list[int]:
        found = self.consumer.list_topics(topic, timeout=CALL_SECONDS).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return sorted(found.partitions)

    def committed(self, topic: str) -> dict[int, int | None]:
        wanted = [TopicPartition(topic, number) for number in self.partitions(topic)]
        found = self.consumer.committed(wanted, timeout=CALL_SECONDS)
        return {one.partition: one.offset if one.offset >= 0 else None for one in found}

    def offsets(self, topic: str, at: str | int) -> dict[int, int | None]:
        numbers = self.partitions(topic)
        if isinstance(at, int):
            wanted = [TopicPartition(topic, number, at) for number in numbers]
            found = self.consumer.offsets_for_times(wanted, timeout=CALL_SECONDS)
            return {one.partition: one.offset if one.offset >= 0 else None for one in found}
        which = 0 if at == "earliest" else 1
        return {
            number: self.consumer.get_watermark_offsets(
                TopicPartition(topic, number), timeout=CALL_SECONDS
            )[which]
            for number in numbers
        }

    def close(self) -> None:
        self.consumer.close()


class ConfluentTransactional(Transactional):
    def __init__(self, settings: dict[str, Any]) -> None:
        self.producer = Producer(settings)
        if "transactional.id" in settings:
            self.producer.init_transactions(CALL_SECONDS)

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, records: list[dict[str, Any]]) -> list[tuple[int, int] | Exception]:
        return _produce(self.producer, topic, records)

    def send_offsets(
        self, consumer: Consumer, group: str, topic: str, offsets: dict[int, int]
    ) -> None:
        assert isinstance(consumer, ConfluentConsumer)
        wanted = [TopicPartition(topic, number, at) for number, at in offsets.items()]
        member = consumer.consumer.consumer_group_metadata()
        self.producer.send_offsets_to_transaction(wanted, member, CALL_SECONDS)

    def end(self, commit: bool) -> None:
        if commit:
            self.producer.commit_transaction(CALL_SECONDS)
        else:
            self.producer.abort_transaction(CALL_SECONDS)

    def close(self) -> None:
        with contextlib.suppress(KafkaException):  # a fenced producer raises again
            self.producer.close()


class Confluent(Client):
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
        settings = {
            "bootstrap.servers": self.bootstrap,
            **SECURITY,
            "group.id": group or "unused",
            "auto.offset.reset": "error" if reset == "none" else reset,
            "partition.assignment.strategy": {"cooperative": "cooperative-sticky"}.get(
                strategy, strategy
            ),
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": heartbeat_ms(session_ms),
            "enable.auto.commit": auto_commit,
            "auto.commit.interval.ms": 100,
            # librdkafka closes connections if a coordinator moves, which increases the backoff.
            "reconnect.backoff.max.ms": 1000,
            "topic.metadata.refresh.interval.ms": 1000,
            "allow.auto.create.topics": False,
            "isolation.level": isolation,
            "fetch.wait.max.ms": fetch_wait_ms,
            "fetch.message.max.bytes": partition_bytes,
        }
        if strategy == "consumer":  # KIP-848: assignor and session timeout are broker settings
            for name in (
                "partition.assignment.strategy",
                "session.timeout.ms",
                "heartbeat.interval.ms",
            ):
                del settings[name]
            settings["group.protocol"] = "consumer"
        if instance is not None:
            settings["group.instance.id"] = instance
        return ConfluentConsumer(settings)

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
            "bootstrap.servers": self.bootstrap,
            **SECURITY,
            "compression.type": codec or "none",
            "acks": acks,
            "enable.idempotence": idempotent,
            "linger.ms": linger_ms,
            "message.max.bytes": 64 * 1024 * 1024,
            "request.timeout.ms": request_timeout_ms,  # sent in the request
            "socket.timeout.ms": request_timeout_ms,  # timeout of the response
            "message.timeout.ms": request_timeout_ms + 15_000,
        }
        if retries is not None:
            settings["retries"] = retries
        return _produce(Producer(settings), topic, records)

    def transactional(self, identity: str | None, timeout_ms: int) -> Transactional:
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            **SECURITY,
            "enable.idempotence": True,
            # This must not exceed transaction.timeout.ms.
            "message.timeout.ms": timeout_ms,
        }
        if identity is not None:
            settings |= {"transactional.id": identity, "transaction.timeout.ms": timeout_ms}
        return ConfluentTransactional(settings)

    def error_code(self, error: Exception) -> int | None:
        for one in error.args:
            if isinstance(one, KafkaError) and one.code() > 0:
                return int(one.code())
        return None

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, **SECURITY})

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = 1,
        configs: dict[str, str] | None = None,
    ) -> None:
        topic = NewTopic(name, partitions, replication, config=configs or {})
        self._admin.create_topics([topic])[name].result(CALL_SECONDS)

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(CALL_SECONDS)

    def make_user(self, name: str, mechanism: str, password: str) -> dict[str, int]:
        kind = ScramMechanism[mechanism.replace("-", "_")]
        info = ScramCredentialInfo(kind, 4096)
        row = UserScramCredentialUpsertion(name, info, password.encode())
        self._admin.alter_user_scram_credentials([row])[name].result(CALL_SECONDS)
        description = self._admin.describe_user_scram_credentials([name])[name].result(CALL_SECONDS)
        return {
            each.mechanism.name.replace("_", "-"): each.iterations
            for each in description.scram_credential_infos
        }

    def topics(self) -> list[str]:
        return sorted(self._admin.list_topics(timeout=CALL_SECONDS).topics)

    def describe_topic(self, name: str) -> dict[str, Any]:
        from confluent_kafka import TopicCollection

        wanted = TopicCollection([name])
        found = self._admin.describe_topics(wanted)[name].result(CALL_SECONDS)
        return {
            "internal": found.is_internal,
            "partitions": sorted(
                (
                    {
                        "number": one.id,
                        "leader": one.leader.id,
                        "replicas": [node.id for node in one.replicas],
                        "isr": [node.id for node in one.isr],
                    }
                    for one in found.partitions
                ),
                key=lambda one: one["number"],
            ),
        }

    def topic_configs(self, name: str) -> dict[str, str | None]:
        return self._configs(ConfigResource(ConfigResource.Type.TOPIC, name))

    def alter_topic_configs(self, name: str, configs: dict[str, str | None]) -> None:
        changes = [
            ConfigEntry(
                key,
                value,
                incremental_operation=(
                    AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
                ),
            )
            for key, value in configs.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=changes)
        self._admin.incremental_alter_configs([resource])[resource].result(CALL_SECONDS)

    def broker_configs(self, node: int) -> dict[str, str | None]:
        return self._configs(ConfigResource(ConfigResource.Type.BROKER, str(node)))

    def _configs(self, resource: ConfigResource) -> dict[str, str | None]:
        found = self._admin.describe_configs([resource])[resource].result(CALL_SECONDS)
        return {key: entry.value for key, entry in found.items()}

    def add_partitions(self, name: str, total: int) -> None:
        self._admin.create_partitions([NewPartitions(name, total)])[name].result(CALL_SECONDS)

    def describe_cluster(self) -> dict[str, Any]:
        found = self._admin.describe_cluster().result(CALL_SECONDS)
        return {
            "nodes": sorted(node.id for node in found.nodes),
            "controller": found.controller.id,
        }

    def groups(self) -> list[str]:
        found = self._admin.list_consumer_groups().result(CALL_SECONDS)
        return sorted(one.group_id for one in found.valid)

    def describe_group(self, group: str) -> dict[str, Any]:
        found = self._admin.describe_consumer_groups([group])[group].result(CALL_SECONDS)
        state = found.state.name.title().replace("_", "")
        return {
            "state": state,
            "members": len(found.members),
            "strategy": found.partition_assignor,
        }

    def delete_group(self, group: str) -> None:
        self._admin.delete_consumer_groups([group])[group].result(CALL_SECONDS)

    def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        wanted = [ConsumerGroupTopicPartitions(group)]
        found = self._admin.list_consumer_group_offsets(wanted)[group].result(CALL_SECONDS)
        return {one.partition: one.offset for one in found.topic_partitions if one.topic == topic}

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        key = TopicPartition(topic, partition, before)
        answer = next(iter(self._admin.delete_records([key]).values()))
        return int(answer.result(CALL_SECONDS).low_watermark)


def _produce(
    producer: Producer, topic: str, records: list[dict[str, Any]]
) -> list[tuple[int, int] | Exception]:
    results: list[Any] = [KafkaError(KafkaError._MSG_TIMED_OUT)] * len(records)
    for index, record in enumerate(records):
        try:
            producer.produce(topic, **_message(record), on_delivery=_keep(results, index))
        except Exception as error:  # noqa: BLE001 (any exception is a result)
            results[index] = error
    producer.flush(CALL_SECONDS)
    return [KafkaException(one) if isinstance(one, KafkaError) else one for one in results]


def _message(record: dict[str, Any]) -> dict[str, Any]:
    message = {"key": record["key"], "value": record["value"], "headers": record["headers"]}
    if record["partition"] is not None:
        message["partition"] = record["partition"]
    message["timestamp"] = record["timestamp"] or int(time.time() * 1000)
    return message


def _keep(results: list[Any], index: int) -> Any:
    def delivered(error: KafkaError | None, message: Any) -> None:
        if error is not None:
            results[index] = error
        else:
            results[index] = (message.partition(), message.offset())

    return delivered


def _pairs(partitions: Any) -> list[list[Any]]:
    return [[one.topic, one.partition] for one in partitions]


def make(bootstrap: str) -> Client:
    """Return the client, for driver.py."""
    return Confluent(bootstrap)
