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


class CommandGroup(click.Group):
    """A group whose error about an unknown command names the command that is probably meant."""

    group_class = type  # groups within this group have the same class

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
        sections: Maps a heading of the help to names of commands; other commands come last.
    """

    context_class = CommandContext

    def __init__(
        self,
        *args: object,
        lazy: Mapping[str, tuple[str, str]],
        sections: Mapping[str, Sequence[str]] = MappingProxyType({}),
        **settings: object,
    ):
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self._lazy = lazy
        self._sections = sections

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

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        listed = {name for names in self._sections.values() for name in names}
        others = [name for name in self._lazy if name not in listed]
        heading = "Other commands" if listed else "Commands"
        width = max(map(len, self._lazy))
        for title, names in (*self._sections.items(), (heading, others)):
            rows = [(f"{name:<{width}}", self._lazy[name][1]) for name in names]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
