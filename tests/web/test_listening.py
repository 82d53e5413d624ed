"""Tests of listening sockets for HTTP."""

from __future__ import annotations

import socket

import pytest

from kbroker.client.endpoint import Endpoint
from kbroker.net.server import CannotListen
from kbroker.web.listening import listen_at


async def test_port_of_another_listener_is_rejected_with_flag_to_change() -> None:
    first = await listen_at(Endpoint("127.0.0.1", 0), "--http")
    port = first[0].getsockname()[1]
    with pytest.raises(CannotListen, match=f"port {port} .* is in use; .* --http-port 0"):
        await listen_at(Endpoint("127.0.0.1", port), "--http")
    socket.create_connection(("127.0.0.1", port)).close()
    for each in first:
        each.close()
