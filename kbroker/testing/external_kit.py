"""Operations and waits on an external Kafka, and cleanup after each test.

An external Kafka does not report changes of its state. The kit polls the state that is visible over
the protocol. If this state has not changed for a given time, the cluster counts as idle.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import trio

from kbroker.client.cluster import ClusterClient
from kbroker.client.configs import Operation, Resource, alter_configs, describe_configs
from kbroker.client.errors import ClientError, NoSuchGroup, NoSuchTransaction
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

from .arguments import IDLE_GROUP_STATES, Config
from .kafka_record import KafkaRecord
from .kit import WAIT_SECONDS, Headers, Kit, Pauses, Value, WaitTimeout

# Seconds without a change after which an external Kafka counts as idle.
SETTLE_SECONDS = 1.0
# States of transactions that have not ended.
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")

Offsets = dict[Partition, int]


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """A group and its committed offsets."""

    group: Group
    committed: Offsets

    @property
    def assigned(self) -> list[Partition]:
        return [each for member in self.group.members for each in member.partitions]

    @property
    def topics(self) -> set[str]:
        """Topics that the group consumes."""
        return {topic for topic, _ in (*self.assigned, *self.committed)}


@dataclass(frozen=True, slots=True)
class ObservedState:
    """State of topics, consuming groups and transactions, as seen over the protocol.

    Attributes:
        starts: Log start offsets.
        ends: Log end offsets.
        read: Last stable offsets.
        changelogs: Compacted topics.
        readers: Groups.
        transactions: Open transactions.
    """

    starts: Offsets
    ends: Offsets
    read: Offsets
    changelogs: frozenset[str]
    readers: list[ObservedGroup]
    transactions: list[Transaction]

    def pending_work(self) -> str | None:
        """Describe work that is pending; return None if there is none."""
        for reader in self.readers:
            if (reason := self._pending_work_of(reader)) is not None:
                return f"group {reader.group.name}: {reason}"
        for each in self.transactions:
            return f"the transaction of {each.id} is {each.state}"
        return None

    def _pending_work_of(self, reader: ObservedGroup) -> str | None:
        if reader.group.state not in IDLE_GROUP_STATES:
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


class ExternalKit(Kit):
    """Operations on an external cluster.

    The kit records the topics and groups that a test names, and the topics and groups that existed
    before the test.

    Args:
        cluster: Client of the cluster.
        now_ms: Returns the timestamp of new records, in ms since the Unix epoch.
        settle_seconds: Seconds without a change after which the cluster counts as idle.
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
        # Names of configs that the test has set, by group.
        self._group_configs: dict[str, set[str]] = {}
        # Groups of earlier tests that could not be deleted because they had members.
        self._groups_in_use: set[str] = set()

    # -- topics and groups of a test

    def track_topic(self, name: str) -> None:
        """Record that the test uses a topic."""
        self._topics.add(name)

    async def create_topic(
        self, name: str, partitions: int = 1, configs: Config | None = None
    ) -> None:
        """Create a topic as `Kit` does, and record that the test uses it."""
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
        """Append a record as `Kit` does, and record that the test uses the topic."""
        self._topics.add(topic)
        return await super().produce(
            topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp
        )

    async def _records(self, topic: str, *, committed: bool = True) -> list[KafkaRecord]:
        self._topics.add(topic)
        return await super()._records(topic, committed=committed)

    async def group(self, name: str) -> Group | None:
        """Return a group as `Kit` does, and record that the test uses it."""
        self._groups.add(name)
        return await super().group(name)

    async def committed(self, group: str) -> Offsets:
        """Return committed offsets as `Kit` does, and record that the test uses the group."""
        self._groups.add(group)
        return await super().committed(group)

    async def configure_group(self, group: str, configs: Config) -> None:
        """Set configs of a group as `Kit` does, and reset them at the end of the test."""
        self._groups.add(group)
        self._group_configs.setdefault(group, set()).update(configs)
        await super().configure_group(group, configs)

    # -- begin and end of a test

    async def begin_test(self) -> None:
        """Begin a test: existing topics and groups do not belong to it.

        Raises:
            KafkaError: The cluster rejects a request.
            ClientError: The cluster cannot be reached.
        """
        self._topics.clear()
        self._groups.clear()
        self._topics_before = set(await self.topics())
        self._groups_before = {each.name for each in await list_groups(self._cluster)}

    async def end_test(self) -> None:
        """Abort open transactions of the test, and delete its groups and topics.

        * The transactions are all open transactions in topics that the test has named.
        * The groups are new groups that the test has named, or that consume its topics. A group
          that still has members is deleted at the end of a later test.
        * The topics are the topics that the test has created.

        Configs of groups that the test has set are reset. If one of these steps fails, the others are
        still done.

        Raises:
            KafkaError: The cluster rejects a request.
            ClientError: The cluster cannot be reached.
            OSError: The cluster closes a connection.
        """
        failures: list[Exception] = []
        for step in (
            self._abort_transactions,
            self._delete_groups,
            self.delete_created,
            self._reset_group_configs,
        ):
            try:
                await step()
            except (KafkaError, ClientError, OSError, WaitTimeout) as error:
                failures.append(error)
        if failures:
            raise failures[0]

    async def _abort_transactions(self) -> None:
        for each in await self._open_transactions(self._topics):
            await fence_producer(self._cluster, each.id)

    async def _delete_groups(self) -> None:
        new = {each.name for each in await list_groups(self._cluster)} - self._groups_before
        mine = {each.group.name for each in await self._readers(new, self._topics)}
        outcome = await delete_groups(self._cluster, mine | self._groups_in_use)
        self._groups_in_use = {
            name
            for name, error in outcome.items()
            if error is not None and error.code == ErrorCode.NON_EMPTY_GROUP
        }

    async def _reset_group_configs(self) -> None:
        configured, self._group_configs = self._group_configs, {}
        for group, names in configured.items():
            changes = dict.fromkeys(names, (Operation.DELETE, None))
            await alter_configs(self._cluster, Resource.GROUP, group, changes)

    # -- idleness

    async def wait_until_idle(
        self, group: str | None = None, timeout: float = WAIT_SECONDS
    ) -> None:
        """Wait until the visible state is idle and has not changed for `settle_seconds`.

        Idle means: no rebalance and no open transaction, and each group has committed all records
        that are assigned to its members. A compacted topic in which a group never commits, for
        example a changelog, does not count. The kit cannot see requests in progress, and programs
        that pause for longer than `settle_seconds`.

        The visible state consists of:

        * the topics that the test has named, or all new topics if it has named none
        * open transactions in these topics
        * the groups that consume these topics, and the groups that the test has named

        Args:
            group: Check only this group and the topics that it consumes.
            timeout: Maximum seconds to wait, in addition to `settle_seconds`.

        Raises:
            WaitTimeout: The cluster is not idle; the message describes the pending work.
        """
        last: ObservedState | None = None
        since = trio.current_time()

        async def observe() -> tuple[bool, str]:
            nonlocal last, since
            began = trio.current_time()
            observed = await self._repeat_if_outdated(partial(self._observe, group))
            if observed != last:
                last, since = observed, trio.current_time()
            pending_work = observed.pending_work()
            is_settled = began - since >= self._settle_seconds
            return pending_work is None and is_settled, pending_work or "the state still changes"

        what = f"the cluster to become idle, without a change for {self._settle_seconds:g} s"
        await self.wait_until(observe, what, timeout + self._settle_seconds, group=group)

    async def _observe(self, group: str | None) -> ObservedState:
        partition_counts = await self.topics()
        if group is not None:
            self._groups.add(group)
            topics, names = set[str](), {group}
        else:
            topics = self._topics or partition_counts.keys() - self._topics_before
            names = {each.name for each in await list_groups(self._cluster)}
        readers = await self._readers(names, topics)
        topics = topics.union(*(reader.topics for reader in readers))
        partitions = [
            (name, index) for name in topics for index in range(partition_counts.get(name, 0))
        ]
        return ObservedState(
            await self._offsets(partitions, EARLIEST),
            await self._offsets(partitions, LATEST),
            await self._offsets(partitions, LATEST, committed=True),
            await self._compacted(topics & partition_counts.keys()),
            readers,
            [] if group is not None else await self._open_transactions(topics),
        )

    async def _offsets(
        self, partitions: Iterable[Partition], time: int, *, committed: bool = False
    ) -> Offsets:
        """Return the offsets of the partitions that can be read."""
        wanted = dict.fromkeys(partitions, time)
        found = await list_offsets(self._cluster, wanted, committed=committed)
        return {partition: one.offset for partition, one in found.items() if not one.error}

    async def _readers(self, names: Iterable[str], topics: set[str]) -> list[ObservedGroup]:
        """Return the groups among `names` that the test has named or that consume a topic."""
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
        """Return the open transactions in some topics; an empty list before Kafka 3.0."""
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
