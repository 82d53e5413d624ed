"""The MCP server: lists tools, runs calls with limits, and reports errors as results."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import trio
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp.types import Tool as ToolDescription

from kbroker import __version__
from kbroker.client.errors import CannotRead, ClientError, first_error
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.primitives import DecodeError
from kbroker.text.documents import Json

from .hints import hint_of
from .parameters import Arguments, BadArguments, check, object_schema
from .results import NOTICE, Result, failed, rejected, render
from .tool import Effect, Session, Tool

logger = logging.getLogger(__name__)

# Time limit of a call.
CALL_SECONDS = 30
# Maximum number of calls that run at the same time; others wait.
CALLS_MAX = 4
# Maximum length of the arguments in a report, in characters.
REPORTED_LENGTH_MAX = 500

# Errors after which nobody knows if a call has changed something.
UNCERTAIN = frozenset(
    {
        *("TIMED_OUT", "CONNECTION_FAILED", "INTERNAL_ERROR"),
        ErrorCode.REQUEST_TIMED_OUT.name,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND.name,
    }
)
NOT_REPEATABLE = (
    "the change may have been applied: check that with a tool that reads before you repeat the call"
)
REPEATABLE = "the change may have been applied: repeat the call, which has no further effect then"

INSTRUCTIONS = f"""Tools of one Kafka cluster. {NOTICE}
Results are bounded: if `next_skip` or `next_offsets` is not null, ask for the rest.
Tools that delete something only preview it unless `dry_run` is false. Ask a person first.
A result with `error` states the next action in `hint`."""

Context: TypeAlias = ServerRequestContext[dict[str, object]]
# Receives a sentence about each call of a tool that can change something.
Report = Callable[[str], None]


class AgentServer:
    """Calls of tools with limits.

    Args:
        tools: The tools to offer.
        session: What the tools work on.
        report: Receives a sentence about each call that can change something.
    """

    def __init__(self, tools: Sequence[Tool], session: Session, report: Report) -> None:
        self._tools = {each.name: each for each in tools}
        self._session = session
        self._report = report
        self._limiter = trio.CapacityLimiter(CALLS_MAX)

    def descriptions(self) -> list[ToolDescription]:
        """Return the tools as the protocol describes them."""
        return [
            ToolDescription(
                name=each.name,
                title=each.title,
                description=each.description,
                input_schema=object_schema(each.parameters),
                annotations=ToolAnnotations(
                    title=each.title,
                    read_only_hint=each.effect is Effect.READ,
                    destructive_hint=each.effect is Effect.DESTRUCTIVE,
                    idempotent_hint=each.idempotent or each.effect is Effect.READ,
                    open_world_hint=False,
                ),
            )
            for each in self._tools.values()
        ]

    async def call(self, name: str, given: Mapping[str, Json]) -> CallToolResult:
        """Run a tool and return its result; errors are results as well.

        Args:
            name: Name of the tool.
            given: The arguments as the client sent them.
        """
        tool = self._tools.get(name)
        if tool is None:
            valid = ", ".join(self._tools)
            found = rejected("UNKNOWN_TOOL", f"there is no tool {name[:100]!r} (valid: {valid})")
        else:
            found = await self._run(tool, given)
            if tool.effect is not Effect.READ:
                self._report(f"{name} {_summary(given)}: {_outcome(found)}")
        return CallToolResult(
            content=[TextContent(type="text", text=render(found))],
            is_error="error" in found.facts,
        )

    async def _run(self, tool: Tool, given: Mapping[str, Json]) -> Result:
        may_have_changed = False
        try:
            arguments = check(tool.parameters, given)
            # The limit includes the time in which other calls run.
            with trio.fail_after(CALL_SECONDS):
                async with self._limiter:
                    may_have_changed = _is_change(tool, arguments)
                    return await self._run_again_if_disconnected(tool, arguments)
        except trio.TooSlowError:
            found = failed(
                "TIMED_OUT",
                f"no result after {CALL_SECONDS} s",
                "check the cluster with check_health, then try again",
            )
        except Exception as error:  # noqa: BLE001  # a bug in one tool must not stop the server
            found = _failure(_first(error))
        if may_have_changed and found.facts["error"] in UNCERTAIN:
            hint = REPEATABLE if tool.idempotent else NOT_REPEATABLE
            return Result({**found.facts, "applied": None, "hint": hint}, found.untrusted)
        return found

    async def _run_again_if_disconnected(self, tool: Tool, arguments: Arguments) -> Result:
        """Run a tool; run a tool that reads again if a connection is lost."""
        try:
            return await tool.call(self._session, arguments)
        except (OSError, ExceptionGroup) as error:
            # A connection may have been idle for hours; the client opens a new one.
            if tool.effect is not Effect.READ or not isinstance(_first(error), OSError):
                raise
        return await tool.call(self._session, arguments)


def _is_change(tool: Tool, arguments: Arguments) -> bool:
    """Return True if a call can change something."""
    is_preview = "dry_run" in tool.parameters and arguments.flag("dry_run")
    return tool.effect is not Effect.READ and not is_preview


def _summary(given: Mapping[str, Json]) -> str:
    """Return arguments as text, without the values of records and configurations."""
    shown = {
        name: f"({len(value)})" if isinstance(value, (list, dict)) else value
        for name, value in given.items()
    }
    return json.dumps(shown)[:REPORTED_LENGTH_MAX]


def _outcome(result: Result) -> str:
    """Return the error of a call, or whether it changed something."""
    return str(
        result.facts.get("error") or ("applied" if result.facts.get("applied") else "not applied")
    )


def _first(error: Exception) -> BaseException:
    return first_error(error) if isinstance(error, ExceptionGroup) else error


def _failure(error: BaseException) -> Result:
    """Return the result of a call that raised an error."""
    if isinstance(error, BadArguments):
        return rejected("INVALID_ARGUMENTS", str(error))
    if isinstance(error, KafkaError):
        return _rejected_by_broker(error.code, error.message or error.code.name)
    if isinstance(error, CannotRead):
        return _rejected_by_broker(error.code, str(error))
    if isinstance(error, (DecodeError, OSError)):
        return failed("CONNECTION_FAILED", str(error), "try again")
    if isinstance(error, ClientError):
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).upper()
        return failed(name, str(error), hint_of(type(error)))
    logger.error("a tool failed", exc_info=error)
    return failed("INTERNAL_ERROR", type(error).__name__, "see the log of `kbroker mcp`")


def _rejected_by_broker(code: ErrorCode, message: str) -> Result:
    """Return the result of a call that a broker rejected."""
    return failed(code.name, message, hint_of(code))


def build_server(agent: AgentServer) -> Server[dict[str, object]]:
    """Return the protocol's server for some tools.

    Args:
        agent: The tools.
    """

    async def list_tools(_: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=agent.descriptions())

    async def call_tool(_: Context, request: CallToolRequestParams) -> CallToolResult:
        return await agent.call(request.name, request.arguments or {})

    return Server(
        "kbroker",
        version=__version__,
        title="kbroker",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve_stdio(agent: AgentServer) -> None:
    """Serve one client on standard input and output until it closes standard input.

    Args:
        agent: The tools.
    """
    server = build_server(agent)
    async with stdio_server() as (receive, send):
        await server.run(receive, send, server.create_initialization_options())
