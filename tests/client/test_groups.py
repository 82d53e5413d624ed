"""Tests of the client's functions for groups."""

from __future__ import annotations

from kbroker.client.cluster import open_cluster
from kbroker.client.groups import delete_groups
from kbroker.handlers.context import Context
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import DeleteGroupsRequest, DeleteGroupsResponse

from ..brokers import replace_handler, started


async def test_error_message_of_deletion_is_returned() -> None:
    """Apache Kafka explains an error of its topology description plugin (KIP-1331)."""

    def reject(ctx: Context, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        row = DeleteGroupsResponse.Group(
            group_id=request.groups_names[0],
            error_code=ErrorCode.GROUP_DELETION_FAILED,
            error_message="the plugin is not reachable",
        )
        return DeleteGroupsResponse(results=[row])

    async with started() as broker:
        replace_handler(broker, ApiKey.DELETE_GROUPS, reject)
        async with open_cluster([broker.endpoint]) as cluster:
            error = (await delete_groups(cluster, ["g"]))["g"]
    assert error is not None
    assert (error.code, error.message) == (
        ErrorCode.GROUP_DELETION_FAILED,
        "the plugin is not reachable",
    )
