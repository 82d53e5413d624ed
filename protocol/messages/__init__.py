"""The declarations of all requests and responses, one module per API family.

`request_class` and `response_class` return the class of an API key and import its module on demand.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache

from ..api_keys import ApiKey
from ..schema import Message

_FAMILIES: Mapping[str, tuple[ApiKey, ...]] = {
    "api_versions": (ApiKey.API_VERSIONS,),
    "cluster": (
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.UPDATE_FEATURES,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ),
    "configs": (
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.LIST_CONFIG_RESOURCES,
    ),
    "consumer_groups": (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE),
    "fetch": (ApiKey.FETCH,),
    "groups": (
        ApiKey.FIND_COORDINATOR,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.DELETE_GROUPS,
    ),
    "list_offsets": (ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH),
    "log_dirs": (ApiKey.ALTER_REPLICA_LOG_DIRS, ApiKey.DESCRIBE_LOG_DIRS),
    "metadata": (ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS),
    "offsets": (ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE),
    "produce": (ApiKey.PRODUCE,),
    "quorum": (
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
        ApiKey.UNREGISTER_CONTROLLER,
    ),
    "quotas": (ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS),
    "security": (
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ),
    "share_groups": (
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    ),
    "share_state": (
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    ),
    "streams_groups": (
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        ApiKey.STREAMS_GROUP_DESCRIBE,
        ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
    ),
    "telemetry": (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY),
    "topics": (
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.DELETE_RECORDS,
        ApiKey.CREATE_PARTITIONS,
    ),
    "transactions": (
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
    ),
}

_FAMILY_OF: Mapping[int, str] = {key: family for family, keys in _FAMILIES.items() for key in keys}


def request_class(key: int) -> type[Message]:
    """Return the request class of an API key. Raises KeyError for an unknown key."""
    return _load(key, "Request")


def response_class(key: int) -> type[Message]:
    """Return the response class of an API key. Raises KeyError for an unknown key."""
    return _load(key, "Response")


@cache
def _load(key: int, suffix: str) -> type[Message]:
    module = importlib.import_module(f"{__name__}.{_FAMILY_OF[key]}")
    found: type[Message] = getattr(module, ApiKey(key).api_name + suffix)
    return found
