"""Two foreign codecs behind one interface. They are test dependencies only."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import pkgutil
import random
import typing
import warnings
from functools import cache
from typing import Any, Protocol
from uuid import UUID

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.schema import ZERO_UUID

from .samples import ALPHABET, Pair

# Pairs that the oracles do not have yet; `test_messages_4_4` compares them with Kafka's bytes.
NEW_IN_4_4: frozenset[Pair] = frozenset(
    (key, version, kind)
    for key, version in (
        (ApiKey.API_VERSIONS, 5),
        (ApiKey.DELETE_GROUPS, 3),
        (ApiKey.TXN_OFFSET_COMMIT, 6),
        (ApiKey.STREAMS_GROUP_HEARTBEAT, 1),
        (ApiKey.STREAMS_GROUP_DESCRIBE, 1),
        (ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, 0),
        (ApiKey.UNREGISTER_CONTROLLER, 0),
    )
    for kind in ("request", "response")
)
# Fields that Kafka 4.4 renamed: the name in the oracles and the present name.
RENAMED = {
    ApiKey.TXN_OFFSET_COMMIT: ("generation_id", "generation_id_or_member_epoch"),
    ApiKey.STREAMS_GROUP_HEARTBEAT: ("acceptable_recovery_lag", "acceptable_recovery_lag_legacy"),
}


def with_present_names(key: int, values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an oracle's message with their names in Kafka 4.4."""
    old, new = RENAMED.get(ApiKey(key), ("", ""))
    return {new if name == old else name: value for name, value in values.items()}


class Oracle(Protocol):
    """A foreign codec."""

    name: str
    skips_unknown_tags: bool

    def pairs(self) -> set[Pair]:
        """Return the supported API keys, versions and directions."""

    def read(self, pair: Pair, data: bytes) -> Any:
        """Decode all of `data`. Any exception means failure."""

    def write(self, pair: Pair, value: Any) -> bytes:
        """Encode what `read` or `make` returned."""

    def plain(self, pair: Pair, value: Any) -> dict[str, Any]:
        """Convert the result of `read` to dictionaries with kbroker's field names."""

    def make(self, pair: Pair, rng: random.Random) -> Any:
        """Return a random message from the oracle's schema."""


def random_primitive(kind: str, name: str, rng: random.Random) -> Any:
    """Return a random value for a field of type `kind` in Kafka's schemas."""
    if kind == "error_code" or (kind == "int16" and name.endswith("error_code")):
        return rng.randint(-1, 133)
    if kind.startswith("int"):
        bits = int(kind[3:])
        edge = 2 ** (bits - 1)
        return rng.choice((0, -1, 1, -edge, edge - 1, rng.randrange(-edge, edge)))
    if kind == "uint16":
        return rng.randrange(0x10000)
    if kind == "float64":
        return rng.choice((0.0, -2.25, rng.random()))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "uuid":
        return rng.choice((ZERO_UUID, UUID(int=rng.getrandbits(128))))
    size = rng.choice((0, 1, 20, 127, 130))
    if kind == "string":
        return "".join(rng.choices(ALPHABET, k=size))
    return rng.randbytes(size)


class KafkaPython:
    """The codec of kafka-python 3."""

    name = "kafka-python"
    skips_unknown_tags = True

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # raised while it loads resources
            for family in ("admin", "consumer", "metadata", "producer", "sasl"):
                importlib.import_module(f"kafka.protocol.{family}")
            from kafka.protocol.api_message import ApiMessage
            from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

        self._decode: Any = vars(ApiMessage)["decode"].__func__
        self._classes: dict[tuple[int, str], Any] = {}
        for cls in _subclasses(ApiMessage):
            if getattr(cls, "_json", None) and cls._class_version is None:
                self._classes[cls.API_KEY, cls.type] = cls
        # Versions that Kafka 4.3 advertises, recorded: lowest and highest version by key.
        self.advertised: dict[int, tuple[int, int]] = BROKER_API_VERSIONS[(4, 3)]

    def pairs(self) -> set[Pair]:
        return {
            (key, version, kind)
            for (key, kind), cls in self._classes.items()
            for version in range(cls.max_version + 1)
        }

    def read(self, pair: Pair, data: bytes) -> Any:
        key, version, kind = pair
        # Bypasses kafka-python's decode: ApiVersionsResponse falls back to version 0 on any error.
        value = self._decode(self._classes[key, kind], data, version=version)
        value._header = None  # not set by decode, but required by encode
        return value

    def write(self, pair: Pair, value: Any) -> bytes:
        return bytes(value.encode(version=pair[1]))

    def frame(self, pair: Pair, value: Any, correlation_id: int, client_id: str) -> bytes:
        """Return a complete frame of a message, with length and header."""
        value.API_VERSION = pair[1]
        value.with_header(correlation_id=correlation_id, client_id=client_id)
        return bytes(value.encode(header=True, framed=True))

    def plain(self, pair: Pair, value: Any) -> dict[str, Any]:
        return self._plain(value, pair[1])

    def _plain(self, value: Any, version: int) -> dict[str, Any]:
        return {
            self._our_name(value, field): self._plain_value(
                field, getattr(value, field.name), version
            )
            for field in value._struct._fields
            if field.for_version_q(version)
        }

    def _our_name(self, value: Any, field: Any) -> str:
        if field.type_str != "bitfield":
            return str(field.name)
        # kafka-python omits the prefix that Kafka's schemas have.
        owner = {"MetadataResponseTopic": "topic_", "DescribedGroup": ""}
        return owner.get(type(value).__name__, "cluster_") + "authorized_operations"

    def _plain_value(self, field: Any, value: Any, version: int) -> Any:
        if field.type_str == "uuid":
            return value or ZERO_UUID
        if field._json["type"] == "[]uuid" and value is not None:
            return [item or ZERO_UUID for item in value]
        if field._json["type"] == "bitfield":
            bits = sum(1 << bit for bit in ({31} if value is None else value))
            return bits - 2**32 if bits >= 2**31 else bits
        if value is None:
            return None
        if field.is_struct_array():
            return [self._plain(item, version) for item in value]
        return self._plain(value, version) if field.is_struct() else value

    def make(self, pair: Pair, rng: random.Random) -> Any:
        key, version, kind = pair
        cls = self._classes[key, kind]
        return self._make(cls._struct, cls, version, rng)

    def _make(self, struct: Any, cls: Any, version: int, rng: random.Random) -> Any:
        values = {
            field.name: self._make_value(field, version, rng)
            for field in struct._fields
            if field.for_version_q(version)
        }
        return cls(version=version, **values)

    def _make_value(self, field: Any, version: int, rng: random.Random) -> Any:
        if field.nullable_for_version_q(version) and rng.random() < 0.3:
            return None
        if field.is_struct_array():
            return [
                self._make(field.array_of, field.data_class, version, rng)
                for _ in range(rng.randint(0, 2))
            ]
        if field.is_struct():
            made = self._make(field, field.data_class, version, rng)
            unset = field.tag is not None and made == field.data_class(version=version)
            return None if unset else made  # its encoder does not omit defaults
        kind = field._json["type"]
        if field.is_array():
            kind = kind.removeprefix("[]")
            return [random_primitive(kind, field.name, rng) for _ in range(rng.randint(0, 3))]
        if kind == "bitfield":
            return {bit for bit in range(31) if rng.random() < 0.5}
        value = random_primitive(kind, field.name, rng)
        return None if value == ZERO_UUID else value


class Kio:
    """kio: generated classes, one per version."""

    name = "kio"
    skips_unknown_tags = False  # it raises KeyError

    def __init__(self) -> None:
        from kio.schema.index import api_key_map
        from kio.serial import entity_reader, entity_writer

        self._reader, self._writer = entity_reader, entity_writer
        self._packages = {
            key: f"kio.schema.{api_key_map[key]}" for key in ApiKey if key in api_key_map
        }
        self._pairs = {
            (int(key), int(module.name[1:]), kind)
            for key, package in self._packages.items()
            for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
            for kind in ("request", "response")
        }

    def pairs(self) -> set[Pair]:
        return self._pairs

    def _class(self, pair: Pair) -> Any:
        key, version, kind = pair
        module = importlib.import_module(f"{self._packages[ApiKey(key)]}.v{version}.{kind}")
        # The message class is last, after its nested structs.
        return [cls for cls in vars(module).values() if _defined_in(cls, module.__name__)][-1]

    def read(self, pair: Pair, data: bytes) -> Any:
        value, size = self._reader(self._class(pair))(data, 0)
        if size != len(data):
            raise ValueError(f"{len(data) - size} bytes are left")
        return value

    def write(self, pair: Pair, value: Any) -> bytes:
        buffer = io.BytesIO()
        self._writer(type(value))(buffer, value)
        return buffer.getvalue()

    def plain(self, pair: Pair, value: Any) -> dict[str, Any]:
        return {
            self._our_name(field): self._plain_value(field, getattr(value, field.name))
            for field in dataclasses.fields(value)
        }

    def _our_name(self, field: dataclasses.Field[Any]) -> str:
        kind = field.metadata.get("kafka_type", "")
        return field.name + ("_ms" if kind.startswith(("timedelta", "datetime")) else "")

    def _plain_value(self, field: dataclasses.Field[Any], value: Any) -> Any:
        kind = field.metadata.get("kafka_type", "")
        if isinstance(value, tuple):
            return [self._plain_value(field, item) for item in value]
        if kind == "uuid" and value is None and "tuple" not in str(field.type):
            return ZERO_UUID
        if kind == "datetime_i64":
            return -1 if value is None else round(value.timestamp() * 1000)
        if isinstance(value, datetime.timedelta):
            return value // datetime.timedelta(milliseconds=1)
        if dataclasses.is_dataclass(value):
            return self.plain((0, 0, ""), value)
        return value

    def make(self, pair: Pair, rng: random.Random) -> Any:
        return self._make(self._class(pair), rng)

    def _make(self, cls: Any, rng: random.Random) -> Any:
        hints = _hints(cls)
        return cls(
            **{
                field.name: self._make_value(field, hints[field.name], rng)
                for field in dataclasses.fields(cls)
            }
        )

    def _make_value(self, field: dataclasses.Field[Any], hint: Any, rng: random.Random) -> Any:
        kind = field.metadata.get("kafka_type", "")
        arms = typing.get_args(hint) if typing.get_origin(hint) is not tuple else ()
        if type(None) in arms:
            if rng.random() < 0.3:
                return None
            (hint,) = (arm for arm in arms if arm is not type(None))
        if typing.get_origin(hint) is tuple:
            count = rng.randint(0, 2)
            item = typing.get_args(hint)[0]
            return tuple(self._make_value(field, item, rng) for _ in range(count))
        if dataclasses.is_dataclass(hint):
            return self._make(hint, rng)
        if kind.startswith("timedelta"):
            return datetime.timedelta(milliseconds=rng.randrange(-(2**31), 2**31))
        if kind == "datetime_i64":
            return datetime.datetime.fromtimestamp(rng.randrange(2**32), tz=datetime.UTC)
        value = random_primitive(kind, field.name, rng)
        if kind in ("error_code", "uuid"):
            return None if value == ZERO_UUID else hint(value) if kind == "error_code" else value
        return hint(value) if kind == "records" else value


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _defined_in(value: Any, module: str) -> bool:
    return isinstance(value, type) and value.__module__ == module


def _subclasses(cls: type) -> typing.Iterator[Any]:
    derived: list[type] = type.__subclasses__(cls)
    for sub in derived:
        yield sub
        yield from _subclasses(sub)
