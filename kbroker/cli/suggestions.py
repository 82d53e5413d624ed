"""Suggestions for unknown commands: the command that the words probably mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

import click

from .command_context import words_of

# Commands of other Kafka tools and consoles, and the command that does the same.
EQUIVALENTS: Final = MappingProxyType(
    {
        "acls": "security acl",
        "broker": "cluster info",
        "brokers": "cluster info",
        "client": "explain client",
        "cluster brokers": "cluster info",
        "cluster describe": "cluster info",
        "cluster maintenance": "cluster drain",
        "cluster elect": "cluster rebalance",
        "cluster elect-leaders": "cluster rebalance",
        "cluster move": "topic move",
        "cluster reassign": "topic move",
        "cluster status": "cluster health",
        "consumer": "group",
        "consumer-group": "group",
        "consumer-groups": "group",
        "group alter": "group alter-config",
        "group delete-offsets": "group offset-delete",
        "group lag": "group describe",
        "group members": "group describe",
        "group offsets": "group describe",
        "group reset": "group seek",
        "group reset-offsets": "group seek",
        "maintenance": "cluster drain",
        "schema": "registry",
        "start": "serve",
        "status": "cluster health",
        "topic add-partition": "topic add-partitions",
        "topic alter": "topic alter-config",
        "topic cat": "topic consume",
        "topic clients": "cluster clients",
        "topic clone": "replay",
        "topic copy": "replay",
        "topic delete-records": "topic trim",
        "topic mirror": "replay",
        "topic producers": "cluster clients",
        "topic purge": "topic trim",
        "topic read": "topic consume",
        "topic reassign": "topic move",
        "topic tail": "topic consume",
        "topic trim-prefix": "topic trim",
        "topic truncate": "topic trim",
        "topic write": "topic produce",
        "transactions": "cluster txn",
    }
)
# Names of actions in other tools; the first action of a group applies.
_ACTIONS: Final = MappingProxyType(
    {
        "get": ("describe", "show", "list"),
        "info": ("describe", "show"),
        "ls": ("list",),
        "new": ("create", "add"),
        "remove": ("delete",),
        "rm": ("delete",),
        "show": ("describe", "list"),
    }
)
# Maximum number of commands to name.
_SHOWN_MAX = 3


def suggestion(context: click.Context, arguments: Sequence[str]) -> str:
    """Return the end of an error message: a question with the probable command, or nothing.

    Args:
        context: Context of the group that does not have the command.
        arguments: Arguments of the group; the first one is the unknown command.
    """
    found = _meant_commands(context, arguments)
    if not found:
        return ""
    return f"; did you mean {' or '.join(f'`kbroker {each}`' for each in found)}?"


def _meant_commands(context: click.Context, arguments: Sequence[str]) -> list[str]:
    path, word = words_of(context), arguments[0]
    for count in (2, 1):
        typed = " ".join([*path, *arguments[:count]])
        if typed in EQUIVALENTS:
            return [EQUIVALENTS[typed]]
    known = _commands(context.find_root())
    siblings = [each[-1] for each in known if list(each[:-1]) == path]
    for action in _ACTIONS.get(word, ()):
        if action in siblings:
            return [" ".join([*path, action])]
    if swapped := _swapped_words(arguments, known) if not path else None:
        return [swapped]
    same_name = [" ".join(each) for each in known if each[-1] == word]
    if 1 <= len(same_name) <= _SHOWN_MAX:
        return same_name
    if close := get_close_matches(word, siblings, n=1):
        return [" ".join([*path, *close])]
    if path == ["explain"]:  # such as `explain NAME` without the type of the object
        return [" ".join([*path, each, word]) for each in ("group", "client")]
    return []


def misplaced_option_text(
    context: click.Context, option: str, arguments: Sequence[str]
) -> str | None:
    """Return the error about an option before its command, or None if no command has it.

    Args:
        context: Context of the group that does not have the option.
        option: The unknown option.
        arguments: Arguments of the group.
    """
    path = words_of(context)
    found = [
        words
        for words, command in _below(context.command, context, tuple(path))
        if any(option in each.opts for each in command.params)
    ]
    if not found:
        return None
    example = next((words for words in found if words[-1] in arguments), found[0])
    return (
        f"No such option {option!r} of `{' '.join(['kbroker', *path])}`; give it after the "
        f"command, such as `kbroker {' '.join(example)} {option}`"
    )


def _swapped_words(arguments: Sequence[str], known: Sequence[tuple[str, ...]]) -> str | None:
    """Return the command of an action before its object, such as `create topic` or `list topics`."""
    if len(arguments) < 2:
        return None
    action, noun = arguments[0], arguments[1].removesuffix("s")
    for each in (action, *_ACTIONS.get(action, ())):
        if (noun, each) in known:
            return f"{noun} {each}"
    return None


def _commands(root: click.Context) -> list[tuple[str, ...]]:
    """Return the paths of all commands and groups."""
    return [path for path, _ in _below(root.command, root, ())]


def _below(
    command: click.Command, context: click.Context, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield the path and the command of everything below a group."""
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        if (child := command.get_command(context, name)) is not None:
            yield (*path, name), child
            yield from _below(child, context, (*path, name))
