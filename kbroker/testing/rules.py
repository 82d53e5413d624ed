"""Fault rules: which requests they hit, on which of their calls, and what happens to those.

The rules know nothing of connections; `faulty_connection` carries them out. What they can do is
what franz-go's kfake and librdkafka's mock broker can, and more.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode

REQUESTS_KEPT = 500
"""How many requests the log of a broker remembers, for reports of failures."""
SIMILAR_SHOWN = 5


class Effect(Enum):
    """What a fault does."""

    PASS = "pass"
    """Nothing: the fault only counts."""
    ERROR = "error"
    DISCONNECT = "disconnect"
    DELAY = "delay"
    THROTTLE = "throttle"
    BLACKHOLE = "blackhole"
    HALF_FRAME = "half_frame"
    ANSWER_TWICE = "answer_twice"
    CORRUPT_BATCH = "corrupt_batch"
    HOOK = "hook"


class Asked(NamedTuple):
    """What rules can tell of a request.

    `partitions` maps the topics that it names to the partitions of each, none for a topic that is
    named as a whole.
    """

    api: ApiKey
    version: int
    client_id: str
    partitions: dict[str, set[int]]
    groups: frozenset[str]
    transactional_id: str | None

    def __str__(self) -> str:
        parts = [f"{self.api.api_name} {self.version}"]
        parts += [f"topic {topic!r}" for topic in sorted(self.partitions)]
        parts += [f"group {group!r}" for group in sorted(self.groups)]
        if self.transactional_id is not None:
            parts.append(f"transactional_id {self.transactional_id!r}")
        return f"{', '.join(parts)} from {self.client_id!r}"


@dataclass(slots=True)
class Target:
    """Which requests a fault hits; None stands for any."""

    api: ApiKey | None = None
    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    client_id: str | None = None
    transactional_id: str | None = None
    versions: range | None = None

    def matches(self, asked: Asked) -> bool:
        """Whether the request meets every criterion."""
        return (
            self.api in (None, asked.api)
            and self.client_id in (None, asked.client_id)
            and self.transactional_id in (None, asked.transactional_id)
            and (self.versions is None or asked.version in self.versions)
            and (self.group is None or self.group in asked.groups)
            and self._concerns_partitions(asked)
        )

    def _concerns_partitions(self, asked: Asked) -> bool:
        if self.topic is None and self.partition is None:
            return True
        return any(
            self.covers(topic, partition)
            for topic, partitions in asked.partitions.items()
            for partition in partitions or (None,)
        )

    def covers(self, topic: str, partition: int | None) -> bool:
        """Whether a row of a request or response about this partition (None: all) is meant."""
        return self.topic in (None, topic) and (
            self.partition is None or partition is None or self.partition == partition
        )

    def __str__(self) -> str:
        parts = [self.api.api_name if self.api is not None else "any request"]
        for name in ("topic", "partition", "group", "client_id", "transactional_id"):
            value = getattr(self, name)
            if value is not None:
                parts.append(f"{name} {value!r}")
        if self.versions is not None:
            parts.append(f"versions {self.versions.start} to {self.versions.stop - 1}")
        return ", ".join(parts)


Hook = Callable[[Any, Asked], Any]
"""Gets a request; returns None to let it pass, a response, or an awaitable of either."""


@dataclass(slots=True, eq=False)
class Rule:
    """One armed fault.

    It hits the calls from number `first` (1 is the next one that matches) on, at most `count` of
    them, each with `probability`. `after` does the work of the request first, and then lies about
    it. `milliseconds` belong to delays and throttling, `bit` to corrupted batches.
    """

    target: Target
    effect: Effect = Effect.PASS
    after: bool = False
    code: ErrorCode = ErrorCode.NONE
    milliseconds: float = 0
    bit: int = 0
    hook: Hook | None = None
    first: int = 1
    count: float = 1
    probability: float = 1.0
    random: random.Random = field(default_factory=random.Random)
    may_stay_unfired: bool = False
    calls: int = 0
    hits: int = 0

    def takes(self, asked: Asked) -> bool:
        """Whether this call is hit; counts it."""
        if self.hits >= self.count or not self.target.matches(asked):
            return False
        self.calls += 1
        if self.calls < self.first or self.random.random() >= self.probability:
            return False
        self.hits += 1
        return True

    def __str__(self) -> str:
        what = self.code.name if self.effect is Effect.ERROR else self.effect.value
        return f"{what} for {self.target}"


class Faults:
    """The rules of one broker, and what it was asked lately."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.log: deque[Asked] = deque(maxlen=REQUESTS_KEPT)
        self.counts: Counter[tuple[ApiKey, str]] = Counter()
        """Requests of each API and client id."""
        self.changed: Callable[[], None] = lambda: None
        """Called after each request: somebody may be waiting for one."""

    def arm(self, rule: Rule) -> None:
        self.rules.append(rule)

    def disarm(self, rule: Rule) -> None:
        """Take a rule away; what it did counts."""
        self.rules.remove(rule)

    def take(self, asked: Asked) -> Rule | None:
        """The first rule that hits this request; counts the request."""
        self.log.append(asked)
        self.counts[asked.api, asked.client_id] += 1
        rule = next((rule for rule in self.rules if rule.takes(asked)), None)
        self.changed()
        return rule

    def must_know_partitions(self) -> bool:
        """Whether a rule that is not used up looks at the partitions of a fetch."""
        return any(
            rule.hits < rule.count
            and rule.target.api in (None, ApiKey.FETCH)
            and (
                rule.effect is Effect.ERROR
                or rule.target.topic is not None
                or rule.target.partition is not None
            )
            for rule in self.rules
        )

    def unfired(self) -> list[Rule]:
        """Rules that should have hit something and did not."""
        return [rule for rule in self.rules if not rule.hits and not rule.may_stay_unfired]

    def report(self, rule: Rule) -> str:
        """What a rule waited for, and what came closest."""
        return f"{rule} hit {rule.hits} requests; {'; '.join(self.near_misses(rule))}"

    def near_misses(self, rule: Rule) -> list[str]:
        """What was asked that is most like what the rule waits for: lines for a report."""
        same = [asked for asked in self.log if rule.target.api in (None, asked.api)]
        if rule.calls:
            return [f"saw {rule.calls} such requests, it waits for number {rule.first}"]
        counted = Counter(str(asked) for asked in same).most_common(SIMILAR_SHOWN)
        return [f"saw {count} x {asked}" for asked, count in counted] or ["saw no such request"]


TOPIC_LISTS = ("topics", "topic_data", "topic_names", "responses")
PARTITION_LISTS = ("partitions", "partition_data", "partition_indexes", "partition_responses")
PARTITION_NAMES = ("index", "partition", "partition_index")
GROUP_LISTS = ("groups", "groups_names")


def asked_of(
    api: ApiKey, version: int, client_id: str | None, request: Any, name_of: Callable[[UUID], str]
) -> Asked:
    """Read out of a decoded request what rules look at; `name_of` knows topic ids."""
    partitions: dict[str, set[int]] = {}
    for row in topic_rows(request):
        partitions.setdefault(topic_of(row, name_of), set()).update(
            partition_of(each) for each in partition_rows(row)
        )
    groups = {getattr(request, "group_id", "")}
    for name in GROUP_LISTS:
        for row in getattr(request, name, None) or ():
            groups.add(row if isinstance(row, str) else getattr(row, "group_id", ""))
            for each in topic_rows(row):
                partitions.setdefault(topic_of(each, name_of), set())
    return Asked(
        api,
        version,
        client_id or "",
        partitions,
        frozenset(groups - {""}),
        getattr(request, "transactional_id", None),
    )


def topic_rows(message: Any) -> list[Any]:
    """The rows about topics of a request or response: structs, or plain names."""
    return _first_list(message, TOPIC_LISTS)


def partition_rows(row: Any) -> list[Any]:
    """The rows about partitions of a topic's row: structs, or plain numbers."""
    return _first_list(row, PARTITION_LISTS)


def _first_list(message: Any, names: tuple[str, ...]) -> list[Any]:
    for name in names:
        found = getattr(message, name, None)
        if found:
            return list(found)
    return []


def topic_of(row: Any, name_of: Callable[[UUID], str]) -> str:
    """The name of the topic that a row is about."""
    if isinstance(row, str):
        return row
    name = getattr(row, "name", None) or getattr(row, "topic", None)
    return str(name) if name else name_of(getattr(row, "topic_id", UUID(int=0)))


def partition_of(row: Any) -> int:
    """The number of the partition that a row is about."""
    if isinstance(row, int):
        return row
    return next(int(getattr(row, name)) for name in PARTITION_NAMES if hasattr(row, name))
