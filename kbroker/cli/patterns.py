"""Names and patterns in the arguments of commands: topics, groups and users.

A name without special characters means itself. `*`, `?` and `[...]` make it a glob pattern, unless
an object of exactly this name exists. With `--regex`, each argument is a regular expression (RE2)
that matches the whole name.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient

_GLOB = re.compile(r"[*?\[]")
# Characters that patterns have, but names do not.
_SYNTAX = re.compile(r"[*?\[\]()|+^$\\{}]|\.(?=[*+?])")
# Similar names in the error of a pattern that matches nothing.
SUGGESTIONS_MAX = 3

regex_option = click.option(
    "-r",
    "--regex",
    is_flag=True,
    help="Treat names as regular expressions (RE2) that match whole names, not as glob patterns "
    "such as 'order*'.",
)


class Names(NamedTuple):
    """Names and patterns in the arguments of a command."""

    given: Sequence[str]
    regex: bool

    @property
    def has_patterns(self) -> bool:
        """True if the existing names decide which names are meant."""
        return self.regex or any(map(_GLOB.search, self.given))


class Kind(NamedTuple):
    """A kind of object that has names.

    Attributes:
        noun: Name of the kind, such as "topic".
        listing: Command that lists the objects.
    """

    noun: str
    listing: str


TOPIC = Kind("topic", "kbroker topic list")
GROUP = Kind("group", "kbroker group list")
USER = Kind("user", "kbroker security user list")


async def topic_names(
    cluster: ClusterClient, names: Names, *, internal: bool = False, may_miss: bool = False
) -> list[str]:
    """Return the topics that names and patterns select.

    Args:
        cluster: The cluster of the topics.
        names: Names and patterns.
        internal: Let patterns match internal topics. Their plain names always work.
        may_miss: Return nothing for a pattern without a match, instead of an error.

    Raises:
        ClientError: A pattern matches no topic.
        UsageError: A regular expression is invalid.
        KafkaError: A broker rejects the request.
    """

    async def existing() -> list[str]:
        return [
            row.name or ""
            for row in (await cluster.metadata()).topics
            if internal or not row.is_internal or row.name in names.given
        ]

    return await _select(names, existing, TOPIC, may_miss=may_miss)


async def group_names(cluster: ClusterClient, names: Names, *, may_miss: bool = False) -> list[str]:
    """Return the groups that names and patterns select; see `topic_names`."""
    from kbroker.client.groups import list_groups

    async def existing() -> list[str]:
        return [each.name for each in await list_groups(cluster)]

    return await _select(names, existing, GROUP, may_miss=may_miss)


async def user_names(cluster: ClusterClient, names: Names) -> list[str]:
    """Return the SCRAM users that names and patterns select; see `topic_names`."""
    from kbroker.client.scram_users import describe_scram_users

    async def existing() -> list[str]:
        return [each.name for each in await describe_scram_users(cluster)]

    return await _select(names, existing, USER)


async def _select(
    names: Names,
    existing: Callable[[], Awaitable[list[str]]],
    kind: Kind,
    *,
    may_miss: bool = False,
) -> list[str]:
    """Return the selected names without duplicates; query the existing names only for patterns."""
    if not names.has_patterns:
        return list(dict.fromkeys(names.given))
    return matching_names(names, sorted(await existing()), kind, may_miss=may_miss)


def matching_names(
    names: Names,
    existing: Sequence[str],
    kind: Kind,
    *,
    may_miss: bool = False,
    must_exist: bool = False,
) -> list[str]:
    """Return the names that are selected among existing ones, and plain names that do not exist.

    Args:
        names: Names and patterns.
        existing: All existing names.
        kind: Kind of the named objects, for errors.
        may_miss: Return nothing for a pattern without a match, instead of an error.
        must_exist: Treat a plain name that does not exist like a pattern without a match.

    Raises:
        ClientError: A pattern matches nothing.
        UsageError: A regular expression is invalid.
    """
    from kbroker.client.errors import ClientError

    chosen: dict[str, None] = {}
    for text in names.given:
        is_plain = not (must_exist or names.regex or _GLOB.search(text))
        if text in existing or is_plain:
            chosen[text] = None
            continue
        is_match = matcher(text, regex=names.regex)
        found = [name for name in existing if is_match(name)]
        if not found and not may_miss:
            raise ClientError(_no_match(text, existing, kind, regex=names.regex))
        chosen |= dict.fromkeys(found)
    return list(chosen)


def matcher(pattern: str, *, regex: bool) -> Callable[[str], bool]:
    """Return a function that returns True for the names that a pattern matches.

    Args:
        pattern: A glob pattern, or a regular expression.
        regex: True for a regular expression.

    Raises:
        UsageError: The regular expression is invalid.
    """
    if not regex:
        return lambda name: fnmatch.fnmatchcase(name, pattern)
    compiled = _compiled(pattern)
    return lambda name: compiled.fullmatch(name) is not None


def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern with RE2, in which no pattern needs exponential time."""
    try:
        import re2
    except ImportError:
        raise click.UsageError(
            "--regex needs the package 'google-re2'; run 'pip install google-re2'"
        ) from None
    options = re2.Options()
    options.log_errors = False
    try:
        compiled: re.Pattern[str] = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        message = reason.decode() if isinstance(reason, bytes) else reason
        raise click.UsageError(
            f"{pattern!r} is not a valid regular expression (RE2): {message}"
        ) from None
    return compiled


def _no_match(text: str, existing: Iterable[str], kind: Kind, *, regex: bool) -> str:
    import difflib

    stem = _SYNTAX.sub("", text)
    known = list(existing)
    close = difflib.get_close_matches(stem, known, n=SUGGESTIONS_MAX, cutoff=0.5)
    near = f"; similar names: {', '.join(map(repr, close))}" if close else ""
    if not regex and not _GLOB.search(text):
        problem = f"{kind.noun} {text!r} does not exist"
    else:
        what = "regular expression" if regex else "pattern"
        problem = f"{what} {text!r} matches no {kind.noun}"
    return f"{problem}{near}; list all with `{kind.listing}`"
