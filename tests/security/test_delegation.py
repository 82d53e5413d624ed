"""Delegation tokens: the rules, with a clock in hand, and logins by them (KIP-48, KIP-373)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kbroker.config import BrokerConfig, ConfigError
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.security.delegation import (
    NAMES_BYTES_MAX,
    NAMES_MAX,
    TIME_MAX,
    DelegationKey,
    Lifetimes,
    _new_id,
    check_principals,
    ended,
    new_token,
    password_of,
    renewed,
)
from kbroker.security.principals import USER, Principal

from .tokens import (
    ALICE,
    BAD_TYPE,
    BOB,
    CAROL,
    DAY,
    EXPIRED,
    KEY,
    LIFETIMES,
    MISMATCH,
    NOW,
    create,
    guarded,
    made,
    texts,
    user,
)

# -- the rules


@contextmanager
def refused(code: ErrorCode) -> Iterator[None]:
    with pytest.raises(KafkaError) as caught:
        yield
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("lifetime_ms", "max_ms", "expires_ms"),
    [
        (-1, 7 * DAY, DAY),
        (0, 7 * DAY, DAY),
        (-(2**63), 7 * DAY, DAY),
        (2 * DAY, 2 * DAY, DAY),
        (5, 5, 5),
        (8 * DAY, 7 * DAY, DAY),
        (2**63 - 1, 7 * DAY, DAY),
    ],
)
def test_how_long_a_new_token_is_good(lifetime_ms: int, max_ms: int, expires_ms: int) -> None:
    token = made(lifetime_ms=lifetime_ms)
    assert (token.issued_ms, token.max_ms - NOW, token.expires_ms - NOW) == (
        NOW,
        max_ms,
        expires_ms,
    )


def test_settings_may_say_for_ever() -> None:
    """Times are numbers of 64 bits on the wire."""
    token = new_token(
        DelegationKey(KEY), ALICE, ALICE, (), -1, Lifetimes(2**63 - 1, 2**63 - 1), NOW
    )
    assert (token.max_ms, token.expires_ms) == (TIME_MAX, TIME_MAX)
    assert renewed(token, ALICE, -1, Lifetimes(2**63 - 1, 2**63 - 1), NOW).expires_ms == TIME_MAX


@pytest.mark.parametrize(
    ("period_ms", "after_ms", "expires_ms"),
    [
        (-1, 5, 5 + DAY),
        (0, 5, 5 + DAY),
        (7, 5, 12),
        (2 * DAY, 5, 5 + DAY),
        (-1, DAY, 2 * DAY),
    ],
)
def test_a_token_is_renewed(period_ms: int, after_ms: int, expires_ms: int) -> None:
    token = renewed(made(), ALICE, period_ms, LIFETIMES, NOW + after_ms)
    assert token.expires_ms == NOW + expires_ms
    assert token.max_ms == NOW + 7 * DAY


def test_a_token_is_renewed_up_to_its_greatest_age() -> None:
    token, now = made(), NOW
    for _ in range(20):
        token = renewed(token, ALICE, -1, LIFETIMES, now)
        now = min(now + DAY // 2, NOW + 7 * DAY)
    assert token.expires_ms == token.max_ms == NOW + 7 * DAY
    assert not token.is_over(token.max_ms)
    assert token.is_over(token.max_ms + 1)
    with refused(EXPIRED):
        renewed(token, ALICE, -1, LIFETIMES, token.max_ms + 1)


def test_who_may_renew_and_end_a_token() -> None:
    """Its owner and those whom it names; who made it for somebody else may not, as in Kafka."""
    token = made(CAROL)
    for principal in (ALICE, CAROL):
        assert renewed(token, principal, 5, LIFETIMES, NOW).expires_ms == NOW + 5
        assert ended(token, principal, -1, NOW) is None
    for principal in (BOB, Principal(USER, "dave"), Principal("Group", "alice")):
        with refused(MISMATCH):
            renewed(token, principal, -1, LIFETIMES, NOW)
        with refused(MISMATCH):
            ended(token, principal, -1, NOW)


def test_a_token_ends() -> None:
    token = made()
    sooner = ended(token, ALICE, 5, NOW)
    assert sooner is not None
    assert sooner.expires_ms == NOW + 5
    now_at_once = ended(token, ALICE, 0, NOW)
    assert now_at_once is not None
    assert now_at_once.expires_ms == NOW
    later = ended(token, ALICE, 2**63 - 1, NOW)
    assert later is not None
    assert later.expires_ms == token.max_ms
    with refused(EXPIRED):
        ended(token, ALICE, 5, NOW + DAY + 1)
    assert ended(token, ALICE, -1, NOW + DAY + 1) is None


def test_of_two_causes_that_is_told_which_kafka_sees_first() -> None:
    token = made()
    with refused(MISMATCH):
        ended(token, BOB, 5, NOW + DAY + 1)
    with refused(MISMATCH):
        ended(token, BOB, -1, NOW + DAY + 1)
    with refused(EXPIRED):
        renewed(token, BOB, 5, LIFETIMES, NOW + DAY + 1)


def test_ids_are_kafkas() -> None:
    """22 characters of base64 that do not look like an option of its tools."""
    ids = {_new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", each) for each in ids)


def test_principals_of_a_token() -> None:
    check_principals(ALICE, [BOB] * (NAMES_MAX - 1))
    check_principals(Principal(USER, "ö" * (NAMES_BYTES_MAX // 2)), [])
    for owner, renewers in (
        (Principal("Group", "a"), []),
        (ALICE, [BOB, Principal("Group", "b")]),
        (ALICE, [Principal("user", "b")]),
        (ALICE, [Principal("", "b")]),
    ):
        with refused(BAD_TYPE):
            check_principals(owner, renewers)
    for owner, renewers in (
        (ALICE, [BOB] * NAMES_MAX),
        (Principal(USER, "ö" * (NAMES_BYTES_MAX // 2)), [BOB]),
    ):
        with refused(ErrorCode.POLICY_VIOLATION):
            check_principals(owner, renewers)


def test_the_hmac_is_kafkas() -> None:
    """HMAC-SHA-512 of the id, by the key."""
    wanted = hmac.new(KEY.encode(), b"some id", hashlib.sha512).digest()
    assert DelegationKey(KEY).hmac("some id") == wanted
    assert password_of(wanted) == base64.b64encode(wanted).decode()


def test_a_token_of_another_key_is_none() -> None:
    token = made()
    assert DelegationKey(KEY).made(token)
    assert not DelegationKey(KEY + ".").made(token)
    assert not DelegationKey(KEY).made(token._replace(id=made().id))


def test_nothing_secret_is_shown() -> None:
    token = made()
    assert repr(token) == f"DelegationToken({token.id} of User:alice, until {token.expires_ms})"
    shown = repr([token, DelegationKey(KEY)])
    for secret in (KEY, *texts(DelegationKey(KEY).hmac(token.id)), *texts(token.digest)):
        assert secret not in shown


# -- over the wire


@pytest.mark.parametrize(
    ("setting", "field", "milliseconds"),
    [
        ("delegation.token.max.lifetime.ms", "max_timestamp_ms", 5000),
        ("delegation.token.expiry.time.ms", "expiry_timestamp_ms", 6000),
    ],
)
async def test_settings_say_how_long(setting: str, field: str, milliseconds: int) -> None:
    async with guarded(f"{setting}={milliseconds}") as broker, user(broker, "alice") as alice:
        token = await create(alice)
        assert getattr(token, field) - token.issue_timestamp_ms == milliseconds


@pytest.mark.parametrize("name", ["max.lifetime", "expiry.time", "expiry.check.interval"])
def test_settings_are_positive(name: str) -> None:
    with pytest.raises(ConfigError, match=f"delegation.token.{name}.ms"):
        BrokerConfig.load(options=[f"delegation.token.{name}.ms=0"])
