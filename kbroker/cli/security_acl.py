"""The `kbroker security acl` command: ACLs of any Kafka, and explanations of decisions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kbroker.security.acls import (
    CLUSTER,
    WILDCARD,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    Acls,
    Client,
    Pattern,
    PatternType,
    Resource,
)
from kbroker.security.principals import USER, Principal
from kbroker.security.rights import (
    CONSUMER,
    CONSUMING,
    IDEMPOTENCE,
    PRODUCER,
    PRODUCING,
    VALID_OPERATIONS,
    Operations,
    Permission,
    PermissionCheck,
    acl_row,
    check_permission,
    cli_name,
    required_permissions,
)

from .acl_patterns import selected_acls
from .completion import complete_groups, complete_principals, complete_topics
from .confirmation import Change, Preview, count_of, destructive
from .lazy import CommandGroup
from .options import add_options
from .output import Column, format_options, say, show, table
from .patterns import regex_option
from .target import Target, run, target_options

if TYPE_CHECKING:
    from kbroker.client.acls import DescribedRules
    from kbroker.client.cluster import ClusterClient

Command = TypeVar("Command", bound=Callable[..., object])

TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
OPERATIONS = {cli_name(each): each for each in AclOperation if each >= AclOperation.ALL}
LISTED = ("principal", "permission", "operation", "resource_type", "resource", "pattern", "host")


@dataclass(frozen=True, slots=True)
class AclArguments:
    """Principals, operations and resources in the options of a command."""

    principals: tuple[str, ...]
    operations: tuple[AclOperation, ...]
    resources: tuple[Resource, ...]


def _principal(text: str) -> str:
    """Return a principal in the form of ACLs; a name without a type is a user."""
    return text if ":" in text else f"{USER}:{text}"


_RESOURCE_OPTIONS = (
    click.option(
        "--topic",
        "topics",
        multiple=True,
        shell_complete=complete_topics,
        help="Topic resource; can be given several times.",
    ),
    click.option(
        "--group",
        "groups",
        multiple=True,
        shell_complete=complete_groups,
        help="Group resource; can be given several times.",
    ),
    click.option(
        "--transactional-id",
        "transactional_ids",
        multiple=True,
        help="Transactional ID resource; can be given several times.",
    ),
    click.option("--cluster", is_flag=True, help="Cluster resource."),
    click.option(
        "--delegation-token",
        "tokens",
        multiple=True,
        metavar="ID",
        help="Delegation token resource; can be given several times.",
    ),
    click.option(
        "--user",
        "users",
        multiple=True,
        help="User resource (User:NAME), the owner of delegation tokens; can be given several times.",
    ),
)


def operation_and_resource_options(command: Command) -> Command:
    """Add the options for operations and resources to a command; it receives `arguments`."""

    @click.option(
        "--operation",
        "operations",
        multiple=True,
        metavar="NAME",
        type=click.Choice([*OPERATIONS], case_sensitive=False),
        help=f"Operation: one of {', '.join(OPERATIONS)}; can be given several times.",
    )
    @functools.partial(add_options, options=_RESOURCE_OPTIONS)
    @functools.wraps(command)
    def with_options(
        *args: object,
        operations: tuple[str, ...],
        cluster: bool,
        principals: tuple[str, ...],
        **named: Any,
    ) -> object:
        resources = [
            Resource(kind, name)
            for kind, option in (
                (TOPIC, "topics"),
                (GROUP, "groups"),
                (AclResourceType.TRANSACTIONAL_ID, "transactional_ids"),
                (AclResourceType.DELEGATION_TOKEN, "tokens"),
                (AclResourceType.USER, "users"),
            )
            for name in named.pop(option)
        ]
        arguments = AclArguments(
            tuple(map(_principal, principals)),
            tuple(OPERATIONS[each.lower()] for each in operations),
            (*resources, *([CLUSTER] if cluster else [])),
        )
        return command(*args, arguments=arguments, **named)

    return with_options  # type: ignore[return-value]


def client_role_options(command: Command) -> Command:
    """Add the options --producer, --consumer and --idempotent to a command."""
    for option, text in (
        (
            "--idempotent",
            "With --producer: also IDEMPOTENT_WRITE on the cluster, for brokers before 3.0.",
        ),
        ("--consumer", "All operations that a consumer of --topic in --group needs."),
        (
            "--producer",
            "All operations that a producer to --topic, with --transactional-id, needs.",
        ),
    ):
        command = click.option(option, is_flag=True, help=text)(command)
    return command


principals_option = click.option(
    "--principal",
    "principals",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_principals,
    help="Principal, as User:NAME or NAME; '*' means every user. Can be given several times.",
)
prefixed_option = click.option(
    "--prefixed", is_flag=True, help="Treat the resource names as prefixes."
)


@click.group(cls=CommandGroup)
def acl() -> None:
    """Show, add and remove ACLs, and explain which ACL decides.

    The name '*' means all resources of a type.
    """


def filter_options(command: Command) -> Command:
    """Add the options that select ACLs to a command."""
    command = click.option(
        "--allow/--deny", "allow", default=None, help="Select only ACLs that allow, or that deny."
    )(command)
    command = click.option(
        "--host", metavar="ADDRESS", help="Select only ACLs for this client address or network."
    )(command)
    return principals_option(operation_and_resource_options(prefixed_option(command)))


def _filters(
    arguments: AclArguments,
    prefixed: bool,
    host: str | None,
    allow: bool | None,
    pattern: PatternType,
) -> list[AclFilter]:
    """Return a filter for each combination of the options.

    `pattern` is the pattern type of names, unless --prefixed is given.
    """
    permission = {
        None: AclPermission.ANY,
        True: AclPermission.ALLOW,
        False: AclPermission.DENY,
    }[allow]
    any_resource = [Resource(AclResourceType.ANY, "")]
    if prefixed:
        pattern = PatternType.PREFIXED
    return [
        AclFilter(
            resource.type,
            resource.name or None,
            pattern if resource.name or prefixed else PatternType.ANY,
            principal,
            host,
            operation,
            permission,
        )
        for resource, principal, operation in itertools.product(
            arguments.resources or any_resource,
            arguments.principals or [None],
            arguments.operations or [AclOperation.ANY],
        )
    ]


def _table(rows: list[dict[str, str]], *, wide: bool) -> list[str]:
    return table([Column(each) for each in LISTED], rows, wide=wide)


@acl.command("list")
@filter_options
@regex_option
@format_options
@target_options
def list_(
    target: Target,
    arguments: AclArguments,
    prefixed: bool,
    host: str | None,
    allow: bool | None,
    regex: bool,
    output: str,
) -> None:
    """Show all ACLs, or those that match all options.

    A resource name selects all ACLs that apply to it, including prefixes and '*'. With --prefixed
    it selects only the ACLs of exactly this prefix. Names of resources and principals may be
    patterns such as 'order*', which select the ACLs with a matching name.
    """
    wanted = _filters(arguments, prefixed, host, allow, PatternType.MATCH)
    found = run(target, lambda cluster: selected_acls(cluster, wanted, regex=regex))
    rows = [acl_row(each) for each in found]
    show(output, rows, lambda wide: _table(rows, wide=wide))


@acl.command()
@principals_option
@operation_and_resource_options
@client_role_options
@prefixed_option
@click.option(
    "--host",
    default=WILDCARD,
    metavar="ADDRESS",
    help="Apply the ACL only to clients from this address or network, such as 10.1.0.0/16.",
)
@click.option("--deny", is_flag=True, help="Add DENY ACLs, which take precedence over ALLOW ACLs.")
@target_options
def add(
    target: Target,
    arguments: AclArguments,
    producer: bool,
    consumer: bool,
    idempotent: bool,
    prefixed: bool,
    host: str,
    deny: bool,
) -> None:
    """Allow, or deny, --principal an --operation on --topic, --group, ...

    Existing ACLs stay unchanged.
    """
    from kbroker.client.acls import add_acls

    if not arguments.principals:
        raise click.UsageError("no principal; add --principal NAME")
    shortcuts = _shortcuts(producer, consumer, arguments, PRODUCER, CONSUMER)
    given = list(_requested_permissions(arguments, shortcuts, idempotent))
    new = [
        Acl(
            Pattern(
                permission.resource.type,
                PatternType.PREFIXED
                if prefixed and permission.resource != CLUSTER
                else PatternType.LITERAL,
                permission.resource.name,
            ),
            principal,
            host,
            permission.operation,
            AclPermission.DENY if deny else AclPermission.ALLOW,
        )
        for principal in arguments.principals
        for permission in given
    ]
    run(target, lambda cluster: add_acls(cluster, new))
    say(*new)
    for note in run(target, lambda cluster: _unknown_users(cluster, arguments.principals)):
        say(note, err=True)


async def _unknown_users(cluster: ClusterClient, principals: Iterable[str]) -> list[str]:
    """Return a note for each principal that resembles a SCRAM user but is none.

    A principal may also be a user of the settings or of a certificate, so that others are no mistake.
    """
    from kbroker.client.cluster import did_you_mean
    from kbroker.client.scram_users import describe_scram_users
    from kbroker.protocol.errors import KafkaError

    try:
        known = {each.name for each in await describe_scram_users(cluster, [])}
    except KafkaError:
        return []  # the caller may not list users
    names = [each.partition(":")[2] for each in principals]
    found = [(each, did_you_mean(each, known)) for each in names if each not in known]
    return [
        f"note: no SCRAM user {name!r} exists{hint}" for name, hint in found if hint.endswith("?")
    ]


def _shortcuts(
    producer: bool,
    consumer: bool,
    arguments: AclArguments,
    producing: Operations,
    consuming: Operations,
) -> list[Operations]:
    """Return the operations for --producer and --consumer.

    Raises:
        UsageError: A topic or group is missing.
    """
    kinds = {each.type for each in arguments.resources}
    if producer and TOPIC not in kinds:
        raise click.UsageError("--producer needs --topic NAME")
    if consumer and not {TOPIC, GROUP} <= kinds:
        raise click.UsageError("--consumer needs --topic NAME and --group NAME")
    return [*([producing] if producer else []), *([consuming] if consumer else [])]


def _requested_permissions(
    arguments: AclArguments, shortcuts: list[Operations], idempotent: bool
) -> list[Permission]:
    """Return the requested operations on resources, without duplicates.

    Raises:
        UsageError: Options are missing, or the operation does not exist for the resource type.
    """
    if not shortcuts and not (arguments.operations and arguments.resources):
        raise click.UsageError(
            "no operation; give --operation NAME with a resource (--topic, --group, --cluster, "
            "...), or --producer or --consumer"
        )
    found = [
        permission
        for each in shortcuts
        for permission in required_permissions(each, arguments.resources)
    ]
    if idempotent:
        found.append(IDEMPOTENCE)
    for operation, resource in itertools.product(arguments.operations, arguments.resources):
        valid = VALID_OPERATIONS[resource.type]
        if operation not in (*valid, AclOperation.ALL):
            raise click.UsageError(
                f"invalid operation {cli_name(operation)} on a {cli_name(resource.type)} (valid: "
                f"{', '.join(sorted(map(cli_name, valid)))}, all)"
            )
        found.append(Permission(operation, resource))
    return list(dict.fromkeys(found))


@acl.command()
@filter_options
@destructive
@target_options
def remove(
    target: Target,
    arguments: AclArguments,
    prefixed: bool,
    host: str | None,
    allow: bool | None,
    change: Change,
) -> None:
    """Remove the ACLs that match all options, and print them.

    Names are matched literally: --topic orders does not remove ACLs of a prefix or of '*'.
    """
    from kbroker.client.acls import describe_acls, exact_filter, remove_acls

    if arguments == AclArguments((), (), ()) and host is None and allow is None and not prefixed:
        raise click.UsageError(
            "give at least one filter, such as --principal or --topic (run the command twice for "
            "--allow and --deny)"
        )
    wanted = _filters(arguments, prefixed, host, allow, PatternType.LITERAL)
    found = run(target, lambda cluster: describe_acls(cluster, wanted))
    preview = Preview(
        f"Remove {count_of(len(found), 'ACL')}?",
        [acl_row(each) for each in found],
        [str(each) for each in found],
        is_harmless=not found,
    )
    if not change.confirm(preview):
        return
    # Not by the options: they may also select ACLs that were added after the preview.
    shown = [*map(exact_filter, found)]
    removed = run(target, lambda cluster: remove_acls(cluster, shown)) if shown else []
    rows = [acl_row(each) for each in removed]
    change.report(rows, lambda wide: _table(rows, wide=wide))


@acl.command()
@principals_option
@operation_and_resource_options
@client_role_options
@click.option(
    "--host", metavar="ADDRESS", help="Client address.  [default: an address that no ACL names]"
)
@format_options
@target_options
def explain(
    target: Target,
    arguments: AclArguments,
    producer: bool,
    consumer: bool,
    idempotent: bool,
    host: str | None,
    output: str,
) -> None:
    """Explain whether --principal may perform an operation, which rule decides, and what allows it.

    The operation is an --operation on a --topic, --group, ..., or all operations of --producer or
    --consumer. If it is denied, the output has the commands that allow it.
    """
    from kbroker.client.acls import deciding_acls

    if len(arguments.principals) != 1 or arguments.principals == (f"{USER}:{WILDCARD}",):
        raise click.UsageError("give exactly one --principal NAME other than '*'")
    shortcuts = _shortcuts(producer, consumer, arguments, PRODUCING, CONSUMING)
    needed = _requested_permissions(arguments, shortcuts, idempotent)
    if any(permission.operation == AclOperation.ALL for permission in needed):
        raise click.UsageError(
            "'all' is not an operation of a request; give a specific --operation"
        )
    kind, _, name = arguments.principals[0].partition(":")
    client = Client(Principal(kind, name), host or WILDCARD)
    acls, rules = run(target, lambda cluster: deciding_acls(cluster, needed))
    checks = [check_permission(acls, rules.rules, client, permission) for permission in needed]
    notes = list(_remarks(acls, rules, checks, host))
    value = [each.row() for each in checks]
    show(output, value, lambda _: [*_decision_lines(checks), *notes])


def _decision_lines(checks: list[PermissionCheck]) -> Iterator[str]:
    for each in checks:
        yield f"{'allowed' if each.allowed else 'denied'}: {each.permission}: {each.rule}"
        yield from (f"    {change.command}" for change in each.changes)


def _remarks(
    acls: Acls, rules: DescribedRules, checks: list[PermissionCheck], host: str | None
) -> Iterator[str]:
    """Yield remarks about settings and hosts that the decisions do not consider."""
    if rules.hidden_settings and not all(each.allowed for each in checks):
        yield f"The broker does not expose its {' and '.join(rules.hidden_settings)}, which may allow more."
    client = checks[0].client
    hosts = {
        each.host
        for permission in (one.permission for one in checks)
        for each in acls.matching(permission.resource)
        if each.host != WILDCARD
        and each.covers(str(client.principal), each.host, permission.operation)
    }
    if host is None and hosts:
        yield f"Other ACLs apply to --host {', '.join(sorted(hosts))}."
