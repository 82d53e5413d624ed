"""DescribeUserScramCredentials, AlterUserScramCredentials (KIP-554)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

from kbroker.cluster.cluster import SCRAM_USERS_AT_ONCE, Cluster
from kbroker.cluster.scram_users import Credentials, ScramUsers
from kbroker.coordinator import some_of
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from kbroker.security.acls import AclOperation
from kbroker.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_from,
)

from .context import Context
from .registry import handles

logger = logging.getLogger(__name__)

# Maximum number of SCRAM users of a cluster. All nodes keep them in memory.
USERS_MAX = 10_000
# Maximum sizes in bytes of one credential.
NAME_BYTES_MAX, SALT_BYTES_MAX, HASH_BYTES_MAX = 512, 256, 256

Described: TypeAlias = DescribeUserScramCredentialsResponse.User
Deletion: TypeAlias = AlterUserScramCredentialsRequest.Deletion
Upsertion: TypeAlias = AlterUserScramCredentialsRequest.Upsertion


class Outcome(NamedTuple):
    """Outcome of a change. Not an exception, because a stored exception keeps its frames alive."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None

    @classmethod
    def of(cls, error: KafkaError) -> Outcome:
        """Return the outcome of a failed change."""
        return cls(error.code, error.message)


DONE = Outcome()


@handles(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions="0", read_only=True)
async def describe_user_scram_credentials(
    ctx: Context, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """List mechanisms and iterations of the named users, or of all users by name (KIP-554).

    Users in a listener's settings are not listed.

    Errors: RESOURCE_NOT_FOUND, and DUPLICATE_RESOURCE for a user that is named twice.
    """
    try:
        ctx.require_cluster(AclOperation.DESCRIBE)
    except KafkaError as error:
        return DescribeUserScramCredentialsResponse(
            error_code=error.code, error_message=error.message
        )
    users = ctx.node.cluster.scram_users
    times: dict[str, int] = {}
    async for row in ctx.time_slice.each(request.users or ()):
        times[row.name] = times.get(row.name, 0) + 1
    names: Iterable[str] = times
    if not times:
        names = await ctx.time_slice.in_order(tuple(users.names), str)
    return DescribeUserScramCredentialsResponse(
        results=[
            _user_row(users, name, times.get(name, 1)) async for name in ctx.time_slice.each(names)
        ]
    )


def _user_row(users: ScramUsers, name: str, times: int) -> Described:
    if times > 1:
        return Described(
            user=name,
            error_code=ErrorCode.DUPLICATE_RESOURCE,
            error_message="The request names the user more than once",
        )
    credentials = users.credentials(name)
    if not credentials:
        return Described(
            user=name,
            error_code=ErrorCode.RESOURCE_NOT_FOUND,
            error_message="The user does not exist",
        )
    return Described(
        user=name,
        credential_infos=[
            DescribeUserScramCredentialsResponse.Credential(
                mechanism=each.number, iterations=credentials[each].iterations
            )
            for each in ScramMechanism
            if each in credentials
        ],
    )


class Change(NamedTuple):
    """Change of one user's credential of one mechanism; None deletes it."""

    mechanism: ScramMechanism
    credential: ScramCredential | None


@handles(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions="0")
async def alter_user_scram_credentials(
    ctx: Context, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Set and delete credentials of users (KIP-554). Authenticated clients keep their session.

    Errors: UNACCEPTABLE_CREDENTIAL for an empty name, an invalid number of iterations, and fields
    that are missing or too long. UNSUPPORTED_SASL_MECHANISM. RESOURCE_NOT_FOUND for a deletion.
    DUPLICATE_RESOURCE for a user that is named twice, as in Kafka even for two mechanisms; the user
    is not changed then. POLICY_VIOLATION if the limit of users is exceeded.
    """
    cluster = ctx.node.cluster
    outcomes: dict[str, Outcome] = {}
    changes: dict[str, Change] = {}
    rows: Iterable[Deletion | Upsertion] = chain(request.deletions, request.upsertions)
    denied = DONE
    try:
        ctx.require_cluster(AclOperation.ALTER)
    except KafkaError as error:
        denied = Outcome.of(error)
    async for row in ctx.time_slice.each(rows):
        if denied != DONE:
            outcomes[row.name] = denied
            continue
        if outcomes.get(row.name, DONE) == DONE:
            outcomes[row.name] = _add_change(changes, row, cluster.scram_users)
    left = iter(changes.items())
    while some := dict(islice(left, SCRAM_USERS_AT_ONCE)):
        stored = await _store(cluster, some, cause=f"AlterUserScramCredentials by {ctx.client_id}")
        for name, outcome in stored.items():
            if outcome == DONE:
                _audit(ctx, name, some[name])
        outcomes |= stored
        await ctx.time_slice.pause()
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResponse.User(
                user=name, error_code=outcome.code, error_message=outcome.message
            )
            async for name, outcome in ctx.time_slice.each(outcomes.items())
        ]
    )


def _audit(ctx: Context, name: str, change: Change) -> None:
    """Write a change to the audit log."""
    done = "removed from" if change.credential is None else "set for"
    ctx.node.audit.log_change(
        ctx.peer.client,
        f"password of {change.mechanism} {done} {name}",
        user=name,
        mechanism=change.mechanism,
    )


def _add_change(
    changes: dict[str, Change], row: Deletion | Upsertion, users: ScramUsers
) -> Outcome:
    """Add a valid change to `changes`."""
    if changes.pop(row.name, None) is not None:
        return Outcome(
            ErrorCode.DUPLICATE_RESOURCE,
            "The request names the user more than once; send one request for each mechanism",
        )
    try:
        changes[row.name] = _check_row(row, users)
    except KafkaError as error:
        return Outcome.of(error)
    return DONE


def _check_row(row: Deletion | Upsertion, users: ScramUsers) -> Change:
    """Return the change of a row.

    Raises:
        KafkaError: The row is invalid. Checks have the order of Kafka's.
    """
    if not row.name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "User name must not be empty")
    mechanism = ScramMechanism.numbered(row.mechanism)
    if mechanism is None:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            f"Unknown mechanism {row.mechanism} (valid: {', '.join(ScramMechanism)})",
        )
    if isinstance(row, Deletion):
        if mechanism not in users.credentials(row.name):
            raise _not_found()
        return Change(mechanism, None)
    _check_sizes(row)
    salt, salted = bytes(row.salt), bytes(row.salted_password)
    return Change(mechanism, credential_from(mechanism, salted, salt, row.iterations))


def _check_sizes(row: Upsertion) -> None:
    if not ITERATIONS_MIN <= row.iterations <= ITERATIONS_MAX:
        reason = (
            f"Invalid number of iterations {row.iterations} "
            f"(valid: {ITERATIONS_MIN} to {ITERATIONS_MAX})"
        )
    elif len(row.name.encode()) > NAME_BYTES_MAX:
        reason = f"A user name has at most {NAME_BYTES_MAX} bytes"
    elif not 0 < len(row.salt) <= SALT_BYTES_MAX:
        reason = f"A salt has 1 to {SALT_BYTES_MAX} bytes"
    elif not 0 < len(row.salted_password) <= HASH_BYTES_MAX:
        reason = f"A salted password has 1 to {HASH_BYTES_MAX} bytes"
    else:
        return
    raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, reason)


def _not_found() -> KafkaError:
    return KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "The user has no credential of this mechanism")


async def _store(
    cluster: Cluster, changes: Mapping[str, Change], *, cause: str
) -> dict[str, Outcome]:
    """Store some changes durably in one transaction, based on the current users."""
    while True:
        outcomes = dict.fromkeys(changes, DONE)
        free = USERS_MAX - len(cluster.scram_users)
        after: dict[str, Credentials] = {}
        for name, change in changes.items():
            try:
                after[name] = _alter_credentials(cluster.scram_users, name, change, free=free)
            except KafkaError as error:
                outcomes[name] = Outcome.of(error)
            else:
                free -= name not in cluster.scram_users
        try:
            if after and not await cluster.put_scram_users(after, cause=cause):
                continue  # the users were changed concurrently
        except KafkaError as error:
            return dict.fromkeys(changes, Outcome.of(error))
        if after:
            logger.info("%s: %s", cause, some_of([*after]))
        return outcomes


def _alter_credentials(users: ScramUsers, name: str, change: Change, *, free: int) -> Credentials:
    """Return a user's credentials after a change.

    Args:
        users: All users.
        name: User name.
        change: The change.
        free: Number of users that can still be created.

    Raises:
        KafkaError: The credential to delete does not exist, or `free` is 0.
    """
    credentials = dict(users.credentials(name))
    mechanism, credential = change
    if credential is not None:
        if not credentials and free <= 0:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"The limit of {USERS_MAX} users is reached; delete unused users",
            )
        return credentials | {mechanism: credential}
    if credentials.pop(mechanism, None) is None:
        raise _not_found()
    return credentials
