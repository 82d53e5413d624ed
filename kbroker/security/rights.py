"""What people do with Kafka and which rights that takes, and what would let somebody have one."""

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
    Client,
    Pattern,
    PatternType,
    Resource,
    Rules,
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

MEANT_FOR: Final[Mapping[AclResourceType, frozenset[AclOperation]]] = MappingProxyType(
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
"""The operations that there are by what they are about, as kafka-acls has them (KIP-430 tells these)."""

Operations = Mapping[AclResourceType, tuple[AclOperation, ...]]

PRODUCER: Final[Operations] = MappingProxyType(
    {_TOPIC: (_WRITE, _DESCRIBE, _CREATE), _TRANSACTIONAL_ID: (_WRITE, _DESCRIBE)}
)
"""What kafka-acls gives with ``--producer``."""
CONSUMER: Final[Operations] = MappingProxyType({_TOPIC: (_READ, _DESCRIBE), _GROUP: (_READ,)})
"""What kafka-acls gives with ``--consumer``."""
PRODUCING: Final[Operations] = MappingProxyType(
    {_TRANSACTIONAL_ID: (_DESCRIBE, _WRITE), _TOPIC: (_DESCRIBE, _WRITE)}
)
"""What a producer asks for, in its order, where the topic exists."""
CONSUMING: Final[Operations] = MappingProxyType(
    {_TOPIC: (_DESCRIBE, _READ), _GROUP: (_DESCRIBE, _READ)}
)
"""What a consumer asks for."""


class Right(NamedTuple):
    """One thing that somebody may do, or not."""

    operation: AclOperation
    resource: Resource

    def __str__(self) -> str:
        return f"{self.operation.name} on {self.resource}"


IDEMPOTENCE: Final = Right(AclOperation.IDEMPOTENT_WRITE, CLUSTER)


def rights(operations: Operations, resources: Iterable[Resource]) -> Iterator[Right]:
    """The rights that some work takes, with the resources that it is about."""
    named = list(resources)
    for kind, needed in operations.items():
        for resource in named:
            if resource.type is kind:
                for operation in needed:
                    yield Right(operation, resource)


class Change(NamedTuple):
    """A change of ACLs that one command makes."""

    verb: str
    """``add`` or ``remove``."""
    acl: Acl

    @property
    def command(self) -> str:
        """The command, for a shell."""
        pattern, acl = self.acl.pattern, self.acl
        words = ["--principal", acl.principal]
        words += ["--deny"] if acl.permission is AclPermission.DENY else []
        if self.verb == "remove" and acl.permission is AclPermission.ALLOW:
            words.append("--allow")
        words += ["--operation", option_of(acl.operation), f"--{option_of(pattern.resource_type)}"]
        if pattern.resource_type is not AclResourceType.CLUSTER:
            words.append(pattern.name)
        words += ["--prefixed"] if pattern.type is PatternType.PREFIXED else []
        # Without it `add` makes one for all hosts, but `remove` finds those of any.
        if acl.host != WILDCARD or self.verb == "remove":
            words += ["--host", acl.host]
        return f"{COMMAND} {self.verb} {shlex.join(words)}"


def option_of(kind: AclOperation | AclResourceType) -> str:
    """How commands write an operation, or what ACLs are about."""
    return kind.name.lower().replace("_", "-")


class Answer(NamedTuple):
    """Whether somebody has a right, by which rule, and what would change that."""

    client: Client
    right: Right
    verdict: Verdict
    by_any_topic: bool
    """Whether it is only allowed because WRITE is on some topic (KIP-679)."""
    changes: list[Change]
    """Those that let somebody have it who does not."""

    @property
    def allowed(self) -> bool:
        """Whether the client has the right."""
        return self.verdict.allowed or self.by_any_topic

    @property
    def rule(self) -> str:
        """What decides, in words."""
        if self.by_any_topic:
            return "it has WRITE on some topic, which is enough"
        acl, operation = self.verdict.acl, self.right.operation
        if acl is not None and acl.operation not in (operation, AclOperation.ALL):
            return f"{acl}, as {acl.operation.name} allows {operation.name}"
        return str(self.verdict)


def answer(acls: Acls, rules: Rules, client: Client, right: Right) -> Answer:
    """Whether somebody has a right, as brokers decide it, and what would let it have that."""
    verdict = decide(acls, rules, client, *right)
    if verdict.allowed:
        return Answer(client, right, verdict, False, [])
    if right == IDEMPOTENCE and decide_any(acls, rules, client, _WRITE, _TOPIC):
        return Answer(client, right, verdict, True, [])
    return Answer(client, right, verdict, False, list(_remedy(acls, rules, client, right)))


def _remedy(acls: Acls, rules: Rules, client: Client, right: Right) -> Iterator[Change]:
    """What has to go, and then what has to come, until the answer is another one."""
    operation, resource = right
    others = Acls()
    for number, each in enumerate(acls.about(resource)):
        others.put(str(number), each)
    while not (verdict := decide(others, rules, client, *right)).allowed:
        if verdict.acl is None:
            pattern = Pattern(resource.type, PatternType.LITERAL, resource.name)
            yield Change(
                "add",
                Acl(pattern, str(client.principal), WILDCARD, operation, AclPermission.ALLOW),
            )
            return
        yield Change("remove", verdict.acl)
        for key, each in others.items():
            if each == verdict.acl:
                others.drop(key)
