"""Settings of topics and groups: `alter-config` and `describe --configs`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import click

from .confirmation import Change, Preview, question_about
from .output import Column, paragraphs, reported_changes, show, table
from .target import Target, run

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.configs import Operation, Setting
    from kbroker.client.topic_details import Row
    from kbroker.config import Scope

    from .setting_completion import Items

Command = TypeVar("Command", bound=Callable[..., object])
Complete: TypeAlias = Callable[[click.Context, click.Parameter, str], "Items"]
Operations: TypeAlias = Mapping[str, tuple["Operation", str | None]]
FindNames: TypeAlias = Callable[["ClusterClient"], Awaitable[Sequence[str]]]

# Names of the config sources of a broker's values (KIP-226).
SOURCES = {2: "this broker", 3: "all brokers", 4: "static", 5: "default"}
# Shown instead of the value of a setting that may be a secret.
HIDDEN = "(hidden)"


configs_option = click.option(
    "--configs",
    is_flag=True,
    help="Show only the settings: all, each with its default and source.",
)


def set_option(complete: Complete) -> Callable[[Command], Command]:
    """Return the option `--set`; the command receives `sets`."""
    return click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=complete,
        help="Set a setting; values may have units, such as 7d or 1GiB; can be given several times.",
    )


def delete_option(complete: Complete) -> Callable[[Command], Command]:
    """Return the option `--delete`; the command receives `deletes`."""
    return click.option(
        "--delete",
        "deletes",
        multiple=True,
        metavar="KEY",
        shell_complete=complete,
        help="Reset a setting to its default; can be given several times.",
    )


def alter_settings(
    target: Target,
    change: Change,
    scope: Scope,
    find: FindNames,
    options: Mapping[str, tuple[str, ...]],
) -> None:
    """Change settings of topics or groups, after a confirmation if settings are deleted.

    Args:
        target: The cluster to change.
        change: The options of the command for confirmation and output.
        scope: Kind of the resources: topics or groups.
        find: Returns the names of the resources.
        options: The values of `sets` and `deletes`, and of `appends` and `subtracts` if the
            command has these options.

    Raises:
        UsageError: An option is invalid, or there is none.
    """
    from kbroker.client.configs import Resource, alter_configs

    operations = _operations(scope, options)
    resource = Resource[scope.name]

    async def plan(cluster: ClusterClient) -> list[Row]:
        names = await find(cluster)
        rows = await _planned_changes(cluster, scope, names, operations)
        for name in names:
            await alter_configs(cluster, resource, name, operations, validate_only=True)
        return rows

    async def alter(cluster: ClusterClient) -> None:
        with reported_changes(names) as changed:
            for name in names:
                await alter_configs(cluster, resource, name, operations)
                changed.append(name)

    found = run(target, plan)
    names = list(dict.fromkeys(str(row[scope]) for row in found))
    preview = Preview(
        question_about("Change the settings of", names, scope),
        found,
        [_change_line(scope, row) for row in found],
        is_harmless=not options["deletes"],
    )
    if not change.confirm(preview):
        return
    run(target, alter)
    change.report(found, lambda _: [f"{name}: changed" for name in names])


def _operations(scope: Scope, options: Mapping[str, tuple[str, ...]]) -> Operations:
    """Return the operation and the value by setting. Raises UsageError."""
    from kbroker.client.configs import Operation
    from kbroker.config import plain_numbers
    from kbroker.text.pairs import parse_pairs

    operations: dict[str, tuple[Operation, str | None]] = {}
    with_value = {
        "sets": Operation.SET,
        "appends": Operation.APPEND,
        "subtracts": Operation.SUBTRACT,
    }
    for option, operation in with_value.items():
        try:
            pairs = parse_pairs(options.get(option, ()))
            values = plain_numbers(scope, {name: text.strip() for name, text in pairs.items()})
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        operations |= {name: (operation, value) for name, value in values.items()}
    operations |= {name: (Operation.DELETE, None) for name in options["deletes"]}
    if not operations:
        *others, last = (f"--{each.removesuffix('s')}" for each in options)
        raise click.UsageError(f"no changes; give at least one of {', '.join(others)} and {last}")
    return operations


async def _planned_changes(
    cluster: ClusterClient, scope: Scope, names: Sequence[str], operations: Operations
) -> list[Row]:
    """Return a row for each resource and setting, with the value before the change. Raises KafkaError."""
    from kbroker.client.configs import Resource, describe_configs

    keys = list(operations)
    described = await describe_configs(cluster, Resource[scope.name], names, keys=keys)
    rows: list[Row] = []
    for name in names:
        prior = {each.name: each.value for each in described[name]}
        rows += [
            {
                str(scope): name,
                "setting": key,
                "operation": operation.name.lower(),
                "value": value,
                "prior_value": prior.get(key),
            }
            for key, (operation, value) in operations.items()
        ]
    return rows


def _change_line(scope: Scope, row: Row) -> str:
    """Return the line of a planned change, such as "topic a: set x=2 (now 1)"."""
    from kbroker.config import with_unit

    name = row["setting"]
    value, prior = (
        None if each is None else with_unit(scope, name, each)
        for each in (row["value"], row["prior_value"])
    )
    change = name if value is None else f"{name}={value}"
    return f"{scope} {row[scope]}: {row['operation']} {change} (now {prior})"


def setting_lines(scope: Scope, values: Mapping[str, str]) -> list[str]:
    """Return a line for each time and size, such as "  retention.ms=172800000 (2d)"."""
    from kbroker.config import numbers_with_units

    return [f"  {name}={text}" for name, text in numbers_with_units(scope, values).items()]


def show_settings(target: Target, scope: Scope, find: FindNames, output: str) -> None:
    """Print all settings of topics or groups, with the source and the default of each value.

    Args:
        target: The cluster to query.
        scope: Kind of the resources: topics or groups.
        find: Returns the names of the resources.
        output: Output format, one of `Format`.
    """
    from kbroker.client.configs import Resource, describe_configs

    async def work(cluster: ClusterClient) -> dict[str, list[Setting]]:
        names = await find(cluster)
        return await describe_configs(cluster, Resource[scope.name], names, synonyms=True)

    rows = [
        {str(scope): name, **_setting_row(scope, each)}
        for name, settings in run(target, work).items()
        for each in sorted(settings)
    ]

    def text(wide: bool) -> list[str]:
        names = dict.fromkeys(row[scope] for row in rows)
        columns = [Column("setting"), Column("value"), Column("default"), Column("source")]
        return paragraphs(
            [
                f"{scope} {name}",
                *table(
                    columns,
                    (_text_row(scope, row) for row in rows if row[scope] == name),
                    wide=wide,
                ),
            ]
            for name in names
        )

    show(output, rows, text)


def _setting_row(scope: Scope, setting: Setting) -> Row:
    """Return a setting; `default` is the value that applies if the resource does not set its own."""
    others = setting.synonyms[1:] if setting.is_own else setting.synonyms
    default = others[0].value if others else None
    return {
        "setting": setting.name,
        "value": HIDDEN if setting.sensitive else setting.value,
        "default": HIDDEN if setting.sensitive else default,
        "source": str(scope)
        if setting.is_own
        else SOURCES.get(setting.source, str(setting.source)),
    }


def _text_row(scope: Scope, row: Row) -> Row:
    """Return a row whose times and sizes also have a unit."""
    from kbroker.config import with_unit

    values = {key: row[key] for key in ("value", "default")}
    return row | {
        key: text and with_unit(scope, row["setting"], text) for key, text in values.items()
    }
