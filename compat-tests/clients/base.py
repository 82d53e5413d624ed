"""Interface that every client library implements for the driver."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# PEM file of trusted CA certificates. Without it, clients do not use TLS.
TRUSTED = os.environ.get("COMPAT_TRUSTED")
# SASL mechanism, user and password. Without it, clients do not authenticate. For OAUTHBEARER, the
# password is the path of a file that always contains a valid token.
LOGIN = os.environ.get("COMPAT_LOGIN", "").split(":")
# Callback with "assigned" or "revoked" and the partitions as [topic, partition] pairs.
OnChange = Callable[[str, list[list[Any]]], None]


class Row(NamedTuple):
    """A consumed record. The timestamp is in ms since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def token() -> str:
    """Return the current OAUTHBEARER token."""
    return Path(LOGIN[2]).read_text()


def heartbeat_ms(session_ms: int) -> int:
    """Return a short heartbeat interval, because heartbeat responses report rebalances."""
    return min(max(session_ms // 10, 100), 300)


class Consumer(ABC):
    """A consumer that a single thread uses."""

    @abstractmethod
    def subscribe(self, topics: list[str] | None, pattern: str | None, on_change: OnChange) -> None:
        """Join the group with a list of topics, or with all topics that match a pattern."""

    @abstractmethod
    def assign(self, topic: str, positions: dict[int, int | str]) -> None:
        """Read these partitions without a group, from an offset, "earliest" or "latest"."""

    @abstractmethod
    def poll(self, seconds: float) -> list[Row]:
        """Return the records that arrive within `seconds`, and raise errors of the broker."""

    @abstractmethod
    def commit(self, topic: str | None, offsets: dict[int, int] | None) -> None:
        """Commit these offsets, or all delivered records (None), and wait for the response."""

    @abstractmethod
    def assignment(self) -> list[list[Any]]:
        """Return the current assignment as [topic, partition] pairs."""

    @abstractmethod
    def partitions(self, topic: str) -> list[int]:
        """Return the partition numbers of a topic."""

    @abstractmethod
    def committed(self, topic: str) -> dict[int, int | None]:
        """Return the committed offset of each partition, or None without a commit."""

    @abstractmethod
    def offsets(self, topic: str, at: str | int) -> dict[int, int | None]:
        """Return earliest or latest offsets, or the first ones with a timestamp >= `at` (in ms)."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group, if any, and close the consumer."""


class Transactional(ABC):
    """A producer with a transactional ID, initialized and used by a single thread."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    @abstractmethod
    def send(self, topic: str, records: list[dict[str, Any]]) -> list[tuple[int, int] | Exception]:
        """Produce records in the transaction and return results like `Client.produce`."""

    @abstractmethod
    def send_offsets(
        self, consumer: Consumer, group: str, topic: str, offsets: dict[int, int]
    ) -> None:
        """Commit offsets of a member of `group` in the transaction."""

    @abstractmethod
    def end(self, commit: bool) -> None:
        """Commit or abort the transaction."""

    @abstractmethod
    def close(self) -> None: ...


class Client(ABC):
    """A client library that is connected to one cluster."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @abstractmethod
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
        """Create a consumer. With reset "none", it raises if an offset is out of range."""

    @abstractmethod
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
        """Produce the records and wait for all responses.

        Returns:
            (partition, offset) or the error of each record.
        """

    @abstractmethod
    def transactional(self, identity: str | None, timeout_ms: int) -> Transactional:
        """Create an initialized producer. `timeout_ms` is its transaction timeout.

        Without an identity, it is idempotent only and has no transactions.
        """

    @abstractmethod
    def error_code(self, error: Exception) -> int | None:
        """Return Kafka's error code of an exception, or None if it is not a broker's error."""

    # The admin calls return plain values and raise errors of the broker.

    @abstractmethod
    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = 1,
        configs: dict[str, str] | None = None,
    ) -> None: ...

    @abstractmethod
    def delete_topic(self, name: str) -> None: ...

    @abstractmethod
    def topics(self) -> list[str]: ...

    @abstractmethod
    def describe_topic(self, name: str) -> dict[str, Any]:
        """Return the description of a topic.

        The format is {"partitions": [{"number", "leader", "replicas", "isr"}], "internal": bool}.
        """

    @abstractmethod
    def topic_configs(self, name: str) -> dict[str, str | None]: ...

    @abstractmethod
    def alter_topic_configs(self, name: str, configs: dict[str, str | None]) -> None:
        """Set configs of a topic. None resets a config to its default.

        Libraries without IncrementalAlterConfigs replace all configs of the topic.
        """

    @abstractmethod
    def broker_configs(self, node: int) -> dict[str, str | None]: ...

    @abstractmethod
    def add_partitions(self, name: str, total: int) -> None: ...

    @abstractmethod
    def describe_cluster(self) -> dict[str, Any]:
        """Return {"nodes": [id], "controller": id}."""

    def make_user(self, name: str, mechanism: str, password: str) -> dict[str, int]:
        """Create a SCRAM user and return its iterations by mechanism."""
        raise NotImplementedError

    @abstractmethod
    def groups(self) -> list[str]: ...

    @abstractmethod
    def describe_group(self, group: str) -> dict[str, Any]:
        """Return {"state": str, "members": int, "strategy": str or None}."""

    @abstractmethod
    def delete_group(self, group: str) -> None: ...

    @abstractmethod
    def group_offsets(self, group: str, topic: str) -> dict[int, int]: ...

    @abstractmethod
    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Delete records before an offset and return the new low watermark."""
