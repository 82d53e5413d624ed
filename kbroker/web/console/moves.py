"""Placement of partitions: replicas, leaders, drained brokers and balance."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.cluster import ClusterClient
from kbroker.client.errors import ClientError
from kbroker.client.moves import (
    DrainProblems,
    Moves,
    Placement,
    cordon_broker,
    drain_problems,
    elect_leader,
    elect_preferred,
    internal_factors,
    list_reassignments,
    move_rows,
    plan_moves,
    reassign_partitions,
)
from kbroker.client.topics import Partition
from kbroker.cluster import NO_LEADER
from kbroker.cluster.placement import confine, drain, rebalance
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.runtime.time_slices import DutyCycle
from kbroker.security.acls import AclOperation

from .answers import (
    PARTITION_MAX,
    REST,
    ApiError,
    api_error_of,
    json_response,
    json_rows_response,
    number,
)
from .api import ALTER_CLUSTER, DESCRIBE_CLUSTER, Api, field, read_json_body
from .sessions import Viewer
from .statuses import CONFLICT

# Maximum number of rows per response.
ROWS_MAX = 500
# Clusters with more partitions are drained and balanced only by the command line, because the plan
# of all moves takes this process too long.
PARTITIONS_PLANNED_MAX = 10_000
# Maximum number of replicas of a partition in a request.
REPLICAS_MAX = 100
# Time limit for undoing the first step of a drain that failed.
UNCORDON_SECONDS = 10


class Moving:
    """Routes that show and change which brokers have and lead partitions."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes."""
        write_route = self._api.write_route
        return [
            self._api.read_route("/placement", self._placement, DESCRIBE_CLUSTER),
            write_route("/placement/reassign", self._reassign, ALTER_CLUSTER),
            write_route("/placement/move-topic", self._move_topic, ALTER_CLUSTER),
            write_route("/placement/cancel", self._cancel, ALTER_CLUSTER),
            write_route("/placement/elect", self._elect, ALTER_CLUSTER),
            write_route("/placement/drain", self._drain, ALTER_CLUSTER),
            write_route("/placement/rebalance", self._rebalance, ALTER_CLUSTER),
        ]

    async def _placement(self, request: Request, viewer: Viewer) -> Response:
        """Return the replicas of partitions, in the order of their topics' names."""
        search = request.query_params.get("search", "").lower()
        limit = number(request, "limit", 100, 1, ROWS_MAX)
        offset = number(request, "offset", 0, 0, PARTITION_MAX)
        rows: list[dict[str, object]] = []
        duty_cycle, matching = DutyCycle(rest=REST), 0
        cluster = self._api.node.cluster
        for name in sorted(cluster.topics):
            topic = cluster.topics.get(name)
            for each in topic.partitions if topic and search in name.lower() else ():
                await duty_cycle.pause()
                matching += 1
                if offset < matching <= offset + limit:
                    rows.append(
                        {
                            "topic": name,
                            "partition": each.index,
                            "leader": each.leader,
                            "replicas": list(each.replicas),
                            "isr": list(each.isr),
                            "adding": list(each.adding),
                            "removing": list(each.removing),
                        }
                    )
        fields = {
            "matching": matching,
            "drained": sorted(set(cluster.nodes) - set(cluster.open_ids)),
            "may_alter": self._api.may_change(viewer, AclOperation.ALTER),
        }
        return await json_rows_response(fields, "partitions", rows)

    async def _reassign(self, request: Request, viewer: Viewer) -> Response:
        """Move the replicas of one partition; the first replica is the preferred leader."""
        body = await read_json_body(request)
        name, index = partition = _partition_in(body)
        row = await _described(viewer.cluster, partition)
        replicas = _ids_in(body, "replicas")
        await _check_brokers(viewer.cluster, replicas)
        dry_run = field(body, "dry_run", bool, True)
        if not dry_run:
            await reassign_partitions(viewer.cluster, {partition: replicas})
        before = row.replica_nodes
        return json_response(
            {
                "dry_run": dry_run,
                "partition": f"{name}-{index}",
                "before": before,
                "after": replicas,
                "adding": [each for each in replicas if each not in before],
                "removing": [each for each in before if each not in replicas],
                "leader": row.leader_id,
                "preferred_leader": replicas[0],
            }
        )

    async def _move_topic(self, request: Request, viewer: Viewer) -> Response:
        """Move all replicas of a topic to some brokers."""
        body = await read_json_body(request)
        topic, brokers = field(body, "topic", str), _ids_in(body, "brokers")
        dry_run = field(body, "dry_run", bool, True)
        await viewer.cluster.topics([topic])  # raises NoSuchTopic
        self._check_size("kafka-reassign-partitions")

        def plan(found: Placement) -> Moves:
            _check_capacity(found, topic, brokers)
            return confine(found.replicas, topic, {each: found.racks[each] for each in brokers})

        placed, moves = await _plan_moves(viewer.cluster, plan, dry_run=dry_run)
        return _moves_response(placed, moves, dry_run=dry_run)

    async def _cancel(self, request: Request, viewer: Viewer) -> Response:
        """Cancel the reassignment of one partition."""
        body = await read_json_body(request)
        name, index = partition = _partition_in(body)
        row = await _described(viewer.cluster, partition)
        if partition not in await list_reassignments(viewer.cluster):
            raise ApiError(CONFLICT, f"{name}-{index} is not being reassigned")
        dry_run = field(body, "dry_run", bool, True)
        if not dry_run:
            await reassign_partitions(viewer.cluster, {partition: None})
        return json_response(
            {"dry_run": dry_run, "partition": f"{name}-{index}", "replicas": row.replica_nodes}
        )

    async def _elect(self, request: Request, viewer: Viewer) -> Response:
        """Elect the preferred leader of one or all partitions, or make a replica the leader.

        A leader that is not the preferred one becomes so: it is first in the new replica order.
        """
        body = await read_json_body(request)
        dry_run = field(body, "dry_run", bool, True)
        if not field(body, "topic", str, ""):
            changes = await self._preferred_changes()
            if not dry_run:
                await elect_preferred(viewer.cluster)
            return json_response({"dry_run": dry_run, "changes": changes})
        name, index = partition = _partition_in(body)
        row = await _described(viewer.cluster, partition)
        unclean = field(body, "unclean", bool, False)
        leader = field(body, "leader", int, row.replica_nodes[0])
        if leader not in row.replica_nodes:
            valid = ", ".join(map(str, row.replica_nodes))
            raise ApiError(400, f"leader: broker {leader} has no replica (valid: {valid})")
        if leader not in row.isr_nodes and not unclean:
            raise ApiError(
                CONFLICT, f"broker {leader} is not in sync; wait until it is, or choose another"
            )
        if not dry_run:
            if leader != row.replica_nodes[0]:
                order = [leader, *(each for each in row.replica_nodes if each != leader)]
                await reassign_partitions(viewer.cluster, {partition: order})
            if leader != row.leader_id:
                await elect_leader(viewer.cluster, partition, unclean=unclean)
        change = {"partition": f"{name}-{index}", "from": row.leader_id, "to": leader}
        return json_response({"dry_run": dry_run, "changes": [change]})

    async def _preferred_changes(self) -> list[dict[str, object]]:
        """Return the partitions that an election of the preferred leaders changes."""
        found: list[dict[str, object]] = []
        duty_cycle = DutyCycle(rest=REST)
        for topic in tuple(self._api.node.cluster.topics.values()):
            for each in topic.partitions:
                await duty_cycle.pause()
                preferred = next(iter(each.replicas), NO_LEADER)
                is_changed = each.leader != preferred and preferred in each.isr
                if is_changed and len(found) < ROWS_MAX:
                    change = {"from": each.leader, "to": preferred}
                    found.append({"partition": f"{topic.name}-{each.index}", **change})
        return found

    async def _drain(self, request: Request, viewer: Viewer) -> Response:
        """Move all partitions away from a broker, and cordon it; or undo the latter."""
        body = await read_json_body(request)
        broker = field(body, "broker", int)
        if broker is None or broker < 0:
            raise ApiError(400, "broker must be the ID of a broker")
        dry_run = field(body, "dry_run", bool, True)
        if field(body, "undo", bool, False):
            if not dry_run and not await cordon_broker(viewer.cluster, broker, cordoned=False):
                raise ApiError(
                    CONFLICT, f"broker {broker} is not running; start it, then try again"
                )
            return json_response({"dry_run": dry_run, "moves": [], "count": 0})
        self._check_size("kbroker cluster drain BROKER")

        allows_fewer = dry_run or field(body, "allow_fewer_replicas", bool, False)

        def plan(found: Placement) -> Moves:
            moves = drain(found.replicas, broker, found.racks)
            _check_drain(drain_problems(found.replicas, moves, broker), allows_fewer=allows_fewer)
            return moves

        placed, moves = await plan_moves(viewer.cluster, plan, dry_run=True)
        cordoned = broker in placed.drained
        if not dry_run:
            async with _cordoned(viewer.cluster, broker, placed) as cordoned:
                # Plan again: the broker may have received partitions before it was cordoned.
                placed, moves = await _plan_moves(viewer.cluster, plan, dry_run=False)
        fewer = drain_problems(placed.replicas, moves, broker).fewer
        names = [f"{name}-{index}" for name, index in fewer[:ROWS_MAX]]
        more = {"fewer_replicas": names, "cordoned": cordoned}
        return _moves_response(placed, moves, dry_run=dry_run, more=more)

    async def _rebalance(self, request: Request, viewer: Viewer) -> Response:
        """Distribute partitions and leaders evenly over all brokers."""
        body = await read_json_body(request)
        dry_run = field(body, "dry_run", bool, True)
        self._check_size("kbroker cluster rebalance")
        internal = await internal_factors(viewer.cluster)

        def plan(found: Placement) -> Moves:
            at_least = {each: internal.get(each[0], 1) for each in found.replicas}
            return rebalance(found.replicas, found.racks, at_least)

        placed, moves = await _plan_moves(viewer.cluster, plan, dry_run=dry_run)
        more = {"drained": sorted(placed.drained)}
        return _moves_response(placed, moves, dry_run=dry_run, more=more)

    def _check_size(self, command: str) -> None:
        """Raise ApiError if a plan for all partitions would take too long."""
        topics = self._api.node.cluster.topics.values()
        if sum(len(topic.partitions) for topic in topics) > PARTITIONS_PLANNED_MAX:
            raise ApiError(
                CONFLICT,
                f"the cluster has more than {PARTITIONS_PLANNED_MAX:,} partitions; use `{command}`",
            )


async def _plan_moves(
    cluster: ClusterClient, plan: Callable[[Placement], Moves], *, dry_run: bool
) -> tuple[Placement, Moves]:
    """Plan moves and start them, as `plan_moves` does.

    Raises:
        KafkaError: A broker rejects a request, and no move is in progress.
        ApiError: A broker rejects a move, but others are in progress; the reason says how many.
    """
    planned: list[Partition] = []

    def plan_and_record(found: Placement) -> Moves:
        moves = plan(found)
        planned.extend(moves)
        return moves

    try:
        return await plan_moves(cluster, plan_and_record, dry_run=dry_run)
    except KafkaError as error:
        ongoing = await list_reassignments(cluster) if planned else {}
        started = sum(each in ongoing for each in planned)
        if dry_run or not started:
            raise
        failed = api_error_of(error)
        reason = f"{failed}; {started} of {len(planned)} reassignments are in progress"
        raise ApiError(failed.status, reason) from None


@asynccontextmanager
async def _cordoned(cluster: ClusterClient, broker: int, placed: Placement) -> AsyncIterator[bool]:
    """Cordon a broker; if the block fails or is cancelled, uncordon it unless it was cordoned before.

    Yields True if the broker is cordoned, False if it is down: once it returns, it gets partitions.
    """
    is_new = broker not in placed.drained
    try:
        yield await cordon_broker(cluster, broker, cordoned=True)
    except BaseException:
        if is_new:
            with trio.move_on_after(UNCORDON_SECONDS) as limit:
                limit.shield = True
                with suppress(KafkaError, ClientError, OSError):  # the first error is reported
                    await cordon_broker(cluster, broker, cordoned=False)
        raise


def _check_drain(problems: DrainProblems, *, allows_fewer: bool) -> None:
    """Raise ApiError if a drain leaves partitions behind, or removes replicas without permission."""
    if problems.immovable:
        raise ApiError(
            CONFLICT,
            f"no other broker can take the partitions of {_topic_names(problems.immovable)}; start one, "
            "or allow partitions on a drained one again",
        )
    if problems.fewer and not allows_fewer:
        raise ApiError(
            CONFLICT,
            f"too few other brokers for all replicas of {_topic_names(problems.fewer)}; start one "
            "more, or allow fewer replicas",
        )


def _check_capacity(found: Placement, topic: str, brokers: Sequence[int]) -> None:
    """Raise ApiError if the brokers cannot take all replicas of a topic."""
    closed = next((each for each in brokers if each not in found.racks), None)
    if closed is not None:
        valid = ", ".join(map(str, sorted(found.racks)))
        raise ApiError(400, f"brokers: broker {closed} is down or drained (valid: {valid})")
    factor = max(len(nodes) for (name, _), nodes in found.replicas.items() if name == topic)
    if len(brokers) < factor:
        raise ApiError(
            400, f"brokers: a partition has {factor} replicas; name at least {factor} brokers"
        )


def _moves_response(
    placed: Placement, moves: Moves, *, dry_run: bool, more: Mapping[str, object] | None = None
) -> Response:
    rows = move_rows(placed.replicas, moves)
    shown: dict[str, object] = {"dry_run": dry_run, "count": len(rows), "moves": rows[:ROWS_MAX]}
    return json_response({**shown, **(more or {})})


def _partition_in(body: Mapping[str, object]) -> Partition:
    index = field(body, "partition", int)
    if index is None or not 0 <= index <= PARTITION_MAX:
        raise ApiError(400, f"partition must be an integer from 0 to {PARTITION_MAX}")
    return field(body, "topic", str), index


def _ids_in(body: Mapping[str, object], name: str) -> list[int]:
    given = field(body, name, list, [])
    ids = [each for each in given if isinstance(each, int) and not isinstance(each, bool)]
    if not ids or len(ids) < len(given) or len(set(ids)) < len(ids):
        raise ApiError(400, f"{name} must be a list of different broker IDs")
    if len(ids) > REPLICAS_MAX:
        raise ApiError(400, f"{name} has {len(ids)} brokers (maximum {REPLICAS_MAX})")
    return ids


async def _described(cluster: ClusterClient, partition: Partition) -> MetadataResponse.Partition:
    """Return the metadata of a partition. Raises NoSuchTopic or ApiError."""
    name, index = partition
    (topic,) = await cluster.topics([name])
    found = next((row for row in topic.partitions if row.partition_index == index), None)
    if found is None:
        raise ApiError(
            404, f"topic {name} has no partition {index}, it has {len(topic.partitions)}"
        )
    return found


async def _check_brokers(cluster: ClusterClient, replicas: Sequence[int]) -> None:
    """Raise ApiError if a broker does not run."""
    running = {row.node_id for row in (await cluster.metadata([])).brokers}
    missing = [each for each in replicas if each not in running]
    if missing:
        valid = ", ".join(map(str, sorted(running)))
        raise ApiError(400, f"replicas: broker {missing[0]} does not run (valid: {valid})")


def _topic_names(partitions: Sequence[Partition]) -> str:
    return ", ".join(sorted({name for name, _ in partitions})[:20])
