"""Ports for servers that cannot choose their own."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress

from kbroker.net.server import FIRST_PORT

_taken: list[socket.socket] = []
"""Of UDP, which no server here speaks: who has the port there has it until this process ends."""


def free_ports(count: int) -> int:
    """The first of some ports in a row that nobody listens on, and no other test of the machine gets.

    They are below those from which systems take the other end of a connection, and brokers their
    free ones: while a server is down, nobody else gets its port.
    """
    while True:
        first = random.randrange(9500, FIRST_PORT - count)
        with suppress(OSError):
            _take(range(first, first + count))
            return first


def _take(ports: range) -> None:
    """Take them all, or raise OSError."""
    with ExitStack() as stack:
        held = []
        for port in ports:
            taken = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            taken.bind(("127.0.0.1", port))
            held.append(taken)
            socket.create_server(("127.0.0.1", port)).close()
        _taken.extend(held)
        stack.pop_all()
