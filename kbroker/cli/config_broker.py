"""`kbroker config set`, `unset` and `show --node`: settings of running brokers of any Kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import click

from .confirmation import Change, Preview, destructive
from .output import Column, say, show, table
from .resource_settings import HIDDEN, SOURCES, setting_lines
from .setting_completion import complete_broker_setting_names, complete_broker_settings
from .target import Target, run, target_options

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.configs import Operation, Setting

Command = TypeVar("Command", bound=Callable[..., object])

# Resource name in Kafka's protocol for the cluster-wide default of all brokers.
ALL = ""


def broker_options(command: Command) -> Command:
    """Give a command `--node` and `--default`; it receives them as `node` and `default`."""
    command = click.option(
        "--default",
        is_flag=True,
        help="Use the cluster-wide default, which applies to all brokers without their own value.",
    )(command)
    return click.option(
        "--node",
        type=click.IntRange(0),
        metavar="ID",
        help="Use the settings of the broker with this node ID.",
    )(command)


def resource_name(node: int | None, default: bool) -> str:
    """Return Kafka's resource name for a broker, or for all brokers.

    Raises:
        UsageError: Both or none of the options are given.
    """
    if default == (node is not None):
        raise click.UsageError("give --node ID for one broker, or --default for all brokers")
    return ALL if node is None else str(node)


@click.command("set")
@click.argument(
    "pairs",
    nargs=-1,
    required=True,
    metavar="NAME=VALUE...",
    shell_complete=complete_broker_settings,
)
@broker_options
@click.option("--dry-run", is_flag=True, help="Only validate the settings; change nothing.")
@target_options
def set_(
    target: Target, pairs: tuple[str, ...], node: int | None, default: bool, dry_run: bool
) -> None:
    """Set dynamic settings of running brokers. They persist over restarts.

    Values may have units, such as log.retention.ms=7d or log.segment.bytes=1GiB.
    """
    from kbroker.client.configs import Operation
    from kbroker.config import Scope

    from .settings import parse_broker_settings

    values = parse_broker_settings(pairs, "NAME=VALUE")
    broker = resource_name(node, default)
    changes = {name: (Operation.SET, value) for name, value in values.items()}
    _alter(target, broker, changes, dry_run=dry_run)
    if dry_run:
        say(f"{_scope(broker)}: the settings are valid", *setting_lines(Scope.BROKER, values))
    else:
        say(f"{_scope(broker)}: changed")


@click.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_broker_setting_names)
@broker_options
@destructive
@target_options
def unset(
    target: Target, names: tuple[str, ...], node: int | None, default: bool, change: Change
) -> None:
    """Remove dynamic settings NAMES, so that the brokers use their static values or defaults."""
    from kbroker.client.configs import Operation

    broker = resource_name(node, default)
    changes = dict.fromkeys(names, (Operation.DELETE, None))
    known = run(target, lambda cluster: _checked_settings(cluster, broker, changes))
    source = SOURCES[2] if broker else SOURCES[3]
    rows = [
        {"scope": _scope(broker), "name": name, "value": _shown_value(known.get(name), source)}
        for name in names
    ]
    lines = [
        f"{row['scope']}: remove {row['name']} "
        + ("(not set)" if row["value"] is None else f"(now {row['value']})")
        for row in rows
    ]
    preview = Preview(
        f"Remove these settings of {_scope(broker)}?",
        rows,
        lines,
        is_harmless=all(row["value"] is None for row in rows),
    )
    if not change.confirm(preview):
        return
    _alter(target, broker, changes, dry_run=False)
    change.report(rows, lambda _: [f"{_scope(broker)}: changed"])


def _shown_value(setting: Setting | None, source: str) -> str | None:
    """Return the value of a setting from a source, or None if it has no value from there."""
    if setting is None or SOURCES.get(setting.source) != source:
        return None
    return HIDDEN if setting.sensitive else setting.value or ""


def _scope(broker: str) -> str:
    return f"broker {broker}" if broker else "all brokers"


async def _checked_settings(
    cluster: ClusterClient, broker: str, changes: Mapping[str, tuple[Operation, str | None]]
) -> dict[str, Setting]:
    """Return the dynamic settings of a broker, or those of all brokers.

    Raises:
        ClientError: A setting cannot be changed.
        KafkaError: The broker rejects a change.
    """
    from kbroker.client.configs import Resource, alter_configs

    await _check_changes(cluster, broker, changes)
    await alter_configs(cluster, Resource.BROKER, broker, changes, validate_only=True)
    return await _broker_settings(cluster, broker)


def _alter(
    target: Target,
    broker: str,
    changes: Mapping[str, tuple[Operation, str | None]],
    *,
    dry_run: bool,
) -> None:
    from kbroker.client.configs import Resource, alter_configs

    async def work(cluster: ClusterClient) -> None:
        await _check_changes(cluster, broker, changes)
        await alter_configs(cluster, Resource.BROKER, broker, changes, validate_only=dry_run)

    run(target, work)


async def _check_changes(
    cluster: ClusterClient, broker: str, changes: Mapping[str, tuple[Operation, str | None]]
) -> None:
    """Raise ClientError if a setting cannot be changed."""
    from kbroker.client.configs import check_changeable

    known = await _broker_settings(cluster, broker or await _any_broker(cluster))
    for name, (operation, _) in changes.items():
        check_changeable(name, known, operation)


async def _any_broker(cluster: ClusterClient) -> str:
    rows = (await cluster.metadata([])).brokers
    return str(min(row.node_id for row in rows))


async def _broker_settings(cluster: ClusterClient, broker: str) -> dict[str, Setting]:
    from kbroker.client.configs import Resource, describe_configs

    settings = (await describe_configs(cluster, Resource.BROKER, [broker]))[broker]
    return {each.name: each for each in settings}


def show_running(target: Target, broker: str, output: str, *, diff: bool) -> None:
    """Print the settings of a running broker, or the cluster-wide dynamic ones."""
    found = run(target, lambda cluster: _broker_settings(cluster, broker))
    rows = [
        {
            "name": each.name,
            "value": HIDDEN if each.sensitive else each.value,
            "source": SOURCES.get(each.source, str(each.source)),
            "read_only": each.read_only,
        }
        for each in sorted(found.values())
        if not diff or SOURCES.get(each.source) != "default"
    ]
    columns = (Column("name"), Column("value"), Column("source"), Column("read_only", wide=True))
    show(output, rows, lambda wide: table(columns, rows, wide=wide))
