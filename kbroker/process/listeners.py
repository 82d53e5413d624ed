"""Listeners from settings."""

from __future__ import annotations

import re
import socket
from collections.abc import Collection, Sequence
from ipaddress import ip_address
from itertools import combinations

from kbroker.client.endpoint import PORT_MAX, Endpoint
from kbroker.config import BrokerConfig, ConfigError
from kbroker.net.server import LOOPBACK_NAMES, Listener
from kbroker.node.listener_security import ListenerSecurity
from kbroker.security.protocols import SecurityProtocol

_HOST = r"[\w%.:-]*"
_ADDRESS = re.compile(
    rf"(?P<name>[\w.-]+)://(?:\[(?P<six>{_HOST})\]|(?P<host>{_HOST})):(?P<port>\d+)", re.ASCII
)
_UNROUTABLE = "0.0.0.0"


def configured_listeners(config: BrokerConfig) -> list[Listener]:
    """Return the configured listeners with their advertised addresses.

    Raises:
        ConfigError: An address is invalid, two listeners have the same name or address, a setting
            names an unknown listener or security protocol, certificates or users cannot be used, or
            passwords would be sent over an unencrypted network.
    """
    bound = _by_name(config.listeners, "listeners")
    advertised = _by_name(config.advertised_listeners, "advertised.listeners")
    listeners = []
    for name, (host, port) in bound.items():
        security = _listener_security(config, name, host)
        listeners.append(
            Listener(name, host, port, _advertised_endpoint(advertised.get(name)), security)
        )
    _check_names(config, bound.keys(), advertised.keys())
    for one, other in combinations(listeners, 2):
        _check_apart(one, other)
    return listeners


def parse_endpoint(text: str) -> Endpoint:
    """Parse HOST:PORT, with brackets around an IPv6 address.

    Raises:
        ConfigError: The text is invalid.
    """
    return split_address(f"{SecurityProtocol.PLAINTEXT}://{text}", "the advertised address")[1]


def split_address(text: str, setting: str) -> tuple[str, Endpoint]:
    """Parse NAME://host:port. The name is converted to upper case, as in Kafka.

    Args:
        text: The text.
        setting: Name of the setting, for errors.

    Raises:
        ConfigError: The text is invalid.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > PORT_MAX:
        raise ConfigError(f"{setting}: invalid address {text!r} (expected NAME://host:port)")
    host = match["six"] if match["host"] is None else match["host"]
    return match["name"].upper(), Endpoint(host, int(match["port"]))


def _by_name(texts: Sequence[str], setting: str) -> dict[str, Endpoint]:
    """Parse the addresses of a setting, and check that their names are unique."""
    found: dict[str, Endpoint] = {}
    for text in texts:
        name, endpoint = split_address(text, setting)
        if name in found:
            raise ConfigError(f"{setting}: {text!r} is the second address of listener {name}")
        found[name] = endpoint
    return found


def _advertised_endpoint(advertised: Endpoint | None) -> Endpoint | None:
    """Return the endpoint to advertise; an empty host becomes this machine's canonical host name.

    Raises:
        ConfigError: The host is 0.0.0.0, or the host name of this machine does not resolve.
    """
    if advertised is None or advertised.host not in ("", _UNROUTABLE):
        return advertised
    if advertised.host == _UNROUTABLE:
        raise ConfigError(
            f"advertised.listeners: clients cannot connect to {advertised}; set an address that they "
            "can reach, or omit the listener to advertise the address that each client connected to"
        )
    return advertised._replace(host=canonical_host_name())


def canonical_host_name() -> str:
    """Return the canonical name of this machine, as in Java: the name of its host name's address.

    Returns:
        The name, or the address if the name does not resolve to this address.

    Raises:
        ConfigError: The host name does not resolve.
    """
    own = socket.gethostname()
    try:
        address = _addresses(own)[0]
    except OSError as error:
        raise ConfigError(
            f"advertised.listeners: the host name of this machine, {own}, does not resolve "
            f"({error.strerror}); set a host"
        ) from None
    try:
        name = socket.getnameinfo((address, 0), socket.NI_NAMEREQD)[0]
        return name if address in _addresses(name) else address
    except OSError:
        return address


def _addresses(host: str) -> list[str]:
    """Return the addresses of a host, IPv4 first."""
    rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(row[4][0]) for row in sorted(rows, key=lambda row: row[0] != socket.AF_INET)]


def _check_names(config: BrokerConfig, bound: Collection[str], advertised: Collection[str]) -> None:
    """Raise ConfigError if another setting names an unknown listener."""
    unknown = [name for name in advertised if name not in bound]
    if unknown:
        raise ConfigError(
            f"advertised.listeners: unknown listeners {', '.join(unknown)} (valid: "
            f"{', '.join(bound)})"
        )
    between = config.inter_broker_listener_name
    if between and between not in bound:
        raise ConfigError(
            f"inter.broker.listener.name: unknown listener {between} (valid: {', '.join(bound)})"
        )


def _check_apart(one: Listener, other: Listener) -> None:
    """Raise ConfigError if two listeners share a port, except an IPv4 and an IPv6 one (KIP-797)."""
    if not one.port or one.port != other.port:
        return
    if {_family(one.host), _family(other.host)} != {4, 6} or one.overlaps(other):
        raise ConfigError(
            f"listeners: {one.address} and {other.address} have the same port; give one of them "
            "another port, or one an IPv4 address and the other one an IPv6 address"
        )


def _family(host: str) -> int | None:
    """Return 4 or 6 for an address, None for a name."""
    try:
        return ip_address(host).version
    except ValueError:
        return None


def _listener_security(config: BrokerConfig, name: str, host: str) -> ListenerSecurity | None:
    protocol = protocol_of(config, name)
    if protocol is SecurityProtocol.PLAINTEXT:
        return None
    return ListenerSecurity(name, protocol, config, is_exposed=host not in LOOPBACK_NAMES)


def protocol_of(config: BrokerConfig, name: str) -> SecurityProtocol:
    """Return the security protocol of a listener.

    Raises:
        ConfigError: `listener.security.protocol.map` is invalid or lacks the listener.
    """
    protocols = _protocols(config.listener_security_protocol_map)
    if name not in protocols:
        raise ConfigError(f"listener {name} has no entry in listener.security.protocol.map")
    return protocols[name]


def _protocols(text: str) -> dict[str, SecurityProtocol]:
    """Parse NAME:PROTOCOL,... case-insensitively."""
    protocols = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, colon, protocol = (each.strip() for each in pair.rpartition(":"))
        try:
            protocols[name.upper()] = SecurityProtocol(protocol.upper())
        except ValueError:
            colon = ""
        if not colon or not name:
            raise ConfigError(
                f"listener.security.protocol.map: invalid entry {pair!r} (expected NAME:PROTOCOL; "
                f"valid protocols: {', '.join(SecurityProtocol)})"
            )
    return protocols
