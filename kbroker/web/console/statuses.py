"""HTTP statuses of Kafka's error codes and of the client's errors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kbroker.client.errors import (
    DENIED,
    CannotAbort,
    CannotRead,
    ClientError,
    NoSuchGroup,
    NoSuchPartition,
    NoSuchToken,
    NoSuchTopic,
    NoSuchTransaction,
    NoSuchUser,
)
from kbroker.client.offset_deletion import WholeTopicsOnly
from kbroker.client.offset_spec import LooksLikeTime
from kbroker.client.seek import NoOffsets
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.web.logins import FORBIDDEN

BAD_REQUEST, NOT_FOUND, CONFLICT, TOO_LARGE, TOO_MANY_REQUESTS = 400, 404, 409, 413, 429
# A broker failed or did not respond. The status is not 503: pages take it for a stopped console.
UNREACHABLE: Final = 502

_CODES_BY_STATUS: Mapping[int, tuple[ErrorCode, ...]] = {
    # The request itself is invalid.
    BAD_REQUEST: (
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.INVALID_FETCH_SIZE,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.INVALID_PRINCIPAL_TYPE,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.UNACCEPTABLE_CREDENTIAL,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.POSITION_OUT_OF_RANGE,
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        ErrorCode.MISMATCHED_ENDPOINT_TYPE,
        ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
        ErrorCode.INVALID_REGISTRATION,
        ErrorCode.INVALID_VOTER_KEY,
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        ErrorCode.STREAMS_INVALID_TOPOLOGY,
    ),
    FORBIDDEN: (
        *DENIED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    ),
    NOT_FOUND: (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.LOG_DIR_NOT_FOUND,
        ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.SNAPSHOT_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_CONTROLLER_ID,
        ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
        ErrorCode.VOTER_NOT_FOUND,
        ErrorCode.CONTROLLER_ID_NOT_REGISTERED,
    ),
    # The state of the cluster does not permit the request.
    CONFLICT: (
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_SASL_STATE,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.SECURITY_DISABLED,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.REASSIGNMENT_IN_PROGRESS,
        ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
        ErrorCode.DELEGATION_TOKEN_EXPIRED,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.TOPIC_DELETION_DISABLED,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.DUPLICATE_RESOURCE,
        ErrorCode.INCONSISTENT_VOTER_SET,
        ErrorCode.FEATURE_UPDATE_FAILED,
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_RECORD_STATE,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.DUPLICATE_VOTER,
        ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH,
        ErrorCode.STREAMS_TOPOLOGY_FENCED,
        ErrorCode.GROUP_DELETION_FAILED,
        ErrorCode.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED,
    ),
    TOO_LARGE: (
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.TELEMETRY_TOO_LARGE,
    ),
    TOO_MANY_REQUESTS: (ErrorCode.THROTTLING_QUOTA_EXCEEDED,),
    UNREACHABLE: (
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.STALE_CONTROLLER_EPOCH,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
        ErrorCode.REBOOTSTRAP_REQUIRED,
    ),
}
# HTTP status of a response by the error code of a broker; `NONE` is no error.
STATUS_OF_CODE: Mapping[ErrorCode, int] = MappingProxyType(
    {code: status for status, codes in _CODES_BY_STATUS.items() for code in codes}
)
_STATUS_OF_ERROR: Mapping[type[ClientError], int] = {
    NoSuchTopic: NOT_FOUND,
    NoSuchPartition: NOT_FOUND,
    NoSuchGroup: NOT_FOUND,
    NoSuchTransaction: NOT_FOUND,
    NoSuchUser: NOT_FOUND,
    NoSuchToken: NOT_FOUND,
    NoOffsets: NOT_FOUND,
    WholeTopicsOnly: BAD_REQUEST,
    LooksLikeTime: BAD_REQUEST,
    CannotAbort: CONFLICT,
}


def status_of(error: KafkaError | ClientError) -> int:
    """Return the HTTP status of a failed request to a broker."""
    if isinstance(error, KafkaError | CannotRead):
        return STATUS_OF_CODE[error.code]
    return _STATUS_OF_ERROR.get(type(error), UNREACHABLE)
