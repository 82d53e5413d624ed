"""Changes of topic settings by `kbroker topic alter-config`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from .topic_files import BadTopic, parse_configs

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.configs import Operation
    from kbroker.client.topic_details import Row
    from kbroker.config import Scope

Operations = Mapping[str, tuple["Operation", str | None]]


def config_changes(options: Mapping[str, tuple[str, ...]]) -> Operations:
    """Return the operation and the value by setting, from the options of the command.

    Args:
        options: The values of `sets`, `appends`, `subtracts` and `deletes`.

    Raises:
        UsageError: An option is invalid, or there is none.
    """
    from kbroker.client.configs import Operation

    operations: dict[str, tuple[Operation, str | None]] = {}
    try:
        for operation, option in (
            (Operation.SET, "sets"),
            (Operation.APPEND, "appends"),
            (Operation.SUBTRACT, "subtracts"),
        ):
            pairs = parse_configs(options[option])
            operations |= {key: (operation, value) for key, value in pairs.items()}
    except BadTopic as error:
        raise click.UsageError(str(error)) from None
    operations |= {key: (Operation.DELETE, None) for key in options["deletes"]}
    if not operations:
        raise click.UsageError(
            "no changes; give at least one of --set, --delete, --append and --subtract"
        )
    return operations


async def planned_changes(
    cluster: ClusterClient, names: Sequence[str], operations: Operations
) -> list[Row]:
    """Return a row for each topic and setting, with the value before the change. Raises KafkaError."""
    from kbroker.client.configs import Resource, describe_configs

    described = await describe_configs(cluster, Resource.TOPIC, names, keys=list(operations))
    rows: list[Row] = []
    for name in names:
        prior = {each.name: each.value for each in described[name]}
        rows += [
            {
                "topic": name,
                "setting": key,
                "operation": operation.name.lower(),
                "value": value,
                "prior_value": prior.get(key),
            }
            for key, (operation, value) in operations.items()
        ]
    return rows


def setting_lines(scope: Scope, values: Mapping[str, str]) -> list[str]:
    """Return a line for each time and size, such as "  retention.ms=172800000 (2d)"."""
    from kbroker.config import numbers_with_units

    return [f"  {name}={text}" for name, text in numbers_with_units(scope, values).items()]


def change_line(row: Row) -> str:
    """Return the line of a planned change, such as "topic a: set x=2 (now 1)"."""
    from kbroker.config import Scope, with_unit

    name = row["setting"]
    value, prior = (
        None if each is None else with_unit(Scope.TOPIC, name, each)
        for each in (row["value"], row["prior_value"])
    )
    change = name if value is None else f"{name}={value}"
    return f"topic {row['topic']}: {row['operation']} {change} (now {prior})"
