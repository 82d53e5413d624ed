"""Lifetime of a metadata store's background work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from .store import MetadataStore


@asynccontextmanager
async def running(store: MetadataStore) -> AsyncIterator[None]:
    """Run a store's background work, and close the store at the end.

    Cancellation of the caller does not stop the work, because an orderly shutdown changes metadata.
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
