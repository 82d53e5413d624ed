"""What goes wrong between a client and a cluster, said so that a person knows what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kbroker.protocol.errors import ErrorCode, KafkaError

from .endpoint import Endpoint


class ClientError(Exception):
    """A request cannot be done; the message names the cause and the next action."""


class CannotConnect(ClientError):
    """None of the addresses that the user named answers; `reasons` has what each of them does."""

    def __init__(self, reasons: str) -> None:
        super().__init__(
            f"{reasons}; is a broker running there? Start one with `kbroker serve`, or "
            "name another with --bootstrap HOST:PORT or KBROKER_BOOTSTRAP"
        )
        self.reasons = reasons


class NotReachable(ClientError):
    """A broker tells its clients an address that does not work from here."""

    def __init__(self, node_id: int, endpoint: Endpoint, reason: str) -> None:
        super().__init__(
            f"broker {node_id} tells clients to use {endpoint}, which does not work from here "
            f"({reason}); start it with an address that does: `kbroker serve --advertise "
            "HOST:PORT`, or advertised.listeners in Apache Kafka"
        )


class NoSuchTopic(ClientError):
    """A topic or partition that was named does not exist."""


class NoSuchPartition(ClientError):
    """A record is for a partition that its topic does not have; `what` says so without advice."""

    def __init__(self, topic: str, partition: int, count: int) -> None:
        self.what = f"{topic} has no partition {partition}, it has {count}"
        super().__init__(
            f"{self.what}; `-p -1` places records by their keys, `kbroker topic add-partitions "
            f"{topic} COUNT` makes more"
        )


class CannotRead(ClientError):
    """A partition cannot be read; `code` is what its leader said."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class NoSuchGroup(ClientError):
    """A group that was named does not exist."""


class NoSuchTransaction(ClientError):
    """A transactional id that was named does not exist."""


class NoSuchUser(ClientError):
    """A user that was named does not exist, or does not log in by a mechanism that was named."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"there is no user {name!r} that logs in so; `kbroker security user list` shows who there "
            "is"
        )


class NoSuchToken(ClientError):
    """A delegation token that was named does not exist, or may not be seen."""

    def __init__(self, token_id: str) -> None:
        super().__init__(
            f"there is no token {token_id!r} that this user may see; `kbroker security token list` shows "
            "those"
        )


class TimedOut(ClientError):
    """What was waited for did not happen in time."""


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error in a group of errors that come from several tasks."""
    error = group.exceptions[0]
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error


_NEXT_ACTIONS: Mapping[ErrorCode, str] = MappingProxyType(
    {
        ErrorCode.TOPIC_ALREADY_EXISTS: "--if-not-exists leaves it as it is",
        ErrorCode.INVALID_REPLICATION_FACTOR: "`kbroker cluster info` shows how many brokers there are",
        ErrorCode.INVALID_CONFIG: "`kbroker config explain NAME` says what a setting takes",
        ErrorCode.MESSAGE_TOO_LARGE: "raise the topic's max.message.bytes with "
        "`kbroker topic alter-config TOPIC --set max.message.bytes=BYTES`",
        ErrorCode.NOT_ENOUGH_REPLICAS: "`kbroker cluster health` shows which brokers are missing",
        ErrorCode.KAFKA_STORAGE_ERROR: "the broker's log says what is wrong with its disk",
        ErrorCode.REQUEST_TIMED_OUT: "`kbroker cluster health` shows whether all brokers are there",
        ErrorCode.UNSUPPORTED_VERSION: "Apache Kafka 3.0 is the oldest one that serves them all",
        ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "set delegation.token.secret.key on all brokers",
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "log in as a user first, or show a certificate, "
        "not by a token",
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "it takes an ACL for CREATE_TOKENS on that user",
        ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "its owner can, and who was made a renewer of it",
        ErrorCode.DELEGATION_TOKEN_EXPIRED: "`kbroker security token create` makes another one",
        **dict.fromkeys(
            (
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                ErrorCode.GROUP_AUTHORIZATION_FAILED,
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            ),
            "`kbroker security acl explain`, asked by who may see ACLs, says which one is missing",
        ),
        ErrorCode.SECURITY_DISABLED: "everybody may do everything there",
        ErrorCode.OFFSET_OUT_OF_RANGE: "`kbroker topic describe TOPIC` shows what there is",
    }
)


def next_action(code: ErrorCode) -> str | None:
    """What to do about an error that a broker answered, where that can be said in general."""
    return _NEXT_ACTIONS.get(code)


def check(code: int, message: str | None = None) -> None:
    """Raise KafkaError for every error code but NONE."""
    if code:
        raise KafkaError(error_code(code), message)


def error_code(code: int) -> ErrorCode:
    """The code as a name; one that this version does not know is UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
