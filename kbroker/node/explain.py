"""Explanations of the state of groups, transactions, partitions and clients, with their history.

Coordinators report their changes to `Shards.run`, and partition changes are reported to
`Partitions`. Both keep a `History`, which this module converts to sentences.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from heapq import nlargest
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kbroker.cluster import NO_LEADER, TRANSACTIONS_TOPIC
from kbroker.coordinator import (
    Event,
    TransactionCoordinator,
    TransactionEvent,
    TransactionMetadata,
    TransactionState,
    some_of,
)
from kbroker.coordinator_runtime.causes import PREPARING, cause_of
from kbroker.partitions.history import Line, clock_time, describe_state
from kbroker.protocol.errors import KafkaError
from kbroker.security.acls import AclResourceType, Resource
from kbroker.storage.log import Log
from kbroker.text.printable import printable

from .client_metrics import Pushed

if TYPE_CHECKING:
    from .node import Node


MayDescribe: TypeAlias = Callable[[Resource], bool]
# Replaces a name that the reader may not describe.
HIDDEN = "(hidden)"


def allow_every_resource(_: Resource) -> bool:
    """Return True: the reader may describe every resource."""
    return True


class Explanation(NamedTuple):
    """Current state of a resource, and the events that led to it, oldest first."""

    now: str
    past: list[Line]

    def with_events(self, lines: Iterable[Line]) -> Explanation:
        """Return a copy with more events, in order of time; new events precede old ones."""
        return Explanation(self.now, sorted([*lines, *self.past], key=lambda line: line.at_ms))

    def __str__(self) -> str:
        return "\n".join([printable(self.now), *(f"  {line}" for line in self.past)])


def explain_group(node: Node, group_id: str) -> Explanation:
    """Explain the state of a group."""
    past = list(group_lines(node.groups.history.of(group_id)))
    try:
        coordinator = node.groups.shard(group_id).coordinator
        status = coordinator.describe_status(group_id, node.groups.now())
    except KafkaError as error:
        return Explanation(f"group {group_id} has no coordinator here: {error}", past)
    if status is None:
        return Explanation(f"group {group_id} does not exist", past)
    committed_ms = coordinator.last_commit_ms(group_id)
    if committed_ms is not None:
        age_ms = max(node.clock.log_ms() - committed_ms, 0)
        status += f"; last commit at {clock_time(committed_ms)} ({age_ms / 1000:.0f} s ago)"
    return Explanation(status, past)


def group_lines(events: Iterable[Event]) -> Iterator[Line]:
    """Yield a sentence for each change of one group."""
    before = None
    for event in events:
        if event.state == PREPARING != before:
            text = f"rebalance {event.generation + 1} because {cause_of(event)}"
        else:
            text = f"{cause_of(event)}; {event.state}, generation {event.generation}"
        before = event.state
        yield Line(event.at_ms, text)


# Explanation of a client without metrics.
NO_METRICS = "client {} has sent no metrics (KIP-714)"
# Maximum number of metrics per client.
METRICS_SHOWN = 1_000
# Maximum number of clients with one client ID whose metrics are read.
CLIENTS_SHOWN = 20
# Maximum number of characters of a metric's name, and of its attributes.
TEXT_MAX = 500


def explain_client(nodes: Iterable[Node], client_id: str) -> Explanation:
    """Explain the metrics that clients with a client ID pushed last to any node (KIP-714).

    This takes up to 50 ms for each client, so not in the event loop of a server; see `ClientPushes`.
    """
    pushes = ClientPushes.of(nodes, client_id)
    return pushes.explanation([metric_lines(each) for each in pushes.newest])


class ClientPushes(NamedTuple):
    """Metrics that clients with one client ID pushed last.

    Attributes:
        client_id: The client ID.
        clients: Number of clients.
        newest: Pushes of up to `CLIENTS_SHOWN` clients, the newest first.
    """

    client_id: str
    clients: int
    newest: list[Pushed]

    @classmethod
    def of(cls, nodes: Iterable[Node], client_id: str) -> ClientPushes:
        """Return what the clients pushed to any of the nodes."""
        found = [
            pushed
            for node in nodes
            for labels, pushed in node.client_metrics.latest()
            if labels["client_id"] == client_id
        ]
        return cls(client_id, len(found), nlargest(CLIENTS_SHOWN, found, lambda it: it.at_ms))

    def explanation(self, lines: Iterable[list[Line]]) -> Explanation:
        """Return the explanation with the `metric_lines` of the newest pushes."""
        if not self.clients:
            return Explanation(NO_METRICS.format(self.client_id), [])
        text = f"client {self.client_id}: metrics of {self.clients}"
        if self.clients > len(self.newest):
            text += f", the newest {len(self.newest)} of them are shown"
        return Explanation(text, [*chain.from_iterable(lines)])


def metric_lines(pushed: Pushed) -> list[Line]:
    """Return a sentence about each metric of a push. This takes up to 50 ms."""
    try:
        metrics = pushed.metrics(METRICS_SHOWN)
    except ValueError as error:
        return [Line(pushed.at_ms, f"cannot parse the metrics: {error}")]
    lines = []
    for each in metrics:
        attributes = ", ".join(f"{key}={value}" for key, value in each.attributes.items())
        text = f"{each.name[:TEXT_MAX]}{{{attributes[:TEXT_MAX]}}} {each.value:.12g}"
        lines.append(Line(pushed.at_ms, text))
    return lines


def explain_transaction(
    node: Node, transactional_id: str, may_describe: MayDescribe = allow_every_resource
) -> Explanation:
    """Explain the state of a transaction.

    Args:
        node: Node to ask.
        transactional_id: Transactional ID of the producer.
        may_describe: Returns True for resources that the reader may describe.
    """
    past = list(_list_transaction_events(node.transactions.history.of(transactional_id)))
    if TRANSACTIONS_TOPIC not in node.cluster.topics:
        return Explanation(f"transactional id {transactional_id} does not exist", past)
    try:
        coordinator = node.transactions.shard(transactional_id).coordinator
    except KafkaError as error:
        now = f"transactional id {transactional_id} has no coordinator here: {error}"
        return Explanation(now, past)
    now = _describe_transaction(node, coordinator, transactional_id, may_describe)
    return Explanation(now, past)


def _describe_transaction(
    node: Node,
    coordinator: TransactionCoordinator,
    transactional_id: str,
    may_describe: MayDescribe,
) -> str:
    known = coordinator.transactions.get(transactional_id)
    if known is None:
        return f"transactional id {transactional_id} does not exist"
    producer = f"producer {known.producer_id}, epoch {known.epoch},"
    named = [
        f"{topic}-{index}" if may_describe(Resource(AclResourceType.TOPIC, topic)) else HIDDEN
        for topic, index in sorted(known.partitions)
    ]
    partitions = some_of(named)
    if known.state is TransactionState.ONGOING:
        activity = f"has a transaction {_open_since(node, known)} in {partitions}"
        deadline_ms = coordinator.deadline(transactional_id)
        if deadline_ms is not None:
            left_ms = max(deadline_ms - node.clock.coordinator_ms(), 0)
            activity += f"; it is aborted in {left_ms / 1000:.1f} s"
    elif known.state.is_prepared:
        activity = f"has markers to be written to {partitions}"
    else:
        activity = "has no transaction open"
    return f"transactional id {transactional_id} is {known.state.label}: {producer} {activity}"


def _open_since(node: Node, transaction: TransactionMetadata) -> str:
    open_ms = max(node.clock.log_ms() - transaction.started_ms, 0)
    return f"open since {clock_time(transaction.started_ms)} ({open_ms / 1000:.1f} s)"


def _list_transaction_events(events: Iterable[TransactionEvent]) -> Iterator[Line]:
    for event in events:
        now = f"{event.state}, producer {event.producer_id}, epoch {event.epoch}"
        yield Line(event.at_ms, f"{event.cause}; {now}")


def explain_partition(
    node: Node, topic: str, index: int, may_describe: MayDescribe = allow_every_resource
) -> Explanation:
    """Explain why a partition is online or offline, and what holds back read_committed consumers.

    Args:
        node: Node to ask.
        topic: Topic of the partition.
        index: Number of the partition.
        may_describe: Returns True for resources that the reader may describe.
    """
    past = [*node.partitions.history.of((topic, None)), *node.partitions.history.of((topic, index))]
    return Explanation(_describe_partition(node, topic, index, may_describe), []).with_events(past)


def _describe_partition(node: Node, topic: str, index: int, may_describe: MayDescribe) -> str:
    name = f"partition {topic}-{index}"
    partition = node.cluster.partition(topic, index)
    if partition is None:
        known = node.cluster.topic(topic)
        if known is None:
            return f"{name} does not exist: topic {topic} does not exist"
        return f"{name} does not exist: topic {topic} has {len(known.partitions)} partitions"
    if partition.leader == NO_LEADER:
        return (
            f"{name} has no leader: none of its replicas {partition.replicas} is running; start one"
        )
    if partition.leader != node.id:
        return f"{name} is led by node {partition.leader}; query that node"
    reason = node.partitions.offline_reason(topic, index)
    if reason is not None:
        return f"{name} is offline on node {node.id}: {reason}"
    refusal = node.partitions.logs.read_only_reason(topic, index)
    if refusal is not None:
        return f"{name} is read-only on node {node.id}: {refusal}"
    log = node.partitions.logs.get(topic, index)
    now = f"{name} is online: {describe_state(partition)}"
    if log is not None and has_unstable_records(log):
        return f"{now}; {_explain_unstable(node, topic, index, log, may_describe)}"
    return now


def has_unstable_records(log: Log) -> bool:
    """Return True if the last stable offset is below the high watermark."""
    return log.last_stable_offset < log.high_watermark


def _explain_unstable(
    node: Node, topic: str, index: int, log: Log, may_describe: MayDescribe
) -> str:
    offset = log.last_stable_offset
    first = f"read_committed consumers cannot read offset {offset} and later"
    starts = ((it.transaction_start, producer_id) for producer_id, it in log.producers)
    producer_id = next((each for start, each in starts if start == offset), None)
    if producer_id is None:
        return f"{first}: a transaction marker is being written"
    for _, transactional_id, known in node.transactions.known():
        resource = Resource(AclResourceType.TRANSACTIONAL_ID, transactional_id)
        name = transactional_id if may_describe(resource) else HIDDEN
        if known.producer_id == producer_id and known.state is TransactionState.ONGOING:
            producer = f"producer {producer_id} (transactional id {name})"
            state = f"{producer} has a transaction {_open_since(node, known)} there"
            return f"{first}: {state}; {_abort_command(name)}"
        if known.producer_id == producer_id and known.state.is_prepared:
            return f"{first}: the transaction of {name} is {known.state.label}, a marker is pending"
    return (
        f"{first}: producer {producer_id} has an open transaction that is unknown to the "
        "coordinators of this node; "
        f"`kbroker cluster txn abort-hanging {topic} {index} {offset}` aborts it"
    )


def _abort_command(name: str) -> str:
    argument = "ID" if name == HIDDEN else shlex.quote(name)
    return f"`kbroker cluster txn abort {argument}` aborts it"
