"""Where a broker is reached."""

from __future__ import annotations

from typing import NamedTuple

PORT_MAX = 65535
EVERY_INTERFACE = ("", "0.0.0.0", "::")
"""Hosts of listeners that stand for all addresses of their machine, of IPv4 and IPv6."""


class Endpoint(NamedTuple):
    """Host and port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Read HOST:PORT, where an address of IPv6 may stand in brackets. Raises ValueError."""
        host, _, port = text.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
            raise ValueError(f"{text!r} is not HOST:PORT")
        return cls(host.strip("[]"), int(port))

    @property
    def from_here(self) -> Endpoint:
        """The address at which a client on this machine reaches a listener with this host."""
        is_here = self.host in (*EVERY_INTERFACE, "localhost")
        return self._replace(host="127.0.0.1") if is_here else self

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
