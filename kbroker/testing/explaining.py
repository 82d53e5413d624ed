"""Explanations of the state of a broker under test, together with the actions of its test."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kbroker.broker import Broker
from kbroker.node.explain import (
    Explanation,
    explain_client,
    explain_group,
    explain_partition,
    explain_transaction,
)
from kbroker.node.explain_shares import explain_share
from kbroker.partitions.history import Line
from kbroker.protocol.api_keys import ApiKey

from .node_lookup import (
    any_node,
    coordinator_of_group,
    coordinator_of_transactions,
    leader_of,
)
from .rules import Faults, Hit, RequestInfo

# Maximum number of recent actions of the test to keep.
ACTIONS_KEPT = 100
# Maximum number of partitions in the explanation of a topic.
PARTITIONS_SHOWN = 5


class Subject(NamedTuple):
    """The group, topic or transactional id that an action of a test concerns.

    All fields are None if the action concerns everything.
    """

    group: str | None = None
    topic: str | None = None
    transactional_id: str | None = None


EVERYTHING = Subject()


class Action(NamedTuple):
    """An action of a test, and the subject that it concerns."""

    line: Line
    subject: Subject


class Explain:
    """Explanations of the groups, partitions and transactions of one broker.

    The explanations include the faults and actions of the test.
    """

    def __init__(self, broker: Broker, faults: Faults) -> None:
        self._broker = broker
        self._faults = faults
        self._actions: deque[Action] = deque(maxlen=ACTIONS_KEPT)

    def record_action(self, action: str, subject: Subject) -> None:
        """Record an action of the test with the current log time, for explanations."""
        line = Line(self._broker.node.clock.log_ms(), f"the test {action}")
        self._actions.append(Action(line, subject))

    def _actions_to(self, subject: Subject) -> list[Line]:
        return [action.line for action in self._actions if action.subject in (EVERYTHING, subject)]

    def group(self, name: str) -> Explanation:
        """Explain the state of a group."""
        hits = _hit_lines(self._faults, lambda info: name in info.groups)
        actions = self._actions_to(Subject(group=name))
        return explain_group(coordinator_of_group(self._broker, name), name).with_events(
            [*hits, *actions]
        )

    def client(self, client_id: str) -> Explanation:
        """Return the last metrics that clients with a client ID have pushed (KIP-714)."""
        return explain_client([each.node for each in self._broker.nodes], client_id)

    def transaction(self, transactional_id: str) -> Explanation:
        """Explain the state of a transaction."""
        hits = _hit_lines(self._faults, lambda info: info.transactional_id == transactional_id)
        actions = self._actions_to(Subject(transactional_id=transactional_id))
        node = coordinator_of_transactions(self._broker, transactional_id)
        return explain_transaction(node, transactional_id).with_events([*hits, *actions])

    def partition(self, topic: str, index: int) -> Explanation:
        """Explain whether a partition is available."""
        hits = _hit_lines(self._faults, lambda info: _names(info, topic, index))
        actions = self._actions_to(Subject(topic=topic))
        node = leader_of(self._broker, topic, index)
        return explain_partition(node, topic, index).with_events([*hits, *actions])

    def share(self, group: str, topic: str, index: int) -> Explanation:
        """Explain the delivery of a partition to the members of a share group."""
        hits = _hit_lines(
            self._faults, lambda info: group in info.groups or _names(info, topic, index)
        )
        actions = {*self._actions_to(Subject(topic=topic)), *self._actions_to(Subject(group=group))}
        node = leader_of(self._broker, topic, index)
        return explain_share(node, group, topic, index).with_events([*hits, *actions])

    def topic(self, name: str) -> list[Explanation]:
        """Explain the first partitions of a topic.

        If the topic does not exist, the explanation of partition 0 reports that.
        """
        topic = any_node(self._broker).cluster.topic(name)
        count = len(topic.partitions) if topic else 1
        return [self.partition(name, index) for index in range(min(count, PARTITIONS_SHOWN))]


def _names(info: RequestInfo, topic: str, index: int) -> bool:
    partitions = info.partitions.get(topic)
    return partitions is not None and (not partitions or index in partitions)


def _hit_lines(faults: Faults, concerns: Callable[[RequestInfo], bool]) -> Iterator[Line]:
    """Yield a line for each fault and API with hits on requests that concern an object."""
    first: dict[tuple[str, ApiKey], Hit] = {}
    counts: dict[tuple[str, ApiKey], int] = {}
    for hit in faults.hits:
        if concerns(hit.info):
            key = (str(hit.rule), hit.info.api)
            first.setdefault(key, hit)
            counts[key] = counts.get(key, 0) + 1
    for key, hit in first.items():
        more = f" and {counts[key] - 1} more" if counts[key] > 1 else ""
        yield Line(hit.at_ms, f"fault {hit.rule} hit {hit.info}{more}")
