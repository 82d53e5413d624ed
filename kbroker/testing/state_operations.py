"""Rare events of a production cluster on demand: moved leaders, fenced producers, lost records."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.cluster import Cluster
from kbroker.coordinator_runtime.groups import GroupShard
from kbroker.coordinator_runtime.transactions import TransactionShard
from kbroker.node.node import Node
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

from .node_lookup import (
    any_node,
    coordinator_of_group,
    coordinator_of_transactions,
    leader_of,
)
from .rules import Faults, Rule, Target
from .schedule import Effect
from .transactions import (
    finish_prepared_transactions,
    known_transactions,
    open_transaction,
    transaction_of,
)

# APIs whose requests go to partition leaders.
LEADER_APIS = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.DELETE_RECORDS,
    }
)
# APIs whose requests go to group coordinators.
GROUP_COORDINATOR_APIS = frozenset(
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
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        ApiKey.STREAMS_GROUP_DESCRIBE,
        ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
    }
)
# APIs whose requests go to transaction coordinators.
TRANSACTION_COORDINATOR_APIS = frozenset(
    {
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
    }
)
# Causes of changes in explanations of the broker.
CAUSE = "requested by a test"
ABORTED = "the test aborted it"


class StateOperations:
    """Operations that change the state of a broker: members, producers, transactions, leaders."""

    broker: Broker
    faults: Faults

    def record_action(
        self,
        action: str,
        *,
        group: str | None = None,
        topic: str | None = None,
        transactional_id: str | None = None,
    ) -> None:
        """Record an action of the test and the object that it concerns, for `explain`."""
        raise NotImplementedError

    @property
    def _nodes(self) -> list[Node]:
        return self.broker.running_nodes

    async def expire_member(self, group: str, member: str) -> list[str]:
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
        groups = coordinator_of_group(self.broker, group).groups
        shard, ids = self._members(group)
        matching = [member_id for member_id, names in ids.items() if member in names]
        if not matching:
            known = ", ".join(sorted(ids)) or "none"
            raise ValueError(f"group {group!r} has no member {member!r} (valid: {known})")
        self.record_action(f"expired member {member}", group=group)
        for member_id in matching:
            shard.coordinator.end_session(group, member_id, groups.now())
        groups.deadlines.run_due()
        left = {member.id for member in shard.coordinator.view(group).members}
        return [member_id for member_id in matching if member_id not in left]

    def _members(self, group: str) -> tuple[GroupShard, dict[str, set[str]]]:
        """Return the coordinator shard of a group, and the names of each member by its ID."""
        try:
            shard = coordinator_of_group(self.broker, group).groups.shard(group)
        except KafkaError as error:
            raise ValueError(f"there is no group {group!r}") from error
        members = shard.coordinator.view(group).members
        return shard, {member.id: {member.id, *member.names} for member in members}

    # -- producers and transactions

    async def fence_producer(
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
        if transactional_id is not None:
            if producer_id is not None:
                raise ValueError(
                    "both a producer ID and a transactional ID are given; remove one of them"
                )
            return [await self._fence_transactional(transactional_id)]
        logs = [replica.log for node in self._nodes for replica in node.partitions.opened()]
        transactional_ids = {
            transaction.producer_id: name
            for _, name, transaction in known_transactions(self._nodes)
        }
        known = sorted({*transactional_ids, *(known for log in logs for known, _ in log.producers)})
        matching = known if producer_id is None else [producer_id]
        if not matching or not set(matching) <= set(known):
            valid = ", ".join(map(str, known)) or "none"
            raise ValueError(f"no producer {producer_id} has written records (valid: {valid})")
        self.record_action(f"fenced producer {', '.join(map(str, matching))}")
        for each in matching:
            if each in transactional_ids:
                await self._init_newer_producer(transactional_ids[each])
            else:
                for log in logs:
                    log.fence(each)
        return matching

    async def _fence_transactional(self, transactional_id: str) -> int:
        _, known = transaction_of(self._nodes, transactional_id)
        self.record_action("fenced its producer", transactional_id=transactional_id)
        await self._init_newer_producer(transactional_id)
        return known.producer_id

    async def _init_newer_producer(self, transactional_id: str) -> None:
        """Initialize a newer instance of a producer; retry once its open transaction is aborted."""
        await finish_prepared_transactions(self._nodes)
        code = await self._init_producer_id(transactional_id)
        if code == ErrorCode.CONCURRENT_TRANSACTIONS:
            await finish_prepared_transactions(self._nodes)
            code = await self._init_producer_id(transactional_id)
        if code:
            raise RuntimeError(
                f"transactional id {transactional_id!r} cannot be fenced: {code.name}"
            )

    async def _init_producer_id(self, transactional_id: str) -> ErrorCode:
        node = coordinator_of_transactions(self.broker, transactional_id)
        new_id = await node.transactions.new_id_for(transactional_id)
        shard, known = transaction_of([node], transactional_id)
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=known.timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        result = shard.coordinator.init_producer_id(
            request, new_id, node.transactions.now(), host=""
        )
        response = result.response
        node.transactions.run(shard, result)
        assert isinstance(response, InitProducerIdResponse)
        return ErrorCode(response.error_code)

    async def abort_transaction(self, transactional_id: str) -> None:
        """Abort an open transaction, as its coordinator would, and fence its producer.

        read_committed consumers then read the records after the transaction. The method returns when
        the markers are written.

        Args:
            transactional_id: Transactional ID.

        Raises:
            ValueError: The transaction is not open; the message lists the open ones.
        """
        shard = open_transaction(self._nodes, transactional_id)
        service = coordinator_of_transactions(self.broker, transactional_id).transactions
        service.run(shard, shard.coordinator.abort(transactional_id, service.now(), cause=ABORTED))
        await finish_prepared_transactions(self._nodes)

    async def expire_transaction(self, transactional_id: str) -> None:
        """Expire an open transaction now, so that its coordinator aborts it.

        `transaction.timeout.ms` and the clock are ignored. The method returns when the markers are
        written.

        Args:
            transactional_id: Transactional ID.

        Raises:
            ValueError: The transaction is not open; the message lists the open ones.
        """
        shard: TransactionShard = open_transaction(self._nodes, transactional_id)
        service = coordinator_of_transactions(self.broker, transactional_id).transactions
        self.record_action("expired the transaction", transactional_id=transactional_id)
        shard.coordinator.expire_timeout(transactional_id, service.now())
        service.deadlines.run_due()
        await finish_prepared_transactions(self._nodes)

    async def offset_out_of_range(self, topic: str, partition: int = 0) -> int:
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
        node = leader_of(self.broker, topic, partition)
        replica = node.partitions.named_replica(topic, partition)
        self.record_action(f"lost all records of {topic}-{partition}", topic=topic)
        await node.partitions.flusher.sync_now()
        async with node.partitions.flusher.sync_lock, node.partitions.checkpoint_lock:
            start = replica.log.log_end_offset + 1
            replica.restart_at(start, node.clock.log_ms())
        await node.maintenance.log_manager_tasks.checkpoint()
        node.context.changes.notify()
        return start

    async def move_leader(
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
        cluster = any_node(self.broker).cluster
        known = cluster.existing(topic, partition or 0)[0].partitions
        indexes = [each.index for each in known] if partition is None else [partition]
        self.record_action(f"moved the leader of {topic} {indexes}", topic=topic)
        stayed = [i for i in indexes if not await self._hand_over(cluster, topic, i, to)]
        if stayed:
            target = Target(LEADER_APIS, topic=topic, partitions=frozenset(stayed))
            self._fail_until(ApiKey.METADATA, target, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for index in stayed:
            await cluster.renew_leader(topic, index, cause=CAUSE)
            node = leader_of(self.broker, topic, index)
            node.partitions.named_replica(topic, index).wake()

    async def _hand_over(self, cluster: Cluster, topic: str, index: int, to: int | None) -> bool:
        """Elect another leader. Return False if no other node can lead."""
        before = cluster.existing(topic, index)[1]
        if to is not None and before.leader == to:
            return True
        now_leads = await cluster.hand_over(topic, index, to=to, cause=CAUSE)
        if to is not None and now_leads is None:
            raise ValueError(
                f"node {to} cannot lead {topic}-{index}: it is not in the ISR {list(before.isr)}"
            )
        return now_leads is not None

    async def move_coordinator(
        self, group: str | None = None, *, transactional_id: str | None = None
    ) -> None:
        """Move a group or transaction coordinator to another node.

        Each client gets NOT_COORDINATOR until it looks up the coordinator again. If there is no
        other node, the same coordinator reloads its state.

        Args:
            group: Group ID.
            transactional_id: Transactional ID, instead of a group.

        Raises:
            ValueError: The group or transactional ID does not exist, or not exactly one is given.
        """
        match group, transactional_id:
            case str(), None:
                await self._move_group_coordinator(group)
            case None, str():
                await self._move_transaction_coordinator(transactional_id)
            case _:
                raise ValueError("move_coordinator: pass either a group or a transactional ID")

    async def _move_group_coordinator(self, group: str) -> None:
        node = coordinator_of_group(self.broker, group)
        shards = [shard for each in self._nodes for shard in each.groups.shards()]
        known = {row.group_id for shard in shards for row in shard.coordinator.list_groups()}
        if group not in known:
            valid = ", ".join(sorted(known)) or "none"
            raise ValueError(f"there is no group {group!r} (valid: {valid})")
        self.record_action("moved the coordinator", group=group)
        if await self._hand_over(node.cluster, *node.groups.partition_of(group), None):
            return
        target = Target(GROUP_COORDINATOR_APIS, group=group)
        self._fail_until(ApiKey.FIND_COORDINATOR, target, ErrorCode.NOT_COORDINATOR)
        node.groups.reload(group)

    async def _move_transaction_coordinator(self, transactional_id: str) -> None:
        transaction_of(self._nodes, transactional_id)
        node = coordinator_of_transactions(self.broker, transactional_id)
        self.record_action("moved the coordinator", transactional_id=transactional_id)
        if await self._hand_over(
            node.cluster, *node.transactions.partition_of(transactional_id), None
        ):
            return
        target = Target(TRANSACTION_COORDINATOR_APIS, transactional_id=transactional_id)
        self._fail_until(ApiKey.FIND_COORDINATOR, target, ErrorCode.NOT_COORDINATOR)
        node.transactions.reload(transactional_id)

    def _fail_until(self, api: ApiKey, target: Target, code: ErrorCode) -> None:
        rule = Rule(
            target, effect=Effect.ERROR, code=code, count=float("inf"), until=api, releases_all=True
        )
        rule.may_stay_unfired = True
        self.faults.arm(rule)
