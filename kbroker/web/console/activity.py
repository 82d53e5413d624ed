"""Client activity at the nodes of this process, and explanations of a group, client or partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.errors import ClientError
from kbroker.client.explanations import blocked_sentences, progress_sentences, state_sentences
from kbroker.client.group_details import group_details
from kbroker.cluster import NO_LEADER, TRANSACTIONS_TOPIC
from kbroker.node.activity import ClientActivity, error_name, is_problem
from kbroker.node.explain import (
    NO_METRICS,
    ClientPushes,
    Explanation,
    explain_group,
    explain_partition,
    explain_transaction,
    metric_lines,
)
from kbroker.node.node import Node
from kbroker.partitions.history import Line
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import KafkaError
from kbroker.runtime.cpu_shares import CpuAccount
from kbroker.runtime.time_slices import DutyCycle
from kbroker.security.acls import AclOperation, AclResourceType
from kbroker.text.documents import Json
from kbroker.text.times import iso_time

from .answers import PARTITION_MAX, REST, json_response, json_rows_response, number, path_number
from .api import DESCRIBE_CLUSTER, Api, Permission
from .groups import DESCRIBE_GROUP
from .other_nodes import json_int, json_objects
from .sessions import Viewer
from .topics import DESCRIBE_TOPIC

EVENTS_SHOWN = 200
CLIENTS_SHOWN = 500
DESCRIBE_TRANSACTION = Permission(AclOperation.DESCRIBE, AclResourceType.TRANSACTIONAL_ID, "name")


class Activity:
    """Routes for client activity and explanations."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes."""
        read_route = self._api.read_route
        return [
            read_route("/activity", self._activity, DESCRIBE_CLUSTER),
            read_route("/explain/group/{group:path}", self._group, DESCRIBE_GROUP),
            read_route("/explain/transaction/{name:path}", self._transaction, DESCRIBE_TRANSACTION),
            read_route("/explain/client/{name:path}", self._client, DESCRIBE_CLUSTER),
            read_route("/explain/partition/{topic}/{partition}", self._partition, DESCRIBE_TOPIC),
        ]

    async def _activity(self, request: Request, viewer: Viewer) -> Response:
        after = number(request, "after", 0, 0, 1 << 62)
        duty_cycle, rows = DutyCycle(rest=REST), list[dict[str, Any]]()
        for node in self._api.nodes:
            if node.activity is None:
                continue
            clients = node.activity.clients
            for name in [*reversed(clients)][:CLIENTS_SHOWN]:
                if name in clients:
                    rows.append(_client_row(node, name, clients[name]))
                await duty_cycle.pause()
        others = await self._api.ask_other_nodes(request, viewer)
        rows += json_objects(others.found.values(), "clients")
        own = self._api.node.activity
        events = list(own.since(after))[-EVENTS_SHOWN:] if own is not None else []
        fields = {
            **others.row(),
            "number": events[-1].number if events else after,
            "events": [
                {
                    "number": each.number,
                    "at_ms": each.at_ms,
                    "client_id": each.client_id,
                    "host": each.host,
                    "text": each.text,
                    "problem": each.is_problem,
                    "count": each.times,
                }
                for each in events
            ],
        }
        return await json_rows_response(fields, "clients", rows)

    async def _group(self, request: Request, viewer: Viewer) -> Response:
        name = request.path_params["group"]
        coordinator = self._api.node.groups.coordinator_id(name)
        if (found := await self._api.ask_node(request, viewer, coordinator)) is not None:
            return json_response(found)
        if coordinator in self._api.other_nodes:
            explained = _kept_elsewhere(f"group {name}", coordinator)
        else:
            explained = explain_group(self._api.node_of(coordinator), name)
        try:
            details = await group_details(viewer.cluster, name)
            blocked = await blocked_sentences(viewer.cluster, details)
        except (ClientError, KafkaError):
            return _explanation_response(explained)
        progress = [*state_sentences(details), *progress_sentences(details)]
        return _explanation_response(explained, [*blocked, *progress])

    async def _transaction(self, request: Request, viewer: Viewer) -> Response:
        name = request.path_params["name"]
        node, coordinator = self._api.node, NO_LEADER
        if TRANSACTIONS_TOPIC in node.cluster.topics:
            coordinator = node.transactions.coordinator_id(name)
        if (found := await self._api.ask_node(request, viewer, coordinator)) is not None:
            return json_response(found)
        if coordinator in self._api.other_nodes:
            return _explanation_response(_kept_elsewhere(f"transactional ID {name}", coordinator))
        node = self._api.node_of(coordinator)
        return _explanation_response(explain_transaction(node, name, viewer.may_describe))

    async def _client(self, request: Request, viewer: Viewer) -> Response:
        name = request.path_params["name"]
        pushes = ClientPushes.of(self._api.nodes, name)
        work, account = self._api.node.heavy_work, CpuAccount(viewer.client)
        lines = [await work.run(partial(metric_lines, each), account) for each in pushes.newest]
        explained = pushes.explanation(lines)
        others = await self._api.ask_other_nodes(request, viewer)
        clients: list[Mapping[str, object]] = [
            _client_row(node, name, node.activity.clients[name])
            for node in self._api.nodes
            if node.activity is not None and name in node.activity.clients
        ]
        clients += json_objects(others.found.values(), "clients")
        facts = [*_client_sentences(self._api.nodes, name), explained.now]
        facts += _sentences_of(others.found[each] for each in sorted(others.found))
        if any(each.startswith(f"client {name}: metrics of ") for each in facts):
            facts = [each for each in facts if each != NO_METRICS.format(name)]
        facts += [f"node {each} did not respond" for each in others.silent]
        now, *facts = dict.fromkeys(facts)
        past = [
            Line(json_int(each, "at_ms"), str(each.get("text")))
            for each in json_objects(others.found.values(), "past")
        ]
        return _explanation_response(
            Explanation(now, explained.past).with_events(past), facts, clients
        )

    async def _partition(self, request: Request, viewer: Viewer) -> Response:
        name, index = request.path_params["topic"], path_number(request, "partition", PARTITION_MAX)
        partition = self._api.node.cluster.partition(name, index)
        leader = partition.leader if partition else NO_LEADER
        if (found := await self._api.ask_node(request, viewer, leader)) is not None:
            return json_response(found)
        node = self._api.node_of(leader)
        return _explanation_response(explain_partition(node, name, index, viewer.may_describe))


def _sentences_of(explanations: Iterable[Mapping[str, Json]]) -> Iterator[str]:
    """Yield the sentences of responses of other nodes."""
    for each in explanations:
        facts = each.get("facts")
        yield from (
            text
            for text in (each.get("now"), *(facts if isinstance(facts, list) else ()))
            if isinstance(text, str)
        )


def _kept_elsewhere(what: str, node_id: int) -> Explanation:
    """Return the explanation for an object whose coordinator this console cannot query."""
    now = f"node {node_id} coordinates {what}; its console shows the state and the history"
    return Explanation(now, [])


def _client_row(node: Node, name: str, client: ClientActivity) -> dict[str, object]:
    apis: dict[int, dict[str, Any]] = {
        key: _api_row(key, count) for key, count in client.requests.items()
    }
    problems = 0
    for (key, code), count in client.errors.items():
        api = apis.setdefault(key, _api_row(key, 0))
        api["errors"][error_name(code)] = count
        if is_problem(key, code):
            api["problems"].append(error_name(code))
            problems += count
    return {
        "node": node.id,
        "client_id": name,
        "software": client.software,
        "principal": client.principal,
        "host": client.host,
        "requests": client.requests.total(),
        "errors": client.errors.total(),
        "problems": problems,
        "disconnects": dict(client.disconnects),
        "last_at_ms": client.last_at_ms,
        "apis": sorted(apis.values(), key=lambda each: -each["requests"]),
    }


def _api_row(key: int, count: int) -> dict[str, Any]:
    """Return the requests of an API; `problems` names the errors that are not part of the protocol."""
    return {"api": ApiKey(key).api_name, "requests": count, "errors": {}, "problems": []}


def _client_sentences(nodes: list[Node], name: str) -> list[str]:
    """Return sentences about a client: its software and disconnects."""
    sentences = []
    for node in nodes:
        known = node.activity.clients.get(name) if node.activity is not None else None
        if known is None:
            continue
        who = f"client {name!r} of {known.host}"
        who += f" runs {known.software}" if known.software else " does not report its software"
        requests = known.requests.total()
        sentences.append(
            f"{who}; at node {node.id} it sent {requests:,} request{'s' if requests != 1 else ''}"
        )
        for kind, count in known.disconnects.items():
            closed = "connection" if count == 1 else "connections"
            sentences.append(f"{count} {closed} {kind}")
    return sentences


def _explanation_response(
    explanation: Explanation,
    facts: Sequence[str] = (),
    clients: Sequence[Mapping[str, object]] = (),
) -> Response:
    return json_response(
        {
            "clients": clients,
            "now": explanation.now,
            "facts": facts,
            "past": [
                {"at_ms": each.at_ms, "at": iso_time(each.at_ms), "text": each.text}
                for each in explanation.past
            ],
        }
    )
