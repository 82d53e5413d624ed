"""Kafka's security protocols: how connections authenticate and whether they are encrypted."""

from __future__ import annotations

from enum import StrEnum


class SecurityProtocol(StrEnum):
    """The protocols of ``listener.security.protocol.map`` and of a client's ``security.protocol``."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def is_encrypted(self) -> bool:
        """True if connections use TLS."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_login(self) -> bool:
        """True if clients authenticate by SASL first."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)
