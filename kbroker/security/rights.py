"""Permissions that typical Kafka operations need, and ACL changes that would grant them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from .acls import (
    CLUSTER,
    WILDCARD,
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    Acls,
    AuthorizerSettings,
    Client,
    Pattern,
    PatternType,
    Resource,
    Verdict,
    decide,
    decide_any,
)

COMMAND: Final = "kbroker security acl"

_TOPIC, _GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
_TRANSACTIONAL_ID = AclResourceType.TRANSACTIONAL_ID
_READ, _WRITE, _CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE
_DELETE, _ALTER, _DESCRIBE = AclOperation.DELETE, AclOperation.ALTER, AclOperation.DESCRIBE
_CONFIGS = frozenset({AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS})

# Operations that ACLs of a resource type can have, as in kafka-acls (KIP-430 reports these).
VALID_OPERATIONS: Final[Mapping[AclResourceType, frozenset[AclOperation]]] = MappingProxyType(
    {
        _TOPIC: _CONFIGS | {_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE},
        _GROUP: _CONFIGS | {_READ, _DELETE, _DESCRIBE},
        AclResourceType.CLUSTER: _CONFIGS
        | {_CREATE, _ALTER, _DESCRIBE}
        | {AclOperation.CLUSTER_ACTION, AclOperation.IDEMPOTENT_WRITE},
        _TRANSACTIONAL_ID: frozenset({_WRITE, _DESCRIBE, AclOperation.TWO_PHASE_COMMIT}),
        AclResourceType.DELEGATION_TOKEN: frozenset({_DESCRIBE}),
        AclResourceType.USER: frozenset({AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS}),
    }
)

Operations = Mapping[AclResourceType, tuple[AclOperation, ...]]

# Operations that ``kafka-acls --producer`` grants.
PRODUCER: Final[Operations] = MappingProxyType(
    {_TOPIC: (_WRITE, _DESCRIBE, _CREATE), _TRANSACTIONAL_ID: (_WRITE, _DESCRIBE)}
)
# Operations that ``kafka-acls --consumer`` grants.
CONSUMER: Final[Operations] = MappingProxyType({_TOPIC: (_READ, _DESCRIBE), _GROUP: (_READ,)})
# Operations that a producer needs for an existing topic, in the order of its requests.
PRODUCING: Final[Operations] = MappingProxyType(
    {_TRANSACTIONAL_ID: (_DESCRIBE, _WRITE), _TOPIC: (_DESCRIBE, _WRITE)}
)
# Operations that a consumer needs.
CONSUMING: Final[Operations] = MappingProxyType(
    {_TOPIC: (_DESCRIBE, _READ), _GROUP: (_DESCRIBE, _READ)}
)


class Permission(NamedTuple):
    """An operation on a resource."""

    operation: AclOperation
    resource: Resource

    def __str__(self) -> str:
        return f"{self.operation.name} on {self.resource}"


IDEMPOTENCE: Final = Permission(AclOperation.IDEMPOTENT_WRITE, CLUSTER)


def required_permissions(
    operations: Operations, resources: Iterable[Resource]
) -> Iterator[Permission]:
    """Yield the permissions that operations need on resources."""
    named = list(resources)
    for kind, needed in operations.items():
        for resource in named:
            if resource.type is kind:
                for operation in needed:
                    yield Permission(operation, resource)


class AclChange(NamedTuple):
    """An ACL change that one command makes."""

    # ``add`` or ``remove``.
    verb: str
    acl: Acl

    @property
    def command(self) -> str:
        """The shell command of the change."""
        pattern, acl = self.acl.pattern, self.acl
        arguments = ["--principal", acl.principal]
        arguments += ["--deny"] if acl.permission is AclPermission.DENY else []
        if self.verb == "remove" and acl.permission is AclPermission.ALLOW:
            arguments.append("--allow")
        arguments += [
            "--operation",
            cli_name(acl.operation),
            f"--{cli_name(pattern.resource_type)}",
        ]
        if pattern.resource_type is not AclResourceType.CLUSTER:
            arguments.append(pattern.name)
        arguments += ["--prefixed"] if pattern.type is PatternType.PREFIXED else []
        # Without --host, `add` creates an ACL for all hosts, but `remove` matches any host.
        if acl.host != WILDCARD or self.verb == "remove":
            arguments += ["--host", acl.host]
        return f"{COMMAND} {self.verb} {shlex.join(arguments)}"


def cli_name(kind: AclOperation | AclResourceType) -> str:
    """Return the CLI spelling of an operation or a resource type."""
    return kind.name.lower().replace("_", "-")


def acl_row(acl: Acl) -> dict[str, str]:
    """Return the fields of an ACL for commands and the console."""
    return {
        "principal": acl.principal,
        "permission": acl.permission.name.lower(),
        "operation": cli_name(acl.operation),
        "resource_type": cli_name(acl.pattern.resource_type),
        "resource": acl.pattern.name,
        "pattern": acl.pattern.type.name.lower(),
        "host": acl.host,
    }


class PermissionCheck(NamedTuple):
    """The result of a permission check.

    Attributes:
        client: Principal and address of the client.
        permission: The checked permission.
        verdict: The decision and its reason.
        by_any_topic: True if only WRITE on some topic grants the permission (KIP-679).
        changes: ACL changes that would grant a denied permission.
    """

    client: Client
    permission: Permission
    verdict: Verdict
    by_any_topic: bool
    changes: list[AclChange]

    @property
    def allowed(self) -> bool:
        """True if the client has the permission."""
        return self.verdict.allowed or self.by_any_topic

    @property
    def rule(self) -> str:
        """The deciding rule in words."""
        if self.by_any_topic:
            return "it has WRITE on some topic, which is enough"
        acl, operation = self.verdict.acl, self.permission.operation
        if acl is not None and acl.operation not in (operation, AclOperation.ALL):
            return f"{acl}, as {acl.operation.name} allows {operation.name}"
        return str(self.verdict)

    def row(self) -> dict[str, object]:
        """Return the fields for commands and the console."""
        operation, resource = self.permission
        return {
            "principal": str(self.client.principal),
            "host": self.client.host,
            "operation": cli_name(operation),
            "resource_type": cli_name(resource.type),
            "resource": resource.name,
            "allowed": self.allowed,
            "rule": self.rule,
            "acl": None if self.verdict.acl is None else acl_row(self.verdict.acl),
            "commands": [change.command for change in self.changes],
        }


def check_permission(
    acls: Acls, rules: AuthorizerSettings, client: Client, permission: Permission
) -> PermissionCheck:
    """Check a permission as a broker does, and find the changes that would grant it."""
    verdict = decide(acls, rules, client, *permission)
    if verdict.allowed:
        return PermissionCheck(client, permission, verdict, False, [])
    if permission == IDEMPOTENCE and decide_any(acls, rules, client, _WRITE, _TOPIC):
        return PermissionCheck(client, permission, verdict, True, [])
    return PermissionCheck(
        client, permission, verdict, False, list(_find_changes(acls, rules, client, permission))
    )


def _find_changes(
    acls: Acls, rules: AuthorizerSettings, client: Client, permission: Permission
) -> Iterator[AclChange]:
    """Yield the ACL removals and then the addition that would grant the permission."""
    operation, resource = permission
    others = Acls()
    for number, each in enumerate(acls.matching(resource)):
        others.put(str(number), each)
    while not (verdict := decide(others, rules, client, *permission)).allowed:
        if verdict.acl is None:
            pattern = Pattern(resource.type, PatternType.LITERAL, resource.name)
            yield AclChange(
                "add",
                Acl(pattern, str(client.principal), WILDCARD, operation, AclPermission.ALLOW),
            )
            return
        yield AclChange("remove", verdict.acl)
        for key, each in others.items():
            if each == verdict.acl:
                others.drop(key)
