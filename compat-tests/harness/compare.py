"""Field-by-field comparison of two brokers' responses, with rules for allowed differences.

A response is split into places such as ``topics[orders].partitions[0].error_code``, each with its
value. Rows of a list are matched by an identifying field such as a name or an index. The order of
rows is a place of its own: ``topics.order``. Values without a matching rule must be equal.

The comparison records which fields it has seen, so that a test can report fields that were never
compared.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any
from uuid import UUID

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.records import iter_headers, read_records
from kbroker.protocol.schema import Field, Struct, fields

# Fields that identify a row of a list. The first one that a row has is used.
IDENTITIES = (
    "name", "topic", "topic_name", "group_id", "feature", "resource_name", "log_dir", "key", "user", "mechanism",
    "transactional_id", "producer_id", "partition_index", "partition_id", "partition", "node_id", "broker_id", "replica_id", "api_key",
    "entity_type", "process_id", "subtopology_id",
)  # fmt: skip

RECENT_MS = 300_000


class _Absent:
    def __repr__(self) -> str:
        return "(no such row)"


# Value of a place that a response lacks.
ABSENT = _Absent()

# Values that carry no information, such as all fields of an error response.
EMPTY_VALUES = (None, "", 0, -1, False, [], b"", UUID(int=0))

# Suffixes of field names for which such a value does carry information.
MEANINGFUL_WHEN_EMPTY = ("error_code", "error_message", "throttle_time_ms")

# Returns True if kbroker's and Kafka's values may differ like this.
Check = Callable[["Comparison", Any, Any], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """An allowed difference between responses.

    Attributes:
        api: Pattern (``*``) of API names.
        place: Pattern of fields without row names, such as ``topics.partitions.error_code``.
        how: What must still hold for the two values, as text for the documentation.
        why: The reason: a KIP, or a decision of kbroker.
        check: Returns True if the difference is allowed.
        call: Pattern of call names.
        row: Pattern of the whole place, including row names.
        may_be_equal: True if the values are sometimes equal.
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


def both_have_message(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Return True if kbroker has a message wherever Kafka has one."""
    return bool(ours) or theirs in (None, "", "NONE")


def paired_ids(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Return True if the same two generated names or IDs always correspond."""
    if _is_none(ours) or _is_none(theirs):
        return bool(ours == theirs)
    return (
        comparison.pairs.setdefault(ours, theirs) == theirs
        and comparison.reverse_pairs.setdefault(theirs, ours) == ours
    )


def _is_none(value: Any) -> bool:
    return value in (None, "", -1, ABSENT) or value == UUID(int=0)


def both_recent(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Return True if both are timestamps (ms) of this run."""
    now_ms = time.time() * 1000
    return all(now_ms - RECENT_MS < value <= now_ms + 1000 for value in (ours, theirs))


def same_rows(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Return True if both have the same rows, in any order."""
    return ABSENT not in (ours, theirs) and Counter(ours) == Counter(theirs)


def one_row_per_item(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Return True if kbroker has one row per item, and Kafka one per mention in the request."""
    once = [each for each in theirs if " again " not in each]
    return len(once) < len(theirs) and Counter(ours) == Counter(once)


def same_batches(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Return True if the batches are equal except producer IDs, CRCs and marker timestamps."""
    mine, other = _batches(ours), _batches(theirs)
    return [batch for _, batch in mine] == [batch for _, batch in other] and all(
        paired_ids(comparison, ("producer", our), ("producer", their))
        for (our, _), (their, _) in zip(mine, other, strict=True)
    )


def _batches(raw: bytes) -> list[tuple[int, Any]]:
    """Return each batch's producer ID, and the parts that must be equal."""
    found = []
    for position, header in iter_headers(raw):
        records = list(read_records(raw[position : position + header.size]))
        kept = header._replace(crc=0, producer_id=0)
        if header.is_control:
            kept = kept._replace(base_timestamp=0, max_timestamp=0)
            records = [record._replace(timestamp=0) for record in records]
        found.append((header.producer_id, (kept, records)))
    return found


def both_positive(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Return True if both values are above 0."""
    return bool(ours > 0 and theirs > 0)


def rejects_single_row(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Return True if kbroker rejects only the invalid row and Kafka fails the whole request."""
    return ours in (0, 42) and theirs == -1


def accepts_only_ours(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Return True if kbroker has no error and Kafka has one."""
    return not ours and bool(theirs)


def exactly(ours: Any, theirs: Any) -> Check:
    """Return a check for exactly these two values."""
    return lambda comparison, our, their: (our, their) == (ours, theirs)


def ours_lower(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Return True if kbroker's value is lower."""
    return bool(ours < theirs)


def ours_at_most(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Return True if kbroker's value is at most Kafka's."""
    return bool(ours <= theirs)


def ours_higher(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Return True if kbroker's value is higher."""
    return bool(ours > theirs)


def within_tenth(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Return True if the values differ by at most 10 %."""
    return bool(abs(ours - theirs) <= max(ours, theirs) / 10)


def both_nonempty(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Return True if neither list is empty."""
    return bool(ours and theirs)


def ours_is_superset(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Return True if Kafka's rows are a proper subset of kbroker's."""
    return set(ours) > set(theirs)


def any_values(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Return True: any values are allowed."""
    return True


def only_theirs_has_id(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Return True if only Kafka returns an ID."""
    return ours == UUID(int=0) != theirs


def ours_is_subset(comparison: Comparison, ours: Any, theirs: Any) -> bool:
    """Return True if kbroker's rows are a proper subset of Kafka's."""
    return set(ours) < set(theirs)


@dataclass(slots=True)
class Difference:
    """Two values whose difference no rule allows."""

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
    """State of a comparison: rules, compared fields, and paired IDs."""

    rules: Sequence[Rule]
    # Fields that had a meaningful value on both sides.
    seen: set[tuple[ApiKey, str]] = field(default_factory=set)
    requested: set[tuple[ApiKey, int]] = field(default_factory=set)
    # Number of compared values.
    values: int = 0
    used: set[Rule] = field(default_factory=set)
    pairs: dict[Any, Any] = field(default_factory=dict)
    reverse_pairs: dict[Any, Any] = field(default_factory=dict)

    def compare(
        self, call: str, key: ApiKey, version: int, ours: Struct, theirs: Struct
    ) -> list[Difference]:
        """Return all differences between two responses that no rule allows."""
        mine, other = dict(places(ours, version)), dict(places(theirs, version))
        # If one side lacks a whole row, only the order of rows reports that.
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
                if place.endswith(MEANINGFUL_WHEN_EMPTY) or (
                    our not in EMPTY_VALUES and their not in EMPTY_VALUES
                ):
                    self.seen.add((key, place))
        self.requested.add((key, version))
        return differences

    def compare_presence(
        self, call: str, key: ApiKey, version: int, ours: Struct | None, theirs: Struct | None
    ) -> list[Difference]:
        """Compare responses if at least one broker closed the connection instead (None)."""
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
        """Return fields of a response that never had a meaningful value on both sides."""
        return [
            place for place in field_places(response, versions) if (key, place) not in self.seen
        ]


def places(message: Struct, version: int, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each place of a response and its value."""
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
    if "permission_type" in type(row).DEFAULTS:  # all fields identify an ACL
        return " ".join(
            str(getattr(row, name, ""))
            for name in ("resource_name", "principal", "host", "operation", "permission_type")
        )
    if "pattern_type" in type(row).DEFAULTS:  # the resource of ACLs
        return f"{row.resource_type} {row.pattern_type} {row.resource_name}"  # type: ignore[attr-defined]
    if "entity" in type(row).DEFAULTS:  # all parts of the entity identify a quota
        parts = ((each.entity_type, each.entity_name) for each in row.entity)  # type: ignore[attr-defined]
        return " ".join(sorted(f"{kind}={name}" for kind, name in parts))
    if "active_partitions" in type(row).DEFAULTS:  # partitions of an endpoint
        return str(row.user_endpoint.host)  # type: ignore[attr-defined]
    for name in IDENTITIES:
        if name in type(row).DEFAULTS:
            value = getattr(row, name)
            return "null" if value is None else str(value) or "''"
    return str(position)


def _row(path: str) -> str:
    """Return the row of a place: for ``topics[a].partitions[0].error_code``, partition 0 of a."""
    return path.rpartition("]")[0]


def without_rows(path: str) -> str:
    """Return ``topics.partitions.error_code`` for ``topics[a].partitions[0].error_code``."""
    kept, depth = [], 0
    for character in path:
        depth += character == "["
        if not depth:
            kept.append(character)
        depth -= character == "]"
    return "".join(kept)


def field_places(cls: type[Struct], versions: range, prefix: str = "") -> Iterator[str]:
    """Yield the places of all fields that a class has in any of `versions`."""
    for each in fields(cls):
        if not any(each.present(version) for version in versions):
            continue
        if isinstance(each.kind, str):
            yield prefix + each.name
        else:
            if each.array:
                yield f"{prefix}{each.name}.order"
            yield from field_places(each.kind, versions, f"{prefix}{each.name}.")
