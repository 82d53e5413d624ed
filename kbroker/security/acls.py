"""Kafka ACLs and the decisions of StandardAuthorizer (KIP-11, KIP-290, KIP-801).

An ACL allows or denies a principal one operation from one host on the resources that match its
pattern. A matching DENY overrides every ALLOW. If no ACL matches, access is denied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import NamedTuple, Self, TypeVar

from .principals import USER, Principal

# Matches all resources of a type or all hosts; after ``User:``, all principals.
WILDCARD = "*"
EVERYBODY = f"{USER}:{WILDCARD}"
# An ACL host that contains this is a network in CIDR notation.
NETWORK_MARK = "/"
# Name of the only resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"


class AclResourceType(IntEnum):
    """Resource types, by their wire number."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Types of resource patterns: an exact name or a prefix."""

    UNKNOWN = 0
    ANY = 1
    # In filters only: every pattern that matches a resource with this name.
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """Operations, by their wire number."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    """Permission types, by their wire number."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


Number = TypeVar("Number", bound=IntEnum)


def known(kind: type[Number], number: int) -> Number:
    """Return the enum member with a number, or UNKNOWN if this version does not define it."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


# Operations whose ALLOW implies the key; a DENY of them does not imply a DENY of the key.
_IMPLIED_BY = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}


class Resource(NamedTuple):
    """A resource that ACLs apply to."""

    type: AclResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower().replace('_', ' ')} {self.name}"


CLUSTER = Resource(AclResourceType.CLUSTER, CLUSTER_NAME)


class Client(NamedTuple):
    """The principal and the address of a client."""

    principal: Principal
    host: str

    def __str__(self) -> str:
        return f"{self.principal} at {self.host}"


class Pattern(NamedTuple):
    """The resources that an ACL applies to."""

    resource_type: AclResourceType
    type: PatternType
    name: str

    def __str__(self) -> str:
        kind = "prefixed " if self.type is PatternType.PREFIXED else ""
        return f"{kind}{Resource(self.resource_type, self.name)}"


@dataclass(frozen=True, order=True, slots=True)
class Acl:
    """One access control entry with its resource pattern.

    Attributes:
        network: The parsed host, or None if the host is not a network in CIDR notation.
    """

    pattern: Pattern
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission
    network: IPv4Network | IPv6Network | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", _network_or_none(self.host))

    def __str__(self) -> str:
        return (
            f"{self.permission.name} {self.principal} {self.operation.name} on {self.pattern} "
            f"from {self.host}"
        )

    def covers(self, principal: str, host: str, operation: AclOperation) -> bool:
        """Return True if the ACL applies to this principal, host and operation."""
        return (
            self.principal in (principal, EVERYBODY)
            and self._covers_operation(operation)
            and self.covers_host(host)
        )

    def covers_host(self, host: str) -> bool:
        """Return True if the ACL applies to the address of a client."""
        return self.host in (host, WILDCARD) or (
            self.network is not None and _is_in_network(host, self.network)
        )

    def _covers_operation(self, operation: AclOperation) -> bool:
        if self.operation in (operation, AclOperation.ALL):
            return True
        implies = self.operation in _IMPLIED_BY.get(operation, ())
        return implies and self.permission is AclPermission.ALLOW


def parse_network(text: str) -> IPv4Network | IPv6Network:
    """Parse the host of an ACL that is a network, such as `10.1.0.0/16`.

    Raises:
        ValueError: The text is not an address with a prefix length.
    """
    address, _, length = text.partition(NETWORK_MARK)
    if not (length.isascii() and length.isdigit()):
        raise ValueError(f"expected an address, {NETWORK_MARK!r} and a prefix length")
    return ip_network((address, int(length)), strict=False)


def _network_or_none(host: str) -> IPv4Network | IPv6Network | None:
    if NETWORK_MARK not in host:
        return None
    try:
        return parse_network(host)
    except ValueError:
        return None


def _is_in_network(host: str, network: IPv4Network | IPv6Network) -> bool:
    try:
        return ip_address(host) in network
    except ValueError:
        return False


class AclFilter(NamedTuple):
    """A filter for ACLs. None, ANY and MATCH leave their field open."""

    resource_type: AclResourceType
    name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: AclOperation
    permission: AclPermission

    def matches(self, acl: Acl) -> bool:
        """Return True if the filter matches an ACL."""
        return (
            self.resource_type in (AclResourceType.ANY, acl.pattern.resource_type)
            and self._matches_name(acl.pattern)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (AclPermission.ANY, acl.permission)
        )

    def _matches_name(self, pattern: Pattern) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.type):
            return False
        if self.name in (None, pattern.name):
            return True
        if self.pattern_type is not PatternType.MATCH:
            return False
        if pattern.type is PatternType.PREFIXED:
            return self.name.startswith(pattern.name)
        return pattern.name == WILDCARD


class Verdict(NamedTuple):
    """The result of an authorization.

    Attributes:
        allowed: True if access is granted.
        acl: The ACL that decided; None if none matched.
        is_super: True if the principal is a super user.
        has_acls: True if the resource has ACLs.
    """

    allowed: bool
    acl: Acl | None = None
    is_super: bool = False
    has_acls: bool = False

    def __str__(self) -> str:
        if self.acl is not None:
            return str(self.acl)
        if self.is_super:
            return "a super user"
        if self.has_acls:
            return "no ACL of the resource allows it"
        return "the resource has no ACL" + (
            ", and allow.everyone.if.no.acl.found is true" if self.allowed else ""
        )


class Acls:
    """All ACLs of a cluster, by a unique key."""

    def __init__(self) -> None:
        # Number of changes so far.
        self.version = 0
        self._by_key: dict[str, Acl] = {}
        self._by_pattern: dict[Pattern, dict[str, Acl]] = {}
        # Number of prefixed patterns, by resource type and prefix length.
        self._prefix_lengths: Counter[tuple[AclResourceType, int]] = Counter()

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Acl]:
        return iter(tuple(self._by_key.values()))

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def items(self) -> Iterator[tuple[str, Acl]]:
        """Return each key with its ACL."""
        return iter(tuple(self._by_key.items()))

    def put(self, key: str, acl: Acl) -> None:
        """Add an ACL, or replace the one with the same key."""
        self.drop(key)
        self.version += 1
        self._by_key[key] = acl
        pattern = acl.pattern
        if pattern not in self._by_pattern:
            self._by_pattern[pattern] = {}
            if pattern.type is PatternType.PREFIXED:
                self._prefix_lengths[pattern.resource_type, len(pattern.name)] += 1
        self._by_pattern[pattern][key] = acl

    def drop(self, key: str) -> None:
        """Remove an ACL if it exists."""
        acl = self._by_key.pop(key, None)
        if acl is None:
            return
        self.version += 1
        pattern = acl.pattern
        del self._by_pattern[pattern][key]
        if not self._by_pattern[pattern]:
            del self._by_pattern[pattern]
            if pattern.type is PatternType.PREFIXED:
                self._prefix_lengths -= Counter([(pattern.resource_type, len(pattern.name))])

    def matching(self, resource: Resource) -> Iterator[Acl]:
        """Return the ACLs whose pattern matches a resource."""
        kind, name = resource
        for pattern in (
            Pattern(kind, PatternType.LITERAL, name),
            Pattern(kind, PatternType.LITERAL, WILDCARD),
        )[: 1 if name == WILDCARD else 2]:
            yield from self._by_pattern.get(pattern, {}).values()
        for prefix_kind, length in self._prefix_lengths:
            if prefix_kind is kind and length <= len(name):
                pattern = Pattern(kind, PatternType.PREFIXED, name[:length])
                yield from self._by_pattern.get(pattern, {}).values()


class AuthorizerSettings(NamedTuple):
    """Authorizer settings: ``super.users`` and ``allow.everyone.if.no.acl.found``."""

    super_users: frozenset[str] = frozenset()
    allows_without_acls: bool = False

    @classmethod
    def read(cls, super_users: str, *, allows_without_acls: bool) -> Self:
        """Parse ``super.users`` (``User:a;User:b``)."""
        names = (each.strip() for each in super_users.split(";"))
        return cls(frozenset(each for each in names if each), allows_without_acls)


# In-process connections of the broker itself, which may do everything. Network clients have an IP
# address as their host, so they cannot claim this one.
IN_PROCESS_CLIENT = Client(Principal("Process", "kbroker"), "inside")


def decide(
    acls: Acls,
    rules: AuthorizerSettings,
    client: Client,
    operation: AclOperation,
    resource: Resource,
) -> Verdict:
    """Decide whether a client may perform an operation on a resource, like StandardAuthorizer.

    Args:
        acls: ACLs of the cluster.
        rules: Super users and the default without ACLs.
        client: Principal and host of the client.
        operation: The requested operation.
        resource: The resource; it need not exist.
    """
    principal = str(client.principal)
    if principal in rules.super_users or client == IN_PROCESS_CLIENT:
        return Verdict(True, is_super=True)
    allowing: Acl | None = None
    has_acls = False
    for acl in acls.matching(resource):
        has_acls = True
        if acl.covers(principal, client.host, operation):
            if acl.permission is AclPermission.DENY:
                return Verdict(False, acl, has_acls=True)
            allowing = acl
    if allowing is not None:
        return Verdict(True, allowing, has_acls=True)
    return Verdict(rules.allows_without_acls and not has_acls, has_acls=has_acls)


def decide_any(
    acls: Acls,
    rules: AuthorizerSettings,
    client: Client,
    operation: AclOperation,
    kind: AclResourceType,
) -> bool:
    """Return True if a client may perform an operation on some resource of a type (KIP-679).

    An allowed prefix counts unless a denied prefix covers it. An allowed name counts unless the
    same name or one of its prefixes is denied.
    """
    if decide(acls, rules, client, operation, Resource(kind, "hardcode")).allowed:
        return True
    principal = str(client.principal)
    allowed: set[Pattern] = set()
    denied: set[Pattern] = set()
    for acl in acls:
        if (
            acl.pattern.resource_type is kind
            and acl.principal in (principal, EVERYBODY)
            and acl.operation in (operation, AclOperation.ALL)
            and acl.covers_host(client.host)
        ):
            (allowed if acl.permission is AclPermission.ALLOW else denied).add(acl.pattern)
    everything = Pattern(kind, PatternType.LITERAL, WILDCARD)
    if everything in denied:
        return False
    if everything in allowed:
        return True
    prefixes = {each.name for each in denied if each.type is PatternType.PREFIXED}
    return any(
        not (each.type is PatternType.LITERAL and each in denied)
        and not any(each.name.startswith(prefix) for prefix in prefixes)
        for each in allowed
    )
