"""DescribeCluster: which brokers there are."""

from __future__ import annotations

from kbroker.context import Context
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from kbroker.registry import handles

from .metadata import CLUSTER_OPERATIONS, NOT_ASKED

BROKERS, CONTROLLERS = 1, 2


@handles(ApiKey.DESCRIBE_CLUSTER, versions="0-2")
def describe_cluster(ctx: Context, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Behaviour: cluster id, brokers, and any of them as the controller.

    Versions: 1 can ask for controllers (KIP-919), which a broker's listener does not know.
    """
    if request.endpoint_type != BROKERS:
        return _wrong_endpoint(request)
    endpoint = ctx.endpoint()
    return DescribeClusterResponse(
        cluster_id=ctx.node.cluster.id,
        controller_id=ctx.node.id,
        brokers=[
            DescribeClusterResponse.Broker(
                broker_id=ctx.node.id, host=endpoint.host, port=endpoint.port
            )
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _wrong_endpoint(request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLERS:
        code, message = ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this listener is a broker's"
    else:
        code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        message = f"there is no endpoint type {request.endpoint_type}"
    return DescribeClusterResponse(
        error_code=code, error_message=message, endpoint_type=request.endpoint_type
    )
