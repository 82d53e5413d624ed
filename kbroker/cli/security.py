"""`kbroker security`: who may log in by SCRAM, or by a delegation token, and who may do what, at any
Kafka."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, NamedTuple

import click

from .completion import complete_users
from .output import Column, format_options, say, show, table
from .security_acl import acl
from .security_token import token
from .target import Target, run, target_options

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


@click.group()
def security() -> None:
    """Show, make and remove users, delegation tokens and ACLs."""


security.add_command(token)
security.add_command(acl)


@security.group()
def user() -> None:
    """Show, make and remove users that log in by SCRAM."""


@user.command("list")
@click.argument("names", nargs=-1, shell_complete=complete_users)
@format_options
@target_options
def list_(target: Target, names: tuple[str, ...], output: str) -> None:
    """Show users NAMES, or all: by which mechanisms they log in, and how often passwords are hashed.

    Users that stand in the settings of a broker's listener are not among them.
    """
    from kbroker.client.scram_users import describe_scram_users

    found = run(target, lambda cluster: describe_scram_users(cluster, names))
    rows = [{"user": each.name, "iterations": each.iterations} for each in found]
    columns = [Column("user"), Column("iterations")]
    show(output, rows, lambda wide: table(columns, rows, wide=wide))


@user.command()
@click.argument("name")
@click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(MECHANISMS, case_sensitive=False),
    help="Let the user log in by this one; can be given several times.  [default: those of the "
    "brokers' listeners]",
)
@click.option(
    "--iterations",
    type=click.IntRange(4096, 16384),
    default=4096,
    show_default=True,
    help="How often the password is hashed.",
)
@click.option(
    "--password-file",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="Read the password from FILE, - for the standard input, instead of asking for it.",
)
@target_options
def add(
    target: Target,
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    password_file: IO[str] | None,
) -> None:
    """Make user NAME, or give it another password, for all SCRAM mechanisms that listeners take.

    Brokers receive a hash of the password, never the password. Anybody who reads the hash on the
    network can log in with it, so use a listener with TLS.
    """
    from kbroker.client.scram_users import served_scram_mechanisms, set_scram_password
    from kbroker.security.scram import ScramMechanism

    password = _password(password_file)

    async def work(cluster: ClusterClient) -> _Made:
        served = await served_scram_mechanisms(cluster)
        asked = [ScramMechanism(each) for each in dict.fromkeys(mechanisms)]
        made = asked or list(served or ()) or [ScramMechanism.SHA_256]
        for each in made:
            await set_scram_password(cluster, name, password, each, iterations)
        return _Made(made, made if served is None else [each for each in made if each in served])

    made = run(target, work)
    if made.usable:
        say(f"user {name} can log in by {', '.join(made.usable)}")
    useless = [each for each in made.mechanisms if each not in made.usable]
    if useless:
        names = ", ".join(useless)
        say(
            f"user {name} has a password for {names}, and cannot log in by that yet: no listener of the "
            f"brokers takes {names}; name it in sasl.enabled.mechanisms of one with SASL_SSL or "
            "SASL_PLAINTEXT"
        )


class _Made(NamedTuple):
    """The mechanisms that a user has a password for, and those that a listener takes."""

    mechanisms: Sequence[str]
    usable: Sequence[str]


def _password(file: IO[str] | None) -> str:
    """What a file or the standard input says in its one line, or else who sits at the terminal."""
    if file is None and sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))
    password = (file or sys.stdin).read().removesuffix("\n").removesuffix("\r")
    if not password or "\n" in password:
        raise click.UsageError("a password is one line that is not empty")
    return password


@user.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_users)
@click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(MECHANISMS, case_sensitive=False),
    help="Let them log in by this one no more; all that they have, if none is given.",
)
@target_options
def remove(target: Target, names: tuple[str, ...], mechanisms: tuple[str, ...]) -> None:
    """Remove users NAMES. Who has logged in stays so until its connection ends."""
    from kbroker.client.scram_users import describe_scram_users, remove_scram_password
    from kbroker.security.scram import ScramMechanism

    async def work(cluster: ClusterClient) -> None:
        for each in await describe_scram_users(cluster, names):
            for mechanism in map(ScramMechanism, mechanisms or each.iterations):
                await remove_scram_password(cluster, each.name, mechanism)
                say(f"user {each.name} can not log in by {mechanism} any more")

    run(target, work)
