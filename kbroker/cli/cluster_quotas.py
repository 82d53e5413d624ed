"""`kbroker cluster quotas`: how much clients may take of brokers, of any Kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import click

from kbroker.security.quotas import CLIENT_ID, IP, USER, QuotaKey, text_of

from .output import Column, format_options, say, show, table
from .target import Target, run, target_options
from .units import ParamType

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.quotas import ClientQuota

Command = TypeVar("Command", bound=Callable[..., object])

DEFAULT = "<default>"
KEYS = [each.value for each in QuotaKey]


@click.group()
def quotas() -> None:
    """Show, set and remove how much clients may take of each broker."""


def entity_options(command: Command) -> Command:
    """Give a command `--user`, `--client-id` and `--ip`; it receives the three names."""
    for name, what in (
        (IP, "Connections from this address"),
        (CLIENT_ID, "Clients of this id"),
        (USER, "Clients of this user"),
    ):
        command = click.option(
            f"--{name}",
            metavar="NAME",
            help=f"{what}; {DEFAULT} is who has no quota by name.",
        )(command)
    return command


def _entity(user: str | None, client_id: str | None, ip: str | None) -> dict[str, str | None]:
    given = {USER: user, CLIENT_ID: client_id, IP: ip}
    return {
        kind: None if name == DEFAULT else name for kind, name in given.items() if name is not None
    }


def _named(user: str | None, client_id: str | None, ip: str | None) -> dict[str, str | None]:
    """As `_entity`, of somebody."""
    entity = _entity(user, client_id, ip)
    if not entity:
        raise click.UsageError("say whose quota it is: --user, --client-id, both of them, or --ip")
    return entity


@quotas.command("list")
@entity_options
@format_options
@target_options
def list_(
    target: Target, user: str | None, client_id: str | None, ip: str | None, output: str
) -> None:
    """Show quotas: all of them, or those that are for these names, together with others or not."""
    from kbroker.client.quotas import describe_quotas

    wanted = _entity(user, client_id, ip)
    found = run(target, lambda cluster: describe_quotas(cluster, wanted))
    rows = [_row(each) for each in found]
    columns = [Column(name.replace("-", "_"), optional=True) for name in (USER, CLIENT_ID, IP)]
    columns.append(Column("quotas"))
    show(output, rows, lambda wide: table(columns, [*map(_line, rows)], wide=wide))


def _row(quota: ClientQuota) -> dict[str, object]:
    names = {
        kind.replace("-", "_"): DEFAULT if name is None else name
        for kind, name in quota.entity.items()
    }
    return {**names, "quotas": {key: _number(value) for key, value in quota.values.items()}}


def _line(row: Mapping[str, object]) -> dict[str, object]:
    return {USER: None, "client_id": None, IP: None, **row}


def _number(value: float) -> float | int:
    return int(value) if value.is_integer() else value


class Quota(ParamType[tuple[str, float]]):
    """KEY=NUMBER."""

    name = "key=number"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        key, _, number = str(value).partition("=")
        if key not in KEYS:
            self.fail(f"there is no quota {key}; there are {', '.join(KEYS)}", param, ctx)
        try:
            return key, float(number)
        except ValueError:
            self.fail(f"{number!r} is no number; write {key}=1000000", param, ctx)


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
    """Set quotas, which rule at once; others of the same clients stay.

    \b
    producer_byte_rate, consumer_byte_rate   bytes per second
    request_percentage                       of the time of one thread
    controller_mutation_rate                 partitions made and deleted per second
    connection_creation_rate                 per second, with --ip
    """
    entity = _named(user, client_id, ip)
    _alter(target, entity, dict(values))
    for key, value in values:
        say(f"{text_of(entity)}: {key} is {_number(value)}")


@quotas.command()
@click.argument("keys", nargs=-1, type=click.Choice(KEYS), metavar="[KEY]...")
@entity_options
@target_options
def remove(
    target: Target,
    keys: tuple[str, ...],
    user: str | None,
    client_id: str | None,
    ip: str | None,
) -> None:
    """Remove quotas of KEYs, or all that are for exactly these names."""
    entity = _named(user, client_id, ip)
    gone = keys or _keys_of(target, entity)
    _alter(target, entity, dict.fromkeys(gone))
    for key in gone:
        say(f"{text_of(entity)}: no {key} any more")


def _keys_of(target: Target, entity: dict[str, str | None]) -> tuple[str, ...]:
    from kbroker.client.quotas import describe_quotas

    found = run(target, lambda cluster: describe_quotas(cluster, entity, strict=True))
    return tuple(key for each in found for key in each.values)


def _alter(
    target: Target, entity: dict[str, str | None], values: Mapping[str, float | None]
) -> None:
    from kbroker.client.quotas import alter_quotas

    async def work(cluster: ClusterClient) -> None:
        await alter_quotas(cluster, entity, values)

    if values:
        run(target, work)
