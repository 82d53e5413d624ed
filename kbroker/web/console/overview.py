"""Overview of the cluster: health, trends, disks, listeners and clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import nlargest
from itertools import zip_longest

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.cluster_details import ERROR, Row
from kbroker.cluster import INTERNAL_TOPICS
from kbroker.runtime.time_slices import DutyCycle
from kbroker.security.acls import CLUSTER, AclOperation, AclResourceType, Resource

from .answers import REST, json_response
from .api import Api
from .disks import disk_rows
from .health import (
    PARTITIONS_CHECKED_MAX,
    PROBLEMS_MAX,
    checked_problems,
    idle_transactions,
    lag_problems,
    metadata_problems,
    silent_problem,
    transaction_problems,
)
from .other_nodes import OWN, Gathered, json_objects
from .rings import SAMPLE_SECONDS
from .sessions import Viewer

# Maximum number of kinds of client software in a response.
SOFTWARE_MAX = 50
# Maximum number of partitions that a problem names.
PLACES_MAX = 100
# Start of the problem of an under-replicated partition; broker IDs follow.
NOT_IN_SYNC = "under-replicated: not in sync on "
# Number of groups with the largest lags whose trends are in a response.
LAGGING_MAX = 5
# Trends that are sums over the nodes, and those whose worst node counts.
SUMS = ("requests_per_second", "bytes_in_per_second", "bytes_out_per_second")
MAXIMA = ("produce_us", "request_us")


class Overview:
    """Route for the overview."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [self._api.read_route("/overview", self._overview)]

    async def _overview(self, request: Request, viewer: Viewer) -> Response:
        may_see = viewer.may(AclOperation.DESCRIBE, CLUSTER)
        if OWN in request.query_params:
            return json_response(await self._own() if may_see else {})
        api, node = self._api, self._api.node
        found = {
            "cluster_id": node.cluster.id,
            "node_id": node.id,
            "state": api.local.state.value,
            "topics": await _count_topics(viewer, node.cluster.topics),
            "groups": await _count_visible(viewer, AclResourceType.GROUP, api.trends.groups),
            "listeners": [
                {
                    "name": listener.name,
                    "address": str(api.local.endpoints()[listener.name]),
                    "tls": listener.certificates is not None,
                    "mechanisms": list(listener.users.mechanisms) if listener.users else [],
                }
                for listener in (api.local.listeners if may_see else [api.listener])
            ],
            "sample_seconds": SAMPLE_SECONDS,
            "sampled_at_ms": api.trends.at_ms,
            "records_per_second": api.trends.records.values() if may_see else None,
            "lag": api.trends.lag.values() if viewer.sees_all else None,
            "group_lags": self._group_lags(viewer),
            "missing_permission": (
                "" if may_see else viewer.missing(AclOperation.DESCRIBE, CLUSTER)
            ),
        }
        return json_response(found | await self._cluster_wide(request, viewer, may_see=may_see))

    async def _cluster_wide(
        self, request: Request, viewer: Viewer, *, may_see: bool
    ) -> dict[str, object]:
        """Return the data that needs DESCRIBE on the cluster; None for each part without it."""
        if not may_see:
            names = ("software", "disks", "problems", "outage", "is_checked", *SUMS, *MAXIMA)
            return dict.fromkeys(names) | {"other_nodes": [], "silent_nodes": []}
        own = await self._own()
        others = await self._api.ask_other_nodes(request, viewer)
        parts: list[Mapping[str, object]] = [own, *others.found.values()]
        idle = json_objects(parts, "idle_transactions")
        problems = await transaction_problems(viewer.cluster, idle)
        known = await metadata_problems(self._api.node)
        topics = self._api.node.cluster.topics.values()
        is_checked = sum(len(topic.partitions) for topic in topics) <= PARTITIONS_CHECKED_MAX
        found = await checked_problems(viewer, known) if is_checked else known.problems
        problems += [*found, *_silent_problems(others, found)]
        problems += lag_problems(viewer, self._api.trends.groups)
        problems = grouped_problems(problems)
        problems.sort(key=lambda each: each["severity"] != ERROR)
        return {
            "software": dict(_software(parts).most_common(SOFTWARE_MAX)),
            "disks": json_objects(parts, "disks"),
            "problems": problems[:PROBLEMS_MAX],
            "outage": known.outage,
            "is_checked": is_checked,
            **{name: merged_samples([part.get(name) for part in parts], sum) for name in SUMS},
            **{name: _merged_percentiles([part.get(name) for part in parts]) for name in MAXIMA},
            **others.row(),
        }

    async def _own(self) -> dict[str, object]:
        """Return the data of the nodes of this process."""
        nodes = self._api.nodes
        software: Counter[str] = Counter()
        for local in self._api.running_nodes:
            for each in tuple(local.server.connections):
                software[each.peer.software or "unknown"] += 1
        return {
            **self._api.trends.own.row(),
            "software": dict(software.most_common(SOFTWARE_MAX)),
            "disks": [row for node in nodes for row in disk_rows(node)],
            "idle_transactions": await idle_transactions(nodes),
        }

    def _group_lags(self, viewer: Viewer) -> list[dict[str, object]]:
        """Return the trends of the groups with the largest lags that the viewer may describe."""
        lags = [
            (trend.lag, name, trend)
            for name, trend in self._api.trends.groups.items()
            if trend.lag and viewer.may_describe(Resource(AclResourceType.GROUP, name))
        ]
        return [
            {"group": name, "lag": lag, "trend": trend.total.values()}
            for lag, name, trend in nlargest(LAGGING_MAX, lags, key=lambda each: each[:2])
        ]


async def _count_topics(viewer: Viewer, names: Collection[str]) -> int:
    """Count the topics that the viewer may describe, without internal ones."""
    kind = AclResourceType.TOPIC
    internal = [each for each in INTERNAL_TOPICS if each in names]
    return await _count_visible(viewer, kind, names) - await _count_visible(viewer, kind, internal)


async def _count_visible(viewer: Viewer, kind: AclResourceType, names: Collection[str]) -> int:
    """Count the resources that the viewer may describe."""
    if viewer.sees_all:
        return len(names)
    duty_cycle, count = DutyCycle(rest=REST), 0
    for name in tuple(names):
        count += viewer.may_describe(Resource(kind, name))
        await duty_cycle.pause()
    return count


def _silent_problems(others: Gathered, known: Iterable[Row]) -> list[Row]:
    """Return the problems of nodes whose consoles do not respond, unless they are known."""
    reported = {each["where"] for each in known if each["what"] == "broker"}
    return [silent_problem(each) for each in others.silent if str(each) not in reported]


def grouped_problems(problems: Iterable[Row]) -> list[Row]:
    """Merge the problems of partitions with one cause, so that they do not hide other problems.

    Args:
        problems: Problems of all types.

    Returns:
        Problems in the given order. One that stands for several has their number as `count`, and
        the first of their partitions as `places`.
    """
    rows = [*problems]
    down = {
        each["where"] for each in rows if each["what"] == "broker" and each["severity"] == ERROR
    }
    groups: dict[tuple[object, ...], list[Row]] = {}
    for each in rows:
        is_alone = each["what"] != "partition"
        cause = (each["what"], each["problem"], each["action"], is_alone and each["where"])
        groups.setdefault(cause, []).append(each)
    return [_merged_problem(each, down) if len(each) > 1 else each[0] for each in groups.values()]


def _merged_problem(rows: list[Row], down: set[object]) -> Row:
    problem = str(rows[0]["problem"])
    missing = problem.removeprefix(NOT_IN_SYNC).split(", ")
    if problem.startswith(NOT_IN_SYNC) and down.issuperset(missing):
        names = (
            f"broker {missing[0]} is" if len(missing) == 1 else f"brokers {', '.join(missing)} are"
        )
        problem = f"under-replicated: {names} down"
    places = [each["where"] for each in rows[:PLACES_MAX]]
    return rows[0] | {"problem": problem, "count": len(rows), "places": places}


def _software(parts: Iterable[Mapping[str, object]]) -> Counter[str]:
    """Return the number of connections by client software, at all nodes."""
    found: Counter[str] = Counter()
    for part in parts:
        rows = part.get("software")
        found.update(rows if isinstance(rows, dict) else {})
    return found


def merged_samples(
    rows: Iterable[object], merge: Callable[[Iterable[int]], int]
) -> list[int | None]:
    """Merge the samples of several processes; the newest ones belong together.

    Args:
        rows: Samples of each process, oldest first; None for an unknown one.
        merge: Merges the known samples of one time.
    """
    newest_first = [row[::-1] for row in rows if isinstance(row, list)]
    merged = []
    for some in zip_longest(*newest_first):
        known = [each for each in some if isinstance(each, int)]
        merged.append(merge(known) if known else None)
    return merged[::-1]


def _merged_percentiles(rows: Iterable[object]) -> dict[str, list[int | None]]:
    """Return the worst percentile of all processes, by name of the percentile."""
    known = [row for row in rows if isinstance(row, dict)]
    names = dict.fromkeys(name for row in known for name in row)
    return {name: merged_samples([row.get(name) for row in known], max) for name in names}
