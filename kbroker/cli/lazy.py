"""Command groups: they suggest commands, and import a command only when it is called.

Late imports keep the start-up fast.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

import click

from .command_context import CommandContext, prepare


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection during imports.

    Imported modules are long-lived; collecting them takes a tenth of a server's start-up time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# Maximum length of a summary in the help of a group: a sentence.
SUMMARY_LENGTH_MAX = 200


class CommandGroup(click.Group):
    """A group whose error about an unknown command names the command that is probably meant.

    Args:
        sections: Maps a heading of the help to names of commands; other commands come last.
    """

    group_class = type  # groups within this group have the same class

    def __init__(
        self,
        *args: object,
        sections: Mapping[str, Sequence[str]] = MappingProxyType({}),
        **settings: object,
    ):
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self._sections = sections

    def summaries(self, context: click.Context) -> dict[str, str]:
        """Return the summaries of the visible commands by name.

        Args:
            context: Context of this group.
        """
        commands = ((name, self.get_command(context, name)) for name in self.list_commands(context))
        return {
            name: command.get_short_help_str(SUMMARY_LENGTH_MAX)
            for name, command in commands
            if command is not None and not command.hidden
        }

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        summaries = self.summaries(context)
        listed = {name for names in self._sections.values() for name in names}
        others = [name for name in summaries if name not in listed]
        heading = "Other commands" if listed else "Commands"
        width = max(map(len, summaries), default=0)
        for title, names in (*self._sections.items(), (heading, others)):
            rows = [(f"{name:<{width}}", summaries[name]) for name in names]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(context, args)
        except click.NoSuchOption as error:
            from .suggestions import misplaced_option_text

            text = misplaced_option_text(context, error.option_name, given)
            if text is None:
                raise
            raise click.UsageError(text, context) from None

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_unknown = args[0] not in self.list_commands(context) and not args[0].startswith("-")
        if is_unknown and not context.resilient_parsing:
            from .suggestions import suggestion

            context.fail(f"No such command {args[0]!r}{suggestion(context, args)}")
        return super().resolve_command(context, args)


class LazyGroup(CommandGroup):
    """A group that knows the names and summaries of its commands and imports each when called.

    Args:
        lazy: Maps a name to its import path ("module:attribute") and its summary.
    """

    context_class = CommandContext

    def __init__(
        self,
        *args: object,
        lazy: Mapping[str, tuple[str, str]],
        sections: Mapping[str, Sequence[str]] = MappingProxyType({}),
        **settings: object,
    ):
        super().__init__(*args, sections=sections, **settings)
        self._lazy = lazy

    def summaries(self, context: click.Context) -> dict[str, str]:
        return {name: summary for name, (_, summary) in self._lazy.items()}

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self._lazy:
            return None
        module, _, attribute = self._lazy[name][0].partition(":")
        with without_garbage_collection():
            command: click.Command = getattr(importlib.import_module(module), attribute)
        prepare(command)
        return command
