"""`kbroker security token`: delegation tokens, at any Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kbroker.text.times import iso_time

from .completion import complete_tokens
from .output import Column, format_options, say, show, table
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
    """A principal as `User:alice`; without a type it is a user."""

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


@click.group()
def token() -> None:
    """Show, make, renew and end delegation tokens.

    Who has one logs in by SCRAM as its owner, for as long as it is good.
    """


@token.command("list")
@click.argument("owners", nargs=-1, type=PRINCIPAL)
@click.option("--hmac", is_flag=True, help="Show HMACs as well: who reads one can log in.")
@format_options
@target_options
def list_(target: Target, owners: tuple[Principal, ...], hmac: bool, output: str) -> None:
    """Show tokens that OWNERS, as User:alice, own or may renew, or all that one may see."""
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
    help="Who else may renew and end it; can be given several times.",
)
@click.option(
    "--owner", type=PRINCIPAL, metavar="USER", help="Whose it is, if not one's own (KIP-373)."
)
@click.option("--max-lifetime", type=DURATION, help="Its greatest age; brokers have one as well.")
@format_options
@target_options
def create(
    target: Target,
    renewers: tuple[Principal, ...],
    owner: Principal | None,
    max_lifetime: float | None,
    output: str,
) -> None:
    """Make a token.

    Its id is the username and its HMAC the password of a login module with tokenauth=true.
    """
    from kbroker.client.delegation_tokens import BROKER_DEFAULT, create_delegation_token

    lifetime_ms = BROKER_DEFAULT if max_lifetime is None else _ms(max_lifetime)

    async def work(cluster: ClusterClient) -> DelegationToken:
        return await create_delegation_token(
            cluster, renewers, owner=owner, lifetime_ms=lifetime_ms
        )

    _show(output, [run(target, work)], hmac=True)


@token.command()
@click.argument("token_id", metavar="TOKEN", shell_complete=complete_tokens)
@click.option("--for", "period", type=DURATION, help="How long from now on; brokers say at most.")
@target_options
def renew(target: Target, token_id: str, period: float | None) -> None:
    """Let TOKEN be good for longer. Its owner may, and those who were named when it was made."""
    from kbroker.client.delegation_tokens import (
        BROKER_DEFAULT,
        delegation_token,
        renew_delegation_token,
    )

    async def work(cluster: ClusterClient) -> int:
        known = await delegation_token(cluster, token_id)
        period_ms = BROKER_DEFAULT if period is None else _ms(period)
        return await renew_delegation_token(cluster, known.hmac, period_ms)

    say(f"token {token_id} is good until {iso_time(run(target, work))}")


@token.command()
@click.argument(
    "token_ids", metavar="TOKEN...", nargs=-1, required=True, shell_complete=complete_tokens
)
@target_options
def expire(target: Target, token_ids: tuple[str, ...]) -> None:
    """End each TOKEN now. Who has logged in by it stays so until that login is over."""
    from kbroker.client.delegation_tokens import delegation_token, expire_delegation_token

    async def work(cluster: ClusterClient) -> None:
        for each in token_ids:
            known = await delegation_token(cluster, each)
            await expire_delegation_token(cluster, known.hmac)
            say(f"nobody can log in by token {each} any more")

    run(target, work)


def _ms(seconds: float) -> int:
    """At least one: less has another meaning."""
    return max(int(seconds * 1000), 1)


def _show(output: str, tokens: list[DelegationToken], *, hmac: bool) -> None:
    rows = [_row(each, hmac=hmac) for each in tokens]
    columns = [each for each in COLUMNS if hmac or each.key != "hmac"]
    show(output, rows, lambda wide: table(columns, rows, wide=wide))


def _row(token: DelegationToken, *, hmac: bool) -> dict[str, object]:
    row: dict[str, object] = {"token": token.id}
    if hmac:
        row["hmac"] = token.password
    return row | {
        "owner": str(token.owner),
        "requester": str(token.requester),
        "renewers": [str(each) for each in token.renewers],
        "issued": iso_time(token.issued_ms),
        "expires": iso_time(token.expires_ms),
        "latest": iso_time(token.max_ms),
    }
