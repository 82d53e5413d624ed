"""Which listeners a configuration asks for."""

from __future__ import annotations

import re

from kbroker.client.endpoint import PORT_MAX, Endpoint
from kbroker.config import BrokerConfig, ConfigError
from kbroker.net.server import LOOPBACK_NAMES, Listener
from kbroker.node.gate import Gate
from kbroker.security.protocols import SecurityProtocol

_ADDRESS = re.compile(r"(?P<name>[\w.-]+)://(?:\[(?P<six>[^\]]*)\]|(?P<host>[^:]*)):(?P<port>\d+)")
ANY_HOST = "0.0.0.0"


def configured_listeners(config: BrokerConfig) -> list[Listener]:
    """The listeners of `listeners`, each with its address of `advertised.listeners` if it has one.

    Raises ConfigError for an address that is none, an advertised name that nobody listens on,
    a security protocol that does not exist, certificates or users that cannot be used, or passwords
    that others could read on their way.
    """
    advertised = dict(
        split_address(text, "advertised.listeners") for text in config.advertised_listeners
    )
    listeners = []
    for text in config.listeners:
        name, (host, port) = split_address(text, "listeners")
        host = host or ANY_HOST
        gate = _gate(config, name, host)
        listeners.append(Listener(name, host, port, advertised.pop(name, None), gate))
    if advertised:
        raise ConfigError(
            f"advertised.listeners names {', '.join(advertised)}, which listeners does not"
        )
    return listeners


def parse_endpoint(text: str) -> Endpoint:
    """Read HOST:PORT, with brackets around an IPv6 address. Raises ConfigError."""
    return split_address(f"{SecurityProtocol.PLAINTEXT}://{text}", "the advertised address")[1]


def split_address(text: str, setting: str) -> tuple[str, Endpoint]:
    """Read NAME://host:port of a setting. Raises ConfigError."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > PORT_MAX:
        raise ConfigError(f"{setting}: {text!r} is not NAME://host:port")
    return match["name"], Endpoint(match["six"] or match["host"] or "", int(match["port"]))


def _gate(config: BrokerConfig, name: str, host: str) -> Gate | None:
    protocol = protocol_of(config, name)
    if protocol is SecurityProtocol.PLAINTEXT:
        return None
    return Gate(name, protocol, config, is_exposed=host not in LOOPBACK_NAMES)


def protocol_of(config: BrokerConfig, name: str) -> SecurityProtocol:
    """What clients of a listener speak. Raises ConfigError."""
    pairs = (pair.split(":") for pair in config.text("listener.security.protocol.map").split(","))
    protocols = {pair[0].strip(): pair[-1].strip() for pair in pairs}
    text = protocols.get(name)
    if text is None:
        raise ConfigError(f"listener {name} has no entry in listener.security.protocol.map")
    try:
        protocol = SecurityProtocol(text)
    except ValueError:
        raise ConfigError(
            f"listener {name} asks for {text}; there are {', '.join(SecurityProtocol)}"
        ) from None
    return protocol
