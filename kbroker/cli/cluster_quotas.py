"""The `kbroker cluster quotas` command: client quotas of any Kafka cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import click

from kbroker.security.quotas import CLIENT_ID, IP, USER, QuotaKey, text_of
from kbroker.text.sizes import BYTES_PER_UNIT

from .confirmation import Change, Preview, destructive
from .lazy import CommandGroup
from .output import Column, format_options, say, show, table
from .target import Target, run, target_options
from .units import ParamType

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient

Command = TypeVar("Command", bound=Callable[..., object])

DEFAULT = "<default>"
KEYS = [each.value for each in QuotaKey]
# Quotas in bytes per second, whose values may have the unit of a size.
_BYTE_RATES = frozenset((QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE))
_WITH_UNIT = re.compile(r"([\d.]+) ?([A-Za-z]+)")


@click.group(cls=CommandGroup)
def quotas() -> None:
    """Show, set and remove client quotas."""


def entity_options(command: Command) -> Command:
    """Give a command `--user`, `--client-id` and `--ip`; it receives the three names."""
    for name, what in (
        (IP, "Apply to connections from this IP address"),
        (CLIENT_ID, "Apply to clients with this client ID"),
        (USER, "Apply to clients of this user"),
    ):
        command = click.option(
            f"--{name}",
            metavar="NAME",
            help=f"{what}; {DEFAULT} means all that have no quota of their own.",
        )(command)
    return command


def _entity(user: str | None, client_id: str | None, ip: str | None) -> dict[str, str | None]:
    given = {USER: user, CLIENT_ID: client_id, IP: ip}
    return {
        kind: None if name == DEFAULT else name for kind, name in given.items() if name is not None
    }


def _required_entity(
    user: str | None, client_id: str | None, ip: str | None
) -> dict[str, str | None]:
    """Return the entity in the options. Raises UsageError if no option is given."""
    entity = _entity(user, client_id, ip)
    if not entity:
        raise click.UsageError(
            "name the quota's entity: --user, --client-id, both of them, or --ip"
        )
    return entity


@quotas.command("list")
@entity_options
@format_options
@target_options
def list_(
    target: Target, user: str | None, client_id: str | None, ip: str | None, output: str
) -> None:
    """Show all quotas, or those whose entity includes the given names."""
    from kbroker.client.quotas import describe_quotas

    wanted = _entity(user, client_id, ip)
    found = run(target, lambda cluster: describe_quotas(cluster, wanted))
    rows = [each.row() for each in found]
    columns = [Column(name.replace("-", "_"), optional=True) for name in (USER, CLIENT_ID, IP)]
    columns.append(Column("quotas"))
    show(output, rows, lambda wide: table(columns, [*map(_padded_row, rows)], wide=wide))


def _padded_row(row: Mapping[str, object]) -> dict[str, object]:
    return {USER: None, "client_id": None, IP: None, **row}


class Quota(ParamType[tuple[str, float]]):
    """A quota value as KEY=NUMBER, with an optional unit such as MB for bytes per second."""

    name = "key=number"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        key, _, number = str(value).partition("=")
        if key not in KEYS:
            self.fail(f"unknown quota {key!r} (valid: {', '.join(KEYS)})", param, ctx)
        factor, example = 1, f"{key}=10"
        if key in _BYTE_RATES:
            example = f"{key}=1000000 or {key}=1MB"
            found = _WITH_UNIT.fullmatch(number)
            if found and found[2] in BYTES_PER_UNIT:
                number, factor = found[1], BYTES_PER_UNIT[found[2]]
        try:
            return key, float(number) * factor
        except ValueError:
            self.fail(f"{number!r} is not a number; write {example}", param, ctx)


@quotas.command("set")
@click.argument("values", nargs=-1, required=True, type=Quota(), metavar="KEY=NUMBER...")
@entity_options
@target_options
def set_(
    target: Target,
    values: tuple[tuple[str, float], ...],
    user: str | None,
    client_id: str | None,
    ip: str | None,
) -> None:
    """Set quotas. They take effect at once; other quotas of the same entity stay.

    \b
    producer_byte_rate        bytes per second, such as 1000000, 1MB or 1MiB
    consumer_byte_rate        bytes per second
    request_percentage        percentage of the time of one thread
    controller_mutation_rate  partitions created and deleted per second
    connection_creation_rate  connections per second, with --ip
    """
    from kbroker.client.quotas import number_of

    entity = _required_entity(user, client_id, ip)
    _alter(target, entity, dict(values))
    for key, value in values:
        say(f"{text_of(entity)}: {key} is {number_of(value)}")


@quotas.command()
@click.argument("keys", nargs=-1, type=click.Choice(KEYS), metavar="[KEY]...")
@entity_options
@destructive
@target_options
def remove(
    target: Target,
    keys: tuple[str, ...],
    user: str | None,
    client_id: str | None,
    ip: str | None,
    change: Change,
) -> None:
    """Remove the quotas KEY of exactly this entity, or all its quotas."""
    from kbroker.client.quotas import number_of

    entity = _required_entity(user, client_id, ip)
    values = _values_of(target, entity)
    removed = keys or tuple(values)
    name = text_of(entity)
    rows = [
        {"entity": name, "quota": key, "value": number_of(values[key]) if key in values else None}
        for key in removed
    ]
    lines = [
        f"{row['entity']}: remove {row['quota']} "
        + ("(not set)" if row["value"] is None else f"(now {row['value']})")
        for row in rows
    ]
    question = f"Remove these quotas of {name}?"
    is_harmless = not any(key in values for key in removed)
    if not change.confirm(Preview(question, rows, lines, is_harmless=is_harmless)):
        return
    _alter(target, entity, dict.fromkeys(removed))
    change.report(rows, lambda _: [f"{name}: removed {key}" for key in removed])


def _values_of(target: Target, entity: dict[str, str | None]) -> dict[str, float]:
    """Return the quotas of exactly this entity."""
    from kbroker.client.quotas import describe_quotas

    found = run(target, lambda cluster: describe_quotas(cluster, entity, strict=True))
    return {key: value for each in found for key, value in each.values.items()}


def _alter(
    target: Target, entity: dict[str, str | None], values: Mapping[str, float | None]
) -> None:
    from kbroker.client.quotas import alter_quotas

    async def work(cluster: ClusterClient) -> None:
        await alter_quotas(cluster, entity, values)

    if values:
        run(target, work)
