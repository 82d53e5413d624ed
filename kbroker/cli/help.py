"""The `kbroker help` command: the help of commands, and texts about topics of several commands."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import NoReturn

import click

from .command_context import NARROW, CommandContext, words_of
from .help_topics import TOPICS
from .output import say
from .terminal import terminal_width

# A row of a table: its name and the gap before its text.
_ROW_START = re.compile(r" +\S+( \S+)*  +")
# Indentation of the second line of a row in a narrow terminal.
_INDENT = 6


def _complete_words(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the topics and the commands that continue the typed words."""
    words = list(context.params.get("words") or ())
    names = [] if words else list(TOPICS)
    try:
        command = _find(context.find_root(), words).command
    except click.UsageError:
        return []
    if isinstance(command, click.Group):
        names += command.list_commands(context)
    return [name for name in names if name.startswith(incomplete)]


@click.command("help")
@click.argument("words", nargs=-1, metavar="[TOPIC|COMMAND...]", shell_complete=_complete_words)
@click.pass_context
def help_(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, or a text about a topic, such as offsets.

    Without arguments, show all commands and topics.
    """
    if len(words) == 1 and words[0] in TOPICS:
        say(*_fit(TOPICS[words[0]].text.strip().split("\n"), terminal_width()))
        return
    found = _find(context.find_root(), list(words))
    text = found.get_help()
    context.color = found.color
    say(*text.split("\n"), keep="\x1b")
    if not words:
        width = max(map(len, TOPICS))
        say("", "Topics:")
        say(*(f"  {name:<{width}}  {topic.summary}" for name, topic in TOPICS.items()))


def _fit(lines: list[str], width: int | None) -> Iterator[str]:
    """Yield the lines of a text, wrapped at a width, if any; commands stay on one line."""
    for is_paragraph, group in groupby(lines, lambda line: line[:1].strip() != ""):
        block = list(group)
        if width is None or max(map(len, block)) <= width:
            yield from block
            continue
        for line in [" ".join(block)] if is_paragraph else block:
            if len(line) <= width or line.startswith("  kbroker "):
                yield line
                continue
            found = _ROW_START.match(line)
            indent = found.end() if found else 0
            if width < NARROW:
                indent = min(indent, _INDENT)
            yield from textwrap.wrap(
                line,
                width,
                subsequent_indent=" " * indent,
                break_long_words=False,
                break_on_hyphens=False,
            )


def _find(root: click.Context, words: list[str]) -> click.Context:
    """Return a context of the command with this path.

    Raises:
        UsageError: The command does not exist.
    """
    context: click.Context = CommandContext(root.command, info_name=root.info_name)
    context.help_option_names = root.help_option_names
    for word in words:
        group = context.command
        command = group.get_command(context, word) if isinstance(group, click.Group) else None
        if command is None:
            _fail_unknown(context, word)
        context = CommandContext(command, parent=context, info_name=word)
    return context


def _fail_unknown(context: click.Context, word: str) -> NoReturn:
    from difflib import get_close_matches

    group = context.command
    known = group.list_commands(context) if isinstance(group, click.Group) else []
    path = " ".join(words_of(context))
    if not path:
        known = [*known, *TOPICS]
    close = get_close_matches(word, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise click.UsageError(f"no help for {f'{path} {word}'.strip()!r}{hint}")
