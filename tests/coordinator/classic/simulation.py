"""Random simulation of one shard with many clients, failures, and one seed.

Clients follow the protocol like real ones, and sometimes repeat an old request. Appends fail, the
high watermark lags, connections break, clients die, and the shard restarts from the committed
records. After every step, `check` verifies the invariants. At the end, `heal` stops all failures,
and every living client must get an assignment.

An assignment contains the sync that created it, and offsets only rise, so that mix-ups are visible.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kbroker.coordinator import GroupSettings
from kbroker.coordinator.classic.group import ClassicGroup
from kbroker.coordinator.classic.group_state import COMPLETING, EMPTY, PREPARING, STABLE
from kbroker.coordinator.classic.rebalance import JOIN, SESSION, SYNC
from kbroker.coordinator.common.memory import RECORD
from kbroker.coordinator.replay import end_transaction, replay
from kbroker.coordinator.state import ShardState
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.group_metadata import (
    GroupMetadataKey,
    decode_group_metadata,
    decode_key,
    encode_key,
)
from kbroker.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse

from ..harness import Call, FakeTopics, Harness, subscription, unlimited

GROUPS = ("red", "blue")
SESSION_MS = 6_000
REBALANCE_MS = 20_000
HEAL_MS = 120_000
BOTH = (("range", subscription("orders")), ("sticky", subscription("orders")))
BAD_NEWS = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
)


class Violation(AssertionError):
    """An invariant does not hold."""


def must(holds: bool, failure: str) -> None:
    if not holds:
        raise Violation(failure)


@dataclass
class Client:
    """A consumer that knows only what responses contain."""

    number: int
    group: str
    instance: str | None
    version: int
    partition: int
    member_id: str = ""
    generation: int = -1
    leads: bool = False
    members: list[str] = field(default_factory=list)
    synced: bool = False
    alive: bool = True
    protocols: tuple[tuple[str, bytes], ...] = ()
    join: Call[JoinGroupResponse] | None = None
    sync: Call[SyncGroupResponse] | None = None

    @property
    def is_waiting(self) -> bool:
        return self.join is not None or self.sync is not None

    def forget(self, code: int = ErrorCode.UNKNOWN_MEMBER_ID) -> None:
        """Rejoin; after some errors without a member ID."""
        self.generation, self.synced, self.leads = -1, False, False
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""


class Simulation:
    """One run. `work` counts the events."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.work: Counter[str] = Counter()
        settings = GroupSettings(
            initial_rebalance_delay_ms=self.rng.choice((0, 0, 3_000)),
            group_size_max=self.rng.choice((4, 1000)),
            new_member_join_timeout_ms=30_000,
        )
        self.h = Harness(settings, FakeTopics())
        self.clients: list[Client] = []
        self._numbers = itertools.count()
        self._said: list[tuple[str, str, int, str | None]] = []
        self._offsets = itertools.count(1)
        self._syncs = itertools.count(1)
        self._acked: dict[tuple[str, int], int] = {}
        self._sent: dict[tuple[str, int], int] = {}
        self._calls: list[Call[Any]] = []
        self._generations: dict[str, int] = {}
        self._leaders: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._syncs_of: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._given: dict[str, int] = {}
        for _ in range(6):
            self._add_client()

    # -- events

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.check()
        self.heal()

    def step(self) -> None:
        if self.h.hold and self.rng.random() < 0.2:
            self.h.hold = False
            self.h.commit_log()
        action = self.rng.choices(
            (
                self._act,
                self._wait,
                self._repeat_something_old,
                self._hang_up,
                self._die,
                self._add_client,
                self._leave,
                self._lag,
                self._refuse_append,
                self._restart,
            ),
            (150, 16, 8, 4, 1, 3, 3, 6, 3, 1),
        )[0]
        action()

    def _act(self) -> None:
        client = self.rng.choice(self.clients)
        if client.alive:
            self._advance(client)

    def _wait(self) -> None:
        events = self.h.sleep(self.rng.choice((1, 100, 1_000, 3_000, 9_000)))
        self.work["time-outs"] += len(events)

    def _lag(self) -> None:
        self.h.hold = True
        self.work["lags"] += 1

    def _refuse_append(self) -> None:
        self.h.append_fails = self.rng.choice(
            (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS)
        )
        self.work["refusals"] += 1

    def _hang_up(self) -> None:
        client = self.rng.choice(self.clients)
        call = client.join or client.sync
        if call is not None and call.slot is not None and call.slot.response is None:
            self.h.abandon(call)
            self._calls.remove(call)
            client.join = client.sync = None
            self.work["broken connections"] += 1

    def _die(self) -> None:
        client = self.rng.choice([client for client in self.clients if client.alive])
        client.alive = False
        self._hang_up_now(client)
        if client.instance is not None:
            # The restarted client has the same name and no memory.
            self._add_client(client.instance, client.group)
        self.work["deaths"] += 1

    def _hang_up_now(self, client: Client) -> None:
        if self.rng.random() < 0.5:  # otherwise the connection stays half open
            call = client.join or client.sync
            if call is not None and call.slot is not None and call.slot.response is None:
                self.h.abandon(call)
                self._calls.remove(call)
        client.join = client.sync = None

    def _add_client(self, instance: str | None = None, group: str | None = None) -> None:
        if instance is None and sum(client.alive for client in self.clients) >= 10:
            return
        number = next(self._numbers)
        if instance is None and self.rng.random() < 0.4:
            instance = f"i{number}"
        version = self.rng.choice((5, 7, 9) if instance else (0, 1, 3, 4, 5, 9))
        client = Client(number, group or self.rng.choice(GROUPS), instance, version, number % 4)
        self._choose_protocols(client)
        self.clients.append(client)

    def _choose_protocols(self, client: Client) -> None:
        names = self.rng.choice((("range",), ("range", "sticky"), ("sticky", "range")))
        blob = (
            subscription("orders", "audit") if self.rng.random() < 0.3 else subscription("orders")
        )
        client.protocols = tuple((name, blob) for name in names)

    def _leave(self) -> None:
        client = self.rng.choice(self.clients)
        if client.is_waiting or not client.member_id or not client.alive or self.h.hold:
            return
        version = 2 if client.instance is None and self.rng.random() < 0.5 else 5
        self.h.leave((client.member_id, client.instance), version=version, group=client.group)
        client.forget()
        self.work["leaves"] += 1

    def _repeat_something_old(self) -> None:
        if not self._said or self.h.hold:
            return
        group, member_id, generation, instance = self.rng.choice(self._said)
        if self.rng.random() < 0.5:
            self.h.heartbeat(member_id, generation, group=group, instance=instance)
        else:
            self._commit(group, member_id, generation, instance, self.rng.randrange(4))

    def _restart(self) -> None:
        self.h.append_fails = None
        self.h = self.h.restarted()
        self._calls.clear()
        self._generations.clear()
        self._leaders.clear()
        self._syncs_of.clear()
        for client in self.clients:
            client.join = client.sync = None
        self.work["restarts"] += 1
        for (group, partition), acked in self._acked.items():
            row = self.h.fetch({"orders": [partition]}, group=group)["orders", partition]
            sent = self._sent[group, partition]
            must(acked <= row[0] <= sent, f"offset {row[0]} after {acked} was acknowledged")

    # -- steps of a client

    def _advance(self, client: Client) -> None:
        if client.join is not None:
            self._finish_join(client)
        elif client.sync is not None:
            self._finish_sync(client)
        elif client.generation < 0:
            self._begin_join(client)
        elif not client.synced:
            self._begin_sync(client)
        elif not self.h.hold:
            self._work_on(client)

    def _begin_join(self, client: Client) -> None:
        client.join = self.h.join(
            client.member_id,
            version=client.version,
            group=client.group,
            instance=client.instance,
            protocols=client.protocols,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            client=f"c{client.number}",
        )
        self._calls.append(client.join)
        self._finish_join(client)

    def _finish_join(self, client: Client) -> None:
        call = client.join
        if call is None or call.is_pending:
            return
        client.join = None
        self._calls.remove(call)
        response = call.response
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._learn_id(client, response.member_id)
        elif response.error_code:
            must(
                response.error_code in BAD_NEWS
                or response.error_code
                in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID),
                f"join answered {response.error_code}",
            )
            client.forget(response.error_code)
        else:
            self._learn_id(client, response.member_id)
            client.generation, client.synced = response.generation_id, False
            client.leads = bool(response.members) and not response.skip_assignment
            client.members = [row.member_id for row in response.members]
            if response.members:
                self._note_leader(client, response)
            self._said.append((client.group, client.member_id, client.generation, client.instance))
            self.work["joins"] += 1

    def _learn_id(self, client: Client, member_id: str) -> None:
        owner = self._given.setdefault(member_id, client.number)
        must(owner == client.number, f"{member_id} was returned to two clients")
        client.member_id = member_id

    def _note_leader(self, client: Client, response: JoinGroupResponse) -> None:
        must(response.leader == client.member_id, "a follower received the member list")
        leaders = self._leaders[client.group, response.generation_id]
        if not response.skip_assignment:
            leaders.add(client.number)
            must(len(leaders) == 1, f"generation {response.generation_id} was led by {leaders}")

    def _begin_sync(self, client: Client) -> None:
        assignments = {}
        if client.leads:
            stamp = f"{client.group}:{client.generation}:{next(self._syncs)}"
            assignments = {member_id: stamp.encode() for member_id in client.members}
        client.sync = self.h.sync(
            client.member_id,
            client.generation,
            assignments,
            version=3,
            group=client.group,
            instance=client.instance,
        )
        self._calls.append(client.sync)
        self._finish_sync(client)

    def _finish_sync(self, client: Client) -> None:
        call = client.sync
        if call is None or call.is_pending:
            return
        client.sync = None
        self._calls.remove(call)
        response = call.response
        if response.error_code:
            client.forget(response.error_code)
            return
        client.synced = True
        if response.assignment:
            group, generation, stamp = response.assignment.decode().split(":")
            must(group == client.group, "assignment of another group")
            must(int(generation) == client.generation, "assignment of another generation")
            syncs = self._syncs_of[group, int(generation)]
            syncs.add(stamp)
            must(len(syncs) == 1, "a generation has two assignments")
        self.work["syncs"] += 1

    def _work_on(self, client: Client) -> None:
        group, member_id, generation = client.group, client.member_id, client.generation
        chance = self.rng.random()
        if chance < 0.6:
            code = self.h.heartbeat(member_id, generation, group=group, instance=client.instance)
        elif chance < 0.93:
            code = self._commit(group, member_id, generation, client.instance, client.partition)
        else:
            self._choose_protocols(client)
            code = int(ErrorCode.REBALANCE_IN_PROGRESS)
        if code:
            client.forget(code)

    def _commit(
        self, group: str, member_id: str, generation: int, instance: str | None, partition: int
    ) -> int:
        offset = next(self._offsets)
        now = self._group(group)
        current = now is not None and now.generation == generation and member_id in now.members
        expected_to_fail = self.h.append_fails
        (code,) = self.h.commit(
            {("orders", partition): offset}, member_id, generation, group=group, instance=instance
        )
        if not code:
            must(current, "commit by a client outside the generation was accepted")
            self._acked[group, partition] = self._sent[group, partition] = offset
            self.work["commits"] += 1
        elif expected_to_fail is None:
            row = self.h.fetch({"orders": [partition]}, group=group)["orders", partition]
            must(row[0] != offset, "rejected commit was stored")
        return code

    # -- invariants

    def _group(self, group_id: str) -> ClassicGroup | None:
        return self.h.coordinator._state.find_group(group_id, ClassicGroup)

    def check(self) -> None:
        groups = list(self.h.coordinator._state.groups_of(ClassicGroup))
        for group in groups:
            self._check_group(group)
            self._check_timers(group)
        slots = {
            id(slot)
            for group in groups
            for member in group.members.values()
            for slot in (member.pending_join, member.pending_sync)
            if slot is not None
        }
        slots |= self.h.promised()
        for call in self._calls:
            if call.is_pending and call.slot is not None:
                must(id(call.slot) in slots, "pending request will never be answered")
        if self.rng.random() < 0.1:
            self.check_log()

    def _check_group(self, group: ClassicGroup) -> None:
        before = self._generations.get(group.id, 0)
        must(group.generation >= before, f"generation {group.generation} after {before}")
        self._generations[group.id] = group.generation
        members = group.members
        must(
            group.joined == sum(member.pending_join is not None for member in members.values()),
            "the count of joined members is wrong",
        )
        must(group.unsynced <= set(members), "a sync is expected of a non-member")
        must(not group.pending & set(members), "a member is also a pending member ID")
        must((group.leader_id in members) == bool(members), f"leader {group.leader_id}")
        instances = {m.instance_id: m.id for m in members.values() if m.instance_id is not None}
        must(group.static_ids == instances, "the index of static members is wrong")
        must(bool(members) or group.state in (EMPTY, PREPARING), f"{group.state} without members")
        must(not members or group.state is not EMPTY, "an empty group has members")
        for member in members.values():
            must(
                member.pending_join is None or group.state is PREPARING,
                "a join is pending outside the join phase",
            )
            waits = group.state is COMPLETING
            must(member.pending_sync is None or waits, "a sync is pending outside the sync phase")
        if group.state is STABLE:
            stamps = {m.assignment for m in members.values() if m.assignment}
            must(len(stamps) <= 1, f"stable group has assignments of two syncs: {stamps}")
            self.work["stable checks"] += 1

    def _check_timers(self, group: ClassicGroup) -> None:
        timers = self.h.coordinator._rebalances.timers
        for member_id in group.pending:
            must(
                timers.deadline((SESSION, group.id, member_id)) is not None,
                "pending member ID has no timer",
            )
        for member in group.members.values():
            timed = timers.deadline((SESSION, group.id, member.id)) is not None
            must(timed or (member.is_waiting and not member.is_new), f"{member.id} has no session")
        if group.state is PREPARING:
            must(timers.deadline((JOIN, group.id, "")) is not None, "join phase has no timer")
        if group.state is COMPLETING:
            must(timers.deadline((SYNC, group.id, "")) is not None, "sync phase has no timer")

    def check_log(self) -> None:
        """Check that the state after a restart equals the stored part of the live state."""
        generations: dict[str, int] = {}
        for key, value in self.h.log:
            entry = decode_key(key)
            if isinstance(entry, GroupMetadataKey):
                generation = 0 if value is None else decode_group_metadata(value).generation
                before = generations.get(entry.group, 0)
                must(value is None or generation >= before, "generations in the log decrease")
                generations[entry.group] = generation
        fresh = ShardState(unlimited())
        for each in self.h.entries:
            each.load(partial(replay, fresh), partial(end_transaction, fresh))
        live = self.h.coordinator._state
        must(fresh.offsets == live.offsets, "offsets differ after a restart")
        must(
            fresh.memory.limits.offsets.used == live.memory.limits.offsets.used,
            "memory of offsets differs after a restart",
        )
        self._check_memory(live)
        for group in live.groups_of(ClassicGroup):
            ahead = encode_key(GroupMetadataKey(group=group.id)) in self.h.not_stored
            if group.stored and group.state in (STABLE, EMPTY) and not ahead:
                replayed = fresh.find_group(group.id, ClassicGroup)
                must(replayed is not None, f"group {group.id} is lost after a restart")
                assert replayed is not None
                must(_stored(replayed) == _stored(group), f"{group.id} differs after a restart")
        self.work["log checks"] += 1

    def _check_memory(self, state: ShardState) -> None:
        """Check that each member and each pending member ID is counted once."""
        for group in state.groups_of(ClassicGroup):
            items = set(state.memory._groups.get(group.id, {})) - {RECORD}
            must(items == {*group.members, *group.pending}, f"{group.id}: memory items are wrong")
        held = [each for items in state.memory._groups.values() for each in items.values()]
        limit = state.memory.limits.members
        must(limit.used == sum(each.size for each in held), "sum of memory is wrong")
        by_host: Counter[str | None] = Counter()
        for each in held:
            by_host[each.host] += each.size
        must(limit._used_by_host == by_host, "sum of memory by host is wrong")

    # -- healing

    def heal(self) -> None:
        """Stop all failures, and check that every living client gets an assignment."""
        self.h.append_fails = None
        self.h.hold = False
        self.h.commit_log()
        living = [client for client in self.clients if client.alive]
        end_ms = self.h.ms + HEAL_MS
        while self.h.ms < end_ms:
            for client in living:
                client.protocols = BOTH
                while self._heal_step(client):
                    pass
            self.check()
            self.h.sleep(1_000)
        for client in living:
            group = self._group(client.group)
            assert group is not None
            if len([c for c in living if c.group == client.group]) > self.h.settings.group_size_max:
                continue  # the group is full, so one client cannot join
            must(not client.is_waiting, f"client {client.number} waits forever")
            must(group.state is STABLE, f"group {group.id} is {group.state} after healing")
            must(
                client.member_id in group.members,
                f"client {client.number} is not a member after healing",
            )
            must(
                client.generation == group.generation,
                f"client {client.number} has an old generation",
            )
        self.check_log()

    def _heal_step(self, client: Client) -> bool:
        """Send one request of a client; return True if the client should continue immediately."""
        if client.synced:
            code = self.h.heartbeat(
                client.member_id, client.generation, group=client.group, instance=client.instance
            )
            if code:
                client.forget(code)
            return bool(code)
        before = (client.member_id, client.generation, client.synced)
        self._advance(client)
        moved = before != (client.member_id, client.generation, client.synced)
        return moved and not client.is_waiting


def _stored(group: ClassicGroup) -> Any:
    return (
        group.state,
        group.generation,
        group.protocol_type,
        group.protocol_name,
        group.leader_id,
        group.state_since_ms,
        [
            (
                member.id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.session_timeout_ms,
                member.rebalance_timeout_ms,
                member.metadata(group.protocol_name),
                member.assignment,
            )
            for member in group.members.values()
        ],
    )
