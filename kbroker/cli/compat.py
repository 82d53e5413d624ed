"""`kbroker compat`: Kafka's command-line tools, as far as scripts and health checks use them."""

from __future__ import annotations

import click

from .kafka_tools import TOOLS, main


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("tool", metavar=f"[{'|'.join(TOOLS)}]")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def compat(tool: str, words: tuple[str, ...]) -> None:
    """Run a tool with the options of Kafka's own; `kbroker compat TOOL --help` lists those."""
    main(tool, words)
