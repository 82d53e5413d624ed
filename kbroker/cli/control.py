"""Orders of the command line to a broker that runs with `--control-port`."""

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


def ask(control: str, **order: Any) -> dict[str, Any]:
    """Send one order; returns the answer, or ends the command with what went wrong."""
    from kbroker.context import Endpoint

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
