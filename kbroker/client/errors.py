"""Client errors: facts for every face, and hints for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kbroker.protocol.errors import ErrorCode, KafkaError

from .endpoint import Endpoint


class ClientError(Exception):
    """A request failed; the message states the cause, and is fit for every face.

    Attributes:
        hint: Next action with commands and options of `kbroker`, or None. Only the command line
            shows it.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


# Documentation of client settings for authentication.
AUTHENTICATION_GUIDE: Final = "docs/how-to/authentication.md"
# Documentation of client settings for TLS.
TLS_GUIDE: Final = "docs/how-to/tls.md"


class LoginRejected(ConnectionResetError):
    """A running broker rejects the client's authentication, or closes a connection without one."""


class HandshakeFailed(OSError):
    """A server accepts connections, but the TLS handshake fails; the message names the address."""


class TlsExpected(OSError):
    """A server closes a connection without TLS, or sends a TLS alert; the message has no subject."""


CLOSED_WITHOUT_TLS: Final = (
    "closes the connection without a response (if it speaks TLS, set security.protocol=SSL)"
)


class CannotConnect(ClientError):
    """No bootstrap address responds; `reasons` has the failure of each.

    Args:
        reasons: The failure of each address.
        is_rejected: True if a running broker rejected the client's authentication.
        is_handshake: True if a TLS handshake with a running server failed, or if a server probably
            expects one.
    """

    def __init__(
        self, reasons: str, *, is_rejected: bool = False, is_handshake: bool = False
    ) -> None:
        if is_rejected:
            hint = f"{AUTHENTICATION_GUIDE} describes sasl.mechanism and the user's settings"
            super().__init__(reasons, hint=hint)
        elif is_handshake:
            hint = f"{TLS_GUIDE} describes security.protocol and the settings of certificates"
            super().__init__(reasons, hint=hint)
        else:
            super().__init__(
                f"{reasons}; is a broker running there?",
                hint="Start one with `kbroker serve`, or set another address with --bootstrap "
                "HOST:PORT or KBROKER_BOOTSTRAP",
            )
        self.reasons = reasons


class NotReachable(ClientError):
    """A broker advertises an address that this client cannot reach."""

    def __init__(self, node_id: int, endpoint: Endpoint, reason: str) -> None:
        super().__init__(
            f"broker {node_id} advertises {endpoint}, which cannot be reached from here "
            f"({reason}); set advertised.listeners of the broker to a reachable address",
            hint="`kbroker serve --advertise HOST:PORT` does that for kbroker",
        )


class NoSuchTopic(ClientError):
    """A topic does not exist."""


class NoSuchPartition(ClientError):
    """A topic lacks a partition.

    Args:
        topic: Name of the topic.
        partition: The missing partition.
        count: Number of partitions of the topic.
        hint: Next action, or None for that of commands that write.
    """

    def __init__(self, topic: str, partition: int, count: int, *, hint: str | None = None) -> None:
        super().__init__(
            f"{topic} has no partition {partition}, it has {count}",
            hint=hint
            or f"use `-p -1` to select partitions by key, or `kbroker topic add-partitions {topic} "
            "COUNT` to add partitions",
        )


class CannotRead(ClientError):
    """A partition cannot be read; `code` is the error code of its leader."""

    def __init__(self, code: ErrorCode, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class NoSuchGroup(ClientError):
    """A group does not exist."""


class NoSuchTransaction(ClientError):
    """A transactional ID does not exist."""


class CannotAbort(ClientError):
    """A transaction cannot be aborted in this way, because of its state."""


class NoSuchUser(ClientError):
    """A user does not exist, or has no credential for the requested SCRAM mechanism."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"user {name!r} does not exist or lacks this mechanism",
            hint="list users with `kbroker security user list`",
        )


class NoSuchToken(ClientError):
    """A delegation token does not exist, or this user may not see it."""

    def __init__(self, token_id: str) -> None:
        super().__init__(
            f"token {token_id!r} does not exist or is not visible to this user",
            hint="list tokens with `kbroker security token list`",
        )


class TimedOut(ClientError):
    """An operation did not finish in time."""


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first leaf error of an exception group."""
    error = group.exceptions[0]
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error


# Error codes for a missing ACL.
DENIED: Final = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
_NEXT_ACTIONS: Mapping[ErrorCode, str] = MappingProxyType(
    {
        ErrorCode.INVALID_REPLICATION_FACTOR: "the cluster needs a broker for each replica",
        ErrorCode.MESSAGE_TOO_LARGE: "raise max.message.bytes of the topic",
        ErrorCode.NOT_ENOUGH_REPLICAS: "start the brokers whose replicas are not in sync",
        ErrorCode.KAFKA_STORAGE_ERROR: "see the broker's log for the disk error",
        ErrorCode.REQUEST_TIMED_OUT: "check that all brokers are running",
        ErrorCode.UNSUPPORTED_VERSION: "Apache Kafka 3.0 is the oldest supported version",
        ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "set delegation.token.secret.key on all brokers",
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "authenticate as a user or with a certificate, "
        "not with a token",
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "this needs an ACL for CREATE_TOKENS on that user",
        ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "only the token's owner and its renewers may do this",
        ErrorCode.DELEGATION_TOKEN_EXPIRED: "create a new token",
        **dict.fromkeys(
            DENIED,
            "an ACL that permits it is missing",
        ),
        ErrorCode.SECURITY_DISABLED: "this cluster has no authorizer: every client may do everything",
    }
)


def next_action(code: ErrorCode) -> str | None:
    """Return advice for an error code that is fit for every face, or None."""
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
