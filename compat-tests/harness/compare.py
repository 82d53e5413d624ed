"""Compare two brokers' answers field by field, by rules that say where they may differ.

An answer is taken apart into places such as ``topics[orders].partitions[0].error_code``, each with
its value. Rows of a list are matched by what identifies them (a name, an index), and the order of
rows is a place of its own: ``topics.order``. What no rule covers must be equal.

The comparison remembers which fields it has seen, so that one which nobody compared shows.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any
from uuid import UUID

from kbroker.config.kafka_only import find_kafka_only
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.records import iter_headers, read_records
from kbroker.protocol.schema import Field, Struct, fields

IDENTITIES = (
    "name", "topic", "topic_name", "group_id", "feature", "resource_name", "log_dir", "key", "user", "mechanism",
    "transactional_id", "producer_id", "partition_index", "partition_id", "partition", "node_id", "broker_id", "replica_id", "api_key",
    "entity_type",
)  # fmt: skip
"""Fields that tell one row of a list from the others; the first that a row has counts."""

RECENT_MS = 300_000


class _Absent:
    def __repr__(self) -> str:
        return "(no such row)"


ABSENT = _Absent()
"""The value of a place that one answer does not have."""

NOTHING = (None, "", 0, -1, False, [], b"", UUID(int=0))
"""Values that say nothing: what a refusal has everywhere."""

NOTHING_IS_WELL = ("error_code", "error_message", "throttle_time_ms")
"""Ends of names of fields that say something by such a value."""

Check = Callable[["Comparison", Any, Any], bool]
"""Whether kbroker's and Kafka's value may stand beside each other."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Where answers may differ, how, and why.

    api, place: patterns (``*``) of an API's name and of a field without row names, such as
        ``topics.partitions.error_code``.
    how: what is still demanded of the two values, in words.
    why: the reason: a KIP, or a choice of kbroker's.
    check: the demand.
    call: pattern of the calls that it is about.
    row: pattern of the whole place, row names included.
    may_be_equal: the values are the same now and then.
    """

    api: str
    place: str
    how: str
    why: str
    check: Check
    call: str = "*"
    row: str = "*"
    may_be_equal: bool = False

    def covers(self, api: str, call: str, place: str, row: str) -> bool:
        return (
            fnmatchcase(api, self.api)
            and fnmatchcase(call, self.call)
            and fnmatchcase(place, self.place)
            and fnmatchcase(row.replace("[", "<").replace("]", ">"), self.row)
        )


def texts(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Texts for people: where Kafka has one, kbroker has one."""
    return bool(ours) or theirs in (None, "", "NONE")


def paired(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Names that each broker gives: one of ours stands for the same one of theirs all the time."""
    if _is_none(ours) or _is_none(theirs):
        return bool(ours == theirs)
    return (
        comparison.pairs.setdefault(ours, theirs) == theirs
        and comparison.reverse_pairs.setdefault(theirs, ours) == ours
    )


def _is_none(value: Any) -> bool:
    return value in (None, "", -1, ABSENT) or value == UUID(int=0)


def recent(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Both are times (ms) of this run."""
    now_ms = time.time() * 1000
    return all(now_ms - RECENT_MS < value <= now_ms + 1000 for value in (ours, theirs))


def any_order(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """The same rows in whatever order."""
    return Counter(ours) == Counter(theirs)


def named_once(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """A row for each thing, and theirs as often as the request names it; in whatever order."""
    once = [each for each in theirs if " again " not in each]
    return len(once) < len(theirs) and Counter(ours) == Counter(once)


def same_batches(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """The same batches, of producers that stand for each other; transactions end when they do."""
    mine, other = _batches(ours), _batches(theirs)
    return [batch for _, batch in mine] == [batch for _, batch in other] and all(
        paired(comparison, ("producer", our), ("producer", their))
        for (our, _), (their, _) in zip(mine, other, strict=True)
    )


def _batches(raw: bytes) -> list[tuple[int, Any]]:
    """Producer id of each batch, and what of it must be equal."""
    found = []
    for position, header in iter_headers(raw):
        records = list(read_records(raw[position : position + header.size]))
        kept = header._replace(crc=0, producer_id=0)
        if header.is_control:
            kept = kept._replace(base_timestamp=0, max_timestamp=0)
            records = [record._replace(timestamp=0) for record in records]
        found.append((header.producer_id, (kept, records)))
    return found


def positive(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Numbers of each broker's own, both above 0."""
    return bool(ours > 0 and theirs > 0)


def refused_alone(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """kbroker refuses what is wrong, or goes on with the rest, where Kafka fails altogether."""
    return ours in (0, 42) and theirs == -1


def exactly(ours: Any, theirs: Any) -> Check:
    """These two values and no others."""
    return lambda comparison, our, their: (our, their) == (ours, theirs)


def lower(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """kbroker's number is the smaller one."""
    return bool(ours < theirs)


def not_more(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """kbroker's number is not the larger one."""
    return bool(ours <= theirs)


def higher(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """kbroker's number is the larger one."""
    return bool(ours > theirs)


def close(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """The same to a tenth."""
    return bool(abs(ours - theirs) <= max(ours, theirs) / 10)


def both_some(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Lists of each broker's own, neither empty."""
    return bool(ours and theirs)


def own_settings(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """kbroker lacks only settings that it knows to mean nothing to it."""
    return all(find_kafka_only(name) is not None for name in set(theirs) - set(ours))


def unlike(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Whatever each broker was started with."""
    return True


def made_up_id(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Kafka names an id, kbroker none."""
    return ours == UUID(int=0) != theirs


def some_missing(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """kbroker lacks some of Kafka's rows."""
    return set(ours) < set(theirs)


@dataclass(slots=True)
class Difference:
    """Two values that must not stand beside each other."""

    call: str
    version: int
    place: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return (
            f"{self.call} v{self.version}: {self.place}: kbroker {self.ours!r}, "
            f"Kafka {self.theirs!r}"
        )


@dataclass(slots=True)
class Comparison:
    """What was compared, by which rules, and what differs."""

    rules: Sequence[Rule]
    seen: set[tuple[ApiKey, str]] = field(default_factory=set)
    """Fields that said something on both sides."""
    asked: set[tuple[ApiKey, int]] = field(default_factory=set)
    values: int = 0
    """How many values were compared."""
    used: set[Rule] = field(default_factory=set)
    pairs: dict[Any, Any] = field(default_factory=dict)
    reverse_pairs: dict[Any, Any] = field(default_factory=dict)

    def compare(
        self, call: str, key: ApiKey, version: int, ours: Struct, theirs: Struct
    ) -> list[Difference]:
        """All differences between two answers that no rule allows."""
        mine, other = dict(places(ours, version)), dict(places(theirs, version))
        # Where one side lacks a whole row, the order of rows says so.
        rows = {_row(place) for place in mine} & {_row(place) for place in other}
        differences = []
        for row in {**mine, **other}:
            if _row(row) not in rows:
                continue
            our, their = mine.get(row, ABSENT), other.get(row, ABSENT)
            place = without_rows(row)
            if not self._allowed(key, call, place, row, our, their):
                differences.append(Difference(call, version, row, our, their))
            if our is not ABSENT and their is not ABSENT:
                self.values += 1
                if place.endswith(NOTHING_IS_WELL) or (our not in NOTHING and their not in NOTHING):
                    self.seen.add((key, place))
        self.asked.add((key, version))
        return differences

    def compare_presence(
        self, call: str, key: ApiKey, version: int, ours: Struct | None, theirs: Struct | None
    ) -> list[Difference]:
        """As `compare`, where at least one broker closed the connection instead of answering."""
        our, their = ("closed" if side is None else "answered" for side in (ours, theirs))
        if self._allowed(key, call, "answer", "answer", our, their):
            return []
        return [Difference(call, version, "answer", our, their)]

    def _allowed(
        self, key: ApiKey, call: str, place: str, row: str, ours: Any, theirs: Any
    ) -> bool:
        if ours == theirs:
            return True
        for rule in self.rules:
            if rule.covers(key.api_name, call, place, row) and rule.check(self, ours, theirs):
                self.used.add(rule)
                return True
        return False

    def never_compared(self, key: ApiKey, response: type[Struct], versions: range) -> list[str]:
        """Fields of a response of which both sides never had a value that says something."""
        return [
            place for place in field_places(response, versions) if (key, place) not in self.seen
        ]


def places(message: Struct, version: int, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each place of an answer and its value."""
    for each in fields(type(message)):
        if not each.present(version):
            continue
        value = getattr(message, each.name)
        path = prefix + each.name
        if each.array and value is not None:
            yield from _list_places(each, value, version, path)
        elif isinstance(value, Struct):
            yield from places(value, version, f"{path}.")
        else:
            yield path, value


def _list_places(
    each: Field, rows: list[Any], version: int, path: str
) -> Iterator[tuple[str, Any]]:
    if isinstance(each.kind, str):
        yield path, rows
        return
    times: Counter[str] = Counter()
    names = []
    for row in rows:
        name = _identity(row, len(names))
        times[name] += 1
        if times[name] > 1:
            name = f"{name} again {times[name]}"
        names.append(name)
        yield from places(row, version, f"{path}[{name}].")
    yield f"{path}.order", names


def _identity(row: Struct, position: int) -> str:
    if "permission_type" in type(row).DEFAULTS:  # an ACL is what it says
        return " ".join(
            str(getattr(row, name, ""))
            for name in ("resource_name", "principal", "host", "operation", "permission_type")
        )
    if "pattern_type" in type(row).DEFAULTS:  # what ACLs are about
        return f"{row.resource_type} {row.pattern_type} {row.resource_name}"  # type: ignore[attr-defined]
    if "entity" in type(row).DEFAULTS:  # a quota is for all parts of its entity
        parts = ((each.entity_type, each.entity_name) for each in row.entity)  # type: ignore[attr-defined]
        return " ".join(sorted(f"{kind}={name}" for kind, name in parts))
    for name in IDENTITIES:
        if name in type(row).DEFAULTS:
            value = getattr(row, name)
            return "null" if value is None else str(value) or "''"
    return str(position)


def _row(path: str) -> str:
    """The row that a place is in: ``topics[a].partitions[0].error_code`` is in partition 0 of a."""
    return path.rpartition("]")[0]


def without_rows(path: str) -> str:
    """``topics[a].partitions[0].error_code`` is ``topics.partitions.error_code``."""
    kept, depth = [], 0
    for character in path:
        depth += character == "["
        if not depth:
            kept.append(character)
        depth -= character == "]"
    return "".join(kept)


def field_places(cls: type[Struct], versions: range, prefix: str = "") -> Iterator[str]:
    """The places of all fields that a class has in any of `versions`."""
    for each in fields(cls):
        if not any(each.present(version) for version in versions):
            continue
        if isinstance(each.kind, str):
            yield prefix + each.name
        else:
            if each.array:
                yield f"{prefix}{each.name}.order"
            yield from field_places(each.kind, versions, f"{prefix}{each.name}.")
