"""Sends the same calls to kbroker and to Apache Kafka, and compares the responses."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.schema import Struct, fields

from .admin_calls import Call, World, request
from .compare import Comparison, Difference
from .raw import NoAnswer, RawConnection

# Maximum time until a change is visible everywhere, in seconds.
SETTLE_SECONDS = 10.0


@dataclass(slots=True)
class Side:
    """One of the two brokers."""

    address: str
    world: World
    served: Mapping[int, range] = field(default_factory=dict)
    _connection: RawConnection | None = None

    def __post_init__(self) -> None:
        hello = {"client_software_name": "differential", "client_software_version": "1.0"}
        answer = self.ask(ApiKey.API_VERSIONS, 3, request(ApiKey.API_VERSIONS, **hello))
        self.served = {
            row.api_key: range(row.min_version, row.max_version + 1) for row in answer.api_keys
        }

    def ask(self, key: ApiKey, version: int, message: Any) -> Any:
        """Send a request, on a new connection if the broker closed the previous one.

        Raises:
            NoAnswer: The broker closed the connection.
        """
        if self._connection is None:
            self._connection = RawConnection(self.address)
        try:
            return self._connection.ask(key, version, message)
        except (NoAnswer, OSError) as error:
            self.close()
            raise NoAnswer(str(error)) from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def run(
    calls: Iterable[Call], ours: Side, theirs: Side, comparison: Comparison
) -> Iterator[Difference]:
    """Make all calls in all versions that both brokers support, and yield the differences."""
    for call in calls:
        for version in shared_versions(call.key, ours, theirs):
            if call.versions is None or version in call.versions:
                yield from _compare_one(call, version, ours, theirs, comparison)


def shared_versions(key: ApiKey, ours: Side, theirs: Side) -> list[int]:
    """Return the versions of an API that both brokers support."""
    other = theirs.served.get(key, range(0))
    return [version for version in ours.served.get(key, range(0)) if version in other]


def _compare_one(
    call: Call, version: int, ours: Side, theirs: Side, comparison: Comparison
) -> list[Difference]:
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        mine = _answer(call, version, ours)
        other = _answer(call, version, theirs)
        if mine is None or other is None:
            found = comparison.compare_presence(call.name, call.key, version, mine, other)
        else:
            found = comparison.compare(call.name, call.key, version, mine, other)
        if not found or not call.again or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _answer(call: Call, version: int, side: Side) -> Any:
    """Return the response with broker-specific names replaced, or None if the connection closed."""
    try:
        response = _wait_for_answer(call, version, side)
    except NoAnswer:
        return None
    side.world.learn(call.key, response)
    if call.learn is not None:
        call.learn(side.world, response)
    producers = {producer: name for name, (producer, _) in side.world.producers.items()}
    return renamed(response, side.world.names(), producers)


def _wait_for_answer(call: Call, version: int, side: Side) -> Any:
    """Return the first response that fulfils `call.until`, or the last one.

    Raises:
        NoAnswer: The broker closed the connection.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        response = side.ask(call.key, version, call.build(side.world, version))
        if call.until is None or call.until(response) or time.monotonic() > deadline:
            return response
        time.sleep(0.01)


def renamed(value: Any, names: Mapping[str, str], producers: Mapping[int, str]) -> Any:
    """Return a copy with the strings in `names`, and the producer IDs in `producers`, replaced."""
    if isinstance(value, Struct):
        parts = {
            each.name: producers.get(part, part)
            if each.name.endswith("producer_id")
            else renamed(part, names, producers)
            for each in fields(type(value))
            for part in [getattr(value, each.name)]
        }
        return type(value)(**parts)
    if isinstance(value, list):
        return [renamed(each, names, producers) for each in value]
    return names.get(value, value) if isinstance(value, str) else value


def never_compared(
    comparison: Comparison,
    ours: Side,
    theirs: Side,
    keys: Iterable[ApiKey],
    excused: Mapping[ApiKey, Iterable[str]],
) -> list[str]:
    """Return the versions and fields of these APIs that no call compared.

    `excused` has patterns of fields to ignore.
    """
    missing = []
    for key in keys:
        versions = shared_versions(key, ours, theirs)
        missing += [
            f"{key.api_name} version {version}"
            for version in versions
            if (key, version) not in comparison.requested
        ]
        response = messages.response_class(key)
        span = range(versions[0], versions[-1] + 1)
        patterns = excused.get(key, ())
        missing += [
            f"{key.api_name}: {place}"
            for place in comparison.never_compared(key, response, span)
            if not any(fnmatchcase(place, pattern) for pattern in patterns)
        ]
    return missing
