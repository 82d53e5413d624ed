"""Refresh of the keys that verify OAuth tokens: at startup, regularly, and for unknown key IDs.

Only clients with tokens of an unknown key wait for a refresh. If it fails, known keys stay valid.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from kbroker.runtime.http_client import HTTP_OK, HttpError, fetch
from kbroker.security.errors import BadSettings
from kbroker.security.tokens import KEYS_BYTES_MAX, KeySet, Tokens
from kbroker.security.urls import without_query

if TYPE_CHECKING:
    from kbroker.runtime.threads import InThread

logger = logging.getLogger(__name__)

# Timeout of one fetch of the keys.
FETCH_SECONDS = 10.0
# Maximum time in seconds that a client waits for an unknown key.
LOOK_UP_SECONDS = 5.0
# Minimum time in seconds between two fetches of the keys.
REFRESH_SECONDS_MIN = 1.0
# Clients that continue per event-loop iteration after a refresh. Each takes some tenths of a
# millisecond.
WOKEN_AT_ONCE = 10


class TokenKeys:
    """Refresher of the keys of one listener's tokens.

    Args:
        tokens: Settings and keys of the tokens.
        name: Name of the listener.
    """

    def __init__(self, tokens: Tokens, name: str) -> None:
        self._tokens = tokens
        self._name = name
        self._is_requested = trio.Event()
        # Clients that wait for the next refresh.
        self._waiting = trio.lowlevel.ParkingLot()
        self._is_failing = False
        # True when `run` has ended.
        self._has_ended = False
        tokens.look_up = self.look_up

    async def look_up(self) -> None:
        """Request a refresh of the keys, and wait until it is done or takes too long.

        Return at once if other settings have replaced the tokens, or if the node has stopped.
        """
        if self._has_ended:
            return
        self._is_requested.set()
        with trio.move_on_after(LOOK_UP_SECONDS):
            await self._waiting.park()

    async def run(self, in_thread: InThread) -> None:
        """Refresh the keys regularly and on request, until cancelled."""
        try:
            await self._refresh_regularly(in_thread)
        finally:
            # Nothing refreshes these keys any more, so clients need not wait for that.
            self._has_ended = True
            await self._wake_clients()

    async def _refresh_regularly(self, in_thread: InThread) -> None:
        retry_seconds = self._tokens.retry_seconds
        while True:
            self._is_requested = trio.Event()
            succeeded = await self._refresh(in_thread)
            await self._wake_clients()
            if succeeded:
                retry_seconds = self._tokens.retry_seconds
                seconds = self._tokens.refresh_seconds
            else:
                seconds = min(retry_seconds, self._tokens.retry_seconds_max)
                retry_seconds = 2 * seconds
            least = min(seconds, REFRESH_SECONDS_MIN)
            await trio.sleep(least)
            with trio.move_on_after(seconds - least):
                await self._is_requested.wait()

    async def _wake_clients(self) -> None:
        """Let the clients continue that wait now, a few at a time, even if cancelled."""
        waiting, self._waiting = self._waiting, trio.lowlevel.ParkingLot()
        with trio.CancelScope(shield=True):
            while waiting:
                waiting.unpark(count=WOKEN_AT_ONCE)
                await trio.lowlevel.checkpoint()

    async def _refresh(self, in_thread: InThread) -> bool:
        try:
            if self._tokens.file is None:
                await self._fetch(in_thread)
            else:
                await in_thread(self._tokens.read_file)
        except (BadSettings, HttpError, OSError, ValueError) as error:
            if not self._is_failing:
                effect = (
                    "keeping the previous keys"
                    if self._tokens.keys
                    else "clients cannot authenticate with tokens"
                )
                logger.warning(
                    "listener %s: cannot read the token keys, %s: %s", self._name, effect, error
                )
            self._is_failing = True
            return False
        if self._is_failing:
            logger.info("listener %s: the token keys can be read again", self._name)
        self._is_failing = False
        return True

    async def _fetch(self, in_thread: InThread) -> None:
        """Fetch the keys from their URL.

        Raises:
            ValueError: The keys cannot be fetched or parsed.
        """
        try:
            status, data = await fetch(
                self._tokens.url,
                seconds=FETCH_SECONDS,
                bytes_max=KEYS_BYTES_MAX,
                trusted=self._tokens.trusted,
            )
            if status != HTTP_OK:
                raise ValueError(f"HTTP status {status}")
            self._tokens.keys = await in_thread(lambda: KeySet(data))
        except (HttpError, ValueError) as error:
            raise ValueError(f"{without_query(self._tokens.url)}: {error}") from None
