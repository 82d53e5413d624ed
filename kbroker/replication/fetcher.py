"""The fetch loop from one leader: fetch, append, sync, fetch again.

The offset of a fetch acknowledges all records before it, so a log is synced before its next fetch
offset is sent. If the set of partitions changes while the leader delays its response, the fetch is
aborted, so that a new partition does not wait for an idle one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

import trio

from kbroker.client.errors import error_code
from kbroker.cluster.node_context import NodeContext
from kbroker.cluster.peers import ConnectionLost, Peer, Peers, Unreachable
from kbroker.partitions.partitions import Partitions
from kbroker.partitions.replica import Replica
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.records import read_header
from kbroker.runtime.backoff import Backoff
from kbroker.storage.errors import StorageError

from .followed import FollowedPartition
from .follower_session import (
    FollowerSession,
    PartitionKey,
    Position,
    forgotten_rows,
    topic_rows,
)
from .log_reconciler import LogReconciler
from .quota import Quota

logger = logging.getLogger(__name__)

# Errors that end once both nodes have applied the same metadata change.
EXPECTED = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)

# Errors after which a new fetch session is needed, because the leader dropped the old one.
SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)

# Maximum delay between the session timeout of a node and the metadata change of the controller.
METADATA_DELAY_SECONDS_MAX = 0.5
# Minimum time that a response may still take after the set of partitions changed.
PATIENCE_SECONDS = 0.005


# Maximum time that a throttled partition waits before the quota is checked again.
QUOTA_SECONDS_MAX = 1.0

_PERMISSION_HINT = "; add this node's principal to super.users there, or allow it CLUSTER_ACTION"


class Fetcher:
    """Fetches the followed partitions from one leader; `run` it until cancelled."""

    def __init__(
        self,
        context: NodeContext,
        partitions: Partitions,
        peers: Peers,
        leader_id: int,
        quota: Quota,
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._peers = peers
        self._leader_id = leader_id
        self._quota = quota
        self._followed: dict[PartitionKey, FollowedPartition] = {}
        # Partitions whose positions the leader may not know.
        self._changed: set[PartitionKey] = set()
        # Partitions that are not fetched until a time of trio's clock.
        self._paused: dict[PartitionKey, float] = {}
        self._session = FollowerSession()
        self._peer: Peer | None = None
        self._backoff = self._new_backoff()
        self._patience = Backoff(context.config.replica_fetch_wait_max_ms / 1000, PATIENCE_SECONDS)
        self._wake = trio.Event()
        self._request_scope: trio.CancelScope | None = None
        self._lost_at: float | None = None
        # True once the lost connection was logged.
        self._loss_is_logged = False
        # Time when the leader closed the connection, until it accepts another one.
        self._closed_since: float | None = None
        self._log_reconciler = LogReconciler(context, partitions)

    def _new_backoff(self) -> Backoff:
        return Backoff(self._context.config.replica_fetch_backoff_ms / 1000)

    # -- followed partitions

    def follow(self, replica: Replica, leader_epoch: int) -> None:
        """Fetch a partition that the leader of this fetcher leads in `leader_epoch`."""
        key = (replica.topic.id, replica.index)
        known = self._followed.get(key)
        if known is None or known.replica is not replica or known.leader_epoch != leader_epoch:
            self._followed[key] = FollowedPartition(replica, leader_epoch, self._new_backoff())
            self._paused.pop(key, None)
            self._changed.add(key)
            self.wake()

    def stop(self, key: PartitionKey) -> None:
        """Stop fetching a partition; a pending response for it is ignored."""
        if self._followed.pop(key, None) is not None:
            self._paused.pop(key, None)
            self._changed.add(key)
            if not self._followed:
                self.wake()

    def wake(self) -> None:
        """Continue the fetch loop: the followed partitions or the leader's address changed."""
        self._wake.set()
        if self._request_scope is not None and self._request_scope.deadline == math.inf:
            self._request_scope.deadline = trio.current_time() + self._patience.next()

    def pause_read_only(self) -> None:
        """Stop fetching partitions whose logs cannot be appended to."""
        for key, followed in self._followed.items():
            if not followed.can_append:
                self._changed.add(key)
        self.wake()

    @property
    def is_leader_unreachable(self) -> bool:
        """True if the leader closed its connection and its broker session has not expired yet.

        If the leader still runs, it counts as reachable again after the session timeout. The
        property asks the operating system, because clients on the same machine may see the end of
        the leader before the fetch loop does.
        """
        if self._closed_since is None:
            return self._peer is not None and self._peer.is_closed_by_peer
        return trio.current_time() < self._session_end

    @property
    def _session_end(self) -> float:
        """Latest time at which the session of an ended leader process expires."""
        assert self._closed_since is not None
        return self._closed_since + self._context.config.broker_session_timeout_ms / 1000

    # -- the loop

    async def run(self) -> None:
        """Fetch until cancelled."""
        try:
            while True:
                self._wake = trio.Event()
                try:
                    await self._run_once()
                except Exception:  # a bug here must not stop the node or stay unnoticed
                    self._context.error_log.unhandled_errors += 1
                    logger.exception("fetching from node %d failed", self._leader_id)
                    await self._disconnect()
                    await self._sleep_until(trio.current_time() + self._backoff.next())
        finally:
            await self._disconnect()

    async def _run_once(self) -> None:
        """Send one request and process its response, or wait for something to fetch."""
        now = trio.current_time()
        self._end_pauses(now)
        if len(self._followed) == len(self._paused):
            await self._disconnect_when_idle()
            await self._sleep_until(min(self._paused.values(), default=None))
            return
        try:
            answer = await self._ask_leader()
            if answer is None:
                await self._disconnect()
            else:
                self._handle_response_after_loss()
                await self._process_response(answer)
        except Unreachable as error:
            await self._disconnect()
            await self._handle_lost_connection(error)

    async def _ask_leader(self) -> FetchResponse | None:
        """Return the leader's response, or None if the wait was aborted after a change."""
        if self._peer is None:
            self._peer = await self._peers.connect(self._leader_id)
            self._closed_since = None
        request = await self._next_request()
        try:
            with trio.CancelScope() as self._request_scope:
                answer: FetchResponse = await self._peer.ask(request)
                self._patience.reset()
                return answer
        finally:
            self._request_scope = None
        return None

    async def _next_request(self) -> FetchRequest:
        await self._sync(self._changed)
        session, config = self._session, self._context.config
        keys = self._followed if session.is_new else self._changed
        positions = self._positions(keys)
        named, dropped = session.update(positions, self._changed - positions.keys())
        self._changed.clear()
        return FetchRequest(
            replica_state=FetchRequest.ReplicaState(
                replica_id=self._context.node_id, replica_epoch=self._partitions.epoch
            ),
            max_wait_ms=self._wait_ms(),
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=session.id,
            session_epoch=session.epoch,
            topics=topic_rows(named, positions, config.replica_fetch_max_bytes),
            forgotten_topics_data=forgotten_rows(dropped),
        )

    def _positions(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, Position]:
        """Return the positions to fetch from. Pause partitions whose logs cannot be appended to."""
        positions, now = {}, trio.current_time()
        for key in keys:
            followed = self._followed.get(key)
            if followed is None or key in self._paused:
                continue
            if not followed.can_append:
                self._pause(followed)
                continue
            try:
                followed.apply_leader_offsets()
            except StorageError as error:
                self._report_log_error(followed, error)
                continue
            wait = self._quota.wait_seconds(followed.replica, self._context.node_id, now)
            if wait:
                self._paused[key] = now + min(wait, QUOTA_SECONDS_MAX)
            else:
                positions[key] = followed.position
        return positions

    def _wait_ms(self) -> int:
        """Return the maximum wait in ms for the leader, limited by the next end of a pause."""
        longest = self._context.config.replica_fetch_wait_max_ms
        if not self._paused:
            return longest
        left = min(self._paused.values()) - trio.current_time()
        return max(0, min(longest, int(left * 1000)))

    async def _sync(self, keys: Iterable[PartitionKey]) -> None:
        """Sync, as the flush policy requires, the records that the next request acknowledges."""
        found = [self._followed[key] for key in keys if key in self._followed]
        if not all(followed.is_durable for followed in found):
            await self._partitions.flusher.sync_now()

    # -- responses

    async def _process_response(self, answer: FetchResponse) -> None:
        if answer.error_code:
            if answer.error_code not in SESSION_ERRORS:
                code = error_code(answer.error_code).name
                self._log_once(f"cannot fetch from node {self._leader_id}: {code}")
            self._session.reset()
            await self._sleep_until(trio.current_time() + self._backoff.next())
            return
        self._backoff.reset()
        self._session.opened(answer.session_id)
        for topic in answer.responses:
            for row in topic.partitions:
                await self._process_row((topic.topic_id, row.partition_index), row)

    async def _process_row(self, key: PartitionKey, row: FetchResponse.Partition) -> None:
        self._changed.add(key)
        followed = self._find_requested(key)
        if followed is None:
            return
        try:
            if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                if not await self._log_reconciler.align_with_leader(followed, self._send_request):
                    self._pause(followed)
                    return
            elif row.error_code:
                self._handle_error_code(followed, row.error_code)
                return
            elif row.diverging_epoch is not None:
                await self._log_reconciler.truncate_diverging(followed, row.diverging_epoch)
            else:
                await self._copy(followed, row)
        except StorageError as error:
            self._report_log_error(followed, error)
        except KafkaError as error:
            self._log_partition_error(followed, str(error))
            self._pause(followed)
        else:
            followed.backoff.reset()

    def _find_requested(self, key: PartitionKey) -> FollowedPartition | None:
        """Return the partition of a response row, or None if its position has changed."""
        followed, asked = self._followed.get(key), self._session.sent_position(key)
        if followed is None or asked is None or not followed.is_current:
            return None
        is_answered = (
            asked.leader_epoch == followed.leader_epoch
            and asked.fetch_offset == followed.replica.log.log_end_offset
        )
        return followed if is_answered else None

    async def _copy(self, followed: FollowedPartition, row: FetchResponse.Partition) -> None:
        followed.high_watermark = row.high_watermark
        followed.log_start = row.log_start_offset
        if row.records:
            now = trio.current_time()
            self._quota.count(followed.replica, self._context.node_id, len(row.records), now)
            await self._append(followed, row.records)
            await trio.lowlevel.checkpoint()  # let clients run during a large response

    async def _append(self, followed: FollowedPartition, records: memoryview) -> None:
        log, before = followed.replica.log, followed.replica.log.log_end_offset
        try:
            followed.replica.append_replicated(records, self._context.clock.log_ms())
        except KafkaError as error:
            is_empty = log.log_start_offset == before
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE or not is_empty:
                raise
            first = read_header(records).base_offset
            await self._log_reconciler.restart_within_batch(followed, records, first)
            return
        if log.log_end_offset == before:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"no batch at offset {before} or later in {len(records)} bytes",
            )

    def _report_log_error(self, followed: FollowedPartition, error: StorageError) -> None:
        """Report an error of this node's log, and pause the partition."""
        replica = followed.replica
        self._partitions.report_storage_error(replica.topic, replica.index, error)
        self._pause(followed)

    def _handle_error_code(self, followed: FollowedPartition, code: int) -> None:
        if code not in EXPECTED:
            name = error_code(code).name
            denied = code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            self._log_partition_error(followed, name + (_PERMISSION_HINT if denied else ""))
        self._pause(followed)

    def _log_partition_error(self, followed: FollowedPartition, reason: str) -> None:
        self._log_once(f"{followed}: cannot fetch from node {self._leader_id}: {reason}")

    def _log_once(self, text: str) -> None:
        if self._context.error_log.is_new(text):
            logger.error("%s", text)

    async def _send_request(self, message: Any) -> Any:
        """Send another request to the leader. Raises Unreachable."""
        if self._peer is None:
            raise Unreachable(f"node {self._leader_id}: not connected")
        return await self._peer.ask(message)

    # -- pauses

    def _pause(self, followed: FollowedPartition) -> None:
        """Stop fetching a partition for the backoff time."""
        if self._followed.get(followed.key) is followed:
            self._paused[followed.key] = trio.current_time() + followed.backoff.next()

    def _end_pauses(self, now: float) -> None:
        over = [key for key, until in self._paused.items() if until <= now]
        for key in over:
            del self._paused[key]
        self._changed.update(over)

    async def _sleep_until(self, deadline: float | None) -> None:
        """Sleep until a time of trio's clock, or until `wake` is called."""
        if deadline is None:
            await self._wake.wait()
            return
        with trio.move_on_at(deadline):
            await self._wake.wait()

    # -- the connection

    async def _disconnect(self) -> None:
        self._session.reset()
        peer, self._peer = self._peer, None
        if peer is not None:
            await peer.aclose()

    async def _disconnect_when_idle(self) -> None:
        if not self._followed:
            self._lost_at, self._closed_since, self._loss_is_logged = None, None, False
            await self._disconnect()

    async def _handle_lost_connection(self, error: Unreachable) -> None:
        """Log a lost connection once; back off, except after the first failure."""
        now = trio.current_time()
        if not isinstance(error, ConnectionLost):
            self._closed_since = None
        elif self._closed_since is None:
            self._closed_since = now
        is_registered = self._context.cluster.registration(self._leader_id) is not None
        is_first = self._lost_at is None and is_registered
        if is_first:
            self._lost_at = now
        # If the leader process has ended, the controller logs the lost session.
        is_missed = (
            self._closed_since is None or now > self._session_end + METADATA_DELAY_SECONDS_MAX
        )
        if is_registered and not self._loss_is_logged and is_missed:
            self._loss_is_logged = True
            logger.warning(
                "%s; its partitions that are replicated here (%d) are not fetched until it responds",
                error,
                len(self._followed),
            )
        if not is_first:
            await self._sleep_until(now + self._backoff.next())

    def _handle_response_after_loss(self) -> None:
        if self._lost_at is not None and self._loss_is_logged:
            seconds = trio.current_time() - self._lost_at
            logger.info("node %d responds again after %.1f s", self._leader_id, seconds)
        self._lost_at, self._loss_is_logged = None, False
