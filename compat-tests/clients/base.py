"""What a client library has to offer to the driver: one small interface for all of them."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

TRUSTED = os.environ.get("COMPAT_TRUSTED")
"""File of the certificates that are trusted, as PEM; without it clients speak no TLS."""
LOGIN = os.environ.get("COMPAT_LOGIN", "").split(":")
"""Mechanism, user and password of who logs in, over TLS; without it nobody does. By OAUTHBEARER the
last one is a file, which has a token whenever it is looked at."""
OnChange = Callable[[str, list[list[Any]]], None]
"""Called with "assigned" or "revoked" and the partitions as [topic, number] pairs."""


class Row(NamedTuple):
    """One record as a consumer got it; timestamp in ms since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def token() -> str:
    """The token of who logs in by OAUTHBEARER, as it is now."""
    return Path(LOGIN[2]).read_text()


def heartbeat_ms(session_ms: int) -> int:
    """How often a member says that it is there: often, as it hears of rebalances by the answers."""
    return min(max(session_ms // 10, 100), 300)


class Consumer(ABC):
    """A consumer; used by one thread only."""

    @abstractmethod
    def subscribe(self, topics: list[str] | None, pattern: str | None, on_change: OnChange) -> None:
        """Join the group for a list of topics or for all that match a pattern."""

    @abstractmethod
    def assign(self, topic: str, positions: dict[int, int | str]) -> None:
        """Read these partitions from an offset, "earliest" or "latest", without a group."""

    @abstractmethod
    def poll(self, seconds: float) -> list[Row]:
        """Records that arrived within `seconds`; raises what the broker answered."""

    @abstractmethod
    def commit(self, topic: str | None, offsets: dict[int, int] | None) -> None:
        """Commit these offsets, or (None) everything handed out so far; waits for the answer."""

    @abstractmethod
    def assignment(self) -> list[list[Any]]:
        """[topic, number] of the partitions held now."""

    @abstractmethod
    def partitions(self, topic: str) -> list[int]:
        """The partition numbers of a topic."""

    @abstractmethod
    def committed(self, topic: str) -> dict[int, int | None]:
        """Committed offset of each partition, None where there is none."""

    @abstractmethod
    def offsets(self, topic: str, at: str | int) -> dict[int, int | None]:
        """Earliest, latest, or the first offset whose time is >= at ms (None: no such record)."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group, if any, and end."""


class Transactional(ABC):
    """A producer with a transactional id, which has fenced all earlier ones; one thread only."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    @abstractmethod
    def send(self, topic: str, records: list[dict[str, Any]]) -> list[tuple[int, int] | Exception]:
        """As `Client.produce`, in the transaction."""

    @abstractmethod
    def send_offsets(
        self, consumer: Consumer, group: str, topic: str, offsets: dict[int, int]
    ) -> None:
        """Commit the positions of a member of `group` with the transaction."""

    @abstractmethod
    def end(self, commit: bool) -> None:
        """Commit or abort."""

    @abstractmethod
    def close(self) -> None: ...


class Client(ABC):
    """A client library bound to one cluster."""

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
        """A consumer; reset "none" raises when a position is out of range."""

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
        """Send everything, wait for all answers: (partition, offset) or the error of each."""

    @abstractmethod
    def transactional(self, identity: str | None, timeout_ms: int) -> Transactional:
        """A producer that may be used now; what it begins may take `timeout_ms`.

        Without an identity it is idempotent only: it sends, and ends nothing.
        """

    @abstractmethod
    def error_code(self, error: Exception) -> int | None:
        """Kafka's number for what was raised, None when no broker said it."""

    # The admin calls answer plain values and raise what the broker answered.

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
        """{"partitions": [{"number", "leader", "replicas", "isr"}], "internal": bool}"""

    @abstractmethod
    def topic_configs(self, name: str) -> dict[str, str | None]: ...

    @abstractmethod
    def alter_topic_configs(self, name: str, configs: dict[str, str | None]) -> None:
        """Set configs of a topic, None: back to the default.

        Libraries without IncrementalAlterConfigs set all configs of the topic anew.
        """

    @abstractmethod
    def broker_configs(self, node: int) -> dict[str, str | None]: ...

    @abstractmethod
    def add_partitions(self, name: str, total: int) -> None: ...

    @abstractmethod
    def describe_cluster(self) -> dict[str, Any]:
        """{"nodes": [id], "controller": id}"""

    def make_user(self, name: str, mechanism: str, password: str) -> dict[str, int]:
        """Let a user log in by SCRAM; returns how often its passwords are hashed, by mechanism."""
        raise NotImplementedError

    @abstractmethod
    def groups(self) -> list[str]: ...

    @abstractmethod
    def describe_group(self, group: str) -> dict[str, Any]:
        """{"state": str, "members": int, "strategy": str or None}"""

    @abstractmethod
    def delete_group(self, group: str) -> None: ...

    @abstractmethod
    def group_offsets(self, group: str, topic: str) -> dict[int, int]: ...

    @abstractmethod
    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Returns the new low watermark."""
