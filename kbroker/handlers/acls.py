"""DescribeAcls, CreateAcls, DeleteAcls (KIP-140)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Protocol, TypeVar

from kbroker.cluster.acl_changes import add_acls, remove_acls
from kbroker.cluster.acls import key_of, to_document
from kbroker.cluster.features import METADATA_VERSION
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.security import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from kbroker.security.acls import (
    CLUSTER_NAME,
    NETWORK_MARK,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    Pattern,
    PatternType,
    known,
    parse_network,
)

from .context import Context
from .registry import handles

Number = TypeVar("Number", bound=IntEnum)

UNKNOWN, ANY = 0, 1
# First level of `metadata.version` at which all nodes know hosts in CIDR notation: 4.4-IV1.
NETWORKS_SINCE = 32
# Maximum number of characters of a resource name, principal or host. All nodes keep ACLs in memory.
NAME_CHARACTERS_MAX = 1000
# Maximum number of ACLs that one request deletes, as in Kafka.
DELETED_MAX = 10_000


class _FilterRow(Protocol):
    """ACL filter of DescribeAcls, and of each row of DeleteAcls."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def _check_access(ctx: Context, operation: AclOperation) -> None:
    if ctx.node.authorizer is None:
        raise KafkaError(
            ErrorCode.SECURITY_DISABLED,
            "No Authorizer is configured: set authorizer.class.name and super.users",
        )
    ctx.require_cluster(operation)


def _filter(asked: _FilterRow) -> AclFilter:
    """Return the filter of a request. As in Kafka, an unknown number matches nothing.

    Raises:
        KafkaError: INVALID_REQUEST: a type, operation or permission of the filter is UNKNOWN.
    """
    numbers = (
        asked.resource_type_filter,
        asked.pattern_type_filter,
        asked.operation,
        asked.permission_type,
    )
    if UNKNOWN in numbers:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "The AclBindingFilter must not contain UNKNOWN elements."
        )
    return AclFilter(
        known(AclResourceType, asked.resource_type_filter),
        asked.resource_name_filter,
        known(PatternType, asked.pattern_type_filter),
        asked.principal_filter,
        asked.host_filter,
        known(AclOperation, asked.operation),
        known(AclPermission, asked.permission_type),
    )


@handles(ApiKey.DESCRIBE_ACLS, versions="1-3", read_only=True)
async def describe_acls(ctx: Context, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """List the ACLs that match a filter, grouped by resource pattern.

    Versions: 1 has pattern types (KIP-290), 3 users as resources (KIP-373).

    Errors: SECURITY_DISABLED if no authorizer is configured.
    """
    cls = DescribeAclsResponse
    try:
        _check_access(ctx, AclOperation.DESCRIBE)
        wanted = _filter(request)
    except KafkaError as error:
        return cls(error_code=error.code, error_message=error.message)
    rows: dict[Pattern, DescribeAclsResponse.Resource] = {}
    async for acl in ctx.time_slice.each(ctx.node.cluster.acls):
        if wanted.matches(acl):
            pattern = acl.pattern
            row = rows.get(pattern)
            if row is None:
                row = rows[pattern] = cls.Resource(
                    resource_type=pattern.resource_type,
                    resource_name=pattern.name,
                    pattern_type=pattern.type,
                )
            row.acls.append(
                cls.Acl(
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission,
                )
            )
    return cls(resources=list(rows.values()))


@handles(ApiKey.CREATE_ACLS, versions="1-3")
async def create_acls(ctx: Context, request: CreateAclsRequest) -> CreateAclsResponse:
    """Create ACLs, each one independently. An ACL that exists is not an error.

    If the metadata cannot be changed any more, ACLs that are stored by then have no error.

    Each node enforces the new ACLs as soon as it has received the metadata change.

    Versions: as in DescribeAcls.

    Errors: SECURITY_DISABLED if no authorizer is configured; POLICY_VIOLATION for too many ACLs.
    """
    cls = CreateAclsResponse
    rows: list[CreateAclsResponse.Result] = []
    new: list[tuple[Acl, CreateAclsResponse.Result]] = []
    try:
        _check_access(ctx, AclOperation.ALTER)
    except KafkaError as error:
        return cls(
            results=[
                cls.Result(error_code=error.code, error_message=error.message)
                async for _ in ctx.time_slice.each(request.creations)
            ]
        )
    async for asked in ctx.time_slice.each(request.creations):
        row = cls.Result()
        rows.append(row)
        try:
            new.append((_new_acl(ctx, asked), row))
        except KafkaError as error:
            row.error_code, row.error_message = error.code, error.message
    stored = [acl for acl, _ in new]
    try:
        await add_acls(ctx.node.cluster, stored, cause=_cause(ctx))
    except KafkaError as error:  # some of the ACLs may be stored
        stored = []
        async for acl, row in ctx.time_slice.each(new):
            if key_of(to_document(acl)) in ctx.node.cluster.acls:
                stored.append(acl)
            else:
                row.error_code, row.error_message = error.code, error.message
    await _audit(ctx, "added", stored)
    return cls(results=rows)


def _cause(ctx: Context) -> str:
    return f"{ApiKey(ctx.key).api_name} by {ctx.peer.client.principal}"


async def _audit(ctx: Context, done: str, acls: Iterable[Acl]) -> None:
    """Write one audit record per ACL.

    Args:
        ctx: Context of the request.
        done: What happened to the ACLs: "added" or "removed".
        acls: The changed ACLs.
    """
    async for acl in ctx.time_slice.each(acls):
        ctx.node.audit.log_change(
            ctx.peer.client,
            f"ACL {done}: {acl}",
            acl_principal=acl.principal,
            acl_host=acl.host,
            permission=acl.permission.name,
            operation=acl.operation.name,
            resource_type=acl.pattern.resource_type.name,
            resource=acl.pattern.name,
            pattern=acl.pattern.type.name,
        )


def _new_acl(ctx: Context, asked: CreateAclsRequest.Acl) -> Acl:
    """Return the ACL of a row.

    Raises:
        KafkaError: A field is invalid. The messages are those of Kafka.
    """
    kind = _require_specific(AclResourceType, asked.resource_type, "resourceType")
    pattern = known(PatternType, asked.resource_pattern_type)
    if pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid patternType {pattern.name}")
    operation = _require_specific(AclOperation, asked.operation, "operation")
    permission = _require_specific(AclPermission, asked.permission_type, "permissionType")
    if not asked.resource_name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Resource name should not be empty")
    if kind is AclResourceType.CLUSTER and asked.resource_name != CLUSTER_NAME:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}",
        )
    if ":" not in asked.principal:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Could not parse principal from `{asked.principal}` (no colon is present separating the "
            "principal type from the principal name)",
        )
    if max(map(len, (asked.resource_name, asked.principal, asked.host))) > NAME_CHARACTERS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"ACL: resource name, principal and host have at most {NAME_CHARACTERS_MAX} characters; "
            "use a PREFIXED pattern",
        )
    _check_host(ctx, asked.host)
    return Acl(
        Pattern(kind, pattern, asked.resource_name),
        asked.principal,
        asked.host,
        operation,
        permission,
    )


def _check_host(ctx: Context, host: str) -> None:
    """Check the host of a new ACL: an address, a network in CIDR notation, or `*`.

    Raises:
        KafkaError: INVALID_REQUEST, or UNSUPPORTED_VERSION if nodes may ignore networks.
    """
    if not host:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Host pattern cannot be null or empty")
    if NETWORK_MARK not in host:
        return
    if ctx.node.cluster.features.get(METADATA_VERSION, 0) < NETWORKS_SINCE:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "CIDR-based ACL host patterns require metadata version 4.4-IV1 or higher.",
        )
    try:
        parse_network(host)
    except ValueError as error:
        message = f"Invalid CIDR notation '{host}': {error}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message) from error


def _require_specific(kind: type[Number], number: int, what: str) -> Number:
    """Return the enum member of a number, which must not be UNKNOWN or ANY."""
    found = known(kind, number)
    if found in (UNKNOWN, ANY):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid {what} {found.name}")
    return found


@handles(ApiKey.DELETE_ACLS, versions="1-3")
async def delete_acls(ctx: Context, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """Delete the ACLs that match the filters, and list them for each filter.

    An ACL that matches several filters is listed for each of them. If the metadata cannot be changed
    any more, only filters whose ACLs are all deleted by then have no error.

    Versions: as in DescribeAcls.

    Errors: SECURITY_DISABLED if no authorizer is configured.
    """
    cls = DeleteAclsResponse
    rows: list[DeleteAclsResponse.Result] = []
    deleted: dict[str, Acl] = {}
    matching: list[tuple[DeleteAclsResponse.Result, Iterable[str]]] = []
    listed = 0
    async for asked in ctx.time_slice.each(request.filters):
        row = cls.Result()
        rows.append(row)
        try:
            _check_access(ctx, AclOperation.ALTER)
            wanted = _filter(asked)
            _check_known(wanted)
            found = await _find_matching(ctx, wanted, DELETED_MAX - listed)
        except KafkaError as error:
            row.error_code, row.error_message = error.code, error.message
            continue
        listed += len(found)
        deleted |= found
        matching.append((row, found))
        row.matching_acls = [_deleted_row(acl) for acl in found.values()]
    acls = ctx.node.cluster.acls
    try:
        await remove_acls(ctx.node.cluster, deleted, cause=_cause(ctx))
    except KafkaError as error:  # some of the ACLs may be removed
        deleted = {
            key: acl async for key, acl in ctx.time_slice.each(deleted.items()) if key not in acls
        }
        async for row, keys in ctx.time_slice.each(matching):
            if not deleted.keys() >= set(keys):
                row.error_code, row.error_message, row.matching_acls = error.code, error.message, []
    await _audit(ctx, "removed", deleted.values())
    return cls(filter_results=rows)


def _check_known(wanted: AclFilter) -> None:
    """Reject a deletion filter with unknown numbers. As in Kafka, DescribeAcls accepts them."""
    if UNKNOWN in (wanted.resource_type, wanted.pattern_type):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Unknown patternFilter.")
    if UNKNOWN in (wanted.operation, wanted.permission):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Unknown entryFilter.")


async def _find_matching(ctx: Context, wanted: AclFilter, count_max: int) -> dict[str, Acl]:
    """Return the ACLs that match a filter, by key.

    Raises:
        KafkaError: More than `count_max` ACLs match.
    """
    found = {}
    async for key, acl in ctx.time_slice.each(ctx.node.cluster.acls.items()):
        if wanted.matches(acl):
            found[key] = acl
        if len(found) > count_max:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot remove more than {DELETED_MAX} acls in a single delete operation.",
            )
    return found


def _deleted_row(acl: Acl) -> DeleteAclsResponse.Acl:
    return DeleteAclsResponse.Acl(
        resource_type=acl.pattern.resource_type,
        resource_name=acl.pattern.name,
        pattern_type=acl.pattern.type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
