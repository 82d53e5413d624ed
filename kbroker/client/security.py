"""How a client reaches brokers that do not trust everybody: Kafka's own client settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from kbroker.security.errors import BadSettings, LoginFailed
from kbroker.security.jaas import BadJaas, LoginModule, parse_jaas
from kbroker.security.oauth import SEEN, first_message
from kbroker.security.protocols import SecurityProtocol
from kbroker.security.scram import ScramClient, ScramMechanism
from kbroker.security.tls import client_context
from kbroker.security.users import OAUTHBEARER, PLAIN, SERVED

from .credentials import Credentials, Security

if TYPE_CHECKING:
    from .connection import Ask, Connection

PROTOCOL, MECHANISM, JAAS = "security.protocol", "sasl.mechanism", "sasl.jaas.config"
HANDLER, TOKEN_HANDLER = "sasl.login.callback.handler.class", "OAuthBearerLoginCallbackHandler"
"""Kafka's clients need the name of their own class to read `sasl.oauthbearer.token.endpoint.url`."""
TOKENAUTH = "tokenauth"
"""The option that says that username and password are a delegation token's id and HMAC (KIP-48)."""
_DEFAULTS = {PROTOCOL: "PLAINTEXT", "ssl.endpoint.identification.algorithm": "https"}

RENEW_AT = 0.85
"""The part of a login's time after which another one follows (KIP-368)."""


class BadSecurity(ValueError):
    """Settings by which nobody can connect; the text names the setting and what to do."""


def security_of(settings: Mapping[str, str]) -> Security:
    """What ``security.protocol``, ``ssl.*`` and ``sasl.*`` say. Raises BadSecurity."""
    given = _DEFAULTS | dict(settings)
    try:
        protocol = SecurityProtocol(given[PROTOCOL].upper())
    except ValueError:
        known = ", ".join(SecurityProtocol)
        raise BadSecurity(f"{PROTOCOL}={given[PROTOCOL]}: there are {known}") from None
    tls = None
    if protocol.is_encrypted:
        try:
            tls = client_context(lambda name: given.get(name, ""))
        except BadSettings as error:
            raise BadSecurity(str(error)) from None
    return Security(tls, credentials_of(given) if protocol.has_login else None)


def credentials_of(given: Mapping[str, str]) -> Credentials:
    """Who logs in, as ``sasl.*`` says. Raises BadSecurity."""
    mechanism = given.get(MECHANISM, "").upper()
    if mechanism not in SERVED:
        raise BadSecurity(f"{MECHANISM}={mechanism}: there are {', '.join(SERVED)}")
    if mechanism == OAUTHBEARER:
        return _with_tokens(given)
    options = _module(given.get(JAAS, "")).options
    name, password = options.get("username"), options.get("password")
    if not name or not password:
        raise BadSecurity(f"{JAAS}: username=... and password=... are missing in it")
    is_token = options.get(TOKENAUTH, "").lower() == "true"
    if is_token and mechanism == PLAIN:
        raise BadSecurity(
            f"{JAAS}: {TOKENAUTH}=true needs {MECHANISM}={' or '.join(ScramMechanism)}"
        )
    return Credentials(mechanism, name, password, is_delegation_token=is_token)


def _with_tokens(given: Mapping[str, str]) -> Credentials:
    from .tokens import TokenSource

    handler = given.get(HANDLER, TOKEN_HANDLER)
    if handler.rpartition(".")[2] != TOKEN_HANDLER:
        raise BadSecurity(f"{HANDLER}={handler} is no part of kbroker: leave it out")
    module = _module(given[JAAS]) if JAAS in given else LoginModule(OAUTHBEARER, {})
    try:
        return Credentials(OAUTHBEARER, "", "", TokenSource(given, module))
    except BadSettings as error:
        raise BadSecurity(str(error)) from None


def _module(text: str) -> LoginModule:
    try:
        return parse_jaas(text)
    except BadJaas as error:
        raise BadSecurity(f"{JAAS}: {error}") from None


async def log_in(connection: Connection, credentials: Credentials) -> None:
    """Show who asks, before anything else but ApiVersions is asked, and again when that is due.

    Raises OSError when that fails, or the broker does not show that it knows the password.
    """

    async def again(ask: Ask) -> None:
        lifetime_ms = await _log_in(ask, credentials)
        connection.renew_after(lifetime_ms * RENEW_AT / 1000 if lifetime_ms else math.inf, again)

    await again(connection.ask)


async def _log_in(ask: Ask, credentials: Credentials) -> int:
    """How long the login is good in ms; 0: as long as the connection lives."""
    mechanism, name, password, tokens, is_token = credentials
    token = None if tokens is None else await tokens.token()
    hello = await ask(SaslHandshakeRequest(mechanism=mechanism), oldest=1)
    if hello.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise OSError("nobody logs in there: leave SASL_ out of security.protocol")
    if hello.error_code:
        offered = ", ".join(hello.mechanisms) or "none"
        raise OSError(f"does not take {mechanism}; it takes {offered}")
    try:
        if token is not None:
            answer = await _tell(ask, first_message(token))
            if answer.auth_bytes:  # what is wrong; the end is told when that is seen (RFC 7628)
                await _tell(ask, SEEN)
        elif mechanism == PLAIN:
            answer = await _tell(ask, f"\0{name}\0{password}".encode())
        else:
            client = ScramClient(ScramMechanism(mechanism), name, password, is_token=is_token)
            first = await _tell(ask, client.first())
            answer = await _tell(ask, client.final(bytes(first.auth_bytes)))
            client.check(bytes(answer.auth_bytes))
    except LoginFailed as error:
        who = name or "this token"
        raise OSError(f"does not let {who} in: {error}") from None
    return int(answer.session_lifetime_ms)


async def _tell(ask: Ask, message: bytes) -> SaslAuthenticateResponse:
    answer: SaslAuthenticateResponse = await ask(SaslAuthenticateRequest(auth_bytes=message))
    if answer.error_code:
        raise LoginFailed(answer.error_message or f"error {answer.error_code}")
    return answer
