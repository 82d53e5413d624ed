"""The kafka-acls tool: adds, removes and lists ACLs."""

from __future__ import annotations

import itertools
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.cli.output import reported_changes, say, say_before_change
from kbroker.security.acls import (
    CLUSTER,
    WILDCARD,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    Pattern,
    PatternType,
)
from kbroker.security.rights import CONSUMER, IDEMPOTENCE, PRODUCER, VALID_OPERATIONS, Operations

from .base import FAILED, Parser, run

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient

# Resource type of each option that names a resource.
RESOURCES = {
    "topic": AclResourceType.TOPIC,
    "group": AclResourceType.GROUP,
    "transactional_id": AclResourceType.TRANSACTIONAL_ID,
    "delegation_token": AclResourceType.DELEGATION_TOKEN,
    "user_principal": AclResourceType.USER,
}
PATTERN_TYPES = {each.name: each for each in PatternType if each is not PatternType.UNKNOWN}


def main(arguments: Sequence[str]) -> None:
    """Run the tool."""
    parser = Parser("kafka-acls", "kbroker security acl")
    parser.add_flags("--add", "--remove", "--list", "--cluster", "--producer", "--consumer")
    parser.add_flags("--idempotent", "--force")
    parser.add_lists(
        "--topic", "--group", "--transactional-id", "--delegation-token", "--principal"
    )
    parser.add_lists("--user-principal", "--allow-principal", "--deny-principal", "--allow-host")
    parser.add_lists("--deny-host", "--operation")
    parser.add_argument("--resource-pattern-type", default="LITERAL")
    options = parser.parse_args(arguments)
    if options.add + options.remove + options.list != 1:
        parser.error("Command must include exactly one action: --list, --add, --remove.")
    options.pattern_type = PATTERN_TYPES.get(options.resource_pattern_type.upper())
    if options.pattern_type is None:
        parser.error(f"invalid --resource-pattern-type {options.resource_pattern_type}")
    work = _list if options.list else _change(parser, options)
    run(parser, options, lambda cluster: work(cluster, options), _failed)


def _failed(text: str) -> None:
    say(f"Error while executing ACL command: {text}")


def _patterns(options: Namespace) -> list[Pattern]:
    """Return the resources in the options; each name in a list is a separate resource."""
    found = [
        Pattern(kind, options.pattern_type, name.strip())
        for option, kind in RESOURCES.items()
        for name in getattr(options, option)
    ]
    if options.cluster or (options.producer and options.idempotent):
        found.append(Pattern(CLUSTER.type, PatternType.LITERAL, CLUSTER.name))
    return found


def _change(parser: Parser, options: Namespace) -> _Change:
    """Validate the options of --add or --remove and return the change."""
    patterns = _patterns(options)
    if not patterns:
        parser.error(
            "You must provide at least one resource: --topic <topic> or --cluster or --group <group> "
            "or --delegation-token <Delegation Token ID>"
        )
    principals = [*options.allow_principal, *options.deny_principal]
    if options.add and not principals:
        parser.error(
            "You must specify one of: --allow-principal, --deny-principal when trying to add ACLs."
        )
    if options.add and options.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        parser.error(
            f"A '--resource-pattern-type' value of '{options.pattern_type.name}' is not valid when "
            "adding acls."
        )
    for each in principals:
        if not all(each.partition(":")):
            _failed(f"expected a string in format principalType:principalName but got {each}")
            sys.exit(FAILED)
    return _Change(patterns, _acls(parser, options, patterns))


def _acls(
    parser: Parser, options: Namespace, patterns: Sequence[Pattern]
) -> dict[Pattern, list[Acl]]:
    """Return the ACLs of each resource; no ACLs if the options name no principal."""
    wanted: dict[Pattern, list[AclOperation]] = {each: [] for each in patterns}
    kinds = {each.resource_type for each in patterns}
    for name, operations, needed in (
        ("producer", PRODUCER, [AclResourceType.TOPIC]),
        ("consumer", CONSUMER, [AclResourceType.TOPIC, AclResourceType.GROUP]),
    ):
        if getattr(options, name):
            if not kinds.issuperset(needed):
                missing = " and --".join(each.name.lower() for each in needed)
                parser.error(f"With --{name} you must specify a --{missing}")
            _add_operations(wanted, operations)
    if options.producer and options.idempotent:
        _add_operations(wanted, {CLUSTER.type: (IDEMPOTENCE.operation,)})
    if not (options.producer or options.consumer):
        given = [_operation(parser, each) for each in options.operation or ["All"]]
        _check_operations(parser, patterns, given)
        _add_operations(wanted, {each.resource_type: tuple(given) for each in patterns})
    entries = [
        (principal, host, permission)
        for permission, principals, hosts in (
            (AclPermission.ALLOW, options.allow_principal, options.allow_host),
            (AclPermission.DENY, options.deny_principal, options.deny_host),
        )
        for principal, host in itertools.product(principals, hosts or [WILDCARD])
    ]
    return {
        pattern: [
            Acl(pattern, principal, host, operation, permission)
            for (principal, host, permission), operation in itertools.product(entries, operations)
        ]
        for pattern, operations in wanted.items()
    }


def _add_operations(wanted: Mapping[Pattern, list[AclOperation]], operations: Operations) -> None:
    for pattern, known in wanted.items():
        known += [each for each in operations.get(pattern.resource_type, ()) if each not in known]


def _operation(parser: Parser, text: str) -> AclOperation:
    """Parse an operation such as `DescribeConfigs` or `DESCRIBE_CONFIGS`, in any case."""
    by_name = {each.name.replace("_", ""): each for each in AclOperation}
    found = by_name.get(text.replace("_", "").upper())
    if found is None or found in (AclOperation.UNKNOWN, AclOperation.ANY):
        parser.error(f"unknown operation {text}")
    return found


def _check_operations(
    parser: Parser, patterns: Iterable[Pattern], operations: Iterable[AclOperation]
) -> None:
    for pattern in patterns:
        valid = {*VALID_OPERATIONS[pattern.resource_type], AclOperation.ALL}
        if not valid.issuperset(operations):
            names = ", ".join(sorted(each.name for each in valid))
            parser.error(
                f"ResourceType {pattern.resource_type.name} only supports operations [{names}]"
            )


class _Change:
    """ACLs that one run of the tool adds or removes."""

    def __init__(self, patterns: Sequence[Pattern], acls: Mapping[Pattern, Sequence[Acl]]) -> None:
        self._patterns = patterns
        self._acls = acls

    async def __call__(self, cluster: ClusterClient, options: Namespace) -> None:
        with reported_changes([*map(_pattern_text, self._patterns)]) as changed:
            for pattern in self._patterns:
                if options.add:
                    await self._add(cluster, pattern)
                else:
                    await self._remove(cluster, pattern, must_confirm=not options.force)
                changed.append(_pattern_text(pattern))

    async def _add(self, cluster: ClusterClient, pattern: Pattern) -> None:
        from kbroker.client.acls import add_acls, describe_acls

        existing = set(await describe_acls(cluster, [_filter(pattern)]))
        for each in self._acls[pattern]:
            if each in existing:
                say_before_change(
                    f"Acl (pattern={_pattern_text(pattern)}, entry={_acl_text(each)}) already exists."
                )
        new = [each for each in self._acls[pattern] if each not in existing]
        if new:
            say_before_change(f"Adding ACLs for resource `{_pattern_text(pattern)}`: ")
            first, *others = map(_acl_line, new)
            say_before_change(f" {first}", *others, "", keep="\t")
            await add_acls(cluster, new)

    async def _remove(
        self, cluster: ClusterClient, pattern: Pattern, *, must_confirm: bool
    ) -> None:
        from kbroker.client.acls import remove_acls

        acls = self._acls[pattern]
        if acls:
            question = ["Are you sure you want to remove ACLs: ", *map(_acl_line, acls)]
            question.append(f" from resource filter `{_pattern_text(pattern)}`? (y/n)")
        else:
            target = f"all ACLs for resource filter `{_pattern_text(pattern)}`"
            question = [f"Are you sure you want to delete {target}? (y/n)"]
        if not must_confirm or _is_confirmed(question):
            await remove_acls(cluster, [_filter_of(each) for each in acls] or [_filter(pattern)])


def _is_confirmed(question: Sequence[str]) -> bool:
    say(*question, keep="\t")
    return sys.stdin.readline().strip().lower() == "y"


async def _list(cluster: ClusterClient, options: Namespace) -> None:
    from kbroker.client.acls import describe_acls

    any_acl = AclFilter(
        AclResourceType.ANY, None, PatternType.ANY, None, None, AclOperation.ANY, AclPermission.ANY
    )
    filters = [_filter(each) for each in _patterns(options)] or [any_acl]
    found = await describe_acls(cluster, filters)
    for principal in options.principal or [None]:
        if principal is not None:
            say(f"ACLs for principal `{principal}`")
        chosen = [each for each in found if principal in (None, each.principal)]
        for pattern, acls in itertools.groupby(chosen, key=lambda each: each.pattern):
            say(
                f"Current ACLs for resource `{_pattern_text(pattern)}`:",
                *map(_acl_line, acls),
                "",
                keep="\t",
            )


def _filter(pattern: Pattern) -> AclFilter:
    """Return a filter for all ACLs of a resource."""
    return AclFilter(
        pattern.resource_type,
        pattern.name,
        pattern.type,
        None,
        None,
        AclOperation.ANY,
        AclPermission.ANY,
    )


def _filter_of(acl: Acl) -> AclFilter:
    """Return a filter for exactly this ACL."""
    return _filter(acl.pattern)._replace(
        principal=acl.principal, host=acl.host, operation=acl.operation, permission=acl.permission
    )


def _pattern_text(pattern: Pattern) -> str:
    return (
        f"ResourcePattern(resourceType={pattern.resource_type.name}, name={pattern.name}, "
        f"patternType={pattern.type.name})"
    )


def _acl_line(acl: Acl) -> str:
    return f"\t{_acl_text(acl)}"


def _acl_text(acl: Acl) -> str:
    return (
        f"(principal={acl.principal}, host={acl.host}, operation={acl.operation.name}, "
        f"permissionType={acl.permission.name})"
    )
