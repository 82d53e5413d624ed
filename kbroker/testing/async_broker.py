"""A broker under test for async code: operations, faults, clocks and idleness."""

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

import trio

from kbroker.broker import Broker, Service, open_broker
from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.errors import first_error
from kbroker.cluster import Topic
from kbroker.cluster.acl_changes import add_acls
from kbroker.config import BrokerConfig
from kbroker.net.connection import Connection
from kbroker.net.server import Listener
from kbroker.node.explain import has_unstable_records
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.acls import Acl
from kbroker.storage.naming import META_PROPERTIES

from .arguments import Config, Topics, in_process_properties, topics_of
from .broker_security import (
    UNSECURED,
    BrokerSecurity,
    ClientAccess,
    SecurityOptions,
    merge_properties,
    new_broker_security,
)
from .clock import MovableClock
from .explaining import Explain, Subject
from .fault import Arming, check_faults
from .fault_injector import FaultInjector
from .idleness import pending_work
from .kit import CLIENT_ID, WAIT_SECONDS, Kit
from .log_tail import LogTail
from .node_lookup import any_node, leader_of
from .node_operations import NodeOperations
from .releases import limits_of
from .rules import Faults, RequestInfo
from .schedule import AnyRule
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

T = TypeVar("T")

ANY_PORT = Listener("PLAINTEXT", "127.0.0.1", 0)
# Maximum number of recent requests per client in a report.
REQUESTS_SHOWN = 5
# Maximum number of clients in a report.
CLIENTS_SHOWN = 10
CRASHED = "the broker has crashed; wait_for_crash() starts it again"
STOPPED = "the broker is stopped; call start() first"
# Maximum number of steps of one `advance` of the log clock. Retention and compaction run after each
# step.
ADVANCE_STEPS_MAX = 32


class RunningBroker(Kit, StateOperations, NodeOperations, ClientAccess, Arming[Awaitable[None]]):
    """A broker in this process. Create one with `run_broker`.

    The object survives restarts of the broker, so that waits continue after them.
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
        self.attach(broker, cluster)

    def attach(self, broker: Broker, cluster: ClusterClient) -> None:
        """Attach to a broker that was started or restarted."""
        changes = broker.node.context.changes  # all nodes share one object
        self.broker = broker
        self.explain = Explain(broker, self.faults)
        self.faults.changed = changes.notify
        self._cluster = cluster
        self._changes = changes
        self.availability.mark_available()

    @property
    def bootstrap_servers(self) -> str:
        """Value of the clients' `bootstrap.servers`: HOST:PORT, with commas between several."""
        return self.broker.bootstrap_servers

    async def allow(self, user: str, *rights: str) -> None:
        """Add ACLs for a user; see `LocalBroker.allow`.

        Args:
            user: User name; "*" for all users.
            rights: Permissions, for example "READ topic orders".

        Raises:
            ValueError: A permission is malformed, the user does not exist, or the broker was
                created without ACLs.
        """
        await self.add_acls(self._secured.additional_acls_of({user: rights}))

    async def add_acls(self, acls: Iterable[Acl]) -> None:
        """Add ACLs."""
        await add_acls(self.broker.running().cluster, acls, cause="the test")

    # -- idleness

    async def wait_until_idle(
        self, group: str | None = None, timeout: float = WAIT_SECONDS
    ) -> None:
        """Wait until the broker, or one group, is idle.

        Idle means: all requests are answered, no rebalance is pending, no transaction is open, and
        all dead letters of share groups are written. All records in the partitions that are
        assigned to group members are consumed and committed. A compacted topic in which a group
        never commits, for example a changelog, does not count.

        Args:
            group: Group to check; None for the whole broker.
            timeout: Maximum seconds to wait.

        Raises:
            WaitTimeout: Work is still in progress; the message describes it.
        """

        async def observe() -> tuple[bool, str | None]:
            reason = pending_work(self.broker, group)
            return reason is None, reason

        await self.wait_until(observe, "the broker to become idle", timeout, group=group)

    async def wait_for_request(
        self, api: ApiKey, client_id: str | None, count: int, timeout: float
    ) -> None:
        """Wait until clients have sent a number of requests of an API.

        Args:
            api: API key.
            client_id: Count only requests with this client ID; None counts all.
            count: Minimum number of requests so far.
            timeout: Maximum seconds to wait.

        Raises:
            WaitTimeout: There are fewer requests; the message has their number.
        """

        async def observe() -> tuple[bool, str]:
            seen = sum(
                number
                for (key, client), number in self.faults.counts.items()
                if key == api and client_id in (None, client)
            )
            return seen >= count, f"{seen} requests"

        await self.wait_until(observe, f"{count} {api.api_name} requests", timeout)

    async def wait_for_hits(self, rule: AnyRule, hits: int, timeout: float) -> None:
        """Wait until a fault has hit a number of requests.

        Args:
            rule: Rule of the fault.
            hits: Number of hits to wait for.
            timeout: Maximum seconds to wait.

        Raises:
            WaitTimeout: The fault has fewer hits; the message lists the most similar requests.
        """

        async def observe() -> tuple[bool, str]:
            return rule.hits >= hits, self.faults.report(rule)

        await self.wait_until(observe, f"{hits} hits of {rule}", timeout)

    async def cap_versions(self, versions: str | Mapping[str, int | None] | None) -> None:
        """Serve only the API versions of an older broker.

        Connections are closed, so that clients negotiate versions again. The broker handles the
        remaining requests as before.

        Args:
            versions: A release of Apache Kafka ("3.9"), or the newest version by API (`{"Fetch":
                11}`, None to hide the API). None removes the limits.

        Raises:
            ValueError: The release, API or version does not exist.
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
        """Move the log clock ahead; return when all due work is done.

        The clock moves in several steps. Retention, expiration and compaction run after each step,
        because the result of one run may depend on an earlier run.

        Args:
            span_ms: Time to add, in ms.
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
        """Move the coordinator clock ahead; return when all due timeouts are handled.

        Timeouts are handled in the order in which they are due. This includes new timeouts that
        earlier timeouts cause.

        Args:
            span_ms: Time to add, in ms.
            keep_members: Renew the session of each member before each timeout.
        """
        self.record_action(f"moved the coordinators' clock {span_ms / 1000:g} s ahead")
        clock = self.clock.coordinator
        target_ms = clock.now_ms() + span_ms
        while (due_ms := self._next_deadline(keep_members)) is not None and due_ms <= target_ms:
            clock.move_to(due_ms)
            await self._handle_timeouts(keep_members)
        clock.move_to(target_ms)
        await self._handle_timeouts(keep_members)

    async def _handle_timeouts(self, keep_members: bool) -> None:
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
        """Take a snapshot of the current data; see `LocalBroker.snapshot`.

        Raises:
            ValueError: The broker has several nodes.
            StorageError: The data cannot be copied.
        """
        if len(self.broker.nodes) > 1:
            raise ValueError(
                "cannot take a snapshot: the broker has several nodes; use a broker with one node"
            )
        return await take_snapshot(self.broker.node, self._store, self.clock)

    async def _call_while_available(self, observe: Callable[[], Awaitable[T]]) -> T:
        """Call `observe` as `Kit` does, and once more if a node went down while it was called."""

        async def call_twice() -> T:
            try:
                return await observe()
            except OSError:
                if len(self.broker.nodes) == 1:
                    raise
                return await observe()

        return await super()._call_while_available(lambda: self.call_with_retries(call_twice))

    @property
    def has_crashed(self) -> bool:
        return has_crashed(self._store)

    # -- reports

    def describe_armed_faults(self) -> str:
        """Return a line for each armed fault, and a line for each exception of a hook."""
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

    def explain_state(self, *, group: str | None = None, topic: str | None = None) -> str:
        """Explain the state of a group or topic, and list the armed faults."""
        if self.has_crashed:
            return CRASHED
        if not self.availability.is_available:
            return "the broker is restarting"
        explanations = self.explain.topic(topic) if topic is not None else []
        if group is not None:
            explanations.append(self.explain.group(group))
        return "\n".join(filter(None, [*map(str, explanations), self.describe_armed_faults()]))

    async def report(self) -> str:
        """Return the state and the recent requests of the broker, for reports of failed tests."""
        lines = [f"broker {self.bootstrap_servers}"]
        nodes = self.broker.running_nodes
        if len(self.broker.nodes) > 1:
            lines += map(str, self.nodes())
        for node in nodes:
            await node.partitions.open_all()
        for topic in any_node(self.broker).cluster.topics.values():
            lines += self._describe_topic(topic)
        for node in nodes:
            for shard in node.groups.shards():
                for group in shard.coordinator.list_groups():
                    lines.append(str(self.explain.group(group.group_id)))
        for _, transactional_id, _ in known_transactions(nodes):
            lines.append(str(self.explain.transaction(transactional_id)))
        lines += filter(None, [self.describe_armed_faults()])
        lines += recent_activity(self.faults, self._log)
        return "\n".join(lines)

    def _describe_topic(self, topic: Topic) -> Iterator[str]:
        leaders = [leader_of(self.broker, topic.name, each.index) for each in topic.partitions]
        logs = [node.partitions.logs.get(topic.name, index) for index, node in enumerate(leaders)]
        ends = [str(log.high_watermark) if log else "0" for log in logs]
        yield f"topic {topic.name}: high watermarks {', '.join(ends)}"
        for index, partition in enumerate(topic.partitions):
            log = logs[index]
            is_led = partition.leader == leaders[index].id
            if not is_led or (log is not None and (log.offline or has_unstable_records(log))):
                yield str(self.explain.partition(topic.name, index))


def recent_activity(faults: Faults, log: LogTail) -> Iterator[str]:
    """Yield lines with the last requests of each client, registry calls and log lines."""
    by_client: dict[str, deque[RequestInfo]] = {}
    for info in faults.log.copy():
        by_client.setdefault(info.client_id, deque(maxlen=REQUESTS_SHOWN)).append(info)
    for client, requests in list(by_client.items())[-CLIENTS_SHOWN:]:
        total = sum(n for (_, name), n in faults.counts.items() if name == client)
        yield f"client {client!r} sent {total} requests, the last ones:"
        yield from (f"  {info}" for info in requests)
    if faults.calls:
        yield f"the schema registry got {len(faults.calls)} recent calls, the last ones:"
        yield from (f"  {call}" for call in [*faults.calls][-REQUESTS_SHOWN:])
    yield from (f"log: {line}" for line in log.lines.copy())


async def fill_store(
    config: BrokerConfig, store: Store, clock: MovableClock, snapshot: Snapshot
) -> None:
    """Fill the empty store of a new broker from a snapshot, with a new cluster ID.

    Raises:
        ValueError: The store is not empty.
    """
    for directory in store.directories:
        if store.files.exists(f"{directory}/{META_PROPERTIES}"):
            raise ValueError(
                f"cannot load a snapshot into {directory}: it has data; use an empty directory"
            )
    store.replace_data(snapshot.store)
    clock.restore_state(snapshot.clocks)
    await assign_new_cluster_id(store)
    await prepare_restored_store(config, store, clock, NO_PROGRESS)


def failure_reason(failure: BaseException) -> str:
    """Return why calls and waits of a broker that ended by itself fail."""
    cause = first_error(failure) if isinstance(failure, BaseExceptionGroup) else failure
    return f"the broker has failed: {cause!r}; start() starts it again"


def run_broker(
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
    secured: BrokerSecurity = UNSECURED,
) -> contextlib.AbstractAsyncContextManager[RunningBroker]:
    """Run a broker with fault injection, by default on 127.0.0.1.

    Args:
        config: Settings.
        store: Storage of the data.
        faults: Armed faults.
        clock: Clocks.
        log: Gets the log lines of the broker.
        listeners: Listeners of the first node.
        nodes: Number of nodes; None for the number of nodes in the store, or one if it is empty.
        racks: Rack of each node.
        listeners_of: Listeners of nodes, by node ID, from an earlier run.
        cluster_id: Cluster ID of a new cluster; None for a random one.
        grace_seconds: Maximum seconds of each phase of a graceful stop.
        earlier: The broker of the previous run, if this is a restart.
        service: Service to run together with the broker.
        secured: Security of the listeners.

    Returns:
        A context with the running broker, which is `earlier` if that is given.

    Raises:
        CannotListen: On entry, if a listener cannot be opened.
        StorageError: On entry, if the data cannot be read.
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
    return _running(opened, earlier, faults, clock, log, store, secured)


@contextlib.asynccontextmanager
async def _running(
    opened: contextlib.AbstractAsyncContextManager[Broker],
    earlier: RunningBroker | None,
    faults: Faults,
    clock: MovableClock,
    log: LogTail,
    store: Store,
    secured: BrokerSecurity,
) -> AsyncIterator[RunningBroker]:
    running = earlier
    try:
        with log.collecting():
            async with (
                opened as broker,
                open_cluster(
                    [each.endpoint for each in broker.nodes], CLIENT_ID, dial=broker.dial_inside
                ) as cluster,
            ):
                if running is None:
                    running = RunningBroker(broker, cluster, faults, clock, log, store, secured)
                else:
                    running.attach(broker, cluster)
                try:
                    yield running
                finally:
                    running.availability.mark_unavailable()
    except Exception as error:
        if running is not None and not has_crashed(store):
            running.availability.mark_closed(failure_reason(error))
        raise


@contextlib.asynccontextmanager
async def open_test_broker(
    *,
    topics: Topics | None = None,
    config: Config | None = None,
    load: Snapshot | None = None,
    nodes: int = 1,
    **security: Unpack[SecurityOptions],
) -> AsyncIterator[RunningBroker]:
    """Run an empty broker in memory, for tests that are trio programs.

    Args:
        topics: Topics to create: the number of partitions by name, or names of topics with one
            partition.
        config: Broker properties of Kafka and kbroker.
        load: Snapshot to start from.
        nodes: Number of nodes.
        security: `tls`, `users`, `tokens`, `certificates`, `acls` and `super_users`; see
            `LocalBroker`.

    Yields:
        The running broker.

    Raises:
        ValueError: The arguments are invalid or contradict each other.
        ConfigError: A property is unknown or has an invalid value.
        RuntimeError: The event loop is not one of trio.
        UnfiredFault: At the end, a fault has hit nothing.
    """
    if not trio.lowlevel.in_trio_task():
        raise RuntimeError(
            "open_test_broker needs an event loop of trio; in asyncio, use LocalBroker, and run its "
            "calls in a thread (asyncio.to_thread)"
        )
    secured = new_broker_security(nodes=nodes, **security)
    acls = secured.acls_of(security.get("acls") or {})
    settings = BrokerConfig.load(
        options=merge_properties(in_process_properties(config or {}), secured.properties())
    )
    store, clock, faults = MemoryStore(settings.memory_limit_bytes), MovableClock(), Faults()
    if load is not None:
        await fill_store(settings, store, clock, load)
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
        await broker.add_acls(acls)
        for name, partitions in topics_of(topics or {}).items():
            await broker.create_topic(name, partitions)
        try:
            yield broker
        finally:
            broker.availability.mark_closed("the broker is closed")
    check_faults(faults)
