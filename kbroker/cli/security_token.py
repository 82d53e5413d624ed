"""The `kbroker security token` command: delegation tokens of any Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kbroker.text.times import iso_time

from .completion import complete_tokens
from .confirmation import Change, Preview, destructive, question_about
from .lazy import CommandGroup
from .output import Column, format_options, reported_changes, say, show, table
from .target import Target, run, target_options
from .units import DURATION, ParamType

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.delegation_tokens import DelegationToken
    from kbroker.security.principals import Principal

COLUMNS = (
    Column("token"),
    Column("hmac"),
    Column("owner"),
    Column("requester", wide=True),
    Column("renewers", wide=True),
    Column("issued", wide=True),
    Column("expires"),
    Column("latest"),
)


class PrincipalType(ParamType["Principal"]):
    """A principal such as `User:alice`; without a type it is a user."""

    name = "principal"

    def convert(
        self, value: object, param: click.Parameter | None, context: click.Context | None
    ) -> Principal:
        from kbroker.security.principals import USER, Principal

        if isinstance(value, Principal):
            return value
        kind, colon, name = str(value).partition(":")
        return Principal(kind, name) if colon else Principal(USER, kind)


PRINCIPAL = PrincipalType()


@click.group(cls=CommandGroup)
def token() -> None:
    """Show, create, renew and expire delegation tokens.

    A client with a token authenticates by SCRAM as the token's owner while the token is valid.
    """


@token.command("list")
@click.argument("owners", nargs=-1, type=PRINCIPAL)
@click.option(
    "--hmac",
    is_flag=True,
    help="Also show HMACs. Anyone who knows an HMAC can authenticate with it.",
)
@format_options
@target_options
def list_(target: Target, owners: tuple[Principal, ...], hmac: bool, output: str) -> None:
    """Show the tokens that OWNERS, such as User:alice, own or may renew; by default all."""
    from kbroker.client.delegation_tokens import describe_delegation_tokens

    found = run(target, lambda cluster: describe_delegation_tokens(cluster, owners))
    _show(output, found, hmac=hmac)


@token.command()
@click.option(
    "--renewer",
    "renewers",
    multiple=True,
    type=PRINCIPAL,
    metavar="USER",
    help="User who may also renew and expire the token; can be given several times.",
)
@click.option(
    "--owner",
    type=PRINCIPAL,
    metavar="USER",
    help="Owner of the token (KIP-373).  [default: the user of this command]",
)
@click.option(
    "--max-lifetime",
    type=DURATION,
    help="Maximum lifetime of the token; brokers have a limit as well.",
)
@format_options
@target_options
def create(
    target: Target,
    renewers: tuple[Principal, ...],
    owner: Principal | None,
    max_lifetime: float | None,
    output: str,
) -> None:
    """Create a delegation token.

    Its ID is the username, and its HMAC the password, of a login module with tokenauth=true.
    """
    from kbroker.client.delegation_tokens import BROKER_DEFAULT, create_delegation_token

    lifetime_ms = BROKER_DEFAULT if max_lifetime is None else _to_ms(max_lifetime)

    async def work(cluster: ClusterClient) -> DelegationToken:
        return await create_delegation_token(
            cluster, renewers, owner=owner, lifetime_ms=lifetime_ms
        )

    _show(output, [run(target, work)], hmac=True)


@token.command()
@click.argument("token_id", metavar="TOKEN", shell_complete=complete_tokens)
@click.option(
    "--for",
    "period",
    type=DURATION,
    help="Extend the token by this duration from now; brokers have a limit.",
)
@target_options
def renew(target: Target, token_id: str, period: float | None) -> None:
    """Renew TOKEN. Its owner and its renewers may do that."""
    from kbroker.client.delegation_tokens import (
        BROKER_DEFAULT,
        delegation_token,
        renew_delegation_token,
    )

    async def work(cluster: ClusterClient) -> int:
        known = await delegation_token(cluster, token_id)
        period_ms = BROKER_DEFAULT if period is None else _to_ms(period)
        return await renew_delegation_token(cluster, known.hmac, period_ms)

    say(f"token {token_id} is valid until {iso_time(run(target, work))}")


@token.command()
@click.argument(
    "token_ids", metavar="TOKEN...", nargs=-1, required=True, shell_complete=complete_tokens
)
@destructive
@target_options
def expire(target: Target, token_ids: tuple[str, ...], change: Change) -> None:
    """Expire each TOKEN now. Connections that used a token stay authenticated until they close."""
    from kbroker.client.delegation_tokens import delegation_token, expire_delegation_token

    async def find(cluster: ClusterClient) -> list[DelegationToken]:
        return [await delegation_token(cluster, each) for each in dict.fromkeys(token_ids)]

    async def work(cluster: ClusterClient) -> None:
        with reported_changes(ids) as expired:
            for each in found:
                await expire_delegation_token(cluster, each.hmac)
                expired.append(each.id)

    found = run(target, find)
    ids = [each.id for each in found]
    rows = [each.row(with_hmac=False) for each in found]
    lines = [
        f"token {row['token']}: owner {row['owner']}, valid until {row['expires']}" for row in rows
    ]
    if not change.confirm(Preview(question_about("Expire", ids, "token", " now"), rows, lines)):
        return
    run(target, work)
    change.report(rows, lambda _: [f"expired token {each}" for each in ids])


def _to_ms(seconds: float) -> int:
    """Return milliseconds, at least 1: other values have a special meaning."""
    return max(int(seconds * 1000), 1)


def _show(output: str, tokens: list[DelegationToken], *, hmac: bool) -> None:
    rows = [each.row(with_hmac=hmac) for each in tokens]
    columns = [each for each in COLUMNS if hmac or each.key != "hmac"]
    show(output, rows, lambda wide: table(columns, rows, wide=wide))
