"""Which listeners a configuration asks for."""

from __future__ import annotations

import re

from kbroker.client.endpoint import PORT_MAX, Endpoint
from kbroker.config import BrokerConfig, ConfigError
from kbroker.net.server import Listener

_ADDRESS = re.compile(r"(?P<name>[\w.-]+)://(?:\[(?P<six>[^\]]*)\]|(?P<host>[^:]*)):(?P<port>\d+)")
ANY_HOST = "0.0.0.0"
PLAINTEXT = "PLAINTEXT"


def configured_listeners(config: BrokerConfig) -> list[Listener]:
    """The listeners of `listeners`, each with its address of `advertised.listeners` if it has one.

    Raises ConfigError for an address that is none, an advertised name that nobody listens on, or
    a security protocol that does not exist yet.
    """
    advertised = dict(
        split_address(text, "advertised.listeners") for text in config.advertised_listeners
    )
    listeners = []
    for text in config.listeners:
        name, (host, port) = split_address(text, "listeners")
        _check_plaintext(config, name)
        listeners.append(Listener(name, host or ANY_HOST, port, advertised.pop(name, None)))
    if advertised:
        raise ConfigError(
            f"advertised.listeners names {', '.join(advertised)}, which listeners does not"
        )
    return listeners


def parse_endpoint(text: str) -> Endpoint:
    """Read HOST:PORT, with brackets around an IPv6 address. Raises ConfigError."""
    return split_address(f"{PLAINTEXT}://{text}", "the advertised address")[1]


def split_address(text: str, setting: str) -> tuple[str, Endpoint]:
    """Read NAME://host:port of a setting. Raises ConfigError."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > PORT_MAX:
        raise ConfigError(f"{setting}: {text!r} is not NAME://host:port")
    return match["name"], Endpoint(match["six"] or match["host"] or "", int(match["port"]))


def _check_plaintext(config: BrokerConfig, name: str) -> None:
    pairs = (pair.split(":") for pair in config.text("listener.security.protocol.map").split(","))
    protocols = {pair[0].strip(): pair[-1].strip() for pair in pairs}
    protocol = protocols.get(name)
    if protocol is None:
        raise ConfigError(f"listener {name} has no entry in listener.security.protocol.map")
    if protocol != PLAINTEXT:
        raise ConfigError(
            f"listener {name} asks for {protocol}, which kbroker does not have yet; use PLAINTEXT "
            "on an address that only trusted clients reach"
        )
