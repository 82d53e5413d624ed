"""The `kbroker explain` command: explains the state of a broker started with `--control-port`."""

from __future__ import annotations

import click

from .control import Control, ask, control_options
from .output import say


def _explain(control: Control, **what: object) -> None:
    say(*ask(control, do="explain", **what)["text"].split("\n"))


@click.group()
def explain() -> None:
    """Explain the state of an object in a broker; it must run with --control-port."""


@explain.command()
@control_options
@click.argument("name")
def group(control: Control, name: str) -> None:
    """Explain what the group NAME waits for, and why it rebalanced."""
    _explain(control, group=name)


@explain.command()
@control_options
@click.argument("group")
@click.argument("topic")
@click.argument("index", type=click.IntRange(0))
def share(control: Control, group: str, topic: str, index: int) -> None:
    """Explain why members of share group GROUP get records of partition INDEX of TOPIC, or none."""
    _explain(control, group=group, topic=topic, partition=index)


@explain.command()
@control_options
@click.argument("topic")
@click.argument("index", type=click.IntRange(0))
def partition(control: Control, topic: str, index: int) -> None:
    """Explain whether partition INDEX of TOPIC is available, and if not, why."""
    _explain(control, topic=topic, partition=index)


@explain.command()
@control_options
@click.argument("transactional_id")
def transaction(control: Control, transactional_id: str) -> None:
    """Explain the state of the transaction of TRANSACTIONAL_ID."""
    _explain(control, transactional_id=transactional_id)


@explain.command()
@control_options
@click.argument("client_id")
def client(control: Control, client_id: str) -> None:
    """Show the metrics that clients with CLIENT_ID have pushed (KIP-714)."""
    _explain(control, client_id=client_id)
