"""Who may do what at a cluster: ACLs, as every Kafka has them (KIP-140, KIP-290)."""

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
    Pattern,
    PatternType,
    Rules,
    known,
)

from .cluster import ClusterClient
from .configs import Resource, describe_configs
from .errors import check

PATTERNS_SINCE = 1
"""The version of these APIs from which ACLs have patterns."""
SUPER_USERS, ALLOWS_WITHOUT_ACLS = "super.users", "allow.everyone.if.no.acl.found"


async def describe_acls(cluster: ClusterClient, filters: Iterable[AclFilter]) -> list[Acl]:
    """The ACLs that one of the filters fits, each once and in order. Raises KafkaError."""
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
    """Let these ACLs rule; those that do already stay. Raises KafkaError for the first that cannot."""
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
    for result in answer.results:
        check(result.error_code, result.error_message)


async def remove_acls(cluster: ClusterClient, filters: Sequence[AclFilter]) -> list[Acl]:
    """Remove the ACLs that one of the filters fits, and tell which they were. Raises KafkaError."""
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
    gone = set()
    for result in answer.filter_results:
        check(result.error_code, result.error_message)
        for row in result.matching_acls:
            check(row.error_code, row.error_message)
            gone.add(
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
    return sorted(gone)


class ToldRules(NamedTuple):
    """What decides beside ACLs, as far as a broker tells it."""

    rules: Rules
    untold: list[str]
    """Settings that it keeps to itself, as Apache Kafka does."""


async def describe_rules(cluster: ClusterClient) -> ToldRules:
    """What decides beside ACLs, by the settings of a broker, if they may be seen. Raises KafkaError."""
    broker = str(min(row.node_id for row in (await cluster.metadata([])).brokers))
    try:
        (settings,) = (await describe_configs(cluster, Resource.BROKER, [broker])).values()
    except KafkaError as error:
        if error.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        settings = []
    told = {
        each.name: each.value
        for each in settings
        if each.name in (SUPER_USERS, ALLOWS_WITHOUT_ACLS) and not each.sensitive
    }
    rules = Rules.read(
        told.get(SUPER_USERS) or "",
        allows_without_acls=told.get(ALLOWS_WITHOUT_ACLS) == "true",
    )
    untold = [name for name in (SUPER_USERS, ALLOWS_WITHOUT_ACLS) if name not in told]
    return ToldRules(rules, untold)
