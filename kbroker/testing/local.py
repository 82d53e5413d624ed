"""A broker for programs that are not async: it runs in a thread of this process."""

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

from .async_broker import (
    CRASHED,
    RunningBroker,
    fill,
    lately,
    run_broker,
)
from .clock import MovableClock, milliseconds
from .disk import Disk, DiskFaults, PowerCut
from .expectation import Expectation
from .fault import NO_REGISTRY, Arming, check_faults
from .given import Config, Partitions, Topics, kit_properties, topics_of
from .host import BrokerThread
from .kit import (
    WAIT_SECONDS,
    Headers,
    KafkaRecord,
    Kit,
    Value,
)
from .known_records import KnownRecords
from .local_nodes import LocalNodes
from .log_tail import LogTail
from .names import api_key
from .registry_fault import FaultyApp
from .restartable import RestartableBroker
from .rules import Faults
from .schedule import AnyRule
from .secured import HOST, Clients, Rights, Secured, Users, as_wanted, merged
from .snapshot import Snapshot, how_far, make_ready
from .stores import BreakableStore, Store, has_crashed, new_store

if TYPE_CHECKING:
    from kbroker.schemas.service import RegistryService

P = ParamSpec("P")
T = TypeVar("T")


class KafkaHandle:
    """A cluster in the hands of a test: the calls of `Kit`, without async.

    Get a broker of your own with `LocalBroker`, one that runs elsewhere with
    `kbroker.testing.ExternalKafka`.
    """

    _thread: BrokerThread

    def __init__(self) -> None:
        self._known = KnownRecords()
        self._unspoken: list[Expectation] = []
        """Those that nobody has waited for yet."""

    @property
    def _kit(self) -> Kit:
        raise NotImplementedError

    @property
    def _watched(self) -> Kit:
        """What waits look at: it may be away for a moment."""
        return self._kit

    @property
    def bootstrap_servers(self) -> str:
        """What clients take as their bootstrap.servers."""
        raise NotImplementedError

    def _do(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(partial(call, *args, **kwargs))

    def create_topic(self, name: str, partitions: int = 1, configs: Config | None = None) -> None:
        """Create a topic; it is usable when this returns. Raises KafkaError."""
        self._do(self._kit.create_topic, name, partitions, configs)

    def delete_topic(self, name: str) -> None:
        """Delete a topic; it is gone for every client when this returns. Raises KafkaError."""
        self._do(self._kit.delete_topic, name)
        self._known.forget(name)

    def topics(self) -> dict[str, int]:
        """The topics of users, with the number of their partitions."""
        return self._do(self._kit.topics)

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
        """Append one record; see `Kit.produce`."""
        record = self._do(
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
        """All records of a topic in order of time; see `Kit.records`. Raises NoSuchTopic."""
        return self._do(self._kit.records, topic, committed=committed)

    def group(self, name: str) -> Group | None:
        """A group as its coordinator describes it; None when there is none of that name."""
        return self._do(self._kit.group, name)

    def committed(self, group: str) -> dict[Partition, int]:
        """The offsets that a group has committed."""
        return self._do(self._kit.committed, group)

    def lag(self, group: str) -> int:
        """Records that a group has still to read; see `Kit.lag`. Raises NoSuchGroup."""
        return self._do(self._kit.lag, group)

    def wait_for(
        self,
        topic: str,
        count: int | None = None,
        match: Callable[[KafkaRecord], bool] | None = None,
        timeout: float = WAIT_SECONDS,
    ) -> list[KafkaRecord]:
        """Wait for records; see `Kit.wait_for`. Raises WaitTimeout."""
        found = self._do(self._watched.wait_for, topic, count, match, timeout)
        self._known.add(found)
        return found

    def wait_for_group(
        self,
        group: str,
        members: int | None = None,
        state: str | None = "Stable",
        timeout: float = WAIT_SECONDS,
    ) -> Group:
        """Wait until a group is in a state (None: any) with so many members (None: any)."""
        return self._do(self._watched.wait_for_group, group, members, state, timeout)

    def wait_for_assignment(
        self, group: str, partitions: Partitions, timeout: float = WAIT_SECONDS
    ) -> Group:
        """Wait until the members of a group have exactly these partitions between them."""
        return self._do(self._watched.wait_for_assignment, group, partitions, timeout)

    def wait_for_commit(
        self, group: str, topic: str, partition: int, offset: int, timeout: float = WAIT_SECONDS
    ) -> int:
        """Wait until a group has committed `offset` or a later one; returns what it has."""
        return self._do(self._watched.wait_for_commit, group, topic, partition, offset, timeout)

    def wait_for_lag(
        self, group: str, lag: int = 0, timeout: float = WAIT_SECONDS
    ) -> dict[Partition, int]:
        """Wait until a group lags by at most `lag` records; see `Kit.wait_for_lag`."""
        return self._do(self._watched.wait_for_lag, group, lag, timeout)

    def expect(self, topic: str) -> Expectation:
        """A sentence about a record to come: `expect("orders").key("a").within("2s")`."""
        expected = Expectation(topic, self._wait_for_expected)
        self._unspoken.append(expected)
        return expected

    def _wait_for_expected(self, expected: Expectation, timeout: float) -> KafkaRecord:
        if expected in self._unspoken:
            self._unspoken.remove(expected)
        (found, *_) = self._do(
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

    # -- rest

    def wait_until_idle(self, group: str | None = None, timeout: float = WAIT_SECONDS) -> None:
        """Wait until nothing is on its way any more; see `RunningBroker.wait_until_idle`, and
        `OutsideKit.wait_until_idle` for what that means of a cluster that runs elsewhere."""
        self._do(self._watched.wait_until_idle, group, timeout)

    def expect_nothing(self, topic: str, timeout: float = WAIT_SECONDS) -> None:
        """Everything settles, and the topic has no record but those that this test has produced
        with `produce`, or has been given by `expect` or `wait_for`, or that were there before.

        Raises AssertionError with the records that came.
        """
        self.wait_until_idle(timeout=timeout)
        there = self._do(self._kit.wait_for, topic, 0)  # it need not exist
        came = self._known.others(there)
        if came:
            lines = "\n  ".join(map(str, came))
            raise AssertionError(
                f"nothing was expected in {topic!r} beside what the test has produced, expected or "
                f"waited for; there came\n  {lines}"
            )

    def _begin(self) -> None:
        """From here on, records are new to the test."""
        self._known.begin(self._do(self._kit.ends))


class LocalBroker(KafkaHandle, LocalNodes, Clients, Arming[None]):
    """A broker of its own: empty, on a free port, gone at the end.

    Parameters: `topics` to create, with their partitions, or their names; `config` are Kafka's
    properties; `data_dir` keeps the data in a directory or in several, None in memory; `load` is what
    it holds at the start, or the directory where that was saved; `disk` gives it a disk in memory that
    fails on demand; `tls` gives it a certificate of an authority of its own; `users` are who may log in,
    with their passwords, `tokens` who may by a token (OAUTHBEARER), `certificates` who is known by a
    certificate instead, which needs no `tls`; `acls` is what they may do, which is nothing else then, and `super_users` are those
    of them who may do everything; `thread` is one that several brokers share, None makes one; `store` is
    where the data is, when neither `data_dir` nor `disk` say it; `listeners` are where clients come in, by
    default one on 127.0.0.1, and `secured` is what is asked there, instead of the words above; `nodes` is how many nodes it has, None for as many as the directory has, or
    one, and `racks` where they are; `cluster_id`, `grace_seconds` and `service` are
    as of `kbroker.broker.open_broker`; `schema_registry` serves schemas too,
    which needs `kbroker[registry]`, or is the registry that `service` serves.
    Raises ValueError for what cannot be meant.

    Resource handling: use it in a `with` statement, or call `close`.
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
        users: Users | None = None,
        tokens: Sequence[str] = (),
        certificates: Sequence[str] = (),
        acls: Rights | None = None,
        super_users: Sequence[str] = (),
        thread: BrokerThread | None = None,
        store: Store | None = None,
        listeners: Sequence[Listener] | None = None,
        secured: Secured | None = None,
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
        self._secured = secured or as_wanted(
            tls=tls,
            users=users,
            tokens=tokens,
            certificates=certificates,
            acls=acls,
            super_users=super_users,
            nodes=nodes or 1,
        )
        rules = self._secured.rules(acls or {})
        if not isinstance(config, BrokerConfig):
            properties = merged(kit_properties(config or {}), self._secured.properties())
            config = BrokerConfig.load(options=properties)
        self._config = config
        self._store = store or new_store(data_dir, disk=disk, bytes_max=config.memory_limit_bytes)
        if secured is None and listeners is not None:
            self._secured = replace(self._secured, is_elsewhere=True)
        listeners = listeners or [self._secured.listener(config)]
        self._registry = self._registry_of(schema_registry, listeners)
        self._own_thread = thread is None
        self._thread = thread or BrokerThread()
        opening = self._opening(racks, cluster_id, grace_seconds, service)
        self._life = RestartableBroker(opening, self._store, self._thread, listeners, nodes)
        self._start_with(load, wanted, rules)

    def _opening(
        self,
        racks: Sequence[str],
        cluster_id: str | None,
        grace_seconds: float,
        service: Service | None,
    ) -> Callable[..., AbstractAsyncContextManager[RunningBroker]]:
        """Return what opens each run of the broker; see `RestartableBroker`."""
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
        self, load: Snapshot | str | Path | None, topics: Mapping[str, int], rules: Sequence[Acl]
    ) -> None:
        try:
            if load is not None:
                self._fill(load if isinstance(load, Snapshot) else Snapshot.load(load))
            self.start()
            if load is not None:
                self._begin()
            for name, partitions in topics.items():
                self.create_topic(name, partitions)
            if rules:
                self.run_in_broker(lambda running: running.add_rules(rules))
        except BaseException:
            self.close()
            raise

    def _registry_of(
        self, wanted: bool | RegistryService | None, listeners: Sequence[Listener]
    ) -> RegistryService | None:
        """The registry that is served, where faults hit it."""
        if not wanted:
            return None
        registry = self._new_registry(listeners) if wanted is True else wanted
        registry.serve_through(partial(FaultyApp, self.faults))
        return registry

    def _new_registry(self, listeners: Sequence[Listener]) -> RegistryService:
        # What it needs most tests do not have.
        from kbroker.schemas.service import RegistryService, why_not

        reason = why_not(self._config, listeners)
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
        """What clients take as their schema.registry.url. Raises ValueError where there is none."""
        if self._registry is None:
            raise ValueError(NO_REGISTRY)
        return f"http://{self._registry.endpoint_of(self._config.node_id)}"

    def _fill(self, snapshot: Snapshot) -> None:
        self._thread.call(fill, self._config, self._store, self.clock.movable, snapshot)

    # -- life

    def start(self) -> None:
        """Start again after `stop` or a crash, on the same port."""
        self._life.start()

    def stop(self) -> None:
        """Stop; clients lose their connections, the data stays for `start`.

        Waits end with a RuntimeError; with `restart` they would go on.
        """
        self._life.stop()

    def restart(self) -> None:
        """Stop and start: clients reconnect by themselves, and waits go on."""
        with self._life.returning():
            self._life.end()

    def close(self) -> None:
        """Stop for good. In a forked child this does nothing: the parent has the broker."""
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

    def _do(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        latest = self._life.latest
        if latest is None:
            return super()._do(call, *args, **kwargs)
        return super()._do(latest.steadily, partial(call, *args, **kwargs))

    @property
    def running(self) -> RunningBroker:
        """The broker in its thread: for `run_in_broker`. Raises RuntimeError when it is stopped, or
        has crashed."""
        return self._life.running

    @property
    def _watched(self) -> RunningBroker:
        return self._life.watched

    @property
    def bootstrap_servers(self) -> str:
        return self._life.bootstrap_servers

    # -- who may do what

    def allow(self, user: str, *rights: str) -> None:
        """Let a user do something from now on: `allow("alice", "READ topic orders")`.

        A right that begins with DENY takes it away. "*" is everybody. Raises ValueError for what is no
        right, and for a broker that was made without ACLs.
        """
        self.run_in_broker(lambda running: running.allow(user, *rights))

    def connections(self) -> int:
        """How many clients are connected; nobody is to a broker that is stopped."""
        held = self._life.held
        return held.value.broker.connections() if held else 0

    def run_in_broker(self, function: Callable[[RunningBroker], Awaitable[T]]) -> T:
        """Run an async function in the broker's thread, with the broker."""
        running, held = self.running, self._life.held
        try:
            return self._do(function, running)
        except PowerCut:  # it came to the point of a crash itself, and not a task of the broker
            if held is not None:
                self._thread.abort(held)
            raise

    def _bring_about(self, action: Callable[[RunningBroker], Awaitable[object]]) -> None:
        """Run what may bring the broker to the point of a crash; `wait_for_crash` waits for that.

        Raises RuntimeError when it is stopped, or has crashed before.
        """
        if has_crashed(self._store):
            raise RuntimeError(CRASHED)
        with self._life.may_crash():
            self.run_in_broker(action)

    # -- crashes

    @property
    def disk(self) -> Disk:
        """The disk to break. Raises ValueError for a broker without `disk=True`."""
        return self._life.breakable.disk

    def crash_at(self, point: str, mode: Mode = "drop", seed: int = 0) -> None:
        """Cut the power when the broker comes to a point, "produce.appended" for instance.

        Parameters: `mode` says what of the unsynced bytes is lost, see `Disk`. Raises ValueError
        for an unknown point, with those that there are.
        """
        self._life.crash_at(point, mode, seed)

    def wait_for_crash(self, timeout: float = WAIT_SECONDS) -> None:
        """Wait for the crash that `crash_at` asked for, then start again on the same port.

        Returns at once when it has come already, in whatever call; a `start` or `restart` since
        then has done the rest. Raises WaitTimeout when the broker did not come to that point.
        """
        self._life.wait_for_crash(timeout)

    def power_cut(self, mode: Mode = "drop", seed: int = 0) -> None:
        """Cut the power now, then start again on the same port; waits go on."""
        self._life.power_cut(mode, seed)

    # -- rest

    def wait_for_request(
        self, api: str, client_id: str | None = None, count: int = 1, timeout: float = WAIT_SECONDS
    ) -> None:
        """Wait until clients (or the one named) have sent so many requests of an API."""
        self._do(self._watched.wait_for_request, api_key(api), client_id, count, timeout)

    # -- snapshots

    def snapshot(self) -> Snapshot:
        """What the broker holds now: records, offsets, groups, producers, settings, clocks.

        Takes the same time however much that is: in memory the bytes are shared, in a data directory
        the files of closed segments are (each log begins a new segment for that).
        """
        return self.run_in_broker(RunningBroker.snapshot)

    def restore(self, snapshot: Snapshot) -> None:
        """Hold what `snapshot` does, on the same port.

        Clients lose their connections and look again: leader epochs are higher than any that they
        have seen, and members join their groups again.
        """
        with self._life.returning():
            self._life.end()
            if has_crashed(self._store):
                self._life.power_on()
            armed = self.disk.faults if isinstance(self._store, BreakableStore) else None
            self._thread.call(self._go_back, snapshot)
            if armed is not None:
                self._life.breakable.disk.arm(armed)
        self._begin()

    async def _go_back(self, snapshot: Snapshot) -> None:
        reached = await how_far(self._store)
        self._store.take(snapshot.store)
        self.clock.movable.put_back(snapshot.clocks)
        await make_ready(self._config, self._store, self.clock.movable, reached)

    def fork(self, snapshot: Snapshot | None = None) -> LocalBroker:
        """A second broker that holds what `snapshot` (None: this one now) does.

        It is another cluster, with an id and a listener of its own, and no members in its groups.
        """
        return LocalBroker(
            config=self._config,
            load=snapshot or self.snapshot(),
            thread=None if self._own_thread else self._thread,
            store=self._store.fresh(),
            listeners=[
                replace(each, host=HOST, port=0, advertised=None) for each in self._life.listeners
            ],
            secured=self._secured,
        )

    # -- faults

    def check_faults(self) -> None:
        """Raise what a hook has raised, and UnfiredFault when something that the test has armed, a
        fault, a hook, a crash, a disk fault, has met nothing, or nobody has waited for what
        it expects."""
        unmet = [f"{each} was never waited for: call within()" for each in self._unspoken]
        if isinstance(self._store, BreakableStore):
            unmet += self.disk.faults.unmet()
        check_faults(self.faults, unmet)

    def disarm_faults(self) -> None:
        """Take away all faults and hooks, a crash to come, and what the disk was told to fail."""
        super().disarm_faults()
        if isinstance(self._store, BreakableStore):
            self.disk.arm(DiskFaults(full=self.disk.faults.full))

    def wait_for_hits(self, rule: AnyRule, hits: int, timeout: float) -> None:
        """Wait until a fault has hit so many requests; its `wait` does the same."""
        self._do(self._watched.wait_for_hits, rule, hits, timeout)

    def cap_versions(self, versions: str | Mapping[str, int | None] | None) -> None:
        """Play an older broker; see `RunningBroker.cap_versions`."""
        self._do(self.running.cap_versions, versions)

    def expire_member(self, group: str, member: str) -> list[str]:
        """End the session of a group's member now; see `StateOperations.expire_member`."""
        return self._do(self.running.expire_member, group, member)

    def fence_producer(
        self, producer_id: int | None = None, *, transactional_id: str | None = None
    ) -> list[int]:
        """Let a newer instance of a producer have taken over; see `StateOperations.fence_producer`."""
        fenced: list[int] = []

        async def fence(broker: RunningBroker) -> None:
            fenced.extend(
                await broker.fence_producer(producer_id, transactional_id=transactional_id)
            )

        self._bring_about(fence)
        return fenced

    def abort_transaction(self, transactional_id: str) -> None:
        """Abort an open transaction; see `StateOperations.abort_transaction`."""
        self._bring_about(lambda broker: broker.abort_transaction(transactional_id))

    def expire_transaction(self, transactional_id: str) -> None:
        """Let an open transaction have lasted too long; see `StateOperations.expire_transaction`."""
        self._bring_about(lambda broker: broker.expire_transaction(transactional_id))

    def offset_out_of_range(self, topic: str, partition: int = 0) -> int:
        """Lose all records of a partition; see `StateOperations.offset_out_of_range`."""
        return self._do(self.running.offset_out_of_range, topic, partition)

    def move_leader(
        self, topic: str, partition: int | None = None, *, to: int | None = None
    ) -> None:
        """Let another node lead, or elect leaders anew; see `StateOperations.move_leader`."""
        self._do(self.running.move_leader, topic, partition, to=to)

    def move_coordinator(
        self, group: str | None = None, *, transactional_id: str | None = None
    ) -> None:
        """Let a coordinator move; see `StateOperations.move_coordinator`."""
        self._do(self.running.move_coordinator, group, transactional_id=transactional_id)

    def report(self) -> str:
        """What it holds and what it was asked lately, for a person who looks at a failed test."""
        try:
            return self.run_in_broker(RunningBroker.report)
        except (RuntimeError, PowerCut) as error:
            reason = str(error) or CRASHED
            lines = [f"broker {self.bootstrap_servers}", reason, *lately(self.faults, self._log)]
            return "\n".join(lines)


class BrokerExplain:
    """Why something is as it is, in sentences: `print(kbroker.explain.group("billing"))`."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker

    def group(self, name: str) -> str:
        """Why a group is in its state: what it waits for, its rebalances and their causes."""

        async def explain(broker: RunningBroker) -> str:
            return str(broker.explain.group(name))

        return self._broker.run_in_broker(explain)

    def partition(self, topic: str, index: int) -> str:
        """Why a partition is served, or is not: its leader, its disk, the faults that hit it; and
        what holds up those who read committed records."""

        async def explain(broker: RunningBroker) -> str:
            return str(broker.explain.partition(topic, index))

        return self._broker.run_in_broker(explain)

    def share(self, group: str, topic: str, index: int) -> str:
        """Why members of a share group get no records of a partition, or do: who has which, and how
        long; limits; what was given up; what there is to come."""

        async def explain(broker: RunningBroker) -> str:
            return str(broker.explain.share(group, topic, index))

        return self._broker.run_in_broker(explain)

    def client(self, client_id: str) -> str:
        """What clients of an id have said of themselves last: each of their metrics (KIP-714)."""

        async def explain(broker: RunningBroker) -> str:
            return str(broker.explain.client(client_id))

        return self._broker.run_in_broker(explain)

    def transaction(self, transactional_id: str) -> str:
        """Where a transaction stands, who has ended the ones before it, and why."""

        async def explain(broker: RunningBroker) -> str:
            return str(broker.explain.transaction(transactional_id))

        return self._broker.run_in_broker(explain)


class BrokerClock:
    """The clock of a broker under test: `clock.advance(hours=25)`.

    `coordinator` is the other domain: sessions, rebalances, transactions.
    """

    def __init__(self, broker: LocalBroker) -> None:
        self.movable = MovableClock()
        self.coordinator = CoordinatorClock(broker)
        self._broker = broker

    def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> None:
        """Let time pass for logs: retention, expiry of offsets, producers and transactional ids. No
        member notices, and no transaction times out.

        Returns when everything that is due by then has been done.
        """
        span_ms = milliseconds(days=days, hours=hours, minutes=minutes, seconds=seconds)
        self._broker._bring_about(lambda broker: broker.advance(span_ms))

    def freeze(self) -> None:
        """Let the log's time stand still."""
        self.movable.log.freeze()

    def resume(self) -> None:
        """Let the log's time go on from where it stood."""
        self.movable.log.resume()

    def now_ms(self) -> int:
        """The log's time, in ms since the epoch."""
        return self.movable.log_ms()


class CoordinatorClock:
    """The time of sessions, rebalances and transactions."""

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
        """Let time pass for coordinators; returns when all time-outs that are due have been acted on.

        Members whose sessions are over by then are out of their groups, unless `keep_members`
        counts all of them as just heard of.
        """
        span_ms = milliseconds(days=days, hours=hours, minutes=minutes, seconds=seconds)
        self._broker._bring_about(
            lambda broker: broker.advance_coordinator(span_ms, keep_members=keep_members)
        )
