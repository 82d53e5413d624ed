"""A broker under test, as async code sees it: the operations of `Kit`, faults, clocks, rest."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from types import MappingProxyType
from typing import TypeVar, Unpack

from kbroker.broker import Broker, Service, open_broker
from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.cluster import Topic
from kbroker.cluster.acl_changes import add_acls
from kbroker.config import BrokerConfig
from kbroker.net.connection import Connection
from kbroker.net.server import Listener
from kbroker.node.explain import has_unstable_records
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.acls import Acl
from kbroker.storage.naming import META_PROPERTIES

from .clock import MovableClock
from .explaining import Explain, Subject
from .fault import Arming, check_faults
from .fault_injector import FaultInjector
from .given import Config, Topics, kit_properties, topics_of
from .idleness import pending_work
from .kit import CLIENT_ID, WAIT_SECONDS, Kit
from .log_tail import LogTail
from .node_operations import NodeOperations
from .releases import limits_of
from .rules import Faults, RequestInfo
from .schedule import AnyRule
from .secured import OPEN, BrokerSecurity, Clients, SecurityOptions, merged, new_broker_security
from .snapshot import (
    NO_PROGRESS,
    Snapshot,
    assign_new_cluster_id,
    prepare_restored_store,
    take_snapshot,
)
from .state_operations import StateOperations
from .stores import MemoryStore, Store, has_crashed
from .transactions import finish_prepared_transactions, known_transactions
from .whereabouts import any_node, leader_of

T = TypeVar("T")

ANY_PORT = Listener("PLAINTEXT", "127.0.0.1", 0)
REQUESTS_SHOWN = 5
"""Of each client, in a report."""
CLIENTS_SHOWN = 10
CRASHED = "the broker has crashed; wait_for_crash() starts it again"
STOPPED = "the broker is stopped; call start() first"
ADVANCE_STEPS_MAX = 32
"""How often logs are looked at while their clock moves, at most."""


class RunningBroker(Kit, StateOperations, NodeOperations, Clients, Arming[Awaitable[None]]):
    """A broker of this process. Get one from `run_broker`.

    It is the same object when the broker is started again: who waits goes on.
    """

    def __init__(
        self,
        broker: Broker,
        cluster: ClusterClient,
        faults: Faults,
        clock: MovableClock,
        log: LogTail,
        store: Store,
        secured: BrokerSecurity,
    ) -> None:
        super().__init__(cluster, broker.node.context.changes, clock.log_ms)
        self._secured = secured
        self.faults = faults
        self.faults.now_ms = clock.log_ms
        self.clock = clock
        self._log = log
        self._store = store
        self.started(broker, cluster)

    def started(self, broker: Broker, cluster: ClusterClient) -> None:
        """The broker has been started, or started again."""
        changes = broker.node.context.changes  # of all nodes
        self.broker = broker
        self.explain = Explain(broker, self.faults)
        self.faults.changed = changes.happened
        self._cluster = cluster
        self._changes = changes
        self.availability.mark_available()

    @property
    def bootstrap_servers(self) -> str:
        """What clients take as their bootstrap.servers."""
        return self.broker.bootstrap_servers

    async def allow(self, user: str, *rights: str) -> None:
        """Let a user do something from now on, as `LocalBroker.allow`. Raises ValueError."""
        await self.add_rules(self._secured.more_rules({user: rights}))

    async def add_rules(self, rules: Iterable[Acl]) -> None:
        """Let ACLs rule from now on."""
        await add_acls(self.broker.running().cluster, rules, cause="the test")

    # -- rest

    async def wait_until_idle(
        self, group: str | None = None, timeout: float = WAIT_SECONDS
    ) -> None:
        """Wait until nothing is on its way any more: all requests answered, no rebalance pending, no
        transaction open or being ended, everything that groups were assigned read and committed (but for compacted topics in which
        they never commit: changelogs). Raises WaitTimeout.

        Parameters: `group` looks at one group only.
        """

        async def look() -> tuple[bool, str | None]:
            reason = pending_work(self.broker, group)
            return reason is None, reason

        await self.wait_until(look, "the broker to come to rest", timeout, group=group)

    async def wait_for_request(
        self, api: ApiKey, client_id: str | None, count: int, timeout: float
    ) -> None:
        """Wait until clients (or the one named) have sent so many requests of an API."""

        async def look() -> tuple[bool, str]:
            seen = sum(
                number
                for (key, client), number in self.faults.counts.items()
                if key == api and client_id in (None, client)
            )
            return seen >= count, f"{seen} requests"

        await self.wait_until(look, f"{count} {api.api_name} requests", timeout)

    async def wait_for_hits(self, rule: AnyRule, hits: int, timeout: float) -> None:
        """Wait until a fault has hit so many requests."""

        async def look() -> tuple[bool, str]:
            return rule.hits >= hits, self.faults.report(rule)

        await self.wait_until(look, f"{hits} hits of {rule}", timeout)

    async def cap_versions(self, versions: str | Mapping[str, int | None] | None) -> None:
        """Play an older broker: serve what a release of Kafka did ("3.9"), or only up to these
        versions ({"Fetch": 11}, None for no such API at all). None takes it back.

        Connections are closed, so that clients ask again. It is about versions only: what is
        asked is done as ever. Raises ValueError for a release or API that does not exist.
        """
        self.faults.limits = limits_of(versions) if versions is not None else {}
        for connection in self._connections():
            injector = connection.requests.interceptor
            if isinstance(injector, FaultInjector) and not injector.is_exempt:
                connection.close()

    def _connections(self) -> list[Connection]:
        return [each for node in self.broker.nodes for each in node.server.connections]

    # -- time

    async def advance(self, span_ms: int) -> None:
        """Move the log's clock; returns when everything that is due by then has been done.

        Retention, expiry and compaction look at the logs several times on the way, as they do while
        time passes: what one look finds may depend on what an earlier one did.
        """
        self.record_action(f"moved the logs' clock {span_ms / 1000:g} s ahead")
        interval_ms = self.broker.node.config.retention_check_interval_ms
        step_ms = max(interval_ms, math.ceil(span_ms / ADVANCE_STEPS_MAX))
        for start_ms in range(0, max(span_ms, 1), step_ms):
            self.clock.log.add(min(step_ms, span_ms - start_ms))
            await self._run_log_tasks()

    async def _run_log_tasks(self) -> None:
        for node in self.broker.running_nodes:
            await node.maintenance.log_manager_tasks.apply_retention_now()
            for coordinators in node.coordinators:
                await coordinators.expire()
            if node.config.log_cleaner_enable:
                await node.maintenance.cleaner.clean_all()
            await node.partitions.flusher.sync_now()

    async def advance_coordinator(self, span_ms: int, *, keep_members: bool) -> None:
        """Move the coordinators' clock; returns when the time-outs due by then were acted on.

        In the order in which they are due, those that earlier ones brought about among them.
        """
        self.record_action(f"moved the coordinators' clock {span_ms / 1000:g} s ahead")
        clock = self.clock.coordinator
        target_ms = clock.now_ms() + span_ms
        while (due_ms := self._next_deadline(keep_members)) is not None and due_ms <= target_ms:
            clock.move_to(due_ms)
            await self._act_on_time_outs(keep_members)
        clock.move_to(target_ms)
        await self._act_on_time_outs(keep_members)

    async def _act_on_time_outs(self, keep_members: bool) -> None:
        nodes = self.broker.running_nodes
        for node in nodes:
            if keep_members:
                node.groups.renew_sessions()
            for coordinators in node.coordinators:
                coordinators.deadlines.clock_moved()
            node.share.partitions.clock_moved()
        await finish_prepared_transactions(nodes)

    def _next_deadline(self, keep_members: bool) -> int | None:
        deadlines = []
        for node in self.broker.running_nodes:
            if keep_members:
                node.groups.renew_sessions()
            deadlines += [coordinators.deadlines.next() for coordinators in node.coordinators]
        return min((each for each in deadlines if each is not None), default=None)

    # -- snapshots

    async def snapshot(self) -> Snapshot:
        """What it holds now; see `LocalBroker.snapshot`."""
        if len(self.broker.nodes) > 1:
            raise ValueError("a snapshot is of a broker with one node, this one has several")
        return await take_snapshot(self.broker.node, self._store, self.clock.states())

    async def _call_while_available(self, look: Callable[[], Awaitable[T]]) -> T:
        """As in `Kit`; a look that was at a node which goes away is taken again."""

        async def again() -> T:
            try:
                return await look()
            except OSError:
                if len(self.broker.nodes) == 1:
                    raise
                return await look()

        return await super()._call_while_available(lambda: self.call_with_retries(again))

    @property
    def has_crashed(self) -> bool:
        return has_crashed(self._store)

    # -- reports

    def armed(self) -> str:
        """A line for each fault, and for each hook that failed."""
        lines = [f"armed: {rule}, {rule.hits} hits" for rule in self.faults.rules]
        return "\n".join(lines + [f"a hook raised {error!r}" for error in self.faults.failures])

    def record_action(
        self,
        action: str,
        *,
        group: str | None = None,
        topic: str | None = None,
        transactional_id: str | None = None,
    ) -> None:
        self.explain.record_action(action, Subject(group, topic, transactional_id))

    def why(self, *, group: str | None = None, topic: str | None = None) -> str:
        """What is known of why something about a group or topic did not happen."""
        if self.has_crashed:
            return CRASHED
        if not self.availability.is_available:
            return "the broker is just being started again"
        explanations = self.explain.topic(topic) if topic is not None else []
        if group is not None:
            explanations.append(self.explain.group(group))
        return "\n".join(filter(None, [*map(str, explanations), self.armed()]))

    async def report(self) -> str:
        """What it holds and what it was asked lately, for a person who looks at a failed test."""
        lines = [f"broker {self.bootstrap_servers}"]
        nodes = self.broker.running_nodes
        if len(self.broker.nodes) > 1:
            lines += map(str, self.nodes())
        for node in nodes:
            await node.partitions.open_all()
        for topic in any_node(self.broker).cluster.topics.values():
            lines += self._topic(topic)
        for node in nodes:
            for shard in node.groups.shards():
                for group in shard.coordinator.list_groups():
                    lines.append(str(self.explain.group(group.group_id)))
        for _, transactional_id, _ in known_transactions(nodes):
            lines.append(str(self.explain.transaction(transactional_id)))
        lines += filter(None, [self.armed()])
        lines += recent_activity(self.faults, self._log)
        return "\n".join(lines)

    def _topic(self, topic: Topic) -> Iterator[str]:
        leaders = [leader_of(self.broker, topic.name, each.index) for each in topic.partitions]
        logs = [node.partitions.logs.get(topic.name, index) for index, node in enumerate(leaders)]
        ends = [str(log.high_watermark) if log else "0" for log in logs]
        yield f"topic {topic.name}: ends at {', '.join(ends)}"
        for index, partition in enumerate(topic.partitions):
            log = logs[index]
            is_led = partition.leader == leaders[index].id
            if not is_led or (log is not None and (log.offline or has_unstable_records(log))):
                yield str(self.explain.partition(topic.name, index))


def recent_activity(faults: Faults, log: LogTail) -> Iterator[str]:
    """What each client asked last, oldest first, and the last lines that were logged."""
    by_client: dict[str, deque[RequestInfo]] = {}
    for info in faults.log:
        by_client.setdefault(info.client_id, deque(maxlen=REQUESTS_SHOWN)).append(info)
    for client, requests in list(by_client.items())[-CLIENTS_SHOWN:]:
        total = sum(n for (_, name), n in faults.counts.items() if name == client)
        yield f"client {client!r} sent {total} requests, the last ones:"
        yield from (f"  {info}" for info in requests)
    if faults.calls:
        yield f"the schema registry was asked {len(faults.calls)} times lately, the last ones:"
        yield from (f"  {call}" for call in [*faults.calls][-REQUESTS_SHOWN:])
    yield from (f"log: {line}" for line in log.lines)


async def fill(config: BrokerConfig, store: Store, clock: MovableClock, snapshot: Snapshot) -> None:
    """Let a broker that is about to start for the first time hold what a snapshot does.

    It is another cluster, with an id of its own. Raises ValueError: it holds something already.
    """
    for directory in store.directories:
        if store.files.exists(f"{directory}/{META_PROPERTIES}"):
            raise ValueError(
                f"{directory} has data already; load a snapshot into an empty directory"
            )
    store.take(snapshot.store)
    clock.restore_state(snapshot.clocks)
    await assign_new_cluster_id(store)
    await prepare_restored_store(config, store, clock, NO_PROGRESS)


@contextlib.asynccontextmanager
async def run_broker(
    config: BrokerConfig,
    store: Store,
    *,
    faults: Faults,
    clock: MovableClock,
    log: LogTail,
    listeners: Sequence[Listener] = (ANY_PORT,),
    nodes: int | None = None,
    racks: Sequence[str] = (),
    listeners_of: Mapping[int, Sequence[Listener]] = MappingProxyType({}),
    cluster_id: str | None = None,
    grace_seconds: float = 0,
    earlier: RunningBroker | None = None,
    service: Service | None = None,
    secured: BrokerSecurity = OPEN,
) -> AsyncIterator[RunningBroker]:
    """Run a broker that faults hit, by default on 127.0.0.1; see `kbroker.broker.open_broker`.

    Parameters: `log` keeps the last lines that it logs; `earlier` is the broker that is started
    again.
    """
    opened = open_broker(
        config,
        data_dir=store.data_dirs,
        files=store.files,
        clock=clock,
        listeners=list(listeners),
        nodes=nodes,
        racks=racks,
        listeners_of=listeners_of,
        grace_seconds=grace_seconds,
        cluster_id=cluster_id,
        intercept=partial(FaultInjector, faults),
        service=service,
    )
    with log.collecting():
        async with (
            opened as broker,
            open_cluster(
                [each.endpoint for each in broker.nodes], CLIENT_ID, dial=broker.dial_inside
            ) as cluster,
        ):
            if earlier is None:
                running = RunningBroker(broker, cluster, faults, clock, log, store, secured)
            else:
                running = earlier
                running.started(broker, cluster)
            try:
                yield running
            finally:
                running.availability.mark_unavailable()


@contextlib.asynccontextmanager
async def open_test_broker(
    *,
    topics: Topics | None = None,
    config: Config | None = None,
    load: Snapshot | None = None,
    nodes: int = 1,
    **trust: Unpack[SecurityOptions],
) -> AsyncIterator[RunningBroker]:
    """A fresh broker in memory for tests that are trio programs themselves.

    Parameters: as of `LocalBroker`, also `trust`. Raises ValueError for what cannot be meant, and
    UnfiredFault at the end when a fault hit nothing.
    """
    secured = new_broker_security(nodes=nodes, **trust)
    rules = secured.rules(trust.get("acls") or {})
    settings = BrokerConfig.load(options=merged(kit_properties(config or {}), secured.properties()))
    store, clock, faults = MemoryStore(settings.memory_limit_bytes), MovableClock(), Faults()
    if load is not None:
        await fill(settings, store, clock, load)
    opened = run_broker(
        settings,
        store,
        faults=faults,
        clock=clock,
        log=LogTail(),
        listeners=[secured.listener(settings)],
        nodes=nodes,
        secured=secured,
    )
    async with opened as broker:
        await broker.add_rules(rules)
        for name, partitions in topics_of(topics or {}).items():
            await broker.create_topic(name, partitions)
        try:
            yield broker
        finally:
            broker.availability.mark_closed("the broker has been closed")
    check_faults(faults)
