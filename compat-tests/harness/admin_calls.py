"""Requests of the differential test: every admin API and version, with valid and invalid input.

Later requests refer to topics and groups that earlier ones created. `World` contains what is
specific to one broker, such as IDs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.records import Record, encode_batch
from kbroker.protocol.schema import ZERO_UUID

# A topic ID that no topic has.
NOWHERE = UUID(int=77)
NODE = 1
METADATA_TOPIC = "__cluster_metadata"
STARTED_MS = int(time.time() * 1000)


@dataclass(slots=True)
class World:
    """Values of one broker that requests refer to."""

    cluster_id: str = ""
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    directories: list[str] = field(default_factory=list)
    member_id: str = ""
    generation: int = -1
    # Producer ID and epoch by transactional ID.
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)

    def learn(self, key: ApiKey, response: Any) -> None:
        """Store the values of a response that later requests need."""
        if key is ApiKey.METADATA:
            self.cluster_id = response.cluster_id or self.cluster_id
            for row in response.topics:
                if row.name and row.topic_id != ZERO_UUID:
                    self.topic_ids[row.name] = row.topic_id
        elif key is ApiKey.JOIN_GROUP:
            self.member_id, self.generation = response.member_id, response.generation_id

    def names(self) -> dict[str, str]:
        """Return the strings of this broker and their placeholders in a comparison."""
        return {path: f"<directory {number}>" for number, path in enumerate(self.directories)}


Build = Callable[[World, int], Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One request to both brokers.

    Attributes:
        name: Name in reports and rules.
        key: API of the request.
        build: Builds the request for one broker and version.
        again: True if the request may be repeated until both brokers have applied earlier changes.
            Kafka propagates metadata with a delay, and replicas move in the background.
        versions: Versions to send, or None for all.
        until: Predicate of the response to wait for, per broker. None accepts the first response.
        learn: Stores the values of a response that later requests need.
    """

    name: str
    key: ApiKey
    build: Build
    again: bool = False
    versions: range | None = None
    until: Callable[[Any], bool] | None = None
    learn: Callable[[World, Any], None] | None = None


def request(key: ApiKey, /, **values: Any) -> Any:
    return messages.request_class(key)(**values)


def ask(name: str, key: ApiKey, /, versions: range | None = None, **values: Any) -> Call:
    """Return a read-only call with the same fields in all versions."""
    return Call(name, key, lambda world, version: request(key, **values), True, versions)


def change(name: str, key: ApiKey, /, versions: range | None = None, **values: Any) -> Call:
    """Return a call that may change something, with the same fields in all versions."""
    return Call(name, key, lambda world, version: request(key, **values), False, versions)


def of(key: ApiKey, part: str, /, **values: Any) -> Any:
    """Return a struct of a request: `of(ApiKey.CREATE_TOPICS, "Topic", name="a")`."""
    return getattr(messages.request_class(key), part)(**values)


# --- topics


def _new(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> Any:
    key = ApiKey.CREATE_TOPICS
    if "configs" in more:
        more["configs"] = [of(key, "Config", name=k, value=v) for k, v in more["configs"]]
    if "assignments" in more:
        more["assignments"] = [
            of(key, "Assignment", partition_index=index, broker_ids=nodes)
            for index, nodes in more["assignments"]
        ]
    return of(key, "Topic", name=name, num_partitions=partitions, replication_factor=factor, **more)


def _create(name: str, *topics: Any, validate_only: bool = False) -> Call:
    """Create topics; `{v}` in a name is replaced by the version of the request."""

    def build(world: World, version: int) -> Any:
        rows = [_with_version(topic, version) for topic in topics]
        return request(
            ApiKey.CREATE_TOPICS, topics=rows, timeout_ms=10_000, validate_only=validate_only
        )

    return Call(f"create: {name}", ApiKey.CREATE_TOPICS, build)


def _with_version(topic: Any, version: int) -> Any:
    values = {name: getattr(topic, name) for name in topic.DEFAULTS}
    values["name"] = values["name"].replace("{v}", str(version))
    return type(topic)(**values)


def creations() -> Iterator[Call]:
    yield _create("one", _new("one{v}", 3))
    yield _create("the same again", _new("one{v}", 3))
    yield _create("only checked", _new("checked{v}", 2), validate_only=True)
    yield _create("only checked, exists", _new("one{v}", 2), validate_only=True)
    yield _create("defaults", _new("defaults{v}", -1, -1))
    yield _create("assigned", _new("assigned{v}", -1, -1, assignments=[(0, [1]), (1, [1])]))
    yield _create(
        "settings",
        _new("set{v}", configs=[("cleanup.policy", "compact"), ("retention.ms", "3600000")]),
    )
    yield _create("several", _new("many-a{v}"), _new("", 1), _new("many-b{v}", 2))
    yield _create("twice in one call", _new("twice{v}"), _new("twice{v}", 2))
    yield _create("in one call", _new("a.{v}"), _new("a_{v}"), validate_only=True)
    yield _create("dots", _new("colli.sion{v}"))
    yield _create("collision", _new("colli_sion{v}"))
    yield _create("none")
    for what, topic in BAD_TOPICS.items():
        yield _create(what, topic)


BAD_TOPICS = {
    "bad name": _new("a/b"),
    "two dots": _new(".."),
    "name too long": _new("n" * 250),
    "no partitions": _new("bad{v}", 0),
    "-2 partitions": _new("bad{v}", -2),
    "factor 0": _new("bad{v}", 1, 0),
    "factor -2": _new("bad{v}", 1, -2),
    "factor 2": _new("bad{v}", 1, 2),
    "unknown setting": _new("bad{v}", configs=[("no.such.setting", "1")]),
    "bad value": _new("bad{v}", configs=[("retention.ms", "soon")]),
    "value out of range": _new("bad{v}", configs=[("retention.ms", "-5")]),
    "null value": _new("bad{v}", configs=[("retention.ms", None)]),
    "gap in assignment": _new("bad{v}", -1, -1, assignments=[(1, [1])]),
    "partition twice": _new("bad{v}", -1, -1, assignments=[(0, [1]), (0, [1])]),
    "node twice": _new("bad{v}", -1, -1, assignments=[(0, [1, 1])]),
    "unknown node": _new("bad{v}", -1, -1, assignments=[(0, [7])]),
    "no node": _new("bad{v}", -1, -1, assignments=[(0, [])]),
    "different numbers of nodes": _new("bad{v}", -1, -1, assignments=[(0, [1]), (1, [])]),
    "assignment and count": _new("bad{v}", 1, -1, assignments=[(0, [1])]),
    "assignment and factor": _new("bad{v}", -1, 1, assignments=[(0, [1])]),
    "bad name and assignment": _new("a/b", -1, -1, assignments=[(0, [1]), (0, [1])]),
    "bad value and assignment": _new(
        "bad{v}",
        -1,
        -1,
        assignments=[(0, [1]), (0, [1])],
        configs=[("retention.ms", "soon")],
    ),
    "no partitions and factor 0": _new("bad{v}", 0, 0),
    "no partitions and factor 2": _new("bad{v}", 0, 2),
}


def _grow(what: str, name: str, count: int, nodes: list[list[int]] | None = None) -> Call:
    key = ApiKey.CREATE_PARTITIONS

    def build(world: World, version: int) -> Any:
        rows = None if nodes is None else [of(key, "Assignment", broker_ids=n) for n in nodes]
        topic = of(key, "Topic", name=name, count=count + version, assignments=rows)
        return request(
            key, topics=[topic], timeout_ms=10_000, validate_only=what.startswith("check")
        )

    return Call(f"grow: {what}", key, build)


def growth() -> Iterator[Call]:
    key = ApiKey.CREATE_PARTITIONS
    yield _grow("check only", "one7", 4)
    yield _grow("more", "one7", 4)
    yield _grow("assigned", "one6", 4, [[1]])
    yield _grow("the same number", "one7", 3)
    yield _grow("fewer", "one7", -1)
    yield _grow("unknown topic", "nothing", 3)
    yield _grow("bad name", "a/b", 3)
    yield _grow("unknown node", "one5", 4, [[9]])
    yield _grow("node twice", "one5", 4, [[1, 1]])
    yield _grow("no node", "one5", 4, [[]])
    yield _grow("too few assigned", "one5", 9, [[1]])
    yield _grow("no assignments", "one5", 9, [])
    twice = [of(key, "Topic", name="one5", count=count, assignments=None) for count in (5, 6)]
    yield change("grow: twice", key, topics=twice, timeout_ms=10_000)
    yield change("grow: none", key, topics=[], timeout_ms=10_000)


def _by_name(name: str) -> Any:
    return of(ApiKey.METADATA, "Topic", name=name)


def metadata() -> Iterator[Call]:
    key = ApiKey.METADATA
    quiet = {"allow_auto_topic_creation": False}
    topics = [_by_name(n) for n in ("one7", "one6", "set7", "nothing", "a/b", "", "one7")]
    yield ask("metadata: some", key, range(4, 99), topics=topics, **quiet)
    yield ask("metadata: known", key, topics=[_by_name("one7"), _by_name("assigned7")])
    yield ask("metadata: none", key, range(1, 99), topics=[])
    yield ask(
        "metadata: operations",
        key,
        range(8, 99),
        topics=[_by_name("one7"), _by_name("nowhere")],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
        **quiet,
    )
    yield ask("metadata: all", key, range(1, 99), topics=None, **quiet)
    yield Call(
        "metadata: by id",
        key,
        lambda world, version: request(
            key,
            topics=[
                of(key, "Topic", name=None, topic_id=world.topic_ids["one7"]),
                of(key, "Topic", name=None, topic_id=NOWHERE),
            ],
            **quiet,
        ),
        True,
        range(10, 99),
    )


def topic_partitions() -> Iterator[Call]:
    key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    names = [of(key, "Topic", name=n) for n in ("one7", "nothing", "a/b", "assigned7", "one7")]
    yield ask("partitions: some", key, topics=names, response_partition_limit=2000)
    yield ask("partitions: all", key, topics=[], response_partition_limit=2000)
    for limit in (-1, 0, 1, 2, 4):
        yield ask(f"partitions: limit {limit}", key, topics=names, response_partition_limit=limit)
    for name, index in (("one7", 1), ("one7", 99), ("b", 0), ("one7", -1), ("zzz", 0)):
        cursor = of(key, "Cursor", topic_name=name, partition_index=index)
        yield ask(
            f"partitions: from {name} {index}",
            key,
            topics=names,
            response_partition_limit=3,
            cursor=cursor,
        )
    for name in ("one7", "b"):
        cursor = of(key, "Cursor", topic_name=name, partition_index=1)
        yield ask(f"partitions: all from {name}", key, topics=[], cursor=cursor)
    cursor = of(key, "Cursor", topic_name="nothing", partition_index=0)
    yield ask("partitions: from nothing", key, topics=names, cursor=cursor)


def _deletion(what: str, build: Build) -> Call:
    return Call(f"delete: {what}", ApiKey.DELETE_TOPICS, build)


def deletions() -> Iterator[Call]:
    key = ApiKey.DELETE_TOPICS

    def delete(*names: str | None, ids: tuple[str, ...] = ()) -> Build:
        def build(world: World, version: int) -> Any:
            texts = [None if n is None else n.replace("{v}", str(version)) for n in names]
            rows = [of(key, "Topic", name=text) for text in texts]
            for text in ids:
                topic_id = world.topic_ids.get(text.replace("{v}", str(version)), NOWHERE)
                rows.append(of(key, "Topic", name=None, topic_id=topic_id))
            return request(key, topics=rows, topic_names=texts, timeout_ms=10_000)

        return build

    yield _deletion("one", delete("many-a{v}"))
    yield _deletion("unknown", delete("nothing"))
    yield _deletion("bad name", delete("a/b"))
    yield _deletion("some", delete("many-b{v}", "nothing", "defaults{v}"))
    yield _deletion("none", delete())
    by_id = Call("delete: by id", key, delete(ids=("assigned{v}",)), versions=range(6, 99))
    yield by_id
    yield Call("delete: unknown id", key, delete(ids=("x",)), versions=range(6, 99))
    yield Call("delete: neither", key, delete(None), versions=range(6, 99))
    yield Call("delete: twice", key, delete("twice6", "twice6"), versions=range(6, 99))
    yield Call(
        "delete: name and id",
        key,
        lambda world, version: request(
            key,
            topics=[of(key, "Topic", name="one7", topic_id=world.topic_ids["one7"])],
            timeout_ms=10_000,
        ),
        versions=range(6, 99),
    )


# --- records and producers


def _records(**settings: Any) -> bytes:
    records = [Record(b"k", b"value", STARTED_MS + i) for i in range(3)]
    return encode_batch(records, **settings)


def _write(what: str, topic: str, partition: int = 0, **settings: Any) -> Call:
    key = ApiKey.PRODUCE
    row = of(key, "Partition", index=partition, records=_records(**settings))
    topics = [of(key, "Topic", name=topic, partition_data=[row])]
    return change(
        f"write: {what}", key, range(9, 10), acks=-1, timeout_ms=10_000, topic_data=topics
    )


def records() -> Iterator[Call]:
    for number in range(4):
        yield _write(f"batch {number}", "one7")
    yield _write("to a compacted topic", "set7")
    yield _write("with a producer", "one7", 1, producer_id=7000, producer_epoch=3, base_sequence=0)
    key = ApiKey.DELETE_RECORDS

    def delete(what: str, topic: str, *rows: tuple[int, int]) -> Call:
        partitions = [of(key, "Partition", partition_index=p, offset=o) for p, o in rows]
        topics = [of(key, "Topic", name=topic, partitions=partitions)]
        return change(f"delete records: {what}", key, topics=topics, timeout_ms=10_000)

    yield delete("some", "one7", (0, 2))
    yield delete("below the start", "one7", (0, 1))
    yield delete("after the end", "one7", (0, 13))
    yield delete("negative", "one7", (0, -2))
    yield delete("unknown partition", "one7", (99, 1), (2, 0))
    yield delete("unknown topic", "nothing", (0, 1))
    yield delete("compacted", "set7", (0, 1))
    yield delete("all", "one7", (0, -1), (1, -1), (2, -1))
    yield change("delete records: none", key, topics=[], timeout_ms=10_000)


def producers() -> Iterator[Call]:
    key = ApiKey.DESCRIBE_PRODUCERS
    yield ask(
        "producers",
        key,
        topics=[
            of(key, "Topic", name=name, partition_indexes=indexes)
            for name, indexes in (
                ("one7", [0, 1, 99]),
                ("nothing", [0]),
                ("a/b", [0]),
                ("set7", []),
            )
        ],
    )
    yield ask("producers: none", key, topics=[])


# --- the cluster


def cluster() -> Iterator[Call]:
    key = ApiKey.DESCRIBE_CLUSTER
    for kind in (1, 2, 3):
        yield ask(f"cluster: endpoint type {kind}", key, range(1, 99), endpoint_type=kind)
    yield ask("cluster", key, include_cluster_authorized_operations=True)
    yield ask("cluster: fenced too", key, range(2, 99), include_fenced_brokers=True)


def elections() -> Iterator[Call]:
    key = ApiKey.ELECT_LEADERS
    rows = [
        of(key, "Topic", topic="one7", partitions=[0, 1, 99, -1]),
        of(key, "Topic", topic="nothing", partitions=[0]),
        of(key, "Topic", topic="a/b", partitions=[0]),
        of(key, "Topic", topic="one6", partitions=[]),
    ]
    for kind in (0, 1, 2, -1):
        versions = range(0 if kind == 0 else 1, 99)
        yield change(
            f"elect: some, type {kind}", key, versions, election_type=kind, topic_partitions=rows
        )
        yield change(
            f"elect: all, type {kind}", key, versions, election_type=kind, topic_partitions=None
        )
    twice = [of(key, "Topic", topic="one7", partitions=[0, 0])]
    yield change("elect: twice", key, topic_partitions=twice)
    yield change("elect: none", key, topic_partitions=[])


def reassignments() -> Iterator[Call]:
    key = ApiKey.ALTER_PARTITION_REASSIGNMENTS

    def move(what: str, name: str, *rows: tuple[int, list[int] | None]) -> Iterator[Call]:
        parts = [of(key, "Partition", partition_index=p, replicas=r) for p, r in rows]
        topics = [of(key, "Topic", name=name, partitions=parts)]
        for may in (True, False):
            yield change(
                f"reassign: {what}{'' if may else ', same factor'}",
                key,
                range(0 if may else 1, 99),
                topics=topics,
                allow_replication_factor_change=may,
            )

    yield from move("same", "one7", (0, [1]), (1, [1]))
    yield from move("cancel", "one7", (0, None))
    yield from move("unknown node", "one7", (0, [9]))
    yield from move("two nodes", "one7", (0, [1, 9]))
    yield from move("node twice", "one7", (0, [1, 1]))
    yield from move("no node", "one7", (0, []))
    yield from move("unknown partition", "one7", (99, [1]), (98, None))
    yield from move("unknown topic", "nothing", (0, [1]), (1, None))
    yield from move("no partitions", "one7")
    yield change("reassign: none", key, topics=[])
    listing = ApiKey.LIST_PARTITION_REASSIGNMENTS
    yield ask("reassignments: all", listing, topics=None)
    rows = [
        of(listing, "Topic", name=name, partition_indexes=[0, 99]) for name in ("one7", "nothing")
    ]
    yield ask("reassignments: some", listing, topics=rows)
    yield ask("reassignments: none", listing, topics=[])


def quorum() -> Iterator[Call]:
    key = ApiKey.DESCRIBE_QUORUM

    def describe(what: str, *rows: tuple[str, list[int]]) -> Call:
        topics = [
            of(
                key,
                "Topic",
                topic_name=name,
                partitions=[of(key, "Partition", partition_index=i) for i in indexes],
            )
            for name, indexes in rows
        ]
        return ask(f"quorum: {what}", key, topics=topics)

    yield describe("metadata", (METADATA_TOPIC, [0]))
    yield describe("other topic", ("one7", [0, 1]))
    yield describe("other partition", (METADATA_TOPIC, [1]))
    yield describe("two partitions", (METADATA_TOPIC, [0, 1]))
    yield describe("two topics", (METADATA_TOPIC, [0]), ("one7", [0]))
    yield describe("none")
    add, remove = ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER
    listener = of(add, "Listener", name="CONTROLLER", host="127.0.0.1", port=9)
    voter = {"voter_id": 2, "voter_directory_id": NOWHERE}
    for what, cluster_id in (("other cluster", "other"), ("any cluster", None)):
        yield change(
            f"add voter: {what}",
            add,
            cluster_id=cluster_id,
            listeners=[listener],
            timeout_ms=1000,
            **voter,
        )
        yield change(f"remove voter: {what}", remove, cluster_id=cluster_id, **voter)
    yield change("unregister: unknown", ApiKey.UNREGISTER_BROKER, broker_id=99)
    yield change("unregister: negative", ApiKey.UNREGISTER_BROKER, broker_id=-1)
    for controller_id in (1, 99, -1):
        yield change(
            f"unregister controller {controller_id}",
            ApiKey.UNREGISTER_CONTROLLER,
            controller_id=controller_id,
        )


def features() -> Iterator[Call]:
    key = ApiKey.UPDATE_FEATURES

    def update(what: str, *rows: tuple[str, int, int]) -> Call:
        updates = [
            of(
                key,
                "Feature",
                feature=name,
                max_version_level=level,
                upgrade_type=kind,
                allow_downgrade=kind > 1,
            )
            for name, level, kind in rows
        ]
        return change(f"features: {what}", key, feature_updates=updates, timeout_ms=10_000)

    name = "metadata.version"
    yield update("same level", (name, 33, 1))
    yield update("same level, as a downgrade", (name, 33, 2))
    yield update("above all", (name, 34, 1))
    yield update("far above all", (name, 3000, 1))
    yield update("below, as an upgrade", (name, 29, 1))
    yield update("below, safely", (name, 29, 2))
    yield update("below, unsafely", (name, 29, 3))
    yield update("nothing", (name, 0, 2))
    yield update("negative", (name, -1, 2))
    yield update("unknown", ("no.such.feature", 1, 1))
    yield update("unknown, to nothing", ("no.such.feature", 0, 2))
    yield update("no name", ("", 1, 1))
    yield update("type 0", (name, 33, 0))
    yield update("type 9", (name, 33, 9))
    yield update("twice", (name, 33, 1), (name, 33, 1))
    yield update("one good, one bad", (name, 33, 1), ("no.such.feature", 1, 1))
    yield update("none")


# --- data directories


def log_dirs() -> Iterator[Call]:
    for partition in (0, 1):
        yield _write(f"to be moved, {partition}", "one4", partition)
    key = ApiKey.DESCRIBE_LOG_DIRS
    nothing = of(key, "Topic", topic="nothing", partitions=[0])
    yield ask("directories: unknown", key, topics=[nothing])
    yield ask("directories: none", key, topics=[])

    def move(what: str, directory: int, *rows: tuple[str, list[int]]) -> Call:
        alter = ApiKey.ALTER_REPLICA_LOG_DIRS

        def build(world: World, version: int) -> Any:
            paths = [*world.directories, world.directories[0] + "-other", "data", ""]
            topics = [of(alter, "Topic", name=n, partitions=p) for n, p in rows]
            return request(alter, dirs=[of(alter, "Dir", path=paths[directory], topics=topics)])

        return Call(f"move: {what}", alter, build)

    topics = [
        of(key, "Topic", topic="one4", partitions=[0, 1, 2, 99]),
        of(key, "Topic", topic="one3", partitions=[0]),
        nothing,
    ]
    for when, directory in (
        ("to another directory", 1),
        ("back", 0),
        ("to their own directory", 0),
    ):
        yield move(when, directory, ("one4", [0, 1, 2]))
        yield move(f"another partition, {when}", 1, ("one3", [0]))
        yield ask(f"directories: moved {when}", key, topics=topics)
    yield move("unknown partition", 0, ("one4", [99, -1]))
    yield move("unknown topic", 0, ("nothing", [0]))
    yield move("bad name", 0, ("a/b", [0]))
    yield move("unknown directory", 2, ("one4", [0]), ("nothing", [0]))
    yield move("relative directory", 3, ("one4", [0]))
    yield move("empty directory", 4, ("one4", [0]))
    yield move("nothing", 0)
    yield ask("directories: after rejected moves", key, topics=topics)


def cordons() -> Iterator[Call]:
    """Yield calls about cordoned log directories, which take no new partitions (KIP-1066)."""
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    name = "cordoned.log.dirs"

    def cordon(what: str, value: Callable[[World], str | None], operation: int = SET) -> Call:
        return Call(
            f"cordon: {what}",
            key,
            lambda world, version: request(
                key, resources=[_settings(key, BROKER, "1", (name, operation, value(world)))]
            ),
        )

    def described(when: str) -> Call:
        rows = [of(ApiKey.DESCRIBE_LOG_DIRS, "Topic", topic="one4", partitions=[0])]
        return ask(f"directories: {when}", ApiKey.DESCRIBE_LOG_DIRS, topics=rows)

    def move(when: str) -> Call:
        alter = ApiKey.ALTER_REPLICA_LOG_DIRS
        topics = [of(alter, "Topic", name="one4", partitions=[0])]
        return Call(
            f"move: into a cordoned directory, {when}",
            alter,
            lambda world, version: request(
                alter, dirs=[of(alter, "Dir", path=world.directories[1], topics=topics)]
            ),
        )

    yield cordon("one", lambda world: world.directories[1])
    yield described("one is cordoned")
    yield move("one")
    stays = of(ApiKey.ALTER_REPLICA_LOG_DIRS, "Topic", name="one3", partitions=[0])
    yield Call(
        "move: to where it is, which is cordoned",
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        lambda world, version: request(
            ApiKey.ALTER_REPLICA_LOG_DIRS,
            dirs=[
                of(ApiKey.ALTER_REPLICA_LOG_DIRS, "Dir", path=world.directories[1], topics=[stays])
            ],
        ),
    )
    yield _create("next to a cordoned directory", _new("beside{v}", 2))
    yield cordon("unknown directory", lambda world: "/no/such/directory")
    yield cordon("both", lambda world: ",".join(world.directories))
    yield described("both are cordoned")
    # Kafka's controller learns about it from the broker's next heartbeat.
    checked = _create(
        "all directories cordoned, checked", _new("nowhere{v}", 2), validate_only=True
    )
    yield replace(checked, again=True)
    yield _create("all directories cordoned", _new("nowhere{v}", 2))
    yield _grow("all directories cordoned", "one4", 4)
    yield cordon("all", lambda world: "*")
    yield described("all are cordoned")
    yield cordon("none", lambda world: None, DELETE)
    yield described("none is cordoned")


# --- settings

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def _settings(key: ApiKey, kind: int, name: str, *rows: tuple[Any, ...]) -> Any:
    """Return a resource with rows of (name, value) or (name, operation, value)."""
    if key is ApiKey.ALTER_CONFIGS:
        configs = [of(key, "Config", name=n, value=v) for n, v in rows]
    else:
        configs = [of(key, "Config", name=n, config_operation=o, value=v) for n, o, v in rows]
    return of(key, "Resource", resource_type=kind, resource_name=name, configs=configs)


def _alter(what: str, *resources: tuple[Any, ...], validate_only: bool = False) -> Call:
    key = ApiKey.ALTER_CONFIGS
    rows = [_settings(key, *resource) for resource in resources]
    return change(f"alter: {what}", key, resources=rows, validate_only=validate_only)


def _increment(what: str, *resources: tuple[Any, ...], validate_only: bool = False) -> Call:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    rows = [_settings(key, *resource) for resource in resources]
    return change(f"increment: {what}", key, resources=rows, validate_only=validate_only)


def _describe(what: str, *resources: tuple[int, str, list[str] | None], **more: Any) -> Call:
    key = ApiKey.DESCRIBE_CONFIGS
    rows = [
        of(key, "Resource", resource_type=kind, resource_name=name, configuration_keys=keys)
        for kind, name, keys in resources
    ]
    return ask(f"configs: {what}", key, resources=rows, **more)


def settings() -> Iterator[Call]:
    yield _describe("every setting of the broker", (BROKER, "1", None), include_synonyms=True)
    yield _describe("every setting of a group", (GROUP, "g", None), include_synonyms=True)
    yield _describe("metrics", (METRICS, "m", None))
    yield _describe("loggers", (LOGGER, "1", None))
    yield from described_settings("at first")
    yield from _altered()
    yield from described_settings("altered")
    yield from _incremented()
    yield from described_settings("incremented")
    key = ApiKey.LIST_CONFIG_RESOURCES
    yield ask("resources: all", key)
    for kinds in ([TOPIC], [BROKER, TOPIC], [LOGGER], [METRICS], [GROUP], [77], [TOPIC, 77]):
        yield ask(f"resources: {kinds}", key, range(1, 99), resource_types=kinds)
    yield _increment("back: broker", (BROKER, "1", ("log.retention.ms", DELETE, None)))
    yield _increment("back: default", (BROKER, "", ("log.segment.bytes", DELETE, None)))


def _altered() -> Iterator[Call]:
    """Yield AlterConfigs calls with valid and invalid settings of topics and brokers."""
    yield _alter("topic", (TOPIC, "one7", ("retention.ms", "1000"), ("segment.ms", "5000")))
    yield _alter("only checked", (TOPIC, "one7", ("retention.ms", "9")), validate_only=True)
    yield _alter("unknown topic", (TOPIC, "nothing", ("retention.ms", "1000")))
    yield _alter("bad name", (TOPIC, "a/b", ("retention.ms", "1000")))
    yield _alter("unknown setting", (TOPIC, "one7", ("no.such", "1")))
    yield _alter("bad value", (TOPIC, "one7", ("retention.ms", "soon")))
    yield _alter("null value", (TOPIC, "one7", ("retention.ms", None)))
    yield _alter("setting twice", (TOPIC, "one7", ("retention.ms", "1"), ("retention.ms", "2")))
    for topic in ("nothing", "a/b"):
        yield _alter(f"unknown setting of {topic}", (TOPIC, topic, ("no.such", "1")))
        yield _alter(f"bad value of {topic}", (TOPIC, topic, ("retention.ms", "soon")))
    yield _alter("other broker", (BROKER, "99", ("log.retention.ms", "1000")))
    yield _alter("no number", (BROKER, "x", ("log.retention.ms", "1000")))
    yield _alter("unknown type", (77, "x", ("retention.ms", "1000")))
    yield _alter("read-only", (BROKER, "1", ("node.id", "7")))
    yield _alter("none")


def _incremented() -> Iterator[Call]:
    """Yield IncrementalAlterConfigs calls with each operation, valid and invalid."""
    yield _increment("set", (TOPIC, "one6", ("retention.ms", SET, "60000")))
    yield _increment("delete", (TOPIC, "set7", ("retention.ms", DELETE, None)))
    yield _increment("delete what is not set", (TOPIC, "one6", ("segment.ms", DELETE, None)))
    yield _increment("append", (TOPIC, "one6", ("cleanup.policy", APPEND, "compact")))
    yield _increment("append again", (TOPIC, "one6", ("cleanup.policy", APPEND, "compact")))
    yield _increment("subtract", (TOPIC, "one6", ("cleanup.policy", SUBTRACT, "delete")))
    yield _increment("subtract again", (TOPIC, "one6", ("cleanup.policy", SUBTRACT, "delete")))
    yield _increment("append to a number", (TOPIC, "one6", ("retention.ms", APPEND, "1")))
    yield _increment("unknown operation", (TOPIC, "one6", ("retention.ms", 9, "1")))
    yield _increment("unknown setting", (TOPIC, "one6", ("no.such", SET, "1")))
    yield _increment("delete unknown", (TOPIC, "one6", ("no.such", DELETE, None)))
    yield _increment("bad value", (TOPIC, "one6", ("retention.ms", SET, "soon")))
    yield _increment("out of range", (TOPIC, "one6", ("retention.ms", SET, "-5")))
    yield _increment("null value", (TOPIC, "one6", ("retention.ms", SET, None)))
    yield _increment(
        "one bad of two", (TOPIC, "one6", ("segment.ms", SET, "777"), ("no.such", SET, "1"))
    )
    yield _increment(
        "setting twice", (TOPIC, "one6", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    )
    yield _increment("topic twice", *[(TOPIC, "one6", ("retention.ms", SET, "7"))] * 2)
    yield _increment(
        "several",
        (TOPIC, "one5", ("retention.ms", SET, "7")),
        (TOPIC, "nothing", ("segment.ms", SET, "7")),
    )
    yield _increment("unknown topic", (TOPIC, "nothing", ("retention.ms", SET, "1")))
    yield _increment("bad name", (TOPIC, "a/b", ("retention.ms", SET, "1")))
    yield _increment("broker", (BROKER, "1", ("log.retention.ms", SET, "70000000")))
    yield _increment("cluster default", (BROKER, "", ("log.segment.bytes", SET, "2000000")))
    yield _increment("other broker", (BROKER, "99", ("log.retention.ms", SET, "1")))
    yield _increment("no number", (BROKER, "x", ("log.retention.ms", SET, "1")))
    yield _increment("read-only", (BROKER, "1", ("node.id", SET, "7")))
    yield _increment("read-only default", (BROKER, "", ("node.id", SET, "7")))
    yield _increment("unknown type", (77, "x", ("retention.ms", SET, "1")))
    yield _increment("only checked", (TOPIC, "one6", ("segment.ms", SET, "99")), validate_only=True)
    yield from _incremented_wrongly()
    yield _increment("none")


def _incremented_wrongly() -> Iterator[Call]:
    """Yield calls with several errors, and with errors of single resource types."""
    for topic in ("nothing", "a/b"):
        for step in (
            ("no.such", SET, "1"),
            ("retention.ms", SET, "soon"),
            ("retention.ms", APPEND, "1"),
        ):
            yield _increment(f"{step} of {topic}", (TOPIC, topic, step))
    for limit in ("max.connections", "max.connections.per.ip", "max.connection.creation.rate"):
        for name in ("1", ""):
            yield _increment(f"{limit} of broker {name!r} is 0", (BROKER, name, (limit, SET, "0")))
    for operation in (APPEND, SUBTRACT):
        for resource in (
            (METRICS, "m", ("metrics", operation, "a")),
            (METRICS, "m", ("match", operation, "client_id=a")),
            (GROUP, "g", ("streams.rack.aware.assignment.tags", operation, "a")),
        ):
            yield _increment(f"list of {resource}", resource)
    for interval in ("99", "3600001", "soon"):
        yield _increment(f"interval {interval}", (METRICS, "m", ("interval.ms", SET, interval)))


BROKER_SETTINGS = [
    "log.segment.bytes",
    "log.retention.ms",
    "log.retention.hours",
    "num.partitions",
    "message.max.bytes",
    "compression.type",
    "auto.create.topics.enable",
    "node.id",
    "no.such",
]


def described_settings(when: str) -> Iterator[Call]:
    yield _describe(
        f"topics, {when}",
        (TOPIC, "one7", None),
        (TOPIC, "one6", None),
        (TOPIC, "set7", ["retention.ms", "cleanup.policy", "no.such"]),
        include_synonyms=True,
    )
    yield _describe(f"broker, {when}", (BROKER, "1", BROKER_SETTINGS), include_synonyms=True)
    yield _describe(f"cluster default, {when}", (BROKER, "", None), include_synonyms=True)
    yield _describe(
        f"bad, {when}",
        (TOPIC, "nothing", None),
        (TOPIC, "a/b", None),
        (TOPIC, "", None),
        (BROKER, "99", None),
        (BROKER, "x", None),
    )
    yield _describe(f"unknown type, {when}", (TOPIC, "one7", None), (77, "x", None))
    yield _describe(f"texts, {when}", (TOPIC, "one5", None), include_documentation=True)
    yield _describe(f"none, {when}")


# --- groups


def groups() -> Iterator[Call]:
    yield ask("coordinator", ApiKey.FIND_COORDINATOR, range(4, 99), coordinator_keys=["g"])
    commit = ApiKey.OFFSET_COMMIT

    def commits(group: str, topic: str = "one7", partition: int = 0) -> Call:
        row = of(commit, "Partition", partition_index=partition, committed_offset=5)
        return Call(
            f"commit: {group} {topic}",
            commit,
            lambda world, version: request(
                commit,
                group_id=group,
                generation_id_or_member_epoch=-1,
                topics=[of(commit, "Topic", name=topic, partitions=[row])],
            ),
            True,
            range(8, 9),
        )

    for group in ("simple", "gone", "mine", *(f"gone{version}" for version in range(4))):
        yield commits(group)
    yield commits("simple", "one6")
    yield from committed_epochs()
    yield _join("joined", 0, _SUBSCRIBED + _NO_DATA)
    yield _sync("joined")
    yield from group_listings()
    yield from internal_topics()
    yield _join("static", 0, _SUBSCRIBED + _NO_DATA, "instance")
    yield _sync("static", "instance")
    yield ask("describe groups: a static member", ApiKey.DESCRIBE_GROUPS, groups=["static"])
    yield from offset_deletions()
    yield from short_subscriptions()
    yield from group_deletions()


_SUBSCRIBED = b"\0\0\0\1\0\4one7"
_NO_DATA = b"\xff\xff\xff\xff"


def committed_epochs() -> Iterator[Call]:
    """Yield calls that commit and fetch the leader epoch of an offset."""
    commit, fetch = ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH
    rows = [
        of(
            commit,
            "Partition",
            partition_index=index,
            committed_offset=7,
            committed_leader_epoch=epoch,
            committed_metadata="m",
        )
        for index, epoch in enumerate((3, 0, -1))
    ]
    topics = [of(commit, "Topic", name="one7", partitions=rows)]
    values = {"group_id": "simple", "generation_id_or_member_epoch": -1, "topics": topics}
    yield change("commit: leader epochs", commit, range(8, 10), **values)
    group = of(fetch, "Group", group_id="simple", topics=None)
    yield ask("offsets: leader epochs", fetch, range(8, 10), groups=[group])


def internal_topics() -> Iterator[Call]:
    """Yield calls about `__consumer_offsets`, which exists once a coordinator was requested."""
    name = "__consumer_offsets"
    yield ask("metadata: internal", ApiKey.METADATA, topics=[_by_name(name)])
    key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    rows = [of(key, "Topic", name=name)]
    yield ask("partitions: internal", key, topics=rows, response_partition_limit=2000)


def _join(group: str, version: int, subscription: bytes, instance: str | None = None) -> Call:
    """Join a group as its only member. `version` is the version that its subscription declares."""
    key = ApiKey.JOIN_GROUP
    metadata = version.to_bytes(2, "big") + subscription
    return change(
        f"join: {group}",
        key,
        range(3, 4) if instance is None else range(5, 6),
        group_id=group,
        group_instance_id=instance,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[of(key, "Protocol", name="range", metadata=metadata)],
    )


def _sync(group: str, instance: str | None = None) -> Call:
    """Assign one partition to the member that joined last."""
    key = ApiKey.SYNC_GROUP

    def build(world: World, version: int) -> Any:
        mine = of(
            key,
            "Assignment",
            member_id=world.member_id,
            assignment=b"\0\0\0\0\0\1\0\4one7\0\0\0\1\0\0\0\0" + _NO_DATA,
        )
        return request(
            key,
            group_id=group,
            generation_id=world.generation,
            member_id=world.member_id,
            group_instance_id=instance,
            assignments=[mine],
        )

    return Call(f"sync: {group}", key, build, versions=range(3, 4))


def group_listings() -> Iterator[Call]:
    key = ApiKey.LIST_GROUPS
    yield ask("groups: all", key)
    for states in (["Stable"], ["stable"], ["Empty", "Dead"], ["Nonsense"], [""]):
        yield ask(f"groups: states {states}", key, range(4, 99), states_filter=states)
    for types in (["classic"], ["Classic"], ["consumer"], ["nonsense"], ["share", "classic"]):
        yield ask(f"groups: types {types}", key, range(5, 99), types_filter=types)
    names = ["joined", "simple", "none", "", "joined"]
    yield ask("describe groups", ApiKey.DESCRIBE_GROUPS, groups=names)
    yield ask(
        "describe groups: operations",
        ApiKey.DESCRIBE_GROUPS,
        range(3, 99),
        groups=["joined", "none"],
        include_authorized_operations=True,
    )
    yield ask("describe groups: none", ApiKey.DESCRIBE_GROUPS, groups=[])


def _delete_offsets(what: str, group: str, *rows: tuple[str, list[int]]) -> Call:
    key = ApiKey.OFFSET_DELETE
    topics = [
        of(
            key,
            "Topic",
            name=name,
            partitions=[of(key, "Partition", partition_index=i) for i in indexes],
        )
        for name, indexes in rows
    ]
    return change(f"delete offsets: {what}", key, group_id=group, topics=topics)


def offset_deletions() -> Iterator[Call]:
    delete = _delete_offsets
    yield delete("one", "simple", ("one6", [0]))
    yield delete("not committed", "simple", ("one6", [0, 1]))
    yield delete("unknown", "simple", ("nothing", [0]), ("one7", [99]), ("a/b", [0]))
    yield delete("unknown group", "none", ("one7", [0]))
    yield delete("no group", "", ("one7", [0]))
    yield delete("subscribed", "joined", ("one7", [0]), ("one6", [0]))
    yield delete("none", "simple")
    yield delete("no partitions", "simple", ("one7", []))


def short_subscriptions() -> Iterator[Call]:
    """Yield calls with subscriptions that lack the last fields of their declared version."""
    for what, version, subscription in (
        ("no owned partitions", 1, _SUBSCRIBED + _NO_DATA),
        ("half an array of them", 1, _SUBSCRIBED + _NO_DATA + b"\0\0"),
        ("no rack", 3, _SUBSCRIBED + _NO_DATA + b"\0\0\0\0\0\0\0\7"),
        ("a later version", 99, _SUBSCRIBED + _NO_DATA),
        ("no user data", 1, _SUBSCRIBED),
        ("a version below 0", 0xFFFF, _SUBSCRIBED + _NO_DATA),
    ):
        group = f"short: {what}"
        yield _join(group, version, subscription)
        yield _sync(group)
        yield _delete_offsets(f"subscribed, {what}", group, ("one7", [0]), ("one6", [0]))


def group_deletions() -> Iterator[Call]:
    key = ApiKey.DELETE_GROUPS
    yield Call(
        "delete groups: one",
        key,
        lambda world, version: request(key, groups_names=[f"gone{version}"]),
    )
    names = ["none", "joined", "", "none"]
    yield change("delete groups: not possible", key, groups_names=names)
    yield change("delete groups: none", key, groups_names=[])
    yield ask("groups: after deletions", ApiKey.LIST_GROUPS)


def logins() -> Iterator[Call]:
    """Yield SASL calls on a listener without SASL."""
    yield ask("login: no mechanism is needed", ApiKey.SASL_HANDSHAKE, mechanism="PLAIN")
    yield ask("login: a message of it", ApiKey.SASL_AUTHENTICATE, auth_bytes=b"\0alice\0pencil")


# --- delegation tokens


def delegation_tokens() -> Iterator[Call]:
    """Yield token calls of an unauthenticated client.

    For authenticated clients see test_delegation_tokens.py.
    """
    key = ApiKey.CREATE_DELEGATION_TOKEN
    renewer = of(key, "Renewer", principal_type="User", principal_name="bob")
    yield change("tokens: one", key, renewers=[], max_lifetime_ms=-1)
    yield change("tokens: with a renewer", key, renewers=[renewer], max_lifetime_ms=1000)
    owner = {"owner_principal_type": "User", "owner_principal_name": "bob"}
    yield change("tokens: of bob", key, renewers=[], max_lifetime_ms=-1, **owner)
    yield change("tokens: renewed", ApiKey.RENEW_DELEGATION_TOKEN, hmac=b"x", renew_period_ms=-1)
    end = ApiKey.EXPIRE_DELEGATION_TOKEN
    yield change("tokens: ended", end, hmac=b"x", expiry_time_period_ms=-1)
    yield ask("tokens: all", ApiKey.DESCRIBE_DELEGATION_TOKEN, owners=None)
    yield ask("tokens: of nobody", ApiKey.DESCRIBE_DELEGATION_TOKEN, owners=[])


# --- quotas of clients


def _quota(entity: Sequence[tuple[str, str | None]], *ops: tuple[str, float | None]) -> Any:
    key = ApiKey.ALTER_CLIENT_QUOTAS
    return of(
        key,
        "Entry",
        entity=[of(key, "Entity", entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[
            of(key, "Op", key=what, value=value or 0.0, remove=value is None) for what, value in ops
        ],
    )


def _alter_quotas(what: str, *rows: Any, **fields: Any) -> Call:
    return change(f"quotas: {what}", ApiKey.ALTER_CLIENT_QUOTAS, entries=[*rows], **fields)


def _describe_quotas(
    what: str, *components: tuple[str, int, str | None], strict: bool = False
) -> Call:
    key = ApiKey.DESCRIBE_CLIENT_QUOTAS
    rows = [
        of(key, "Component", entity_type=kind, match_type=match, match=name)
        for kind, match, name in components
    ]
    return ask(f"quotas: {what}", key, components=rows, strict=strict)


ALICE, EVERYBODY = (("user", "alice"),), (("user", None),)
ALICE_S_APP = (("user", "alice"), ("client-id", "app"))
ALICE_S_CLIENTS = (("user", "alice"), ("client-id", None))


def _valid_quotas() -> Iterator[Call]:
    produced, consumed = "producer_byte_rate", "consumer_byte_rate"
    yield _describe_quotas("none yet")
    yield _alter_quotas("nothing")
    yield _alter_quotas("only to validate", _quota(ALICE, (produced, 1e6)), validate_only=True)
    yield _describe_quotas("nothing was stored")
    yield _alter_quotas(
        "several entities",
        _quota(ALICE, (produced, 1e6), ("request_percentage", 250.5)),
        _quota(ALICE_S_APP, (consumed, 2e6)),
        _quota(ALICE_S_CLIENTS, (consumed, 3e6)),
        _quota([("client-id", "app")], ("controller_mutation_rate", 0.5)),
        _quota([("ip", "192.0.2.1")], ("connection_creation_rate", 7)),
    )
    yield _alter_quotas(
        "a changed value and a deleted one",
        _quota(ALICE, (produced, 2e6), ("request_percentage", None)),
    )
    yield _alter_quotas("delete a missing quota", _quota([("user", "nobody")], (produced, None)))
    yield _alter_quotas("delete an unknown key", _quota(ALICE, ("bytes", None)))


def _quota_filters() -> Iterator[Call]:
    for kind in ("user", "client-id", "ip"):
        yield _describe_quotas(f"any {kind}", (kind, 2, None))
        yield _describe_quotas(f"any {kind} alone", (kind, 2, None), strict=True)
        yield _describe_quotas(f"the default {kind}", (kind, 1, None))
    yield _describe_quotas("by name", ("user", 0, "alice"))
    yield _describe_quotas("by name alone", ("user", 0, "alice"), strict=True)
    yield _describe_quotas("by two names", ("user", 0, "alice"), ("client-id", 0, "app"))
    yield _describe_quotas("strictly nothing", strict=True)
    yield _describe_quotas("without a type", ("", 0, "x"))
    yield _describe_quotas("one type twice", ("user", 0, "x"), ("user", 1, None))
    yield _describe_quotas("an unknown type", ("group", 0, "x"))
    yield _describe_quotas("exactly nobody", ("user", 0, None))
    yield _describe_quotas("a default with a name", ("user", 1, "x"))
    yield _describe_quotas("any with a name", ("user", 2, "x"))
    yield _describe_quotas("an unknown match", ("user", 3, None))
    yield _describe_quotas("ip and user", ("ip", 2, None), ("user", 2, None))


def _invalid_quotas() -> Iterator[Call]:
    produced = "producer_byte_rate"
    for value in (0, -1, 1.5, 1e19):
        yield _alter_quotas(f"{value} bytes", _quota(ALICE, (produced, value)))
    for value in (0, 0.5, 1e9):
        yield _alter_quotas(
            f"{value} percent", _quota([("user", "bob")], ("request_percentage", value))
        )
    for value in (1.5, 2**31, 1):
        yield _alter_quotas(
            f"{value} connections", _quota([("ip", None)], ("connection_creation_rate", value))
        )
    yield _alter_quotas("of nobody", _quota([], (produced, 1)))
    yield _alter_quotas("of an unknown type", _quota([("group", "g")], (produced, 1)))
    yield _alter_quotas("of an empty name", _quota([("user", "")], (produced, 1)))
    yield _alter_quotas("ip and user at once", _quota([("ip", None), ("user", "x")], (produced, 1)))
    yield _alter_quotas(
        "of no address", _quota([("ip", "300.0.0.1")], ("connection_creation_rate", 1))
    )
    yield _alter_quotas("bytes of an ip", _quota([("ip", None)], (produced, 1)))
    yield _alter_quotas("connections of a user", _quota(ALICE, ("connection_creation_rate", 1)))
    yield _alter_quotas("an unknown key", _quota(ALICE, ("bytes", 1)))
    yield _alter_quotas("one key twice", _quota([("user", "carol")], (produced, 1), (produced, 2)))
    yield _alter_quotas(
        "one bad, one good", _quota([("user", "x")], ("y", 1)), _quota(EVERYBODY, (produced, 1e12))
    )


def client_quotas() -> Iterator[Call]:
    """Yield quota calls for entities that no client of this test belongs to.

    The only exception is the default of all users, which has a value that limits nobody.
    """
    produced, consumed = "producer_byte_rate", "consumer_byte_rate"
    yield from _valid_quotas()
    yield from _quota_filters()
    yield from _invalid_quotas()
    yield _describe_quotas("all at last")
    yield _alter_quotas(
        "all go",
        _quota(ALICE, (produced, None)),
        _quota(EVERYBODY, (produced, None)),
        _quota(ALICE_S_APP, (consumed, None)),
        _quota(ALICE_S_CLIENTS, (consumed, None)),
        _quota([("client-id", "app")], ("controller_mutation_rate", None)),
        _quota([("ip", "192.0.2.1")], ("connection_creation_rate", None)),
        _quota([("ip", None)], ("connection_creation_rate", None)),
        _quota([("user", "bob")], ("request_percentage", None)),
    )
    yield _describe_quotas("none is left")


# --- SCRAM users


def _credential(name: str, mechanism: int = 1, iterations: int = 4096, **more: Any) -> Any:
    values = {"salt": b"a grain of salt", "salted_password": bytes(range(32))} | more
    key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    return of(key, "Upsertion", name=name, mechanism=mechanism, iterations=iterations, **values)


def _no_credential(name: str, mechanism: int = 1) -> Any:
    return of(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "Deletion", name=name, mechanism=mechanism)


def scram_users() -> Iterator[Call]:
    def alter(what: str, deletions: Sequence[Any] = (), upsertions: Sequence[Any] = ()) -> Call:
        rows = {"deletions": [*deletions], "upsertions": [*upsertions]}
        return change(f"scram: {what}", ApiKey.ALTER_USER_SCRAM_CREDENTIALS, **rows)

    def describe(what: str, *names: str) -> Call:
        key = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
        return ask(f"scram: {what}", key, users=[of(key, "User", name=name) for name in names])

    yield describe("nobody yet")
    yield alter("nothing")
    yield alter("two", upsertions=[_credential("alice"), _credential("bob", 2, 16384)])
    yield alter("another mechanism", upsertions=[_credential("alice", 2)])
    yield alter("both mechanisms at once", upsertions=[_credential("x"), _credential("x", 2)])
    yield ask("scram: null is all", ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, users=None)
    yield describe("none is all")
    yield describe("an existing and an unknown user", "alice", "nobody")
    yield describe("twice", "alice", "bob", "alice", "nobody", "nobody")
    yield describe("without a name", "")
    for iterations in (-1, 0, 4095, 4096, 16384, 16385):
        row = _credential("carol", iterations=iterations)
        yield alter(f"{iterations} iterations", upsertions=[row])
    for number in (-1, 0, 3):
        yield alter(
            f"mechanism {number}", [_no_credential("bob", number)], [_credential("x", number)]
        )
    yield alter("no mechanism, no iterations", upsertions=[_credential("x", 9, 1)])
    yield alter("no name, no mechanism", [_no_credential("", 9)])
    yield alter("no name", upsertions=[_credential("", iterations=1)])
    yield alter("no salt", upsertions=[_credential("x", salt=b"")])
    yield alter("no salted password", upsertions=[_credential("y", salted_password=b"")])
    yield alter("a short salt", upsertions=[_credential("z", salt=b"s", salted_password=b"p")])
    yield alter("a long name", upsertions=[_credential("n" * 513)])
    yield alter("a name with signs", upsertions=[_credential("ö,=/\n\0 a")])
    yield alter("delete unknown users", [_no_credential("nobody"), _no_credential("bob")])
    yield alter(
        "delete both mechanisms at once", [_no_credential("alice"), _no_credential("alice", 2)]
    )
    yield alter(
        "delete twice", [_no_credential("alice"), _no_credential("alice"), _no_credential("alice")]
    )
    yield alter("delete and make", [_no_credential("alice")], [_credential("alice", 2)])
    yield alter("wrong, then right", upsertions=[_credential("x", 9), _credential("x")])
    yield alter("right, then wrong", upsertions=[_credential("y"), _credential("y", 9)])
    yield alter(
        "one of three is wrong", [_no_credential("bob", 2)], [_credential("d"), _credential("")]
    )
    yield alter("delete one mechanism", [_no_credential("alice")])
    yield describe("at last", "alice", "bob", "carol", "d", "z", "ö,=/\n\0 a")


# --- ACLs


def _acl(name: str = "orders", **more: Any) -> Any:
    values = {
        "resource_type": 2,
        "resource_pattern_type": 3,
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return of(ApiKey.CREATE_ACLS, "Acl", resource_name=name, **values | more)


ANY_ACL = {
    "resource_type_filter": 1,
    "pattern_type_filter": 1,
    "operation": 1,
    "permission_type": 1,
}
ACL_FILTERS: Sequence[dict[str, Any]] = (
    {},
    {"resource_type_filter": 2},
    {"resource_name_filter": "orders"},
    {"resource_name_filter": "orders", "pattern_type_filter": 2},
    {"resource_name_filter": "orders-eu", "pattern_type_filter": 2, "resource_type_filter": 2},
    {"resource_name_filter": "orders", "pattern_type_filter": 4},
    {"principal_filter": "User:bob"},
    {"host_filter": "10.0.0.1"},
    {"operation": 4},
    {"permission_type": 2},
    {"resource_type_filter": 99},
    {"operation": 99},
)


def acls() -> Iterator[Call]:
    def create(what: str, *rows: Any) -> Call:
        return change(f"acls: {what}", ApiKey.CREATE_ACLS, creations=[*rows])

    yield create("nothing")
    yield create("one", _acl())
    yield create("the same", _acl(), _acl())
    yield create(
        "others",
        _acl(operation=4, permission_type=2),
        _acl("ord", resource_pattern_type=4, principal="User:bob"),
        _acl("*", host="10.0.0.1"),
        _acl("readers", resource_type=3),
        _acl("kafka-cluster", resource_type=4, operation=5),
        _acl("tx", resource_type=5, operation=15),
        _acl("token", resource_type=6, operation=8),
        _acl("User:carol", resource_type=7, operation=13),
    )
    for place, numbers in (
        ("resource_type", (-1, 8)),
        ("resource_pattern_type", (-1, 5)),
        ("operation", (-1, 16)),
        ("permission_type", (-1, 4)),
    ):
        for number in numbers:
            yield create(f"{place} {number}", _acl("wrong", **{place: number}), _acl("right"))
        yield create(f"ANY as {place}", _acl("wrong", **{place: 1}), _acl("right"))
    yield create("an unknown operation", _acl("wrong", operation=0))
    yield create("no name", _acl(""))
    yield create("another name of the cluster", _acl("cluster", resource_type=4))
    yield create("principal without a type", _acl(principal="alice"))
    yield create("principal with an empty type", _acl(principal=":alice"))
    yield create("principal without a name", _acl(principal="User:"))
    yield create("a group as principal", _acl(principal="Group:staff"))
    yield create("no host", _acl(host=""))
    yield create("a network as host", _acl(host="10.1.2.3/16"))
    yield create("an IPv6 network as host", _acl(host="fd00::1/8"))
    yield create("a prefix that is too long", _acl(host="10.0.0.0/33"))
    yield create("a network mask", _acl(host="10.0.0.0/255.0.0.0"))
    yield create("a network without an address", _acl(host="/8"))
    for wanted in ACL_FILTERS:
        yield ask(f"acls: describe {wanted}", ApiKey.DESCRIBE_ACLS, **ANY_ACL | wanted)
    delete = ApiKey.DELETE_ACLS
    yield ask(
        "acls: describe by an unknown operation", ApiKey.DESCRIBE_ACLS, **ANY_ACL | {"operation": 0}
    )
    unknown = of(delete, "Filter", **ANY_ACL | {"operation": 0})
    yield change("acls: delete by an unknown operation", delete, filters=[unknown])
    for wanted in ACL_FILTERS[3:]:
        row = of(delete, "Filter", **ANY_ACL | wanted)
        yield change(f"acls: delete {wanted}", delete, filters=[row])
    several = [of(delete, "Filter", **ANY_ACL | {"operation": number}) for number in (3, 3, 5)]
    yield change("acls: delete several", delete, filters=several)
    yield change("acls: delete with no filter", delete, filters=[])
    yield ask("acls: describe the rest", ApiKey.DESCRIBE_ACLS, **ANY_ACL)
    yield change("acls: delete the rest", delete, filters=[of(delete, "Filter", **ANY_ACL)])


def admin_calls() -> Iterator[Call]:
    """Yield all calls in an order in which later ones can refer to earlier ones."""
    yield ask("metadata: at first", ApiKey.METADATA, range(1, 99), topics=[])
    yield from creations()
    yield from growth()
    yield from metadata()
    yield from topic_partitions()
    yield from records()
    yield from producers()
    yield from cluster()
    yield from elections()
    yield from reassignments()
    yield from quorum()
    yield from features()
    yield from settings()
    yield from log_dirs()
    yield from delegation_tokens()
    yield from scram_users()
    yield from client_quotas()
    yield from cordons()
    yield from logins()
    yield from acls()
    yield from groups()
    yield from deletions()
    hello = {"client_software_name": "differential", "client_software_version": "1.0"}
    yield ask("versions", ApiKey.API_VERSIONS, **hello)
