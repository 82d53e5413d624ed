"""The `kbroker mcp` command: serves tools of a cluster to an AI agent (Model Context Protocol)."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .control import Control, control_options
from .output import say
from .schema_registries import chosen_registry, registry_option
from .target import Target, fail, run, target_options

if TYPE_CHECKING:
    from kbroker.agents.control import ControlPort
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.schema_registry import SchemaRegistry
    from kbroker.schemas.frame_decoder import FrameDecoder


@click.command()
@click.option(
    "--allow-writes",
    is_flag=True,
    help="Offer all tools that create, change or delete something. Without it, tools only read.",
)
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="TOOL",
    help="Offer this tool that creates, changes or deletes something, such as produce_messages; can "
    "be given several times.",
)
@click.option(
    "--deny",
    "denied",
    multiple=True,
    metavar="TOOL",
    help="Do not offer this tool, such as consume_messages; can be given several times.",
)
@registry_option
@functools.partial(control_options, optional=True)
@target_options
def mcp(
    target: Target,
    control: Control | None,
    registry: str | None,
    allow_writes: bool,
    allowed: tuple[str, ...],
    denied: tuple[str, ...],
) -> None:
    """Serve tools of a cluster to an AI agent on standard input and output (MCP).

    The agent's program starts this command, and its tools have the permissions of the Kafka user in
    the settings. The tools for explanations, faults and snapshots need --control.
    """
    try:
        from kbroker.agents.catalog import UnknownTool, choose_tools
        from kbroker.agents.server import AgentServer, serve_stdio
        from kbroker.agents.tool import Session
    except ImportError as error:
        fail(f"mcp needs {error.name}: pip install 'kbroker[mcp]'")
    port = None if control is None else _control_port(control)
    try:
        tools = choose_tools(
            writes=allow_writes, allowed=allowed, denied=denied, has_control=port is not None
        )
    except UnknownTool as error:
        raise click.UsageError(str(error)) from None

    schemas = chosen_registry(target.settings, registry)

    async def work(cluster: ClusterClient) -> None:
        async with _open_decoder(schemas) as decoder:
            await serve_stdio(AgentServer(tools, Session(cluster, port, decoder), _report))

    addresses = ",".join(map(str, target.bootstrap))
    writing = "read and write" if allow_writes or allowed else "only read"
    _report(f"{len(tools)} tools that {writing} at {addresses}")
    if sys.stdin.isatty():
        _report("waiting for an MCP client on standard input; press Ctrl+C to stop")
    # The thread that reads standard input cannot be interrupted, so let the signal end the process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    run(target, work)


def _control_port(control: Control) -> ControlPort:
    from kbroker.agents.control import ControlPort
    from kbroker.client.endpoint import Endpoint

    try:
        return ControlPort(Endpoint.parse(control.address), Path(control.token_file))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--control") from None


@asynccontextmanager
async def _open_decoder(registry: SchemaRegistry | None) -> AsyncIterator[FrameDecoder | None]:
    if registry is None:
        yield None
        return
    from .record_decoding import open_frame_decoder

    async with open_frame_decoder(registry, "mcp") as decoder:
        yield decoder


def _report(sentence: str) -> None:
    say(f"kbroker mcp: {sentence}", err=True)
