"""The vocabulary in which every message is declared: `message`, `struct`, `wire` and the field types.

A declaration is an ordinary class with annotated fields. One class stands for all versions of a
message; the versions in which a field travels are written on the field::

    @message(key=12, versions="0-4", flexible="4+")
    class HeartbeatRequest:
        group_id: str = ""
        generation_id: Int32 = 0
        member_id: str = ""
        group_instance_id: str | None = wire(since=3, default=None)

The decorators turn the class into a slotted one with a keyword-only constructor, ``==`` and
``repr``. How the fields become bytes is the business of `kbroker.protocol.compile`.

A nested struct that refers to a sibling writes the full name in quotes
(``list["FetchRequest.Partition"]``), because the outer class does not exist yet at that point.
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
Records = Annotated[Any, "records"]
"""Record batches that the codec does not look into.

Decoding gives a zero-copy ``memoryview | None`` into the frame. Encoding takes ``bytes``, a
``bytearray``, a ``memoryview`` of bytes, ``None``, or any other object with a length: a *deferred
range* (of a file, say), which comes out of `compile.encode` as an element of its own. With the
default ``b""`` the field is one that cannot be null.
"""

BrokerEpoch = NewType("BrokerEpoch", int)
"""Which run of a node: its registration (KIP-631). Neither a leader epoch nor an offset goes for it."""

ZERO_UUID = UUID(int=0)
"""How Kafka writes "no id"."""

NEWEST = 0x7FFF
"""Stands for "no upper bound" in a version range: the largest version that the wire can carry."""

T = TypeVar("T")


class _Missing:
    """The default of a field that names none: the zero value of its type."""

    def __repr__(self) -> str:
        return "<zero value>"


MISSING: Any = _Missing()


class Wire:
    """What `wire` wrote on a field: where it travels, its default, and who may see it."""

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
    """Say how a field travels.

    Parameters:
      since, until: First and last version (inclusive) in which the field is on the wire. Outside of
        them encoding skips the field, and decoding sets the default.
      nullable_since: First version in which None may travel, where that is later than `since`;
        before it None becomes the empty string or array. Without it a ``X | None`` field is
        nullable in every version.
      tag: Number of the tagged field (KIP-482); such a field is left out when it equals its
        default. A tagged struct of type ``X | None`` is simply absent when None. With the default
        None it is one that can be null in Kafka's declaration too, and a marker stands before it.
      default: Value when the constructor does not name the field; without it the zero value of
        the type (None where the type allows it, and a new list for an array).
      secret: The value is for nobody else's eyes: logs do not have it.
    """
    return Wire(since, until, nullable_since, tag, default, secret)


class Field(typing.NamedTuple):
    """One resolved field of a struct.

    `kind` is a `struct` format letter, "string", "bytes", "records", "uuid" or a `Struct` class;
    `array` says that the field is a list of that.
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

    def marked(self, version: int) -> bool:
        """Whether a struct has a marker in front of it, which says whether it is null."""
        return self.nullable(version) and (self.tag is None or self.default is None)

    @property
    def mutable(self) -> bool:
        """Whether `zero` must be asked for each object anew."""
        unset = self.default is MISSING and not self.optional
        return unset and (self.array or not isinstance(self.kind, str))

    def zero(self) -> Any:
        """A value for a field that nobody set."""
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
    """Base of all declared classes: values over the slots, mutable and so not hashable."""

    __slots__ = ()

    DEFAULTS: ClassVar[Mapping[str, Any]]
    """What stood right of each field's ``=`` in the declaration; a `Wire` or a plain value."""

    def __init__(self, **values: Any) -> None:
        # The real constructor is written when the first object is made, not at import: a process
        # that declares 700 structs uses a few dozen of them.
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

    KEY: ClassVar[int | None]
    """The API key; None for what is not a request or response."""
    VERSIONS: ClassVar[range]
    FLEXIBLE: ClassVar[int | None]
    """First version with compact lengths and tagged fields (KIP-482); None: never."""
    ENCODERS: ClassVar[dict[int, Any]]
    DECODERS: ClassVar[dict[int, Any]]
    SLICED_ENCODERS: ClassVar[dict[int, Any]]
    SLICED_DECODERS: ClassVar[dict[int, Any]]
    """Compiled functions by version, written on first use by `kbroker.protocol.compile`."""

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        return cls.FLEXIBLE is not None and version >= cls.FLEXIBLE


def as_message(declared: object) -> Message:
    """Return an object of a declared message class as the `Message` that it is.

    Type checkers see a declared class without the base that its decorator gives it.
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

    Parameters:
      versions: The declared versions: "3" or "0-13".
      flexible: The flexible ones (KIP-482): "none" or "9+".
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
    """A slotted copy of `cls`: slots cannot be added to a class that exists."""
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
    """The fields of a declared class in wire order, with types resolved."""
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
    """Write ``__init__`` with one keyword per field."""
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
