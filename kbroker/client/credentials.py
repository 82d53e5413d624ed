"""What a client has to show to brokers that do not trust everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl

    from .tokens import TokenSource


class Credentials(NamedTuple):
    """Who logs in, and by which mechanism: with a name and a password, or with `tokens`.

    With `is_delegation_token` they are the id and the HMAC of one (KIP-48).
    """

    mechanism: str
    name: str
    password: str
    tokens: TokenSource | None = None
    is_delegation_token: bool = False


class Security(NamedTuple):
    """How connections are encrypted, and who logs in; None where neither is asked for."""

    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = None


OPEN = Security()
"""For brokers that trust everybody."""
