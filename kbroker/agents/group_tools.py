"""Tools for groups: list and describe them with their lag, reset their offsets, and delete them."""

from __future__ import annotations

import fnmatch
from typing import Final

from kbroker.client.group_details import group_details
from kbroker.client.group_overview import group_overviews
from kbroker.client.groups import delete_groups, describe_group, list_groups
from kbroker.client.offset_spec import END, START, Kind, OffsetSpec
from kbroker.client.seek import Seek
from kbroker.protocol.errors import ErrorCode

from .hints import hint_of
from .parameters import (
    Arguments,
    BadArguments,
    choice,
    integer,
    integers,
    now_ms,
    offsets,
    parse_past_time_ms,
    text,
    topic,
)
from .results import Result, cut, fit, page, page_parameters, selected
from .tool import PREVIEW, Effect, Session, Tool

GROUP = text("Group ID.", required=True)
# Arguments of `reset_offsets` that exclude each other.
TARGETS = ("to", "to_time", "shift_by", "to_offsets")


async def show_groups(session: Session, arguments: Arguments) -> Result:
    """Return the groups of all brokers."""
    pattern, state = arguments.optional_text("pattern"), arguments.optional_text("state")
    listed = [
        each
        for each in await list_groups(session.cluster)
        if (pattern is None or fnmatch.fnmatchcase(each.name, pattern))
        and (state is None or each.state.lower() == state.lower())
    ]
    rows = [
        {
            "group": each.listed.name,
            "state": each.listed.state,
            "type": each.listed.type.capitalize(),
            "protocol_type": each.listed.protocol_type,
            "coordinator": each.listed.coordinator,
            "members": each.members,
            "total_lag": each.lag,
            "without_offset": each.without_offset,
        }
        for each in await group_overviews(session.cluster, selected(listed, arguments))
    ]
    found = fit(rows, len(listed), arguments)
    return Result(found.facts, {"groups": found.rows})


async def show_group(session: Session, arguments: Arguments) -> Result:
    """Return a group with its members, and offsets and lag per partition."""
    details = await group_details(session.cluster, arguments.text("group"))
    found = page(details["partitions"], arguments)
    facts = {key: details[key] for key in ("state", "type", "coordinator", "members")}
    facts |= {key: details[key] for key in ("total_lag", "without_offset")}
    named = {key: cut(details[key]) for key in ("group", "assignor")}
    return Result({**facts, **found.facts}, {**named, "partitions": found.rows})


async def reset_offsets(session: Session, arguments: Arguments) -> Result:
    """Move the committed offsets of a group, or return where they would move."""
    seek = _seek(arguments)
    dry_run = arguments.flag("dry_run")
    rows = await (seek.plan if dry_run else seek.run)(session.cluster)
    found = page(rows, arguments)
    errors = [row["error"] for row in rows if row["error"] is not None]
    applied = not dry_run and len(errors) < len(rows)
    facts = {**found.facts, "failed": len(errors), "applied": applied}
    if errors and (hint := hint_of(ErrorCode[errors[0]])):
        facts["hint"] = hint
    return Result(facts, {"partitions": found.rows})


def _seek(arguments: Arguments) -> Seek:
    """Return the offset reset that the arguments describe.

    Raises:
        BadArguments: No target is given, or several are, or the time is malformed or in the future.
    """
    given = arguments.given(*TARGETS)
    name, partitions = arguments.optional_text("topic"), arguments.numbers("partitions")
    if len(given) != 1:
        raise BadArguments(f"give exactly one of {', '.join(TARGETS)}")
    if name is None and (partitions or given == ["to_offsets"]):
        raise BadArguments("`partitions` and `to_offsets` need `topic`")
    topics = {} if name is None else {name: set(partitions) or None}
    spec = shift = new = None
    if given == ["to"]:
        spec = START if arguments.text("to") == "earliest" else END
    elif given == ["to_time"]:
        spec = OffsetSpec(Kind.TIME, parse_past_time_ms(arguments.text("to_time"), now_ms()))
    elif given == ["shift_by"]:
        shift = arguments.number("shift_by")
    else:
        assert name is not None
        new = {(name, index): to for index, to in arguments.offsets("to_offsets").items()}
    return Seek(arguments.text("group"), spec, shift, new, topics)


async def delete_group(session: Session, arguments: Arguments) -> Result:
    """Delete a group with its committed offsets, or return its state."""
    name = arguments.text("group")
    group = await describe_group(session.cluster, name)
    if not arguments.flag("dry_run"):
        error = (await delete_groups(session.cluster, [name]))[name]
        if error is not None:
            raise error
    return Result(
        {
            "state": group.state,
            "members": len(group.members),
            "applied": not arguments.flag("dry_run"),
        }
    )


TOOLS: Final = (
    Tool(
        "list_groups",
        "List groups",
        "Return consumer, share and streams groups with states, members and lag. `without_offset` "
        "counts the partitions that the lag lacks: they hold records, and have no committed offset.",
        Effect.READ,
        show_groups,
        {
            "pattern": text("Only group IDs that match this pattern, such as 'billing*'."),
            "state": text("Only this state, such as Stable or Empty."),
            **page_parameters(),
        },
    ),
    Tool(
        "describe_group",
        "Describe a group and its lag",
        "Return state and type of a group, its members, and the committed offset and lag of each "
        "partition.",
        Effect.READ,
        show_group,
        {"group": GROUP, **page_parameters()},
    ),
    Tool(
        "reset_offsets",
        "Reset the offsets of a group",
        "Move the committed offsets of a group without members. Give exactly one of "
        f"{', '.join(TARGETS)}. Consumers then skip records or read them again.",
        Effect.DESTRUCTIVE,
        reset_offsets,
        {
            "group": GROUP,
            "topic": topic(
                "Topic to reset. Default: all that the group committed.", required=False
            ),
            "partitions": integers("Partitions of `topic` to reset. Default: all."),
            "to": choice("Move to the oldest or after the newest record.", ["earliest", "latest"]),
            "to_time": text("Move to the first record at or after this time, in ISO 8601."),
            "shift_by": integer("Number of offsets to move by; negative is backwards."),
            "to_offsets": offsets("New offset by partition of `topic`, such as {'0': 120}."),
            "dry_run": PREVIEW,
            **page_parameters(),
        },
    ),
    Tool(
        "delete_group",
        "Delete a group",
        "Delete a group without members, with its committed offsets. This cannot be undone.",
        Effect.DESTRUCTIVE,
        delete_group,
        {"group": GROUP, "dry_run": PREVIEW},
    ),
)
