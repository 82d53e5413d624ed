"""Network addresses of brokers."""

from __future__ import annotations

from typing import NamedTuple

PORT_MAX = 65535
# Listener hosts that bind to all addresses of the machine.
EVERY_INTERFACE = ("", "0.0.0.0", "::")


class Endpoint(NamedTuple):
    """Host and port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Parse HOST:PORT; an IPv6 address may be in brackets. Raises ValueError."""
        host, _, port = text.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
            raise ValueError(f"invalid address {text!r}: expected HOST:PORT")
        return cls(host.strip("[]"), int(port))

    @property
    def as_seen_locally(self) -> Endpoint:
        """Address that a client on this machine uses for a listener with this host and port."""
        is_here = self.host in (*EVERY_INTERFACE, "localhost")
        return self._replace(host="127.0.0.1") if is_here else self

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
