"""Rows of requests and responses about topics, partitions, groups and resources."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias, TypeVar
from uuid import UUID

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.schema import Struct, fields

TOPIC_LISTS = (
    *("topics", "topic_data", "topic_names", "topic_partitions", "responses"),
    *("v3_and_below_topics", "results_by_topic_v3_and_below"),
)
PARTITION_LISTS = (
    *("partitions", "partition_data", "partition_indexes", "partition_responses"),
    "results_by_partition",
)
PARTITION_NAMES = ("index", "partition", "partition_index")
GROUP_LISTS = ("groups", "groups_names", "coordinator_keys")
RESOURCE_LISTS = ("resources",)
ERROR_FIELDS = ("error_code", "partition_error_code")

# A row of any message: a struct, or a plain name or number.
Row: TypeAlias = Any
S = TypeVar("S", bound=Struct)
# Returns the topic name for a topic ID; an empty string if the ID is unknown.
NameOf = Callable[[UUID], str]


class Criteria(Protocol):
    """Criteria that select rows."""

    def covers(self, topic: str, partition: int | None) -> bool: ...
    def covers_group(self, group: str) -> bool: ...
    def covers_resource(self, resource: str) -> bool: ...


def topic_rows(message: object) -> list[Row]:
    """Return the rows about topics: structs, or plain names."""
    return _first_list(message, TOPIC_LISTS)[1]


def partition_rows(row: Row) -> list[Row]:
    """Return the rows about partitions in the row of a topic: structs, or plain numbers."""
    return _first_list(row, PARTITION_LISTS)[1]


def _first_list(message: object, names: Iterable[str]) -> tuple[str, list[Row]]:
    for name in names:
        found = getattr(message, name, None)
        if found:
            return name, list(found)
    return "", []


def topic_of(row: Row, name_of: NameOf) -> str:
    """Return the topic name of a row; the topic ID if the name is unknown."""
    if isinstance(row, str):
        return row
    name = getattr(row, "name", None) or getattr(row, "topic", None)
    if name:
        return str(name)
    topic_id = getattr(row, "topic_id", UUID(int=0))
    return name_of(topic_id) or (str(topic_id) if topic_id.int else "")


def partition_of(row: Row) -> int:
    """Return the partition number of a row."""
    if isinstance(row, int):
        return row
    return next(int(getattr(row, name)) for name in PARTITION_NAMES if hasattr(row, name))


def partitions_of(message: object, name_of: NameOf) -> dict[str, set[int]]:
    """Return the partitions of each topic that a message names."""
    found: dict[str, set[int]] = {}
    for row in topic_rows(message):
        found.setdefault(topic_of(row, name_of), set()).update(
            map(partition_of, partition_rows(row))
        )
    return found


def group_rows(message: object) -> list[Row]:
    """Return the rows about groups: structs, or plain names."""
    return _first_list(message, GROUP_LISTS)[1]


def group_of(row: Row) -> str:
    """Return the group ID of a row."""
    return row if isinstance(row, str) else str(getattr(row, "group_id", ""))


def resources_of(message: object) -> set[str]:
    """Return the names of the config resources in a message."""
    return {row.resource_name for row in _first_list(message, RESOURCE_LISTS)[1]}


def covered_rows(message: object, criteria: Criteria, name_of: NameOf) -> list[Row]:
    """Return the rows about partitions that match the criteria."""
    return [
        row
        for topic in topic_rows(message)
        for row in partition_rows(topic)
        if criteria.covers(topic_of(topic, name_of), partition_of(row))
    ]


# -- splitting and merging messages


def split(request: S, criteria: Criteria, name_of: NameOf) -> tuple[S | None, S]:
    """Split a request. Return the part that does not match (None if empty) and the other part."""
    name, rows = _first_list(request, (*TOPIC_LISTS, *GROUP_LISTS, *RESOURCE_LISTS))
    inside_rows, others = [], []
    for row in rows:
        inside, outside = _split_row(name, row, criteria, name_of)
        inside_rows += inside
        others += outside
    if not others:
        return None, request
    return _replace_field(request, name, others), _replace_field(request, name, inside_rows)


def _split_row(
    name: str, row: Row, criteria: Criteria, name_of: NameOf
) -> tuple[list[Row], list[Row]]:
    if name in GROUP_LISTS:
        return _place_row(row, criteria.covers_group(group_of(row)))
    if name in RESOURCE_LISTS:
        return _place_row(row, criteria.covers_resource(row.resource_name))
    topic = topic_of(row, name_of)
    partitions_name, partitions = _first_list(row, PARTITION_LISTS)
    if not partitions or not criteria.covers(topic, None):
        return _place_row(row, criteria.covers(topic, None))
    inside = [each for each in partitions if criteria.covers(topic, partition_of(each))]
    outside = [each for each in partitions if each not in inside]
    if not inside or not outside:
        return _place_row(row, bool(inside))
    return [_replace_field(row, partitions_name, inside)], [
        _replace_field(row, partitions_name, outside)
    ]


def _place_row(row: Row, is_inside: bool) -> tuple[list[Row], list[Row]]:
    return ([row], []) if is_inside else ([], [row])


def _replace_field(message: S, name: str, value: object) -> S:
    """Return a copy of a message with one field changed."""
    values = {each.name: getattr(message, each.name) for each in fields(type(message))}
    return type(message)(**{**values, name: value})


def merge_responses(response: S, other: Struct) -> S:
    """Merge the rows of a second response into the first one, and return it."""
    for field in _lists(response):
        mine, more = getattr(response, field) or [], getattr(other, field) or []
        setattr(response, field, mine + [row for row in more if not _merged_into_known(mine, row)])
    return response


def _merged_into_known(mine: list[Row], row: Row) -> bool:
    """Merge a topic row into the row of the same topic. Return False if no such row exists."""
    name, partitions = _first_list(row, PARTITION_LISTS)
    for known in mine if partitions else ():
        if topic_of(known, str) == topic_of(row, str):
            getattr(known, name).extend(partitions)
            return True
    return False


def _lists(message: Struct) -> list[str]:
    """Return the names of the fields that are lists of rows."""
    declared = fields(type(message))
    return [field.name for field in declared if field.array and isinstance(field.kind, type)]


def set_errors(response: Struct, code: ErrorCode, rows: list[Row]) -> None:
    """Set the error of `rows`; if the list is empty, of the response and all of its rows."""
    for row in rows or [response, *structs(response)]:
        if name := error_field(row):
            setattr(row, name, code)


def error_field(row: Row) -> str:
    """Return the name of the error field of a row; an empty string if it has none."""
    return next((name for name in ERROR_FIELDS if hasattr(row, name)), "")


def structs(message: Struct) -> list[Row]:
    """Return all rows of a message, including nested ones."""
    found: list[Row] = []
    for field in _lists(message):
        for row in getattr(message, field) or ():
            found += [row, *structs(row)]
    return found
