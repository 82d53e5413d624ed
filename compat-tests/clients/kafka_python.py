"""kafka-python adapter for 3.x and 2.0.x, which have different admin clients."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import kafka
import kafka.admin
from base import LOGIN, TRUSTED, Client, Consumer, OnChange, Row, Transactional, heartbeat_ms, token
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.structs import OffsetAndMetadata

SEND_SECONDS = 30.0
SECURITY: dict[str, Any] = {"security_protocol": "SSL", "ssl_cafile": TRUSTED} if TRUSTED else {}
if len(LOGIN) == 3:
    names = ("sasl_mechanism", "sasl_plain_username", "sasl_plain_password")
    SECURITY |= {"security_protocol": "SASL_SSL", **dict(zip(names, LOGIN, strict=True))}
MODERN = not kafka.__version__.startswith("2.0")

if MODERN:
    from kafka.net.sasl.oauth import AbstractTokenProvider
else:
    from kafka.oauth import AbstractTokenProvider


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Token provider that reads the token from a file."""

    def token(self) -> str:
        return token()


if LOGIN[0] == "OAUTHBEARER":
    SECURITY["sasl_oauth_token_provider"] = Tokens()


class Listener(kafka.ConsumerRebalanceListener):
    """Rebalance listener that reports events."""

    def __init__(self, on_change: OnChange) -> None:
        self.on_change = on_change

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.on_change("assigned", _pairs(assigned))

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.on_change("revoked", _pairs(revoked))


class KafkaPythonConsumer(Consumer):
    def __init__(self, consumer: KafkaConsumer) -> None:
        self.consumer = consumer

    def subscribe(self, topics: list[str] | None, pattern: str | None, on_change: OnChange) -> None:
        self.consumer.subscribe(topics=topics or (), pattern=pattern, listener=Listener(on_change))
        # Fetch the metadata first. Otherwise 3.0.12 joins before it knows the partitions, joins
        # again afterwards, and loses the second assignment if a poll ends during that rebalance.
        for topic in topics or ():
            self.consumer.partitions_for_topic(topic)

    def assign(self, topic: str, positions: dict[int, int | str]) -> None:
        self.consumer.assign([TopicPartition(topic, number) for number in positions])
        for number, position in positions.items():
            partition = TopicPartition(topic, number)
            if position == "earliest":
                self.consumer.seek_to_beginning(partition)
            elif position == "latest":
                self.consumer.seek_to_end(partition)
                self.consumer.position(partition)
            else:
                self.consumer.seek(partition, position)

    def poll(self, seconds: float) -> list[Row]:
        found = self.consumer.poll(timeout_ms=int(seconds * 1000))
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
            self.consumer.commit()
            return
        rest = ("", -1) if MODERN else ("",)
        self.consumer.commit(
            {
                TopicPartition(topic, number): OffsetAndMetadata(offset, *rest)
                for number, offset in offsets.items()
            }
        )

    def assignment(self) -> list[list[Any]]:
        return _pairs(self.consumer.assignment())

    def partitions(self, topic: str) -> list[int]:
        return sorted(self.consumer.partitions_for_topic(topic) or [])

    def committed(self, topic: str) -> dict[int, int | None]:
        return {
            number: self.consumer.committed(TopicPartition(topic, number))
            for number in self.partitions(topic)
        }

    def offsets(self, topic: str, at: str | int) -> dict[int, int | None]:
        partitions = [TopicPartition(topic, number) for number in self.partitions(topic)]
        if at == "earliest":
            found = self.consumer.beginning_offsets(partitions)
        elif at == "latest":
            found = self.consumer.end_offsets(partitions)
        else:
            times = self.consumer.offsets_for_times({one: at for one in partitions})
            found = {key: None if one is None else one.offset for key, one in times.items()}
        return {key.partition: offset for key, offset in found.items()}

    def close(self) -> None:
        self.consumer.close(autocommit=False)


class KafkaPythonTransactional(Transactional):
    def __init__(self, producer: KafkaProducer) -> None:
        self.producer = producer
        if producer.config["transactional_id"] is not None:
            producer.init_transactions()

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, records: list[dict[str, Any]]) -> list[tuple[int, int] | Exception]:
        return _produce(self.producer, topic, records)

    def send_offsets(
        self, consumer: Consumer, group: str, topic: str, offsets: dict[int, int]
    ) -> None:
        assert isinstance(consumer, KafkaPythonConsumer)
        wanted = {
            TopicPartition(topic, number): OffsetAndMetadata(at, "", -1)
            for number, at in offsets.items()
        }
        member = consumer.consumer.group_metadata()
        self.producer.send_offsets_to_transaction(wanted, member)

    def end(self, commit: bool) -> None:
        if commit:
            self.producer.commit_transaction()
        else:
            self.producer.abort_transaction()

    def close(self) -> None:
        self.producer.close(timeout=2)


class KafkaPython(Client):
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
        version: str | None = None,
    ) -> Consumer:
        """Create a consumer. `version` is the broker version to assume ("0.9") without asking."""
        extra: dict[str, Any] = _pinned(version)
        if MODERN:
            extra["isolation_level"] = isolation
        if instance is not None:
            extra["group_instance_id"] = instance
        return KafkaPythonConsumer(
            KafkaConsumer(
                bootstrap_servers=self.bootstrap,
                **SECURITY,
                group_id=group,
                auto_offset_reset=reset,
                partition_assignment_strategy=_strategy(strategy),
                session_timeout_ms=session_ms,
                heartbeat_interval_ms=heartbeat_ms(session_ms),
                enable_auto_commit=auto_commit,
                auto_commit_interval_ms=100,
                metadata_max_age_ms=1000,
                max_poll_records=max_rows or 500,
                fetch_max_wait_ms=fetch_wait_ms,
                max_partition_fetch_bytes=partition_bytes,
                **extra,
            )
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
        version: str | None = None,
    ) -> list[tuple[int, int] | Exception]:
        extra: dict[str, Any] = _pinned(version)
        if MODERN:
            extra["enable_idempotence"] = idempotent
        if retries is not None:
            extra["retries"] = retries
        elif not MODERN:
            extra["retries"] = 3
        if MODERN:
            extra["delivery_timeout_ms"] = request_timeout_ms + 15_000
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            **SECURITY,
            compression_type=codec,
            acks=acks,
            linger_ms=linger_ms,
            max_request_size=64 * 1024 * 1024,
            request_timeout_ms=request_timeout_ms,
            max_block_ms=15_000,
            **extra,
        )
        try:
            return _produce(producer, topic, records)
        finally:
            producer.close(timeout=5)

    def transactional(self, identity: str | None, timeout_ms: int) -> Transactional:
        return KafkaPythonTransactional(
            KafkaProducer(
                bootstrap_servers=self.bootstrap,
                **SECURITY,
                enable_idempotence=True,
                transactional_id=identity,
                transaction_timeout_ms=timeout_ms,
                max_block_ms=20_000,
            )
        )

    def error_code(self, error: Exception) -> int | None:
        for one in (error, *error.args, error.__cause__):
            code = getattr(one, "errno", None)
            if isinstance(one, kafka.errors.BrokerResponseError) and code is not None:
                return int(code)
        return None

    @cached_property
    def _admin(self) -> KafkaAdminClient:
        return KafkaAdminClient(bootstrap_servers=self.bootstrap, **SECURITY)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = 1,
        configs: dict[str, str] | None = None,
    ) -> None:
        topic = kafka.admin.NewTopic(name, partitions, replication, topic_configs=configs or {})
        self._admin.create_topics([topic])

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topics([name])

    def make_user(self, name: str, mechanism: str, password: str) -> dict[str, int]:
        kind = kafka.admin.ScramMechanism[mechanism.replace("-", "_")]
        row = kafka.admin.UserScramCredentialUpsertion(name, kind, password)
        errors = self._admin.alter_user_scram_credentials([row])
        assert errors == {name: None}, errors
        description = self._admin.describe_user_scram_credentials([name])[name]
        assert description["error"] is None, description
        return {
            each["mechanism"].name.replace("_", "-"): each["iterations"]
            for each in description["credential_infos"]
        }

    def topics(self) -> list[str]:
        return sorted(self._admin.list_topics())

    def describe_topic(self, name: str) -> dict[str, Any]:
        (found,) = self._admin.describe_topics([name])
        if found["error_code"]:
            raise kafka.errors.for_code(found["error_code"])(name)
        prefix = "partition_index" if MODERN else "partition"
        leader, replicas, isr = (
            ("leader_id", "replica_nodes", "isr_nodes") if MODERN else ("leader", "replicas", "isr")
        )
        return {
            "internal": found["is_internal"],
            "partitions": sorted(
                (
                    {
                        "number": one[prefix],
                        "leader": one[leader],
                        "replicas": one[replicas],
                        "isr": one[isr],
                    }
                    for one in found["partitions"]
                ),
                key=lambda one: one["number"],
            ),
        }

    def topic_configs(self, name: str) -> dict[str, str | None]:
        return self._configs("TOPIC", name)

    def alter_topic_configs(self, name: str, configs: dict[str, str | None]) -> None:
        kind = kafka.admin.ConfigResourceType.TOPIC
        if MODERN:
            changes = {
                key: ("DELETE", None) if value is None else ("SET", value)
                for key, value in configs.items()
            }
            answers = self._admin.alter_configs([kafka.admin.ConfigResource(kind, name, changes)])
            # Errors are returned as strings.
            if refused := re.match(r"\[Error (\d+)\]", answers["topic"][name]):
                raise kafka.errors.for_code(int(refused[1]))(answers["topic"][name])
            return
        kept = {key: value for key, value in configs.items() if value is not None}
        answer = self._admin.alter_configs([kafka.admin.ConfigResource(kind, name, kept)])
        for code, message, _, _ in answer.resources:
            if code:
                raise kafka.errors.for_code(code)(message)

    def broker_configs(self, node: int) -> dict[str, str | None]:
        return self._configs("BROKER", str(node))

    def _configs(self, kind: str, name: str) -> dict[str, str | None]:
        types = kafka.admin.ConfigResourceType
        resource = kafka.admin.ConfigResource(types[kind], name)
        if MODERN:
            found = self._admin.describe_configs([resource], config_filter="all")
            entries = found[0] if isinstance(found, list) else found[kind.lower()][name]
            return {key: entry["value"] for key, entry in entries.items()}
        (answer,) = self._admin.describe_configs([resource])
        ((code, message, _, _, entries),) = answer.resources
        if code:
            raise kafka.errors.for_code(code)(message)
        return {entry[0]: entry[1] for entry in entries}

    def add_partitions(self, name: str, total: int) -> None:
        self._admin.create_partitions({name: kafka.admin.NewPartitions(total)})

    def describe_cluster(self) -> dict[str, Any]:
        found = self._admin.describe_cluster()
        identity = "broker_id" if MODERN else "node_id"
        return {
            "nodes": sorted(one[identity] for one in found["brokers"]),
            "controller": found["controller_id"],
        }

    def groups(self) -> list[str]:
        if MODERN:
            return sorted(one["group_id"] for one in self._admin.list_groups())
        return sorted(name for name, _ in self._admin.list_consumer_groups())

    def describe_group(self, group: str) -> dict[str, Any]:
        if MODERN:
            found = self._admin.describe_groups([group])[group]
            return {
                "state": found["group_state"],
                "members": len(found["members"]),
                "strategy": found["protocol_data"],
            }
        (old,) = self._admin.describe_consumer_groups([group])
        return {"state": old.state, "members": len(old.members), "strategy": old.protocol}

    def delete_group(self, group: str) -> None:
        if MODERN:
            answer = self._admin.delete_groups([group])
            error = answer[group] if isinstance(answer, dict) else dict(answer)[group]
        else:
            ((_, error),) = self._admin.delete_consumer_groups([group])
        _raise(error)

    def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        if MODERN:
            found = self._admin.list_group_offsets([group])[group]
        else:
            found = self._admin.list_consumer_group_offsets(group)
        return {key.partition: one.offset for key, one in found.items() if key.topic == topic}

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        key = TopicPartition(topic, partition)
        answer = self._admin.delete_records({key: before})
        return int(answer[key]["low_watermark"])


def _raise(error: Any) -> None:
    if isinstance(error, type) and issubclass(error, kafka.errors.KafkaError):
        if error is not kafka.errors.NoError:
            raise error("answered by the broker")
    elif isinstance(error, Exception) and not isinstance(error, kafka.errors.NoError):
        raise error
    elif isinstance(error, str) and error not in ("OK", "NoError"):
        raise getattr(kafka.errors, error.partition(":")[0].rpartition(" ")[2])(error)


def _pinned(version: str | None) -> dict[str, Any]:
    return {} if version is None else {"api_version": tuple(map(int, version.split(".")))}


def _strategy(name: str) -> list[type]:
    if name == "cooperative":
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

        return [CooperativeStickyAssignor]
    return [RangePartitionAssignor if name == "range" else RoundRobinPartitionAssignor]


def _produce(
    producer: KafkaProducer, topic: str, records: list[dict[str, Any]]
) -> list[tuple[int, int] | Exception]:
    sent = [_send(producer, topic, record) for record in records]
    producer.flush(SEND_SECONDS)
    return [_result(one) for one in sent]


def _send(producer: KafkaProducer, topic: str, record: dict[str, Any]) -> Any:
    try:
        return producer.send(
            topic,
            key=record["key"],
            value=record["value"],
            headers=record["headers"] or None,
            partition=record["partition"],
            timestamp_ms=record["timestamp"],
        )
    except Exception as error:  # noqa: BLE001 (any exception is a result)
        return error


def _result(sent: Any) -> tuple[int, int] | Exception:
    if isinstance(sent, Exception):
        return sent
    try:
        metadata = sent.get(timeout=SEND_SECONDS)
    except Exception as error:  # noqa: BLE001 (any exception is a result)
        return error
    return metadata.partition, metadata.offset


def _pairs(partitions: Any) -> list[list[Any]]:
    return [[one.topic, one.partition] for one in partitions]


def make(bootstrap: str) -> Client:
    """Return the client, for driver.py."""
    return KafkaPython(bootstrap)
