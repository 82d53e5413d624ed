"""The `kbroker completion` command: shell scripts, and completion of names from the cluster."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import click

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient

# Returns all names of a kind.
Query: TypeAlias = "Callable[[ClusterClient], Awaitable[list[str]]]"
# Returns the names that start with the typed text, as click calls it.
Complete: TypeAlias = Callable[[click.Context, click.Parameter, str], list[str]]
SHELLS = ("bash", "zsh", "fish")
PROGRAM, VARIABLE = "kbroker", "_KBROKER_COMPLETE"
# Maximum time that a completion waits for the cluster, in seconds.
ANSWER_SECONDS = 1


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, names and settings in SHELL.

    For bash, add `eval "$(kbroker completion bash)"` to ~/.bashrc.
    """
    from click.shell_completion import get_completion_class

    from .shells import register_scripts

    register_scripts()

    cls = get_completion_class(shell)
    assert cls is not None
    click.echo(cls(context.find_root().command, {}, PROGRAM, VARIABLE).source())


def _completes(query: Query) -> Complete:
    """Make the names that a query returns the completion of an argument or option."""

    @functools.wraps(query)
    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        return _matching_names(context, query, incomplete)

    return complete


@_completes
async def complete_topics(cluster: ClusterClient) -> list[str]:
    """Return the topics."""
    return [row.name or "" for row in (await cluster.metadata()).topics if not row.is_internal]


@_completes
async def complete_groups(cluster: ClusterClient) -> list[str]:
    """Return the groups."""
    from kbroker.client.groups import list_groups

    return [group.name for group in await list_groups(cluster)]


@_completes
async def complete_users(cluster: ClusterClient) -> list[str]:
    """Return the users."""
    from kbroker.client.scram_users import describe_scram_users

    return [user.name for user in await describe_scram_users(cluster)]


def complete_principals(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the principals of users and of ACLs that start with the typed text."""

    async def names(cluster: ClusterClient) -> list[str]:
        from kbroker.client.acls import EVERY_ACL, describe_acls
        from kbroker.client.scram_users import describe_scram_users
        from kbroker.protocol.errors import KafkaError

        found = {f"User:{user.name}" for user in await describe_scram_users(cluster)}
        with contextlib.suppress(KafkaError):  # the cluster may have no authorizer
            found |= {each.principal for each in await describe_acls(cluster, [EVERY_ACL])}
        has_type = "User:".startswith(incomplete[: len("User:")])
        return list(found if has_type else {each.removeprefix("User:") for each in found})

    return _matching_names(context, names, incomplete)


@_completes
async def complete_tokens(cluster: ClusterClient) -> list[str]:
    """Return the IDs of the delegation tokens."""
    from kbroker.client.delegation_tokens import describe_delegation_tokens

    return [token.id for token in await describe_delegation_tokens(cluster)]


@_completes
async def complete_transactional_ids(cluster: ClusterClient) -> list[str]:
    """Return the transactional IDs."""
    from kbroker.client.transactions import list_transactions

    return [each.id for each in await list_transactions(cluster)]


def _matching_names(
    context: click.Context,
    query: Query,
    incomplete: str,
) -> list[str]:
    """Return matching names from the cluster; an empty list on timeouts and errors.

    Names that a shell would not read as one plain word are left out, because completion inserts
    them unquoted.
    """
    import trio

    from .target import given_of, resolve

    async def work() -> list[str]:
        target = resolve(given_of(context))
        with trio.move_on_after(ANSWER_SECONDS):
            async with target.connect() as cluster:
                return await query(cluster)
        return []

    try:
        return sorted(
            name
            for name in trio.run(work)
            if name.startswith(incomplete) and shlex.quote(name) == name
        )
    except Exception:
        if os.environ.get("KBROKER_COMPLETION_DEBUG"):
            raise
        return []
