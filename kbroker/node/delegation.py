"""Delegation tokens on one node: lookup for authentication, creation, renewal and expiry."""

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
    ValidToken,
    expire,
    new_token,
    renew,
)
from kbroker.security.principals import Principal
from kbroker.storage.errors import StorageError

logger = logging.getLogger(__name__)


class Delegation:
    """Manager of delegation tokens on one node (KIP-48).

    Without ``delegation.token.secret.key``, tokens are disabled. Tokens that were created with
    another key are ignored.
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
        """Key of the tokens' HMACs.

        Raises:
            KafkaError: DELEGATION_TOKEN_AUTH_DISABLED: no key is configured.
        """
        if self._key is None:
            raise KafkaError(
                ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
                "delegation tokens are disabled; set delegation.token.secret.key",
            )
        return self._key

    def find_valid(self, token_id: str) -> ValidToken | None:
        """Return the valid token with an ID for authentication, or None."""
        if self._key is None:
            return None
        hmac = self._key.hmac(token_id)  # computed for unknown IDs too: constant time
        token = self._cluster.delegation_tokens.with_hmac(hmac)
        left_ms = 0 if token is None else token.expires_ms - self._clock.log_ms()
        if token is None or left_ms <= 0:
            return None
        return ValidToken(token.owner, left_ms / 1000, token.credentials)

    async def create(
        self,
        owner: Principal,
        requester: Principal,
        renewers: Sequence[Principal],
        lifetime_ms: int,
        *,
        cause: str,
    ) -> DelegationToken:
        """Create a token.

        Args:
            owner: Owner, already checked.
            requester: Principal that creates the token.
            renewers: Principals that may renew the token, already checked.
            lifetime_ms: Requested maximum lifetime in milliseconds.
            cause: Cause for the log.

        Raises:
            KafkaError: A limit is exceeded, or the metadata cannot be changed; see `new_token`.
        """
        tokens, key = self._cluster.delegation_tokens, self.key
        tokens.check_token_limit(requester)
        make = partial(new_token, key, owner, requester, renewers, lifetime_ms, self._lifetimes)
        token = await self._in_thread(partial(make, self._clock.log_ms()))
        tokens.check_token_limit(requester)  # other tokens may have been created concurrently
        while not await self._cluster.put_delegation_token(token, cause=cause):
            pass  # another node created the first credential of the cluster
        logger.info("%s: token %s of %s, created by %s", cause, token.id, owner, requester)
        return token

    async def renew(self, hmac: bytes, by: Principal, period_ms: int, *, cause: str) -> int:
        """Extend the expiry time of a token.

        Args:
            hmac: HMAC of the token.
            by: Principal that renews the token.
            period_ms: Time from now until expiry in milliseconds; negative for the default.
            cause: Cause for the log.

        Returns:
            The expiry time in milliseconds since the epoch.

        Raises:
            KafkaError: The token is unknown or expired, or `by` may not renew it.
        """
        while True:
            token = renew(
                self._with_hmac(hmac), by, period_ms, self._lifetimes, self._clock.log_ms()
            )
            if await self._cluster.put_delegation_token(token, cause=cause):
                logger.info("%s: token %s of %s", cause, token.id, token.owner)
                return token.expires_ms

    async def end(self, hmac: bytes, by: Principal, period_ms: int, *, cause: str) -> int:
        """Change the expiry time of a token.

        Args:
            hmac: HMAC of the token.
            by: Principal that expires the token.
            period_ms: Time from now until expiry in milliseconds; negative to expire at once.
            cause: Cause for the log.

        Returns:
            The expiry time in milliseconds since the epoch.

        Raises:
            KafkaError: The token is unknown or expired, or `by` may not expire it.
        """
        while True:
            before = self._with_hmac(hmac)
            now_ms = self._clock.log_ms()
            token = expire(before, by, period_ms, now_ms)
            if token is None:
                revisions = {before.id: self._cluster.delegation_tokens.revision(before.id)}
                is_done = await self._cluster.remove_delegation_tokens(revisions, cause=cause)
            else:
                is_done = await self._cluster.put_delegation_token(token, cause=cause)
            if is_done:
                logger.info("%s: token %s of %s", cause, before.id, before.owner)
                return now_ms if token is None else token.expires_ms

    def _with_hmac(self, hmac: bytes) -> DelegationToken:
        """Return the token with an HMAC.

        Raises:
            KafkaError: DELEGATION_TOKEN_AUTH_DISABLED, DELEGATION_TOKEN_NOT_FOUND.
        """
        token, key = self._cluster.delegation_tokens.with_hmac(hmac), self.key
        if token is None or not key.has_created(token):
            raise KafkaError(
                ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "no delegation token has this HMAC"
            )
        return token

    async def remove_expired(self) -> None:
        """Remove the expired tokens.

        Raises:
            StorageError: The metadata cannot be changed.
        """
        tokens, now_ms = self._cluster.delegation_tokens, self._clock.log_ms()
        while some := tokens.expired(now_ms, OPERATIONS_MAX):
            # A token that was renewed concurrently is skipped in the next iteration.
            await self._cluster.remove_delegation_tokens(some, cause="delegation tokens expired")

    async def remove_expired_regularly(self) -> None:
        """Remove expired tokens at the configured interval, until cancelled."""
        while True:
            await trio.sleep(self._check_seconds)
            try:
                await self.remove_expired()
            except StorageError as error:
                logger.error("cannot remove expired delegation tokens: %s", error.message)
