"""The `kbroker` command. Each subcommand is imported when it is called."""

from __future__ import annotations

import importlib

import click

from kbroker import __version__

COMMANDS = {
    "demo": "Stream a year of flights through the broker and Spark, and check every figure.",
    "health": "Ask a broker whether it answers.",
    "log": "Work on the files of a partition; the broker must not run.",
    "serve": "Run a broker.",
}


class LazyCommands(click.Group):
    """A group that knows its commands' names without importing them."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"kbroker.cli.{name}"), name)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kbroker", message="%(prog)s %(version)s")
def main() -> None:
    """A Kafka broker that needs no JVM and no Docker."""
