"""Network addresses of brokers."""

from __future__ import annotations

from typing import NamedTuple

PORT_MAX = 65535
# Port of a bootstrap address without a port.
DEFAULT_PORT = 9092
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

    @classmethod
    def parse_bootstrap(cls, text: str) -> list[Endpoint]:
        """Parse bootstrap addresses: HOST[:PORT][,HOST[:PORT]...]; the default port is 9092.

        Args:
            text: Addresses, separated by commas; an IPv6 address must be in brackets.

        Raises:
            ValueError: An address is invalid.
        """
        return [cls._parse_one(address.strip()) for address in text.split(",")]

    @classmethod
    def _parse_one(cls, text: str) -> Endpoint:
        if "://" in text:
            raise ValueError(f"invalid address {text!r}: expected HOST[:PORT], without a protocol")
        host, bracket, rest = text[1:].partition("]") if text.startswith("[") else ("", "", "")
        if not bracket:
            host, colon, port = text.partition(":")
            if ":" in port:
                raise ValueError(
                    f"invalid address {text!r}: an IPv6 address needs brackets, as in [::1]:9092"
                )
            rest = colon + port
        port = rest.removeprefix(":") if rest else str(DEFAULT_PORT)
        is_valid_host = host and not any(c.isspace() or c in "[]/" for c in host)
        if not is_valid_host or rest[:1] not in ("", ":"):
            raise ValueError(f"invalid address {text!r}: expected HOST[:PORT], such as localhost")
        if not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
            raise ValueError(
                f"invalid address {text!r}: expected a port from 1 to {PORT_MAX} after the colon"
            )
        return cls(host, int(port))

    @property
    def as_seen_locally(self) -> Endpoint:
        """Address that a client on this machine uses for a listener with this host and port."""
        is_here = self.host in (*EVERY_INTERFACE, "localhost")
        return self._replace(host="127.0.0.1") if is_here else self

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
