"""Delegation tokens: rules with a fake clock, and settings (KIP-48, KIP-373)."""

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
    expire,
    new_token,
    password_of,
    renew,
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
    texts,
    token_of_alice,
    user,
)

# -- the rules


@contextmanager
def expect_error(code: ErrorCode) -> Iterator[None]:
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
def test_new_token_has_requested_lifetime(lifetime_ms: int, max_ms: int, expires_ms: int) -> None:
    token = token_of_alice(lifetime_ms=lifetime_ms)
    assert (token.issued_ms, token.max_ms - NOW, token.expires_ms - NOW) == (
        NOW,
        max_ms,
        expires_ms,
    )


def test_unlimited_lifetime_fits_64_bits() -> None:
    """Times have 64 bits on the wire."""
    token = new_token(
        DelegationKey(KEY), ALICE, ALICE, (), -1, Lifetimes(2**63 - 1, 2**63 - 1), NOW
    )
    assert (token.max_ms, token.expires_ms) == (TIME_MAX, TIME_MAX)
    assert renew(token, ALICE, -1, Lifetimes(2**63 - 1, 2**63 - 1), NOW).expires_ms == TIME_MAX


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
def test_renewal_sets_expiry(period_ms: int, after_ms: int, expires_ms: int) -> None:
    token = renew(token_of_alice(), ALICE, period_ms, LIFETIMES, NOW + after_ms)
    assert token.expires_ms == NOW + expires_ms
    assert token.max_ms == NOW + 7 * DAY


def test_renewal_stops_at_maximum_lifetime() -> None:
    token, now = token_of_alice(), NOW
    for _ in range(20):
        token = renew(token, ALICE, -1, LIFETIMES, now)
        now = min(now + DAY // 2, NOW + 7 * DAY)
    assert token.expires_ms == token.max_ms == NOW + 7 * DAY
    assert not token.is_expired(token.max_ms)
    assert token.is_expired(token.max_ms + 1)
    with expect_error(EXPIRED):
        renew(token, ALICE, -1, LIFETIMES, token.max_ms + 1)


def test_only_owner_and_renewers_change_token() -> None:
    """The user who requested the token for its owner may not change the token, as in Kafka."""
    token = token_of_alice(CAROL)
    for principal in (ALICE, CAROL):
        assert renew(token, principal, 5, LIFETIMES, NOW).expires_ms == NOW + 5
        assert expire(token, principal, -1, NOW) is None
    for principal in (BOB, Principal(USER, "dave"), Principal("Group", "alice")):
        with expect_error(MISMATCH):
            renew(token, principal, -1, LIFETIMES, NOW)
        with expect_error(MISMATCH):
            expire(token, principal, -1, NOW)


def test_token_expires_as_requested() -> None:
    token = token_of_alice()
    sooner = expire(token, ALICE, 5, NOW)
    assert sooner is not None
    assert sooner.expires_ms == NOW + 5
    now_at_once = expire(token, ALICE, 0, NOW)
    assert now_at_once is not None
    assert now_at_once.expires_ms == NOW
    later = expire(token, ALICE, 2**63 - 1, NOW)
    assert later is not None
    assert later.expires_ms == token.max_ms
    with expect_error(EXPIRED):
        expire(token, ALICE, 5, NOW + DAY + 1)
    assert expire(token, ALICE, -1, NOW + DAY + 1) is None


def test_error_precedence_matches_kafka() -> None:
    token = token_of_alice()
    with expect_error(MISMATCH):
        expire(token, BOB, 5, NOW + DAY + 1)
    with expect_error(MISMATCH):
        expire(token, BOB, -1, NOW + DAY + 1)
    with expect_error(EXPIRED):
        renew(token, BOB, 5, LIFETIMES, NOW + DAY + 1)


def test_token_ids_look_like_kafkas() -> None:
    """22 base64 characters without a leading dash, which Kafka's tools parse as an option."""
    ids = {_new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", each) for each in ids)


def test_invalid_token_principals_are_rejected() -> None:
    check_principals(ALICE, [BOB] * (NAMES_MAX - 1))
    check_principals(Principal(USER, "ö" * (NAMES_BYTES_MAX // 2)), [])
    for owner, renewers in (
        (Principal("Group", "a"), []),
        (ALICE, [BOB, Principal("Group", "b")]),
        (ALICE, [Principal("user", "b")]),
        (ALICE, [Principal("", "b")]),
    ):
        with expect_error(BAD_TYPE):
            check_principals(owner, renewers)
    for owner, renewers in (
        (ALICE, [BOB] * NAMES_MAX),
        (Principal(USER, "ö" * (NAMES_BYTES_MAX // 2)), [BOB]),
    ):
        with expect_error(ErrorCode.POLICY_VIOLATION):
            check_principals(owner, renewers)


def test_hmac_matches_kafkas() -> None:
    """The HMAC of a token is the HMAC-SHA-512 of its ID."""
    wanted = hmac.new(KEY.encode(), b"some id", hashlib.sha512).digest()
    assert DelegationKey(KEY).hmac("some id") == wanted
    assert password_of(wanted) == base64.b64encode(wanted).decode()


def test_token_of_another_key_is_not_recognized() -> None:
    token = token_of_alice()
    assert DelegationKey(KEY).has_created(token)
    assert not DelegationKey(KEY + ".").has_created(token)
    assert not DelegationKey(KEY).has_created(token._replace(id=token_of_alice().id))


def test_repr_contains_no_secret() -> None:
    token = token_of_alice()
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
async def test_settings_limit_token_lifetime(setting: str, field: str, milliseconds: int) -> None:
    async with guarded(f"{setting}={milliseconds}") as broker, user(broker, "alice") as alice:
        token = await create(alice)
        assert getattr(token, field) - token.issue_timestamp_ms == milliseconds


@pytest.mark.parametrize("name", ["max.lifetime", "expiry.time", "expiry.check.interval"])
def test_lifetime_settings_must_be_positive(name: str) -> None:
    with pytest.raises(ConfigError, match=f"delegation.token.{name}.ms"):
        BrokerConfig.load(options=[f"delegation.token.{name}.ms=0"])
