"""Raw TLS clients."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import trio

from ..wire import Wire


@asynccontextmanager
async def encrypted(endpoint: tuple[str, int], context: ssl.SSLContext) -> AsyncIterator[Wire]:
    """Open a connection to a listener with TLS."""
    tcp = await trio.open_tcp_stream(*endpoint)
    stream = trio.SSLStream(tcp, context, server_hostname=endpoint[0], https_compatible=True)
    async with stream:
        await stream.do_handshake()
        yield Wire(cast(Any, stream))
