"""The `kbroker security` command: SCRAM users, delegation tokens and ACLs of any Kafka."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, NamedTuple

import click

from .completion import complete_users
from .confirmation import Change, Preview, destructive, question_about
from .lazy import CommandGroup
from .output import Column, format_options, reported_changes, say, show, table
from .patterns import Names, regex_option, user_names
from .security_acl import acl
from .security_token import token
from .target import Target, run, target_options

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.scram_users import ScramUser

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


SECTIONS = {
    "Authentication": ("user", "token"),
    "Authorization": ("acl",),
}


@click.group(cls=CommandGroup, sections=SECTIONS)
def security() -> None:
    """Manage users, delegation tokens and ACLs."""


security.add_command(token)
security.add_command(acl)


@security.group()
def user() -> None:
    """Show, create and delete users that authenticate by SCRAM."""


@user.command("list")
@click.argument("names", nargs=-1, shell_complete=complete_users)
@regex_option
@format_options
@target_options
def list_(target: Target, names: tuple[str, ...], regex: bool, output: str) -> None:
    """Show users NAMES, or all, with their SCRAM mechanisms and iteration counts.

    NAMES may be patterns such as 'app-*'. Users in the settings of a broker's listener are not listed.
    """
    from kbroker.client.scram_users import describe_scram_users

    async def work(cluster: ClusterClient) -> list[ScramUser]:
        chosen = await user_names(cluster, Names(names, regex))
        return await describe_scram_users(cluster, chosen)

    found = run(target, work)
    rows = [{"user": each.name, "iterations": each.iterations} for each in found]
    columns = [Column("user"), Column("iterations")]

    def text(wide: bool) -> list[str]:
        say("users in the settings of a listener are not listed", err=True)
        return table(columns, rows, wide=wide)

    show(output, rows, text)


@user.command()
@click.argument("name")
@click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(MECHANISMS, case_sensitive=False),
    help="SCRAM mechanism to enable for the user; can be given several times.  [default: those of "
    "the brokers' listeners]",
)
@click.option(
    "--iterations",
    type=click.IntRange(4096, 16384),
    default=4096,
    show_default=True,
    help="Number of hash iterations for the password.",
)
@click.option(
    "--password-file",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="Read the password from FILE instead of prompting for it; - means standard input.",
)
@target_options
def add(
    target: Target,
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    password_file: IO[str] | None,
) -> None:
    """Create user NAME, or change the password, for the SCRAM mechanisms of the brokers' listeners.

    Brokers receive a hash of the password, never the password itself. Anyone who reads the hash on
    the network can authenticate with it, so use a listener with TLS.
    """
    from kbroker.client.errors import NoSuchUser
    from kbroker.client.scram_users import (
        describe_scram_users,
        served_scram_mechanisms,
        set_scram_password,
    )
    from kbroker.security.scram import ScramMechanism

    password = _password(password_file)

    async def work(cluster: ClusterClient) -> _EnabledMechanisms:
        served = await served_scram_mechanisms(cluster)
        requested = [ScramMechanism(each) for each in dict.fromkeys(mechanisms)]
        enabled = requested or list(served or ()) or [ScramMechanism.SHA_256]
        try:
            (earlier,) = await describe_scram_users(cluster, [name])
            replaced = [each for each in enabled if each in earlier.iterations]
        except NoSuchUser:
            replaced = []
        with reported_changes([*map(str, enabled)]) as changed:
            for each in enabled:
                await set_scram_password(cluster, name, password, each, iterations)
                changed.append(str(each))
        usable = enabled if served is None else [each for each in enabled if each in served]
        return _EnabledMechanisms(enabled, usable, replaced)

    enabled = run(target, work)
    if enabled.usable:
        say(f"user {name} can authenticate with {', '.join(enabled.usable)}")
    unusable = [each for each in enabled.mechanisms if each not in enabled.usable]
    if unusable:
        names = ", ".join(unusable)
        say(
            f"user {name} has a password for {names}, but no listener of the brokers enables "
            f"{names}; add it to sasl.enabled.mechanisms of a SASL_SSL or SASL_PLAINTEXT listener"
        )
    if enabled.replaced:
        names = ", ".join(enabled.replaced)
        say(f"the password for {names} was replaced; existing connections stay authenticated")


class _EnabledMechanisms(NamedTuple):
    """The mechanisms for which a user has a password.

    Attributes:
        usable: The mechanisms that a listener enables.
        replaced: The mechanisms for which the user had a password before.
    """

    mechanisms: Sequence[str]
    usable: Sequence[str]
    replaced: Sequence[str]


def _password(file: IO[str] | None) -> str:
    """Return the password from a file, standard input, or a prompt on the terminal."""
    if file is None and sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))
    password = (file or sys.stdin).read().removesuffix("\n").removesuffix("\r")
    if not password or "\n" in password:
        raise click.UsageError("the password must be exactly one non-empty line")
    return password


@user.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_users)
@regex_option
@click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(MECHANISMS, case_sensitive=False),
    help="SCRAM mechanism to disable; can be given several times.  [default: all]",
)
@destructive
@target_options
def remove(
    target: Target,
    names: tuple[str, ...],
    regex: bool,
    mechanisms: tuple[str, ...],
    change: Change,
) -> None:
    """Delete users NAMES. Open connections of a user stay authenticated until they are closed.

    NAMES may be patterns such as 'app-*'.
    """
    from kbroker.client.errors import NoSuchUser
    from kbroker.client.scram_users import describe_scram_users, remove_scram_password
    from kbroker.security.scram import ScramMechanism

    async def find(cluster: ClusterClient) -> list[tuple[str, ScramMechanism]]:
        chosen = await user_names(cluster, Names(names, regex))
        pairs = []
        for each in await describe_scram_users(cluster, chosen):
            for mechanism in map(ScramMechanism, mechanisms or each.iterations):
                if mechanism not in each.iterations:
                    raise NoSuchUser(each.name)
                pairs.append((each.name, mechanism))
        return pairs

    async def work(cluster: ClusterClient) -> None:
        with reported_changes([f"{name} ({each})" for name, each in found]) as removed:
            for name, each in found:
                await remove_scram_password(cluster, name, each)
                removed.append(f"{name} ({each})")

    found = run(target, find)
    rows = [{"user": name, "mechanism": str(mechanism)} for name, mechanism in found]
    users = list(dict.fromkeys(name for name, _ in found))
    lines = [
        f"user {user}: remove {', '.join(str(each) for name, each in found if name == user)}"
        for user in users
    ]
    question = question_about("Remove", users, "user")
    if not change.confirm(Preview(question, rows, lines)):
        return
    run(target, work)
    done = [f"user {name} can no longer authenticate with {each}" for name, each in found]
    change.report(rows, lambda _: done)
