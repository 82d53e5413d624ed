"""Kafka's security protocols: what a connection has to show, and whether others can read along."""

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
        """Whether it is spoken over TLS."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_login(self) -> bool:
        """Whether a client logs in by SASL before anything else."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)
