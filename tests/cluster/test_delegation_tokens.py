"""Delegation tokens that every node stores, expires and restores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.cluster.delegation_tokens import TOKENS_MAX, DelegationTokens, document_of
from kbroker.cluster.store import OPERATIONS_MAX, Entry
from kbroker.security.delegation import DelegationKey, Lifetimes, new_token
from kbroker.security.principals import Principal

from ..loop_latency import ThreadTime
from ..security.tokens import (
    DAY,
    EXPIRED,
    NOT_FOUND,
    SHA_512,
    Time,
    create,
    describe,
    expire,
    guarded,
    ids,
    logs_in,
    renew,
    user,
)
from ..wire import until

LIFETIMES = Lifetimes(max_ms=DAY, renewed_ms=DAY)


async def test_token_is_known_to_all_nodes_and_survives_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with guarded(data_dir=data, nodes=2) as broker, user(broker, "alice", node=2) as alice:
        token = await create(alice, lifetime_ms=DAY)
        for node in (1, 2):
            assert await logs_in(broker, token, node=node)
        async with user(broker, "alice") as other:
            assert await ids(other) == [token.token_id]
            renewal = await renew(other, bytes(token.hmac), 60_000)
        (row,) = (await describe(alice)).tokens
        assert row.expiry_timestamp == renewal.expiry_timestamp_ms
    async with guarded(data_dir=data, nodes=2) as broker, user(broker, "alice") as alice:
        (row,) = (await describe(alice)).tokens
        assert (row.expiry_timestamp, row.max_timestamp) == (
            renewal.expiry_timestamp_ms,
            token.max_timestamp_ms,
        )
        assert await logs_in(broker, token, SHA_512, node=2)


async def test_expired_tokens_are_removed() -> None:
    time = Time()
    async with guarded(clock=time) as broker, user(broker, "alice") as alice:
        short = await create(alice, lifetime_ms=1000)
        long = await create(alice)
        time.added_ms += 2000
        assert not await logs_in(broker, short)
        assert (await renew(alice, bytes(short.hmac))).error_code == EXPIRED
        assert (await expire(alice, bytes(short.hmac), 5)).error_code == EXPIRED
        await broker.node.delegation.remove_expired()
        assert await ids(alice) == [long.token_id]
        assert (await renew(alice, bytes(short.hmac))).error_code == NOT_FOUND
        time.added_ms += DAY
        await broker.node.delegation.remove_expired()
        assert len(broker.node.cluster.delegation_tokens) == 0


async def test_expired_tokens_are_removed_periodically() -> None:
    time = Time()
    often = "delegation.token.expiry.check.interval.ms=20"
    async with guarded(often, clock=time) as broker, user(broker, "alice") as alice:
        assert (await create(alice)).error_code == 0
        await trio.sleep(0.1)
        assert len(broker.node.cluster.delegation_tokens) == 1
        time.added_ms += 2 * DAY
        await until(lambda: not len(broker.node.cluster.delegation_tokens))


async def test_concurrently_expired_token_is_not_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded(nodes=2) as broker, user(broker, "alice") as alice:
        hmac = bytes((await create(alice)).hmac)
        store = broker.nodes[0].node.cluster._store
        inner = store.transact
        tries = 0

        async def expire_concurrently(*args: Any, **kw: Any) -> int | None:
            nonlocal tries
            tries += 1
            if tries == 1:
                async with user(broker, "alice", node=2) as other:
                    assert (await expire(other, hmac)).error_code == 0
            return await inner(*args, **kw)

        monkeypatch.setattr(store, "transact", expire_concurrently)
        assert (await renew(alice, hmac)).error_code == NOT_FOUND
        assert tries > 1
        assert await ids(alice) == []


def test_removal_of_tokens_does_not_depend_on_number_of_requesters() -> None:
    tokens, key = DelegationTokens(), DelegationKey("secret")
    one = new_token(key, Principal("User", "a"), Principal("User", "a"), (), 0, LIFETIMES, 0)
    for number in range(TOKENS_MAX):
        requester = Principal("User", f"user-{number}")
        each = one._replace(id=f"{number}", requester=requester, digest=b"%d" % number)
        tokens.put(each.id, Entry(document_of(each), 1))
    began = ThreadTime()
    for number in range(OPERATIONS_MAX):
        tokens.put(f"{number}", None)
    assert began.longer_than(0.01) is None
    assert len(tokens) == TOKENS_MAX - OPERATIONS_MAX
    tokens.check_token_limit(Principal("User", "user-0"))
