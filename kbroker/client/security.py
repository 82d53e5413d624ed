"""How a client reaches brokers that do not trust everybody: Kafka's own client settings."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from kbroker.security.protocols import SecurityProtocol
from kbroker.security.stores import BadStore
from kbroker.security.tls import client_context

PROTOCOL = "security.protocol"
_DEFAULTS = {PROTOCOL: "PLAINTEXT", "ssl.endpoint.identification.algorithm": "https"}


def tls_from(settings: Mapping[str, str]) -> ssl.SSLContext | None:
    """How connections are encrypted by these settings; None when they are not. Raises BadStore."""
    given = _DEFAULTS | dict(settings)
    try:
        protocol = SecurityProtocol(given[PROTOCOL].upper())
    except ValueError:
        raise BadStore(f"{PROTOCOL}={given[PROTOCOL]}: there are PLAINTEXT and SSL") from None
    if protocol.has_login:
        raise BadStore(f"{PROTOCOL}={protocol}: kbroker's own clients do not log in yet")
    if not protocol.is_encrypted:
        return None
    return client_context(lambda name: given.get(name, ""))
