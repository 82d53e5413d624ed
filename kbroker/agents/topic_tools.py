"""Tools for topics: list, describe, create, grow and delete them, and delete their oldest records."""

from __future__ import annotations

import fnmatch
from typing import Final

from kbroker.client.errors import check
from kbroker.client.offset_spec import START, Kind, OffsetSpec, check_offsets, find
from kbroker.client.topic_details import (
    choose_partitions,
    id_text,
    topic_details,
    topic_partitions,
)
from kbroker.client.topic_overview import topic_sizes
from kbroker.client.topics import (
    DEFAULT,
    NewTopic,
    TopicReplaced,
    create_topics,
    delete_records,
    delete_topics,
    grow_topic,
    topic_ids,
    wait_until_ready,
)
from kbroker.config import Scope, numbers_with_units
from kbroker.protocol.errors import ErrorCode, KafkaError

from .hints import hint_of
from .parameters import (
    Arguments,
    BadArguments,
    flag,
    integer,
    integers,
    offsets,
    pairs,
    text,
    topic,
)
from .results import Result, cut, fit, page, page_parameters, selected
from .tool import DRY_RUN, PREVIEW, Effect, Session, Tool

# Limits of arguments: an agent that needs more of these should ask a person.
PARTITIONS_MAX = 1_000
REPLICAS_MAX = 10


async def list_topics(session: Session, arguments: Arguments) -> Result:
    """Return the names, partitions, replicas and sizes of topics."""
    pattern = arguments.optional_text("pattern")
    with_internal = arguments.flag("include_internal")
    metadata = await session.cluster.metadata()
    listed = [
        row
        for row in sorted(metadata.topics, key=lambda row: row.name or "")
        if (with_internal or not row.is_internal)
        and (pattern is None or fnmatch.fnmatchcase(row.name or "", pattern))
    ]
    rows = await topic_sizes(session.cluster, selected(listed, arguments))
    found = fit(rows, len(listed), arguments)
    return Result(found.facts, {"topics": found.rows})


async def describe_topic(session: Session, arguments: Arguments) -> Result:
    """Return the partitions of a topic with their offsets, and its own configurations."""
    names = [arguments.text("topic")]
    try:
        (row,) = await topic_details(session.cluster, names)
    except KafkaError as error:
        if error.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        # Reading a topic does not include the permission for its configurations.
        (row,) = await topic_partitions(session.cluster, names)
        row["configs"] = None
    found = page(row.pop("partitions"), arguments)
    facts = {key: row.pop(key) for key in ("topic_id", "internal", "replication_factor")}
    return Result({**facts, **found.facts}, {**_short(row), "partitions": found.rows})


def _short(row: dict[str, object]) -> dict[str, object]:
    return {key: cut(value) for key, value in row.items()}


async def create_topic(session: Session, arguments: Arguments) -> Result:
    """Create a topic and wait until it is usable."""
    new = NewTopic(
        arguments.text("topic"),
        arguments.optional_number("partitions") or DEFAULT,
        arguments.optional_number("replication_factor") or DEFAULT,
        arguments.settings("configs", Scope.TOPIC),
    )
    dry_run = arguments.flag("dry_run")
    outcome = await create_topics(session.cluster, [new], validate_only=dry_run)
    check(*outcome[new.name])
    if not dry_run:
        await wait_until_ready(session.cluster, {new.name: -1})
    shown = numbers_with_units(Scope.TOPIC, new.configs)
    return Result({"valid": True, "applied": not dry_run, **({"numbers": shown} if shown else {})})


async def create_partitions(session: Session, arguments: Arguments) -> Result:
    """Increase the number of partitions of a topic."""
    name, total = arguments.text("topic"), arguments.number("total")
    (row,) = await session.cluster.topics([name])
    if total <= len(row.partitions):
        raise BadArguments(
            f"total: the topic has {len(row.partitions)} partitions; give a larger total, because "
            "partitions cannot be removed"
        )
    if not arguments.flag("dry_run"):
        await grow_topic(session.cluster, name, total)
        await wait_until_ready(session.cluster, {name: total})
    return Result(
        {
            "previous_partitions": len(row.partitions),
            "partitions": total,
            "applied": not arguments.flag("dry_run"),
        }
    )


async def delete_topic(session: Session, arguments: Arguments) -> Result:
    """Delete a topic with all its records, or return what it contains."""
    name = arguments.text("topic")
    ids = await topic_ids(session.cluster, [name])
    found = id_text(ids[name]) if name in ids else None
    if arguments.optional_text("topic_id") not in (None, found):
        raise TopicReplaced(name)
    (row,) = await topic_partitions(session.cluster, [name])
    sizes = [
        part["end_offset"] - part["start_offset"]
        for part in row["partitions"]
        if part["start_offset"] is not None and part["end_offset"] is not None
    ]
    if not arguments.flag("dry_run"):
        check(*(await delete_topics(session.cluster, [name], ids=ids))[name])
    return Result(
        {
            "topic_id": found,
            "partitions": len(row["partitions"]),
            "offsets_in_use": sum(sizes),
            "applied": not arguments.flag("dry_run"),
        }
    )


async def delete_oldest_records(session: Session, arguments: Arguments) -> Result:
    """Delete the records of a topic before offsets, or return what would be deleted."""
    name, before = arguments.text("topic"), arguments.offsets("before_offsets")
    if bool(before) == arguments.flag("all_records"):
        raise BadArguments("give either `before_offsets`, or `all_records` as true")
    chosen = await choose_partitions(
        session.cluster, name, tuple(before or arguments.numbers("partitions"))
    )
    starts = await find(session.cluster, chosen, START)
    ends = await find(session.cluster, chosen, OffsetSpec(Kind.END))
    check_offsets({one: before[one[1]] for one in chosen if one[1] in before}, ends)
    wanted = {one: min(before.get(one[1], ends[one]), ends[one]) for one in chosen}
    moved = {one: offset for one, offset in wanted.items() if offset > starts[one]}
    rows: list[dict[str, object]] = [
        {
            "partition": one[1],
            "start_offset": starts[one],
            "new_start_offset": max(wanted[one], starts[one]),
            "error": None,
        }
        for one in chosen
    ]
    codes: list[ErrorCode] = []
    is_change = bool(moved) and not arguments.flag("dry_run")
    if is_change:
        for one, (code, start) in (await delete_records(session.cluster, moved)).items():
            codes += [code] if code else []
            rows[chosen.index(one)] |= {
                "new_start_offset": None if code else start,
                "error": code.name if code else None,
            }
    found = page(rows, arguments)
    applied = is_change and len(codes) < len(moved)
    facts = {**found.facts, "failed": len(codes), "applied": applied}
    if codes and (hint := hint_of(codes[0])):
        facts["hint"] = hint
    return Result({**facts, "partitions": found.rows})


TOOLS: Final = (
    Tool(
        "list_topics",
        "List topics",
        "Return topics with their numbers of partitions, replicas and records, and the bytes of all "
        "replicas on disk. A value is null if a broker does not report it.",
        Effect.READ,
        list_topics,
        {
            "pattern": text("Only names that match this pattern, such as 'order*'."),
            "include_internal": flag("Also return internal topics."),
            **page_parameters(),
        },
    ),
    Tool(
        "describe_topic",
        "Describe a topic",
        "Return the partitions of a topic with leader, replicas, ISR and offsets, and the "
        "configurations that are set on the topic; null without the permission to see them.",
        Effect.READ,
        describe_topic,
        {"topic": topic(), **page_parameters()},
    ),
    Tool(
        "create_topic",
        "Create a topic",
        "Create a topic and wait until all its partitions have a leader.",
        Effect.WRITE,
        create_topic,
        {
            "topic": topic("Name of the new topic."),
            "partitions": integer(
                "Number of partitions. Default: broker setting num.partitions.", 1, PARTITIONS_MAX
            ),
            "replication_factor": integer(
                "Number of replicas. Default: broker setting default.replication.factor.",
                1,
                REPLICAS_MAX,
            ),
            "configs": pairs("Topic settings by name, such as {'retention.ms': '7d'}."),
            "dry_run": DRY_RUN,
        },
    ),
    Tool(
        "create_partitions",
        "Add partitions to a topic",
        "Increase the number of partitions of a topic. Existing keys may then map to other "
        "partitions. Partitions cannot be removed.",
        Effect.WRITE,
        create_partitions,
        {
            "topic": topic(),
            "total": integer("New number of partitions.", 2, PARTITIONS_MAX, required=True),
            "dry_run": DRY_RUN,
        },
    ),
    Tool(
        "delete_topic",
        "Delete a topic",
        "Delete a topic with all its records. This cannot be undone.",
        Effect.DESTRUCTIVE,
        delete_topic,
        {
            "topic": topic(),
            "topic_id": text("Topic ID in the preview; a topic with another ID is kept."),
            "dry_run": PREVIEW,
        },
    ),
    Tool(
        "delete_records",
        "Delete the oldest records of a topic",
        "Delete the records of a topic before the given offsets. This cannot be undone.",
        Effect.DESTRUCTIVE,
        delete_oldest_records,
        {
            "topic": topic(),
            "before_offsets": offsets(
                "New first offset by partition, such as {'0': 1000}; older records are deleted."
            ),
            "all_records": flag("Delete all records that exist now."),
            "partitions": integers("With `all_records`: only these partitions."),
            "dry_run": PREVIEW,
            **page_parameters(),
        },
        idempotent=True,
    ),
)
