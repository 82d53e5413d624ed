"""Metadata requests of the archiver: availability of brokers, and topic IDs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker.spark.source.client import settings
from kbroker.spark.source.options import SECURITY

if TYPE_CHECKING:
    import logging

_TIMEOUT_S = 5.0


class BrokerUnavailableError(Exception):
    """No broker responds; the message has the addresses and the cause."""


@dataclass(frozen=True)
class Topic:
    """Current metadata of a topic."""

    # Topic ID; changes if the topic is deleted and created again. Empty if brokers lack topic IDs.
    id: str
    partitions: int


class Brokers:
    """Admin client of a cluster; call `close`, or it keeps reconnecting to stopped brokers."""

    def __init__(self, bootstrap: str, options: Mapping[str, str]) -> None:
        """Create the client with the security settings among a source's ``kafka.`` options."""
        from confluent_kafka.admin import AdminClient

        self._bootstrap = bootstrap
        chosen = {"bootstrap.servers": bootstrap, **client_settings(options)}
        # Errors are raised as exceptions, so discard the log of librdkafka.
        self._admin = AdminClient(chosen, logger=_silent())

    def close(self) -> None:
        """Close the client, even if Spark keeps a reference to this object."""
        del self._admin

    def names(self) -> list[str]:
        """Return the topics of the cluster, except internal ones.

        Raises:
            BrokerUnavailableError: No broker responds.
        """
        from confluent_kafka import KafkaException

        try:
            listed = self._admin.list_topics(timeout=_TIMEOUT_S).topics
        except KafkaException as error:
            raise BrokerUnavailableError(self._message(error)) from error
        return sorted(name for name in listed if not name.startswith("__"))

    def topic(self, name: str) -> Topic | None:
        """Return a topic, or None if it does not exist.

        Raises:
            BrokerUnavailableError: No broker responds.
        """
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        asked = self._admin.describe_topics(TopicCollection([name]), request_timeout=_TIMEOUT_S)
        try:
            found = asked[name].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise BrokerUnavailableError(self._message(error)) from error
        number = found.topic_id
        known = number is not None and (number.get_most_significant_bits() or
                                        number.get_least_significant_bits())  # fmt: skip
        return Topic(as_kafka_writes(number) if known else "", len(found.partitions))

    def _message(self, error: Exception) -> str:
        return f"no response from {self._bootstrap}: {error.args[0].str()}"


def as_kafka_writes(topic_id: object) -> str:
    """Return a topic ID in Kafka's URL-safe Base64; librdkafka uses standard Base64."""
    return str(topic_id).replace("+", "-").replace("/", "_")


def client_settings(options: Mapping[str, str]) -> dict[str, object]:
    """Return librdkafka's settings for a source's security options. Raises OptionError."""
    kafka = {
        name.removeprefix("kafka."): value
        for name, value in options.items()
        if name.startswith("kafka.")
    }
    return settings({name: value for name, value in kafka.items() if name.startswith(SECURITY)})


def _silent() -> logging.Logger:
    import logging

    logger = logging.getLogger("kbroker.pipelines.lake.brokers")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
