"""Metadata on etcd: each node has a client of its own, which follows what all of them write.

Below the prefix of a cluster there are its entries (`entry/`), the holders of leases (`lease/`), each
hanging on its own lease, and `cause`, which every transaction writes: so a change says why it was made,
and makes a revision even if it deletes what was not there.

A client knows all entries. It reads them once, and then follows a watch. Watches of etcd may fall
silent while members are stopped, and older ones had lost events, so it is looked regularly whether the
watch has come as far as a read, and now and then all entries are compared.

If etcd returns an older revision than before, it was restored from an older snapshot, or another etcd has its
address. Its state would delete topics and elect leaders that lack records. So a client keeps its entries,
and neither reads nor writes until etcd holds the newer state again.
Sources: https://etcd.io/docs/v3.5/learning/api/, .../api_guarantees/ (events of one revision come
together, in order).
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
    StoreTrouble,
    Watcher,
)
from .timed_lease import TimedLease
from .watchers import Watchers

logger = logging.getLogger(__name__)

ENTRY, LEASE, CAUSE = "entry/", "lease/", "cause"
MISSED = "changes that were missed"
HEAR_SECONDS = 0.2
"""How long a change may be on its way before the store writes something to see it arrive."""
HEARD_SECONDS_MAX = 10.0
"""After that it is not known what came of it."""
RETRY_BACKOFF_SECONDS = 0.5
REACH_ACTION = "see whether most members of etcd run, and whether this machine reaches them"
RESTORE_ACTION = (
    "restore the newest snapshot of etcd, or point this node to the right etcd; if there is no newer "
    "state, stop all nodes, copy their data directories, and follow 'etcd holds an older state' in "
    "docs/how-to/cluster.md"
)
ALARMS = {
    "NOSPACE": StoreTrouble(
        "etcd has reached its quota (alarm NOSPACE): topics, leaders and in-sync replicas cannot change",
        "compact and defragment etcd (etcdctl compact, etcdctl defrag) or raise its "
        "--quota-backend-bytes, then run 'etcdctl alarm disarm'",
    ),
    "CORRUPT": StoreTrouble(
        "members of etcd hold different data (alarm CORRUPT): the metadata cannot change",
        "replace the member that etcd's log names, then run 'etcdctl alarm disarm'",
    ),
}
"""Problems by the name of etcd's alarm."""
LOOK_SECONDS = 2.0
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
        # A lease that is over has no time left, and what is 0 is left out.
        return "TTL" in answer.get("result", {})

    async def revoke(self) -> None:
        try:
            await self._gateway.ask("lease/revoke", {"ID": self.number})
        except Refusal as error:
            if error.status != Status.NOT_FOUND:
                raise


class EtcdStore:
    """One node's view of a cluster's metadata on etcd; see `MetadataStore`.

    Parameters: `prefix` is what all keys of the cluster begin with, in etcd.
    """

    HISTORY_ENTRIES = 10_000
    """Of the newest changes, kept for `watch`."""
    PAGE_KEYS = 500
    """That are read at once."""

    def __init__(self, gateway: Gateway, prefix: str) -> None:
        self._gateway = gateway
        self._keys = EtcdKeys(prefix)
        self._held: dict[str, Held] = {}
        """All keys below the prefix, without it."""
        self._revision = 0
        self._watchers = Watchers()
        self._is_read = trio.Event()
        self._heard = trio.Event()
        """Set, and replaced, when the revision rises."""
        self._following = trio.CancelScope()
        self._is_wrong = False
        """What is held is not what there is, or not known to be."""
        self._newest = 0
        """The highest revision in a response of etcd."""
        self._rollback: StoreTrouble | None = None
        """Set while etcd holds an older state than this client."""
        self._alarm: StoreTrouble | None = None
        self._trouble: str | None = None
        self._is_beating = False

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def trouble(self) -> StoreTrouble | None:
        """What is wrong with etcd, as far as this client knows."""
        unreached = None if self._trouble is None else StoreTrouble(self._trouble, REACH_ACTION)
        return self._rollback or self._alarm or unreached

    async def aclose(self) -> None:
        await self._gateway.aclose()

    # -- reads and writes

    @property
    def is_read(self) -> bool:
        """Whether this client knows what there is: the first read is done."""
        return self._is_read.is_set()

    async def wait_until_read(self) -> None:
        """Wait for that, without an end when etcd does not answer."""
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
        hung = {"lease": str(lease.id)} if lease is not None else {}
        done = [self._put(CAUSE, {"cause": cause})]
        for key, value in puts.items():
            if value is None:
                done.append({"request_delete_range": {"key": self._keys.encode(ENTRY + key)}})
            else:
                done.append(self._put(ENTRY + key, value, hung))
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
            await self._hear_of(newest)
            return None  # the lease is over
        revision = int(answer["header"]["revision"])
        if not answer.get("succeeded"):
            await self._hear_of(revision)
            return None
        try:
            await self._hear_of(revision)
        except StorageError as error:
            raise OutcomeUnknown(f"it is stored, but {error.message}") from error
        return revision

    def _compare(self, key: str, revision: int) -> Message:
        at: Message = {"target": "MOD", "mod_revision": str(revision)}
        if revision == ABSENT:
            at = {"target": "CREATE", "create_revision": "0"}
        return {"key": self._keys.encode(ENTRY + key), "result": "EQUAL", **at}

    def _put(self, key: str, value: Document, hung: Message | None = None) -> Message:
        data = to_base64(json.dumps(value, separators=(",", ":")).encode())
        return {"request_put": {"key": self._keys.encode(key), "value": data, **(hung or {})}}

    async def _read(self, prefix: str) -> tuple[int, list[Held]]:
        """The revision of now, and all keys that begin so. Raises Compacted: begin again."""
        found: list[Held] = []
        revision = await self._read_pages(
            prefix, lambda pair: found.append(self._keys.held_in(pair))
        )
        return revision, found

    async def _read_pages(
        self, prefix: str, take: Callable[[Message], None], **options: Any
    ) -> int:
        """Tell all keys that begin so, as they were at the revision of now; returns that.

        To tell all at once would take etcd longer than a member may take, and the event loop longer
        than a turn. Raises Compacted.
        """
        asked = {**self._keys.range_of(prefix), "limit": str(self.PAGE_KEYS), **options}
        while True:
            try:
                answer = await self._ask("kv/range", asked)
            except Refusal as error:
                if error.status != Status.OUT_OF_RANGE:
                    raise
                raise Compacted("etcd has forgotten what was being read") from error
            pairs = answer.get("kvs", [])
            for pair in pairs:
                take(pair)
            asked.setdefault("revision", answer["header"]["revision"])
            if not answer.get("more"):
                return int(asked["revision"])
            asked["key"] = to_base64(b64decode(pairs[-1]["key"]) + b"\0")

    async def _hear_of(self, revision: int) -> None:
        """Wait until the watch has come to a revision. Raises StorageError when it does not.

        One of somebody else's makes no event here: something of our own, written after it, does.
        """
        with trio.move_on_after(HEARD_SECONDS_MAX):
            while self._revision < revision:
                with trio.move_on_after(HEAR_SECONDS) as patience:
                    while self._revision < revision:
                        await self._heard.wait()
                if patience.cancelled_caught:
                    await self._quietly(self._beat_for_all())
            return
        raise StorageError("etcd does not tell what was changed")

    async def _beat_for_all(self) -> None:
        """Write something for all who wait, unless that is on its way: where many wait because etcd
        is busy, it is not to have as much again to do."""
        if not self._is_beating:
            self._is_beating = True
            try:
                await self._beat()
            finally:
                self._is_beating = False

    async def _beat(self) -> None:
        await self._ask("kv/txn", {"success": [self._put(CAUSE, {})]})

    # -- an older state

    async def _ask(self, path: str, message: Message, *, changes: bool = False) -> Message:
        """Read or write keys, and detect an etcd that holds an older state.

        Such reads and writes are linearizable: the revision in the response is never lower than
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
            raise self._rolled_back(revision, known)
        self._newest = max(self._newest, revision)
        return answer

    def _check_rollback(self) -> None:
        if self._rollback is not None:
            raise StorageError(self._rollback.problem)

    def _rolled_back(self, revision: int, known: int) -> StorageError:
        """Keep the entries, and stop reading and writing; returns the error to raise."""
        self._rollback = StoreTrouble(
            f"etcd holds an older state of the metadata (revision {revision}) than this node knows "
            f"(revision {known})",
            RESTORE_ACTION,
        )
        logger.error("metadata: %s; this node keeps its metadata and its logs", self._rollback)
        self._following.cancel()
        return StorageError(self._rollback.problem)

    async def _look_for_return(self) -> None:
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
            self._is_wrong = True

    @property
    def written(self) -> int:
        """The revision of the newest transaction that this client holds."""
        cause = self._held.get(CAUSE)
        return 0 if cause is None else cause.revision

    # -- leases

    async def grant(self, ttl_seconds: float, *, holder: str) -> EtcdLease:
        if not math.isfinite(ttl_seconds):
            raise StorageError("etcd grants no lease without an end")
        await self.wait_until_read()
        self._check_rollback()
        asked, asked_at = {"TTL": str(math.ceil(ttl_seconds))}, trio.current_time()
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

    def _tell(self, change: Change) -> None:
        self._watchers.tell(change, keep=self.HISTORY_ENTRIES)

    def _advance(self, revision: int) -> None:
        self._revision = revision
        self._heard.set()
        self._heard = trio.Event()

    # -- following

    async def run(self) -> None:
        """Follow what is written, until cancelled; without etcd, until it is back."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            nursery.start_soon(self._regularly, LOOK_SECONDS, self._look)
            nursery.start_soon(self._regularly, COMPARE_SECONDS, self._compare_all)
            nursery.start_soon(self._regularly, ALARM_SECONDS, self._look_for_alarms)

    async def _follow(self) -> None:
        while True:
            try:
                if not self.is_read:
                    await self._read_first()
                await self._is_behind()  # before the watch, which would deliver an older state
                if not self._is_wrong:
                    with trio.CancelScope() as self._following:
                        await self._follow_watch()
                if self._is_wrong:
                    await self._catch_up()
            except Compacted:
                self._is_wrong = True
                continue
            except StorageError as error:
                self._note(error)
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
                    raise Compacted("etcd has forgotten what was not heard yet")
                if answer.get("canceled"):
                    raise StorageError(f"etcd ended a watch: {answer.get('cancel_reason', '')}")
                self._take(answer.get("events", ()))
                self._note(None)

    def _take(self, events: Iterable[Message]) -> None:
        """Take over events of whole revisions, in order; some may have come before."""
        for revision, of_it in groupby(events, lambda each: int(each["kv"]["mod_revision"])):
            if revision > self._revision:
                self._take_revision(revision, of_it)

    def _take_revision(self, revision: int, events: Iterable[Message]) -> None:
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
            self._tell(Change(revision, entries, cause))

    async def _catch_up(self) -> None:
        """Take over what is there now, in place of changes that nobody can tell any more."""
        await self._is_behind()  # before the heartbeats, which raise the revision of an older state
        for _ in range(2):  # a revision for what is gone, and one for what is new
            await self._beat()
        revision, found = await self._read("")
        self._check_newer(found)
        known, self._held = self._held, {each.key: each for each in found}
        gone: dict[str, Entry | None] = {}
        new: dict[str, Entry | None] = {}
        for key in known.keys() | self._held.keys():
            if not key.startswith(ENTRY):
                continue
            before, now = known.get(key), self._held.get(key)
            name = key.removeprefix(ENTRY)
            if before is not None and (now is None or now.created > self._revision):
                gone[name] = None
            if now is not None and (before is None or now.revision != before.revision):
                new[name] = Entry(now.value, now.revision)
        self._advance(revision)
        if gone:
            self._tell(Change(revision - 1, gone, MISSED))
        if new:
            self._tell(Change(revision, new, MISSED))
        self._watchers.forget(revision)
        self._is_wrong = False

    def _check_newer(self, found: Iterable[Held]) -> None:
        """Raise StorageError if a key is older in etcd than in this client."""
        for each in found:
            known = self._held.get(each.key)
            if known is not None and each.is_older_than(known):
                raise self._rolled_back(each.revision, known.revision)

    # -- doubts

    async def _regularly(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await trio.sleep(seconds)
            if self.is_read:
                await self._quietly(work())

    async def _quietly(self, work: Awaitable[None]) -> None:
        """Do what is done again later, if etcd gives no answer."""
        try:
            await work
        except StorageError as error:
            self._note(error)

    def _note(self, error: StorageError | None) -> None:
        """Say what is wrong with etcd, or that all is well again; the same thing once."""
        trouble = None if error is None else error.message
        if trouble is not None and self._trouble is None:
            logger.warning("metadata: %s", trouble)
        elif trouble is None and self._trouble is not None:
            logger.info("metadata: etcd answers again")
        self._trouble = trouble

    async def _look_for_alarms(self) -> None:
        """Check etcd's alarms. Without permission to read alarms, a failing write reports them."""
        try:
            answer = await self._gateway.ask("maintenance/alarm", {"action": "GET"})
        except Refusal as error:
            if error.status not in (Status.PERMISSION_DENIED, Status.UNAUTHENTICATED):
                raise
            return
        raised = {each.get("alarm") for each in answer.get("alarms", ())}
        alarm = next((trouble for name, trouble in ALARMS.items() if name in raised), None)
        if alarm is not None and alarm != self._alarm:
            logger.error("metadata: %s", alarm)
        elif alarm is None and self._alarm is not None:
            logger.info("metadata: etcd takes writes again")
        self._alarm = alarm

    async def _look(self) -> None:
        """Follow anew where the watch has not come as far as a read, and does not come on."""
        if self._rollback is not None:
            await self._look_for_return()
            return
        known = self._revision
        if await self._is_behind():
            await trio.sleep(HEAR_SECONDS)
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
            raise self._rolled_back(newest, known.revision)
        return newest > self._revision or int(counted.get("count", 0)) != len(self._held)

    async def _compare_all(self) -> None:
        """Take over what is there where the watch has told something else."""
        found: dict[str, int] = {}

        def take(pair: Message) -> None:
            found[self._keys.decode(pair["key"])] = int(pair["mod_revision"])

        revision = await self._read_pages(ENTRY, take, keys_only=True)
        await self._hear_of(revision)
        wrong = await self._wrong_at(revision, found)
        if wrong:
            logger.error("the watch of etcd left out %d keys, such as %s", len(wrong), wrong[0])
            self._is_wrong = True
            self._following.cancel()

    async def _wrong_at(self, revision: int, found: Mapping[str, int]) -> list[str]:
        """Entries that are held otherwise than `found`, which is of a revision that was heard of.

        Parameters: `found` has the revision of each entry. What came after is told by the watch.
        """
        suspected = []
        for count, key in enumerate([*found.keys() | self._held.keys()], 1):
            if not count % self.PAGE_KEYS:
                await trio.lowlevel.checkpoint()
            if key.startswith(ENTRY) and self._is_wrong_at(revision, key, found.get(key)):
                suspected.append(key)
        deleted = {ENTRY + name for name in self._watchers.deleted_after(revision)}
        return [
            key
            for key in suspected
            if key not in deleted and self._is_wrong_at(revision, key, found.get(key))
        ]

    def _is_wrong_at(self, revision: int, key: str, there: int | None) -> bool:
        """Whether an entry is missing or old here, or is gone at etcd, unless that was told since."""
        here = self._held.get(key)
        if there is None:
            return here is not None and here.revision <= revision
        return here is None or here.revision < there


def _is_put(event: Message) -> bool:
    return bool(event.get("type") != "DELETE")
