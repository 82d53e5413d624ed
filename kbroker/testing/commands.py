"""Commands to a broker under test: JSON objects, one per line.

A command names a method of `LocalBroker` in the field `do`; other fields are its arguments. A
response has the field `ok`, and `error` if `ok` is false.
"""

from __future__ import annotations

import base64
import errno
import functools
import inspect
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from kbroker.client.errors import ClientError
from kbroker.client.groups import Group
from kbroker.net.server import CannotListen
from kbroker.protocol.errors import KafkaError
from kbroker.text.documents import read_json

from .broker_thread import BrokerThread
from .fault import NO_REGISTRY
from .fault_arguments import parse_call_rule, parse_rule
from .kit import WAIT_SECONDS, KafkaRecord, Value
from .local import LocalBroker
from .schedule import AnyRule
from .snapshot import Snapshot

logger = logging.getLogger(__name__)

Command = dict[str, Any]
Answer = dict[str, Any]
# Opens a control port for a new broker, and returns its description.
Opened = Callable[[LocalBroker], Answer]
# Errors of commands with wrong arguments, or about objects that do not exist.
EXPECTED = (
    *(ValueError, TypeError, AssertionError, RuntimeError, OSError),
    *(KafkaError, ClientError, CannotListen),
)
T = TypeVar("T")


class InvalidCommand(ValueError):
    """A line is not a command; the message has the reason."""


def parse_command(line: bytes) -> Command:
    """Parse a line.

    Raises:
        InvalidCommand: The line is not a JSON object with `do`.
    """
    try:
        command = read_json(line)
    except ValueError as error:
        raise InvalidCommand(f"a command must be a JSON object: {error}") from None
    if not isinstance(command, dict) or "do" not in command:
        raise InvalidCommand('a command must be a JSON object with the field "do"')
    return command


class CommandExecutor:
    """Executor of commands for one broker. Several threads may call it.

    Faults and snapshots are numbered in the order in which they are created.

    Args:
        broker: The broker.
        thread: Thread of the brokers that commands create.
        opened: Opens a control port for a broker that a command has created.
        closable: True if a command may close the broker, because a command has created it.
    """

    def __init__(
        self, broker: LocalBroker, thread: BrokerThread, opened: Opened, *, closable: bool
    ) -> None:
        self._broker = broker
        self._thread = thread
        self._opened = opened
        self._closable = closable
        self._rules = NumberedObjects[AnyRule]("fault")
        self._snapshots = NumberedObjects[Snapshot]("snapshot")
        # True once a command has closed the broker.
        self.closed = False
        self._verbs = (
            self._on_data()
            | self._on_waits()
            | self._on_faults()
            | self._on_nodes()
            | self._on_life()
        )

    def execute(self, command: Command) -> Answer:
        """Run a command. Return its response, also if it fails."""
        words = dict(command)
        try:
            name = words.pop("do")
            verb = self._verbs.get(name) if isinstance(name, str) else None
            if verb is None:
                raise ValueError(
                    f"there is no command {name!r} (valid: {', '.join(sorted(self._verbs))})"
                )
            return {"ok": True, **_call(verb, words, name)}
        except EXPECTED as error:
            return {"ok": False, "error": str(error)}
        except Exception as error:  # a bug; keep accepting commands
            logger.exception("control command failed: %s", command)
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}

    # -- topics, records, groups

    def _on_data(self) -> dict[str, Callable[..., Answer]]:
        broker = self._broker
        return {
            "create_topic": _without_result(broker.create_topic),
            "delete_topic": _without_result(broker.delete_topic),
            "topics": lambda: {"topics": broker.topics()},
            "produce": self._produce,
            "records": self._records,
            "group": self._group,
            "committed": self._committed,
            "lag": lambda group: {"lag": broker.lag(group)},
            "explain": self._explain,
            "report": lambda: {"report": broker.report()},
        }

    def _produce(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        partition: int | None = None,
        headers: Iterable[tuple[str, object]] = (),
        timestamp: int | None = None,
    ) -> Answer:
        record = self._broker.produce(
            topic,
            _from_json(value),
            key=_from_json(key),
            partition=partition,
            headers=[(name, _from_json(each)) for name, each in headers],
            timestamp=timestamp,
        )
        return {"record": _record(record)}

    def _records(self, topic: str, committed: bool = True) -> Answer:
        return _listed(self._broker.records(topic, committed=committed))

    def _group(self, group: str) -> Answer:
        found = self._broker.group(group)
        return {"group": found and _described(found)}

    def _committed(self, group: str) -> Answer:
        offsets = self._broker.committed(group)
        return {"committed": [[*partition, offset] for partition, offset in offsets.items()]}

    def _explain(
        self,
        group: str | None = None,
        topic: str | None = None,
        partition: int = 0,
        transactional_id: str | None = None,
        client_id: str | None = None,
    ) -> Answer:
        explain = self._broker.explain
        match group, topic, transactional_id, client_id:
            case str(), None, None, None:
                return {"text": explain.group(group)}
            case str(), str(), None, None:
                return {"text": explain.share(group, topic, partition)}
            case None, str(), None, None:
                return {"text": explain.partition(topic, partition)}
            case None, None, str(), None:
                return {"text": explain.transaction(transactional_id)}
            case None, None, None, str():
                return {"text": explain.client(client_id)}
        raise ValueError(
            "explain: pass a group, a topic and partition, all three (for a share group), a "
            "transactional_id, or a client_id"
        )

    # -- waits

    def _on_waits(self) -> dict[str, Callable[..., Answer]]:
        broker = self._broker
        return {
            "wait_for": self._wait_for,
            "expect": self._expect,
            "expect_nothing": _without_result(broker.expect_nothing),
            "wait_for_group": self._wait_for_group,
            "wait_for_assignment": self._wait_for_assignment,
            "wait_for_commit": _without_result(broker.wait_for_commit),
            "wait_for_lag": _without_result(broker.wait_for_lag),
            "wait_for_request": _without_result(broker.wait_for_request),
            "wait_until_idle": _without_result(broker.wait_until_idle),
        }

    def _wait_for(self, topic: str, count: int = 1, timeout: float = WAIT_SECONDS) -> Answer:
        return _listed(self._broker.wait_for(topic, count, timeout=timeout))

    def _expect(
        self,
        topic: str,
        key: object = None,
        value: object = None,
        json: Mapping[str, object] | None = None,
        timeout: float = WAIT_SECONDS,
    ) -> Answer:
        expected = self._broker.expect(topic)
        if key is not None:
            expected.key(_from_json(key))
        if value is not None:
            expected.value(_from_json(value))
        if json is not None:
            expected.json(**json)
        return {"record": _record(expected.within(timeout))}

    def _wait_for_group(
        self,
        group: str,
        members: int | None = None,
        state: str | None = "Stable",
        timeout: float = WAIT_SECONDS,
    ) -> Answer:
        return {"group": _described(self._broker.wait_for_group(group, members, state, timeout))}

    def _wait_for_assignment(
        self, group: str, partitions: Iterable[Any], timeout: float = WAIT_SECONDS
    ) -> Answer:
        found = self._broker.wait_for_assignment(group, partitions, timeout)
        return {"group": _described(found)}

    # -- faults, events, time

    def _on_faults(self) -> dict[str, Callable[..., Answer]]:
        broker, clock = self._broker, self._broker.clock
        return {
            "fault": self._fault,
            "registry_fault": self._registry_fault,
            "hits": self._hits,
            "disarm": self._disarm,
            "disarm_faults": _without_result(broker.disarm_faults),
            "check": _without_result(broker.check_faults),
            "move_leader": _without_result(broker.move_leader),
            "move_coordinator": _without_result(broker.move_coordinator),
            "expire_member": lambda group, member: {"members": broker.expire_member(group, member)},
            "fence_producer": self._fence_producer,
            "abort_transaction": _without_result(broker.abort_transaction),
            "expire_transaction": _without_result(broker.expire_transaction),
            "offset_out_of_range": self._offset_out_of_range,
            "cap_versions": _without_result(broker.cap_versions),
            "advance": self._advance,
            "freeze": _without_result(clock.freeze),
            "resume": _without_result(clock.resume),
            "now": lambda: {"ms": clock.now_ms()},
        }

    def _fault(self, **words: object) -> Answer:
        return self._armed(parse_rule(words))

    def _registry_fault(self, **words: object) -> Answer:
        rule = parse_call_rule(words)
        if not self._broker.has_schema_registry:
            raise ValueError(NO_REGISTRY)
        return self._armed(rule)

    def _armed(self, rule: AnyRule) -> Answer:
        number = self._rules.add(rule)
        self._broker.faults.arm(rule)
        return {"fault": number}

    def _hits(self, fault: int, wait: int = 0, timeout: float = WAIT_SECONDS) -> Answer:
        rule = self._rules[fault]
        if wait:
            self._broker.wait_for_hits(rule, wait, timeout)
        return {"hits": rule.hits, "near_misses": self._broker.faults.near_misses(rule)}

    def _disarm(self, fault: int) -> Answer:
        rule = self._rules[fault]
        if rule not in self._broker.faults.rules:
            raise ValueError(f"fault {fault} is already disarmed")
        self._broker.faults.disarm(rule)
        return {}

    def _fence_producer(
        self, producer_id: int | None = None, transactional_id: str | None = None
    ) -> Answer:
        fenced = self._broker.fence_producer(producer_id, transactional_id=transactional_id)
        return {"producer_ids": fenced}

    def _offset_out_of_range(self, topic: str, partition: int = 0) -> Answer:
        return {"offset": self._broker.offset_out_of_range(topic, partition)}

    def _advance(
        self,
        clock: str = "log",
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        keep_members: bool = False,
    ) -> Answer:
        span = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
        if clock == "log":
            self._broker.clock.advance(**span)
        elif clock == "coordinator":
            self._broker.clock.coordinator.advance(**span, keep_members=keep_members)
        else:
            raise ValueError(f"invalid clock {clock!r} (valid: log, coordinator)")
        return {}

    # -- nodes

    def _on_nodes(self) -> dict[str, Callable[..., Answer]]:
        broker = self._broker
        return {
            "nodes": lambda: {"nodes": [each._asdict() for each in broker.nodes()]},
            "stop_node": lambda node: _without_result(broker.stop_node)(node),
            "crash_node": lambda node: _without_result(broker.crash_node)(node),
            "start_node": lambda node: _without_result(broker.start_node)(node),
            "add_node": lambda rack=None: {"node": broker.add_node(rack=rack)},
            "remove_node": lambda node: _without_result(broker.remove_node)(node),
            "cut_link": _without_result(broker.cut_link),
            "heal_links": _without_result(broker.heal_links),
        }

    # -- stops, crashes, snapshots, more brokers

    def _on_life(self) -> dict[str, Callable[..., Answer]]:
        broker = self._broker
        return {
            "stop": _without_result(broker.stop),
            "start": _without_result(broker.start),
            "restart": _without_result(broker.restart),
            "crash_at": _without_result(broker.crash_at),
            "wait_for_crash": _without_result(broker.wait_for_crash),
            "power_cut": _without_result(broker.power_cut),
            "disk_fail": self._disk_fail,
            "disk_full": self._disk_full,
            "disk_free_space": lambda: _without_result(broker.disk.free_space)(),
            "disk_slow": self._disk_slow,
            "disk_flip": self._disk_flip,
            "disk_tear_last_write": lambda: _without_result(broker.disk.tear_last_write)(),
            "snapshot": lambda: {"snapshot": self._snapshots.add(broker.snapshot())},
            "load": lambda directory: {"snapshot": self._snapshots.add(Snapshot.load(directory))},
            "save": self._save,
            "restore": self._restore,
            "fork": self._fork,
            "open": self._open,
            "close": self._close,
            "client": self._client,
            "token": self._token,
            "allow": self._allow,
        }

    def _client(
        self,
        user: str | None = None,
        password: str | None = None,
        mechanism: str | None = None,
        token: str | None = None,
    ) -> Answer:
        found = self._broker.client(user, password=password, mechanism=mechanism, token=token)
        return {"properties": found.java, "authority": found.authority}

    def _token(self, user: str, claims: Mapping[str, object] | None = None) -> Answer:
        return {"token": self._broker.token(user, **(claims or {}))}

    def _allow(self, user: str, rights: Iterable[str]) -> Answer:
        self._broker.allow(user, *rights)
        return {}

    def _disk_fail(self, operation: str, error: str = "EIO") -> Answer:
        numbers = {name: number for number, name in errno.errorcode.items()}
        if error not in numbers:
            raise ValueError(f"invalid error {error!r}: pass a name of errno, as EIO or ENOSPC")
        self._broker.disk.fail(operation, numbers[error])
        return {}

    def _disk_full(self, topic: str | None = None, partition: int = 0, free: int = 0) -> Answer:
        self._broker.disk.full(topic, partition, free=free)
        return {}

    def _disk_slow(self, ms: float) -> Answer:
        self._broker.disk.slow(ms)
        return {}

    def _disk_flip(self, topic: str, partition: int, offset: int, bit: int = 0) -> Answer:
        self._broker.disk.flip(topic, partition, offset, bit)
        return {}

    def _save(self, snapshot: int, directory: str) -> Answer:
        self._snapshots[snapshot].save(directory)
        return {}

    def _restore(self, snapshot: int) -> Answer:
        self._broker.restore(self._snapshots[snapshot])
        return {}

    def _fork(self, snapshot: int | None = None) -> Answer:
        held = None if snapshot is None else self._snapshots[snapshot]
        return self._opened(self._broker.fork(held))

    def _open(
        self,
        topics: Mapping[str, int] | None = None,
        config: Mapping[str, object] | None = None,
        disk: bool = False,
        nodes: int = 1,
        tls: bool = False,
        users: Mapping[str, str] | None = None,
        tokens: Iterable[str] = (),
        certificates: Iterable[str] = (),
        acls: Mapping[str, list[str]] | None = None,
        super_users: Iterable[str] = (),
        schema_registry: bool = False,
    ) -> Answer:
        fresh = LocalBroker(
            topics=topics,
            config=config,
            disk=disk,
            nodes=nodes,
            tls=tls,
            users=users,
            tokens=list(tokens),
            certificates=list(certificates),
            acls=acls,
            super_users=list(super_users),
            schema_registry=schema_registry,
            thread=self._thread,
        )
        return self._opened(fresh)

    def _close(self) -> Answer:
        if not self._closable:
            raise ValueError("cannot close the main broker; use `stop` and `start`")
        self.closed = True
        self._broker.close()
        self._broker.check_faults()
        return {}


class NumberedObjects(Generic[T]):
    """Objects that commands create and other commands identify by number, from 1."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._numbers = itertools.count(1)
        self._things: dict[int, T] = {}

    def add(self, thing: T) -> int:
        number = next(self._numbers)
        self._things[number] = thing
        return number

    def __getitem__(self, number: int) -> T:
        if number not in self._things:
            raise ValueError(f"there is no {self._what} {number}")
        return self._things[number]


def _call(verb: Callable[..., Answer], words: Mapping[str, object], name: str) -> Answer:
    try:
        bound = inspect.signature(verb).bind(**words)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None
    return verb(*bound.args, **bound.kwargs)


def _without_result(method: Callable[..., object]) -> Callable[..., Answer]:
    """Wrap a method as a command whose response has no result."""

    @functools.wraps(method)
    def verb(*args: object, **words: object) -> Answer:
        method(*args, **words)
        return {}

    return verb


# -- values


def _from_json(value: Any) -> Value:
    """Return the value to produce: {"base64": TEXT} becomes bytes, anything else is unchanged."""
    match value:
        case {"base64": str(text), **more} if not more:
            return base64.b64decode(text, validate=True)
    found: Value = value
    return found


def _to_json(data: bytes | None) -> object:
    """Return bytes as a string if they are UTF-8, else as {"base64": TEXT}."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _record(record: KafkaRecord) -> Answer:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _to_json(record.key),
        "value": _to_json(record.value),
        "headers": [[name, _to_json(value)] for name, value in record.headers],
    }


def _listed(records: Iterable[KafkaRecord]) -> Answer:
    return {"records": [_record(record) for record in records]}


def _described(group: Group) -> Answer:
    members = [
        {
            "id": member.id,
            "instance_id": member.instance_id,
            "client_id": member.client_id,
            "host": member.host,
            "partitions": [list(partition) for partition in member.partitions],
        }
        for member in group.members
    ]
    return {
        "state": group.state,
        "type": group.type,
        "assignor": group.assignor,
        "members": members,
    }
