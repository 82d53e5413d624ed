"""Error responses of every API and version."""

from __future__ import annotations

import random
from typing import Any

from kbroker.handlers.registry import load_apis
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import decode, encode_bytes
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.schema import fields
from kbroker.testing.error_responses import error_response
from kbroker.testing.rows import ERROR_FIELDS

from ..brokers import started
from ..fuzz.world import VALID, make_world
from ..wire import connected

CODE = ErrorCode.NOT_CONTROLLER
# Responses that have errors only in rows, and no rows if the request names none.
ERRORS_ONLY_IN_ROWS = {(ApiKey.METADATA, version) for version in range(13)} | {
    (ApiKey.ELECT_LEADERS, 0)
}

# Responses whose rows are about objects that the request does not name.
ERRORS_ONLY_IN_OTHER_ROWS = {(ApiKey.DESCRIBE_LOG_DIRS, version) for version in range(3)}


def errors_in(message: Any) -> list[int]:
    """Return all error codes of a message, including rows."""
    found = [getattr(message, name) for name in ERROR_FIELDS if hasattr(message, name)]
    for field in fields(type(message)):
        if field.array and isinstance(field.kind, type):
            for row in getattr(message, field.name) or ():
                found += errors_in(row)
    return found


async def test_error_response_of_every_api_has_the_error() -> None:
    async with started() as broker:
        async with connected(broker.endpoint) as wire:
            world = await make_world(wire)
        for key, api in load_apis().items():
            for version in api.versions:
                sent_request = VALID[ApiKey(key)](world, random.Random(version))
                request, _ = decode(api.request_class, encode_bytes(sent_request, version), version)
                encoded = encode_bytes(error_response(key, request, CODE), version)
                response, _ = decode(messages.response_class(key), encoded, version)
                has_no_rows = not any(
                    getattr(request, name, None) for name in ("topics", "topic_partitions")
                )
                has_no_error_field = (key, version) in ERRORS_ONLY_IN_OTHER_ROWS or (
                    (key, version) in ERRORS_ONLY_IN_ROWS and has_no_rows
                )
                assert has_no_error_field or CODE in errors_in(response), (ApiKey(key), version)


def test_error_rows_identify_their_request_row() -> None:
    from kbroker.protocol.messages.produce import ProduceRequest

    rows = [ProduceRequest.Partition(index=3, records=None)]
    request = ProduceRequest(topic_data=[ProduceRequest.Topic(name="t", partition_data=rows)])
    (topic,) = error_response(ApiKey.PRODUCE, request, CODE).responses
    (row,) = topic.partition_responses
    assert (topic.name, row.index, row.error_code, row.base_offset) == ("t", 3, CODE, -1)


def test_plain_names_of_request_become_error_rows() -> None:
    from kbroker.protocol.messages.groups import DeleteGroupsRequest

    encoded = error_response(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=["g"]), CODE)
    assert [(row.group_id, row.error_code) for row in encoded.results] == [("g", CODE)]
