"""`kbroker compat`: Kafka's command-line tools, as far as scripts and health checks use them."""

from __future__ import annotations

import click

from kbroker.cli.output import say

from . import ELSEWHERE, TOOLS, main


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--list", "listing", is_flag=True, help="Print the names of the tools.")
@click.argument("tool", required=False)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def compat(listing: bool, tool: str | None, words: tuple[str, ...]) -> None:
    """Run Kafka's TOOL with the options of its own; `kbroker compat TOOL --help` lists those."""
    if listing:
        say(*sorted({*TOOLS, *ELSEWHERE}))
    elif tool is None:
        raise click.UsageError(f"name a tool: {', '.join(TOOLS)}")
    else:
        main(tool, words)
