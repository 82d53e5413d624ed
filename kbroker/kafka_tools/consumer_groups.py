"""The kafka-consumer-groups tool: lists, describes, resets and deletes consumer groups."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.cli.output import reported_changes, say

from .base import (
    FAILED,
    Parser,
    columns,
    exit_with_message,
    java_exception_text,
    message_of,
    run,
    topic_names,
)

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.groups import Group
    from kbroker.client.offset_spec import OffsetSpec
    from kbroker.client.topics import Partition
    from kbroker.protocol.errors import ErrorCode

VERBS = ("list", "describe", "reset-offsets", "delete", "delete-offsets", "validate-regex")
OFFSET_OPTIONS = ("to-earliest", "to-latest", "to-current", "to-offset", "shift-by")
OTHER_OPTIONS = ("to-datetime", "by-duration", "from-file")
NO_EXECUTE = (
    "WARN: No action will be performed as the --execute option is missing. In version 5.0, this "
    "command will require either --dry-run or --execute to be specified. You should add the "
    "--dry-run option explicitly if you are scripting this command and want to keep the current "
    "default behavior without prompting."
)
# Minimum width of a column of names.
WIDTH = 15


def main(arguments: Sequence[str]) -> None:
    """Run the tool."""
    parser = Parser("kafka-consumer-groups", "kbroker group")
    parser.add_flags("--list", "--describe", "--reset-offsets", "--delete", "--delete-offsets")
    parser.add_flags("--all-groups", "--all-topics", "--members", "--offsets", "--verbose")
    parser.add_flags("--dry-run", "--execute", "--export", "--to-earliest", "--to-latest")
    parser.add_flags("--to-current")
    parser.add_lists("--group", "--topic")
    parser.add_argument("--state", nargs="?", const="")
    parser.add_argument("--type", nargs="?", const="")
    parser.add_argument("--to-offset", type=int)
    parser.add_argument("--shift-by", type=int)
    parser.add_values("--to-datetime", "--by-duration", "--from-file", "--validate-regex")
    parser.add_ignored("--timeout")
    options = parser.parse_args(arguments)
    requested = [verb for verb in VERBS if getattr(options, verb.replace("-", "_"))]
    if len(requested) != 1:
        parser.error(f"give exactly one of {', '.join(f'--{verb}' for verb in VERBS)}")
    (verb,) = requested
    if verb == "validate-regex":
        parser.exit_with_message("--validate-regex is not supported")
    if (
        verb != "list"
        and not options.group
        and not (options.all_groups and verb != "delete-offsets")
    ):
        parser.error(f"--{verb} needs --group")
    if verb == "describe" and options.verbose:
        parser.exit_with_message("--verbose is not supported")
    if verb == "reset-offsets":
        _check_reset(parser, options)
    run(parser, options, lambda cluster: _WORK[verb](cluster, options), _failed)


def _check_reset(parser: Parser, options: Namespace) -> None:
    given = [
        name
        for name in (*OFFSET_OPTIONS, *OTHER_OPTIONS)
        if getattr(options, name.replace("-", "_")) not in (None, False)
    ]
    if len(given) != 1:
        parser.error(
            f"give exactly one of {', '.join(f'--{name}' for name in (*OFFSET_OPTIONS, *OTHER_OPTIONS))}"
        )
    if not options.topic and not options.all_topics and given != ["from-file"]:
        parser.error("--reset-offsets needs --topic or --all-topics")
    if options.dry_run and options.execute:
        parser.error("--dry-run and --execute exclude each other")


def _failed(text: str) -> None:
    say("", f"Error: Executing consumer group command failed due to {text}")


async def _groups(cluster: ClusterClient, options: Namespace) -> list[str]:
    """Return the names of the groups in the options."""
    from kbroker.client.groups import list_groups

    if not options.all_groups:
        return list(options.group)
    return [each.name for each in await list_groups(cluster)]


async def _list(cluster: ClusterClient, options: Namespace) -> None:
    from kbroker.client.groups import list_groups

    found = [each for each in await list_groups(cluster) if each.protocol_type in ("consumer", "")]
    kinds, states = _parse_list(options.type), _parse_list(options.state)
    found = [
        each
        for each in found
        if (not kinds or each.type.lower() in kinds)
        and (not states or each.state.replace("_", "").lower() in states)
    ]
    if options.state is None and options.type is None:
        say(*(each.name for each in found))
        return
    headings, rows = [("GROUP", 25)], [[each.name] for each in found]
    for head, is_shown, values in (
        ("TYPE", options.type is not None, [each.type.capitalize() for each in found]),
        ("STATE", options.state is not None, [each.state for each in found]),
    ):
        if is_shown:
            headings.append((head, 20))
            rows = [[*row, value] for row, value in zip(rows, values, strict=True)]
    say(*columns(headings, rows))


def _parse_list(text: str | None) -> set[str]:
    return {each.strip().lower() for each in (text or "").split(",") if each.strip()}


async def _describe(cluster: ClusterClient, options: Namespace) -> None:
    from kbroker.client.errors import NoSuchGroup
    from kbroker.client.groups import describe_group

    for name in await _groups(cluster, options):
        try:
            group = await describe_group(cluster, name)
        except NoSuchGroup:
            _failed(
                f"org.apache.kafka.common.errors.GroupIdNotFoundException: Group {name} not found."
            )
            return
        if options.members:
            lines = _members(group)
        elif options.state is not None:
            lines = await _state(cluster, group)
        else:
            lines = await _offsets(cluster, group)
        if group.state == "Empty":
            say("", f"Consumer group '{name}' has no active members.", err=True)
        elif group.state == "Dead":
            say("", f"Consumer group '{name}' does not exist.", err=True)
        elif group.state not in ("Stable", "Assigning", "Reconciling"):
            say("", f"Warning: Consumer group '{name}' is rebalancing.", err=True)
        if lines:
            say("", *lines)


async def _offsets(cluster: ClusterClient, group: Group) -> list[str]:
    from kbroker.client.groups import committed_offsets
    from kbroker.client.list_offsets import LATEST, list_offsets

    committed = await committed_offsets(cluster, group.name)
    owners = {one: member for member in group.members for one in member.partitions}
    partitions = sorted({*committed, *owners})
    if not partitions:
        return []
    existing = {
        row.name
        for row in (await cluster.metadata({name for name, _ in partitions})).topics
        if not row.error_code
    }
    requested = {one: LATEST for one in partitions if one[0] in existing}
    ends = await list_offsets(cluster, requested) if requested else {}
    rows = []
    for topic, index in partitions:
        at, owner = committed.get((topic, index)), owners.get((topic, index))
        end = ends[topic, index].offset if (topic, index) in ends else -1
        lag = max(end - at, 0) if at is not None and end >= 0 else "-"
        member = (owner.id, owner.host, owner.client_id) if owner else ("-", "-", "-")
        rows.append(
            (
                group.name,
                topic,
                index,
                "-" if at is None else at,
                "-" if end < 0 else end,
                lag,
                *member,
            )
        )
    headings = [
        *(("GROUP", _width(rows, 0)), ("TOPIC", _width(rows, 1)), ("PARTITION", 10)),
        *(("CURRENT-OFFSET", 15), ("LOG-END-OFFSET", 15), ("LAG", 15)),
        *(("CONSUMER-ID", _width(rows, 6)), ("HOST", _width(rows, 7)), ("CLIENT-ID", 0)),
    ]
    return columns(headings, rows)


def _width(rows: Iterable[Sequence[object]], column: int) -> int:
    return max([WIDTH, *(len(str(row[column])) for row in rows)])


def _members(group: Group) -> list[str]:
    rows = [
        (group.name, member.id, member.host, member.client_id, len(member.partitions))
        for member in group.members
    ]
    names = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID")
    headings = [(name, _width(rows, number)) for number, name in enumerate(names)]
    return columns([*headings, ("#PARTITIONS", 15)], rows)


async def _state(cluster: ClusterClient, group: Group) -> list[str]:
    if group.coordinator not in cluster.endpoints:
        await cluster.metadata([])
    coordinator = f"{cluster.endpoints.get(group.coordinator, '-')}  ({group.coordinator})"
    assignor = group.assignor or "-"
    rows = [(group.name, coordinator, assignor, group.state, len(group.members))]
    headings = [
        *(("GROUP", _width(rows, 0)), ("COORDINATOR (ID)", max(25, len(coordinator)))),
        *(("ASSIGNMENT-STRATEGY", 20), ("STATE", 20), ("#MEMBERS", 0)),
    ]
    return columns(headings, rows)


# -- changes


async def _reset(cluster: ClusterClient, options: Namespace) -> None:
    from kbroker.client.groups import commit_offsets

    moved: list[tuple[str, str, int, int]] = []
    groups = await _groups(cluster, options)
    names = [name for name in groups if not await _is_active(cluster, name)]
    with reported_changes(names if options.execute else ()) as changed:
        for name in names:
            offsets = await _new_offsets(cluster, name, options)
            if options.execute and offsets:
                for code in (await commit_offsets(cluster, name, offsets)).values():
                    if code:
                        _failed(_error_text(code))
                        sys.exit(FAILED)
            changed.append(name)
            moved += [(name, topic, index, at) for (topic, index), at in sorted(offsets.items())]
    _print_reset(moved, options, with_group=options.all_groups or len(groups) != 1)
    if len(names) < len(groups):
        sys.exit(FAILED)


def _print_reset(
    moved: Sequence[tuple[str, str, int, int]], options: Namespace, *, with_group: bool
) -> None:
    if options.export:
        say(*(",".join(map(str, row if with_group else row[1:])) for row in moved))
        return
    headings = [("GROUP", _width(moved, 0)), ("TOPIC", _width(moved, 1))]
    say("", *columns([*headings, ("PARTITION", 10), ("NEW-OFFSET", 0)], moved))
    if not options.execute and not options.dry_run:
        say(NO_EXECUTE, err=True)


async def _is_active(cluster: ClusterClient, name: str) -> bool:
    """Return True, after printing an error, if the offsets of a group cannot be reset."""
    from kbroker.client.errors import NoSuchGroup
    from kbroker.client.groups import describe_group

    try:
        group = await describe_group(cluster, name)
    except NoSuchGroup:
        return False
    if group.state in ("Empty", "Dead"):
        return False
    say(
        "",
        f"Error: Assignments can only be reset if the group '{name}' is inactive, but the current "
        f"state is {group.state}.",
    )
    return True


def _error_text(code: ErrorCode) -> str:
    return java_exception_text(code, message_of(code, None))


async def _new_offsets(
    cluster: ClusterClient, name: str, options: Namespace
) -> Mapping[Partition, int]:
    from kbroker.client.groups import committed_offsets
    from kbroker.client.offset_spec import Kind, find

    committed = await committed_offsets(cluster, name)
    if options.from_file is not None:
        chosen: Mapping[Partition, int] = _read_offsets(options.from_file, name)
        return await _clamp(cluster, chosen)
    partitions = await _selected_partitions(cluster, options, committed)
    if options.to_current:
        known = {one: committed[one] for one in partitions if one in committed}
        ends = await find(
            cluster, [one for one in partitions if one not in known], _offset_spec(options)
        )
        return await _clamp(cluster, known) | ends
    if options.shift_by is not None:
        missing = [one for one in partitions if one not in committed]
        if missing:
            exit_with_message(
                "Error: Cannot shift offset for partition "
                f"{missing[0][0]}-{missing[0][1]} since there is no current committed offset"
            )
        shifted = {one: committed[one] + options.shift_by for one in partitions}
        return await _clamp(cluster, shifted)
    spec = _offset_spec(options)
    if spec.kind == Kind.OFFSET:
        return await _clamp(cluster, dict.fromkeys(partitions, spec.value))
    return await find(cluster, partitions, spec)


def _offset_spec(options: Namespace) -> OffsetSpec:
    import time

    from kbroker.cli.offsets import BadOffsetSpec, parse_time
    from kbroker.client.offset_spec import END, START, Kind, OffsetSpec

    if options.to_earliest:
        return START
    if options.to_offset is not None:
        return OffsetSpec(Kind.OFFSET, options.to_offset)
    now_ms = time.time_ns() // 1_000_000
    try:
        if options.to_datetime is not None:
            return OffsetSpec(Kind.TIME, parse_time(options.to_datetime, now_ms))
        if options.by_duration is not None:
            return OffsetSpec(Kind.TIME, now_ms - _duration_ms(options.by_duration))
    except BadOffsetSpec as error:
        exit_with_message(f"Error: {error}")
    return END


def _duration_ms(text: str) -> int:
    """Parse an ISO 8601 duration PnDTnHnMnS. Exit if it is invalid."""
    import re

    found = re.fullmatch(
        r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", text.upper()
    )
    if found is None or not any(found.groups()):
        exit_with_message(f"Error: invalid duration {text!r}; expected one such as P1DT2H3M")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def _read_offsets(path: str, group: str) -> Mapping[Partition, int]:
    """Read the offsets of a group from a file written by `--export`. Exit if it is invalid."""
    found = {}
    try:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                *groups, topic, index, offset = line.strip().split(",")
                if not groups or groups == [group]:
                    found[topic, int(index)] = int(offset)
    except (OSError, ValueError) as error:
        exit_with_message(f"Error: cannot read offsets from {path}: {error}")
    return found


async def _clamp(cluster: ClusterClient, wanted: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return the offsets, limited to the log start and end offsets of their partitions."""
    from kbroker.client.offset_spec import END, START, find

    starts = await find(cluster, wanted, START)
    ends = await find(cluster, wanted, END)
    return {one: min(max(at, starts[one]), ends[one]) for one, at in wanted.items()}


async def _selected_partitions(
    cluster: ClusterClient, options: Namespace, committed: Mapping[Partition, int]
) -> list[Partition]:
    """Return the partitions of `--topic NAME[:0,1]`, or all with a committed offset."""
    if options.all_topics:
        return sorted(committed)
    found = []
    for text in options.topic:
        name, colon, numbers = text.partition(":")
        if colon:
            found += [(name, int(number)) for number in numbers.split(",")]
            continue
        (row,) = (await cluster.metadata([name])).topics
        if row.error_code:
            from kbroker.client.errors import error_code

            _failed(message_of(error_code(row.error_code), None))
            sys.exit(FAILED)
        found += [(name, part.partition_index) for part in row.partitions]
    return sorted(found)


async def _delete(cluster: ClusterClient, options: Namespace) -> None:
    from kbroker.client.groups import delete_groups

    outcome = await delete_groups(cluster, await _groups(cluster, options))
    failed = {name: error for name, error in outcome.items() if error is not None}
    done = "', '".join(name for name in outcome if name not in failed)
    if not failed:
        say(f"Deletion of requested consumer groups ('{done}') was successful.")
        return
    say("", "Error: Deletion of some consumer groups failed:")
    for name, error in failed.items():
        reason = java_exception_text(error.code, error.message)
        say(f"* Group '{name}' could not be deleted due to: {reason}")
    if done:
        say("", f"These consumer groups were deleted successfully: '{done}'")


async def _delete_offsets(cluster: ClusterClient, options: Namespace) -> None:
    from kbroker.client.groups import delete_offsets
    from kbroker.protocol.errors import ErrorCode, KafkaError

    (name,) = options.group
    existing = set(await topic_names(cluster))
    missing = [text for text in options.topic if text.partition(":")[0] not in existing]
    options.topic = [text for text in options.topic if text not in missing]
    partitions = await _selected_partitions(cluster, options, {})
    head = f"Request succeeded for deleting offsets from group {name}."
    try:
        outcome = await delete_offsets(cluster, name, partitions) if partitions else {}
        if any(outcome.values()):
            head = f"Encountered some partition-level error, see the follow-up details for group {name}."
    except KafkaError as error:
        outcome = dict.fromkeys(partitions, error.code)
        head = f"Error: {message_of(error.code, error.message)}"
    rows: list[tuple[str, object, str]] = [
        (topic, index, f"Error: {java_exception_text(code, None)}" if code else "Successful")
        for (topic, index), code in outcome.items()
    ]
    unknown = java_exception_text(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
    rows += [(topic, "-", f"Error: {unknown}") for topic in missing]
    say("", head, "", *columns([("TOPIC", 30), ("PARTITION", 15), ("STATUS", 15)], rows))


_WORK = {
    "list": _list,
    "describe": _describe,
    "reset-offsets": _reset,
    "delete": _delete,
    "delete-offsets": _delete_offsets,
}
