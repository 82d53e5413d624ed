"""Values of settings with units."""

from __future__ import annotations

import pytest

from kbroker.config import ConfigError, Scope, plain_number, plain_numbers, with_unit


@pytest.mark.parametrize(
    ("scope", "name", "text", "number"),
    [
        (Scope.TOPIC, "retention.ms", "2d", "172800000"),
        (Scope.TOPIC, "retention.ms", " 1.5h ", "5400000"),
        (Scope.TOPIC, "retention.ms", "500 ms", "500"),
        (Scope.TOPIC, "segment.bytes", "1GB", "1000000000"),
        (Scope.TOPIC, "segment.bytes", "1GiB", "1073741824"),
        (Scope.TOPIC, "segment.bytes", "64mib", "67108864"),
        (Scope.TOPIC, "segment.bytes", "0.5kB", "500"),
        (Scope.BROKER, "log.retention.hours", "2d", "48"),
        (Scope.BROKER, "log.retention.minutes", "2h", "120"),
        (Scope.BROKER, "quota.window.size.seconds", "1m", "60"),
        (Scope.BROKER, "leader.replication.throttled.rate", "10MB", "10000000"),
        (Scope.BROKER, "listener.name.plain.connections.max.idle.ms", "10m", "600000"),
        (Scope.GROUP, "consumer.session.timeout.ms", "45s", "45000"),
    ],
)
def test_value_with_unit_becomes_number_in_unit_of_setting(
    scope: Scope, name: str, text: str, number: str
) -> None:
    assert plain_number(scope, name, text) == number


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.ms", "-1"),
        ("retention.ms", "172800000"),
        ("retention.ms", "soon"),
        ("retention.ms", ""),
        ("retention.ms", "1" * 10_000 + "d"),
        ("min.insync.replicas", "2d"),
        ("cleanup.policy", "1GB"),
        ("no.such.setting", "2d"),
    ],
)
def test_other_values_are_left_to_the_broker(name: str, text: str) -> None:
    assert plain_numbers(Scope.TOPIC, {name: text}) == {name: text}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "retention.ms",
            "2w",
            "2w for configuration retention.ms: unknown unit 'w' (valid: ms, s, m, h, d, or a num",
        ),
        ("retention.ms", "1GB", "unknown unit 'GB' (valid: ms, s, m, h, d, "),
        ("segment.bytes", "2d", "(valid: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, or a number of b"),
        ("retention.ms", "1.5ms", "not a whole number of ms"),
        ("retention.ms", "  2D" + " " * 10_000, "unknown unit 'D'"),
    ],
)
def test_wrong_unit_is_rejected_with_valid_units(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as rejected:
        plain_number(Scope.TOPIC, name, text)
    assert message in str(rejected.value)
    assert len(str(rejected.value)) < 200


def test_time_shorter_than_unit_of_setting_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"30m .*: not a whole number of hours"):
        plain_number(Scope.BROKER, "log.retention.hours", "30m")


@pytest.mark.parametrize(
    ("scope", "name", "text", "shown"),
    [
        (Scope.TOPIC, "retention.ms", "172800000", "172800000 (2d)"),
        (Scope.TOPIC, "retention.ms", "5400000", "5400000 (90m)"),
        (Scope.TOPIC, "retention.ms", "1001", "1001"),
        (Scope.TOPIC, "retention.ms", "-1", "-1"),
        (Scope.TOPIC, "retention.ms", "0", "0"),
        (Scope.TOPIC, "segment.bytes", "1000000000", "1000000000 (1GB)"),
        (Scope.TOPIC, "segment.bytes", "1073741824", "1073741824 (1GiB)"),
        (Scope.TOPIC, "retention.bytes", str(2**63 - 1), str(2**63 - 1)),
        (Scope.TOPIC, "min.insync.replicas", "1000", "1000"),
        (Scope.BROKER, "log.retention.hours", "168", "168 (7d)"),
        (Scope.BROKER, "log.retention.hours", "5", "5"),
    ],
)
def test_number_is_shown_with_largest_exact_unit(
    scope: Scope, name: str, text: str, shown: str
) -> None:
    assert with_unit(scope, name, text) == shown
