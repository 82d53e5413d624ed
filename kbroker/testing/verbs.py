"""What happens to a cluster in production once in a while, on demand."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.groups import GroupShard
from kbroker.node import Node
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError

from .rules import Effect, Faults, Rule, Target

ASK_LEADERS = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.DELETE_RECORDS,
    }
)
ASK_COORDINATORS = frozenset(
    {
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.OFFSET_COMMIT,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_DELETE,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.DELETE_GROUPS,
    }
)
CAUSE = "asked for by a test"


class StateVerbs:
    """Changes of a broker's state that clients have to cope with."""

    broker: Broker
    faults: Faults

    def did(self, deed: str, *, group: str | None = None, topic: str | None = None) -> None:
        """Remember what the test does to a group or topic (None for both: to all), for `explain`."""
        raise NotImplementedError

    @property
    def _node(self) -> Node:
        return self.broker.node

    async def expire_member(self, group: str, member: str) -> list[str]:
        """End the session of a member now, as if it had not been heard of for too long.

        `member` is its id, its instance id, or the client id, which several may have. Returns the
        ids of those who are out; one that waits for the others in a rebalance stays, as ever.
        Raises ValueError when there is none, with those that there are.
        """
        groups = self._node.groups
        shard, ids = self._members(group)
        meant = [member_id for member_id, names in ids.items() if member in names]
        if not meant:
            known = ", ".join(sorted(ids)) or "nobody"
            raise ValueError(f"group {group!r} has no member {member!r}; it has {known}")
        self.did(f"expired member {member}", group=group)
        for member_id in meant:
            shard.coordinator.end_session(group, member_id, groups.now())
        groups.run_due()
        left = {row.member_id for row in shard.coordinator.describe_group(group, 5).members}
        return [member_id for member_id in meant if member_id not in left]

    def _members(self, group: str) -> tuple[GroupShard, dict[str, set[str]]]:
        """The coordinator of a group, and by what names its members are known."""
        try:
            shard = self._node.groups.shard(group)
        except KafkaError as error:
            raise ValueError(f"there is no group {group!r}") from error
        rows = shard.coordinator.describe_group(group, 5).members
        return shard, {
            row.member_id: {row.member_id, row.group_instance_id or "", row.client_id} - {""}
            for row in rows
        }

    async def fence_producer(self, producer_id: int | None = None) -> list[int]:
        """Refuse a producer's epoch from now on (INVALID_PRODUCER_EPOCH), as if a newer instance of
        it had taken over.

        None stands for all that have written something; returns whom it hit. Raises ValueError
        when there is no such producer, with those that there are.
        """
        logs = [replica.log for replica in self._node.open_replicas()]
        known = sorted({known for log in logs for known, _ in log.producers})
        meant = known if producer_id is None else [producer_id]
        if not meant or not set(meant) <= set(known):
            there_are = ", ".join(map(str, known)) or "none"
            raise ValueError(f"no producer {producer_id} has written; there are {there_are}")
        self.did(f"fenced producer {', '.join(map(str, meant))}")
        for log in logs:
            for each in meant:
                log.producers.fence(each)
        return meant

    async def offset_out_of_range(self, topic: str, partition: int = 0) -> int:
        """Lose all records of a partition, and skip an offset: no position in it is right any more,
        not even that of a consumer that has read everything.

        Returns the offset at which the partition begins now. Raises KafkaError
        UNKNOWN_TOPIC_OR_PARTITION.
        """
        node = self._node
        replica = node.named_replica(topic, partition)
        self.did(f"lost all records of {topic}-{partition}", topic=topic)
        await node.flusher.sync_now()
        async with node.flusher.no_pass, node.no_checkpoint:
            start = replica.log.log_end_offset + 1
            replica.restart_at(start, node.clock.log_ms())
        await node.checkpoint()
        node.changes.happened()
        return start

    async def move_leader(self, topic: str, partition: int | None = None) -> None:
        """Elect the leader of a partition anew, None for all of the topic.

        The leader epoch rises, and each client is told NOT_LEADER_OR_FOLLOWER until it has asked
        for metadata again. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION.
        """
        cluster = self._node.cluster
        known = cluster.existing(topic, partition or 0)[0].partitions
        indexes = [each.index for each in known] if partition is None else [partition]
        target = Target(ASK_LEADERS, topic=topic, partitions=frozenset(indexes))
        self.did(f"moved the leader of {topic} {indexes}", topic=topic)
        self._refuse_until(ApiKey.METADATA, target, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for index in indexes:
            await cluster.renew_leader(topic, index, cause=CAUSE)
            self._node.named_replica(topic, index).wake()

    async def move_coordinator(self, group: str) -> None:
        """Let the coordinator of a group move: it is loaded anew from what is stored, and each
        client is told NOT_COORDINATOR until it has looked for it again.

        Raises ValueError when there is no such group, with those that there are.
        """
        shards = self._node.groups.shards()
        known = {row.group_id for shard in shards for row in shard.coordinator.list_groups()}
        if group not in known:
            there_are = ", ".join(sorted(known)) or "none"
            raise ValueError(f"there is no group {group!r}; there are {there_are}")
        target = Target(ASK_COORDINATORS, group=group)
        self.did("moved the coordinator", group=group)
        self._refuse_until(ApiKey.FIND_COORDINATOR, target, ErrorCode.NOT_COORDINATOR)
        self._node.groups.reload(group)

    def _refuse_until(self, api: ApiKey, target: Target, code: ErrorCode) -> None:
        rule = Rule(target, Effect.ERROR, code=code, count=float("inf"), until=api, frees_all=True)
        rule.may_stay_unfired = True
        self.faults.arm(rule)
