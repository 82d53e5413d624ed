"""A store at work for as long as somebody uses it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from .store import MetadataStore


@asynccontextmanager
async def running(store: MetadataStore) -> AsyncIterator[None]:
    """Let a store do its work, and close it at the end.

    It goes on working when whoever uses it is cancelled: to stop in order changes metadata.
    """
    work = trio.CancelScope(shield=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_run, store, work)
        try:
            yield
        finally:
            work.cancel()


async def _run(store: MetadataStore, work: trio.CancelScope) -> None:
    try:
        with work:
            await store.run()
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()
