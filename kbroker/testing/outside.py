"""What a test does with a Kafka of somebody else: it sees less there, and leaves nothing behind.

Such a Kafka tells nothing of what it is doing. What can be seen over the protocol is compared over
a time that is stated: when nothing has changed for so long, it counts as idle.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import trio

from kbroker.client.cluster import ClusterClient
from kbroker.client.configs import Resource, describe_configs
from kbroker.client.errors import NoSuchGroup, NoSuchTransaction
from kbroker.client.groups import (
    Group,
    committed_offsets,
    delete_groups,
    describe_group,
    list_groups,
)
from kbroker.client.list_offsets import EARLIEST, LATEST, list_offsets
from kbroker.client.topics import Partition
from kbroker.client.transactions import (
    Transaction,
    describe_transaction,
    fence_producer,
    list_transactions,
)
from kbroker.protocol.errors import ErrorCode, KafkaError

from .given import AT_REST, Config
from .kit import WAIT_SECONDS, Headers, KafkaRecord, Kit, Pauses, Value

SETTLE_SECONDS = 1.0
"""How long nothing may change before a Kafka that tells nothing counts as idle."""
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")

Offsets = dict[Partition, int]


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """A group, with what it has committed."""

    group: Group
    committed: Offsets

    @property
    def assigned(self) -> list[Partition]:
        return [each for member in self.group.members for each in member.partitions]

    @property
    def topics(self) -> set[str]:
        """The topics that it reads."""
        return {topic for topic, _ in (*self.assigned, *self.committed)}


@dataclass(frozen=True, slots=True)
class ObservedState:
    """State of topics, of the groups that read them and of transactions, as seen over the protocol.

    `read` are the offsets of the next records that readers of committed ones do not see yet;
    `changelogs` are topics that are compacted.
    """

    starts: Offsets
    ends: Offsets
    read: Offsets
    changelogs: frozenset[str]
    readers: list[ObservedGroup]
    transactions: list[Transaction]

    def pending_work(self) -> str | None:
        """Describe work that is pending, or return None."""
        for reader in self.readers:
            if (reason := self._pending_work_of(reader)) is not None:
                return f"group {reader.group.name}: {reason}"
        for each in self.transactions:
            return f"the transaction of {each.id} is {each.state}"
        return None

    def _pending_work_of(self, reader: ObservedGroup) -> str | None:
        if reader.group.state not in AT_REST:
            return f"is {reader.group.state}"
        commits_in = {topic for topic, _ in reader.committed}
        for each in reader.assigned:
            topic, index = each
            end = self.read.get(each, 0)
            is_changelog = commits_in and topic not in commits_in and topic in self.changelogs
            if is_changelog or end <= self.starts.get(each, 0):
                continue
            offset = reader.committed.get(each)
            if offset is None or offset < end:
                return f"has committed {offset} of {end} in {topic}-{index}"
        return None


class OutsideKit(Kit):
    """Operations on a cluster that tells nothing.

    It remembers which topics and groups a test names, and what was there when the test began.

    Parameters: as of `Kit`; `settle_seconds` is how long nothing may change in an idle cluster.
    """

    def __init__(
        self, cluster: ClusterClient, now_ms: Callable[[], int], settle_seconds: float
    ) -> None:
        super().__init__(cluster, Pauses(), now_ms)
        self._settle_seconds = settle_seconds
        self._topics: set[str] = set()
        self._groups: set[str] = set()
        self._topics_before: set[str] = set()
        self._groups_before: set[str] = set()
        self._groups_in_use: set[str] = set()
        """Groups of earlier tests that had members when these ended."""

    # -- what a test names

    def track_topic(self, name: str) -> None:
        """The test has to do with this topic."""
        self._topics.add(name)

    async def create_topic(
        self, name: str, partitions: int = 1, configs: Config | None = None
    ) -> None:
        """As in `Kit`."""
        self._topics.add(name)
        await super().create_topic(name, partitions, configs)

    async def produce(
        self,
        topic: str,
        value: Value,
        *,
        key: Value = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> KafkaRecord:
        """As in `Kit`."""
        self._topics.add(topic)
        return await super().produce(
            topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp
        )

    async def _records(self, topic: str, *, committed: bool = True) -> list[KafkaRecord]:
        self._topics.add(topic)
        return await super()._records(topic, committed=committed)

    async def group(self, name: str) -> Group | None:
        """As in `Kit`."""
        self._groups.add(name)
        return await super().group(name)

    async def committed(self, group: str) -> Offsets:
        """As in `Kit`."""
        self._groups.add(group)
        return await super().committed(group)

    # -- a test and the next one

    async def begin_test(self) -> None:
        """What is there now is not the test's own. Raises KafkaError, ClientError."""
        self._topics.clear()
        self._groups.clear()
        self._topics_before = set(await self.topics())
        self._groups_before = {each.name for each in await list_groups(self._cluster)}

    async def end_test(self) -> None:
        """Leave nothing of the test: abort the transactions that are open in its topics, delete the
        groups that came since it began and that it has named or that have read its topics, and delete
        the topics that it has created.

        A group that has members yet is left, and deleted when a later test ends. Raises KafkaError,
        ClientError.
        """
        for each in await self._open_transactions(self._topics):
            await fence_producer(self._cluster, each.id)
        new = {each.name for each in await list_groups(self._cluster)} - self._groups_before
        mine = {each.group.name for each in await self._readers(new, self._topics)}
        outcome = await delete_groups(self._cluster, mine | self._groups_in_use)
        in_use = ErrorCode.NON_EMPTY_GROUP
        self._groups_in_use = {name for name, code in outcome.items() if code == in_use}
        await self.delete_created()

    # -- rest

    async def wait_until_idle(
        self, group: str | None = None, timeout: float = WAIT_SECONDS
    ) -> None:
        """Wait until what can be seen over the protocol is at rest, and has not changed for
        `settle_seconds`.

        At rest means: no rebalance, no open transaction, and each group has committed all that its
        members were assigned (but for compacted topics in which it never commits: changelogs). What
        is looked at are the topics that the test has named (all that came since it began, when it
        has named none), the transactions in them, and the groups that it has named or that read
        them; with `group` that one alone, and what it reads. Not seen are requests that are being
        worked on, and programs that think for longer than that time.

        Raises WaitTimeout, `timeout` seconds after that time.
        """
        last: ObservedState | None = None
        since = trio.current_time()

        async def look() -> tuple[bool, str]:
            nonlocal last, since
            began = trio.current_time()
            observed = await self._observe(group)
            if observed != last:
                last, since = observed, trio.current_time()
            pending_work = observed.pending_work()
            is_settled = began - since >= self._settle_seconds
            return pending_work is None and is_settled, pending_work or "it changes still"

        what = f"the cluster to come to rest, without a change for {self._settle_seconds:g} s"
        await self.wait_until(look, what, timeout + self._settle_seconds, group=group)

    async def _observe(self, group: str | None) -> ObservedState:
        there = await self.topics()
        if group is not None:
            self._groups.add(group)
            topics, names = set[str](), {group}
        else:
            topics = self._topics or there.keys() - self._topics_before
            names = {each.name for each in await list_groups(self._cluster)}
        readers = await self._readers(names, topics)
        topics = topics.union(*(reader.topics for reader in readers))
        partitions = [(name, index) for name in topics for index in range(there.get(name, 0))]
        return ObservedState(
            await self._offsets(partitions, EARLIEST),
            await self._offsets(partitions, LATEST),
            await self._offsets(partitions, LATEST, committed=True),
            await self._compacted(topics & there.keys()),
            readers,
            [] if group is not None else await self._open_transactions(topics),
        )

    async def _offsets(
        self, partitions: Iterable[Partition], time: int, *, committed: bool = False
    ) -> Offsets:
        """Those that can be found now."""
        wanted = dict.fromkeys(partitions, time)
        found = await list_offsets(self._cluster, wanted, committed=committed)
        return {partition: one.offset for partition, one in found.items() if not one.error}

    async def _readers(self, names: Iterable[str], topics: set[str]) -> list[ObservedGroup]:
        """Those of some groups that the test has named, or that read some topics."""
        found = []
        for name in sorted(names):
            with contextlib.suppress(NoSuchGroup):
                group = await describe_group(self._cluster, name)
                reader = ObservedGroup(group, await committed_offsets(self._cluster, name))
                if name in self._groups or reader.topics & topics:
                    found.append(reader)
        return found

    async def _compacted(self, topics: Iterable[str]) -> frozenset[str]:
        described = await describe_configs(self._cluster, Resource.TOPIC, topics)
        return frozenset(
            topic
            for topic, settings in described.items()
            for one in settings
            if one.name == "cleanup.policy" and "compact" in (one.value or "")
        )

    async def _open_transactions(self, topics: set[str]) -> list[Transaction]:
        """Those that have written to some topics; none where brokers cannot tell (before 3.0)."""
        found = []
        try:
            listed = await list_transactions(self._cluster, states=OPEN_STATES)
        except KafkaError as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
            return []
        for each in listed:
            with contextlib.suppress(NoSuchTransaction):
                described = await describe_transaction(self._cluster, each.id)
                if {topic for topic, _ in described.partitions} & topics:
                    found.append(described)
        return found
