"""Credentials and TLS settings of a client connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl

    from .tokens import TokenSource


class Credentials(NamedTuple):
    """SASL mechanism with a user name and password, or with a source of bearer tokens.

    With `is_delegation_token`, name and password are the token ID and HMAC (KIP-48).
    """

    mechanism: str
    name: str
    password: str
    tokens: TokenSource | None = None
    is_delegation_token: bool = False


class Security(NamedTuple):
    """TLS context and SASL credentials of a client; None for plaintext or no authentication."""

    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = None


# Plaintext without authentication.
OPEN = Security()
