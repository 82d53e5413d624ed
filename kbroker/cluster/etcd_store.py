"""A metadata store on etcd: each node has a client, which follows the writes of all clients.

Below the prefix of a cluster are its entries (`entry/`), the holders of leases (`lease/`, each attached
to its lease), and `cause`, which every transaction writes. So each change has a reason, and each
transaction creates a revision even if it deletes keys that do not exist.

A client caches all entries. It reads them once and then follows a watch. Watches of etcd can stall while
members are stopped, and older versions of etcd lost events. So the client regularly checks whether the
watch has reached the current revision, and less often compares all entries.

If etcd returns an older revision than before, it was restored from an older snapshot, or the address
belongs to another etcd. Its state would delete topics and elect leaders that lack records. So the client
keeps its entries, and neither reads nor writes until etcd has the newer state again.
Sources: https://etcd.io/docs/v3.5/learning/api/, .../api_guarantees/ (events of one revision arrive
together and in order).
"""

from __future__ import annotations

import json
import logging
import math
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

import trio

from kbroker.storage.errors import StorageError

from .etcd_gateway import Gateway, Message, Refusal, Status, to_base64
from .etcd_keys import EtcdKeys, Held
from .store import (
    ABSENT,
    Change,
    Compacted,
    Document,
    Entry,
    Lease,
    OutcomeUnknown,
    Snapshot,
    StoreProblem,
    Watcher,
)
from .timed_lease import TimedLease, lease_time
from .watchers import Watchers

logger = logging.getLogger(__name__)

ENTRY, LEASE, CAUSE = "entry/", "lease/", "cause"
# Cause of combined changes that a client missed.
MISSED = "changes that were missed"
# Seconds that a change may take to arrive before the client writes a heartbeat.
WATCH_DELAY_SECONDS = 0.2
# Seconds after which the outcome of a change counts as unknown.
WATCH_TIMEOUT_SECONDS = 10.0
RETRY_BACKOFF_SECONDS = 0.5
REACH_ACTION = "check that most members of etcd run, and that this machine reaches them"
RESTORE_ACTION = (
    "restore the newest snapshot of etcd, or point this node to the right etcd; if there is no newer "
    "state, stop all nodes, copy their log directories, and follow 'etcd holds an older state' in "
    "docs/how-to/cluster.md"
)
# Problems by the name of etcd's alarm.
ALARMS = {
    "NOSPACE": StoreProblem(
        "etcd has reached its quota (alarm NOSPACE): topics, leaders and in-sync replicas cannot change",
        "compact and defragment etcd (etcdctl compact, etcdctl defrag) or raise its "
        "--quota-backend-bytes, then run 'etcdctl alarm disarm'",
    ),
    "CORRUPT": StoreProblem(
        "members of etcd hold different data (alarm CORRUPT): the metadata cannot change",
        "replace the member that etcd's log names, then run 'etcdctl alarm disarm'",
    ),
}
# Seconds between checks of the watch, of alarms, and of all entries.
CHECK_SECONDS = 2.0
ALARM_SECONDS = 10.0
COMPARE_SECONDS = 60.0


class EtcdLease(TimedLease):
    """A lease of etcd."""

    def __init__(
        self,
        gateway: Gateway,
        number: str,
        ttl_seconds: float,
        granted_at: float,
        check: Callable[[], None],
    ) -> None:
        super().__init__(int(number), ttl_seconds, granted_at)
        self._gateway = gateway
        self._check = check
        self.number = number

    async def _renew(self) -> bool:
        self._check()
        answer = await self._gateway.ask("lease/keepalive", {"ID": self.number})
        # The TTL of an expired lease is 0, and the gateway omits zeros.
        return "TTL" in answer.get("result", {})

    async def revoke(self) -> None:
        try:
            await self._gateway.ask("lease/revoke", {"ID": self.number})
        except Refusal as error:
            if error.status != Status.NOT_FOUND:
                raise


class EtcdStore:
    """The metadata on etcd as one node sees it; see `MetadataStore`.

    Args:
        gateway: Client of etcd.
        prefix: Prefix of all keys of the cluster in etcd.
    """

    # Number of changed entries kept for `watch`.
    HISTORY_ENTRIES = 10_000
    # Maximum number of keys per range request.
    PAGE_KEYS = 500

    def __init__(self, gateway: Gateway, prefix: str) -> None:
        self._gateway = gateway
        self._keys = EtcdKeys(prefix)
        # All keys of the cluster, without the prefix.
        self._held: dict[str, Held] = {}
        self._revision = 0
        self._watchers = Watchers()
        self._is_read = trio.Event()
        # Set, and replaced, when the revision increases.
        self._advanced = trio.Event()
        self._following = trio.CancelScope()
        # True if the cache may differ from etcd.
        self._is_suspect = False
        # Highest revision in a response of etcd.
        self._newest = 0
        # Set while etcd holds an older state than this client.
        self._rollback: StoreProblem | None = None
        self._alarm: StoreProblem | None = None
        self._problem: str | None = None
        self._is_sending_heartbeat = False

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def problem(self) -> StoreProblem | None:
        """The problem with etcd that this client knows; None if there is none."""
        unreached = None if self._problem is None else StoreProblem(self._problem, REACH_ACTION)
        return self._rollback or self._alarm or unreached

    async def aclose(self) -> None:
        await self._gateway.aclose()

    # -- reads and writes

    @property
    def is_read(self) -> bool:
        """True after the first read of all entries."""
        return self._is_read.is_set()

    async def wait_until_read(self) -> None:
        """Wait for the first read, without a time limit."""
        await self._is_read.wait()

    async def range(self, prefix: str) -> Snapshot:
        await self.wait_until_read()
        entries = {
            key.removeprefix(ENTRY): Entry(held.value, held.revision)
            for key, held in self._held.items()
            if key.startswith(ENTRY + prefix)
        }
        return Snapshot(self._revision, entries)

    async def transact(
        self,
        puts: Mapping[str, Document | None],
        *,
        compares: Mapping[str, int],
        cause: str,
        lease: Lease | None = None,
    ) -> int | None:
        await self.wait_until_read()
        attached = {"lease": str(lease.id)} if lease is not None else {}
        done = [self._put(CAUSE, {"cause": cause})]
        for key, value in puts.items():
            if value is None:
                done.append({"request_delete_range": {"key": self._keys.encode(ENTRY + key)}})
            else:
                done.append(self._put(ENTRY + key, value, attached))
        asked = {
            "compare": [self._compare(key, at) for key, at in compares.items()],
            "success": done,
        }
        try:
            answer = await self._ask("kv/txn", asked, changes=True)
        except Refusal as error:
            if lease is None or error.status != Status.NOT_FOUND:
                raise
            newest, _ = await self._read(CAUSE)
            await self._wait_for_revision(newest)
            return None  # the lease has expired
        revision = int(answer["header"]["revision"])
        if not answer.get("succeeded"):
            await self._wait_for_revision(revision)
            return None
        try:
            await self._wait_for_revision(revision)
        except StorageError as error:
            raise OutcomeUnknown(f"the change is stored, but {error.message}") from error
        return revision

    def _compare(self, key: str, revision: int) -> Message:
        at: Message = {"target": "MOD", "mod_revision": str(revision)}
        if revision == ABSENT:
            at = {"target": "CREATE", "create_revision": "0"}
        return {"key": self._keys.encode(ENTRY + key), "result": "EQUAL", **at}

    def _put(self, key: str, value: Document, attached: Message | None = None) -> Message:
        data = to_base64(json.dumps(value, separators=(",", ":")).encode())
        return {"request_put": {"key": self._keys.encode(key), "value": data, **(attached or {})}}

    async def _read(self, prefix: str) -> tuple[int, list[Held]]:
        """Return the current revision and all keys with a prefix. Raises Compacted: start again."""
        found: list[Held] = []
        revision = await self._read_pages(
            prefix, lambda pair: found.append(self._keys.held_in(pair))
        )
        return revision, found

    async def _read_pages(
        self, prefix: str, take: Callable[[Message], None], **options: Any
    ) -> int:
        """Pass all keys with a prefix, at one current revision, to `take`; return the revision.

        Reading in pages avoids timeouts in etcd and long blocking of the event loop. Raises Compacted.
        """
        asked = {**self._keys.range_of(prefix), "limit": str(self.PAGE_KEYS), **options}
        while True:
            try:
                answer = await self._ask("kv/range", asked)
            except Refusal as error:
                if error.status != Status.OUT_OF_RANGE:
                    raise
                raise Compacted("etcd compacted the revision that was being read") from error
            pairs = answer.get("kvs", [])
            for pair in pairs:
                take(pair)
            asked.setdefault("revision", answer["header"]["revision"])
            if not answer.get("more"):
                return int(asked["revision"])
            asked["key"] = to_base64(b64decode(pairs[-1]["key"]) + b"\0")

    async def _wait_for_revision(self, revision: int) -> None:
        """Wait until the watch has reached a revision. Raises StorageError if it does not.

        A revision of another cluster's keys produces no event here, but a later write of ours does.
        """
        with trio.move_on_after(WATCH_TIMEOUT_SECONDS):
            while self._revision < revision:
                with trio.move_on_after(WATCH_DELAY_SECONDS) as patience:
                    while self._revision < revision:
                        await self._advanced.wait()
                if patience.cancelled_caught:
                    await self._log_errors(self._send_shared_heartbeat())
            return
        raise StorageError("the watch of etcd does not deliver the change")

    async def _send_shared_heartbeat(self) -> None:
        """Write a heartbeat for all waiting tasks, unless one is being written.

        If many tasks wait because etcd is overloaded, it should not get as many additional writes.
        """
        if not self._is_sending_heartbeat:
            self._is_sending_heartbeat = True
            try:
                await self._send_heartbeat()
            finally:
                self._is_sending_heartbeat = False

    async def _send_heartbeat(self) -> None:
        await self._ask("kv/txn", {"success": [self._put(CAUSE, {})]})

    # -- an older state

    async def _ask(self, path: str, message: Message, *, changes: bool = False) -> Message:
        """Read or write keys, and detect an etcd that holds an older state.

        These reads and writes are linearizable: the revision in the response is never lower than
        a revision that was returned before the request.

        Raises:
            StorageError: etcd holds an older state than this client.
        """
        self._check_rollback()
        known = self._newest
        try:
            answer = await self._gateway.ask(path, message, changes=changes)
        except Refusal as error:
            if error.status == Status.RESOURCE_EXHAUSTED and "space" in str(error):
                self._alarm = ALARMS["NOSPACE"]
            raise
        revision = int(answer["header"]["revision"])
        if revision < known:
            raise self._begin_rollback(revision, known)
        self._newest = max(self._newest, revision)
        return answer

    def _check_rollback(self) -> None:
        if self._rollback is not None:
            raise StorageError(self._rollback.description)

    def _begin_rollback(self, revision: int, known: int) -> StorageError:
        """Stop reading and writing but keep the entries; return the error to raise."""
        self._rollback = StoreProblem(
            f"etcd holds an older state of the metadata (revision {revision}) than this node knows "
            f"(revision {known})",
            RESTORE_ACTION,
        )
        logger.error("metadata: %s; this node keeps its metadata and its logs", self._rollback)
        self._following.cancel()
        return StorageError(self._rollback.description)

    async def _check_restored(self) -> None:
        """Resume if etcd holds the newer state again."""
        answer = await self._gateway.ask("kv/range", {"key": self._keys.encode(CAUSE)})
        found = [self._keys.held_in(pair) for pair in answer.get("kvs", ())]
        known = self._held.get(CAUSE)
        revision = int(answer["header"]["revision"])
        is_newest = revision >= self._revision
        if is_newest and found and (known is None or not found[0].is_older_than(known)):
            logger.warning("metadata: etcd holds the newer state again; this node resumes")
            self._rollback = None
            self._newest = revision  # the older state may have had a higher revision
            self._is_suspect = True

    @property
    def written(self) -> int:
        """Revision of the newest transaction that this client knows."""
        cause = self._held.get(CAUSE)
        return 0 if cause is None else cause.revision

    # -- leases

    async def grant(self, ttl_seconds: float, *, holder: str) -> EtcdLease:
        if not math.isfinite(ttl_seconds):
            raise StorageError("etcd: leases require a finite duration")
        await self.wait_until_read()
        self._check_rollback()
        asked, asked_at = {"TTL": str(math.ceil(ttl_seconds))}, lease_time()
        granted = await self._gateway.ask("lease/grant", asked, changes=True)
        ttl, check = float(granted["TTL"]), self._check_rollback
        lease = EtcdLease(self._gateway, granted["ID"], ttl, asked_at, check)
        done = [self._put(LEASE + lease.number, {"holder": holder}, {"lease": lease.number})]
        await self._ask("kv/txn", {"success": done})
        return lease

    # -- watchers

    def watch(self, watcher: Watcher, *, after: int) -> None:
        self._watchers.add(watcher, after=after)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.remove(watcher)

    def _notify(self, change: Change) -> None:
        self._watchers.notify(change, keep=self.HISTORY_ENTRIES)

    def _advance(self, revision: int) -> None:
        self._revision = revision
        self._advanced.set()
        self._advanced = trio.Event()

    # -- following

    async def run(self) -> None:
        """Follow all writes until cancelled; while etcd is unreachable, retry."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            nursery.start_soon(self._regularly, CHECK_SECONDS, self._check_watch)
            nursery.start_soon(self._regularly, COMPARE_SECONDS, self._compare_all)
            nursery.start_soon(self._regularly, ALARM_SECONDS, self._check_alarms)

    async def _follow(self) -> None:
        while True:
            try:
                if not self.is_read:
                    await self._read_first()
                await self._is_behind()  # before the watch, which would deliver an older state
                if not self._is_suspect:
                    with trio.CancelScope() as self._following:
                        await self._follow_watch()
                if self._is_suspect:
                    await self._catch_up()
            except Compacted:
                self._is_suspect = True
                continue
            except StorageError as error:
                self._log_problem_change(error)
            await trio.sleep(RETRY_BACKOFF_SECONDS)

    async def _read_first(self) -> None:
        revision, found = await self._read("")
        self._held = {each.key: each for each in found}
        self._watchers.forget(revision)
        self._advance(revision)
        self._is_read.set()

    async def _follow_watch(self) -> None:
        wanted = {**self._keys.range_of(""), "start_revision": str(self._revision + 1)}
        async with self._gateway.stream("watch", {"create_request": wanted}) as answers:
            while (answer := await answers.next()) is not None:
                if "compact_revision" in answer:
                    raise Compacted("etcd compacted revisions that this node has not read yet")
                if answer.get("canceled"):
                    raise StorageError(f"etcd ended a watch: {answer.get('cancel_reason', '')}")
                self._apply_events(answer.get("events", ()))
                self._log_problem_change(None)

    def _apply_events(self, events: Iterable[Message]) -> None:
        """Apply the events of whole revisions in order, and skip known ones."""
        for revision, revision_events in groupby(
            events, lambda each: int(each["kv"]["mod_revision"])
        ):
            if revision > self._revision:
                self._apply_revision(revision, revision_events)

    def _apply_revision(self, revision: int, events: Iterable[Message]) -> None:
        entries: dict[str, Entry | None] = {}
        cause, ended = "", []
        events = list(events)
        self._check_newer(self._keys.held_in(each["kv"]) for each in events if _is_put(each))
        for event in events:
            key = self._keys.decode(event["kv"]["key"])
            before, now = self._held.pop(key, None), None
            if _is_put(event):
                now = self._held[key] = self._keys.held_in(event["kv"])
            if key.startswith(ENTRY):
                entries[key.removeprefix(ENTRY)] = Entry(now.value, revision) if now else None
            elif key == CAUSE and now is not None:
                cause = now.value.get("cause", "")
            elif key.startswith(LEASE) and now is None and before is not None:
                ended.append(before.value["holder"])
        if ended:
            cause = f"lease of {' and '.join(ended)} ended"
        self._advance(revision)
        if entries:
            self._notify(Change(revision, entries, cause))

    async def _catch_up(self) -> None:
        """Replace changes that are no longer available by the current state."""
        await self._is_behind()  # before the heartbeats, which raise the revision of an older state
        for _ in range(2):  # one revision for deletions, and one for new entries
            await self._send_heartbeat()
        revision, found = await self._read("")
        self._check_newer(found)
        known, self._held = self._held, {each.key: each for each in found}
        deleted_entries: dict[str, Entry | None] = {}
        new: dict[str, Entry | None] = {}
        for key in known.keys() | self._held.keys():
            if not key.startswith(ENTRY):
                continue
            before, now = known.get(key), self._held.get(key)
            name = key.removeprefix(ENTRY)
            if before is not None and (now is None or now.created > self._revision):
                deleted_entries[name] = None
            if now is not None and (before is None or now.revision != before.revision):
                new[name] = Entry(now.value, now.revision)
        self._advance(revision)
        if deleted_entries:
            self._notify(Change(revision - 1, deleted_entries, MISSED))
        if new:
            self._notify(Change(revision, new, MISSED))
        self._watchers.forget(revision)
        self._is_suspect = False

    def _check_newer(self, found: Iterable[Held]) -> None:
        """Raise StorageError if a key is older in etcd than in this client."""
        for each in found:
            known = self._held.get(each.key)
            if known is not None and each.is_older_than(known):
                raise self._begin_rollback(each.revision, known.revision)

    # -- consistency checks

    async def _regularly(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await trio.sleep(seconds)
            if self.is_read:
                await self._log_errors(work())

    async def _log_errors(self, work: Awaitable[None]) -> None:
        """Run work that is repeated later, and log its errors."""
        try:
            await work
        except StorageError as error:
            self._log_problem_change(error)

    def _log_problem_change(self, error: StorageError | None) -> None:
        """Log a new problem with etcd, or its end."""
        problem = None if error is None else error.message
        if problem is not None and self._problem is None:
            logger.warning("metadata: %s", problem)
        elif problem is None and self._problem is not None:
            logger.info("metadata: etcd responds again")
        self._problem = problem

    async def _check_alarms(self) -> None:
        """Check etcd's alarms. Without permission to read alarms, a failing write reports them."""
        try:
            answer = await self._gateway.ask("maintenance/alarm", {"action": "GET"})
        except Refusal as error:
            if error.status not in (Status.PERMISSION_DENIED, Status.UNAUTHENTICATED):
                raise
            return
        raised = {each.get("alarm") for each in answer.get("alarms", ())}
        alarm = next((problem for name, problem in ALARMS.items() if name in raised), None)
        if alarm is not None and alarm != self._alarm:
            logger.error("metadata: %s", alarm)
        elif alarm is None and self._alarm is not None:
            logger.info("metadata: etcd accepts writes again")
        self._alarm = alarm

    async def _check_watch(self) -> None:
        """Restart the watch if it lags behind a read and makes no progress."""
        if self._rollback is not None:
            await self._check_restored()
            return
        known = self._revision
        if await self._is_behind():
            await trio.sleep(WATCH_DELAY_SECONDS)
            if self._revision == known:
                self._following.cancel()

    async def _is_behind(self) -> bool:
        """Return True if the watch lags behind etcd. Raises StorageError if etcd holds an older state."""
        known = self._held.get(CAUSE)
        counting = {"request_range": {**self._keys.range_of(""), "count_only": True}}
        reading = {"request_range": {"key": self._keys.encode(CAUSE)}}
        answer = await self._ask("kv/txn", {"success": [counting, reading]})
        counted, read = (each["response_range"] for each in answer["responses"])
        found = [self._keys.held_in(pair) for pair in read.get("kvs", ())]
        newest = found[0].revision if found else 0
        if known is not None and (not found or found[0].is_older_than(known)):
            raise self._begin_rollback(newest, known.revision)
        return newest > self._revision or int(counted.get("count", 0)) != len(self._held)

    async def _compare_all(self) -> None:
        """Compare all entries with etcd, and read all of them again if the watch was wrong."""
        found: dict[str, int] = {}

        def take(pair: Message) -> None:
            found[self._keys.decode(pair["key"])] = int(pair["mod_revision"])

        revision = await self._read_pages(ENTRY, take, keys_only=True)
        await self._wait_for_revision(revision)
        wrong = await self._differing_at(revision, found)
        if wrong:
            logger.error("the watch of etcd missed %d keys, for example %s", len(wrong), wrong[0])
            self._is_suspect = True
            self._following.cancel()

    async def _differing_at(self, revision: int, found: Mapping[str, int]) -> list[str]:
        """Return the cached entries that differ from those of a revision.

        Args:
            revision: A revision that the watch has reached.
            found: Revisions of all entries at that revision. Later changes arrive by the watch.
        """
        suspected = []
        for count, key in enumerate([*found.keys() | self._held.keys()], 1):
            if not count % self.PAGE_KEYS:
                await trio.lowlevel.checkpoint()
            if key.startswith(ENTRY) and self._differs_at(revision, key, found.get(key)):
                suspected.append(key)
        deleted = {ENTRY + name for name in self._watchers.deleted_after(revision)}
        return [
            key
            for key in suspected
            if key not in deleted and self._differs_at(revision, key, found.get(key))
        ]

    def _differs_at(self, revision: int, key: str, stored_revision: int | None) -> bool:
        """Return True if an entry is missing, outdated or deleted in etcd, without a later change."""
        cached = self._held.get(key)
        if stored_revision is None:
            return cached is not None and cached.revision <= revision
        return cached is None or cached.revision < stored_revision


def _is_put(event: Message) -> bool:
    return bool(event.get("type") != "DELETE")
