"""Messages that are new in Apache Kafka 4.4, byte for byte as its Java encoder writes them.

The oracles of `test_messages_oracles` do not have these versions yet.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kbroker.protocol.compile import decode, encode_bytes
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.messages.groups import DeleteGroupsRequest, DeleteGroupsResponse
from kbroker.protocol.messages.quorum import (
    UnregisterControllerRequest,
    UnregisterControllerResponse,
)
from kbroker.protocol.messages.streams_groups import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
    TopologyDescription,
    TopologyDescriptionGlobalStore,
    TopologyDescriptionNode,
    TopologyDescriptionSubtopology,
)
from kbroker.protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse

from .oracles import NEW_IN_4_4

TOPIC_ID = UUID("01234567-89ab-cdef-1122-334455667788")
SOURCE = TopologyDescriptionNode(name="s", node_type=1, source_topics=["t"], successors=["p"])
PROCESSOR = TopologyDescriptionNode(name="p", node_type=2, stores=["c"])
SINK = TopologyDescriptionNode(name="k", node_type=3, sink_topic="o")


def subtopologies(*nodes: TopologyDescriptionNode) -> list[TopologyDescriptionSubtopology]:
    return [TopologyDescriptionSubtopology(subtopology_id="0", nodes=list(nodes))]


# Message, version, and its bytes in hexadecimal.
RECORDED: list[tuple[Any, int, str]] = [
    (
        ApiVersionsRequest(
            client_software_name="kafka-java",
            client_software_version="4.4.0",
            cluster_id="abc",
            node_id=7,
        ),
        5,
        "0b6b61666b612d6a61766106342e342e30046162630000000700",
    ),
    (
        ApiVersionsRequest(client_software_name="kafka-java", client_software_version="4.4.0"),
        5,
        "0b6b61666b612d6a61766106342e342e3000ffffffff00",
    ),
    (
        ApiVersionsResponse(
            error_code=129,
            api_keys=[ApiVersionsResponse.ApiVersion(api_key=18, max_version=5)],
            throttle_time_ms=9,
            finalized_features_epoch=5,
            finalized_features=[
                ApiVersionsResponse.FinalizedFeature(
                    name="f", max_version_level=3, min_version_level=2
                )
            ],
        ),
        5,
        "0081020012000000050000000009020108000000000000000502080202660003000200",
    ),
    (DeleteGroupsRequest(groups_names=["a", "bc"]), 3, "03026103626300"),
    (
        DeleteGroupsResponse(
            throttle_time_ms=9,
            results=[
                DeleteGroupsResponse.Group(group_id="a", error_code=134, error_message="why"),
                DeleteGroupsResponse.Group(group_id="bc"),
            ],
        ),
        3,
        "00000009030261008604776879000362630000000000",
    ),
    (
        TxnOffsetCommitRequest(
            transactional_id="tx",
            group_id="g",
            producer_id=5,
            producer_epoch=6,
            generation_id_or_member_epoch=7,
            member_id="m",
            group_instance_id="i",
            topics=[
                TxnOffsetCommitRequest.Topic(
                    topic_id=TOPIC_ID,
                    partitions=[
                        TxnOffsetCommitRequest.Partition(
                            partition_index=1,
                            committed_offset=42,
                            committed_leader_epoch=3,
                            committed_metadata="x",
                        )
                    ],
                )
            ],
        ),
        6,
        (
            "03747802670000000000000005000600000007026d0269020123456789abcdef112233445566778802"
            "00000001000000000000002a000000030278000000"
        ),
    ),
    (
        TxnOffsetCommitResponse(
            throttle_time_ms=9,
            topics=[
                TxnOffsetCommitResponse.Topic(
                    topic_id=TOPIC_ID,
                    partitions=[
                        TxnOffsetCommitResponse.Partition(partition_index=1, error_code=113)
                    ],
                )
            ],
        ),
        6,
        "00000009020123456789abcdef112233445566778802000000010071000000",
    ),
    (UnregisterControllerRequest(controller_id=3), 0, "0000000300"),
    (
        UnregisterControllerResponse(throttle_time_ms=9, error_code=136, error_message="why"),
        0,
        "0000000900880477687900",
    ),
    (
        StreamsGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1),
        1,
        "0267026d00000001000000000000ffffffffff00000000ff0000000000",
    ),
    (
        StreamsGroupHeartbeatResponse(
            member_id="m",
            member_epoch=3,
            heartbeat_interval_ms=5,
            task_offset_interval_ms=6,
            acceptable_recovery_lag=10_000,
            status=[StreamsGroupHeartbeatResponse.Status(status_code=6, status_detail="d")],
            topology_description_required=True,
            endpoint_information_epoch=2,
        ),
        1,
        "00000000000000026d0000000300000005000000060000000000002710020602640000000001000000020000",
    ),
    (
        StreamsGroupDescribeRequest(group_ids=["g"], include_topology_description=True),
        1,
        "020267000100",
    ),
    (
        StreamsGroupDescribeResponse(
            groups=[
                StreamsGroupDescribeResponse.Group(
                    group_id="g",
                    topology_description=TopologyDescription(
                        subtopologies=subtopologies(SOURCE, PROCESSOR),
                        global_stores=[
                            TopologyDescriptionGlobalStore(source=SOURCE, processor=PROCESSOR)
                        ],
                    ),
                    topology_description_status=3,
                    assignor_name="sticky",
                )
            ]
        ),
        1,
        (
            "00000000020000000267010000000000000000ff0180000000010202300302730102027400010202700002"
            "70020100020263010000020273010202740001020270000270020100020263010000000307737469636b79"
            "0000"
        ),
    ),
    (
        StreamsGroupTopologyDescriptionUpdateRequest(
            group_id="g",
            member_id="m",
            topology_epoch=1,
            topology_description=TopologyDescription(subtopologies=subtopologies(SINK)),
        ),
        0,
        "0267026d0000000102023002026b0301026f01010000010000",
    ),
    (
        StreamsGroupTopologyDescriptionUpdateResponse(error_code=135, error_message="e"),
        0,
        "000000000087026500",
    ),
]


@pytest.mark.parametrize(
    ("message", "version", "recorded"), RECORDED, ids=lambda each: type(each).__name__
)
def test_bytes_equal_those_of_kafka(message: Any, version: int, recorded: str) -> None:
    data = bytes.fromhex(recorded)
    assert encode_bytes(message, version) == data
    assert decode(type(message), data, version) == (message, len(data))


def test_every_new_message_has_recorded_bytes() -> None:
    recorded = {
        (
            int(message.KEY),
            version,
            "request" if "Request" in type(message).__name__ else "response",
        )
        for message, version, _ in RECORDED
    }
    assert recorded == NEW_IN_4_4
