"""State of the leader of a partition: progress of the followers, ISR and high watermark.

The module uses no clock and no event loop: callers pass `now`, in seconds of one monotonic clock.
The rules are those of Kafka's `Partition` (KIP-392, 497, 841, 903, 966):

* A follower has the records before its fetch offset; it syncs them before the next fetch.
* The high watermark is the minimum over the *maximal* ISR: the members of the stored ISR, of each
  proposed ISR that may be stored by now, and of the eligible leader replicas (KIP-966). It does not
  advance while the ISR is smaller than acks=all requires.
* A proposal with an unknown outcome may still be stored later, as long as the stored state has the
  revision that it was based on. So it counts until another revision is seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kbroker.cluster import Partition
from kbroker.cluster.registrations import NO_EPOCH
from kbroker.protocol.schema import BrokerEpoch

# An unknown offset. As a result of `high_watermark`: the high watermark must not advance.
UNKNOWN = -1


@dataclass(slots=True)
class Follower:
    """Progress of one follower, from its fetches.

    Attributes:
        broker_epoch: Registration under which the follower fetches (KIP-903).
        end: Log end offset of the follower.
        log_start: Log start offset of the follower.
        caught_up_at: Last time in seconds when the follower had all records of the leader.
        fetched_at: Time of the last fetch in seconds.
        leader_end: Log end offset of the leader at the last fetch.
    """

    broker_epoch: BrokerEpoch = NO_EPOCH
    end: int = UNKNOWN
    log_start: int = UNKNOWN
    caught_up_at: float = -math.inf
    fetched_at: float = -math.inf
    leader_end: int = UNKNOWN

    def record_fetch(
        self, broker_epoch: BrokerEpoch, offset: int, log_end: int, now: float
    ) -> None:
        """Record a fetch from `offset` that arrived when the leader's log end was `log_end`.

        A follower that now has what the leader had at the previous fetch was caught up at that
        time: under constant load no follower ever has all records.
        """
        if broker_epoch != self.broker_epoch:
            self.broker_epoch, self.leader_end = broker_epoch, UNKNOWN
        if offset >= log_end:
            self.caught_up_at = now
        elif UNKNOWN < self.leader_end <= offset:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.end, self.leader_end, self.fetched_at = offset, log_end, now

    def reset_progress(self) -> None:
        """Reset the progress after the follower left the ISR; only its next fetches count."""
        self.caught_up_at = -math.inf
        self.end = self.leader_end = UNKNOWN

    def is_caught_up(self, log_end: int, now: float, lag_max: float) -> bool:
        return self.end >= log_end or now - self.caught_up_at <= lag_max


def _allow_every_node(node_id: int, broker_epoch: BrokerEpoch) -> bool:
    return True


class LeaderState:
    """The state of one partition in one leader epoch of this node.

    Args:
        partition: The partition in the metadata.
        me: ID of this node.
        log_end: Log end offset at the election.
        now: Time of the election, in seconds.
        lag_max: Time behind the leader, in seconds, after which a follower leaves the ISR
            (replica.lag.time.max.ms).
        in_sync_min: Number of in-sync replicas that acks=all needs.
        eligible: Returns True if a node with this broker epoch may be in the ISR (KIP-841: it is
            neither fenced nor shutting down).
    """

    __slots__ = (
        "_eligible",
        "_isr",
        "_proposed",
        "alone",
        "epoch_start",
        "followers",
        "in_sync_min",
        "lag_max",
        "maximal_isr",
        "me",
        "partition",
    )

    def __init__(
        self,
        partition: Partition,
        me: int,
        log_end: int,
        now: float,
        lag_max: float,
        *,
        in_sync_min: int = 1,
        eligible: Callable[[int, BrokerEpoch], bool] = _allow_every_node,
    ) -> None:
        self.me = me
        # Records that were committed under earlier leaders are before this offset.
        self.epoch_start = log_end
        self.lag_max = lag_max
        self.in_sync_min = in_sync_min
        self._eligible = eligible
        self._proposed: list[frozenset[int]] = []
        self.followers: dict[int, Follower] = {}
        self._apply_metadata(partition)
        for node_id in partition.isr:
            if node_id != me:
                self.followers[node_id].caught_up_at = now

    def follow(self, partition: Partition) -> None:
        """Apply a newer state of the partition under the same leader epoch.

        Earlier proposals can no longer be stored, because they are based on older revisions. A
        follower that left the ISR must catch up again; until then the high watermark does not wait
        for it.
        """
        if partition.revision <= self.partition.revision:
            return
        for node_id in self._isr.difference(partition.isr):
            if node_id in self.followers:
                self.followers[node_id].reset_progress()
        self._proposed.clear()
        self._apply_metadata(partition)

    def _apply_metadata(self, partition: Partition) -> None:
        self.partition = partition
        self._isr = frozenset(partition.isr)
        others = {*partition.replicas, *partition.isr} - {self.me}
        self.followers = {each: self.followers.get(each) or Follower() for each in sorted(others)}
        self._update_maximal_isr()

    def _update_maximal_isr(self) -> None:
        self.maximal_isr = self._isr.union(self.partition.elr, *self._proposed)
        # True if there are no followers to wait for.
        self.alone = not self.followers

    # -- progress of the followers

    def record_fetch(
        self,
        node_id: int,
        broker_epoch: BrokerEpoch,
        offset: int,
        log_end: int,
        now: float,
        *,
        log_start: int = UNKNOWN,
    ) -> bool:
        """Record that a follower has the records from `log_start` to `offset`.

        Args:
            node_id: ID of the follower.
            broker_epoch: Registration of the follower.
            offset: Fetch offset of the follower.
            log_end: Log end offset of the leader.
            now: Current time in seconds.
            log_start: Log start offset of the follower.

        Returns:
            True if the log start offset of the follower changed.
        """
        follower = self.followers.get(node_id)
        if follower is None:
            return False
        follower.record_fetch(broker_epoch, offset, log_end, now)
        before, follower.log_start = follower.log_start, log_start
        return before != log_start

    def is_below_minimum(self) -> bool:
        """Return True if the ISR is smaller than acks=all requires."""
        return len(self._isr) < self.in_sync_min

    def high_watermark(self, own_end: int, log_end: int, now: float) -> int:
        """Return the new high watermark; UNKNOWN while it must not advance.

        A follower that is about to join the ISR counts too; otherwise it might never catch up.

        Args:
            own_end: Durable end offset of this node.
            log_end: Log end offset of this node.
            now: Current time in seconds.
        """
        if self.is_below_minimum():
            return UNKNOWN
        end = own_end
        for node_id, follower in self.followers.items():
            if follower.end < end and (
                node_id in self.maximal_isr or self._is_about_to_join(node_id, log_end, now)
            ):
                end = follower.end
        return end

    def _is_about_to_join(self, node_id: int, log_end: int, now: float) -> bool:
        follower = self.followers[node_id]
        return follower.is_caught_up(log_end, now, self.lag_max) and self._eligible(
            node_id, follower.broker_epoch
        )

    def low_watermark(self, own_start: int) -> int:
        """Return the minimum log start offset of all eligible replicas (KIP-107)."""
        starts = (
            follower.log_start
            for node_id, follower in self.followers.items()
            if self._eligible(node_id, follower.broker_epoch)
        )
        return min(starts, default=own_start) if self.followers else own_start

    def readable_at(self, offset: int) -> dict[int, int]:
        """Return the followers that can serve `offset` to consumers, and their end (KIP-392)."""
        return {
            node_id: follower.end
            for node_id, follower in self.followers.items()
            if node_id in self._isr
            and follower.log_start <= offset <= follower.end
            and self._eligible(node_id, follower.broker_epoch)
        }

    # -- ISR

    def excuse_delay(self, seconds: float, now: float) -> None:
        """Do not count `seconds` as lag of followers, because this node processed no fetches."""
        for follower in self.followers.values():
            follower.caught_up_at = min(follower.caught_up_at + seconds, now)

    def lagging(self, log_end: int, now: float) -> frozenset[int]:
        """Return the ISR members that have not been caught up for `lag_max`."""
        return frozenset(
            node_id
            for node_id, follower in self.followers.items()
            if node_id in self._isr and not follower.is_caught_up(log_end, now, self.lag_max)
        )

    def joining(self, high_watermark: int, log_end: int, now: float) -> frozenset[int]:
        """Return the followers outside of the ISR that have all records that may be committed.

        They must be caught up too; otherwise they would leave the ISR again at once.
        """
        if len(self._isr) > len(self.followers):
            return frozenset()
        enough = max(high_watermark, self.epoch_start)
        return frozenset(
            node_id
            for node_id, follower in self.followers.items()
            if node_id not in self._isr
            and follower.end >= enough
            and self._is_about_to_join(node_id, log_end, now)
        )

    def proposal(self, high_watermark: int, log_end: int, now: float) -> frozenset[int] | None:
        """Return the ISR to store, or None if the stored ISR is certainly up to date.

        While the outcome of an earlier proposal is unknown, even an unchanged ISR is stored again,
        because only another transaction settles that outcome. It is also stored again if the
        metadata has eligible leader replicas although the ISR is large enough, because the required
        size was lowered.
        """
        joining = self.joining(high_watermark, log_end, now)
        wanted = (self._isr - self.lagging(log_end, now)) | joining
        is_settled = not self._proposed and (not self.partition.elr or self.is_below_minimum())
        return None if wanted == self._isr and is_settled else wanted

    def registrations(self, isr: frozenset[int]) -> dict[int, BrokerEpoch]:
        """Return the broker epochs of the members that `isr` adds."""
        return {each: self.followers[each].broker_epoch for each in sorted(isr - self._isr)}

    def propose(self, isr: frozenset[int]) -> None:
        """Record that `isr` is about to be sent to the store, based on the current revision."""
        self._proposed.append(isr)
        self._update_maximal_isr()

    def withdraw(self, isr: frozenset[int]) -> None:
        """Record that the store rejected this proposal, so that it will never be stored."""
        if isr in self._proposed:
            self._proposed.remove(isr)
            self._update_maximal_isr()
