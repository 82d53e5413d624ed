"""Tools for the cluster: brokers, problems, transactions, and configurations of all resources."""

from __future__ import annotations

from typing import Final

from kbroker.client.cluster_details import ERROR, cluster_details, cluster_problems
from kbroker.client.configs import Operation, Resource, alter_configs, describe_configs
from kbroker.client.transaction_problems import long_transaction_problems
from kbroker.client.transactions import STATES, list_transactions
from kbroker.config import Scope, numbers_with_units

from .parameters import (
    Arguments,
    BadArguments,
    choice,
    choices,
    flag,
    now_ms,
    pairs,
    text,
    texts,
)
from .results import Result, page, page_parameters
from .tool import PREVIEW, Effect, Session, Tool

RESOURCES = {"topic": Resource.TOPIC, "broker": Resource.BROKER, "group": Resource.GROUP}
SCOPES = {
    Resource.TOPIC: Scope.TOPIC,
    Resource.BROKER: Scope.BROKER,
    Resource.GROUP: Scope.GROUP,
}
RESOURCE = {
    "resource_type": choice("Type of the resource.", list(RESOURCES), default="topic"),
    "name": text("Name of the topic or group, or ID of the broker.", required=True),
}


async def describe_cluster(session: Session, _: Arguments) -> Result:
    """Return the cluster ID, the brokers, and numbers of topics and partitions."""
    return Result(await cluster_details(session.cluster))


async def check_health(session: Session, arguments: Arguments) -> Result:
    """Return the problems of brokers, disks, partitions and transactions."""
    problems = await cluster_problems(session.cluster)
    problems += await long_transaction_problems(session.cluster, now_ms())
    found = page(problems, arguments)
    healthy = all(each["severity"] != ERROR for each in problems)
    return Result({"healthy": healthy, **found.facts}, {"problems": found.rows})


async def show_transactions(session: Session, arguments: Arguments) -> Result:
    """Return the transactional IDs of the cluster."""
    found = await list_transactions(session.cluster, states=arguments.texts("states"))
    rows = page((each.row() for each in found), arguments)
    return Result(rows.facts, {"transactions": rows.rows})


def _resource(arguments: Arguments) -> tuple[Resource, str]:
    """Return the resource that the arguments name.

    Raises:
        BadArguments: The name is not a broker ID.
    """
    kind, name = RESOURCES[arguments.text("resource_type")], arguments.text("name")
    if kind == Resource.BROKER and not (name.isascii() and name.isdigit()):
        raise BadArguments(f"name: {name!r} is not a broker ID; call describe_cluster for the IDs")
    return kind, name


async def show_configs(session: Session, arguments: Arguments) -> Result:
    """Return the configurations of a resource."""
    kind, name = _resource(arguments)
    if kind == Resource.TOPIC:
        await session.cluster.topics([name])
    settings = (await describe_configs(session.cluster, kind, [name]))[name]
    rows = (
        {
            "name": each.name,
            "value": None if each.sensitive else each.value,
            "is_overridden": each.is_own,
            "read_only": each.read_only,
            "sensitive": each.sensitive,
        }
        for each in sorted(settings)
        if each.is_own or not arguments.flag("only_overridden")
    )
    found = page(rows, arguments)
    return Result(found.facts, {"configs": found.rows})


async def change_configs(session: Session, arguments: Arguments) -> Result:
    """Set and reset configurations of a resource."""
    kind, name = _resource(arguments)
    scope = SCOPES[kind]
    values = arguments.settings("set", scope)
    changes: dict[str, tuple[Operation, str | None]] = {
        key: (Operation.SET, value) for key, value in values.items()
    }
    for key in arguments.texts("reset"):
        if key in changes:
            raise BadArguments(f"{key!r} is in both `set` and `reset`; remove it from one of them")
        changes[key] = Operation.DELETE, None
    if not changes:
        raise BadArguments("no change; give `set` or `reset`")
    if kind == Resource.TOPIC:
        await session.cluster.topics([name])
    dry_run = arguments.flag("dry_run")
    await alter_configs(session.cluster, kind, name, changes, validate_only=dry_run)
    shown = numbers_with_units(scope, values)
    return Result({"valid": True, "applied": not dry_run, **({"numbers": shown} if shown else {})})


TOOLS: Final = (
    Tool(
        "describe_cluster",
        "Describe the cluster",
        "Return the cluster ID, the brokers with addresses, racks and states, and the numbers of topics and "
        "partitions.",
        Effect.READ,
        describe_cluster,
    ),
    Tool(
        "check_health",
        "Check the health of the cluster",
        "Return problems: brokers that are down or unreachable, full disks, partitions that are offline or "
        "under-replicated, and transactions that are open for a minute, each with the next action. A cluster "
        "with warnings only is healthy.",
        Effect.READ,
        check_health,
        page_parameters(),
    ),
    Tool(
        "list_transactions",
        "List transactions",
        "Return transactional IDs with producer ID and state.",
        Effect.READ,
        show_transactions,
        {"states": choices("Only these states.", STATES), **page_parameters()},
    ),
    Tool(
        "describe_configs",
        "Describe configurations",
        "Return the configurations of a topic, broker or group. Values of sensitive ones are null.",
        Effect.READ,
        show_configs,
        {
            **RESOURCE,
            "only_overridden": flag("Only values that are set on the resource.", default=True),
            **page_parameters(),
        },
    ),
    Tool(
        "alter_configs",
        "Change configurations",
        "Set or reset configurations of a topic, broker or group. All others stay unchanged. A "
        "shorter retention deletes records.",
        Effect.DESTRUCTIVE,
        change_configs,
        {
            **RESOURCE,
            "set": pairs(
                "New value by name, such as {'retention.ms': '7d', 'segment.bytes': '1GiB'}; a number "
                "without unit is in the unit of the configuration."
            ),
            "reset": texts("Names to reset to their defaults."),
            "dry_run": PREVIEW,
        },
        idempotent=True,
    ),
)
