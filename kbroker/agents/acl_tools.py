"""Tools for ACLs: list, create and delete them."""

from __future__ import annotations

from typing import Final

from kbroker.client.acls import add_acls, describe_acls, remove_acls
from kbroker.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    Pattern,
    PatternType,
)
from kbroker.security.rights import VALID_OPERATIONS, cli_name

from .parameters import Arguments, BadArguments, Parameter, choice, text
from .results import Result, page, page_parameters
from .tool import PREVIEW, Effect, Session, Tool

OPERATIONS = {cli_name(each): each for each in AclOperation if each >= AclOperation.ALL}
RESOURCES = {cli_name(each): each for each in AclResourceType if each >= AclResourceType.TOPIC}
PATTERNS = {each.name.lower(): each for each in (PatternType.LITERAL, PatternType.PREFIXED)}
PERMISSIONS = {each.name.lower(): each for each in (AclPermission.ALLOW, AclPermission.DENY)}
# Filters that `delete_acls` needs at least one of.
FILTERS = ("principal", "resource_type", "resource", "operation", "permission", "host")


def acl_row(acl: Acl) -> dict[str, str]:
    """Return the fields of an ACL.

    Args:
        acl: The ACL.
    """
    return {
        "principal": acl.principal,
        "permission": acl.permission.name.lower(),
        "operation": cli_name(acl.operation),
        "resource_type": cli_name(acl.pattern.resource_type),
        "resource": acl.pattern.name,
        "pattern": acl.pattern.type.name.lower(),
        "host": acl.host,
    }


def _filter(arguments: Arguments, default_pattern: PatternType) -> AclFilter:
    resource, pattern = arguments.optional_text("resource"), arguments.optional_text("pattern")
    kind, operation = arguments.optional_text("resource_type"), arguments.optional_text("operation")
    permission = arguments.optional_text("permission")
    if resource is None and pattern is None:
        default_pattern = PatternType.ANY
    return AclFilter(
        AclResourceType.ANY if kind is None else RESOURCES[kind],
        resource,
        default_pattern if pattern is None else PATTERNS[pattern],
        arguments.optional_text("principal"),
        arguments.optional_text("host"),
        AclOperation.ANY if operation is None else OPERATIONS[operation],
        AclPermission.ANY if permission is None else PERMISSIONS[permission],
    )


async def list_acls(session: Session, arguments: Arguments) -> Result:
    """Return the ACLs that match all arguments."""
    rows = await describe_acls(session.cluster, [_filter(arguments, PatternType.MATCH)])
    found = page(map(acl_row, rows), arguments)
    return Result(found.facts, {"acls": found.rows})


async def create_acl(session: Session, arguments: Arguments) -> Result:
    """Create an ACL."""
    kind = RESOURCES[arguments.text("resource_type")]
    operation = OPERATIONS[arguments.text("operation")]
    valid = VALID_OPERATIONS[kind]
    if operation not in (*valid, AclOperation.ALL):
        names = ", ".join(sorted(map(cli_name, valid)))
        raise BadArguments(
            f"operation: {cli_name(operation)} does not exist for a {cli_name(kind)} (valid: {names}, all)"
        )
    name = arguments.optional_text("resource")
    if kind is AclResourceType.CLUSTER:
        name = CLUSTER_NAME
    elif name is None:
        raise BadArguments("resource: missing; only the cluster has no name")
    acl = Acl(
        Pattern(kind, PATTERNS[arguments.text("pattern")], name),
        arguments.text("principal"),
        arguments.text("host"),
        operation,
        PERMISSIONS[arguments.text("permission")],
    )
    dry_run = arguments.flag("dry_run")
    if not dry_run:
        await add_acls(session.cluster, [acl])
    return Result({"applied": not dry_run}, {"acl": acl_row(acl)})


async def delete_acls(session: Session, arguments: Arguments) -> Result:
    """Delete the ACLs that match all arguments, or return them."""
    if not arguments.given(*FILTERS):
        raise BadArguments(f"give at least one of {', '.join(FILTERS)}")
    wanted = _filter(arguments, PatternType.LITERAL)
    dry_run = arguments.flag("dry_run")
    rows = await (describe_acls if dry_run else remove_acls)(session.cluster, [wanted])
    found = page(map(acl_row, rows), arguments)
    return Result({**found.facts, "applied": not dry_run}, {"acls": found.rows})


_FILTER: Final[dict[str, Parameter]] = {
    "principal": text("Only this principal, such as User:alice."),
    "resource_type": choice("Only this type of resource.", list(RESOURCES)),
    "resource": text("Name of the resource."),
    "pattern": choice("Only names of this type.", list(PATTERNS)),
    "operation": choice("Only this operation.", list(OPERATIONS)),
    "permission": choice("Only ACLs that allow, or that deny.", list(PERMISSIONS)),
    "host": text("Only this host or network."),
}

TOOLS: Final = (
    Tool(
        "list_acls",
        "List ACLs",
        "Return the ACLs that match all arguments. With `resource`, all ACLs that apply to this "
        "name, including prefixes and '*'.",
        Effect.READ,
        list_acls,
        {**_FILTER, **page_parameters()},
    ),
    Tool(
        "create_acl",
        "Create an ACL",
        "Allow or deny a principal an operation on a resource.",
        Effect.DESTRUCTIVE,
        create_acl,
        {
            "principal": text("Principal, such as User:alice; User:* is everybody.", required=True),
            "resource_type": choice("Type of the resource.", list(RESOURCES), required=True),
            "resource": text("Name of the resource; '*' means all of its type."),
            "pattern": choice("Type of the name.", list(PATTERNS), default="literal"),
            "operation": choice("Operation.", list(OPERATIONS), required=True),
            "permission": choice("Allow or deny.", list(PERMISSIONS), default="allow"),
            "host": text("Host or network of the client; '*' means all.").with_default(WILDCARD),
            "dry_run": PREVIEW,
        },
        idempotent=True,
    ),
    Tool(
        "delete_acls",
        "Delete ACLs",
        "Delete the ACLs that match all arguments. `resource` matches only exactly this name.",
        Effect.DESTRUCTIVE,
        delete_acls,
        {**_FILTER, "dry_run": PREVIEW, **page_parameters()},
        idempotent=True,
    ),
)
