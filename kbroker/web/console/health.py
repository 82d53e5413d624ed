"""Health of a cluster for the overview: problems with their causes, most severe first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import trio

from kbroker.client.cluster import ClusterClient
from kbroker.client.cluster_details import (
    ERROR,
    WARNING,
    Row,
    cluster_problems,
    down_problem,
    leaderless_problem,
    problem_row,
    under_replicated_problem,
)
from kbroker.client.errors import ClientError
from kbroker.client.transaction_problems import (
    OPEN_TRANSACTION_MS,
    PLACES_MAX,
    in_places,
    minutes_of,
    transaction_problem,
)
from kbroker.client.transactions import ONGOING, list_transactions
from kbroker.cluster import NO_LEADER
from kbroker.node.node import Node
from kbroker.protocol.errors import KafkaError
from kbroker.runtime.time_slices import DutyCycle
from kbroker.security.acls import AclResourceType, Resource

from .answers import REST
from .other_nodes import SECONDS_MAX
from .sessions import Viewer
from .trends import GroupTrend

# Maximum number of problems in a response.
PROBLEMS_MAX = 50
# Leaders of clusters with more partitions are only queried by `kbroker cluster health`.
PARTITIONS_CHECKED_MAX = 1_000
# Maximum seconds for the queries to all leaders.
CHECK_SECONDS = 2
# Number of samples (5 minutes) in which a lag has to rise, and the number that must be known.
LAG_SAMPLES, LAG_SAMPLES_MIN = 60, 12
# A lag grows if it rises by this number of records, and by this fraction.
LAG_INCREASE_MIN, LAG_FRACTION_MIN = 100, 0.1
# Time (ms) after the maximum timeout at which a transaction is late, as in Apache Kafka.
LATE_AFTER_MS = 5 * 60_000


class Metadata(NamedTuple):
    """Problems in a node's copy of the metadata.

    Attributes:
        outage: Number of brokers that are down, and of offline and under-replicated partitions.
        problems: The first of these problems.
    """

    outage: dict[str, int]
    problems: list[Row]


async def metadata_problems(node: Node) -> Metadata:
    """Find problems in this node's copy of the metadata, without requests to other nodes."""
    cluster, duty_cycle = node.cluster, DutyCycle(rest=REST)
    offline = under_replicated = 0
    down = sorted(set(cluster.node_ids) - set(cluster.nodes))
    problems = [down_problem(each) for each in down]
    for topic in tuple(cluster.topics.values()):
        for each in topic.partitions:
            await duty_cycle.pause()
            where = f"{topic.name}-{each.index}"
            missing = sorted(set(each.replicas) - set(each.isr))
            has_room = len(problems) < PROBLEMS_MAX
            under_replicated += bool(missing)
            if each.leader == NO_LEADER:
                offline += 1
                if has_room:
                    problems.append(leaderless_problem(where, each.replicas, each.isr))
            elif missing and has_room:
                problems.append(under_replicated_problem(where, missing, down))
    counts = {
        "brokers_down": len(down),
        "offline": offline,
        "under_replicated": under_replicated,
    }
    return Metadata(counts, problems)


def silent_problem(node_id: int) -> Row:
    """Return the problem of a node of this server whose HTTP server does not respond."""
    problem = f"no response within {SECONDS_MAX} s"
    return problem_row("broker", str(node_id), problem, "check this broker's log", WARNING)


async def checked_problems(viewer: Viewer, known: Metadata) -> list[Row]:
    """Query all leaders for problems; use those of the metadata if the queries fail.

    Args:
        viewer: The viewer.
        known: Problems in the metadata.
    """
    reason = f"the queries of all brokers took more than {CHECK_SECONDS} s"
    with trio.move_on_after(CHECK_SECONDS):
        try:
            found = await _queried_problems(viewer)
        except (ClientError, KafkaError, OSError) as error:
            reason = str(error)
        else:
            down = [each for each in known.problems if each["what"] == "broker"]
            reported = {each["where"] for each in found if each["what"] == "broker"}
            return [each for each in down if each["where"] not in reported] + found
    action = "run `kbroker cluster health`"
    failed = problem_row("check", "cluster", f"incomplete check: {reason}", action, WARNING)
    return [failed, *known.problems]


async def _queried_problems(viewer: Viewer) -> list[Row]:
    """Query all leaders; use fresh connections if one broke, for example by a node's restart."""
    try:
        return await cluster_problems(viewer.cluster)
    except OSError:
        return await cluster_problems(viewer.cluster)


# -- groups


def lag_problems(viewer: Viewer, groups: Mapping[str, GroupTrend]) -> list[Row]:
    """Return the groups whose lag grows and that the viewer may describe, largest lag first."""
    rows = []
    for name, trend in groups.items():
        growth = lag_growth(trend.total.values()) if trend.lag else None
        if growth is None or not viewer.may_describe(Resource(AclResourceType.GROUP, name)):
            continue
        before, now = growth
        problem = f"the lag grows: {before:,} records {_minutes(trend)} ago, {now:,} now"
        action = "add consumers, or check whether they fail or are slow"
        if trend.members == 0:
            problem += "; the group has no members"
            action = "start its consumers, or delete the group"
        rows.append((now, problem_row("group", name, problem, action, WARNING)))
    return [row for _, row in sorted(rows, key=lambda each: -each[0])[:PROBLEMS_MAX]]


def _minutes(trend: GroupTrend) -> str:
    known = [each for each in trend.total.values()[-LAG_SAMPLES:] if each is not None]
    minutes = max(len(known) * 5 // 60, 1)
    return f"{minutes} minute{'s' if minutes > 1 else ''}"


def lag_growth(values: Sequence[int | None]) -> tuple[int, int] | None:
    """Return the lag before and now if it grew steadily in the last five minutes.

    Every lag of the newest third exceeds every lag of the oldest third, so that a lag that goes up and
    down is not reported.

    Args:
        values: Lags, oldest first; None if unknown.
    """
    known = [each for each in values[-LAG_SAMPLES:] if each is not None]
    if len(known) < LAG_SAMPLES_MIN:
        return None
    third = len(known) // 3
    before, now = max(known[:third]), min(known[-third:])
    if now - before < max(LAG_INCREASE_MIN, before * LAG_FRACTION_MIN):
        return None
    return known[0], known[-1]


# -- transactions


async def idle_transactions(nodes: Iterable[Node]) -> list[Row]:
    """Return open transactions without recent writes at the partitions that these nodes lead.

    Returns:
        A row per producer: some of the partitions where its transaction is the oldest open one,
        their number, the shortest time without a write, and whether the maximum timeout has passed.
    """
    duty_cycle, found = DutyCycle(rest=REST), dict[int, Row]()
    for node in nodes:
        now_ms = node.context.clock.log_ms()
        late_ms = node.config.transaction_max_timeout_ms + LATE_AFTER_MS
        for topic in tuple(node.cluster.topics.values()):
            for partition in topic.partitions:
                await duty_cycle.pause()
                replica = node.partitions.opened_replica(topic, partition.index)
                if replica is None or not node.partitions.leads(partition):
                    continue
                oldest = replica.log.producers.oldest_open_idle(now_ms)
                if oldest is None or oldest[1] < OPEN_TRANSACTION_MS:
                    continue
                producer_id, idle_ms = oldest
                if len(found) < PROBLEMS_MAX or producer_id in found:
                    row = {
                        "producer_id": producer_id,
                        "partitions": [f"{topic.name}-{partition.index}"],
                        "count": 1,
                        "idle_ms": idle_ms,
                        "is_late": idle_ms > late_ms,
                    }
                    _merge_idle(found, row)
    return list(found.values())


def _merge_idle(found: dict[int, Row], row: Row) -> None:
    """Add a row of `idle_transactions` to the row of the same producer."""
    known = found.setdefault(row["producer_id"], row)
    if known is row:
        return
    known["partitions"] = (known["partitions"] + row["partitions"])[:PLACES_MAX]
    known["count"] += row["count"]
    known["idle_ms"] = min(known["idle_ms"], row["idle_ms"])
    known["is_late"] |= row["is_late"]


async def transaction_problems(cluster: ClusterClient, rows: Iterable[Row]) -> list[Row]:
    """Return a problem for each open transaction without recent writes.

    Args:
        cluster: The cluster, which is queried for the transactional IDs.
        rows: Rows of `idle_transactions` of all processes.
    """
    found: dict[int, Row] = {}
    for row in rows:
        _merge_idle(found, row)
    names = await _names_of(cluster, found) if found else {}
    return [_transaction_problem(row, names.get(producer_id)) for producer_id, row in found.items()]


async def _names_of(cluster: ClusterClient, producer_ids: Iterable[int]) -> dict[int, str]:
    """Return the transactional IDs of producers with an open transaction, as far as known."""
    with trio.move_on_after(CHECK_SECONDS):
        try:
            listed = await list_transactions(cluster, states=[ONGOING], producer_ids=producer_ids)
        except (ClientError, KafkaError, OSError):
            return {}
        return {each.producer_id: each.id for each in listed}
    return {}


def _transaction_problem(row: Row, name: str | None) -> Row:
    severity = ERROR if row["is_late"] else WARNING
    places = in_places(row["partitions"], row["count"])
    problem = f"open without writes for {minutes_of(row['idle_ms'])} in {places}"
    if name is not None:
        return transaction_problem(name, problem, severity) | {"transactional_id": name}
    action = (
        "find the hanging transaction on the page Transactions & storage, and abort it there"
        if row["is_late"]
        else "check its producer; the coordinator aborts the transaction at its timeout"
    )
    problem = f"{problem} (producer {row['producer_id']}); read_committed consumers wait"
    unnamed = problem_row("transaction", row["partitions"][0], problem, action, severity)
    return unnamed | {"transactional_id": None}
