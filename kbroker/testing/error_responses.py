"""Error responses to whole requests: all error fields of the response contain the same error.

Kafka implements error responses for each request separately. Here one function derives the rows of
the response from the rows of the request, by field names that both have in common.
"""

from __future__ import annotations

from typing import Any

from kbroker.protocol import messages
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.schema import Struct, fields

from .rows import ERROR_FIELDS, S, error_field, structs

# For each list in a response: the lists in a request that its rows are derived from.
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

# For each response field: the names of the request fields with the same value.
REQUEST_NAMES = {
    "index": ("index", "partition", "partition_index"),
    "partition": ("partition", "partition_index"),
    "partition_index": ("partition_index", "partition"),
    "topic": ("topic", "name"),
    "name": ("name", "topic"),
    "topic_name": ("topic_name", "name"),
}

# Response fields that take the value of a request row that is a plain name or number.
IDENTITY_FIELDS = (
    *("name", "group_id", "key", "partition_index", "index", "partition", "partition_id"),
    "transactional_id",
)

# Fields that an error response repeats from the request.
REPEATED_FIELDS = {
    *IDENTITY_FIELDS,
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
UNKNOWN_FIELDS = {
    "base_offset",
    "offset",
    "timestamp",
    "high_watermark",
    "committed_offset",
    "node_id",
}


def error_response(key: int, request: object, code: ErrorCode) -> Any:
    """Return a response that rejects all of a request.

    If the request has rows, the error is in the rows of the response, else in its top-level field.

    Args:
        key: API key.
        request: Decoded request.
        code: Error of the response.
    """
    response: Any = _build_response(messages.response_class(key), request, code)
    if hasattr(response, "error_code"):
        in_rows = any(error_field(row) for row in structs(response))
        response.error_code = ErrorCode.NONE if in_rows else code
    return response


def _build_response(cls: type[S], request: object, code: ErrorCode) -> S:
    """Return a struct of class `cls` that names the same objects as `request`, with the error."""
    response = cls()
    for field in fields(cls):
        if field.name in ERROR_FIELDS:
            setattr(response, field.name, code)
        elif field.array and isinstance(field.kind, type):
            rows = [
                _build_row(field.kind, each, code) for each in _request_rows(request, field.name)
            ]
            setattr(response, field.name, rows)
        elif field.name in REPEATED_FIELDS:
            _copy_field(response, field.name, request)
        elif field.name in UNKNOWN_FIELDS:
            setattr(response, field.name, -1)
    return response


def _build_row(cls: type[S], row_request: object, code: ErrorCode) -> S:
    if isinstance(row_request, Struct):
        return _build_response(cls, row_request, code)
    names = {field.name for field in fields(cls)}
    identity = next(name for name in IDENTITY_FIELDS if name in names)
    row = cls(**{identity: row_request})
    for name in names.intersection(ERROR_FIELDS):
        setattr(row, name, code)
    return row


def _request_rows(request: object, field: str) -> list[object]:
    for name in ROWS_OF.get(field, ()):
        found = getattr(request, name, None)
        if found and name == "dirs":
            # AlterReplicaLogDirs requests have rows for directories, responses for topics.
            return [topic for directory in found for topic in directory.topics]
        if found:
            return list(found)
    return []


def _copy_field(response: object, field: str, request: object) -> None:
    for name in REQUEST_NAMES.get(field, (field,)):
        if hasattr(request, name):
            setattr(response, field, getattr(request, name))
            return
