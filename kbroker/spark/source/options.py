"""Options of ``format("kbroker")``: those of Spark's connector and some additional ones.

Spark passes option names in lower case, so names are compared without regard to case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kbroker.text.documents import read_json

from .offsets import EARLIEST, LATEST, Offsets, TopicPartition, named, parse

KAFKA = "kafka."
STRATEGIES = ("assign", "subscribe", "subscribePattern")
# Data directories to read segment files from, without a broker.
FILE_OPTION = "path"

SOURCE_NAMES = (
    *STRATEGIES,
    FILE_OPTION,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "includeHeaders",
    "groupIdPrefix",
    "commitToGroup",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
SINK_NAMES = ("topic", "includeHeaders", "checkpointLocation", "queryName")

# Prefixes of Kafka properties that are accepted without ``kafka.``, as in client profiles.
SECURITY = ("security.", "sasl.", "ssl.")

_OPTION, _PROVIDER = "option.", "provider"

_DELAY = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?")
_DELAY_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


class OptionError(ValueError):
    """An option is invalid; the message names it and the next action."""


@dataclass(frozen=True)
class Everywhere:
    """`EARLIEST` or `LATEST` for all partitions."""

    offset: int


@dataclass(frozen=True)
class AtOffsets:
    """An offset for each partition, possibly `EARLIEST` or `LATEST`."""

    offsets: Offsets


@dataclass(frozen=True)
class AtTimestamps:
    """The first record at or after a timestamp: one for all partitions, or one for each."""

    # Timestamps in milliseconds since the epoch.
    timestamps: Offsets | int
    # Start at the end of partitions without such a record, instead of failing.
    or_latest: bool


# Start or end of a read.
Bound = Everywhere | AtOffsets | AtTimestamps


@dataclass(frozen=True)
class SourceOptions:
    """Checked options of a read or readStream."""

    include_headers: bool = False
    path: str | None = None
    subscribe: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assign: frozenset[TopicPartition] = frozenset()
    # None if not set: a batch starts at the earliest record, a stream at the latest.
    starting: Bound | None = None
    ending: Bound | None = None
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_seconds: float = 900
    group_id_prefix: str = "spark-kbroker-source"
    commit_to_group: str | None = None
    poll_timeout_seconds: float = 120
    offset_tries: int = 3
    offset_retry_seconds: float = 0.01
    # The ``kafka.*`` options without the prefix, unchanged.
    kafka: dict[str, str] = field(default_factory=dict)

    def matches(self, topic: str) -> bool:
        """Return True if `subscribePattern` is unset or found anywhere in a topic name."""
        return self.pattern is None or self.pattern.search(topic) is not None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check and convert the options that Spark passes.

        Raises:
            OptionError: An option is unknown, invalid, or conflicts with another one.
        """
        given = _without_table_properties(options)
        _reject_unknown(given, SOURCE_NAMES)
        chosen = _Reader(given)
        return cls(
            include_headers=chosen.flag("includeHeaders", default=False),
            path=given.get(FILE_OPTION),
            **_topics(given),
            starting=chosen.bound("starting"),
            ending=chosen.bound("ending"),
            fail_on_data_loss=chosen.flag("failOnDataLoss", default=True),
            min_partitions=chosen.count("minPartitions"),
            max_records_per_partition=chosen.count("maxRecordsPerPartition"),
            **_triggers(chosen),
            group_id_prefix=given.get("groupidprefix", cls.group_id_prefix),
            commit_to_group=given.get("committogroup"),
            poll_timeout_seconds=(chosen.count("kafkaConsumer.pollTimeoutMs") or 120_000) / 1000,
            offset_tries=chosen.count("fetchOffset.numRetries") or cls.offset_tries,
            offset_retry_seconds=chosen.milliseconds("fetchOffset.retryIntervalMs", 10) / 1000,
            kafka=_kafka(given),
        )

    def check_batch(self) -> None:
        """Raise OptionError for options that batch reads do not support."""
        match self.starting:
            case Everywhere(offset) if offset == LATEST:
                raise OptionError("starting offset can't be latest for batch queries on Kafka")
            case AtOffsets(offsets) if LATEST in offsets.values():
                first = next(each for each, offset in offsets.items() if offset == LATEST)
                raise OptionError(
                    f"startingOffsets for {first[0]}-{first[1]} can't be latest for batch queries "
                    "on Kafka"
                )
        match self.ending:
            case Everywhere(offset) if offset == EARLIEST:
                raise OptionError("ending offset can't be earliest for batch queries on Kafka")
            case AtOffsets(offsets) if EARLIEST in offsets.values():
                first = next(each for each, offset in offsets.items() if offset == EARLIEST)
                raise OptionError(
                    f"ending offset for {first[0]}-{first[1]} can't be earliest for batch queries "
                    "on Kafka"
                )
        _check_order(self.starting, self.ending)
        if self.commit_to_group:
            raise OptionError(
                "commitToGroup is only valid in streaming queries: a batch has no progress"
            )

    def check_stream(self) -> None:
        """Raise OptionError for options that streaming reads do not support."""
        if self.ending is not None:
            raise OptionError(
                "endingOffsets, endingTimestamp and endingOffsetsByTimestamp are not valid in "
                "streaming queries; to end a stream, use trigger(availableNow=True) or stop()"
            )


@dataclass(frozen=True)
class SinkOptions:
    """Checked options of a write or writeStream."""

    topic: str | None
    kafka: dict[str, str]

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Check and convert the options that Spark passes.

        Raises:
            OptionError: An option is unknown or invalid.
        """
        given = _without_table_properties(options)
        _reject_unknown(given, SINK_NAMES)
        topic = given.get("topic")
        return cls(topic.strip() if topic is not None else None, _kafka(given))


class _Reader:
    """Typed access to option values by name."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = given

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.given.get(name.lower(), str(default)).strip().lower()
        if value not in ("true", "false"):
            raise OptionError(f"{name} must be true or false, not '{value}'")
        return value == "true"

    def count(self, name: str) -> int | None:
        number = self._integer(name)
        if number is not None and number <= 0:
            raise OptionError(f"{name} must be positive")
        return number

    def milliseconds(self, name: str, default: int) -> int:
        number = self._integer(name)
        if number is not None and number < 0:
            raise OptionError(f"{name} must not be negative")
        return default if number is None else number

    def _integer(self, name: str) -> int | None:
        if (value := self.given.get(name.lower())) is None:
            return None
        try:
            return int(value)
        except ValueError:
            raise OptionError(f"{name} must be an integer, not '{value}'") from None

    def seconds(self, name: str, default: float) -> float:
        if (value := self.given.get(name.lower())) is None:
            return default
        if not (found := _DELAY.fullmatch(value.strip().lower())):
            raise OptionError(f"{name} must be a duration such as 500ms, 30s or 15m, not '{value}'")
        return int(found[1]) * _DELAY_SECONDS[found[2] or "ms"]

    def bound(self, side: str) -> Bound | None:
        """Return the start or end set by one of three options; a timestamp has precedence."""
        or_latest = side == "ending" or self._latest_without_match()
        if (text := self.given.get(f"{side}timestamp")) is not None:
            try:
                return AtTimestamps(int(text), or_latest)
            except ValueError:
                raise OptionError(f"{side}Timestamp must be milliseconds, not '{text}'") from None
        if (text := self.given.get(f"{side}offsetsbytimestamp")) is not None:
            return AtTimestamps(_json(f"{side}OffsetsByTimestamp", text), or_latest)
        if (text := self.given.get(f"{side}offsets")) is None:
            return None
        match text.strip().lower():
            case "earliest":
                return Everywhere(EARLIEST)
            case "latest":
                return Everywhere(LATEST)
        return AtOffsets(_json(f"{side}Offsets", text))

    def _latest_without_match(self) -> bool:
        value = self.given.get("startingoffsetsbytimestampstrategy", "error").lower()
        if value not in ("error", "latest"):
            raise OptionError(
                f"startingOffsetsByTimestampStrategy must be error or latest, not '{value}'"
            )
        return value == "latest"


def _without_table_properties(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with lower-case names, without the properties of an SQL table.

    For ``CREATE TABLE ... USING kbroker``, Spark passes the table's properties (owner, provider,
    comment, TBLPROPERTIES) together with the options, which then have the prefix ``option.`` too.

    Raises:
        OptionError: There are no options.
    """
    if not options:
        raise OptionError(
            "no options were given. For a table created with CREATE TABLE ... USING kbroker, Spark "
            "does not pass the table's options to the source: add them to the query, SELECT ... "
            "FROM t WITH ('kafka.bootstrap.servers' = '...', 'subscribe' = '...'), or use CREATE "
            "TEMPORARY VIEW ... USING kbroker OPTIONS (...)"
        )
    given = {name.lower(): value for name, value in options.items()}
    if _PROVIDER not in given:
        return given
    named = {
        name.removeprefix(_OPTION): value
        for name, value in given.items()
        if name.startswith(_OPTION)
    }
    known = {name.lower() for name in (*SOURCE_NAMES, *SINK_NAMES)}
    return named | {
        name: value for name, value in given.items() if name in known or _is_of_client(name)
    }


def _reject_unknown(given: Mapping[str, str], known: tuple[str, ...]) -> None:
    names = {name.lower() for name in known}
    unknown = [name for name in given if name not in names and not _is_of_client(name)]
    if unknown:
        raise OptionError(
            f"unknown option: {', '.join(sorted(unknown))} (valid: {', '.join(known)}, and client "
            "settings with the prefix kafka.)"
        )


def _topics(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the topic selection; with `path` it is optional and defaults to all topics."""
    chosen = [name for name in STRATEGIES if name.lower() in given]
    if len(chosen) > 1:
        raise OptionError(
            "Only one of the following options can be specified: " + ", ".join(STRATEGIES)
        )
    if not chosen:
        if FILE_OPTION in given:
            return {}
        raise OptionError(
            "One of the following options must be specified: " + ", ".join(STRATEGIES)
        )
    (name,) = chosen
    value = given[name.lower()].strip()
    if name == "assign":
        return {"assign": _assigned(value)}
    if name == "subscribe":
        topics = tuple(sorted({each.strip() for each in value.split(",")} - {""}))
        if not topics:
            raise OptionError(f"No topics to subscribe to: the option 'subscribe' is '{value}'")
        return {"subscribe": topics}
    return {"pattern": _pattern(value)}


def _assigned(value: str) -> frozenset[TopicPartition]:
    try:
        read: Any = read_json(value)
        found = frozenset((topic, int(each)) for topic, all_ in read.items() for each in all_)
    except (ValueError, AttributeError, TypeError):
        found = frozenset()
    if not found:
        raise OptionError(
            f"No topicpartitions to assign: the option 'assign' is '{value}', expected the form "
            '{"topic": [0, 1]}'
        )
    return found


def _pattern(value: str) -> re.Pattern[str]:
    if not value:
        raise OptionError("Pattern to subscribe is empty: the option 'subscribePattern'")
    try:
        return re.compile(value)
    except re.error as error:
        raise OptionError(
            f"subscribePattern '{value}' is not a valid Python regular expression: {error}"
        ) from None


def _triggers(chosen: _Reader) -> dict[str, Any]:
    most, least = chosen.count("maxOffsetsPerTrigger"), chosen.count("minOffsetsPerTrigger")
    if most and least and least > most:
        raise OptionError(
            f"The value of minOffsetsPerTrigger({least}) is higher than the "
            f"maxOffsetsPerTrigger({most})."
        )
    return {
        "max_offsets_per_trigger": most,
        "min_offsets_per_trigger": least,
        "max_trigger_delay_seconds": chosen.seconds("maxTriggerDelay", 900),
    }


def _is_of_client(name: str) -> bool:
    return name.startswith((KAFKA, *SECURITY))


def _kafka(given: Mapping[str, str]) -> dict[str, str]:
    found = {name: value for name, value in given.items() if name.startswith(SECURITY)}
    for name, value in given.items():
        plain = name.removeprefix(KAFKA)
        if plain == name:
            continue
        if found.setdefault(plain, value) != value:
            raise OptionError(f"'{plain}' and '{name}' have different values; remove one of them")
    if "bootstrap.servers" not in found and FILE_OPTION not in given:
        raise OptionError(
            "Option 'kafka.bootstrap.servers' must be specified (or 'path', to read segment files)"
        )
    return found


def _json(name: str, text: str) -> Offsets:
    try:
        return parse(text)
    except ValueError as error:
        raise OptionError(
            f'Expected e.g. {{"topicA":{{"0":23,"1":-1}},"topicB":{{"0":-2}}}} for {name}, '
            f"got {text}: {error}"
        ) from None


def _check_order(starting: Bound | None, ending: Bound | None) -> None:
    """Check that start and end list the same partitions, and that no start is after its end."""
    match starting, ending:
        case (AtOffsets(first), AtOffsets(last)):
            what = "offset"
        case (AtTimestamps(dict() as first), AtTimestamps(dict() as last)):
            what = "timestamp"
        case _:
            return
    if first.keys() != last.keys():
        raise OptionError(
            f"starting and ending {what}s list different partitions: {named(first)} and "
            f"{named(last)}"
        )
    for each, begin in first.items():
        if begin > last[each] >= 0:
            raise OptionError(
                f"start {what} {begin} is greater than end {what} {last[each]} for "
                f"{each[0]}-{each[1]}"
            )
