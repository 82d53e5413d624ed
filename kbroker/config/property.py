"""Declaration of one setting: its type, limits, parser and formatter.

The names, types and limits of Kafka's settings follow Apache Kafka 4.4 (``ConfigDef``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from math import isnan
from typing import ClassVar, Generic, Self, TypeVar, cast, overload

# A parsed setting. None only if the default is "not set".
Value = bool | int | float | str | tuple[str, ...] | None
T_co = TypeVar("T_co", bound=Value, covariant=True)


class ConfigError(ValueError):
    """A setting is invalid; the message names the setting and the allowed values."""


class Type(IntEnum):
    """Kafka's ``ConfigType``, as numbered in DescribeConfigs responses."""

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
    """Kafka's ``ConfigSource``: origin of a value, as numbered in DescribeConfigs responses."""

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


class SettingEffect(StrEnum):
    """Effect of a setting that kbroker accepts."""

    APPLIED = "applied"
    # Accepted, but it has no meaning for kbroker.
    NONE = "no effect"
    # Accepted, but the feature is not implemented yet.
    LATER = "no effect yet"


class Settings:
    """Values by name. A subclass declares its settings as attributes, each a `Property`.

    Attributes:
        title: Heading of these settings in the documentation.
    """

    __slots__ = ()

    title: ClassVar[str] = ""

    def __getitem__(self, name: str) -> Value:
        raise NotImplementedError

    def integer(self, name: str) -> int:
        """Return the value of an integer setting whose name is computed.

        Raises:
            TypeError: The setting is unset or not an integer.
        """
        value = self[name]
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise TypeError(f"{name}: not an integer, or unset")

    def items(self, name: str) -> tuple[str, ...]:
        """Return the value of a list setting whose name is computed; empty if unset.

        Raises:
            TypeError: The setting is not a list.
        """
        value = self[name]
        if value is None or isinstance(value, tuple):
            return value or ()
        raise TypeError(f"{name}: not a list")


@dataclass(frozen=True, slots=True)
class Kind(Generic[T_co]):
    """Parser and limits for the values of one of Kafka's types.

    Attributes:
        parse: Parses a string without outer white space. Raises ValueError.
        unset: Value that an attribute returns if the setting is unset; if None, it raises
            TypeError.
        bound: Numbers range from ``-bound`` to ``bound - 1``.
    """

    type: Type
    parse: Callable[[str], T_co]
    unset: T_co | None = None
    bound: int | None = None


@dataclass(frozen=True, slots=True)
class Property(Generic[T_co]):
    """Declaration of one setting, and the descriptor that reads it.

    An attribute of a `Settings` class with this type is the only place where a setting is declared.
    The tables, the documentation and the responses to clients are derived from it. On an instance,
    the attribute returns the value.

    Attributes:
        default: Text as Kafka writes it, None if unset.
        unit: Unit of a number (``ms``, ``minutes``, ``hours``, ``bytes``, ...).
        extra_numbers: Numbers allowed outside the range.
        pattern: Regular expression that the whole text must match.
        pattern_words: Description of ``pattern`` for messages.
        items_max: Maximum number of items of a list.
        distinct: True if a list with duplicate items is invalid; otherwise duplicates are dropped.
        synonyms: For a topic or group setting, the broker settings with its default. For a broker
            setting, all its names, the most precise unit first.
        kafka_default: Default of Kafka 4.4 if it differs.
        kafka_dynamic: True if the setting is dynamic in Kafka but needs a restart here.
        kbroker_only: True if Kafka lacks the setting.
        internal: True if DescribeConfigs responses omit the setting, like Kafka's internal settings.
        per_nodes: Returns the default for a number of nodes; ``default`` is its value for one node.
    """

    name: str
    kind: Kind[T_co]
    default: str | None
    doc: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    extra_numbers: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()
    pattern: str = ""
    pattern_words: str = ""
    items_max: int | None = None
    distinct: bool = False
    dynamic: bool = True
    effect: SettingEffect = SettingEffect.APPLIED
    synonyms: tuple[str, ...] = ()
    kafka_default: str | None = None
    kafka_dynamic: bool = False
    kbroker_only: bool = False
    internal: bool = False
    per_nodes: Callable[[int], int] | None = None

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
        return cast(T_co, value)  # parsed by this property

    @property
    def type(self) -> Type:
        """Kafka's type of the value."""
        return self.kind.type

    @property
    def sensitive(self) -> bool:
        """True if the value must never be shown."""
        return self.type is Type.PASSWORD

    @property
    def milliseconds(self) -> int:
        """Milliseconds per unit; 1 if the unit is not a duration."""
        return {"minutes": 60_000, "hours": 3_600_000, "seconds": 1000}.get(self.unit, 1)

    @property
    def allowed(self) -> str:
        """Description of the allowed values, for error messages and documentation."""
        if self.pattern_words:
            return self.pattern_words
        match self.type:
            case Type.BOOLEAN:
                return "true or false"
            case Type.LIST if self.choices:
                return f"a comma-separated list of {', '.join(self.choices)}"
            case Type.LIST if self.items_max == 1:
                return "a single item"
            case Type.LIST if self.distinct:
                return "a comma-separated list without duplicates"
            case Type.LIST:
                return "a comma-separated list"
            case Type.SHORT | Type.INT | Type.LONG | Type.DOUBLE:
                return self._allowed_numbers()
        return f"one of {', '.join(self.choices)}" if self.choices else "a string"

    def _allowed_numbers(self) -> str:
        kind = "a number" if self.type is Type.DOUBLE else "an integer"
        extra = "".join(f" or {number}" for number in self.extra_numbers)
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
        """Return the default text for a cluster of ``nodes`` nodes."""
        return str(self.per_nodes(nodes)) if self.per_nodes else self.default

    def parse(self, text: str) -> Value:
        """Parse ``text`` as Kafka does: strip outer white space, split lists at commas.

        Raises:
            ConfigError: The value is invalid; the message has the name and the allowed values.
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
            return tuple(dict.fromkeys(value))  # drop duplicates, as Kafka does
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
            return value in self.extra_numbers or self._in_range(value)
        return not self.choices or value in self.choices

    def _allows_items(self, items: tuple[str, ...]) -> bool:
        known = not self.choices or all(item in self.choices for item in items)
        few = self.items_max is None or len(items) <= self.items_max
        distinct = not self.distinct or len(set(items)) == len(items)
        return known and all(items) and few and distinct

    def _in_range(self, number: float) -> bool:
        bound = self.kind.bound
        if bound is not None and not -bound <= number < bound:
            return False
        if isnan(number):  # every comparison with NaN is false
            return False
        too_low = self.minimum is not None and number < self.minimum
        return not too_low and not (self.maximum is not None and number > self.maximum)

    def format(self, value: Value) -> str | None:
        """Return ``value`` in the notation of DescribeConfigs responses; None stays None."""
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
    # int() also accepts "1_000" and non-ASCII digits, which Kafka rejects.
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdecimal()):
        raise ValueError(text)
    return int(text)


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",")) if text else ()


def java_double(number: float) -> str:
    """Format a number like Java's ``Double.toString``: exponents from 1e7 and below 1e-3."""
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
    """Yield the settings that a class and its bases declare, the bases first.

    A class attribute may also be a tuple of properties, for settings that are read by computed names.
    """
    for base in owner.__bases__:
        if issubclass(base, Settings):
            yield from properties_of(base)
    for value in vars(owner).values():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Property):
                yield each
