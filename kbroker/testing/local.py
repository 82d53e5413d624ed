"""A broker for synchronous test code, run in a thread of this process."""

from __future__ import annotations

from collections.abc import (
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar

from kbroker.broker import Service
from kbroker.client.groups import Group
from kbroker.client.topics import Partition
from kbroker.config import BrokerConfig
from kbroker.net.server import Listener
from kbroker.security.acls import Acl
from kbroker.storage.crash_files import Mode

from .arguments import Config, Partitions, Topics, in_process_properties, topics_of
from .async_broker import (
    CRASHED,
    RunningBroker,
    fill_store,
    recent_activity,
    run_broker,
)
from .broker_security import (
    HOST,
    BrokerSecurity,
    ClientAccess,
    Passwords,
    Permissions,
    merge_properties,
    new_broker_security,
)
from .broker_thread import BrokerThread
from .clock import MovableClock, milliseconds
from .dead_letters import DeadLetter
from .disk import Disk, DiskFaults, PowerCut
from .expectation import Expectation
from .fault import NO_REGISTRY, Arming, check_faults
from .kafka_record import KafkaRecord
from .kit import WAIT_SECONDS, Headers, Kit, Value
from .known_records import KnownRecords
from .local_nodes import LocalNodes
from .log_tail import LogTail
from .names import api_key
from .registry_fault import FaultInjectingApp
from .restartable import RestartableBroker
from .rules import Faults
from .schedule import AnyRule
from .snapshot import Snapshot, prepare_restored_store, read_progress
from .stores import BreakableStore, Store, check_directories, has_crashed, new_store

if TYPE_CHECKING:
    from kbroker.schemas.service import RegistryService

P = ParamSpec("P")
T = TypeVar("T")


class KafkaHandle:
    """Operations and waits of a test on one cluster, for synchronous code.

    Create a broker in this process with `LocalBroker`. Connect to an external cluster with
    `kbroker.testing.ExternalKafka`.
    """

    _thread: BrokerThread

    def __init__(self) -> None:
        self._known = KnownRecords()
        # Expectations that no call of `within` has waited for yet.
        self._unawaited: list[Expectation] = []

    @property
    def _kit(self) -> Kit:
        raise NotImplementedError

    @property
    def _watched(self) -> Kit:
        """Kit whose waits continue while the broker restarts."""
        return self._kit

    @property
    def bootstrap_servers(self) -> str:
        """Value of the clients' `bootstrap.servers`: HOST:PORT, with commas between several."""
        raise NotImplementedError

    def _call(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(partial(call, *args, **kwargs))

    def create_topic(self, name: str, partitions: int = 1, configs: Config | None = None) -> None:
        """Create a topic, and wait until it is usable.

        Args:
            name: Topic name.
            partitions: Number of partitions.
            configs: Topic configs, for example `{"retention.ms": 1000}`.

        Raises:
            KafkaError: The broker rejected the topic.
        """
        self._call(self._kit.create_topic, name, partitions, configs)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until no broker lists it any more.

        Args:
            name: Topic name.

        Raises:
            KafkaError: The broker rejected the deletion.
            WaitTimeout: A broker still lists the topic.
        """
        self._call(self._kit.delete_topic, name)
        self._known.forget(name)

    def topics(self) -> dict[str, int]:
        """Return the number of partitions of each topic, without internal topics."""
        return self._call(self._kit.topics)

    def produce(
        self,
        topic: str,
        value: Value,
        *,
        key: Value = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> KafkaRecord:
        """Append one record with acks=all, and create the topic if it does not exist.

        Args:
            topic: Topic name.
            value: Value: bytes as they are, a string as UTF-8, everything else as JSON.
            key: Key, converted like the value.
            partition: Partition number; None selects it by the key, as the default partitioner of
                Kafka's Java client does.
            headers: Headers by name, or pairs of name and value.
            timestamp: Timestamp in ms since the Unix epoch; None for the time of `clock`.

        Returns:
            The record with its partition and offset.

        Raises:
            ValueError: The partition does not exist, the timestamp is out of range, or the headers
                are invalid.
            KafkaError: The broker rejected the record.
        """
        record = self._call(
            self._kit.produce,
            topic,
            value,
            key=key,
            partition=partition,
            headers=headers,
            timestamp=timestamp,
        )
        self._known.add([record])
        return record

    def records(self, topic: str, *, committed: bool = True) -> list[KafkaRecord]:
        """Return all records of a topic, ordered by timestamp, partition and offset.

        Args:
            topic: Topic name.
            committed: Read as read_committed consumers do. False also returns the records of open
                and aborted transactions.

        Raises:
            NoSuchTopic: The topic does not exist.
        """
        return self._call(self._kit.records, topic, committed=committed)

    def group(self, name: str) -> Group | None:
        """Return a group as its coordinator describes it, or None if the group does not exist.

        Args:
            name: Group ID.
        """
        return self._call(self._kit.group, name)

    def committed(self, group: str) -> dict[Partition, int]:
        """Return the committed offset of a group for each partition.

        Args:
            group: Group ID.
        """
        return self._call(self._kit.committed, group)

    def lag(self, group: str) -> int:
        """Return the number of records that a group has yet to consume; see `Kit.lag`.

        Args:
            group: Group ID.

        Raises:
            NoSuchGroup: The group does not exist.
        """
        return self._call(self._kit.lag, group)

    def configure_group(self, group: str, configs: Config) -> None:
        """Set configs of a group, which need not exist, and wait until they are in effect.

        Args:
            group: Group ID.
            configs: Group configs, for example `{"share.delivery.count.limit": 2}`.

        Raises:
            KafkaError: The broker rejected a config.
            WaitTimeout: The broker still describes other values.
        """
        self._call(self._kit.configure_group, group, configs)

    def dead_letters(self, group: str) -> list[DeadLetter]:
        """Return the records in the dead-letter queue of a share group, the oldest first.

        Args:
            group: Group ID. Records of other groups in the same topic are left out.

        Raises:
            ValueError: The group has no dead-letter queue.
        """
        return self._call(self._kit.dead_letters, group)

    def wait_for_dead_letters(
        self, group: str, count: int = 1, timeout: float = WAIT_SECONDS
    ) -> list[DeadLetter]:
        """Wait until the dead-letter queue of a share group has a number of records.

        Args:
            group: Group ID.
            count: Minimum number of dead letters.
            timeout: Maximum seconds to wait.

        Returns:
            All dead letters of the group, the oldest first.

        Raises:
            WaitTimeout: There are fewer dead letters; the message lists the newest ones. If the
                broker cannot write to the queue, the message has the reason.
        """
        found = self._call(self._watched.wait_for_dead_letters, group, count, timeout)
        self._known.add(each.record for each in found)
        return found

    def wait_for(
        self,
        topic: str,
        count: int | None = None,
        match: Callable[[KafkaRecord], bool] | None = None,
        timeout: float = WAIT_SECONDS,
    ) -> list[KafkaRecord]:
        """Wait until a topic has a number of matching records.

        Args:
            topic: Topic name.
            count: Minimum number of matching records; None for 1.
            match: Returns True for the records to count; None counts all.
            timeout: Maximum seconds to wait.

        Returns:
            All matching records.

        Raises:
            WaitTimeout: There are fewer matching records; the message lists the newest others.
        """
        found = self._call(self._watched.wait_for, topic, count, match, timeout)
        self._known.add(found)
        return found

    def wait_for_group(
        self,
        group: str,
        members: int | None = None,
        state: str | None = "Stable",
        timeout: float = WAIT_SECONDS,
    ) -> Group:
        """Wait until a group has a state and a number of members.

        Args:
            group: Group ID.
            members: Number of members; None for any.
            state: State as Kafka names it, in any case; None for any.
            timeout: Maximum seconds to wait.

        Returns:
            The group as its coordinator describes it.

        Raises:
            ValueError: The state does not exist.
            WaitTimeout: The group is not in that state; the message has its last state.
        """
        return self._call(self._watched.wait_for_group, group, members, state, timeout)

    def wait_for_assignment(
        self, group: str, partitions: Partitions, timeout: float = WAIT_SECONDS
    ) -> Group:
        """Wait until exactly the given partitions are assigned to the members of a group.

        Args:
            group: Group ID.
            partitions: Pairs of topic and partition, or partition numbers by topic.
            timeout: Maximum seconds to wait.

        Returns:
            The group as its coordinator describes it.

        Raises:
            ValueError: `partitions` is neither pairs nor a mapping.
            WaitTimeout: The assignment differs; the message has the last one.
        """
        return self._call(self._watched.wait_for_assignment, group, partitions, timeout)

    def wait_for_commit(
        self, group: str, topic: str, partition: int, offset: int, timeout: float = WAIT_SECONDS
    ) -> int:
        """Wait until a group has committed at least an offset in a partition.

        Args:
            group: Group ID.
            topic: Topic name.
            partition: Partition number.
            offset: Minimum committed offset.
            timeout: Maximum seconds to wait.

        Returns:
            The committed offset.

        Raises:
            WaitTimeout: The committed offset is lower; the message has the last one.
        """
        return self._call(self._watched.wait_for_commit, group, topic, partition, offset, timeout)

    def wait_for_lag(
        self, group: str, lag: int = 0, timeout: float = WAIT_SECONDS
    ) -> dict[Partition, int]:
        """Wait until a group has committed offsets, does not rebalance and has a small lag.

        For a share group, wait only until the lag is small.

        Args:
            group: Group ID.
            lag: Maximum lag, in records.
            timeout: Maximum seconds to wait.

        Returns:
            The committed offsets; an empty dictionary for a share group.

        Raises:
            WaitTimeout: The lag is larger; the message has the committed offsets.
        """
        return self._call(self._watched.wait_for_lag, group, lag, timeout)

    def expect(self, topic: str) -> Expectation:
        """Return an expectation of a record: `expect("orders").key("a").within("2s")`.

        Args:
            topic: Topic name.
        """
        expected = Expectation(topic, self._wait_for_expected)
        self._unawaited.append(expected)
        return expected

    def _wait_for_expected(self, expected: Expectation, timeout: float) -> KafkaRecord:
        if expected in self._unawaited:
            self._unawaited.remove(expected)
        (found, *_) = self._call(
            self._watched.wait_for,
            expected.topic,
            None,
            expected.matches,
            timeout,
            what=str(expected),
            nearness=expected.nearness,
        )
        self._known.add([found])
        return found

    # -- idleness

    def wait_until_idle(self, group: str | None = None, timeout: float = WAIT_SECONDS) -> None:
        """Wait until the cluster, or one group, is idle.

        See `RunningBroker.wait_until_idle` for what idle means. For an external cluster, see
        `ExternalKit.wait_until_idle`.

        Args:
            group: Group to check; None for the whole cluster.
            timeout: Maximum seconds to wait.

        Raises:
            WaitTimeout: Work is still in progress; the message describes it.
        """
        self._call(self._watched.wait_until_idle, group, timeout)

    def expect_nothing(self, topic: str, timeout: float = WAIT_SECONDS) -> None:
        """Wait until the cluster is idle, then check that a topic has no unexpected record.

        These records are expected: records that existed before the test, records that `produce` has
        appended, and records that `expect` or `wait_for` has returned.

        Args:
            topic: Topic name; the topic need not exist.
            timeout: Maximum seconds to wait until the cluster is idle.

        Raises:
            AssertionError: The topic has other records; the message lists them.
            WaitTimeout: The cluster is not idle.
        """
        self.wait_until_idle(timeout=timeout)
        found = self._call(self._kit.wait_for, topic, 0)  # the topic need not exist
        unexpected = self._known.unknown(found)
        if unexpected:
            lines = "\n  ".join(map(str, unexpected))
            raise AssertionError(
                f"{topic!r} has records that the test has not produced, expected or waited for:"
                f"\n  {lines}"
            )

    def _remember_log_ends(self) -> None:
        """Remember the log end offsets; later records are new to the test."""
        self._known.begin(self._call(self._kit.log_end_offsets))


class LocalBroker(KafkaHandle, LocalNodes, ClientAccess, Arming[None]):
    """An empty broker on a free port, with its own data; it exists until `close`.

    Use it in a `with` statement, or call `close`.

    Args:
        topics: Topics to create: the number of partitions by name, or names of topics with one
            partition.
        config: Broker properties of Kafka and kbroker.
        data_dir: Data directory, or several; None keeps the data in memory.
        load: Snapshot to start from, or the directory where one was saved.
        disk: Keep the data on a disk in memory that fails on demand; see `disk`.
        tls: Use TLS, with a certificate of a CA that is created for this broker.
        users: Passwords of the users that authenticate with SCRAM or PLAIN.
        tokens: Names of the users that authenticate with a token (OAUTHBEARER).
        certificates: Names of the users that authenticate with a client certificate. Implies `tls`.
        acls: Permissions by user, for example `{"alice": ["READ topic orders"]}`; see `allow`.
            Everything else is denied. None disables ACLs.
        super_users: Users that ACLs do not restrict.
        thread: Thread to run in, which other brokers may share; None creates one.
        store: Storage of the data; replaces `data_dir` and `disk`.
        listeners: Listeners; None for one on localhost.
        secured: Security of the listeners; replaces `tls`, `users`, `tokens`, `certificates`,
            `acls` and `super_users`.
        nodes: Number of nodes; None for the number that the data directory has, or one.
        racks: Rack of each node.
        cluster_id: Cluster ID; None for a random one, or that of the data directory.
        grace_seconds: Maximum seconds of each phase of a graceful stop.
        service: Service to run together with the broker; see `kbroker.broker.open_broker`.
        schema_registry: True to run a schema registry (needs `kbroker[registry]`), or a registry
            service to run.

    Attributes:
        clock: Clocks of the broker.
        faults: Armed faults and the recent requests.
        explain: Explanations of the state of groups, partitions and transactions.

    Raises:
        ValueError: The arguments are invalid or contradict each other.
        ConfigError: A property is unknown or has an invalid value.
    """

    clock: BrokerClock
    faults: Faults

    def __init__(
        self,
        *,
        topics: Topics | None = None,
        config: Config | BrokerConfig | None = None,
        data_dir: str | Sequence[str] | None = None,
        load: Snapshot | str | Path | None = None,
        disk: bool = False,
        tls: bool = False,
        users: Passwords | None = None,
        tokens: Sequence[str] = (),
        certificates: Sequence[str] = (),
        acls: Permissions | None = None,
        super_users: Sequence[str] = (),
        thread: BrokerThread | None = None,
        store: Store | None = None,
        listeners: Sequence[Listener] | None = None,
        secured: BrokerSecurity | None = None,
        nodes: int | None = None,
        racks: Sequence[str] = (),
        cluster_id: str | None = None,
        grace_seconds: float = 0,
        service: Service | None = None,
        schema_registry: bool | RegistryService | None = False,
    ) -> None:
        super().__init__()
        wanted = topics_of(topics or {})
        self.faults = Faults()
        self.clock = BrokerClock(self)
        self.explain = BrokerExplain(self)
        self._log = LogTail()
        if disk and (nodes or 1) > 1:
            raise ValueError("disk=True is the disk of a broker with one node")
        self._secured = secured or new_broker_security(
            tls=tls,
            users=users,
            tokens=tokens,
            certificates=certificates,
            acls=acls,
            super_users=super_users,
            nodes=nodes or 1,
        )
        new_acls = self._secured.acls_of(acls or {})
        if not isinstance(config, BrokerConfig):
            properties = merge_properties(
                in_process_properties(config or {}), self._secured.properties()
            )
            config = BrokerConfig.load(options=properties)
        self._config = config
        self._store = store or new_store(data_dir, disk=disk, bytes_max=config.memory_limit_bytes)
        if secured is None and listeners is not None:
            self._secured = replace(self._secured, has_custom_listeners=True)
        listeners = listeners or [self._secured.listener(config)]
        self._registry = self._select_registry(schema_registry, listeners)
        self._own_thread = thread is None
        self._thread = thread or BrokerThread()
        opening = self._run_opener(racks, cluster_id, grace_seconds, service)
        self._life = RestartableBroker(opening, self._store, self._thread, listeners, nodes)
        self._start_with(load, wanted, new_acls)

    def _run_opener(
        self,
        racks: Sequence[str],
        cluster_id: str | None,
        grace_seconds: float,
        service: Service | None,
    ) -> Callable[..., AbstractAsyncContextManager[RunningBroker]]:
        """Return the function that opens a run of the broker; see `RestartableBroker`."""
        return partial(
            run_broker,
            self._config,
            self._store,
            faults=self.faults,
            clock=self.clock.movable,
            log=self._log,
            racks=racks,
            cluster_id=cluster_id,
            grace_seconds=grace_seconds,
            service=service or self._registry,
            secured=self._secured,
        )

    def _start_with(
        self, load: Snapshot | str | Path | None, topics: Mapping[str, int], acls: Sequence[Acl]
    ) -> None:
        try:
            if load is not None:
                self._fill(load if isinstance(load, Snapshot) else Snapshot.load(load))
            self.start()
            if load is not None:
                self._remember_log_ends()
            for name, partitions in topics.items():
                self.create_topic(name, partitions)
            if acls:
                self.run_in_broker(lambda running: running.add_acls(acls))
        except BaseException:
            self.close()
            raise

    def _select_registry(
        self, wanted: bool | RegistryService | None, listeners: Sequence[Listener]
    ) -> RegistryService | None:
        """Return the schema registry to run, with fault injection, or None."""
        if not wanted:
            return None
        registry = self._new_registry(listeners) if wanted is True else wanted
        registry.serve_through(partial(FaultInjectingApp, self.faults))
        return registry

    def _new_registry(self, listeners: Sequence[Listener]) -> RegistryService:
        # The registry imports optional dependencies.
        from kbroker.schemas.service import RegistryService, authentication_problem

        reason = authentication_problem(self._config, listeners)
        if reason:
            raise ValueError(reason)
        return RegistryService(
            self._config.overlay({"registry.port": "0"}, origin="schema_registry")
        )

    @property
    def has_schema_registry(self) -> bool:
        return self._registry is not None

    @property
    def schema_registry_url(self) -> str:
        """Value of the clients' `schema.registry.url`.

        Raises:
            ValueError: The broker has no schema registry.
        """
        if self._registry is None:
            raise ValueError(NO_REGISTRY)
        return f"http://{self._registry.endpoint_of(self._config.node_id)}"

    def _fill(self, snapshot: Snapshot) -> None:
        self._thread.call(fill_store, self._config, self._store, self.clock.movable, snapshot)

    # -- lifecycle

    def start(self) -> None:
        """Start the broker again after `stop` or a crash, on the same port."""
        self._life.start()

    def stop(self) -> None:
        """Stop the broker. The connections of clients are closed; the data is kept for `start`.

        Waits in other threads fail with RuntimeError; `restart` only pauses them.
        """
        self._life.stop()

    def restart(self) -> None:
        """Stop and start the broker. Clients reconnect by themselves, and waits continue."""
        with self._life.restarting():
            self._life.end()

    def close(self) -> None:
        """Stop the broker and release its data.

        In a forked child this does nothing, because the broker runs in the parent.
        """
        if not self._thread.is_own:
            return
        try:
            self.stop()
        finally:
            self._store.release()
            if self._own_thread:
                self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if error is None and self._thread.is_own:
            self.check_faults()

    @property
    def _kit(self) -> Kit:
        return self.running

    def _call(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        latest = self._life.latest
        if latest is None:
            return super()._call(call, *args, **kwargs)
        return super()._call(latest.call_with_retries, partial(call, *args, **kwargs))

    @property
    def running(self) -> RunningBroker:
        """The broker in its thread, for use in `run_in_broker`.

        Raises:
            RuntimeError: The broker is stopped or has crashed.
        """
        return self._life.running

    @property
    def _watched(self) -> RunningBroker:
        return self._life.watched

    @property
    def bootstrap_servers(self) -> str:
        return self._life.bootstrap_servers

    # -- permissions and connections

    def allow(self, user: str, *rights: str) -> None:
        """Add ACLs for a user, for example `allow("alice", "READ topic orders")`.

        Args:
            user: User name; "*" for all users.
            rights: Permissions in the form "[ALLOW|DENY] OPERATION RESOURCE_TYPE NAME". A name that
                ends in "*" is a prefix. The cluster has no name.

        Raises:
            ValueError: A permission is malformed, the user does not exist, or the broker was
                created without ACLs.
        """
        self.run_in_broker(lambda running: running.allow(user, *rights))

    def connections(self) -> int:
        """Return the number of client connections; 0 if the broker is stopped."""
        held = self._life.held
        return held.value.broker.connections() if held else 0

    def run_in_broker(self, function: Callable[[RunningBroker], Awaitable[T]]) -> T:
        """Run an async function in the thread of the broker.

        Args:
            function: Gets the broker.

        Returns:
            The result of the function.

        Raises:
            RuntimeError: The broker is stopped or has crashed.
        """
        running, held = self.running, self._life.held
        try:
            return self._call(function, running)
        except PowerCut:  # `function` has raised it, so the tasks of the broker still run
            if held is not None:
                self._thread.abort(held)
            raise

    def _run_may_crash(self, action: Callable[[RunningBroker], Awaitable[object]]) -> None:
        """Run a function that may reach the point of `crash_at`.

        `wait_for_crash` handles the crash.

        Raises:
            RuntimeError: The broker is stopped, or had already crashed.
        """
        if has_crashed(self._store):
            raise RuntimeError(CRASHED)
        with self._life.may_crash():
            self.run_in_broker(action)

    # -- crashes

    @property
    def disk(self) -> Disk:
        """Disk whose faults the test controls.

        Raises:
            ValueError: The broker was created without `disk=True`.
        """
        return self._life.breakable.disk

    def crash_at(self, point: str, mode: Mode = "drop", seed: int = 0) -> None:
        """Cut the power when the broker reaches a point, for example "produce.appended".

        Args:
            point: Name of the point; see the error message for all names.
            mode: Unsynced data that the power cut loses: "drop", "torn", "lost-name" or "mixed";
                see `Disk`.
            seed: Seed of the random choices of the modes "torn" and "mixed".

        Raises:
            ValueError: The point or mode does not exist, or the broker has no such disk.
        """
        self._life.crash_at(point, mode, seed)

    def wait_for_crash(self, timeout: float = WAIT_SECONDS) -> None:
        """Wait for the crash that `crash_at` has requested, then start again on the same port.

        Return at once if the crash has already happened. If `start` or `restart` has run since, the
        broker is not started again.

        Args:
            timeout: Maximum seconds to wait.

        Raises:
            WaitTimeout: The broker has not reached the point.
            RuntimeError: The broker is stopped.
        """
        self._life.wait_for_crash(timeout)

    def power_cut(self, mode: Mode = "drop", seed: int = 0) -> None:
        """Cut the power now, then start again on the same port. Waits continue.

        Args:
            mode: Unsynced data that the power cut loses; see `Disk`.
            seed: Seed of the random choices of the modes "torn" and "mixed".

        Raises:
            ValueError: The mode does not exist, or the broker has no such disk.
        """
        self._life.power_cut(mode, seed)

    # -- requests

    def wait_for_request(
        self, api: str, client_id: str | None = None, count: int = 1, timeout: float = WAIT_SECONDS
    ) -> None:
        """Wait until clients have sent a number of requests of an API.

        Args:
            api: API name, for example "Fetch".
            client_id: Count only requests with this client ID; None counts all.
            count: Minimum number of requests so far.
            timeout: Maximum seconds to wait.

        Raises:
            ValueError: The API does not exist.
            WaitTimeout: There are fewer requests; the message has their number.
        """
        self._call(self._watched.wait_for_request, api_key(api), client_id, count, timeout)

    # -- snapshots

    def snapshot(self) -> Snapshot:
        """Return a snapshot of records, offsets, groups, producers, settings and clocks.

        The duration does not depend on the amount of data. In memory, the snapshot shares the bytes
        with the broker. In a data directory, it shares the files of closed segments, so each log
        first rolls a new segment.

        Raises:
            ValueError: The broker has several nodes.
            RuntimeError: The broker is stopped or has crashed.
        """
        return self.run_in_broker(RunningBroker.snapshot)

    def restore(self, snapshot: Snapshot) -> None:
        """Restore a snapshot, on the same port.

        The connections of clients are closed. Leader epochs become higher than all leader epochs
        that clients have seen, so that clients refresh their metadata. Group members join again.

        Args:
            snapshot: Snapshot of this broker, or of a broker with as many data directories.

        Raises:
            ValueError: The snapshot has another number of data directories. The broker still runs.
        """
        check_directories(snapshot.store, self._store)
        with self._life.restarting():
            self._life.end()
            if has_crashed(self._store):
                self._life.power_on()
            armed = self.disk.faults if isinstance(self._store, BreakableStore) else None
            self._thread.call(self._restore_store, snapshot)
            if armed is not None:
                self._life.breakable.disk.arm(armed)
        self._remember_log_ends()

    async def _restore_store(self, snapshot: Snapshot) -> None:
        reached = await read_progress(self._store)
        self._store.replace_data(snapshot.store)
        self.clock.movable.restore_state(snapshot.clocks)
        await prepare_restored_store(self._config, self._store, self.clock.movable, reached)

    def fork(self, snapshot: Snapshot | None = None) -> LocalBroker:
        """Start a second broker with the data of a snapshot.

        The second broker is another cluster, with its own cluster ID and listeners. Its groups have
        no members.

        Args:
            snapshot: Data of the new broker; None for the current data of this one.

        Returns:
            The new broker; the caller must close it.
        """
        return LocalBroker(
            config=self._config,
            load=snapshot or self.snapshot(),
            thread=None if self._own_thread else self._thread,
            store=self._store.new_empty(),
            listeners=[
                replace(each, host=HOST, port=0, advertised=None) for each in self._life.listeners
            ],
            secured=self._secured,
        )

    # -- faults

    def check_faults(self) -> None:
        """Check that all armed faults and expectations of the test have been met.

        Raises:
            UnfiredFault: A fault, hook, crash or disk fault has hit nothing, or no call of `within`
                has waited for an expectation.
            Exception: The first exception of a hook.
        """
        unmet = [f"{each} was never waited for: call within()" for each in self._unawaited]
        if isinstance(self._store, BreakableStore):
            unmet += self.disk.faults.describe_unmet()
        check_faults(self.faults, unmet)

    def disarm_faults(self) -> None:
        """Remove all faults, hooks and disk faults, and a requested crash.

        If `Disk.full` has filled the disk, the disk stays full until `Disk.free_space`.
        """
        super().disarm_faults()
        if isinstance(self._store, BreakableStore):
            self.disk.arm(DiskFaults(full=self.disk.faults.full))

    def wait_for_hits(self, rule: AnyRule, hits: int, timeout: float) -> None:
        """Wait until a fault has hit a number of requests; `Fault.wait` does the same.

        Args:
            rule: Rule of the fault.
            hits: Number of hits to wait for.
            timeout: Maximum seconds to wait.

        Raises:
            WaitTimeout: The fault has fewer hits; the message lists the most similar requests.
        """
        self._call(self._watched.wait_for_hits, rule, hits, timeout)

    def cap_versions(self, versions: str | Mapping[str, int | None] | None) -> None:
        """Serve only the API versions of an older broker.

        Connections are closed, so that clients negotiate versions again. The broker handles the
        remaining requests as before.

        Args:
            versions: A release of Apache Kafka ("3.9"), or the newest version by API (`{"Fetch":
                11}`, None to hide the API). None removes the limits.

        Raises:
            ValueError: The release, API or version does not exist.
        """
        self._call(self.running.cap_versions, versions)

    def expire_member(self, group: str, member: str) -> list[str]:
        """Expire the session of a group member now.

        Args:
            group: Group ID.
            member: Member ID, group instance ID or client ID; several members may have one client
                ID.

        Returns:
            IDs of the members that were removed. A member that waits in a rebalance is not removed.

        Raises:
            ValueError: The group has no such member; the message lists the members.
        """
        return self._call(self.running.expire_member, group, member)

    def fence_producer(
        self, producer_id: int | None = None, *, transactional_id: str | None = None
    ) -> list[int]:
        """Fence a producer, as a newer instance of it would, and abort its open transaction.

        Requests with the old epoch fail with INVALID_PRODUCER_EPOCH or PRODUCER_FENCED.

        Args:
            producer_id: Producer ID; None for all producers that have written records.
            transactional_id: Transactional ID, instead of a producer ID.

        Returns:
            IDs of the fenced producers.

        Raises:
            ValueError: The producer does not exist; the message lists those that exist.
        """
        fenced: list[int] = []

        async def fence(broker: RunningBroker) -> None:
            fenced.extend(
                await broker.fence_producer(producer_id, transactional_id=transactional_id)
            )

        self._run_may_crash(fence)
        return fenced

    def abort_transaction(self, transactional_id: str) -> None:
        """Abort an open transaction, as its coordinator would, and fence its producer.

        Args:
            transactional_id: Transactional ID.

        Raises:
            ValueError: The transaction is not open; the message lists the open ones.
        """
        self._run_may_crash(lambda broker: broker.abort_transaction(transactional_id))

    def expire_transaction(self, transactional_id: str) -> None:
        """Expire an open transaction now, so that its coordinator aborts it.

        Args:
            transactional_id: Transactional ID.

        Raises:
            ValueError: The transaction is not open; the message lists the open ones.
        """
        self._run_may_crash(lambda broker: broker.expire_transaction(transactional_id))

    def offset_out_of_range(self, topic: str, partition: int = 0) -> int:
        """Delete all records of a partition and skip one offset.

        The position of each consumer is out of range afterwards, also at the end of the log.

        Args:
            topic: Topic name.
            partition: Partition number.

        Returns:
            The new log start offset.

        Raises:
            KafkaError: The partition does not exist.
        """
        return self._call(self.running.offset_out_of_range, topic, partition)

    def move_leader(
        self, topic: str, partition: int | None = None, *, to: int | None = None
    ) -> None:
        """Move the leader of a partition to another node in the ISR.

        If there is no other node, the same node is elected again with a higher leader epoch. Each
        client then gets NOT_LEADER_OR_FOLLOWER until it requests metadata.

        Args:
            topic: Topic name.
            partition: Partition number; None for all partitions of the topic.
            to: ID of the new leader; None for the next node in the ISR.

        Raises:
            KafkaError: The topic or partition does not exist.
            ValueError: Node `to` is not in the ISR.
        """
        self._call(self.running.move_leader, topic, partition, to=to)

    def move_coordinator(
        self, group: str | None = None, *, transactional_id: str | None = None
    ) -> None:
        """Move a group or transaction coordinator to another node.

        If there is no other node, the coordinator reloads its state. Each client then gets
        NOT_COORDINATOR until it looks up the coordinator again.

        Args:
            group: Group ID.
            transactional_id: Transactional ID, instead of a group.

        Raises:
            ValueError: The group or transactional ID does not exist, or not exactly one is given.
        """
        self._call(self.running.move_coordinator, group, transactional_id=transactional_id)

    def report(self) -> str:
        """Return the state and the recent requests of the broker, for reports of failed tests."""
        try:
            return self.run_in_broker(RunningBroker.report)
        except (RuntimeError, PowerCut) as error:
            reason = str(error) or CRASHED
            lines = [
                f"broker {self.bootstrap_servers}",
                reason,
                *recent_activity(self.faults, self._log),
            ]
            return "\n".join(lines)


class BrokerExplain:
    """Explanations in sentences: `print(kbroker.explain.group("billing"))`."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker

    def group(self, name: str) -> str:
        """Explain the state of a group: its pending work, its rebalances and their causes.

        Args:
            name: Group ID.
        """

        async def explain(broker: RunningBroker) -> str:
            return str(broker.explain.group(name))

        return self._broker.run_in_broker(explain)

    def partition(self, topic: str, index: int) -> str:
        """Explain whether a partition is available: leader, disk, faults, and a lagging LSO.

        Args:
            topic: Topic name.
            index: Partition number.
        """

        async def explain(broker: RunningBroker) -> str:
            return str(broker.explain.partition(topic, index))

        return self._broker.run_in_broker(explain)

    def share(self, group: str, topic: str, index: int) -> str:
        """Explain the delivery of a partition to a share group: locks, limits, archived records.

        Args:
            group: Group ID.
            topic: Topic name.
            index: Partition number.
        """

        async def explain(broker: RunningBroker) -> str:
            return str(broker.explain.share(group, topic, index))

        return self._broker.run_in_broker(explain)

    def client(self, client_id: str) -> str:
        """Return the last metrics that clients with a client ID have pushed (KIP-714).

        Args:
            client_id: Client ID.
        """

        async def explain(broker: RunningBroker) -> str:
            return str(broker.explain.client(client_id))

        return self._broker.run_in_broker(explain)

    def transaction(self, transactional_id: str) -> str:
        """Explain the state of a transaction, and the ends of earlier ones with the same ID.

        Args:
            transactional_id: Transactional ID.
        """

        async def explain(broker: RunningBroker) -> str:
            return str(broker.explain.transaction(transactional_id))

        return self._broker.run_in_broker(explain)


class BrokerClock:
    """Clocks of a broker under test: `clock.advance(hours=25)` moves the log clock.

    Attributes:
        coordinator: Clock of sessions, rebalances and transactions.
    """

    def __init__(self, broker: LocalBroker) -> None:
        self.movable = MovableClock()
        self.coordinator = CoordinatorClock(broker)
        self._broker = broker

    def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> None:
        """Move the log clock ahead, for retention and the expiration of offsets and producers.

        Sessions and transactions do not time out. The method returns when all due work is done.

        Args:
            days: Days to add.
            hours: Hours to add.
            minutes: Minutes to add.
            seconds: Seconds to add.

        Raises:
            ValueError: The sum is zero or negative.
            RuntimeError: The broker is stopped or has crashed.
        """
        span_ms = milliseconds(days=days, hours=hours, minutes=minutes, seconds=seconds)
        self._broker._run_may_crash(lambda broker: broker.advance(span_ms))

    def freeze(self) -> None:
        """Stop the log clock; `advance` still moves it."""
        self.movable.log.freeze()

    def resume(self) -> None:
        """Continue the log clock from the time at which it was stopped."""
        self.movable.log.resume()

    def now_ms(self) -> int:
        """Return the time of the log clock, in ms since the Unix epoch."""
        return self.movable.log_ms()


class CoordinatorClock:
    """Clock of sessions, rebalances and transactions of a broker under test."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker

    def advance(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        keep_members: bool = False,
    ) -> None:
        """Move the coordinator clock ahead, and return when all due timeouts are handled.

        Members whose sessions expire are removed from their groups, unless `keep_members` is set.

        Args:
            days: Days to add.
            hours: Hours to add.
            minutes: Minutes to add.
            seconds: Seconds to add.
            keep_members: Renew the session of each member before each timeout.

        Raises:
            ValueError: The sum is zero or negative.
            RuntimeError: The broker is stopped or has crashed.
        """
        span_ms = milliseconds(days=days, hours=hours, minutes=minutes, seconds=seconds)
        self._broker._run_may_crash(
            lambda broker: broker.advance_coordinator(span_ms, keep_members=keep_members)
        )
