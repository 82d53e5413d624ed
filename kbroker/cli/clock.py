"""The `kbroker clock` command: advances the clock of a broker started with `--control-port`."""

from __future__ import annotations

import click

from .control import Control, ask, control_options
from .lazy import CommandGroup
from .units import DURATION


@click.group(cls=CommandGroup)
def clock() -> None:
    """Advance the clock of a broker; it must run with --control-port."""


@clock.command()
@control_options
@click.argument("span", type=DURATION)
@click.option(
    "--coordinator",
    is_flag=True,
    help="Advance the clock of coordinators (sessions, rebalances) instead of the clock of logs.",
)
@click.option(
    "--keep-members",
    is_flag=True,
    help="Treat all group members as if they had just sent a heartbeat.",
)
def advance(control: Control, span: float, coordinator: bool, keep_members: bool) -> None:
    """Advance the clock by SPAN, such as 25h or 7d; wait until all due work is done."""
    domain = "coordinator" if coordinator else "log"
    ask(control, do="advance", clock=domain, seconds=span, keep_members=keep_members)
