"""`KafkaUtils` for PySpark's tests, with the method names of the helper that Spark's own tests use.

That one starts a container (pyspark.sql.tests.streaming.kafka_utils); this one starts a broker in a
thread, in milliseconds, and `kbroker` hands it out for faults, clocks and restarts. A suite is ported
by its import. pyspark itself is imported nowhere here: sessions and queries come from the test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.protocol.errors import ErrorCode, KafkaError

from .local import LocalBroker
from .real_time import steady_seconds

if TYPE_CHECKING:
    from kafka import KafkaAdminClient, KafkaProducer
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

TIMEOUT_SECONDS = 60
INTERVAL_SECONDS = 0.2
CLIENT_TIMEOUT_MS = 10_000


class KafkaUtils:
    """A Kafka for the tests of one class or session.

    Parameters: `settings` are those of `LocalBroker`: topics, config and so on.

    Resource handling: it runs from `setup` to `teardown`.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._kbroker: LocalBroker | None = None
        self._producer: KafkaProducer | None = None
        self._admin_client: KafkaAdminClient | None = None

    def setup(self) -> None:
        """Start the broker, unless it runs."""
        if self._kbroker is None:
            self._kbroker = LocalBroker(**self._settings)

    def teardown(self) -> None:
        """Stop the broker; all that is in it is gone. May be called again.

        Raises UnfiredFault when a fault was armed and hit nothing.
        """
        for client in (self._producer, self._admin_client):
            if client is not None:
                client.close()
        self._producer = self._admin_client = None
        broker, self._kbroker = self._kbroker, None
        if broker is not None:
            broker.close()
            broker.check_faults()

    @property
    def initialized(self) -> bool:
        """Whether the broker runs."""
        return self._kbroker is not None

    @property
    def kbroker(self) -> LocalBroker:
        """The broker itself. Raises RuntimeError before `setup`."""
        if self._kbroker is None:
            raise RuntimeError("the broker does not run yet; call setup() first")
        return self._kbroker

    @property
    def broker(self) -> str:
        """Its address, for `kafka.bootstrap.servers`. Raises RuntimeError before `setup`."""
        return self.kbroker.bootstrap_servers

    @property
    def producer(self) -> KafkaProducer:
        """A producer of kafka-python that sends keys and values as text. Raises ImportError."""
        if self._producer is None:
            from kafka import KafkaProducer
            from kafka.serializer import Serializer

            class Text(Serializer):  # type: ignore[misc]
                def serialize(self, *place_and_data: object) -> bytes | None:
                    return _bytes(place_and_data[-1])

            self._producer = KafkaProducer(
                bootstrap_servers=self.broker, key_serializer=Text(), value_serializer=Text()
            )
        return self._producer

    @property
    def admin_client(self) -> KafkaAdminClient:
        """An admin client of kafka-python. Raises ImportError."""
        if self._admin_client is None:
            from kafka import KafkaAdminClient

            self._admin_client = KafkaAdminClient(
                bootstrap_servers=self.broker, request_timeout_ms=CLIENT_TIMEOUT_MS
            )
        return self._admin_client

    def create_topics(
        self, topic_names: Sequence[str], num_partitions: int = 1, replication_factor: int = 1
    ) -> None:
        """Create topics; those that are there already stay as they are.

        Raises ValueError for more than one replica: there is one broker.
        """
        if replication_factor != 1:
            raise ValueError(f"there is one broker, so no {replication_factor} replicas")
        for name in topic_names:
            _call_ignoring(
                ErrorCode.TOPIC_ALREADY_EXISTS, self.kbroker.create_topic, name, num_partitions
            )

    def delete_topics(self, topic_names: Sequence[str]) -> None:
        """Delete topics, as far as they exist."""
        for name in topic_names:
            _call_ignoring(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, self.kbroker.delete_topic, name)

    def send_messages(self, topic: str, messages: Iterable[tuple[object, object]]) -> None:
        """Append records, each a key and a value, as text; returns when all are acknowledged."""
        for key, value in messages:
            self.kbroker.produce(topic, _bytes(value), key=_bytes(key))

    def get_all_records(
        self,
        spark: SparkSession,
        topic: str,
        key_deserializer: str = "STRING",
        value_deserializer: str = "STRING",
    ) -> dict[object, object]:
        """What Spark reads from a topic: the last value of each key.

        Parameters: the deserializers are types of Spark's SQL, to which keys and values are cast.
        """
        frame = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", self.broker)
            .option("subscribe", topic)
            .load()
            .selectExpr(
                f"CAST(key AS {key_deserializer}) AS key",
                f"CAST(value AS {value_deserializer}) AS value",
                "partition",
                "offset",
            )
        )
        rows = sorted(frame.collect(), key=lambda row: (row["partition"], row["offset"]))
        return {row["key"]: row["value"] for row in rows}

    def assert_eventually(
        self,
        result_func: Callable[[], object],
        expected: object,
        timeout: float = TIMEOUT_SECONDS,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        """Look every `interval` seconds until the result is as expected.

        Raises AssertionError with the last result after `timeout` seconds.
        """
        deadline = steady_seconds() + timeout
        while (result := result_func()) != expected:
            if steady_seconds() >= deadline:
                raise AssertionError(
                    f"not within {timeout:g} s: {expected!r}; last seen: {result!r}"
                )
            time.sleep(interval)

    def wait_for_query_alive(
        self,
        query: StreamingQuery,
        timeout: float = TIMEOUT_SECONDS,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        """Wait until a query has data or works on it.

        Raises AssertionError after `timeout` seconds, or at once with the cause when it has failed.
        """
        deadline = steady_seconds() + timeout
        while not (query.status["isDataAvailable"] or query.status["isTriggerActive"]):
            if (failure := query.exception()) is not None:
                raise AssertionError(f"the query has failed: {failure}")
            if steady_seconds() >= deadline:
                raise AssertionError(f"not alive within {timeout:g} s; it is {query.status}")
            time.sleep(interval)


def _bytes(value: object) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode()


def _call_ignoring(code: ErrorCode, call: Callable[..., None], *arguments: object) -> None:
    """Call it, and mind no error of this code."""
    try:
        call(*arguments)
    except KafkaError as error:
        if error.code != code:
            raise
