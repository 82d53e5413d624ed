"""ACLs that names and patterns of `kbroker security acl list` select."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kbroker.security.acls import (
    WILDCARD,
    Acl,
    AclFilter,
    AclResourceType,
    PatternType,
)

from .patterns import Kind, Names, matching_names

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient

RESOURCE = Kind("resource of an ACL", "kbroker security acl list")
PRINCIPAL = Kind("principal of an ACL", "kbroker security acl list")


async def selected_acls(
    cluster: ClusterClient, filters: Sequence[AclFilter], *, regex: bool
) -> list[Acl]:
    """Return the ACLs that match any of the filters, whose names may be patterns.

    A pattern selects the ACLs whose resource or principal has a matching name. The name `*`, which
    means all resources or users in ACLs, is no pattern.

    Args:
        cluster: The cluster to query.
        filters: Filters to apply.
        regex: Treat names as regular expressions instead of glob patterns.

    Returns:
        The matching ACLs, sorted and without duplicates.

    Raises:
        ClientError: A pattern matches nothing.
        UsageError: A regular expression is invalid.
        KafkaError: The broker rejects a request.
    """
    from kbroker.client.acls import EVERY_ACL, describe_acls

    with_patterns = [each for each in filters if _has_pattern(each, regex)]
    if not with_patterns:
        return await describe_acls(cluster, filters)
    existing = await describe_acls(cluster, [EVERY_ACL])
    found: set[Acl] = set()
    for each in filters:
        for wanted in _without_patterns(each, existing, regex):
            found.update(acl for acl in existing if wanted.matches(acl))
    return [acl for acl in existing if acl in found]


def _has_pattern(wanted: AclFilter, regex: bool) -> bool:
    return _is_pattern(wanted.name, regex) or _is_pattern(_user_of(wanted), regex)


def _is_pattern(text: str | None, regex: bool) -> bool:
    return text not in (None, WILDCARD) and Names([str(text)], regex).has_patterns


def _user_of(wanted: AclFilter) -> str | None:
    """Return the name of the filter's principal without its type."""
    return None if wanted.principal is None else wanted.principal.partition(":")[2]


def _without_patterns(
    wanted: AclFilter, existing: Iterable[Acl], regex: bool
) -> Iterable[AclFilter]:
    """Yield the filters for all resources and principals that the patterns of a filter match."""
    resources: Sequence[str | None] = [wanted.name]
    principals: Sequence[str | None] = [wanted.principal]
    pattern_type = wanted.pattern_type
    if wanted.name is not None and _is_pattern(wanted.name, regex):
        names = {
            acl.pattern.name
            for acl in existing
            if wanted.resource_type in (AclResourceType.ANY, acl.pattern.resource_type)
        }
        resources = matching_names(Names([wanted.name], regex), sorted(names), RESOURCE)
        if pattern_type is PatternType.MATCH:
            pattern_type = PatternType.ANY
    user = _user_of(wanted)
    if wanted.principal is not None and user is not None and _is_pattern(user, regex):
        kind = wanted.principal.partition(":")[0]
        users = {
            name for acl in existing for of, _, name in [acl.principal.partition(":")] if of == kind
        }
        matched = matching_names(Names([user], regex), sorted(users), PRINCIPAL)
        principals = [f"{kind}:{name}" for name in matched]
    for name in resources:
        for principal in principals:
            yield wanted._replace(name=name, principal=principal, pattern_type=pattern_type)
