"""Tools for a broker's control port: explanations, faults and snapshots."""

from __future__ import annotations

from typing import Final

from kbroker.text.documents import Json

from .parameters import Arguments, BadArguments, choice, flag, integer, text, topic
from .results import RESULT_LENGTH_MAX, Result
from .tool import PREVIEW, Effect, Session, Tool

SUBJECTS = ("group", "topic", "transactional_id", "client_id")
EFFECTS = (
    *("disconnect", "delay", "throttle", "blackhole"),
    *("truncate_response", "duplicate_response", "corrupt_batch"),
)
# Limits of the duration of a delay, and of the number of requests that a fault hits.
DELAY_MS_MAX, TIMES_MAX = 60_000, 10_000


async def _ask(session: Session, **command: Json) -> dict[str, Json]:
    assert session.control is not None, "offered only with a control port"
    return await session.control.ask(**command)


async def explain(session: Session, arguments: Arguments) -> Result:
    """Return the broker's explanation of the state of an object."""
    given = arguments.given(*SUBJECTS)
    if given not in (*([each] for each in SUBJECTS), ["group", "topic"]):
        raise BadArguments(
            f"give one of {', '.join(SUBJECTS)}, or group and topic of a share group"
        )
    command: dict[str, Json] = {name: arguments.text(name) for name in given}
    if "topic" in command:
        command["partition"] = arguments.number("partition")
    answer = await _ask(session, do="explain", **command)
    found = str(answer["text"])
    is_cut = len(found) > RESULT_LENGTH_MAX
    return Result({"is_cut": is_cut}, {"explanation": found[:RESULT_LENGTH_MAX]})


async def inject_fault(session: Session, arguments: Arguments) -> Result:
    """Arm a fault and return its number."""
    if len(arguments.given("error", "effect")) != 1:
        raise BadArguments("give either `error` or `effect`")
    command: dict[str, Json] = {
        name: arguments.text(name)
        for name in arguments.given("api", "error", "effect", "topic", "group", "client_id")
    }
    for name in arguments.given("ms", "times"):
        command[name] = arguments.number(name)
    # The fault is for an experiment: `kbroker fault check` does not report one without hits.
    answer = await _ask(session, do="fault", optional=True, **command)
    return Result({"fault": answer["fault"], "applied": True})


async def get_fault_hits(session: Session, arguments: Arguments) -> Result:
    """Return how many requests a fault has hit."""
    answer = await _ask(session, do="hits", fault=arguments.number("fault"))
    return Result({"hits": answer["hits"]}, {"near_misses": answer.get("near_misses")})


async def disarm_fault(session: Session, arguments: Arguments) -> Result:
    """Disarm one fault, or all."""
    number = arguments.optional_number("fault")
    if (number is None) != arguments.flag("all"):
        raise BadArguments("give either `fault`, or `all` as true")
    if number is None:
        await _ask(session, do="disarm_faults")
    else:
        await _ask(session, do="disarm", fault=number)
    return Result({"applied": True})


async def take_snapshot(session: Session, _: Arguments) -> Result:
    """Take a snapshot of the broker and return its number."""
    return Result({"snapshot": (await _ask(session, do="snapshot"))["snapshot"], "applied": True})


async def restore_snapshot(session: Session, arguments: Arguments) -> Result:
    """Replace the state of the broker by a snapshot."""
    if not arguments.flag("dry_run"):
        await _ask(session, do="restore", snapshot=arguments.number("snapshot"))
    return Result({"applied": not arguments.flag("dry_run")})


TOOLS: Final = (
    Tool(
        "explain",
        "Explain the state of an object",
        "Return the broker's explanation: what a group waits for and why it rebalanced, whether a "
        "partition is available, the state of a transaction, or the metrics of a client.",
        Effect.READ,
        explain,
        {
            "group": text("Group ID."),
            "topic": topic("Topic of a partition.", required=False),
            "partition": integer("Partition of `topic`.", 0, default=0),
            "transactional_id": text("Transactional ID."),
            "client_id": text("Client ID."),
        },
        needs_control=True,
    ),
    Tool(
        "get_fault_hits",
        "Get the hits of a fault",
        "Return how many requests a fault has hit, and the closest requests that it has not hit.",
        Effect.READ,
        get_fault_hits,
        {"fault": integer("Number of the fault.", 1, required=True)},
        needs_control=True,
    ),
    Tool(
        "inject_fault",
        "Inject a fault",
        "Let the broker answer requests with an error, late, or not at all, to test clients. "
        "Returns the number of the fault.",
        Effect.WRITE,
        inject_fault,
        {
            "api": text("API whose requests to hit, such as Produce or Fetch. Default: all."),
            "error": text("Kafka error code to respond with, such as NOT_LEADER_OR_FOLLOWER."),
            "effect": choice("Effect instead of an error.", EFFECTS),
            "ms": integer("Duration of a delay or throttling in ms.", 1, DELAY_MS_MAX),
            "times": integer("Number of requests to hit. Default: 1.", 1, TIMES_MAX),
            "topic": topic("Only requests for this topic.", required=False),
            "group": text("Only requests of this group."),
            "client_id": text("Only requests of clients with this client ID."),
        },
        needs_control=True,
    ),
    Tool(
        "disarm_fault",
        "Disarm faults",
        "Disarm one fault or all, so that they hit no more requests.",
        Effect.WRITE,
        disarm_fault,
        {
            "fault": integer("Number of the fault.", 1),
            "all": flag("Disarm all faults, including those of other programs."),
        },
        idempotent=True,
        needs_control=True,
    ),
    Tool(
        "take_snapshot",
        "Take a snapshot",
        "Keep the topics, records and groups of the broker in memory, and return the number of the "
        "snapshot.",
        Effect.WRITE,
        take_snapshot,
        needs_control=True,
    ),
    Tool(
        "restore_snapshot",
        "Restore a snapshot",
        "Replace all topics, records and groups of the broker by those of a snapshot. This "
        "disconnects clients and cannot be undone.",
        Effect.DESTRUCTIVE,
        restore_snapshot,
        {"snapshot": integer("Number of the snapshot.", 1, required=True), "dry_run": PREVIEW},
        idempotent=True,
        needs_control=True,
    ),
)
