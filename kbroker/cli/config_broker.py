"""`kbroker config set`, `unset` and `show --node`: the settings of brokers that run, any Kafka's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import click

from .output import Column, say, show, table
from .target import Target, run, target_options

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.configs import Operation, Setting

Command = TypeVar("Command", bound=Callable[..., object])

ALL = ""
"""How Kafka names what all brokers have unless one has its own."""
SOURCES = {2: "this broker", 3: "all brokers", 4: "static", 5: "default"}
"""By KIP-226: set while it runs, for one broker or for all; given at its start; not set."""
HIDDEN = "(hidden)"


def broker_options(command: Command) -> Command:
    """Give a command `--node` and `--default`; it receives them as `node` and `default`."""
    command = click.option("--default", is_flag=True, help="Of all brokers that have no own one.")(
        command
    )
    return click.option("--node", type=click.IntRange(0), metavar="ID", help="Of this broker.")(
        command
    )


def named(node: int | None, default: bool) -> str:
    """Kafka's name of a broker, or of all. Raises UsageError for none and for both."""
    if default == (node is not None):
        raise click.UsageError("say whose settings: --node ID, or --default for all brokers")
    return ALL if node is None else str(node)


@click.command("set")
@click.argument("pairs", nargs=-1, required=True, metavar="NAME=VALUE...")
@broker_options
@click.option("--dry-run", is_flag=True, help="Only check.")
@target_options
def set_(
    target: Target, pairs: tuple[str, ...], node: int | None, default: bool, dry_run: bool
) -> None:
    """Set settings of brokers while they run. They stay set after a restart."""
    from kbroker.client.configs import Operation

    from .topic_files import BadTopic, parse_configs

    try:
        asked = {name: (Operation.SET, value) for name, value in parse_configs(pairs).items()}
    except BadTopic as error:
        raise click.UsageError(str(error)) from None
    _change(target, named(node, default), asked, dry_run=dry_run)


@click.command()
@click.argument("names", nargs=-1, required=True)
@broker_options
@click.option("--dry-run", is_flag=True, help="Only check.")
@target_options
def unset(
    target: Target, names: tuple[str, ...], node: int | None, default: bool, dry_run: bool
) -> None:
    """Take back what `config set` has set: settings NAMES are what the brokers were started with."""
    from kbroker.client.configs import Operation

    asked = dict.fromkeys(names, (Operation.DELETE, None))
    _change(target, named(node, default), asked, dry_run=dry_run)


def _change(
    target: Target, broker: str, asked: Mapping[str, tuple[Operation, str | None]], *, dry_run: bool
) -> None:
    from kbroker.client.configs import Resource, alter_configs

    async def work(cluster: ClusterClient) -> None:
        known = await _described(cluster, broker or await _any_broker(cluster))
        for name, (operation, _) in asked.items():
            _refuse(name, known, operation)
        await alter_configs(cluster, Resource.BROKER, broker, asked, validate_only=dry_run)

    run(target, work)
    whose = f"broker {broker}" if broker else "all brokers"
    say(f"{whose}: {'these settings can be used' if dry_run else 'changed'}")


def _refuse(name: str, known: dict[str, Setting], operation: Operation) -> None:
    """Raise ClientError for what no broker takes, and for a typing error that Kafka would keep."""
    from kbroker.client.cluster import did_you_mean
    from kbroker.client.configs import Operation as Operations
    from kbroker.client.errors import ClientError

    of_listener = name.startswith("listener.name.")  # Kafka shows them as read-only; they are not
    if name in known and known[name].read_only and not of_listener:
        raise ClientError(
            f"{name} is read-only: a broker takes it when it starts. Put it into the broker's "
            f"settings file or flags and restart it; `kbroker config explain {name}` says how"
        )
    if operation == Operations.SET and name not in known and not of_listener:
        raise ClientError(
            f"brokers have no setting {name!r}{did_you_mean(name, known)} `kbroker config show "
            "--node ID` shows all"
        )


async def _any_broker(cluster: ClusterClient) -> str:
    rows = (await cluster.metadata([])).brokers
    return str(min(row.node_id for row in rows))


async def _described(cluster: ClusterClient, broker: str) -> dict[str, Setting]:
    from kbroker.client.configs import Resource, describe_configs

    settings = (await describe_configs(cluster, Resource.BROKER, [broker]))[broker]
    return {each.name: each for each in settings}


def show_running(target: Target, broker: str, output: str, *, diff: bool) -> None:
    """Print the settings of a broker that runs, or those that `set --default` has set."""
    found = run(target, lambda cluster: _described(cluster, broker))
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
