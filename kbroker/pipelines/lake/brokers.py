"""What the archiver asks a cluster beside reading: whether it is there, and a topic's identity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker.spark.source.client import settings
from kbroker.spark.source.options import SECURITY

if TYPE_CHECKING:
    import logging

_TIMEOUT_S = 5.0


class BrokerAwayError(Exception):
    """No broker answers; the message says who was asked and what was wrong."""


@dataclass(frozen=True)
class Topic:
    """A topic as it is now."""

    id: str
    """Changes when a topic is deleted and made again; empty where brokers have no such thing."""
    partitions: int


class Brokers:
    """Asks a cluster. Call `close` at the end: until then it looks for brokers that are gone."""

    def __init__(self, bootstrap: str, options: Mapping[str, str]) -> None:
        """`options` are those of Spark's source; the ones that begin with ``kafka.`` count here."""
        from confluent_kafka.admin import AdminClient

        self._bootstrap = bootstrap
        chosen = {"bootstrap.servers": bootstrap, **client_settings(options)}
        # What it cannot reach is told by what it raises.
        self._admin = AdminClient(chosen, logger=_silent())

    def close(self) -> None:
        """End the connections. Who holds this, as Spark does for ever, holds no client any more."""
        del self._admin

    def names(self) -> list[str]:
        """The topics there are, without those that are the brokers' own.

        Raises:
            BrokerAwayError: nobody answers.
        """
        from confluent_kafka import KafkaException

        try:
            listed = self._admin.list_topics(timeout=_TIMEOUT_S).topics
        except KafkaException as error:
            raise BrokerAwayError(self._said(error)) from error
        return sorted(name for name in listed if not name.startswith("__"))

    def topic(self, name: str) -> Topic | None:
        """A topic; None when there is none of this name.

        Raises:
            BrokerAwayError: nobody answers.
        """
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        asked = self._admin.describe_topics(TopicCollection([name]), request_timeout=_TIMEOUT_S)
        try:
            told = asked[name].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise BrokerAwayError(self._said(error)) from error
        number = told.topic_id
        known = number is not None and (number.get_most_significant_bits() or
                                        number.get_least_significant_bits())  # fmt: skip
        return Topic(as_kafka_writes(number) if known else "", len(told.partitions))

    def _said(self, error: Exception) -> str:
        return f"{self._bootstrap} does not answer: {error.args[0].str()}"


def as_kafka_writes(topic_id: object) -> str:
    """A topic id in Kafka's own form, the alphabet of URLs; librdkafka's has slashes."""
    return str(topic_id).replace("+", "-").replace("/", "_")


def client_settings(options: Mapping[str, str]) -> dict[str, object]:
    """librdkafka's settings for a source's ``kafka.`` options about security. Raises OptionError."""
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
