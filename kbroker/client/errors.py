"""Client errors whose messages state the cause and the next action."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kbroker.protocol.errors import ErrorCode, KafkaError

from .endpoint import Endpoint


class ClientError(Exception):
    """A request failed; the message states the cause and the next action."""


class CannotConnect(ClientError):
    """No bootstrap address responds; `reasons` has the failure of each."""

    def __init__(self, reasons: str) -> None:
        super().__init__(
            f"{reasons}; is a broker running there? Start one with `kbroker serve`, or "
            "set another address with --bootstrap HOST:PORT or KBROKER_BOOTSTRAP"
        )
        self.reasons = reasons


class NotReachable(ClientError):
    """A broker advertises an address that this client cannot reach."""

    def __init__(self, node_id: int, endpoint: Endpoint, reason: str) -> None:
        super().__init__(
            f"broker {node_id} advertises {endpoint}, which cannot be reached from here "
            f"({reason}); start it with a reachable address: `kbroker serve --advertise "
            "HOST:PORT`, or advertised.listeners in Apache Kafka"
        )


class NoSuchTopic(ClientError):
    """A topic or partition does not exist."""


class NoSuchPartition(ClientError):
    """A record targets a partition that its topic lacks; `what` is the message without advice."""

    def __init__(self, topic: str, partition: int, count: int) -> None:
        self.what = f"{topic} has no partition {partition}, it has {count}"
        super().__init__(
            f"{self.what}; use `-p -1` to select partitions by key, or `kbroker topic add-partitions "
            f"{topic} COUNT` to add partitions"
        )


class CannotRead(ClientError):
    """A partition cannot be read; `code` is the error code of its leader."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class NoSuchGroup(ClientError):
    """A group does not exist."""


class NoSuchTransaction(ClientError):
    """A transactional ID does not exist."""


class NoSuchUser(ClientError):
    """A user does not exist, or has no credential for the requested SCRAM mechanism."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"user {name!r} does not exist or lacks this mechanism; list users with "
            "`kbroker security user list`"
        )


class NoSuchToken(ClientError):
    """A delegation token does not exist, or this user may not see it."""

    def __init__(self, token_id: str) -> None:
        super().__init__(
            f"token {token_id!r} does not exist or is not visible to this user; list tokens with "
            "`kbroker security token list`"
        )


class TimedOut(ClientError):
    """An operation did not finish in time."""


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first leaf error of an exception group."""
    error = group.exceptions[0]
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error


_NEXT_ACTIONS: Mapping[ErrorCode, str] = MappingProxyType(
    {
        ErrorCode.TOPIC_ALREADY_EXISTS: "pass --if-not-exists to keep it unchanged",
        ErrorCode.INVALID_REPLICATION_FACTOR: "`kbroker cluster info` shows the number of brokers",
        ErrorCode.INVALID_CONFIG: "`kbroker config explain NAME` shows the valid values of a setting",
        ErrorCode.MESSAGE_TOO_LARGE: "raise the topic's max.message.bytes with "
        "`kbroker topic alter-config TOPIC --set max.message.bytes=BYTES`",
        ErrorCode.NOT_ENOUGH_REPLICAS: "`kbroker cluster health` shows which brokers are missing",
        ErrorCode.KAFKA_STORAGE_ERROR: "see the broker's log for the disk error",
        ErrorCode.REQUEST_TIMED_OUT: "`kbroker cluster health` shows whether all brokers are running",
        ErrorCode.UNSUPPORTED_VERSION: "Apache Kafka 3.0 is the oldest supported version",
        ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "set delegation.token.secret.key on all brokers",
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "authenticate as a user or with a certificate, "
        "not with a token",
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "this needs an ACL for CREATE_TOKENS on that user",
        ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "only the token's owner and its renewers may do this",
        ErrorCode.DELEGATION_TOKEN_EXPIRED: "create a new token with `kbroker security token create`",
        **dict.fromkeys(
            (
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                ErrorCode.GROUP_AUTHORIZATION_FAILED,
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            ),
            "run `kbroker security acl explain` as a user that may describe ACLs to see which one is missing",
        ),
        ErrorCode.SECURITY_DISABLED: "this cluster has no authorizer: every client may do everything",
        ErrorCode.OFFSET_OUT_OF_RANGE: "`kbroker topic describe TOPIC` shows the available offsets",
    }
)


def next_action(code: ErrorCode) -> str | None:
    """Return general advice for an error code, or None."""
    return _NEXT_ACTIONS.get(code)


def check(code: int, message: str | None = None) -> None:
    """Raise KafkaError unless the error code is NONE."""
    if code:
        raise KafkaError(error_code(code), message)


def error_code(code: int) -> ErrorCode:
    """Return the ErrorCode of a number; unknown numbers become UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
