"""Certificates and users of a listener, as the current settings require (KIP-226)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import trio

from kbroker.config import BrokerConfig, ConfigError
from kbroker.security.errors import BadSettings
from kbroker.security.principals import ANONYMOUS, USER, Principal
from kbroker.security.protocols import SecurityProtocol

if TYPE_CHECKING:
    from kbroker.client.credentials import Credentials
    from kbroker.runtime.threads import InThread
    from kbroker.security.certificate_names import MappingRules
    from kbroker.security.delegation import TokenUsers
    from kbroker.security.login import Login
    from kbroker.security.tls import Certificates
    from kbroker.security.users import StoredUsers, Users

CLIENT_AUTH = "ssl.client.auth"
PLAIN_OVER_PLAINTEXT = "sasl.plain.over.plaintext.enable"
NODES_MECHANISM = "sasl.mechanism.inter.broker.protocol"


class _Authentication(NamedTuple):
    """Authentication that the settings require from clients."""

    certificates: Certificates | None
    users: Users | None
    rules: MappingRules | None


class ListenerSecurity:
    """The certificates and the users of one listener.

    Users can log in once `prepare` returns. Users that later settings add can log in once
    `wait_until_applied` returns: `run` prepares them in a thread, because each takes milliseconds.

    Args:
        name: Name of the listener.
        protocol: Security protocol of the listener.
        config: Settings of the node.
        is_exposed: True if other machines can reach the listener.

    Raises:
        ConfigError: The certificates or users cannot be used, or clients would send passwords in
            plain text to other machines.
    """

    def __init__(
        self, name: str, protocol: SecurityProtocol, config: BrokerConfig, *, is_exposed: bool
    ) -> None:
        self.name = name
        self.certificates: Certificates | None = None
        self.users: Users | None = None
        self._rules: MappingRules | None = None
        self._setting: Callable[..., str] = config.lookup_for_listener(name)
        self._credentials: Credentials | None = None
        # SCRAM users in the cluster metadata; None before the node exists.
        self.stored_users: StoredUsers | None = None
        # Delegation tokens in the cluster metadata; None before the node exists.
        self.delegation: TokenUsers | None = None
        self._protocol = protocol
        self._is_exposed = is_exposed
        self._pending_users: Users | None = None
        self._has_pending_users = trio.Event()
        self._is_applied = trio.Event()
        self._is_applied.set()
        self._is_prepared = False
        self.apply(config)

    def of_node(self, config: BrokerConfig) -> ListenerSecurity:
        """Return the security of the same listener for another node's settings.

        Raises:
            ConfigError: The settings are invalid.
        """
        return ListenerSecurity(self.name, self._protocol, config, is_exposed=self._is_exposed)

    @property
    def requires_client_certificate(self) -> bool:
        """Return True if clients must authenticate."""
        has_certificate = (
            self.certificates is not None and self.certificates.requires_client_certificate
        )
        return has_certificate or self._protocol.has_login

    @property
    def lacks_users(self) -> bool:
        """Return True if clients must authenticate, but no user exists."""
        if self.users is None or self.users.tokens is not None or self.users.has_configured_users:
            return False
        from kbroker.security.scram import ScramMechanism  # most nodes never need it

        stored = self.stored_users
        return stored is None or not any(
            stored.shapes(each) for each in ScramMechanism if each in self.users.mechanisms
        )

    def principal_of(self, certificate: bytes | None) -> Principal:
        """Return the principal of a verified client certificate (DER) on a listener without SASL.

        Raises:
            AuthenticationError: The mapping rules do not match the certificate.
        """
        if certificate is None or self._rules is None:
            return ANONYMOUS
        from kbroker.security.certificate_names import subject_of  # most nodes never need it

        return Principal(USER, self._rules.name_of(subject_of(certificate)))

    def credentials(self) -> Credentials | None:
        """Return the credentials for the same listener of other nodes, or None without SASL.

        Raises:
            BadSecurity: The settings contain no credentials.
        """
        if self.users is None or self._credentials is not None:
            return self._credentials
        # Imported here: most nodes never need these modules.
        from kbroker.client.credentials import JAAS, MECHANISM
        from kbroker.client.security import credentials_of
        from kbroker.client.tokens import SETTINGS
        from kbroker.security.users import only_module

        mechanism = self._setting(NODES_MECHANISM, None)
        given = {name: self._setting(name, mechanism) for name in (JAAS, *SETTINGS)}
        given[JAAS] = only_module(mechanism, given[JAAS])
        present = {name: text for name, text in given.items() if text}
        self._credentials = credentials_of(present | {MECHANISM: mechanism})
        return self._credentials

    def login(self) -> Login | None:
        """Return the authentication state of a new connection, or None without SASL."""
        if self.users is None:
            return None
        from kbroker.security.login import Login  # most nodes never need it

        return Login(self._current_users)

    def _current_users(self) -> Users:
        """Return the current users: a reauthentication uses new passwords."""
        assert self.users is not None  # a listener cannot lose SASL
        return self.users

    def check(self, config: BrokerConfig) -> None:
        """Check that `apply` can apply settings.

        Raises:
            ConfigError: The settings are invalid.
        """
        self._build(config)

    def apply(self, config: BrokerConfig) -> None:
        """Apply settings to new connections.

        Raises:
            ConfigError: The settings are invalid. The previous ones stay in effect.
        """
        self.certificates, users, self._rules = self._build(config)
        self._setting, self._credentials = config.lookup_for_listener(self.name), None
        if users is None or users is self._newest_users:
            return
        if self._is_prepared:
            self._pending_users = users
            if self._is_applied.is_set():
                self._is_applied = trio.Event()
            self._has_pending_users.set()
        else:
            self.users = users

    async def prepare(self, in_thread: InThread) -> None:
        """Prepare the first users before clients connect. The cluster's SCRAM secret must exist."""
        while not self._is_prepared:
            users = self.users
            if users is not None:
                await in_thread(users.prepare)
            self._is_prepared = users is self.users

    async def run(self, in_thread: InThread) -> None:
        """Prepare new users, and refresh token keys, until cancelled."""
        while True:
            async with trio.open_nursery() as nursery:
                if self.users is not None and self.users.tokens is not None:
                    from .token_keys import TokenKeys  # most nodes never need it

                    nursery.start_soon(TokenKeys(self.users.tokens, self.name).run, in_thread)
                await self._has_pending_users.wait()
                self._has_pending_users = trio.Event()
                pending = self._pending_users
                assert pending is not None
                await in_thread(pending.prepare)
                self.users = pending
                if pending is self._pending_users:
                    self._pending_users = None
                    self._is_applied.set()
                nursery.cancel_scope.cancel()

    async def wait_until_applied(self) -> None:
        """Wait until the settings of the last `apply` are in effect."""
        await self._is_applied.wait()

    @property
    def _newest_users(self) -> Users | None:
        return self._pending_users or self.users

    def _build(self, config: BrokerConfig) -> _Authentication:
        """Return the authentication for settings. Reuse unchanged certificates and users."""
        setting = config.lookup_for_listener(self.name)
        if self._protocol.has_login and not config.has_listener_override(self.name, CLIENT_AUTH):
            setting = _without_client_auth(setting)
        try:
            certificates = self._certificates(setting) if self._protocol.is_encrypted else None
            users = self._users(setting) if self._protocol.has_login else None
            names_by_certificate = certificates is not None and users is None
            rules = _mapping_rules(setting) if names_by_certificate else None
        except BadSettings as error:
            raise ConfigError(f"listener {self.name}: {error}") from None
        return _Authentication(certificates, users, rules)

    def _certificates(self, setting: Callable[..., str]) -> Certificates:
        from kbroker.security.tls import Certificates, settings_snapshot  # most nodes never need it

        known = self.certificates
        if known is not None and known.settings == settings_snapshot(setting):
            return known
        return Certificates(setting, time.monotonic)

    def _users(self, setting: Callable[..., str]) -> Users:
        from kbroker.security.users import OAUTHBEARER, PLAIN, Users, settings_snapshot

        known = self._newest_users
        if known is not None and known.settings == settings_snapshot(setting):
            return known
        users = Users(setting, lambda: self.stored_users, lambda: self.delegation)
        if self._is_exposed and not self._protocol.is_encrypted:
            fix = "use SASL_SSL, or SCRAM-SHA-256 in sasl.enabled.mechanisms"
            allows_plain = setting(PLAIN_OVER_PLAINTEXT) == "true"
            if PLAIN in users.mechanisms and not allows_plain:
                raise BadSettings(
                    "PLAIN sends passwords in plain text, and other machines can reach this "
                    f"listener; {fix}, or set {PLAIN_OVER_PLAINTEXT}=true if the network is trusted"
                )
            if OAUTHBEARER in users.mechanisms:
                raise BadSettings(
                    "OAUTHBEARER sends tokens in plain text, and other machines can reach this "
                    f"listener; {fix}"
                )
        return users


def _without_client_auth(setting: Callable[..., str]) -> Callable[..., str]:
    """Ignore the global `ssl.client.auth` for a SASL listener (KIP-684)."""

    def other(name: str, mechanism: str | None = None) -> str:
        return "none" if name == CLIENT_AUTH else setting(name, mechanism)

    return other


def _mapping_rules(setting: Callable[..., str]) -> MappingRules | None:
    """Return the mapping of certificates to principals, or None without client certificates."""
    if setting(CLIENT_AUTH) == "none":
        return None
    from kbroker.security.certificate_names import RULES, MappingRules  # as above

    return MappingRules(setting(RULES))
