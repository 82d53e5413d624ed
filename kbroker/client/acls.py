"""Describe, create and delete ACLs (KIP-140, KIP-290)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.security import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from kbroker.security.acls import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    Acls,
    AuthorizerSettings,
    Pattern,
    PatternType,
    Resource,
    known,
)
from kbroker.security.rights import IDEMPOTENCE, Permission

from .cluster import ClusterClient
from .configs import Resource as ConfigResource
from .configs import describe_configs
from .errors import check, error_code

# First version of the ACL APIs that has pattern types.
PATTERNS_SINCE = 1
SUPER_USERS, ALLOWS_WITHOUT_ACLS = "super.users", "allow.everyone.if.no.acl.found"


EVERY_ACL = AclFilter(
    AclResourceType.ANY,
    None,
    PatternType.ANY,
    None,
    None,
    AclOperation.ANY,
    AclPermission.ANY,
)


async def describe_acls(cluster: ClusterClient, filters: Iterable[AclFilter]) -> list[Acl]:
    """Return the ACLs that match any of the filters.

    Args:
        cluster: The cluster to query.
        filters: Filters to apply, one request each.

    Returns:
        The matching ACLs, sorted and without duplicates.

    Raises:
        KafkaError: The broker rejects a request.
    """
    connection = await cluster.controller()
    found: set[Acl] = set()
    for wanted in filters:
        request = DescribeAclsRequest(
            resource_type_filter=wanted.resource_type,
            resource_name_filter=wanted.name,
            pattern_type_filter=wanted.pattern_type,
            principal_filter=wanted.principal,
            host_filter=wanted.host,
            operation=wanted.operation,
            permission_type=wanted.permission,
        )
        answer = await connection.ask(request, oldest=PATTERNS_SINCE)
        check(answer.error_code, answer.error_message)
        for row in answer.resources:
            pattern = Pattern(
                known(AclResourceType, row.resource_type),
                known(PatternType, row.pattern_type),
                row.resource_name,
            )
            found.update(
                Acl(
                    pattern,
                    each.principal,
                    each.host,
                    known(AclOperation, each.operation),
                    known(AclPermission, each.permission_type),
                )
                for each in row.acls
            )
    return sorted(found)


async def add_acls(cluster: ClusterClient, acls: Iterable[Acl]) -> None:
    """Create ACLs; ACLs that already exist stay unchanged.

    Args:
        cluster: The cluster to change.
        acls: The ACLs to create.

    Raises:
        KafkaError: The broker rejects ACLs. The message has the first one, and how many were created.
    """
    rows = [
        CreateAclsRequest.Acl(
            resource_type=acl.pattern.resource_type,
            resource_name=acl.pattern.name,
            resource_pattern_type=acl.pattern.type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in acls
    ]
    request = CreateAclsRequest(creations=rows)
    answer = await (await cluster.controller()).ask(request, oldest=PATTERNS_SINCE)
    _check_all([(row.error_code, row.error_message) for row in answer.results], "ACLs", "created")


def _check_all(outcomes: Sequence[tuple[int, str | None]], nouns: str, done: str) -> None:
    """Raise KafkaError with the first error, and with the number of successes if there are several."""
    failed = [(code, message) for code, message in outcomes if code]
    if failed and len(outcomes) > 1:
        code, message = failed[0]
        reason = message or error_code(code).name
        count = len(outcomes) - len(failed)
        raise KafkaError(
            error_code(code), f"{reason} ({count:,} of {len(outcomes):,} {nouns} were {done})"
        )
    for code, message in failed:
        check(code, message)


def exact_filter(acl: Acl) -> AclFilter:
    """Return a filter for exactly one ACL.

    Args:
        acl: The ACL.
    """
    return AclFilter(
        acl.pattern.resource_type,
        acl.pattern.name,
        acl.pattern.type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission,
    )


async def remove_acls(cluster: ClusterClient, filters: Sequence[AclFilter]) -> list[Acl]:
    """Delete the ACLs that match any of the filters.

    Args:
        cluster: The cluster to change.
        filters: Filters that select the ACLs.

    Returns:
        The deleted ACLs, sorted.

    Raises:
        KafkaError: The broker rejects filters. The message has the first one, and how many were applied.
    """
    rows = [
        DeleteAclsRequest.Filter(
            resource_type_filter=wanted.resource_type,
            resource_name_filter=wanted.name,
            pattern_type_filter=wanted.pattern_type,
            principal_filter=wanted.principal,
            host_filter=wanted.host,
            operation=wanted.operation,
            permission_type=wanted.permission,
        )
        for wanted in filters
    ]
    request = DeleteAclsRequest(filters=rows)
    answer = await (await cluster.controller()).ask(request, oldest=PATTERNS_SINCE)
    removed = set()
    outcomes = [(row.error_code, row.error_message) for row in answer.filter_results]
    _check_all(outcomes, "filters", "applied")
    for result in answer.filter_results:
        for row in result.matching_acls:
            check(row.error_code, row.error_message)
            removed.add(
                Acl(
                    Pattern(
                        known(AclResourceType, row.resource_type),
                        known(PatternType, row.pattern_type),
                        row.resource_name,
                    ),
                    row.principal,
                    row.host,
                    known(AclOperation, row.operation),
                    known(AclPermission, row.permission_type),
                )
            )
    return sorted(removed)


class DescribedRules(NamedTuple):
    """Authorizer settings that apply in addition to ACLs, as far as a broker reveals them."""

    rules: AuthorizerSettings
    # Names of the settings that the broker does not reveal (Apache Kafka reveals none of them).
    hidden_settings: list[str]


async def describe_rules(cluster: ClusterClient) -> DescribedRules:
    """Return the super users and the default permission, read from the settings of one broker.

    Args:
        cluster: The cluster to query.

    Returns:
        The rules, and the names of the settings that this user may not see.

    Raises:
        KafkaError: The request fails for a reason other than missing permission.
    """
    broker = str(min(row.node_id for row in (await cluster.metadata([])).brokers))
    try:
        (settings,) = (await describe_configs(cluster, ConfigResource.BROKER, [broker])).values()
    except KafkaError as error:
        if error.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        settings = []
    visible = {
        each.name: each.value
        for each in settings
        if each.name in (SUPER_USERS, ALLOWS_WITHOUT_ACLS) and not each.sensitive
    }
    rules = AuthorizerSettings.read(
        visible.get(SUPER_USERS) or "",
        allows_without_acls=visible.get(ALLOWS_WITHOUT_ACLS) == "true",
    )
    hidden_settings = [name for name in (SUPER_USERS, ALLOWS_WITHOUT_ACLS) if name not in visible]
    return DescribedRules(rules, hidden_settings)


class DecidingAcls(NamedTuple):
    """All ACLs of some resources, and the rules that apply in addition."""

    acls: Acls
    described: DescribedRules


async def deciding_acls(cluster: ClusterClient, permissions: Sequence[Permission]) -> DecidingAcls:
    """Return all ACLs and rules that decide about permissions.

    Args:
        cluster: The cluster to query.
        permissions: Operations on resources.

    Raises:
        KafkaError: The broker rejects a request.
    """
    wanted = [_all_acls_of(each.resource) for each in permissions]
    if IDEMPOTENCE in permissions:
        wanted.append(_all_acls_of(Resource(AclResourceType.TOPIC, "")))
    acls = Acls()
    for number, each in enumerate(await describe_acls(cluster, dict.fromkeys(wanted))):
        acls.put(str(number), each)
    return DecidingAcls(acls, await describe_rules(cluster))


def _all_acls_of(resource: Resource) -> AclFilter:
    """Return a filter for all ACLs of a resource, or of all resources of its type if unnamed."""
    pattern = PatternType.MATCH if resource.name else PatternType.ANY
    return AclFilter(
        resource.type,
        resource.name or None,
        pattern,
        None,
        None,
        AclOperation.ANY,
        AclPermission.ANY,
    )
