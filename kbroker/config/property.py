"""What one setting is: its type, its limits, how its text is read and written.

The names, types and limits of Kafka's settings follow Apache Kafka 4.3 (``ConfigDef``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from math import isnan
from typing import ClassVar, Generic, Self, TypeVar, cast, overload

Value = bool | int | float | str | tuple[str, ...] | None
"""A parsed setting. ``None`` only where the default is "not set"."""
T_co = TypeVar("T_co", bound=Value, covariant=True)


class ConfigError(ValueError):
    """A setting that cannot be used; the text names the setting and what is allowed."""


class Type(IntEnum):
    """Kafka's ``ConfigType``, as numbered in DescribeConfigs answers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Source(IntEnum):
    """Kafka's ``ConfigSource``: where a value came from, as numbered in DescribeConfigs answers."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class Scope(StrEnum):
    """The kind of resource that a setting belongs to."""

    BROKER = "broker"
    TOPIC = "topic"
    GROUP = "group"
    CLIENT_METRICS = "client metrics"


class Effect(StrEnum):
    """What kbroker does with a setting that it knows."""

    APPLIED = "applied"
    NONE = "no effect"
    """Accepted, because it says nothing that matters to kbroker."""
    LATER = "no effect yet"
    """Accepted, but the behaviour that it asks for does not exist yet."""


class Settings:
    """Values by name. A subclass declares its settings as attributes, each a `Property`."""

    __slots__ = ()

    title: ClassVar[str] = ""
    """Heading of the settings that a class declares, in the documentation."""

    def __getitem__(self, name: str) -> Value:
        raise NotImplementedError

    def integer(self, name: str) -> int:
        """The value of a whole number whose name is computed. Raises TypeError if it is none."""
        value = self[name]
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise TypeError(f"{name} is no whole number that is set")

    def items(self, name: str) -> tuple[str, ...]:
        """The value of a list whose name is computed; empty if it is not set. Raises TypeError."""
        value = self[name]
        if value is None or isinstance(value, tuple):
            return value or ()
        raise TypeError(f"{name} is no LIST")


@dataclass(frozen=True, slots=True)
class Kind(Generic[T_co]):
    """How the values of one of Kafka's types are read.

    Attributes:
        parse: Reads a text without outer white space. Raises ValueError.
        unset: What an attribute returns if the setting has no value; None raises TypeError instead.
        bound: Numbers are from ``-bound`` to ``bound - 1``.
    """

    type: Type
    parse: Callable[[str], T_co]
    unset: T_co | None = None
    bound: int | None = None


@dataclass(frozen=True, slots=True)
class Property(Generic[T_co]):
    """One setting: its declaration, and the attribute that reads it.

    An attribute of a `Settings` class with this value is the only place where a setting is
    declared. The tables, the documentation and the answers to clients are made from it; of an
    instance, the attribute has the value.

    ``default`` is text as Kafka writes it, ``None`` when unset. ``unit`` names what a number counts
    (``ms``, ``minutes``, ``hours``, ``bytes``, ...). ``synonyms`` are the broker settings that give
    a topic setting its value, or the spellings of one broker setting, most precise first.
    ``kafka_default`` stands where Kafka 4.3 differs; ``own`` marks a setting that Kafka lacks.
    """

    name: str
    kind: Kind[T_co]
    default: str | None
    doc: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    also: tuple[int, ...] = ()
    """Numbers allowed outside of the range."""
    choices: tuple[str, ...] = ()
    pattern: str = ""
    """Regular expression that the whole text must match; ``allowed`` then says it in words."""
    pattern_words: str = ""
    longest: int | None = None
    """Most items of a list."""
    dynamic: bool = True
    effect: Effect = Effect.APPLIED
    synonyms: tuple[str, ...] = ()
    kafka_default: str | None = None
    kafka_dynamic: bool = False
    """Whether Kafka changes it while a broker runs where kbroker needs a restart."""
    own: bool = False
    internal: bool = False
    """Left out of DescribeConfigs answers, as Kafka does with its internal settings."""
    per_nodes: Callable[[int], int] | None = None
    """Default from the number of nodes of the cluster; ``default`` is its value for one node."""

    @overload
    def __get__(self, settings: None, owner: object) -> Self: ...
    @overload
    def __get__(self, settings: Settings, owner: object) -> T_co: ...
    def __get__(self, settings: Settings | None, owner: object) -> T_co | Self:
        if settings is None:
            return self
        value = settings[self.name]
        if value is None:
            value = self.kind.unset
            if value is None:
                raise TypeError(f"{self.name} is not set")
        return cast(T_co, value)  # it was parsed by this property

    @property
    def type(self) -> Type:
        """Kafka's type of the value."""
        return self.kind.type

    @property
    def sensitive(self) -> bool:
        """Whether the value must never be shown."""
        return self.type is Type.PASSWORD

    @property
    def milliseconds(self) -> int:
        """Milliseconds per unit; 1 for what is no time."""
        return {"minutes": 60_000, "hours": 3_600_000, "seconds": 1000}.get(self.unit, 1)

    @property
    def allowed(self) -> str:
        """What may stand there, for error messages and documentation."""
        if self.pattern_words:
            return self.pattern_words
        match self.type:
            case Type.BOOLEAN:
                return "true or false"
            case Type.LIST if self.choices:
                return f"a comma-separated list of {', '.join(self.choices)}"
            case Type.LIST if self.longest == 1:
                return "a single item"
            case Type.LIST:
                return "a comma-separated list"
            case Type.SHORT | Type.INT | Type.LONG | Type.DOUBLE:
                return self._allowed_numbers()
        return f"one of {', '.join(self.choices)}" if self.choices else "text"

    def _allowed_numbers(self) -> str:
        kind = "a number" if self.type is Type.DOUBLE else "a whole number"
        extra = "".join(f" or {number}" for number in self.also)
        match self.minimum, self.maximum:
            case None, None:
                return kind
            case low, None:
                return f"{kind} of at least {low}{extra}"
            case None, high:
                return f"{kind} of at most {high}{extra}"
            case low, high:
                return f"{kind} from {low} to {high}{extra}"

    def default_for(self, nodes: int) -> str | None:
        """The default text in a cluster of ``nodes`` nodes."""
        return str(self.per_nodes(nodes)) if self.per_nodes else self.default

    def parse(self, text: str) -> Value:
        """Read ``text`` as Kafka does: outer white space is dropped, lists split at commas.

        Raises ConfigError with the name and what is allowed.
        """
        text = text.strip()
        try:
            value: Value = self.kind.parse(text)
            allowed = self._allows(value, text)
        except ValueError:
            allowed = False
        if not allowed:
            shown = "" if self.sensitive else f" {text}"
            raise ConfigError(
                f"Invalid value{shown} for configuration {self.name}: expected {self.allowed}"
            )
        if isinstance(value, tuple) and not self.pattern:
            return tuple(dict.fromkeys(value))  # like Kafka: an item that stands twice counts once
        return value

    def _allows(self, value: Value, text: str) -> bool:
        if self.pattern:
            from re import fullmatch

            return fullmatch(self.pattern, text) is not None
        if isinstance(value, tuple):
            return self._allows_items(value)
        if isinstance(value, bool):
            return True
        if isinstance(value, int | float):
            return value in self.also or self._in_range(value)
        return not self.choices or value in self.choices

    def _allows_items(self, items: tuple[str, ...]) -> bool:
        known = not self.choices or all(item in self.choices for item in items)
        return known and all(items) and (self.longest is None or len(items) <= self.longest)

    def _in_range(self, number: float) -> bool:
        bound = self.kind.bound
        if bound is not None and not -bound <= number < bound:
            return False
        if isnan(number):  # compares false with every limit
            return False
        too_low = self.minimum is not None and number < self.minimum
        return not too_low and not (self.maximum is not None and number > self.maximum)

    def format(self, value: Value) -> str | None:
        """Write ``value`` as Kafka writes it in DescribeConfigs answers; ``None`` stays ``None``."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, float):
            return java_double(value)
        return None if value is None else str(value)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _integer(text: str) -> int:
    # int() also takes "1_000" and other scripts' digits, which no Kafka client would send.
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdecimal()):
        raise ValueError(text)
    return int(text)


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",")) if text else ()


def java_double(number: float) -> str:
    """Java's ``Double.toString``: exponents start at 1e7 and below 1e-3."""
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    from decimal import Decimal

    sign, digits, _ = parts = Decimal(repr(number)).normalize().as_tuple()
    exponent = int(parts.exponent) + len(digits) - 1
    fraction = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{fraction}E{exponent}"


BOOLEAN: Kind[bool] = Kind(Type.BOOLEAN, _boolean)
STRING: Kind[str] = Kind(Type.STRING, str, unset="")
INT: Kind[int] = Kind(Type.INT, _integer, bound=2**31)
SHORT: Kind[int] = Kind(Type.SHORT, _integer, bound=2**15)
LONG: Kind[int] = Kind(Type.LONG, _integer, bound=2**63)
DOUBLE: Kind[float] = Kind(Type.DOUBLE, float)
LIST: Kind[tuple[str, ...]] = Kind(Type.LIST, _items, unset=())
CLASS: Kind[str] = Kind(Type.CLASS, str, unset="")
PASSWORD: Kind[str] = Kind(Type.PASSWORD, str, unset="")


def properties_of(owner: type[Settings]) -> Iterator[Property[Value]]:
    """The settings that a class and its bases declare, the bases first, each in its order.

    A tuple of properties declares settings that are only read by computed names.
    """
    for base in owner.__bases__:
        if issubclass(base, Settings):
            yield from properties_of(base)
    for value in vars(owner).values():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Property):
                yield each
