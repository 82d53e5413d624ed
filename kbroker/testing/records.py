"""Records as a test sees them, and values as it gives them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Value = bytes | str | None | dict[str, Any] | list[Any] | int | float | bool
"""What a test may produce: bytes as they are, text as UTF-8, everything else as JSON."""


Headers = Mapping[str, Value] | Iterable[tuple[str, Value]]
"""Names with their values; as pairs, a name may come more than once."""


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record as it lies in a topic. `timestamp` is in ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def text(self) -> str:
        """The value as text."""
        return (self.value or b"").decode()

    @property
    def json(self) -> Any:
        """The value as JSON."""
        return json.loads(self.value or b"null")


def to_bytes(value: Value) -> bytes | None:
    """A key or value as it is produced."""
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def headers_of(given: Headers) -> tuple[tuple[str, bytes | None], ...]:
    """Headers as they are produced. Raises ValueError."""
    found: list[tuple[str, bytes | None]] = []
    for pair in given.items() if isinstance(given, Mapping) else given:
        match pair:
            case [str(name), value]:
                found.append((name, to_bytes(value)))
            case _:
                raise ValueError(
                    f'headers are {{"name": "value"}} or [("name", "value"), ...], not {given!r}'
                )
    return tuple(found)
