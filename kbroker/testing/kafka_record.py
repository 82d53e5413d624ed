"""A record of a topic, as the test kit returns it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record of a topic.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        offset: Offset in the partition.
        timestamp: Timestamp in ms since the Unix epoch.
        key: Key, or None.
        value: Value, or None for a tombstone.
        headers: Pairs of header name and value, in their order.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def text(self) -> str:
        """Value decoded as UTF-8; an empty string if the value is None.

        Raises:
            UnicodeDecodeError: The value is not UTF-8.
        """
        return (self.value or b"").decode()

    @property
    def json(self) -> Any:
        """Value parsed as JSON; None if the value is None.

        Raises:
            ValueError: The value is not JSON.
        """
        return json.loads(self.value or b"null")
