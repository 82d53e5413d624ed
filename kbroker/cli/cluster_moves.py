"""`kbroker cluster drain`, `rebalance`, `unregister` and `kbroker topic move`: partition placement."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from kbroker.text.sizes import human_size

from .completion import complete_topics
from .confirmation import Change, Preview, count_of, destructive
from .output import Column, format_options, said_on_error, say, show, table
from .patterns import TOPIC, Names, matching_names, regex_option, topic_names
from .target import Target, fail, run, target_options

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.moves import Moves, Placement
    from kbroker.client.topics import Partition

POLL_SECONDS = 0.2
# Maximum number of topics that a message names.
TOPICS_SHOWN_MAX = 20

dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Only print the planned moves; change nothing."
)
no_wait_option = click.option(
    "--no-wait", is_flag=True, help="Start the moves, and do not wait until they are complete."
)


@click.command()
@click.argument("broker", type=click.IntRange(min=0))
@click.option(
    "--undo", is_flag=True, help="Allow new partitions on the broker again, after an earlier drain."
)
@click.option(
    "--allow-fewer-replicas",
    is_flag=True,
    help="Reduce the number of replicas if there are too few other brokers.",
)
@no_wait_option
@destructive
@target_options
def drain(
    target: Target,
    broker: int,
    undo: bool,
    allow_fewer_replicas: bool,
    no_wait: bool,
    change: Change,
) -> None:
    """Move all partitions away from BROKER, and assign no new ones to it. The broker may be down.

    The broker stays drained after restarts and `kbroker cluster rebalance`, until --undo is given.
    Use `kbroker cluster unregister` to remove a broker that will not return.
    """
    from kbroker.client.moves import move_rows, plan_moves

    if undo:
        run(target, lambda cluster: _check_running(cluster, broker))
        preview = Preview(
            "",
            [{"broker": broker, "undo": True}],
            [f"broker {broker}: allow new partitions"],
            is_harmless=True,
        )
        if change.confirm(preview):
            _undo_drain(target, broker)
        return

    def plan(found: Placement) -> Moves:
        from kbroker.cluster.placement import drain as plan_drain

        return plan_drain(found.replicas, broker, found.racks)

    def checked_plan(found: Placement) -> Moves:
        # Other brokers may have stopped since the preview.
        moves = plan(found)
        _check_drain(found.replicas, moves, broker, may_lose_replicas=allow_fewer_replicas)
        return moves

    placed, moves = run(target, lambda cluster: plan_moves(cluster, plan, dry_run=True))
    may_lose_replicas = allow_fewer_replicas or change.is_dry_run
    _check_drain(placed.replicas, moves, broker, may_lose_replicas=may_lose_replicas)
    _say_which_lose_replicas(placed.replicas, moves, broker)
    size = run(target, lambda cluster: _bytes_on(cluster, broker, moves))
    if not change.confirm(_drain_preview(broker, placed, moves, size)):
        return

    async def work(cluster: ClusterClient) -> tuple[Placement, Moves]:
        await _cordon(cluster, broker)
        # The broker may have received partitions before it was cordoned.
        with said_on_error(_incomplete_drain(broker)):
            found, planned = await plan_moves(cluster, checked_plan, dry_run=False)
        if not no_wait:
            await _wait_for_moves(cluster, planned)
        return found, planned

    found, planned = run(target, work)
    rows = move_rows(found.replicas, planned)
    change.report(rows, lambda wide: _move_lines(rows, wide=wide))
    if lines := _restore_lines(found.replicas, planned, broker):
        say(*lines, err=True)


async def _cordon(cluster: ClusterClient, broker: int) -> None:
    """Mark a broker as drained, or print that it is down."""
    from kbroker.client.moves import cordon_broker

    if not await cordon_broker(cluster, broker, cordoned=True):
        say(
            f"broker {broker} is down and cannot be marked as drained: if it returns, it gets new "
            f"partitions; `kbroker cluster unregister {broker}` removes it for good",
            err=True,
        )


async def _check_running(cluster: ClusterClient, broker: int) -> None:
    """Exit if a broker is not running."""
    running = sorted(row.node_id for row in (await cluster.metadata([])).brokers)
    if broker not in running:
        fail(
            f"broker {broker} is not running, so it stays as it is; start it and repeat the command "
            f"(running: {', '.join(map(str, running))})"
        )


def _undo_drain(target: Target, broker: int) -> None:
    """Allow new partitions on a broker, and print how to restore replicas."""
    from kbroker.client.moves import cordon_broker

    run(target, lambda cluster: cordon_broker(cluster, broker, cordoned=False))
    say(
        "topics keep the replicas that they have; `kbroker cluster rebalance` uses the broker "
        "again, and with `--topic NAME --replicas N` restores replicas that the drain removed",
        err=True,
    )
    factor, names = run(target, _topics_with_few_replicas)
    if names:
        shown = ", ".join(names[:TOPICS_SHOWN_MAX])
        more = len(names) - TOPICS_SHOWN_MAX
        say(
            f"topics with fewer replicas than default.replication.factor ({factor}): {shown}"
            f"{f' and {more:,} more' if more > 0 else ''}",
            err=True,
        )


async def _topics_with_few_replicas(cluster: ClusterClient) -> tuple[int, list[str]]:
    """Return the default replication factor, and the topics that have fewer replicas."""
    from kbroker.client.configs import Resource, describe_configs

    metadata = await cluster.metadata()
    name = str(min(row.node_id for row in metadata.brokers))
    keys = ["default.replication.factor"]
    found = (await describe_configs(cluster, Resource.BROKER, [name], keys=keys))[name]
    factor = max((int(each.value or 1) for each in found), default=1)
    names = [
        topic.name or ""
        for topic in metadata.topics
        if not topic.is_internal
        and any(len(part.replica_nodes) < factor for part in topic.partitions)
    ]
    return factor, sorted(names)


def _restore_lines(replicas: Mapping[Partition, list[int]], moves: Moves, broker: int) -> list[str]:
    """Return the commands that restore the replicas that topics lose by a drain."""
    from kbroker.client.moves import drain_problems

    counts: dict[str, int] = {}
    for one in drain_problems(replicas, moves, broker).fewer:
        counts[one[0]] = max(counts.get(one[0], 0), len(replicas[one]))
    if not counts:
        return []
    commands = [
        f"  kbroker cluster rebalance --topic {shlex.quote(name)} --replicas {count}"
        for name, count in sorted(counts.items())
    ]
    undo = f"  kbroker cluster drain {broker} --undo"
    return ["these topics lost replicas; the commands restore them:", undo, *commands]


def _drain_preview(broker: int, placed: Placement, moves: Moves, size: int | None) -> Preview:
    from kbroker.client.moves import move_rows

    rows = move_rows(placed.replicas, moves)
    known = "" if size is None else f" ({human_size(size)})"
    count = count_of(len(rows), "partition")
    return Preview(
        f"Move {count} away from broker {broker}, and assign no new ones to it?",
        rows,
        [f"broker {broker}: move {count}{known} to other brokers, and assign no new ones"],
        lambda wide: _move_lines(rows, wide=wide),
    )


async def _bytes_on(cluster: ClusterClient, broker: int, moves: Moves) -> int | None:
    """Return the size of the moved partitions on a broker; None if the broker does not report it."""
    from kbroker.client.errors import ClientError
    from kbroker.client.log_dirs import describe_log_dirs
    from kbroker.protocol.errors import KafkaError

    try:
        directories = await describe_log_dirs(cluster, [broker])
    except (KafkaError, ClientError):
        return None
    return sum(size for each in directories for one, size in each.sizes.items() if one in moves)


@click.command()
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    default=1,
    help="Minimum number of replicas: add replicas to partitions that have fewer.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_topics,
    help="Add replicas only to this topic, or to topics that match a pattern such as 'shop.*'; can be "
    "given several times.",
)
@dry_run_option
@no_wait_option
@format_options
@target_options
def rebalance(
    target: Target,
    replicas: int,
    topics: tuple[str, ...],
    dry_run: bool,
    no_wait: bool,
    output: str,
) -> None:
    """Distribute partitions and leaders evenly over all brokers, for example after one was added.

    The command moves as few partitions as possible and keeps replicas in different racks. Then it
    elects the preferred leader, the first replica, of every partition, unless --no-wait. Internal
    topics get the replication factor of the brokers' settings once there are enough brokers. With
    --topic, --replicas applies only to these topics; leaders and partitions of all topics can move.
    Drained brokers get no partitions until `kbroker cluster drain BROKER --undo`.
    """
    from kbroker.client.moves import internal_factors

    async def read(cluster: ClusterClient) -> tuple[dict[str, int], set[str]]:
        return await internal_factors(cluster), await _selected_topics(cluster, topics)

    internal, selected = run(target, read)

    def plan(found: Placement) -> Moves:
        from kbroker.cluster.placement import rebalance as plan_rebalance

        at_least = {
            each: internal.get(each[0], replicas if not topics or each[0] in selected else 1)
            for each in found.replicas
        }
        return plan_rebalance(found.replicas, found.racks, at_least)

    drained = _run_moves(
        target, plan, dry_run=dry_run, no_wait=no_wait, output=output, always_elect=True
    ).drained
    for broker in sorted(drained):
        say(
            f"broker {broker} is drained and gets no partitions; "
            f"`kbroker cluster drain {broker} --undo` changes that",
            err=True,
        )


@click.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_topics)
@regex_option
@click.option(
    "--to",
    "brokers",
    required=True,
    metavar="ID,...",
    callback=lambda _context, _option, text: _broker_ids(text),
    help="IDs of the brokers that get all replicas, such as 2,3.",
)
@dry_run_option
@no_wait_option
@format_options
@target_options
def move(
    target: Target,
    names: tuple[str, ...],
    regex: bool,
    brokers: Sequence[int],
    dry_run: bool,
    no_wait: bool,
    output: str,
) -> None:
    """Move all replicas of topics NAMES, which may be patterns, to the brokers of --to.

    Replicas and leaders are distributed evenly over these brokers. Replicas that are there already
    stay. Partitions keep their number of replicas.
    """

    async def select(cluster: ClusterClient) -> list[str]:
        selected = await topic_names(cluster, Names(names, regex))
        await cluster.topics(selected)  # raises NoSuchTopic
        return selected

    selected = run(target, select)

    def plan(found: Placement) -> Moves:
        from kbroker.client.topics import Partition
        from kbroker.cluster.placement import confine

        _check_brokers(found, selected, brokers)
        replicas, moves = found.replicas, dict[Partition, list[int]]()
        for name in selected:
            moved = confine(replicas, name, {each: found.racks[each] for each in brokers})
            replicas, moves = replicas | moved, moves | moved
        return moves

    _run_moves(target, plan, dry_run=dry_run, no_wait=no_wait, output=output)


def _broker_ids(text: str) -> list[int]:
    """Return the IDs of a list such as `2,3`. Raises BadParameter."""
    ids = [each.strip() for each in text.split(",")]
    invalid = next((each for each in ids if not (each.isascii() and each.isdigit())), None)
    if invalid is not None:
        raise click.BadParameter(f"{invalid!r} is not a broker ID; write IDs such as 2,3")
    return list(dict.fromkeys(map(int, ids)))


def _check_brokers(found: Placement, topics: Iterable[str], brokers: Sequence[int]) -> None:
    """Exit if brokers cannot take all replicas of topics."""
    closed = next((each for each in brokers if each not in found.racks), None)
    if closed is not None:
        valid = ", ".join(map(str, sorted(found.racks)))
        action = (
            f"`kbroker cluster drain {closed} --undo` allows partitions there again"
            if closed in found.drained
            else "`kbroker cluster info` shows all brokers"
        )
        state = "drained" if closed in found.drained else "not running"
        fail(f"broker {closed} is {state} (valid: {valid}); {action}")
    factors: dict[str, int] = {}
    for (name, _), nodes in found.replicas.items():
        factors[name] = max(factors.get(name, 0), len(nodes))
    for name in topics:
        if factors.get(name, 0) > len(brokers):
            fail(
                f"{name}: its partitions have {factors[name]} replicas; name at least "
                f"{factors[name]} brokers with --to"
            )


async def _selected_topics(cluster: ClusterClient, topics: tuple[str, ...]) -> set[str]:
    """Return the topics that names or patterns select; a name or pattern without a topic fails."""
    if not topics:
        return set()
    existing = [row.name or "" for row in (await cluster.metadata()).topics]
    return set(matching_names(Names(topics, regex=False), existing, TOPIC, must_exist=True))


@click.command()
@click.argument("broker", type=click.IntRange(min=0))
@destructive
@target_options
def unregister(target: Target, broker: int, change: Change) -> None:
    """Unregister BROKER, which will not return and has no partitions."""
    from kbroker.client.moves import unregister_broker

    row = run(target, lambda cluster: _broker_row(cluster, broker))
    state = "running" if row["running"] else "not running"
    line = f"broker {broker}: {state}, {count_of(int(row['partitions']), 'partition')}"
    if not change.confirm(Preview(f"Unregister broker {broker}?", [row], [line])):
        return
    run(target, lambda cluster: unregister_broker(cluster, broker))
    change.report([row], lambda _: [f"broker {broker}: unregistered"])


async def _broker_row(cluster: ClusterClient, broker: int) -> dict[str, int]:
    """Return the state of a broker, and the number of partitions with a replica there."""
    metadata = await cluster.metadata()
    replicas = [part.replica_nodes for topic in metadata.topics for part in topic.partitions]
    return {
        "broker": broker,
        "running": any(row.node_id == broker for row in metadata.brokers),
        "partitions": sum(broker in nodes for nodes in replicas),
    }


def _check_drain(
    replicas: Mapping[Partition, list[int]], moves: Moves, broker: int, *, may_lose_replicas: bool
) -> None:
    """Exit if partitions cannot move, or if they would lose replicas without permission."""
    from kbroker.client.moves import drain_problems

    immovable, fewer = drain_problems(replicas, moves, broker)
    if immovable:
        fail(
            f"no other broker can take the partitions of {_topic_names(immovable)}; start one, or use a "
            "drained one again with `kbroker cluster drain BROKER --undo`"
        )
    if fewer and not may_lose_replicas:
        fail(
            f"too few other brokers for all replicas of {_topic_names(fewer)}; start one more, or accept "
            "fewer replicas with --allow-fewer-replicas; a restart for maintenance needs no drain, "
            "because leaders move by themselves"
        )


def _say_which_lose_replicas(
    replicas: Mapping[Partition, list[int]], moves: Moves, broker: int
) -> None:
    """Print the topics whose partitions lose a replica."""
    from kbroker.client.moves import drain_problems

    if fewer := drain_problems(replicas, moves, broker).fewer:
        say(f"{len(fewer)} partitions lose one replica: {_topic_names(fewer)}", err=True)


def _incomplete_drain(broker: int) -> str:
    """Return the message for an error after the broker was cordoned."""
    return (
        f"broker {broker} gets no new partitions, but its partitions may not move; repeat the "
        f"command, or undo it with `kbroker cluster drain {broker} --undo`"
    )


def _topic_names(partitions: Iterable[Partition]) -> str:
    return ", ".join(sorted({name for name, _ in partitions}))


def _run_moves(
    target: Target,
    plan: Callable[[Placement], Moves],
    *,
    dry_run: bool,
    no_wait: bool,
    output: str,
    always_elect: bool = False,
) -> Placement:
    """Start and print the moves of a plan; return the placement before the moves."""
    from kbroker.client.moves import move_rows, plan_moves

    placed, moves = run(target, lambda cluster: plan_moves(cluster, plan, dry_run=dry_run))
    rows = move_rows(placed.replicas, moves)
    if not dry_run and not no_wait:
        run(target, lambda cluster: _wait_for_moves(cluster, moves, always_elect=always_elect))
    show(output, rows, lambda wide: _move_lines(rows, wide=wide))
    return placed


def _move_lines(rows: list[dict[str, str]], *, wide: bool) -> list[str]:
    columns = [Column("partition"), Column("from"), Column("to")]
    return table(columns, rows, wide=wide) if rows else ["no moves needed"]


async def _wait_for_moves(
    cluster: ClusterClient, moves: Moves, *, always_elect: bool = False
) -> None:
    """Wait until all moves are complete, then elect the preferred leaders.

    Args:
        cluster: Cluster of the moves.
        moves: The moves.
        always_elect: Elect the leaders even if nothing moves.
    """
    import trio

    from kbroker.client.moves import elect_preferred, list_reassignments

    remaining = math.inf
    try:
        while waiting := moves.keys() & (await list_reassignments(cluster)).keys():
            if len(waiting) < remaining:
                remaining = len(waiting)
                say(f"waiting for {remaining} partition reassignments", err=True)
            await trio.sleep(POLL_SECONDS)
        elected = await elect_preferred(cluster) if moves or always_elect else 0
    except BaseException:
        if moves:
            is_one = len(moves) == 1
            say(
                f"the {'move' if is_one else 'moves'} of {count_of(len(moves), 'partition')} "
                f"{'was' if is_one else 'were'} started, and the brokers complete "
                f"{'it' if is_one else 'them'}; `kbroker topic describe` shows the replicas. "
                "Afterwards, `kbroker cluster rebalance` elects the preferred leaders",
                err=True,
            )
        raise
    if elected:
        say(f"elected the preferred leader of {count_of(elected, 'partition')}", err=True)
