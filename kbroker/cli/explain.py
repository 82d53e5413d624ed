"""`kbroker explain`: why something is as it is in a broker that runs with `--control-port`."""

from __future__ import annotations

import click

from .control import CONTROL, ask


@click.group()
def explain() -> None:
    """Say why something is as it is; the broker must run with --control-port."""


@explain.command()
@CONTROL
@click.argument("name")
def group(control: str, name: str) -> None:
    """Say what the group NAME waits for, and why it rebalanced."""
    click.echo(ask(control, do="explain", group=name)["text"])


@explain.command()
@CONTROL
@click.argument("topic")
@click.argument("index", type=click.IntRange(0))
def partition(control: str, topic: str, index: int) -> None:
    """Say whether partition INDEX of TOPIC is served, and why not."""
    click.echo(ask(control, do="explain", topic=topic, partition=index)["text"])


@explain.command()
@CONTROL
@click.argument("transactional_id")
def transaction(control: str, transactional_id: str) -> None:
    """Say where the transaction of TRANSACTIONAL_ID stands, and why."""
    click.echo(ask(control, do="explain", transactional_id=transactional_id)["text"])
