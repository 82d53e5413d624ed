"""`kbroker clock`: move the time of a broker that runs with `--control-port`."""

from __future__ import annotations

import click

from .control import Control, ask, control_options
from .units import DURATION


@click.group()
def clock() -> None:
    """Let time pass in a broker; it must run with --control-port."""


@clock.command()
@control_options
@click.argument("span", type=DURATION)
@click.option("--coordinator", is_flag=True, help="The time of sessions, not that of logs.")
@click.option("--keep-members", is_flag=True, help="Count all members as just heard of.")
def advance(control: Control, span: float, coordinator: bool, keep_members: bool) -> None:
    """Let SPAN (25h, 7d) pass; returns when all that is due by then was done."""
    domain = "coordinator" if coordinator else "log"
    ask(control, do="advance", clock=domain, seconds=span, keep_members=keep_members)
