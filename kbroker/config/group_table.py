"""Settings of groups and of client metrics, and the broker settings behind those of groups.

Those of consumer groups (KIP-848), of share groups (KIP-932), of streams groups (KIP-1071) and of client
metrics (KIP-714) hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from .property import Effect, Property, Type


class _Range(NamedTuple):
    """A default, and what an operator may set instead."""

    default: int
    minimum: int
    maximum: int | None = None


class _Limited(NamedTuple):
    """A number that a group may set between two limits that the broker sets."""

    name: str
    doc: str
    unit: str
    value: _Range
    least: _Range
    most: _Range
    dynamic: bool = False


def _timings(kind: str, words: str) -> tuple[_Limited, ...]:
    """What the three kinds of groups have in common."""
    return (
        _Limited(
            f"{kind}.session.timeout.ms",
            f"Silence after which a member is removed, in {words}",
            "ms",
            _Range(45_000, 1),
            _Range(45_000, 1),
            _Range(60_000, 1),
        ),
        _Limited(
            f"{kind}.heartbeat.interval.ms",
            f"Time between two heartbeats of a member, in {words}",
            "ms",
            _Range(5_000, 1),
            _Range(5_000, 1),
            _Range(15_000, 1),
        ),
        _Limited(
            f"{kind}.assignment.interval.ms",
            f"Shortest time between two assignments, in {words}",
            "ms",
            _Range(1_000, 0),
            _Range(0, 0),
            _Range(15_000, 0),
            dynamic=True,
        ),
    )


_LIMITED = (
    *_timings("consumer", "consumer groups of the newer protocol"),
    *_timings("share", "share groups"),
    *_timings("streams", "streams groups"),
    _Limited(
        "share.delivery.count.limit",
        "Times that a share group delivers a record before it gives it up",
        "",
        _Range(5, 2, 10),
        _Range(2, 2, 5),
        _Range(10, 5, 25),
    ),
    _Limited(
        "share.partition.max.record.locks",
        "Records of one partition that a share group has given out at the same time",
        "",
        _Range(2000, 100, 10_000),
        _Range(100, 100, 2000),
        _Range(4000, 2000, 10_000),
    ),
    _Limited(
        "share.record.lock.duration.ms",
        "How long a share group waits for the acknowledgement of a record",
        "ms",
        _Range(30_000, 1000, 3_600_000),
        _Range(15_000, 1000, 30_000),
        _Range(60_000, 30_000, 3_600_000),
    ),
)


def _effect(name: str) -> Effect:
    served = name.removeprefix("group.").startswith(("consumer.", "share.", "streams."))
    return Effect.APPLIED if served else Effect.LATER


def _number(name: str, doc: str, span: _Range, unit: str = "", dynamic: bool = False) -> Property:
    return Property(
        name,
        Type.INT,
        str(span.default),
        doc,
        unit=unit,
        minimum=span.minimum,
        maximum=span.maximum,
        dynamic=dynamic,
        effect=_effect(name),
    )


def _limited_of_broker() -> Iterator[Property]:
    for each in _LIMITED:
        kind, _, rest = each.name.partition(".")
        yield _number(f"group.{each.name}", f"{each.doc}.", each.value, each.unit, each.dynamic)
        yield _number(
            f"group.{kind}.min.{rest}", f"Least `{each.name}` of a group.", each.least, each.unit
        )
        yield _number(
            f"group.{kind}.max.{rest}", f"Largest `{each.name}` of a group.", each.most, each.unit
        )


def _list(name: str, default: str, doc: str) -> Property:
    return Property(name, Type.LIST, default, doc, dynamic=False, effect=_effect(name))


_UNLIMITED = _Range(2**31 - 1, 1)

GROUP_BROKER_TABLE: tuple[Property, ...] = (
    *_limited_of_broker(),
    _number("group.consumer.max.size", "Most members of a consumer group.", _UNLIMITED),
    _number("group.share.max.size", "Most members of a share group.", _Range(200, 1, 1000)),
    _number("group.streams.max.size", "Most members of a streams group.", _UNLIMITED),
    replace(
        _list(
            "group.consumer.assignors",
            "uniform,range",
            "Assignors that consumer groups can use; the first one is for members that ask for none.",
        ),
        pattern=r"\s*(uniform|range)\s*(,\s*(uniform|range)\s*)*",
        pattern_words="a list of uniform and range",
    ),
    replace(
        _list("group.share.assignors", "simple", "Assignors that share groups can use."),
        pattern=r"\s*simple\s*",
        pattern_words="simple",
    ),
    Property(
        "group.consumer.migration.policy",
        Type.STRING,
        "bidirectional",
        "Whether groups may move between the classic and the newer protocol.",
        pattern="(?i)disabled|downgrade|upgrade|bidirectional",
        pattern_words="one of disabled, downgrade, upgrade, bidirectional",
        dynamic=False,
    ),
    _number("group.share.max.share.sessions", "Most share sessions of a node.", _Range(2000, 1)),
    _number(
        "group.streams.num.standby.replicas", "Standby copies of each streams task.", _Range(0, 0)
    ),
    _number(
        "group.streams.max.standby.replicas",
        "Largest `streams.num.standby.replicas` of a group.",
        _Range(2, 0),
    ),
    _number(
        "group.streams.initial.rebalance.delay.ms",
        "Wait of a new streams group for more members before its first assignment.",
        _Range(3000, 0),
        "ms",
    ),
)

_NUMBERS = (
    *(each.name for each in _LIMITED),
    "streams.initial.rebalance.delay.ms",
    "streams.num.standby.replicas",
)


def _numbers_of_groups() -> Iterator[Property]:
    """As the broker's, without the upper limit: the broker's limits hold instead."""
    behind = {each.name: each for each in GROUP_BROKER_TABLE}
    for name in _NUMBERS:
        synonym = f"group.{name}"
        yield replace(behind[synonym], name=name, synonyms=(synonym,), maximum=None, dynamic=True)


GROUP_TABLE: tuple[Property, ...] = (
    *_numbers_of_groups(),
    Property(
        "share.auto.offset.reset",
        Type.STRING,
        "latest",
        "Where a share group begins to read.",
        pattern=r"latest|earliest|by_duration:P(?=\d|T\d)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?",
        pattern_words="latest, earliest or by_duration:PnDTnHnMn.nS",
    ),
    Property(
        "share.isolation.level",
        Type.STRING,
        "read_uncommitted",
        "Whether a share group sees records of transactions that are open or aborted.",
        choices=("read_committed", "read_uncommitted"),
    ),
    Property(
        "share.renew.acknowledge.enable",
        Type.BOOLEAN,
        "true",
        "Whether a member may ask for more time with a record.",
    ),
)

_CLIENT_PATTERN = (
    "client_(instance_id|id|software_name|software_version|source_address|source_port)=[^,]*"
)

CLIENT_METRICS_TABLE: tuple[Property, ...] = (
    Property(
        "interval.ms",
        Type.INT,
        "300000",
        "Time between two reports of a client's metrics.",
        unit="ms",
        minimum=100,
        maximum=3_600_000,
    ),
    Property(
        "match",
        Type.LIST,
        "",
        "Which clients report, as `selector=regular expression,...`; empty is all.",
        pattern=rf"({_CLIENT_PATTERN}(,\s*{_CLIENT_PATTERN})*)?",
        pattern_words="a list such as client_id=a.*,client_software_name=b",
    ),
    Property(
        "metrics",
        Type.LIST,
        "",
        "Which metrics are reported, by the beginnings of their names; `*` is all.",
    ),
)
