"""Sessions of the console: connections to nodes of other processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from kbroker.client.endpoint import Endpoint
from kbroker.security.acls import Client
from kbroker.security.errors import BadSettings
from kbroker.security.principals import ANONYMOUS
from kbroker.web.console.sessions import Sessions


class UnusableCertificates:
    """Certificates whose files cannot be read."""

    def peer_client_context(self) -> object:
        raise BadSettings("ssl.truststore: invalid certificates")


async def test_unusable_certificates_leave_no_connection_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[trio.SocketStream] = []
    open_tcp_stream = trio.open_tcp_stream

    async def open_and_record(*args: Any) -> trio.SocketStream:
        opened.append(await open_tcp_stream(*args))
        return opened[-1]

    monkeypatch.setattr(trio, "open_tcp_stream", open_and_record)
    listener = SimpleNamespace(name="SSL", users=None, certificates=UnusableCertificates())
    local = cast(Any, SimpleNamespace(listeners=[listener]))
    sessions = Sessions(local, [], is_exposed=False)
    (other,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with other:
        endpoint = Endpoint("127.0.0.1", other.socket.getsockname()[1])
        with pytest.raises(OSError, match="invalid certificates"):
            await sessions._dial(Client(ANONYMOUS, "127.0.0.1"), endpoint)
    try:
        assert [each for each in opened if each.socket.fileno() >= 0] == []
    finally:
        for each in opened:
            await each.aclose()
