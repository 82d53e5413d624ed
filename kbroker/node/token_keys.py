"""The keys by which tokens are checked: fetched when a node starts, regularly, and when one is missing.

Nobody waits for them but clients whose tokens they are for. Keys that are known stay when newer ones
cannot be had.
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

FETCH_SECONDS = 10.0
LOOK_UP_SECONDS = 5.0
"""How long a client waits for a key that was not known."""
REFRESH_SECONDS_MIN = 1.0
"""Minimum time between two fetches of the keys, however many tokens name unknown keys."""


class TokenKeys:
    """Keeps the keys of `tokens` new, and brings those that are asked for. `name` is the listener's."""

    def __init__(self, tokens: Tokens, name: str) -> None:
        self._tokens = tokens
        self._name = name
        self._is_wanted = trio.Event()
        self._has_looked = trio.Event()
        self._fails = False
        tokens.look_up = self.look_up

    async def look_up(self) -> None:
        """Wait until it was looked for newer keys once more, or that takes too long."""
        self._is_wanted.set()
        with trio.move_on_after(LOOK_UP_SECONDS):
            await self._has_looked.wait()

    async def run(self, in_thread: InThread) -> None:
        """Look for newer keys again and again, until cancelled."""
        retry_seconds = self._tokens.retry_seconds
        while True:
            self._is_wanted = trio.Event()
            succeeded = await self._look(in_thread)
            has_looked, self._has_looked = self._has_looked, trio.Event()
            has_looked.set()
            if succeeded:
                retry_seconds = self._tokens.retry_seconds
                seconds = self._tokens.refresh_seconds
            else:
                seconds = min(retry_seconds, self._tokens.retry_seconds_max)
                retry_seconds = 2 * seconds
            least = min(seconds, REFRESH_SECONDS_MIN)
            await trio.sleep(least)
            with trio.move_on_after(seconds - least):
                await self._is_wanted.wait()

    async def _look(self, in_thread: InThread) -> bool:
        try:
            if self._tokens.file is None:
                await self._fetch(in_thread)
            else:
                await in_thread(self._tokens.read_file)
        except (BadSettings, HttpError, OSError, ValueError) as error:
            if not self._fails:
                have = "stay" if self._tokens.keys else "are missing, and nobody gets in by a token"
                logger.warning("listener %s: the keys of tokens %s: %s", self._name, have, error)
            self._fails = True
            return False
        if self._fails:
            logger.info("listener %s: the keys of tokens are there again", self._name)
        self._fails = False
        return True

    async def _fetch(self, in_thread: InThread) -> None:
        """Raises HttpError or ValueError."""
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
