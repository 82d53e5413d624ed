"""`kbroker control`: orders to a broker that runs with `--control-port`."""

from __future__ import annotations

import json
import socket
from typing import Any

import click

CONTROL = click.option(
    "--control",
    metavar="HOST:PORT",
    envvar="KBROKER_CONTROL",
    required=True,
    help="Where the broker takes orders; its banner says so.  [env: KBROKER_CONTROL]",
)


def ask(control: str, /, **order: Any) -> dict[str, Any]:
    """Send one order; returns the answer, or ends the command with what went wrong."""
    from kbroker.endpoint import Endpoint

    try:
        with socket.create_connection(Endpoint.parse(control)) as stream:
            stream.sendall(json.dumps(order).encode() + b"\n")
            with stream.makefile() as lines:
                answer: dict[str, Any] = json.loads(lines.readline())
    except (OSError, ValueError) as error:
        raise click.ClickException(
            f"{control} takes no orders ({error}); start the broker with --control-port and name "
            "the address of its Control line"
        ) from None
    if not answer["ok"]:
        raise click.ClickException(answer["error"])
    return answer


@click.command()
@CONTROL
@click.argument("order", metavar="ORDER")
@click.argument("words", nargs=-1, metavar="[WORD=VALUE]...")
def control(control: str, order: str, words: tuple[str, ...]) -> None:
    """Give an order, and print the answer as JSON: kbroker control crash_at point=produce.appended

    docs/testing.md lists the orders. A VALUE is JSON, or else text.
    """
    answer = ask(control, **{**dict(map(_word, words)), "do": order})
    del answer["ok"]
    click.echo(json.dumps(answer))


def _word(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"{text!r} is not WORD=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
