"""SASL mechanisms and users of a listener, from Kafka's settings.

``sasl.enabled.mechanisms`` lists the mechanisms and ``sasl.jaas.config`` the users of each, with the
prefixes of listener and mechanism: ``listener.name.NAME.MECHANISM.sasl.jaas.config``.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from .delegation import ScramLogin, TokenUsers
from .errors import BadSettings
from .jaas import BadJaas, LoginModule, Lookup, jaas_text, parse_jaas, parse_modules
from .login import Exchange
from .oauth import OAuthServer
from .scram import (
    ScramCredential,
    ScramMechanism,
    ScramServer,
    ScramUser,
    Shape,
    credential_of,
    salt_of,
)

if TYPE_CHECKING:
    from .tokens import Tokens

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
# Supported mechanisms in the order of the SaslHandshake response.
SERVED = (PLAIN, *ScramMechanism, OAUTHBEARER)
_MODULES = {
    PLAIN: "PlainLoginModule",
    ScramMechanism.SHA_256: "ScramLoginModule",
    ScramMechanism.SHA_512: "ScramLoginModule",
    OAUTHBEARER: "OAuthBearerLoginModule",
}
# Kafka's token validators, with their names since and before 3.4.
_TOKEN_HANDLERS = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
)
_SETTINGS_PER_MECHANISM = (
    "sasl.jaas.config",
    "connections.max.reauth.ms",
    "sasl.server.callback.handler.class",
)


class StoredUsers(Protocol):
    """SCRAM users that are created at runtime and known to all nodes (KIP-554)."""

    @property
    def secret(self) -> bytes:
        """Secret of the cluster for the salts of other users; empty before the node starts."""
        ...

    def find(self, mechanism: ScramMechanism, name: str) -> ScramCredential | None:
        """Return the credential of a user; None if there is none."""
        ...

    def shapes(self, mechanism: ScramMechanism) -> Sequence[Shape]:
        """Return the shapes of all credentials of a mechanism."""
        ...


class Passwords:
    """Passwords of PLAIN, stored as keyed hashes.

    The settings file contains the passwords in plain text, so a fast hash suffices. It keeps the
    passwords out of memory dumps and makes the comparison time independent of them.
    """

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._key = secrets.token_bytes(32)
        self._hashes = {name: self._hash(text) for name, text in passwords.items()}

    def knows(self, name: str, password: str) -> bool:
        """Return True for the right password; takes equally long for unknown users."""
        digest = self._hash(password)
        known = self._hashes.get(name)
        return hmac.compare_digest(digest, known or self._key) and known is not None

    def _hash(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(), "sha256")


def settings_snapshot(setting: Lookup) -> tuple[str, ...]:
    """Return the values of all authentication settings, to detect changes."""
    texts = tuple(
        setting(name, mechanism) for name in _SETTINGS_PER_MECHANISM for mechanism in SERVED
    )
    mechanisms = setting("sasl.enabled.mechanisms", None)
    if OAUTHBEARER in mechanisms:
        from .tokens import settings_snapshot  # most nodes never need it

        texts += settings_snapshot(setting)
    return mechanisms, *texts


class Users:
    """The SASL mechanisms and users of one listener.

    Users of the settings can authenticate only after `prepare`, which takes some milliseconds per
    user and may run in a thread.

    Args:
        setting: Returns the settings of the listener.
        stored: Returns the users created at runtime, which override those of the settings.
        delegation: Returns the delegation tokens; None before the node starts.

    Raises:
        BadSettings: A setting is invalid.
    """

    def __init__(
        self,
        setting: Lookup,
        stored: Callable[[], StoredUsers | None] = lambda: None,
        delegation: Callable[[], TokenUsers | None] = lambda: None,
    ) -> None:
        self.settings = settings_snapshot(setting)
        self._stored = stored
        self._delegation = delegation
        wanted = [each.strip() for each in setting("sasl.enabled.mechanisms", None).split(",")]
        self.mechanisms = tuple(each for each in SERVED if each in wanted)
        if not self.mechanisms:
            raise BadSettings(
                f"sasl.enabled.mechanisms: no supported mechanism in {','.join(wanted)!r} (valid: "
                f"{', '.join(SERVED)})"
            )
        for each in self.mechanisms:
            _check_handler(each, setting("sasl.server.callback.handler.class", each))
        self._session_ms = {
            each: int(setting("connections.max.reauth.ms", each)) for each in self.mechanisms
        }
        self._secret = secrets.token_bytes(32)
        self._modules = {each: _login_module(each, setting) for each in self.mechanisms}
        # True if the settings define users.
        self.has_configured_users = any(each.users for each in self._modules.values())
        self._passwords = Passwords({})
        self._credentials: dict[tuple[ScramMechanism, str], ScramCredential] = {}
        # Token validation of OAUTHBEARER; None if it is disabled.
        self.tokens: Tokens | None = None
        if OAUTHBEARER in self.mechanisms:
            from .tokens import Tokens

            self.tokens = Tokens(setting, self._modules[OAUTHBEARER])

    def prepare(self) -> None:
        """Hash the passwords of the settings.

        All nodes must use the same salts, so call it after the secret of the cluster is loaded.
        """
        modules, secret = self._modules, self._salt_secret
        self._passwords = Passwords(modules[PLAIN].users if PLAIN in modules else {})
        self._credentials = {
            (mechanism, name): credential_of(mechanism, password, salt=salt_of(secret, name))
            for mechanism in ScramMechanism
            if mechanism in modules
            for name, password in modules[mechanism].users.items()
        }
        self._modules = {}

    @property
    def _salt_secret(self) -> bytes:
        stored = self._stored()
        return (b"" if stored is None else stored.secret) or self._secret

    def session_seconds(self, mechanism: str) -> float | None:
        """Return the maximum session lifetime in seconds (KIP-368); None if unlimited."""
        return self._session_ms[mechanism] / 1000 or None

    def credential(self, mechanism: str, name: str) -> ScramCredential | None:
        """Return the current SCRAM credential of a user; None for unknown users and PLAIN.

        It changes with the password of the user, and if the user is created or deleted at runtime.
        """
        if mechanism not in tuple(ScramMechanism):
            return None
        return self._credential(ScramMechanism(mechanism), name, self._stored())

    def _credential(
        self, mechanism: ScramMechanism, name: str, stored: StoredUsers | None
    ) -> ScramCredential | None:
        known = None if stored is None else stored.find(mechanism, name)
        return known or self._credentials.get((mechanism, name))

    def exchange(self, mechanism: str) -> Exchange:
        """Start an exchange with a mechanism."""
        if mechanism == PLAIN:
            from .plain import PlainServer

            return PlainServer(self._passwords.knows)
        if mechanism == OAUTHBEARER:
            assert self.tokens is not None
            return OAuthServer(self.tokens)
        tokens = self._delegation()
        server = self._scram_server(ScramMechanism(mechanism), self._stored(), tokens)
        return ScramLogin(server, tokens)

    def _scram_server(
        self, mechanism: ScramMechanism, stored: StoredUsers | None, tokens: TokenUsers | None
    ) -> ScramServer:
        def find(user: ScramUser) -> ScramCredential | None:
            if user.is_token:
                token = tokens.find_valid(user.name) if tokens else None
                return None if token is None else token.credentials.get(mechanism)
            return self._credential(mechanism, user.name, stored)

        shapes = set() if stored is None else {*stored.shapes(mechanism)}
        if any(of is mechanism for of, _ in self._credentials):
            shapes.add(Shape())
        return ScramServer(mechanism, find, self._salt_secret, shapes=shapes)


def _login_module(mechanism: str, setting: Lookup) -> LoginModule:
    text = setting("sasl.jaas.config", mechanism)
    if not text:
        return LoginModule(_MODULES[mechanism], {})
    try:
        module = module_of(mechanism, text)
    except BadJaas as error:
        raise BadSettings(f"sasl.jaas.config of {mechanism}: {error}") from None
    if module.short_name != _MODULES[mechanism]:
        raise BadSettings(
            f"sasl.jaas.config of {mechanism}: unsupported login module {module.name} (valid: "
            f"{_MODULES[mechanism]})"
        )
    if any(name.startswith("unsecured") for name in module.options):
        raise BadSettings(
            f"sasl.jaas.config of {mechanism}: unsecured tokens are not supported; remove the options "
            "that begin with unsecured"
        )
    return module


def module_of(mechanism: str, text: str) -> LoginModule:
    """Return the login module of a mechanism: the only one, or the one with its class.

    The settings of all listeners can contain several modules, like a section of a JAAS file.
    Raises:
        BadJaas: The text cannot be read.
    """
    name = _MODULES[mechanism]
    modules = parse_modules(text)
    if len(modules) <= 1:
        return parse_jaas(text)
    return next((each for each in modules if each.short_name == name), LoginModule(name, {}))


def only_module(mechanism: str, text: str) -> str:
    """Return the part of `sasl.jaas.config` for a mechanism; invalid text unchanged."""
    if mechanism not in _MODULES:
        return text
    try:
        module = module_of(mechanism, text)
    except BadJaas:
        return text
    return jaas_text(module.name, module.options)


def _check_handler(mechanism: str, name: str) -> None:
    """Raise BadSettings for a callback handler class that kbroker does not provide."""
    known = _TOKEN_HANDLERS if mechanism == OAUTHBEARER else ()
    if name and name not in known:
        alternative = f" or use {known[0]}" if known else ""
        raise BadSettings(
            f"sasl.server.callback.handler.class of {mechanism}: {name} is not part of kbroker; "
            f"remove the setting{alternative}"
        )
