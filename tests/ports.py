"""Ports for servers that cannot choose their own."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress

from kbroker.net.server import FIRST_PORT

# UDP sockets, which reserve the port numbers until this process exits; no server here uses UDP.
_taken: list[socket.socket] = []


def free_ports(count: int) -> int:
    """Return the first of several consecutive free ports that no other test on the machine gets.

    They are below the range of ephemeral ports, so that no other process gets the port of a stopped
    server.
    """
    while True:
        first = random.randrange(9500, FIRST_PORT - count)
        with suppress(OSError):
            _take(range(first, first + count))
            return first


def _take(ports: range) -> None:
    """Reserve all ports, or raise OSError."""
    with ExitStack() as stack:
        held = []
        for port in ports:
            taken = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            taken.bind(("127.0.0.1", port))
            held.append(taken)
            socket.create_server(("127.0.0.1", port)).close()
        _taken.extend(held)
        stack.pop_all()
