"""Tests of bootstrap addresses without node processes."""

from __future__ import annotations

import os

import pytest

from kbroker.net.server import CannotListen, Listener
from kbroker.process.bootstrap_listeners import bind_bootstrap_listeners, inherited_sockets
from kbroker.process.errors import StartFailed

from ..ports import free_ports

HOST = "127.0.0.1"


async def test_listeners_whose_nodes_need_the_same_port_are_rejected() -> None:
    first = free_ports(4)
    listeners = [Listener("A", HOST, first), Listener("B", HOST, first + 2)]
    # Two nodes: A needs first + 1 and first + 2.
    message = f"both need port {first + 2}: .* set the ports at least 3 apart"
    with pytest.raises(StartFailed, match=message):
        await bind_bootstrap_listeners(listeners, (1, 2), 1)
    (await bind_bootstrap_listeners(listeners, (1,), 1)).close()


async def test_last_node_port_out_of_range_is_rejected() -> None:
    listeners = [Listener("A", HOST, 65534)]
    with pytest.raises(CannotListen, match="port 65536 is out of range; use a lower first port"):
        await bind_bootstrap_listeners(listeners, (1, 2), 1)


async def test_inherited_sockets_listen_and_are_closed_in_children() -> None:
    bootstrap = await bind_bootstrap_listeners([Listener("A", HOST, 0)], (1,), 1)
    bootstrap.listen(5)
    (descriptor,) = bootstrap.descriptors["A"]
    copy = os.dup(descriptor)
    os.set_inheritable(copy, True)  # as `pass_fds` of subprocess does
    (inherited,) = inherited_sockets({"A": [copy]})["A"]
    with inherited:
        assert not inherited.get_inheritable()
        assert inherited.getsockname()[1] == bootstrap.addresses[0].endpoint.port
    bootstrap.close()
