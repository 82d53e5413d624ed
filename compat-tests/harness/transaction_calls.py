"""Transaction requests of the differential test: each API in each version and state.

A `Producer` builds the calls of one transactional ID. The producer ID and epoch that the broker
assigned are stored in `World`. A call may use another epoch, or the ID of another producer, to
check that it is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import Record, encode_batch
from kbroker.protocol.schema import Struct, fields

from .admin_calls import NOWHERE, STARTED_MS, Call, World, of, request
from .clients import COORDINATOR_MOVES

TOPIC = "transactions"
FIRST_LATE = 4
PARTITIONS = FIRST_LATE + 6
# Added to a producer ID, yields an unknown one.
OTHER_ID = 1_000_000
NOBODY = (4_000_000, 0)
TIMEOUT_MS = 60_000
# Short transaction timeout in ms, long enough to begin a transaction on a busy machine.
SHORT_MS = 1500
MAX_MS = 900_000
# Versions for steps that only prepare the state under test: a client of the first protocol.
NEWEST = {
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 5,
    ApiKey.END_TXN: 4,
    ApiKey.PRODUCE: 11,
}

BUSY = {ErrorCode.CONCURRENT_TRANSACTIONS, *COORDINATOR_MOVES}
Until = Callable[[Any], bool]


def not_busy(answer: Any) -> bool:
    """Return True if no row has a retriable coordinator error."""
    for each in fields(type(answer)):
        value = getattr(answer, each.name)
        if each.name.endswith("error_code") and value in BUSY:
            return False
        rows = value if each.array and value else [value]
        if any(isinstance(row, Struct) and not not_busy(row) for row in rows):
            return False
    return True


@dataclass(slots=True)
class Producer:
    """The calls of one transactional ID, with consecutive numbers in their names."""

    identity: str
    sequence: int = 0
    made: int = field(default=0)

    def call(
        self,
        what: str,
        key: ApiKey,
        build: Callable[[World, int], Any],
        version: int | None,
        *,
        until: Until | None = not_busy,
        again: bool = False,
        learn: Callable[[World, Any], None] | None = None,
    ) -> Call:
        """Build a call in `version`, or in that of `NEWEST` if it is None."""
        self.made += 1
        chosen = NEWEST[key] if version is None else version
        name = f"{self.identity} {self.made}: {what}"
        return Call(name, key, build, again, range(chosen, chosen + 1), until, learn)

    def init(
        self,
        what: str = "init",
        version: int | None = None,
        *,
        timeout_ms: int = TIMEOUT_MS,
        resume: int | None = None,
        shift: int = 0,
        until: Until | None = not_busy,
        **values: Any,
    ) -> Call:
        """Build an InitProducerId call.

        `resume` sends the known producer ID and epoch, with this number added to the epoch. `shift`
        is added to the producer ID.
        """

        def build(world: World, version: int) -> Any:
            known: dict[str, Any] = {}
            if resume is not None:
                producer_id, epoch = self.known(world)
                known = {"producer_id": producer_id + shift, "producer_epoch": epoch + resume}
            fields = {"transactional_id": self.identity, **known, **values}
            return request(ApiKey.INIT_PRODUCER_ID, transaction_timeout_ms=timeout_ms, **fields)

        return self.call(
            what, ApiKey.INIT_PRODUCER_ID, build, version, until=until, learn=self._learn
        )

    def known(self, world: World) -> tuple[int, int]:
        return world.producers.get(self.identity, NOBODY)

    def _learn(self, world: World, response: Any) -> None:
        if not response.error_code and response.producer_id >= 0:
            world.producers[self.identity] = (response.producer_id, response.producer_epoch)

    def _producer_fields(
        self, world: World, epoch: int, shift: int, identity: str | None
    ) -> dict[str, Any]:
        producer_id, current = self.known(world)
        return {
            "transactional_id": self.identity if identity is None else identity,
            "producer_id": producer_id + shift,
            "producer_epoch": current + epoch,
        }

    def add(
        self,
        *rows: tuple[str, list[int]],
        what: str = "add partitions",
        version: int | None = None,
        epoch: int = 0,
        shift: int = 0,
        identity: str | None = None,
        verify_only: bool = False,
    ) -> Call:
        """Build an AddPartitionsToTxn call.

        Versions up to 3 are sent by clients, and versions from 4 on by partition leaders.
        """
        key = ApiKey.ADD_PARTITIONS_TO_TXN
        topics = [of(key, "Topic", name=name, partitions=numbers) for name, numbers in rows]

        def build(world: World, version: int) -> Any:
            who = self._producer_fields(world, epoch, shift, identity)
            if version >= 4:
                one = of(key, "Transaction", topics=topics, verify_only=verify_only, **who)
                return request(key, transactions=[one])
            old = {f"v3_and_below_{name}": value for name, value in who.items()}
            return request(key, v3_and_below_topics=topics, **old)

        return self.call(what, key, build, version)

    def add_offsets(
        self,
        group: str,
        what: str = "add offsets",
        version: int | None = None,
        epoch: int = 0,
        shift: int = 0,
        identity: str | None = None,
    ) -> Call:
        key = ApiKey.ADD_OFFSETS_TO_TXN

        def build(world: World, version: int) -> Any:
            return request(
                key, group_id=group, **self._producer_fields(world, epoch, shift, identity)
            )

        return self.call(what, key, build, version)

    def commit_offsets(
        self,
        group: str,
        *rows: tuple[str, int, int],
        what: str = "commit offsets",
        version: int | None = None,
        epoch: int = 0,
        shift: int = 0,
        identity: str | None = None,
        metadata: str | None = "m",
        member: int | None = None,
        **more: Any,
    ) -> Call:
        """Build a TxnOffsetCommit call.

        Args:
            group: Group ID.
            rows: Topic, partition and offset.
            what: Name of the call.
            version: Version, or None for that of `NEWEST`.
            epoch: Added to the producer epoch.
            shift: Added to the producer ID.
            identity: Transactional ID to send instead of the own one.
            metadata: Metadata of the offsets.
            member: None, or what to add to the generation of the member that joined last.
            more: Further fields of the request.
        """
        key = ApiKey.TXN_OFFSET_COMMIT

        def topic(world: World, name: str, number: int, offset: int) -> Any:
            row = of(
                key,
                "Partition",
                partition_index=number,
                committed_offset=offset,
                committed_metadata=metadata,
            )
            topic_id = world.topic_ids.get(name, NOWHERE)
            return of(key, "Topic", name=name, topic_id=topic_id, partitions=[row])

        def build(world: World, version: int) -> Any:
            who = self._producer_fields(world, epoch, shift, identity)
            if member is not None:
                who["member_id"] = world.member_id
                who["generation_id_or_member_epoch"] = world.generation + member
            topics = [topic(world, *row) for row in rows]
            return request(key, group_id=group, topics=topics, **{**who, **more})

        return self.call(what, key, build, version)

    def end(
        self,
        committed: bool,
        what: str = "",
        version: int | None = None,
        epoch: int = 0,
        shift: int = 0,
        identity: str | None = None,
    ) -> Call:
        key = ApiKey.END_TXN

        def build(world: World, version: int) -> Any:
            return request(
                key, committed=committed, **self._producer_fields(world, epoch, shift, identity)
            )

        # Only the second protocol returns a producer ID and an epoch.
        learn = self._learn if version is not None and version >= 5 else None
        verb = "commit" if committed else "abort"
        return self.call(f"{verb} {what}".strip(), key, build, version, learn=learn)

    def write(
        self,
        partition: int = 0,
        what: str = "write",
        version: int | None = None,
        epoch: int = 0,
        shift: int = 0,
        sequence: int | None = None,
        identity: str | None = None,
        transactional: bool = True,
        named: bool = True,
    ) -> Call:
        """Build a Produce call with one batch of two records.

        `sequence` is the first sequence number, or None for the next one. `named` is False if the
        request lacks the transactional ID.
        """
        key = ApiKey.PRODUCE
        first = self.sequence if sequence is None else sequence
        if sequence is None:
            self.sequence += 2

        def build(world: World, version: int) -> Any:
            who = self._producer_fields(world, epoch, shift, identity)
            batch = encode_batch(
                [Record(b"k", f"{self.identity} {i}".encode(), STARTED_MS) for i in range(2)],
                producer_id=who["producer_id"],
                producer_epoch=who["producer_epoch"],
                base_sequence=first,
                transactional=transactional,
            )
            row = of(key, "Partition", index=partition, records=batch)
            place = {"name": TOPIC} if version < 13 else {"topic_id": world.topic_ids[TOPIC]}
            return request(
                key,
                transactional_id=who["transactional_id"] if named else None,
                acks=-1,
                timeout_ms=10_000,
                topic_data=[of(key, "Topic", partition_data=[row], **place)],
            )

        return self.call(what, key, build, version)

    def describe(self, what: str = "describe", until: Until | None = not_busy) -> Call:
        key = ApiKey.DESCRIBE_TRANSACTIONS
        message = request(key, transactional_ids=[self.identity])
        return self.call(what, key, lambda world, version: message, 0, until=until, again=True)

    def read_partition(self, partition: int = 0) -> Iterator[Call]:
        """Yield calls that read end offsets, batches and producers of a partition."""
        for isolation, name in enumerate(("uncommitted", "committed")):
            ends, fetch = _ends(partition, isolation), _fetch(partition, isolation)
            yield self.call(f"end {name}", ApiKey.LIST_OFFSETS, ends, 7, again=True)
            yield self.call(f"read {name}", ApiKey.FETCH, fetch, 12, again=True)
        key = ApiKey.DESCRIBE_PRODUCERS
        topic = of(key, "Topic", name=TOPIC, partition_indexes=[partition])
        message = request(key, topics=[topic])
        yield self.call("producers", key, lambda world, version: message, 0, again=True)


def _ends(partition: int, isolation: int) -> Callable[[World, int], Any]:
    key = ApiKey.LIST_OFFSETS
    row = of(key, "Partition", partition_index=partition, timestamp=-1)
    topics = [of(key, "Topic", name=TOPIC, partitions=[row])]
    return lambda world, version: request(
        key, replica_id=-1, isolation_level=isolation, topics=topics
    )


def _fetch(partition: int, isolation: int) -> Callable[[World, int], Any]:
    key = ApiKey.FETCH
    row = of(key, "Partition", partition=partition, partition_max_bytes=1 << 20)
    return lambda world, version: request(
        key,
        isolation_level=isolation,
        topics=[of(key, "Topic", topic=TOPIC, partitions=[row])],
    )


HERE = (TOPIC, [0])


def transactions() -> Iterator[Call]:
    """Yield all calls about transactions. Later ones depend on earlier ones."""
    yield from _preparations()
    for version in range(7):
        yield from _inits(version)
    for version in range(3, 6):
        yield from _named_producers(version)
    yield from _first_inits()
    for version in range(6):
        yield from _additions(version)
    yield from _batched_additions()
    for version in range(5):
        yield from _offset_additions(version)
    for version in range(7):
        yield from _offset_commits(version)
    for version in range(6):
        yield from _ends_of_transactions(version)
    for version in range(3, 7):
        yield from _member_offsets(version)
    for version in (9, 10, 11, 12, 13):
        yield from _writes(version)
    yield from _second_protocol()
    yield from _timeouts(range(6))
    for version in (1, 2):
        yield from _markers(version)
    yield from _change_version(1, upgrade_type=2)
    yield from _calls_at_version_1("old-")
    yield from _change_version(2, upgrade_type=1)
    yield from _listings()


def _calls_at_version_1(mark: str) -> Iterator[Call]:
    """Yield calls of clients with KIP-890 to a cluster at `transaction.version` 1."""
    yield from _inits(5, mark)
    yield from _offset_commits(5, mark)
    yield from _offset_commits(6, mark)
    yield from _ends_of_transactions(4, mark)
    yield from _ends_of_transactions(5, mark)
    yield from _writes(12, mark)
    yield from _second_protocol(mark)
    yield from _timeouts(range(4, 6), mark)


def _change_version(level: int, upgrade_type: int) -> Iterator[Call]:
    """Change the finalized level of `transaction.version` and wait until it is visible."""
    update, versions = ApiKey.UPDATE_FEATURES, ApiKey.API_VERSIONS
    operator = Producer(f"level-{level}")
    feature = of(
        update,
        "Feature",
        feature="transaction.version",
        max_version_level=level,
        upgrade_type=upgrade_type,
    )
    wanted = request(update, feature_updates=[feature], timeout_ms=10_000)
    yield operator.call("update", update, lambda world, version: wanted, 1)
    hello = request(versions, client_software_name="differential", client_software_version="1.0")

    def shows(answer: Any) -> bool:
        return any(
            (row.name, row.max_version_level) == ("transaction.version", level)
            for row in answer.finalized_features
        )

    yield operator.call("shows", versions, lambda world, version: hello, 4, until=shows)


def _preparations() -> Iterator[Call]:
    create, find, metadata = ApiKey.CREATE_TOPICS, ApiKey.FIND_COORDINATOR, ApiKey.METADATA
    topics = [of(create, "Topic", name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)]
    nobody = Producer("preparations")
    made = request(create, topics=topics, timeout_ms=10_000)
    yield nobody.call("create the topic", create, lambda world, version: made, 7)
    message = request(metadata, topics=[of(metadata, "Topic", name=TOPIC)])
    yield nobody.call("metadata", metadata, lambda world, version: message, 12, again=True)
    for version in range(1, 7):
        for kind in (0, 1):
            keys = {"key": "t"} if version < 4 else {"coordinator_keys": ["t", "", "u"]}
            wanted = request(find, key_type=kind, **keys)
            yield nobody.call(
                f"coordinator {kind}", find, lambda w, v, wanted=wanted: wanted, version
            )


def _inits(version: int, mark: str = "") -> Iterator[Call]:
    one = Producer(f"{mark}init-v{version}")
    yield one.init("new", version)
    yield one.init("again", version)
    yield one.describe()
    for timeout_ms in (0, -1, MAX_MS + 1):
        yield one.init(f"timeout {timeout_ms}", version, timeout_ms=timeout_ms)
    yield one.init("longest timeout", version, timeout_ms=MAX_MS)
    yield one.init("empty id", version, transactional_id="")
    yield one.init("no id", version, transactional_id=None)
    open_one = Producer(f"{mark}init-open-v{version}")
    yield open_one.init("new", version)
    yield open_one.add(HERE)
    yield open_one.write()
    yield open_one.describe()
    yield open_one.init("while a transaction is open", version, until=None)
    yield open_one.describe("aborted")
    yield open_one.init("then", version)
    yield open_one.write(what="in time past", epoch=-1)
    if version < 3:
        return
    resumed = Producer(f"{mark}init-resumed-v{version}")
    yield resumed.init("new", version)
    yield resumed.init("with its epoch", version, resume=0)
    yield resumed.init("with the epoch before", version, resume=-1)
    yield resumed.init("with a later epoch", version, resume=1)
    yield resumed.init("with another id", version, resume=0, shift=OTHER_ID)
    yield resumed.init("once more", version)
    yield resumed.init("with the epoch before, not by a bump", version, resume=-1)
    yield resumed.init("with an old epoch", version, resume=-2)
    yield resumed.init("id only", version, producer_id=7)
    yield resumed.init("epoch only", version, producer_epoch=7)
    yield resumed.init("negative", version, producer_id=-7, producer_epoch=-7)
    yield resumed.add(HERE)
    yield resumed.init("with its epoch, open", version, resume=0, until=None)
    yield resumed.describe("aborted")
    yield resumed.init("with its epoch, aborted", version, resume=0)
    yield resumed.init("new again", version)
    stranger = Producer(f"{mark}init-stranger-v{version}")
    yield stranger.init("with an unknown id", version, resume=0)
    yield stranger.describe()
    idempotent = Producer(f"{mark}init-idempotent-v{version}")
    yield idempotent.init("no id, resumed", version, transactional_id=None, resume=0)
    if version >= 6:
        yield stranger.init("two phases", version, enable2_pc=True)
        yield stranger.init("kept", version, keep_prepared_txn=True)
        yield stranger.init("both", version, enable2_pc=True, keep_prepared_txn=True)


def _named_producers(version: int) -> Iterator[Call]:
    """Yield InitProducerId calls with every combination of producer ID and epoch."""
    for producer_id, epoch in product((-1, 0, 7, -7), repeat=2):
        values = {"producer_id": producer_id, "producer_epoch": epoch}
        one = Producer(f"init-named-v{version}-{producer_id}-{epoch}")
        yield one.init("no id", version, transactional_id=None, **values)
        yield one.init("empty id", version, transactional_id="", **values)
        yield one.init("unknown id", version, **values)
        yield one.init("known id", version, **values)
        yield one.init("bad timeout", version, timeout_ms=0, **values)


def _first_inits() -> Iterator[Call]:
    """Yield calls for an unknown transactional ID."""
    nobody = Producer("nobody")
    yield nobody.describe()
    yield nobody.add(HERE)
    yield nobody.add_offsets("g")
    yield nobody.end(True)
    yield nobody.write(what="unknown id")
    yield nobody.commit_offsets("nobody", (TOPIC, 0, 1))


def _refusals(version: int, call: Callable[..., Call], *args: Any) -> Iterator[Call]:
    yield call(*args, what="old epoch", version=version, epoch=-1)
    yield call(*args, what="later epoch", version=version, epoch=1)
    yield call(*args, what="other id", version=version, shift=OTHER_ID)
    yield call(*args, what="unknown id", version=version, identity="nobody")
    yield call(*args, what="empty id", version=version, identity="")


def _additions(version: int) -> Iterator[Call]:
    one = Producer(f"add-v{version}")
    yield one.init()
    yield one.init("again")
    if version >= 4:
        yield one.add(HERE, what="verify, empty", version=version, verify_only=True)
    yield one.add((TOPIC, [0, 1]), version=version)
    yield one.describe()
    yield one.add((TOPIC, [0]), what="again", version=version)
    yield one.add((TOPIC, [0, 2, 2]), what="twice", version=version)
    yield one.add((TOPIC, [3, 99]), ("nothing", [0]), what="some unknown", version=version)
    yield one.add(("a/b", [0]), what="bad name", version=version)
    yield one.add((TOPIC, [-1]), what="negative", version=version)
    yield one.add(("__consumer_offsets", [0]), what="internal", version=version)
    yield one.add(what="none", version=version)
    yield one.add((TOPIC, []), what="no partitions", version=version)
    yield one.describe("as before")
    if version >= 4:
        yield one.add((TOPIC, [0, 1]), what="verify", version=version, verify_only=True)
        yield one.add((TOPIC, [0, 3]), what="verify some", version=version, verify_only=True)
        yield one.add(("nothing", [0]), what="verify nothing", version=version, verify_only=True)
        yield from _refusals(version, one.add, HERE)
        verify = [
            ("old epoch", {"epoch": -1}),
            ("later epoch", {"epoch": 1}),
            ("other id", {"shift": OTHER_ID}),
            ("unknown id", {"identity": "nobody"}),
            ("empty id", {"identity": ""}),
        ]
        for what, wrong in verify:
            yield one.add(HERE, what=f"verify, {what}", version=version, verify_only=True, **wrong)
    else:
        yield from _refusals(version, one.add, HERE)
    yield one.end(True)
    yield one.describe("committed")
    if version >= 4:
        yield one.add(HERE, what="verify, over", version=version, verify_only=True)
    yield one.add(HERE, what="the next transaction", version=version)
    yield one.describe("open again")
    yield one.end(False)


def _batched_additions() -> Iterator[Call]:
    """Yield calls with several transactions in one request."""
    key = ApiKey.ADD_PARTITIONS_TO_TXN
    first, second = Producer("batch-1"), Producer("batch-2")
    for one in (first, second):
        yield one.init()
    partly_unknown = of(key, "Topic", name=TOPIC, partitions=[0, 99])
    known = of(key, "Topic", name=TOPIC, partitions=[1, 2])

    def build(verify: tuple[bool, bool], topics: tuple[Any, Any]) -> Callable[..., Any]:
        def made(world: World, version: int) -> Any:
            rows = [
                of(
                    key,
                    "Transaction",
                    transactional_id=one.identity,
                    producer_id=one.known(world)[0],
                    producer_epoch=one.known(world)[1],
                    verify_only=only,
                    topics=[topic],
                )
                for one, only, topic in zip((first, second), verify, topics, strict=True)
            ]
            return request(key, transactions=rows)

        return made

    for version in (4, 5):
        for verify in ((False, False), (True, True), (False, True)):
            yield first.call(
                f"both, v{version}, verify {verify}",
                key,
                build(verify, (known, partly_unknown)),
                version,
            )
    for one in (first, second):
        yield one.describe()
        yield one.end(False)


def _offset_additions(version: int) -> Iterator[Call]:
    one = Producer(f"offsets-v{version}")
    yield one.init()
    yield one.init("again")
    yield one.add_offsets(f"added-v{version}", version=version)
    yield one.add_offsets(f"added-v{version}", what="again", version=version)
    yield one.add_offsets("", what="empty group", version=version)
    yield one.describe()
    yield from _refusals(version, one.add_offsets, f"added-v{version}")
    yield one.end(True)
    yield one.describe("over")


def _offset_commits(version: int, mark: str = "") -> Iterator[Call]:
    one, group = Producer(f"{mark}commit-v{version}"), f"{mark}group-v{version}"
    yield one.init()
    yield one.init("again")
    yield one.commit_offsets(group, (TOPIC, 0, 5), what="group not added", version=version)
    yield one.describe()
    yield one.add_offsets(group)
    yield one.commit_offsets(group, (TOPIC, 0, 5), version=version)
    yield one.commit_offsets(group, (TOPIC, 1, 6), what="more", version=version, metadata=None)
    yield one.commit_offsets(
        group, (TOPIC, 99, 7), ("nothing", 0, 8), what="unknown partitions", version=version
    )
    yield one.commit_offsets(
        group, (TOPIC, 2, 9), what="much metadata", version=version, metadata="m" * 5000
    )
    yield one.commit_offsets(group, (TOPIC, 2, -1), what="negative", version=version)
    yield one.commit_offsets(group, what="none", version=version)
    yield one.commit_offsets("", (TOPIC, 0, 5), what="empty group", version=version)
    yield from _refusals(version, one.commit_offsets, group, (TOPIC, 0, 77))
    if version >= 3:
        for what, member in MEMBERS.items():
            yield one.commit_offsets(group, (TOPIC, 0, 88), what=what, version=version, **member)
            yield one.commit_offsets(
                f"{mark}never-v{version}",
                (TOPIC, 0, 88),
                what=f"{what}, unknown",
                version=version,
                **member,
            )
    yield one.describe()
    yield from _committed(one, group, "pending")
    yield one.end(True)
    yield from _committed(one, group, "committed")
    yield one.add_offsets(group)
    yield one.commit_offsets(group, (TOPIC, 0, 50), (TOPIC, 2, 51), version=version)
    yield from _committed(one, group, "pending again")
    yield one.end(False)
    yield from _committed(one, group, "aborted")
    yield one.commit_offsets(group, (TOPIC, 0, 60), what="after the end", version=version)
    yield one.describe("after that")
    yield one.end(False, "if it was open")


MEMBERS: dict[str, dict[str, Any]] = {
    "a generation": {"generation_id_or_member_epoch": 3, "member_id": "somebody"},
    "generation 0": {"generation_id_or_member_epoch": 0},
    "a member": {"member_id": "somebody"},
    "an instance": {"group_instance_id": "i"},
}


def _member_offsets(version: int) -> Iterator[Call]:
    """Yield commits with the generation of a member, and with wrong ones."""
    one, group = Producer(f"member-v{version}"), f"members-v{version}"
    join, sync = ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP
    protocol = of(join, "Protocol", name="range", metadata=b"")
    joining = request(
        join,
        group_id=group,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[protocol],
    )
    yield one.init()
    yield one.add_offsets(group)
    yield one.call("join", join, lambda world, version: joining, 3)
    yield one.commit_offsets(
        group, (TOPIC, 0, 1), what="before SyncGroup", version=version, member=0
    )

    def share(world: World, version: int) -> Any:
        who = {"member_id": world.member_id, "generation_id": world.generation}
        mine = of(sync, "Assignment", member_id=world.member_id, assignment=b"")
        return request(sync, group_id=group, assignments=[mine], **who)

    yield one.call("sync", sync, share, 3)
    for what, later, more in (
        ("as the member", 0, {}),
        ("old generation", -1, {}),
        ("later generation", 1, {}),
        ("another member", 0, {"member_id": "somebody"}),
        ("an instance", 0, {"group_instance_id": "i"}),
    ):
        yield one.commit_offsets(
            group, (TOPIC, 0, 2), what=what, version=version, member=later, **more
        )
    yield one.commit_offsets(group, (TOPIC, 0, 3), what="nobody", version=version)
    yield one.end(True)
    yield from _committed(one, group, "committed")


def _committed(one: Producer, group: str, when: str) -> Iterator[Call]:
    key = ApiKey.OFFSET_FETCH
    topic = of(key, "Topic", name=TOPIC, partition_indexes=[0, 1, 2, 3])
    for stable in (False, True):
        for what, topics in (("some", [topic]), ("all", None)):
            row = of(key, "Group", group_id=group, topics=topics)
            message = request(key, groups=[row], require_stable=stable)
            # Kafka applies the marker after its response.
            name = f"{when}: {what}{', stable' if stable else ''}"
            yield one.call(name, key, lambda w, v, message=message: message, 9, again=True)


def _ends_of_transactions(version: int, mark: str = "") -> Iterator[Call]:
    for state in ("empty", "open", "committed", "aborted"):
        for committed in (True, False):
            for epoch, what in ((0, ""), (-1, "retry"), (1, "later"), (-2, "old")):
                verb = "commit" if committed else "abort"
                name = f"{mark}end-{state}-{verb}-{what}-v{version}"
                yield from _end_in_state(Producer(name), version, state, committed, epoch)
    one = Producer(f"{mark}end-refused-v{version}")
    yield one.init()
    yield one.add(HERE)
    yield one.end(True, "other id", version, shift=OTHER_ID)
    yield one.end(True, "unknown id", version, identity="nobody")
    yield one.end(True, "empty id", version, identity="")
    yield one.end(True, "at last", version)


def _end_in_state(
    one: Producer, version: int, state: str, committed: bool, epoch: int
) -> Iterator[Call]:
    for _ in range(3):
        yield one.init()
    if state != "empty":
        yield one.add(HERE)
    if state in ("committed", "aborted"):
        yield one.end(state == "committed", "", version)
    yield one.end(committed, f"epoch {epoch:+}", version, epoch=epoch)
    yield one.describe()
    if state == "open":
        yield one.end(False, "if it was open", version)


def _writes(version: int, mark: str = "") -> Iterator[Call]:
    one = Producer(f"{mark}write-v{version}")
    yield one.init()
    yield one.init("again")
    yield one.write(1, "not added", version, sequence=0)
    yield one.describe("not added")
    yield one.end(False, "if it was open")
    yield one.init("again after the markers")
    yield one.add((TOPIC, [1]))
    yield one.write(1, "added", version)
    yield one.write(1, "the next", version)
    yield one.write(1, "doubled", version, sequence=2)
    yield one.write(1, "gap", version, sequence=9)
    # Use valid sequence numbers: Kafka also remembers that of a rejected batch.
    yield one.write(1, "old epoch", version, epoch=-1, sequence=4)
    yield one.write(1, "later epoch", version, epoch=1, sequence=4)
    yield one.write(1, "other id", version, shift=OTHER_ID, sequence=4)
    yield one.write(1, "no transactional id", version, named=False, sequence=4)
    yield one.write(1, "plain batch", version, transactional=False, sequence=4)
    yield one.write(1, "id of nobody", version, identity="nobody", sequence=4)
    yield one.write(3, "another partition", version, sequence=0)
    yield one.describe("open")
    yield from one.read_partition(1)
    yield one.end(True)
    yield one.describe("over")
    yield from one.read_partition(1)
    yield one.write(1, "after the end", version, sequence=6)
    yield one.describe("after the end")
    yield one.end(False, "if it was open")
    yield one.init("at last")
    yield from one.read_partition(1)


def _second_protocol(mark: str = "") -> Iterator[Call]:
    """Yield calls of the second protocol (KIP-890).

    Partitions and groups are added implicitly, and each transaction increments the epoch.
    """
    one, group = Producer(f"{mark}second"), f"{mark}second-group"
    produce, offsets, end = 12, 5, 5
    yield one.init()
    for round_number, committed in enumerate((True, False, True)):
        one.sequence = 0
        yield one.write(2, "first", produce)
        yield one.write(2, "second", produce)
        yield one.commit_offsets(group, (TOPIC, 0, 10 + round_number), version=offsets)
        yield one.describe("open")
        yield from one.read_partition(2)
        yield one.end(committed, "", end)
        yield one.end(committed, "retried", end, epoch=-1)
        yield one.end(not committed, "retried otherwise", end, epoch=-1)
        yield one.describe("over")
        yield from one.read_partition(2)
        yield from _committed(one, group, f"round {round_number}")
        yield one.write(2, "old epoch", produce, epoch=-1, sequence=4)
    yield one.write(2, "not from 0", produce, sequence=3)
    yield one.describe("not from 0")
    yield one.end(False, "if it was open", end)
    yield one.end(False, "nothing", end)
    yield one.end(False, "nothing, again", end)
    yield one.end(True, "nothing", end)
    yield one.describe("at last")


def _timeouts(versions: range, mark: str = "") -> Iterator[Call]:
    """Yield calls about transactions that time out, which fences their producers."""
    # They end in any order, so each of them writes to its own partition.
    late = {version: Producer(f"{mark}late-v{version}") for version in versions}
    place = {version: FIRST_LATE + version for version in late}
    for version, one in late.items():
        yield one.init(timeout_ms=SHORT_MS)
        yield one.add((TOPIC, [place[version]]))
        yield one.write(place[version])
    for version, one in late.items():
        here = place[version]
        yield one.describe("timed out", until=_aborted)
        yield one.write(here, "too late")
        yield one.add((TOPIC, [here]), what="too late", version=min(version, 3))
        yield one.add_offsets("late", what="too late", version=min(version, 4))
        yield one.commit_offsets("late", (TOPIC, 0, 1), what="too late", version=version)
        yield one.end(True, "too late", version)
        yield one.end(False, "too late", version)
        if version >= 3:
            yield one.init("with its epoch", version, resume=0)
        yield one.init("again after the markers")
        yield one.add((TOPIC, [here]))
        one.sequence = 0
        yield one.write(here, "in the next transaction")
        yield one.end(True)
        yield from one.read_partition(here)


def _aborted(response: Any) -> bool:
    return all(row.transaction_state == "CompleteAbort" for row in response.transaction_states)


def _markers(version: int) -> Iterator[Call]:
    """Yield WriteTxnMarkers calls, with which tools end a hanging transaction."""
    one = Producer(f"hanging-v{version}")
    yield one.init()
    yield one.init("again")
    yield one.add((TOPIC, [3]))
    yield one.write(3)
    unknown = NOBODY[0] + version
    for what, epoch, other_id, coordinator, partition in (
        ("unknown partition", 0, None, 0, 99),
        ("old epoch", -1, None, 0, 3),
        ("unknown producer", 0, unknown, 0, 2),
        ("abort", 0, None, 0, 3),
        ("abort again", 0, None, 0, 3),
        ("no coordinator", 0, None, -1, 3),
        ("later coordinator", 0, unknown, 5, 2),
        ("old coordinator", 0, unknown, 4, 2),
    ):
        yield _marker(one, version, what, epoch, other_id, coordinator, partition)
        yield from one.read_partition(min(partition, 3))
    yield one.describe("after the markers")
    yield one.init("again after the markers", until=None)
    yield one.init("once more")


def _marker(
    one: Producer,
    version: int,
    what: str,
    epoch: int,
    other_id: int | None,
    coordinator: int,
    partition: int,
) -> Call:
    key = ApiKey.WRITE_TXN_MARKERS
    topic = of(key, "Topic", name=TOPIC, partition_indexes=[partition])

    def build(world: World, version: int) -> Any:
        producer_id, current = one.known(world)
        marker = of(
            key,
            "Marker",
            producer_id=producer_id if other_id is None else other_id,
            producer_epoch=current + epoch,
            topics=[topic],
            coordinator_epoch=coordinator,
        )
        return request(key, markers=[marker])

    return one.call(f"marker: {what}", key, build, version)


def _listings() -> Iterator[Call]:
    listing, describing = ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS
    one = Producer("listed")
    yield one.init()
    yield one.add((TOPIC, [0, 2]))
    filters_by_name: dict[str, dict[str, Any]] = {
        "all": {},
        "open": {"state_filters": ["Ongoing"]},
        "some": {"state_filters": ["CompleteCommit", "Empty", "Nonsense", "ongoing", ""]},
        "nobody": {"producer_id_filters": [NOBODY[0]]},
        "long": {"duration_filter": 3_600_000},
        "not long": {"duration_filter": 0},
        "pattern": {"transactional_id_pattern": "list.*"},
        "part of a name": {"transactional_id_pattern": "iste"},
        "empty pattern": {"transactional_id_pattern": ""},
        "bad pattern": {"transactional_id_pattern": "(a"},
    }
    for version in range(3):
        for what, filters in filters_by_name.items():
            since = 2 if "transactional_id_pattern" in filters else "duration_filter" in filters
            if version < since:
                continue
            wanted = request(listing, **filters)
            yield one.call(
                f"list {what}, v{version}", listing, lambda w, v, wanted=wanted: wanted, version
            )
        yield one.call(
            f"list its id, v{version}",
            listing,
            lambda w, v: request(listing, producer_id_filters=[one.known(w)[0]]),
            version,
        )
    names = ["listed", "nobody", "", "late-v0", "listed"]
    several = request(describing, transactional_ids=names)
    yield one.call("describe several", describing, lambda w, v: several, 0)
    yield one.call("describe none", describing, lambda w, v: request(describing), 0)
    yield one.end(False)
