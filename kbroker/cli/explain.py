"""`kbroker explain`: why something is as it is in a broker that runs with `--control-port`."""

from __future__ import annotations

import click

from .control import Control, ask, control_options


@click.group()
def explain() -> None:
    """Say why something is as it is; the broker must run with --control-port."""


@explain.command()
@control_options
@click.argument("name")
def group(control: Control, name: str) -> None:
    """Say what the group NAME waits for, and why it rebalanced."""
    click.echo(ask(control, do="explain", group=name)["text"])


@explain.command()
@control_options
@click.argument("topic")
@click.argument("index", type=click.IntRange(0))
def partition(control: Control, topic: str, index: int) -> None:
    """Say whether partition INDEX of TOPIC is served, and why not."""
    click.echo(ask(control, do="explain", topic=topic, partition=index)["text"])


@explain.command()
@control_options
@click.argument("transactional_id")
def transaction(control: Control, transactional_id: str) -> None:
    """Say where the transaction of TRANSACTIONAL_ID stands, and why."""
    click.echo(ask(control, do="explain", transactional_id=transactional_id)["text"])
