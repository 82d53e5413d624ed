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
from .dead_letters import DeadLetter
from .fault import NO_REGISTRY
from .fault_arguments import parse_call_rule, parse_rule
from .kafka_record import KafkaRecord
from .kit import WAIT_SECONDS, Value
from .local import LocalBroker
from .schedule import AnyRule
from .snapshot import Snapshot

logger = logging.getLogger(__name__)

Command = dict[str, Any]
Response = dict[str, Any]
# Opens a control port for a new broker, and returns the addresses of both.
OpenControlPort = Callable[[LocalBroker], Response]
# Exceptions that an invalid command causes, for example by wrong arguments.
EXPECTED_ERRORS = (
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

    Commands refer to faults and snapshots by number: the first one is 1.

    Args:
        broker: The broker.
        thread: Thread of the brokers that commands create.
        open_control_port: Opens a control port for a broker that a command has created.
        closable: True if a command may close the broker, because a command has created it.
    """

    def __init__(
        self,
        broker: LocalBroker,
        thread: BrokerThread,
        open_control_port: OpenControlPort,
        *,
        closable: bool,
    ) -> None:
        self._broker = broker
        self._thread = thread
        self._open_control_port = open_control_port
        self._closable = closable
        self._rules = NumberedObjects[AnyRule]("fault")
        self._snapshots = NumberedObjects[Snapshot]("snapshot")
        # True once a command has closed the broker.
        self.closed = False
        self._commands = (
            self._data_commands()
            | self._wait_commands()
            | self._fault_commands()
            | self._node_commands()
            | self._lifecycle_commands()
        )

    def execute(self, command: Command) -> Response:
        """Run a command. Return its response; an exception becomes a response with `ok` false."""
        arguments = dict(command)
        try:
            name = arguments.pop("do")
            handler = self._commands.get(name) if isinstance(name, str) else None
            if handler is None:
                raise ValueError(
                    f"there is no command {name!r} (valid: {', '.join(sorted(self._commands))})"
                )
            return {"ok": True, **_call_handler(handler, arguments, name)}
        except EXPECTED_ERRORS as error:
            return {"ok": False, "error": str(error)}
        except Exception as error:  # a bug; keep accepting commands
            logger.exception("control command failed: %s", command)
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}

    # -- topics, records, groups

    def _data_commands(self) -> dict[str, Callable[..., Response]]:
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
            "configure_group": _without_result(broker.configure_group),
            "dead_letters": lambda group: _dead_letters_to_json(broker.dead_letters(group)),
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
    ) -> Response:
        record = self._broker.produce(
            topic,
            _from_json(value),
            key=_from_json(key),
            partition=partition,
            headers=[(name, _from_json(each)) for name, each in headers],
            timestamp=timestamp,
        )
        return {"record": _record_to_json(record)}

    def _records(self, topic: str, committed: bool = True) -> Response:
        return _records_to_json(self._broker.records(topic, committed=committed))

    def _group(self, group: str) -> Response:
        found = self._broker.group(group)
        return {"group": found and _group_to_json(found)}

    def _committed(self, group: str) -> Response:
        offsets = self._broker.committed(group)
        return {"committed": [[*partition, offset] for partition, offset in offsets.items()]}

    def _explain(
        self,
        group: str | None = None,
        topic: str | None = None,
        partition: int = 0,
        transactional_id: str | None = None,
        client_id: str | None = None,
    ) -> Response:
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

    def _wait_commands(self) -> dict[str, Callable[..., Response]]:
        broker = self._broker
        return {
            "wait_for": self._wait_for,
            "expect": self._expect,
            "expect_nothing": _without_result(broker.expect_nothing),
            "wait_for_group": self._wait_for_group,
            "wait_for_assignment": self._wait_for_assignment,
            "wait_for_commit": _without_result(broker.wait_for_commit),
            "wait_for_lag": _without_result(broker.wait_for_lag),
            "wait_for_dead_letters": self._wait_for_dead_letters,
            "wait_for_request": _without_result(broker.wait_for_request),
            "wait_until_idle": _without_result(broker.wait_until_idle),
        }

    def _wait_for(self, topic: str, count: int = 1, timeout: float = WAIT_SECONDS) -> Response:
        return _records_to_json(self._broker.wait_for(topic, count, timeout=timeout))

    def _expect(
        self,
        topic: str,
        key: object = None,
        value: object = None,
        json: Mapping[str, object] | None = None,
        timeout: float = WAIT_SECONDS,
    ) -> Response:
        expected = self._broker.expect(topic)
        if key is not None:
            expected.key(_from_json(key))
        if value is not None:
            expected.value(_from_json(value))
        if json is not None:
            expected.json(**json)
        return {"record": _record_to_json(expected.within(timeout))}

    def _wait_for_group(
        self,
        group: str,
        members: int | None = None,
        state: str | None = "Stable",
        timeout: float = WAIT_SECONDS,
    ) -> Response:
        return {
            "group": _group_to_json(self._broker.wait_for_group(group, members, state, timeout))
        }

    def _wait_for_assignment(
        self, group: str, partitions: Iterable[Any], timeout: float = WAIT_SECONDS
    ) -> Response:
        found = self._broker.wait_for_assignment(group, partitions, timeout)
        return {"group": _group_to_json(found)}

    def _wait_for_dead_letters(
        self, group: str, count: int = 1, timeout: float = WAIT_SECONDS
    ) -> Response:
        return _dead_letters_to_json(self._broker.wait_for_dead_letters(group, count, timeout))

    # -- faults, state changes, clocks

    def _fault_commands(self) -> dict[str, Callable[..., Response]]:
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

    def _fault(self, **arguments: object) -> Response:
        return self._arm(parse_rule(arguments))

    def _registry_fault(self, **arguments: object) -> Response:
        rule = parse_call_rule(arguments)
        if not self._broker.has_schema_registry:
            raise ValueError(NO_REGISTRY)
        return self._arm(rule)

    def _arm(self, rule: AnyRule) -> Response:
        number = self._rules.add(rule)
        self._broker.faults.arm(rule)
        return {"fault": number}

    def _hits(self, fault: int, wait: int = 0, timeout: float = WAIT_SECONDS) -> Response:
        rule = self._rules[fault]
        if wait:
            self._broker.wait_for_hits(rule, wait, timeout)
        return {"hits": rule.hits, "near_misses": self._broker.faults.near_misses(rule)}

    def _disarm(self, fault: int) -> Response:
        rule = self._rules[fault]
        if rule not in self._broker.faults.rules:
            raise ValueError(f"fault {fault} is already disarmed")
        self._broker.faults.disarm(rule)
        return {}

    def _fence_producer(
        self, producer_id: int | None = None, transactional_id: str | None = None
    ) -> Response:
        fenced = self._broker.fence_producer(producer_id, transactional_id=transactional_id)
        return {"producer_ids": fenced}

    def _offset_out_of_range(self, topic: str, partition: int = 0) -> Response:
        return {"offset": self._broker.offset_out_of_range(topic, partition)}

    def _advance(
        self,
        clock: str = "log",
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        keep_members: bool = False,
    ) -> Response:
        span = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
        if clock == "log":
            self._broker.clock.advance(**span)
        elif clock == "coordinator":
            self._broker.clock.coordinator.advance(**span, keep_members=keep_members)
        else:
            raise ValueError(f"invalid clock {clock!r} (valid: log, coordinator)")
        return {}

    # -- nodes

    def _node_commands(self) -> dict[str, Callable[..., Response]]:
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

    # -- lifecycle: stops, crashes, disks, snapshots, credentials, other brokers

    def _lifecycle_commands(self) -> dict[str, Callable[..., Response]]:
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
    ) -> Response:
        found = self._broker.client(user, password=password, mechanism=mechanism, token=token)
        return {"properties": found.java, "authority": found.authority}

    def _token(self, user: str, claims: Mapping[str, object] | None = None) -> Response:
        return {"token": self._broker.token(user, **(claims or {}))}

    def _allow(self, user: str, rights: Iterable[str]) -> Response:
        self._broker.allow(user, *rights)
        return {}

    def _disk_fail(self, operation: str, error: str = "EIO") -> Response:
        numbers = {name: number for number, name in errno.errorcode.items()}
        if error not in numbers:
            raise ValueError(f"invalid error {error!r}: pass a name of errno, as EIO or ENOSPC")
        self._broker.disk.fail(operation, numbers[error])
        return {}

    def _disk_full(self, topic: str | None = None, partition: int = 0, free: int = 0) -> Response:
        self._broker.disk.full(topic, partition, free=free)
        return {}

    def _disk_slow(self, ms: float) -> Response:
        self._broker.disk.slow(ms)
        return {}

    def _disk_flip(self, topic: str, partition: int, offset: int, bit: int = 0) -> Response:
        self._broker.disk.flip(topic, partition, offset, bit)
        return {}

    def _save(self, snapshot: int, directory: str) -> Response:
        self._snapshots[snapshot].save(directory)
        return {}

    def _restore(self, snapshot: int) -> Response:
        self._broker.restore(self._snapshots[snapshot])
        return {}

    def _fork(self, snapshot: int | None = None) -> Response:
        chosen = None if snapshot is None else self._snapshots[snapshot]
        return self._open_control_port(self._broker.fork(chosen))

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
    ) -> Response:
        broker = LocalBroker(
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
        return self._open_control_port(broker)

    def _close(self) -> Response:
        if not self._closable:
            raise ValueError("cannot close the main broker; use `stop` and `start`")
        self.closed = True
        self._broker.close()
        self._broker.check_faults()
        return {}


class NumberedObjects(Generic[T]):
    """Objects that one command creates and later commands identify by a number, from 1."""

    def __init__(self, type_name: str) -> None:
        self._type_name = type_name
        self._numbers = itertools.count(1)
        self._objects: dict[int, T] = {}

    def add(self, added: T) -> int:
        number = next(self._numbers)
        self._objects[number] = added
        return number

    def __getitem__(self, number: int) -> T:
        if number not in self._objects:
            raise ValueError(f"there is no {self._type_name} {number}")
        return self._objects[number]


def _call_handler(
    handler: Callable[..., Response], arguments: Mapping[str, object], name: str
) -> Response:
    try:
        bound = inspect.signature(handler).bind(**arguments)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None
    return handler(*bound.args, **bound.kwargs)


def _without_result(method: Callable[..., object]) -> Callable[..., Response]:
    """Wrap a method as a command whose response has no result."""

    @functools.wraps(method)
    def handler(*args: object, **arguments: object) -> Response:
        method(*args, **arguments)
        return {}

    return handler


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


def _record_to_json(record: KafkaRecord) -> Response:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _to_json(record.key),
        "value": _to_json(record.value),
        "headers": [[name, _to_json(value)] for name, value in record.headers],
    }


def _records_to_json(records: Iterable[KafkaRecord]) -> Response:
    return {"records": [_record_to_json(record) for record in records]}


def _dead_letters_to_json(letters: Iterable[DeadLetter]) -> Response:
    rows = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "offset": each.offset,
            "delivery_count": each.delivery_count,
            "reason": each.reason,
            "record": _record_to_json(each.record),
        }
        for each in letters
    ]
    return {"dead_letters": rows}


def _group_to_json(group: Group) -> Response:
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
