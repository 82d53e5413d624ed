"""All tools, and the choice of those that a server offers."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain

from . import acl_tools, cluster_tools, control_tools, group_tools, record_tools, topic_tools
from .tool import Effect, Tool


class UnknownTool(ValueError):
    """A name is not that of a tool; the message lists the valid ones."""


def all_tools() -> Iterator[Tool]:
    """Yield all tools, those of one area together."""
    areas = (cluster_tools, topic_tools, record_tools, group_tools, acl_tools, control_tools)
    return chain.from_iterable(each.TOOLS for each in areas)


def choose_tools(
    *,
    writes: bool = False,
    allowed: Collection[str] = (),
    denied: Collection[str] = (),
    has_control: bool = False,
) -> list[Tool]:
    """Return the tools that a server offers: those that read, and those that are allowed.

    Args:
        writes: Allow all tools that change something.
        allowed: Names of tools that change something, to allow only these.
        denied: Names of tools that are not offered.
        has_control: True if the server has a control port.

    Raises:
        UnknownTool: A name is not that of a tool, or the tool needs a control port.
    """
    known = {each.name: each for each in all_tools()}
    for name in (*allowed, *denied):
        if name not in known:
            raise UnknownTool(f"unknown tool {name!r} (valid: {', '.join(known)})")
    for name in allowed:
        if known[name].needs_control and not has_control:
            raise UnknownTool(f"tool {name!r} needs the control port of a broker; add --control")
    return [
        each
        for each in known.values()
        if each.name not in denied
        and (has_control or not each.needs_control)
        and (writes or each.effect is Effect.READ or each.name in allowed)
    ]
