"""Error responses to whole requests: the error in every field that can hold one.

Kafka implements this for each request separately. Here one function maps the rows of any request to
rows of its response, by the field names that both have in common.
"""

from __future__ import annotations

from typing import Any

from kbroker.protocol import messages
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.schema import Struct, fields

from .rows import ERROR_FIELDS, S, error_field, structs

# Fields of a request that the rows of a response's list are derived from.
ROWS_OF = {
    "responses": ("topic_data", "topics", "topic_names", "resources"),
    "partition_responses": ("partition_data",),
    "partitions": ("partitions", "partition_indexes"),
    "results": ("resources", "topics", "groups_names", "dirs", "creations", "upsertions"),
    "filter_results": ("filters",),
    "coordinators": ("coordinator_keys",),
    "topics": ("topics",),
    "groups": ("groups", "group_ids"),
    "members": ("members",),
    "entries": ("entries",),
    "entity": ("entity",),
    "replica_election_results": ("topic_partitions",),
    "partition_result": ("partitions",),
    "results_by_topic_v3_and_below": ("v3_and_below_topics",),
    "results_by_transaction": ("transactions",),
    "topic_results": ("topics",),
    "results_by_partition": ("partitions",),
    "markers": ("markers",),
    "transaction_states": ("transactional_ids",),
}

# Names of a request field that correspond to a field of the response.
SAME = {
    "index": ("index", "partition", "partition_index"),
    "partition": ("partition", "partition_index"),
    "partition_index": ("partition_index", "partition"),
    "topic": ("topic", "name"),
    "name": ("name", "topic"),
    "topic_name": ("topic_name", "name"),
}

# Fields that identify a response row if the request has a list of plain values.
IDENTITY = (
    *("name", "group_id", "key", "partition_index", "index", "partition", "partition_id"),
    "transactional_id",
)

# Fields that an error response repeats from the request.
KEPT = {
    *IDENTITY,
    *(
        "topic",
        "topic_name",
        "topic_id",
        "member_id",
        "group_instance_id",
        "resource_type",
        "resource_name",
        "entity_type",
        "entity_name",
    ),
}

# Fields that are -1 in an error response.
UNKNOWN = {"base_offset", "offset", "timestamp", "high_watermark", "committed_offset", "node_id"}


def error_response(key: int, request: object, code: ErrorCode) -> Any:
    """Return a response that rejects all of a request.

    If the request has rows, the error is in the rows of the response, else in its top-level field.

    Args:
        key: API key.
        request: Decoded request.
        code: Error to answer with.
    """
    response: Any = _mirror(messages.response_class(key), request, code)
    if hasattr(response, "error_code"):
        in_rows = any(error_field(row) for row in structs(response))
        response.error_code = ErrorCode.NONE if in_rows else code
    return response


def _mirror(cls: type[S], request: object, code: ErrorCode) -> S:
    """Return a struct of class `cls` with the identity of `request` and the error."""
    made = cls()
    for field in fields(cls):
        if field.name in ERROR_FIELDS:
            setattr(made, field.name, code)
        elif field.array and isinstance(field.kind, type):
            rows = [_row(field.kind, each, code) for each in _rows(request, field.name)]
            setattr(made, field.name, rows)
        elif field.name in KEPT:
            _copy(made, field.name, request)
        elif field.name in UNKNOWN:
            setattr(made, field.name, -1)
    return made


def _row(cls: type[S], asked: object, code: ErrorCode) -> S:
    if isinstance(asked, Struct):
        return _mirror(cls, asked, code)
    names = {field.name for field in fields(cls)}
    identity = next(name for name in IDENTITY if name in names)
    row = cls(**{identity: asked})
    for name in names.intersection(ERROR_FIELDS):
        setattr(row, name, code)
    return row


def _rows(request: object, field: str) -> list[object]:
    for name in ROWS_OF.get(field, ()):
        found = getattr(request, name, None)
        if (
            found and name == "dirs"
        ):  # AlterReplicaLogDirs: requested by directory, answered by topic
            return [topic for directory in found for topic in directory.topics]
        if found:
            return list(found)
    return []


def _copy(made: object, field: str, request: object) -> None:
    for name in SAME.get(field, (field,)):
        if hasattr(request, name):
            setattr(made, field, getattr(request, name))
            return
