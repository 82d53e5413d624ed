"""The delegation tokens of a node's cluster: who may log in by one now, and what becomes of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import trio

from kbroker.cluster import Cluster
from kbroker.cluster.store import OPERATIONS_MAX
from kbroker.config import BrokerConfig
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.runtime.clock import Clock
from kbroker.runtime.threads import InThread
from kbroker.security.delegation import (
    DelegationKey,
    DelegationToken,
    Lifetimes,
    ShownToken,
    ended,
    new_token,
    renewed,
)
from kbroker.security.principals import Principal
from kbroker.storage.errors import StorageError

logger = logging.getLogger(__name__)


class Delegation:
    """What a node does about delegation tokens (KIP-48).

    Without ``delegation.token.secret.key`` nobody makes tokens or logs in by one; those that were made
    with another key are as if they were not there.
    """

    def __init__(
        self, cluster: Cluster, config: BrokerConfig, clock: Clock, in_thread: InThread
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._in_thread = in_thread
        secret = config.delegation_token_secret_key
        self._key = DelegationKey(secret) if secret else None
        self._lifetimes = Lifetimes(
            config.delegation_token_max_lifetime_ms, config.delegation_token_expiry_time_ms
        )
        self._check_seconds = config.delegation_token_expiry_check_interval_ms / 1000

    @property
    def key(self) -> DelegationKey:
        """What HMACs are made with. Raises DELEGATION_TOKEN_AUTH_DISABLED where there is none."""
        if self._key is None:
            raise KafkaError(
                ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
                "there are no delegation tokens: set delegation.token.secret.key",
            )
        return self._key

    def shown(self, token_id: str) -> ShownToken | None:
        """The token by which somebody may log in now; None when there is none with this id."""
        if self._key is None:
            return None
        hmac = self._key.hmac(token_id)  # also of one that is not there: that takes as long
        token = self._cluster.delegation_tokens.with_hmac(hmac)
        left_ms = 0 if token is None else token.expires_ms - self._clock.log_ms()
        if token is None or left_ms <= 0:
            return None
        return ShownToken(token.owner, left_ms / 1000, token.credentials)

    async def create(
        self,
        owner: Principal,
        requester: Principal,
        renewers: Sequence[Principal],
        lifetime_ms: int,
        *,
        cause: str,
    ) -> DelegationToken:
        """Make a token for principals that are checked. Raises KafkaError; see `new_token`."""
        tokens, key = self._cluster.delegation_tokens, self.key
        tokens.check_room(requester)
        make = partial(new_token, key, owner, requester, renewers, lifetime_ms, self._lifetimes)
        token = await self._in_thread(partial(make, self._clock.log_ms()))
        tokens.check_room(requester)  # others were making some as well
        while not await self._cluster.put_delegation_token(token, cause=cause):
            pass  # somebody else made the first credential of the cluster
        logger.info("%s: token %s of %s, made by %s", cause, token.id, owner, requester)
        return token

    async def renew(self, hmac: bytes, by: Principal, period_ms: int, *, cause: str) -> int:
        """Let a token be good for longer; returns when it ends. Raises KafkaError."""
        while True:
            token = renewed(
                self._with_hmac(hmac), by, period_ms, self._lifetimes, self._clock.log_ms()
            )
            if await self._cluster.put_delegation_token(token, cause=cause):
                logger.info("%s: token %s of %s", cause, token.id, token.owner)
                return token.expires_ms

    async def end(self, hmac: bytes, by: Principal, period_ms: int, *, cause: str) -> int:
        """Let a token end sooner, and at once with a negative period; returns when it ends.

        Raises KafkaError.
        """
        while True:
            before = self._with_hmac(hmac)
            now_ms = self._clock.log_ms()
            token = ended(before, by, period_ms, now_ms)
            if token is None:
                revisions = {before.id: self._cluster.delegation_tokens.revision(before.id)}
                is_done = await self._cluster.remove_delegation_tokens(revisions, cause=cause)
            else:
                is_done = await self._cluster.put_delegation_token(token, cause=cause)
            if is_done:
                logger.info("%s: token %s of %s", cause, before.id, before.owner)
                return now_ms if token is None else token.expires_ms

    def _with_hmac(self, hmac: bytes) -> DelegationToken:
        """Raises KafkaError: DELEGATION_TOKEN_AUTH_DISABLED, DELEGATION_TOKEN_NOT_FOUND."""
        token, key = self._cluster.delegation_tokens.with_hmac(hmac), self.key
        if token is None or not key.made(token):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "there is no such token")
        return token

    async def remove_over(self) -> None:
        """Remove the tokens that have ended. Raises StorageError."""
        tokens, now_ms = self._cluster.delegation_tokens, self._clock.log_ms()
        while some := tokens.over(now_ms, OPERATIONS_MAX):
            # One that was renewed in this moment is left out the next time.
            await self._cluster.remove_delegation_tokens(some, cause="delegation tokens have ended")

    async def remove_regularly(self) -> None:
        """Do so now and then, until cancelled."""
        while True:
            await trio.sleep(self._check_seconds)
            try:
                await self.remove_over()
            except StorageError as error:
                logger.error("delegation tokens that have ended are kept: %s", error.message)
