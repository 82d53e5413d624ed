"""`KafkaUtils` for tests of PySpark, with the method names of the helper in Spark's own tests.

Spark's helper (pyspark.sql.tests.streaming.kafka_utils) starts a container. This one starts a
broker in a thread within milliseconds; `KafkaUtils.kbroker` gives access to faults, clocks and
restarts. To port a test suite, change the import. This module does not import pyspark: tests pass
their sessions and queries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from kbroker.protocol.errors import ErrorCode, KafkaError

from .local import LocalBroker
from .real_time import steady_seconds

if TYPE_CHECKING:
    from kafka import KafkaAdminClient, KafkaProducer
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

# Default maximum seconds of a wait.
TIMEOUT_SECONDS = 60
# Default seconds between two checks of a wait.
INTERVAL_SECONDS = 0.2
CLIENT_TIMEOUT_MS = 10_000


class KafkaUtils:
    """A Kafka broker for the tests of one class or session. It runs from `setup` to `teardown`.

    Args:
        settings: Arguments of `LocalBroker`.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._kbroker: LocalBroker | None = None
        self._producer: KafkaProducer | None = None
        self._admin_client: KafkaAdminClient | None = None

    def setup(self) -> None:
        """Start the broker if it does not run."""
        if self._kbroker is None:
            self._kbroker = LocalBroker(**self._settings)

    def teardown(self) -> None:
        """Stop the broker and delete its data. Further calls do nothing.

        Raises:
            UnfiredFault: A fault has hit nothing.
        """
        broker, self._kbroker = self._kbroker, None
        clients = [each for each in (self._admin_client, self._producer) if each is not None]
        self._producer = self._admin_client = None
        with ExitStack() as stack:  # closes all, even if one fails
            if broker is not None:
                stack.callback(broker.close)
            for client in clients:
                stack.callback(client.close)
        if broker is not None:
            broker.check_faults()

    @property
    def initialized(self) -> bool:
        """True if the broker runs."""
        return self._kbroker is not None

    @property
    def kbroker(self) -> LocalBroker:
        """The broker.

        Raises:
            RuntimeError: `setup` was not called.
        """
        if self._kbroker is None:
            raise RuntimeError("the broker does not run; call setup() first")
        return self._kbroker

    @property
    def broker(self) -> str:
        """Address of the broker, for `kafka.bootstrap.servers`.

        Raises:
            RuntimeError: `setup` was not called.
        """
        return self.kbroker.bootstrap_servers

    @property
    def producer(self) -> KafkaProducer:
        """A producer of kafka-python that sends keys and values as strings.

        Raises:
            ImportError: kafka-python is not installed.
        """
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
        """An admin client of kafka-python.

        Raises:
            ImportError: kafka-python is not installed.
        """
        if self._admin_client is None:
            from kafka import KafkaAdminClient

            self._admin_client = KafkaAdminClient(
                bootstrap_servers=self.broker, request_timeout_ms=CLIENT_TIMEOUT_MS
            )
        return self._admin_client

    def create_topics(
        self, topic_names: Sequence[str], num_partitions: int = 1, replication_factor: int = 1
    ) -> None:
        """Create topics; existing topics are not changed.

        Args:
            topic_names: Topic names.
            num_partitions: Number of partitions of each topic.
            replication_factor: Must be 1.

        Raises:
            ValueError: The replication factor is not 1.
        """
        if replication_factor != 1:
            raise ValueError(
                f"replication_factor is {replication_factor}, but there is one broker; use 1"
            )
        for name in topic_names:
            _call_ignoring(
                ErrorCode.TOPIC_ALREADY_EXISTS, self.kbroker.create_topic, name, num_partitions
            )

    def delete_topics(self, topic_names: Sequence[str]) -> None:
        """Delete topics; topics that do not exist are ignored.

        Args:
            topic_names: Topic names.
        """
        for name in topic_names:
            _call_ignoring(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, self.kbroker.delete_topic, name)

    def send_messages(self, topic: str, messages: Iterable[tuple[object, object]]) -> None:
        """Append records, and return when all are acknowledged.

        Args:
            topic: Topic name.
            messages: Pairs of key and value; values other than bytes are converted to strings.
        """
        for key, value in messages:
            self.kbroker.produce(topic, _bytes(value), key=_bytes(key))

    def get_all_records(
        self,
        spark: SparkSession,
        topic: str,
        key_deserializer: str = "STRING",
        value_deserializer: str = "STRING",
    ) -> dict[object, object]:
        """Read a topic with Spark. Return the last value of each key.

        Args:
            spark: Session.
            topic: Topic name.
            key_deserializer: Spark SQL type that keys are cast to.
            value_deserializer: Spark SQL type that values are cast to.
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
        """Call a function repeatedly until its result is the expected one.

        Args:
            result_func: Returns the result.
            expected: Expected result.
            timeout: Maximum seconds to wait.
            interval: Seconds between two calls.

        Raises:
            AssertionError: The result differs until the timeout; the message has the last one.
        """
        deadline = steady_seconds() + timeout
        while (result := result_func()) != expected:
            if steady_seconds() >= deadline:
                raise AssertionError(
                    f"expected {expected!r} within {timeout:g} s; last result: {result!r}"
                )
            time.sleep(interval)

    def wait_for_query_alive(
        self,
        query: StreamingQuery,
        timeout: float = TIMEOUT_SECONDS,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        """Wait until a query has data or processes it.

        Args:
            query: Streaming query.
            timeout: Maximum seconds to wait.
            interval: Seconds between two checks.

        Raises:
            AssertionError: The query has failed, or is not active within the timeout.
        """
        deadline = steady_seconds() + timeout
        while not (query.status["isDataAvailable"] or query.status["isTriggerActive"]):
            if (failure := query.exception()) is not None:
                raise AssertionError(f"the query has failed: {failure}")
            if steady_seconds() >= deadline:
                raise AssertionError(
                    f"the query is not active within {timeout:g} s; its status is {query.status}"
                )
            time.sleep(interval)


def _bytes(value: object) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode()


def _call_ignoring(code: ErrorCode, call: Callable[..., None], *arguments: object) -> None:
    """Call a function, and ignore an error of this code."""
    try:
        call(*arguments)
    except KafkaError as error:
        if error.code != code:
            raise
