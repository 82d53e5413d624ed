"""Contexts of commands: help with examples, colours, and the option `--color`."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

import click

from .terminal import COLOR_CHOICES, Style, paint, uses_color

# Width of a terminal below which texts of options start below the option, not beside it.
NARROW = 60
# Width of the column of options in a narrow terminal: only short names have their text beside them.
NARROW_INDENT = 4
# Smallest width of help.
WIDTH_MIN = 20


class HelpFormatter(click.HelpFormatter):
    """A formatter that prints headings in bold, if help gets colours, and fits narrow terminals."""

    def __init__(
        self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None
    ) -> None:
        """Initialise the formatter; without `width`, click uses at least 50 columns."""
        columns = shutil.get_terminal_size().columns
        self._is_narrow = width is None and columns < NARROW
        if self._is_narrow:
            width = max(columns - 1, WIDTH_MIN)
        super().__init__(indent_increment, width, max_width)

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write rows of a name and a text."""
        if self._is_narrow:
            rows, col_max = [(name.rstrip(), text) for name, text in rows], NARROW_INDENT
        super().write_dl(rows, col_max, col_spacing)

    def write_heading(self, heading: str) -> None:
        """Write the heading of a section."""
        style = Style.HEADING if uses_color() else Style.PLAIN
        self.write(f"{'':>{self.current_indent}}{paint(f'{heading}:', style)}\n")


class CommandContext(click.Context):
    """The context of every command."""

    formatter_class = HelpFormatter

    def get_help(self) -> str:
        """Return the help of the command, with its examples and its page."""
        if uses_color():
            self.color = True  # click removes escape sequences otherwise
        return super().get_help() + self._guide()

    def _guide(self) -> str:
        """Return the part after the options: examples and the page of the documentation."""
        from .examples import GUIDES

        guide = GUIDES.get(" ".join(words_of(self)))
        if guide is None:
            return ""
        formatter = self.make_formatter()
        formatter.write("\n\n")
        formatter.write_heading("Examples")
        for line in guide.examples:
            formatter.write(f"  kbroker {line}\n")
        formatter.write("\n")
        formatter.write_heading("Documentation")
        formatter.write(f"  {guide.page}")
        return formatter.getvalue()


def words_of(context: click.Context) -> list[str]:
    """Return the names of the commands on the path to a command, without `kbroker`."""
    names: list[str] = []
    while context.parent is not None:
        names.insert(0, context.info_name or "")
        context = context.parent
    return names


def prepare(command: click.Command) -> None:
    """Give a command, and all commands below it, this context and the option `--color`."""
    if command.context_class is CommandContext:
        return
    command.context_class = CommandContext
    if isinstance(command, click.Group):
        for each in command.commands.values():
            prepare(each)
    else:
        command.params.append(_color_option())


def add_color_option(group: click.Group) -> None:
    """Give the root group the option `--color`."""
    group.params.append(_color_option())


def _color_option() -> click.Option:
    return click.Option(
        ["--color"],
        type=click.Choice(list(COLOR_CHOICES)),
        is_eager=True,
        expose_value=False,
        callback=_set_color,
        help="When to use colours; auto means on a terminal, unless NO_COLOR is set.  "
        "[default: auto]",
    )


def _set_color(context: click.Context, _: click.Parameter, choice: str | None) -> None:
    if choice is not None:
        context.find_root().color = COLOR_CHOICES[choice]
