"""State of the leader of a partition: progress of the followers, ISR and high watermark.

The module uses no clock and no event loop: callers pass `now`, in seconds of one monotonic clock. The
rules are those of Kafka's `Partition` (KIP-392, 497, 841, 903, 966):

* A follower has what lies before the offset that it fetches from; it syncs before it fetches on.
* The high watermark is what every member of the *maximal* in-sync set has: of the one that is
  stored, and of every other one that was proposed and may be stored by now; and what those have who
  are eligible to lead without being in sync (KIP-966). It stands still while fewer replicas are in
  sync than acks=all asks for.
* A proposal whose outcome is unknown can take effect at any later time, as long as the stored state
  has the revision that it compares with. So it counts until another revision has been seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kbroker.cluster import Partition
from kbroker.cluster.registrations import NO_EPOCH
from kbroker.protocol.schema import BrokerEpoch

UNKNOWN = -1
"""An offset that nobody has told yet; a high watermark that must not move."""


@dataclass(slots=True)
class Follower:
    """What its fetches told of one follower.

    `end` is the offset behind the last record that it has, `log_start` its first one;
    `caught_up_at` when it last had all that the leader had, and `broker_epoch` the registration
    that it fetches under (KIP-903).
    """

    broker_epoch: BrokerEpoch = NO_EPOCH
    end: int = UNKNOWN
    log_start: int = UNKNOWN
    caught_up_at: float = -math.inf
    fetched_at: float = -math.inf
    leader_end: int = UNKNOWN
    """The leader's log end when it fetched last."""

    def fetched(self, broker_epoch: BrokerEpoch, offset: int, log_end: int, now: float) -> None:
        """Take note of a fetch from `offset` that arrived when the leader's log ended at `log_end`.

        One that has now what the leader had at the fetch before was in sync back then: under
        constant load no follower ever has everything.
        """
        if broker_epoch != self.broker_epoch:
            self.broker_epoch, self.leader_end = broker_epoch, UNKNOWN
        if offset >= log_end:
            self.caught_up_at = now
        elif UNKNOWN < self.leader_end <= offset:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.end, self.leader_end, self.fetched_at = offset, log_end, now

    def left(self) -> None:
        """It left the in-sync set: only what it fetches from now on says that it goes on."""
        self.caught_up_at = -math.inf
        self.end = self.leader_end = UNKNOWN

    def is_caught_up(self, log_end: int, now: float, lag_max: float) -> bool:
        return self.end >= log_end or now - self.caught_up_at <= lag_max


def _everyone(node_id: int, broker_epoch: BrokerEpoch) -> bool:
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
        eligible: Returns True if a node with this broker epoch may be in the ISR (KIP-841: it is neither
            fenced nor shutting down).
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
        eligible: Callable[[int, BrokerEpoch], bool] = _everyone,
    ) -> None:
        self.me = me
        self.epoch_start = log_end
        """What was committed under earlier leaders lies before it."""
        self.lag_max = lag_max
        self.in_sync_min = in_sync_min
        self._eligible = eligible
        self._proposed: list[frozenset[int]] = []
        self.followers: dict[int, Follower] = {}
        self._take_over(partition)
        for node_id in partition.isr:
            if node_id != me:
                self.followers[node_id].caught_up_at = now

    def follow(self, partition: Partition) -> None:
        """Take over a newer state of the partition, under the same leader epoch.

        No proposal so far can take effect any more: each compares with the revision before. Who
        left the in-sync set has to catch up anew, or everybody would wait for it meanwhile.
        """
        if partition.revision <= self.partition.revision:
            return
        for node_id in self._isr.difference(partition.isr):
            if node_id in self.followers:
                self.followers[node_id].left()
        self._proposed.clear()
        self._take_over(partition)

    def _take_over(self, partition: Partition) -> None:
        self.partition = partition
        self._isr = frozenset(partition.isr)
        others = {*partition.replicas, *partition.isr} - {self.me}
        self.followers = {each: self.followers.get(each) or Follower() for each in sorted(others)}
        self._count()

    def _count(self) -> None:
        self.maximal_isr = self._isr.union(self.partition.elr, *self._proposed)
        self.alone = not self.followers
        """There is nobody to wait for."""

    # -- what followers have

    def fetched(
        self,
        node_id: int,
        broker_epoch: BrokerEpoch,
        offset: int,
        log_end: int,
        now: float,
        *,
        log_start: int = UNKNOWN,
    ) -> bool:
        """A follower, registered as `broker_epoch`, has everything from `log_start` to `offset`.

        Returns whether its log starts elsewhere than before.
        """
        follower = self.followers.get(node_id)
        if follower is None:
            return False
        follower.fetched(broker_epoch, offset, log_end, now)
        before, follower.log_start = follower.log_start, log_start
        return before != log_start

    def is_below_minimum(self) -> bool:
        """Whether fewer replicas are in sync than acks=all asks for."""
        return len(self._isr) < self.in_sync_min

    def high_watermark(self, own_end: int, log_end: int, now: float) -> int:
        """Up to where everything is committed; UNKNOWN while that must not move.

        `own_end` is what is durable here, `log_end` where the log ends. A follower that is about
        to join counts as well, or the end would run away from it.
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
        """Where the log begins on every replica that may be asked for it (KIP-107)."""
        starts = (
            follower.log_start
            for node_id, follower in self.followers.items()
            if self._eligible(node_id, follower.broker_epoch)
        )
        return min(starts, default=own_start) if self.followers else own_start

    def readable_at(self, offset: int) -> dict[int, int]:
        """Followers that can serve consumers from `offset` on, and what they have (KIP-392)."""
        return {
            node_id: follower.end
            for node_id, follower in self.followers.items()
            if node_id in self._isr
            and follower.log_start <= offset <= follower.end
            and self._eligible(node_id, follower.broker_epoch)
        }

    # -- who is in sync

    def lagging(self, log_end: int, now: float) -> frozenset[int]:
        """Members of the in-sync set that have been behind for too long."""
        return frozenset(
            node_id
            for node_id, follower in self.followers.items()
            if node_id in self._isr and not follower.is_caught_up(log_end, now, self.lag_max)
        )

    def joining(self, high_watermark: int, log_end: int, now: float) -> frozenset[int]:
        """Followers outside of the in-sync set that have all that may be committed.

        They must be caught up as well, or they would leave it again at once.
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
        """The in-sync set that should be; None when it is the stored one for sure.

        While the outcome of an earlier proposal is unknown even an unchanged set is to be stored:
        only that makes an end of it. So it is when enough are in sync again, by another setting,
        while others are still eligible to lead.
        """
        joining = self.joining(high_watermark, log_end, now)
        wanted = (self._isr - self.lagging(log_end, now)) | joining
        is_settled = not self._proposed and (not self.partition.elr or self.is_below_minimum())
        return None if wanted == self._isr and is_settled else wanted

    def registrations(self, isr: frozenset[int]) -> dict[int, BrokerEpoch]:
        """The broker epochs under which the members that `isr` adds have fetched."""
        return {each: self.followers[each].broker_epoch for each in sorted(isr - self._isr)}

    def propose(self, isr: frozenset[int]) -> None:
        """`isr` is about to be sent to the store, compared with the revision of `partition`."""
        self._proposed.append(isr)
        self._count()

    def refused(self, isr: frozenset[int]) -> None:
        """The store said that this proposal was not stored, and so it never will be."""
        if isr in self._proposed:
            self._proposed.remove(isr)
            self._count()
