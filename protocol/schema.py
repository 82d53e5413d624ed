"""The declaration of messages: `message`, `struct`, `wire` and the field types.

A declaration is a class with annotated fields. One class represents all versions of a message; each
field declares the versions that contain it::

    @message(key=12, versions="0-4", flexible="4+")
    class HeartbeatRequest:
        group_id: str = ""
        generation_id: Int32 = 0
        member_id: str = ""
        group_instance_id: str | None = wire(since=3, default=None)

The decorators create a slotted class with a keyword-only constructor, ``==`` and ``repr``.
`kbroker.protocol.compile` encodes and decodes the fields.

A nested struct that refers to a sibling uses the full name in quotes
(``list["FetchRequest.Partition"]``), because the outer class does not exist yet.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, NewType, TypeVar, dataclass_transform
from uuid import UUID

Int8 = Annotated[int, "b"]
Int16 = Annotated[int, "h"]
Int32 = Annotated[int, "i"]
Int64 = Annotated[int, "q"]
Uint16 = Annotated[int, "H"]
Float64 = Annotated[float, "d"]
Uuid = UUID
# Record batches that the codec does not parse. Decoding returns a zero-copy ``memoryview | None``
# of the frame. Encoding accepts ``bytes``, a ``bytearray``, a ``memoryview`` of bytes, ``None``, or
# any other object with a length: a *deferred range* (for example of a file), which `compile.encode`
# returns as a separate part. With the default ``b""`` the field is not nullable.
Records = Annotated[Any, "records"]

# The registration of a broker (KIP-631), as a type distinct from leader epochs and offsets.
BrokerEpoch = NewType("BrokerEpoch", int)

# Kafka's value for a missing ID.
ZERO_UUID = UUID(int=0)

# The largest possible version, for version ranges without an upper bound.
NEWEST = 0x7FFF

T = TypeVar("T")


class _Missing:
    """The default of a field without a declared one: the zero value of its type."""

    def __repr__(self) -> str:
        return "<zero value>"


MISSING: Any = _Missing()


class Wire:
    """The declaration of a field by `wire`: versions, tag, default and secrecy."""

    __slots__ = ("default", "nullable_since", "secret", "since", "tag", "until")

    def __init__(
        self,
        since: int,
        until: int,
        nullable_since: int | None,
        tag: int | None,
        default: Any,
        secret: bool,
    ) -> None:
        self.since = since
        self.until = until
        self.nullable_since = nullable_since
        self.tag = tag
        self.default = default
        self.secret = secret


def wire(
    *,
    since: int = 0,
    until: int = NEWEST,
    nullable_since: int | None = None,
    tag: int | None = None,
    default: Any = MISSING,
    secret: bool = False,
) -> Any:
    """Declare how a field is encoded.

    Args:
        since: First version that contains the field. In other versions encoding skips the field and
            decoding sets the default.
        until: Last version that contains the field.
        nullable_since: First version in which None is encoded as null, if later than `since`.
        Earlier versions encode None as an empty string or array. By default a ``X | None``
        field is nullable in all versions.
        tag: Number of a tagged field (KIP-482), which is omitted if it equals its default. A tagged
            struct of type ``X | None`` is omitted if it is None. With the default None, the field
            is also nullable in Kafka's declaration. Then it has a null marker and is never omitted,
            because Kafka reads a missing struct as one with all defaults.
        default: Value if the constructor does not set the field. By default the zero value of the
            type: None if allowed, a new list for an array.
        secret: True if the value must not be logged.
    """
    return Wire(since, until, nullable_since, tag, default, secret)


class Field(typing.NamedTuple):
    """A resolved field of a struct.

    `kind` is a `struct` format letter, "string", "bytes", "records", "uuid" or a `Struct` class;
    `array` is True if the field is a list of that type.
    """

    name: str
    kind: str | type[Struct]
    array: bool
    optional: bool
    since: int
    until: int
    nullable_since: int
    tag: int | None
    default: Any

    def present(self, version: int) -> bool:
        return self.since <= version <= self.until

    def nullable(self, version: int) -> bool:
        return self.optional and version >= self.nullable_since

    def has_null_marker(self, version: int) -> bool:
        """Return True if a struct has a prefix that marks it as null or not."""
        return self.nullable(version) and (self.tag is None or self.default is None)

    @property
    def null_marker(self) -> int:
        """The byte that marks a struct as null; 1 marks other structs."""
        return -1 if self.tag is None else 0

    @property
    def mutable(self) -> bool:
        """True if each object needs a new value from `zero`."""
        unset = self.default is MISSING and not self.optional
        return unset and (self.array or not isinstance(self.kind, str))

    def zero(self) -> Any:
        """Return the value of a field that was not set."""
        if self.default is not MISSING:
            return self.default
        if self.optional:
            return None
        if self.array:
            return []
        if isinstance(self.kind, str):
            return _ZEROS[self.kind]
        return self.kind()


_ZEROS: Mapping[str, Any] = types.MappingProxyType(
    {
        **dict.fromkeys("bhiqH", 0),
        "d": 0.0,
        "?": False,
        "string": "",
        "bytes": b"",
        "records": None,
        "uuid": ZERO_UUID,
    }
)

_PLAIN_KINDS: Mapping[Any, str] = types.MappingProxyType(
    {bool: "?", str: "string", bytes: "bytes", UUID: "uuid"}
)


class Struct:
    """Base of all declared classes: mutable values in slots, not hashable."""

    __slots__ = ()

    # The declared value of each field: a `Wire` or a default.
    DEFAULTS: ClassVar[Mapping[str, Any]]

    def __init__(self, **values: Any) -> None:
        # The real constructor is generated for the first object, not on import: a process that
        # declares 700 structs uses a few dozen of them.
        cls = type(self)
        cls.__init__ = _constructor(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.DEFAULTS)

    def __repr__(self) -> str:
        values = ", ".join(
            f"{name}=..." if _is_secret(given) else f"{name}={getattr(self, name)!r}"
            for name, given in self.DEFAULTS.items()
        )
        return f"{type(self).__qualname__}({values})"


def _is_secret(given: Any) -> bool:
    return isinstance(given, Wire) and given.secret


class Message(Struct):
    """Base of a declared request, response or stored value."""

    __slots__ = ()

    # The API key; None for other messages than requests and responses.
    KEY: ClassVar[int | None]
    VERSIONS: ClassVar[range]
    # First version with compact lengths and tagged fields (KIP-482); None: never.
    FLEXIBLE: ClassVar[int | None]
    # Compiled functions by version, generated on first use by `kbroker.protocol.compile`.
    ENCODERS: ClassVar[dict[int, Any]]
    DECODERS: ClassVar[dict[int, Any]]
    SLICED_ENCODERS: ClassVar[dict[int, Any]]
    SLICED_DECODERS: ClassVar[dict[int, Any]]

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        return cls.FLEXIBLE is not None and version >= cls.FLEXIBLE


def as_message(declared: object) -> Message:
    """Return an object of a declared message class as a `Message`.

    Type checkers do not see the base class that the decorator adds.
    """
    assert isinstance(declared, Message)
    return declared


@dataclass_transform(kw_only_default=True)
def struct(cls: type[T]) -> type[T]:
    """Declare a struct that is part of a message."""
    return _declare(cls, Struct, {})


@dataclass_transform(kw_only_default=True)
def message(
    *, versions: str, flexible: str = "none", key: int | None = None
) -> Callable[[type[T]], type[T]]:
    """Declare a message.

    Args:
        versions: The declared versions, such as "3" or "0-13".
        flexible: The flexible versions (KIP-482), such as "none" or "9+".
        key: API key of a request or response.
    """
    first, _, last = versions.partition("-")
    constants = {
        "KEY": key,
        "VERSIONS": range(int(first), int(last or first) + 1),
        "FLEXIBLE": None if flexible == "none" else int(flexible.removesuffix("+")),
    }

    def declare(cls: type[T]) -> type[T]:
        codecs = ("ENCODERS", "DECODERS", "SLICED_ENCODERS", "SLICED_DECODERS")
        return _declare(cls, Message, {**constants, **{each: {} for each in codecs}})

    return declare


def _declare(cls: type[T], base: type[Struct], constants: Mapping[str, Any]) -> type[T]:
    """Return a copy of `cls` with slots, which cannot be added to an existing class."""
    declared = cls.__dict__
    annotations = inspect.get_annotations(cls)
    defaults = {name: declared.get(name, MISSING) for name in annotations}
    for name, default in defaults.items():
        if isinstance(default, list | Struct):
            raise TypeError(f"{name}: a shared mutable default; leave it out or write wire()")
    dropped = {*annotations, "__dict__", "__weakref__"}
    body = {name: value for name, value in declared.items() if name not in dropped}
    body["__annotations__"] = annotations
    body["__slots__"] = tuple(annotations)
    body["DEFAULTS"] = types.MappingProxyType(defaults)
    slotted = type(cls.__name__, (base,), {**body, **constants})
    slotted.__qualname__ = cls.__qualname__
    return typing.cast("type[T]", slotted)


def fields(cls: type[Struct]) -> tuple[Field, ...]:
    """Return the fields of a declared class in wire order, with resolved types."""
    declared: Any = cls
    return _resolve(declared)


@cache
def _resolve(cls: type[Struct]) -> tuple[Field, ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(_field(name, hints[name], given) for name, given in cls.DEFAULTS.items())


def _field(name: str, hint: Any, given: Any) -> Field:
    spec = given if isinstance(given, Wire) else Wire(0, NEWEST, None, None, given, False)
    optional = False
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        arms = [arm for arm in typing.get_args(hint) if arm is not types.NoneType]
        if len(arms) != 1:
            raise TypeError(f"{name}: {hint} is not a wire type")
        hint, optional = arms[0], True
    array = typing.get_origin(hint) is list
    if array:
        (hint,) = typing.get_args(hint)
    kind = _kind(name, hint)
    return Field(
        name,
        kind,
        array,
        optional or (kind == "records" and spec.default in (None, MISSING)),
        spec.since,
        spec.until,
        spec.since if spec.nullable_since is None else spec.nullable_since,
        spec.tag,
        spec.default,
    )


def _kind(name: str, hint: Any) -> str | type[Struct]:
    if typing.get_origin(hint) is Annotated:
        return str(hint.__metadata__[0])
    if hint in _PLAIN_KINDS:
        return _PLAIN_KINDS[hint]
    if isinstance(hint, type) and issubclass(hint, Struct):
        return hint
    raise TypeError(f"{name}: {hint} is not a wire type")


def _constructor(cls: type[Struct]) -> Any:
    """Generate ``__init__`` with one keyword per field."""
    namespace: dict[str, Any] = {"MISSING": MISSING}
    parameters, body = [], []
    for field in fields(cls):
        name = field.name
        if field.mutable:
            if not field.array:
                namespace[f"zero_{name}"] = field.kind
            fresh = "[]" if field.array else f"zero_{name}()"
            parameters.append(f"{name}=MISSING")
            body.append(f"    self.{name} = {fresh} if {name} is MISSING else {name}")
        else:
            namespace[f"zero_{name}"] = field.zero()
            parameters.append(f"{name}=zero_{name}")
            body.append(f"    self.{name} = {name}")
    head = (
        f"def __init__(self, *, {', '.join(parameters)}):" if parameters else "def __init__(self):"
    )
    source = "\n".join([head, *(body or ["    pass"])])
    exec(compile(source, f"<{cls.__qualname__}>", "exec"), namespace)  # noqa: S102
    return namespace["__init__"]
