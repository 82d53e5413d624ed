"""The `kbroker compat` command: Kafka's command-line tools for scripts and health checks."""

from __future__ import annotations

import click

from kbroker.cli.output import say

from . import REPLACEMENTS, TOOLS, main


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--list", "listing", is_flag=True, help="Print the names of the supported tools and exit."
)
@click.option(
    "--all",
    "with_unsupported",
    is_flag=True,
    help="With --list: print also the tools whose error only names another command.",
)
@click.argument("tool", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def compat(
    listing: bool, with_unsupported: bool, tool: str | None, arguments: tuple[str, ...]
) -> None:
    """Run Kafka's TOOL with its own options; `kbroker compat TOOL --help` lists them."""
    if listing:
        say(*sorted({*TOOLS, *REPLACEMENTS} if with_unsupported else TOOLS))
    elif tool is None:
        raise click.UsageError(f"no tool given (valid: {', '.join(TOOLS)})")
    else:
        main(tool, arguments)
