"""Ports for servers that cannot choose their own."""

from __future__ import annotations

import random
import socket

from kbroker.net.server import FIRST_PORT


def free_ports(count: int) -> int:
    """The first of some ports in a row that nobody listens on now.

    They are below those from which systems take the other end of a connection, and brokers their
    free ones: while a server is down, nobody else gets its port. They are drawn, for tests run in
    several processes at once.
    """
    while True:
        first = random.randrange(9500, FIRST_PORT - count)
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
